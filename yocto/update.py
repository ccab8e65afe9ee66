#!/usr/bin/env python3
"""Points the Yocto recipe at a commit: `just yocto-update [COMMIT]`, by default the current one.

Writes the commit into the recipe and the crates that this commit locks, with their checksums, into the file beside it,
much as OpenEmbedded's class cargo-update-recipe-crates would. With --print it prints that file and changes nothing.
"""

import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPES = ROOT / "yocto/meta-ankaios-lite/recipes-core/ankaios-lite"
CRATES = RECIPES / "ankaios-lite-crates.inc"


def fail(text, hint):
    sys.exit(f"error: {text}\nhint: {hint}")


def git(*arguments):
    try:
        return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        fail("git is not installed", "apt-get install git")


def commit_of(name):
    """The number of the commit with this name."""
    try:
        return git("rev-parse", "--verify", f"{name}^{{commit}}").strip()
    except subprocess.CalledProcessError as error:
        fail(f"'{name}' is no commit of '{ROOT}'", error.stderr.strip() or "'git log' lists them")


def crates(lock):
    """The text of the crates file for the text of a Cargo.lock."""
    packages = [package for package in tomllib.loads(lock)["package"] if "crates.io" in package.get("source", "")]
    named = [(f"{package['name']}-{package['version']}", package) for package in packages]
    lines = ["# Made from Cargo.lock by 'just yocto-update'", "", 'SRC_URI += "\\']
    for name, package in named:
        lines.append(f"    crate://crates.io/{package['name']}/{package['version']};name={name} \\")
    lines += ['"', ""]
    lines += [f'SRC_URI[{name}.sha256sum] = "{package["checksum"]}"' for name, package in named]
    return "\n".join(lines) + "\n"


def main(arguments):
    only_print = "--print" in arguments
    wanted = [argument for argument in arguments if argument != "--print"] or ["HEAD"]
    commit = commit_of(wanted[0])
    text = crates(git("show", f"{commit}:Cargo.lock"))
    if only_print:
        sys.stdout.write(text)
        return
    version = re.search(r'^version = "(.+)"', git("show", f"{commit}:Cargo.toml"), re.M)[1]
    (recipe,) = RECIPES.glob("ankaios-lite_*.bb")
    content = recipe.read_text()
    content, count = re.subn(r'^SRCREV = ".*"', f'SRCREV = "{commit}"', content, flags=re.M)
    assert count == 1, f"no SRCREV in {recipe}"
    patched = re.search(r"^    crate://crates.io/grpcio-sys/(\S+?);", text, re.M)[1]
    content, count = re.subn(r"/grpcio-sys-[^ ;]+", f"/grpcio-sys-{patched}", content)
    assert count == 1, f"no patch of grpcio-sys in {recipe}"
    recipe.write_text(content)
    recipe.rename(RECIPES / f"ankaios-lite_{version}.bb")
    CRATES.write_text(text)
    if git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!yocto").strip():
        print("warning: changes outside of yocto/ that are not committed are not part of it", file=sys.stderr)
    print(f"the recipe builds {version} at {commit}, {text.count('crate://')} crates")


main(sys.argv[1:])
