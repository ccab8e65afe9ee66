#!/usr/bin/env python3
"""Writes the crates that Cargo.lock names, with their checksums, into a file of the Yocto layer: `./justw release crates`.

With `--print` it prints that file and changes nothing; `--print FILE` reads another Cargo.lock.
"""

import pathlib
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = ROOT / "yocto/meta-ankaios-lite/recipes-core/ankaios-lite/ankaios-lite-crates.inc"


def fail(text, hint):
    sys.exit(f"error: {text}\nhint: {hint}")


def packages_from_crates_io(lock):
    """The packages of a Cargo.lock that bitbake has to fetch."""
    try:
        locked = tomllib.loads(lock.read_text())["package"]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        fail(f"'{lock}' is no Cargo.lock: {error}", "'cargo generate-lockfile' makes one")
    return [package for package in locked if "crates.io" in package.get("source", "")]


def recipe_part(packages):
    """The text of the crates file for these packages."""
    lines = ["# Made from Cargo.lock by './justw release crates'", "", 'SRC_URI += "\\']
    for package in packages:
        name, version = package["name"], package["version"]
        lines.append(f"    crate://crates.io/{name}/{version};name={name}-{version} \\")
    lines += ['"', ""]
    for package in packages:
        lines.append(f'SRC_URI[{package["name"]}-{package["version"]}.sha256sum] = "{package["checksum"]}"')
    for package in packages:
        if package["name"] == "grpcio-sys":
            lines += ["", "# The crate that is patched.", f'ANKAIOS_GRPCIO_SYS = "grpcio-sys-{package["version"]}"']
    return "\n".join(lines) + "\n"


def main(arguments):
    only_print = arguments[:1] == ["--print"]
    if not only_print and arguments:
        fail(f"unknown argument '{arguments[0]}'", "crates.py [--print [FILE]]")
    lock = pathlib.Path(arguments[1]) if len(arguments) > 1 else ROOT / "Cargo.lock"
    packages = packages_from_crates_io(lock)
    text = recipe_part(packages)
    if only_print:
        sys.stdout.write(text)
        return
    CRATES.write_text(text)
    print(f"{CRATES.name}: {len(packages)} crates")


main(sys.argv[1:])
