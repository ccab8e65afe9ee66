"""As much of bitbake as the recipes of yocto/ use: reads one, runs its do_install with empty programs, and prints which
package gets which file. `bake.py RECIPE FOLDER RELEASE COMPONENT...`; FOLDER is for files and has to be new.
Files in the variable ANKAIOS_BAKE_UNPACK are there as if a .bbappend had named them in SRC_URI.
"""

import fnmatch
import os
import pathlib
import re
import subprocess
import sys
import types

ASSIGNMENT = re.compile(r'^(?:export\s+)?([\w${}:.-]+)(?:\[([\w.+-]+)\])?\s*(=|\?\?=|\?=|\+=)\s*"(.*)"$')
FUNCTION = re.compile(r"^([\w:-]+)\(\) \{$")


class Recipe:
    """The variables and functions of a recipe; `getVar` as in bitbake."""

    def __init__(self, path, given):
        self.values, self.flags, self.functions, self.appended = dict(given), {}, {}, {}
        self.inherited = []
        self.getVar = lambda name: self.expand(self.values[name]) if self.values.get(name) is not None else None
        self.utils = types.SimpleNamespace(contains=self.contains)
        self.read(path)

    def contains(self, name, wanted, yes, no, _):
        return yes if set(wanted.split()) <= set((self.getVar(name) or "").split()) else no

    def expand(self, text):
        for _ in range(20):
            before = text
            text = re.sub(r"\$\{@(.*?)\}", lambda match: str(self.python(match[1])), text)
            text = re.sub(r"\$\{([\w:.-]+)\}", lambda match: self.value(match), text)
            if text == before:
                return text
        raise SystemExit(f"expands for ever: {text}")

    def value(self, match):
        """Of a variable; shell variables stay as they are."""
        value = self.values.get(match[1])
        return match[0] if value is None else value + "".join(self.appended.get(match[1], []))

    def python(self, code):
        return eval(code, {"d": self, "bb": self, "os": os})

    def read(self, path):
        lines = iter(path.read_text().splitlines())
        for line in lines:
            while line.endswith("\\"):
                line = line[:-1] + next(lines)
            if not line or line.startswith("#"):
                continue
            if line == "python () {":
                # What only bitbake can run.
                while next(lines) != "}":
                    pass
            elif function := FUNCTION.match(line):
                self.functions[function[1]] = "\n".join(iter(lambda: next(lines), "}"))
            elif line.startswith(("inherit ", "inherit_defer ")):
                self.inherited += self.expand(line.split(" ", 1)[1]).split()
            elif line.startswith("require "):
                self.read(path.parent / self.expand(line.split()[1]))
            elif assignment := ASSIGNMENT.match(line):
                self.assign(*assignment.groups())
            else:
                raise SystemExit(f"{path}: cannot read: {line}")

    def assign(self, name, flag, operator, value):
        name = self.expand(name)
        if flag or "[" in name:
            self.flags[name, flag] = value
        elif ":append" in name:
            self.appended.setdefault(name.split(":append")[0], []).append(value)
            self.values.setdefault(name.split(":append")[0], "")
        elif operator == "+=":
            self.values[name] = self.values.get(name, "") + " " + value
        elif operator == "=" or name not in self.values:
            self.values[name] = value

    def words(self, name):
        return (self.getVar(name) or "").split()


def print_what_a_script_makes(script, root, settings):
    """Runs what is done when a package has been installed into the image in `root`."""
    (root / settings[1:] / "ankaios").mkdir(parents=True)
    for _ in range(2):  # A package may be installed again.
        subprocess.run(["sh", "-euc", script], check=True, env={**os.environ, "D": str(root)})
    for made in sorted((root / settings[1:] / "ankaios").rglob("*")):
        print(f"  makes /{made.relative_to(root)} {made.stat().st_mode & 0o777:04o}")


def main(path, folder, release, *components):
    path, folder = pathlib.Path(path), pathlib.Path(folder)
    work, image, built = folder / "work", folder / "image", folder / "build/target/triple/release"
    name, version = path.stem.split("_")
    sources = pathlib.Path(__file__).resolve().parent.parent.parent
    given = {
        "PN": name, "BPN": name, "BP": f"{name}-{version}", "PV": version, "D": str(image), "B": str(folder / "build"),
        "S": str(sources), "WORKDIR": str(work), "UNPACKDIR": None if release == "scarthgap" else str(work),
        "FILE_DIRNAME": str(path.parent), "CARGO_TARGET_SUBDIR": "triple/release", "CARGO_VENDORING_DIRECTORY": "/vendor",
        "bindir": "/usr/bin", "sysconfdir": "/etc", "localstatedir": "/var", "nonarch_libdir": "/usr/lib",
        "systemd_system_unitdir": "/usr/lib/systemd/system", "BBFILE_COLLECTIONS": "core virtualization-layer",
        "PACKAGECONFIG": " ".join(components), "CARGO_BUILD_FLAGS": "build", "CFLAGS": "", "CXXFLAGS": "",
    }
    recipe = Recipe(path, given)
    chosen = recipe.words("PACKAGECONFIG")
    recipe.values["PACKAGECONFIG_CONFARGS"] = " ".join(recipe.flags["PACKAGECONFIG", name] for name in chosen)

    built.mkdir(parents=True)
    for program in ["ankaios"] if "multicall" in chosen else ["ank-server", "ank-agent", "ank"]:
        (built / program).touch()
    work.mkdir()
    for uri in recipe.words("SRC_URI"):
        if uri.startswith("file://"):
            file = uri.removeprefix("file://").split(";")[0]
            (work / file).write_bytes((path.parent / "files" / file).read_bytes())
    for file in map(pathlib.Path, os.environ.get("ANKAIOS_BAKE_UNPACK", "").split()):
        (work / file.name).write_bytes(file.read_bytes())
    called = [f for f in recipe.functions if not f.startswith("do_") and ":" not in f]
    script = "".join(f"{f}() {{\n{recipe.expand(recipe.functions[f])}\n}}\n" for f in called)
    subprocess.run(["sh", "-euc", script + recipe.expand(recipe.functions["do_install"])], check=True)

    installed = sorted(f"/{file.relative_to(image)}" for file in image.rglob("*") if not file.is_dir())
    print(f"cargo {recipe.expand('${CARGO_BUILD_FLAGS}')}".strip())
    print("classes", *recipe.inherited)
    for package in recipe.words("PACKAGES"):
        patterns = recipe.words(f"FILES:{package}")
        mine = [file for file in installed if any(fnmatch.fnmatch(file, pattern) for pattern in patterns)]
        installed = [file for file in installed if file not in mine]
        if not mine and recipe.getVar(f"ALLOW_EMPTY:{package}") != "1":
            continue
        print(f"\n{package}")
        for file in mine:
            at = image / file[1:]
            kind = f"-> {os.readlink(at)}" if at.is_symlink() else f"{at.stat().st_mode & 0o777:04o}"
            settings = "  settings" if file in recipe.words(f"CONFFILES:{package}") else ""
            print(f"  {file} {kind}{settings}")
        if script := recipe.functions.get(f"pkg_postinst:{package}"):
            print_what_a_script_makes(recipe.expand(script), folder / f"root-{package}", recipe.getVar("sysconfdir"))
        for variable in ["RDEPENDS", "RRECOMMENDS", "SYSTEMD_SERVICE", "INITSCRIPT_NAME", "USERADD_PARAM"]:
            if words := recipe.words(f"{variable}:{package}"):
                print(f"  {variable} {' '.join(words)}")
        for file in recipe.words(f"CONFFILES:{package}"):
            assert file in mine, f"{package}: {file} is not in it"
        for service in recipe.words(f"SYSTEMD_SERVICE:{package}"):
            assert f"/usr/lib/systemd/system/{service}" in mine and package in recipe.words("SYSTEMD_PACKAGES")
        for script in recipe.words(f"INITSCRIPT_NAME:{package}"):
            assert f"/etc/init.d/{script}" in mine and package in recipe.words("INITSCRIPT_PACKAGES")
    assert not installed, f"in no package: {installed}"


main(*sys.argv[1:])
