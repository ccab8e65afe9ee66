//! The Yocto layer against this repository: everything that its recipes name is there, their
//! packages get what they should, their patches apply, and the linter of recipes has nothing to
//! say. What only bitbake itself could tell is in the layer's README.
//!
//! Thread: the test's. Owns: folders for the recipes' `do_install`, and for sources of another
//! release.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::files::files_below;
use crate::support::process::clean_command;
use crate::support::python::{cache, environment, repository, succeeded};
use crate::support::{leave_out, scratch};
use tempfile::TempDir;
use toml::{Table, Value};

const LAYER: &str = "yocto/meta-ankaios-lite";
const RECIPES: &str = "yocto/meta-ankaios-lite/recipes-core/ankaios-lite";
/// The recipe of the tree that the layer lies in.
const TREE_RECIPE: &str = "ankaios-lite_git.bb";
/// What both recipes have in common.
const COMMON: &str = "ankaios-lite.inc";
const CRATES: &str = "ankaios-lite-crates.inc";
/// In place of the commit of a tag that there is not yet.
const NO_COMMIT: &str = "0000000000000000000000000000000000000000";

/// Rules of the linter that are left out: one needs a network, the other takes an `inherit` that is
/// empty without the server for a space at the end of the line.
const NOT_LINTED: [&str; 2] = ["oelint.vars.homepageping", "oelint.spaces.lineend"];

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("'{path}': {error}"))
}

fn run(what: &str, command: &mut Command) -> String {
    succeeded(what, command.current_dir(repository("")).output())
}

/// The text of a file of the folder with the recipes.
fn recipe(name: &str) -> String {
    read(&format!("{RECIPES}/{name}"))
}

/// The recipe of a release in the sources at `top`: its name and its version.
fn release_recipe(top: &Path) -> (String, String) {
    let files = fs::read_dir(top.join(RECIPES))
        .expect("the layer has recipes")
        .flatten();
    let mut names: Vec<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    names.retain(|name| name.ends_with(".bb") && name != TREE_RECIPE);
    assert_eq!(names.len(), 1, "one release has a recipe: {names:?}");
    let version = names[0]
        .strip_prefix("ankaios-lite_")
        .and_then(|name| name.strip_suffix(".bb"));
    (
        names[0].clone(),
        version.expect("it is named after its version").to_owned(),
    )
}

/// The value of `name = "..."` in one line of `text`.
fn value<'t>(text: &'t str, name: &str) -> &'t str {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='));
    let line = line.unwrap_or_else(|| panic!("'{name}' is not set"));
    line.trim().trim_matches('"')
}

/// What cargo knows of all locked packages.
fn metadata() -> &'static serde_json::Value {
    static METADATA: OnceLock<serde_json::Value> = OnceLock::new();
    METADATA.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
        // Other systems' packages are locked, but were not fetched.
        command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
        serde_json::from_str(&run("cargo metadata", &mut command)).expect("JSON")
    })
}

fn package(name: &str) -> &'static serde_json::Value {
    let packages = metadata()["packages"].as_array().expect("packages");
    packages
        .iter()
        .find(|package| package["name"] == name)
        .unwrap_or_else(|| panic!("'{name}' is not locked"))
}

#[test]
fn linter_has_nothing_to_say() {
    let python = match environment("venv-yocto", "yocto_requirements.txt", "import oelint_adv") {
        Ok(python) => python,
        Err(_) if !pypi_is_reachable() => {
            return leave_out("the recipes with oelint-adv", "PyPI cannot be reached");
        }
        Err(error) => panic!("{error}"),
    };
    let layer = read(&format!("{LAYER}/conf/layer.conf"));
    let releases: Vec<&str> = value(&layer, "LAYERSERIES_COMPAT_ankaios-lite")
        .split(' ')
        .collect();
    assert_eq!(releases, ["scarthgap", "wrynose", "blacksail"]);
    let (release_recipe, _) = release_recipe(&repository(""));
    let linted =
        [TREE_RECIPE, &release_recipe, COMMON, CRATES].map(|name| format!("{RECIPES}/{name}"));
    for path in &linted {
        assert!(
            !read(path).lines().any(|line| line.ends_with(' ')),
            "a line of '{path}' ends with a space"
        );
    }
    for release in releases {
        let mut lint = Command::new(python.with_file_name("oelint-adv"));
        lint.args(["--quiet", "--mode", "all", "--release", release]);
        lint.args(NOT_LINTED.iter().flat_map(|rule| ["--suppress", rule]));
        lint.args(&linted).arg(format!("{LAYER}/conf/layer.conf"));
        let output = lint
            .current_dir(repository(""))
            .output()
            .expect("the linter starts");
        let found = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && !found.contains("oelint."),
            "for {release}:\n{found}"
        );
    }
}

/// Whether pip of the linter's environment can download a package that PyPI certainly has.
fn pypi_is_reachable() -> bool {
    let folder = cache().join("venv-yocto");
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--dest",
    ])
    .arg(folder.join("probe"));
    pip.arg("pip")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Continuous integration stays green where the linter cannot be had, and names the checks that it
/// left out.
#[test]
fn linter_without_pypi_is_left_out() {
    let folder = scratch::folder("no-pypi");
    let list = folder.path().join("left-out");
    fs::write(&list, "").expect("own folder is writable");
    let mut tests = clean_command(std::env::current_exe().expect("it runs"), folder.path());
    tests.args(["--exact", "yocto::linter_has_nothing_to_say"]);
    tests
        .env("XDG_CACHE_HOME", folder.path())
        .env("ANKAIOS_LEFT_OUT", &list)
        .env_remove("ANKAIOS_LEAVE_NOTHING_OUT");
    tests
        .env("PIP_CONFIG_FILE", "/dev/null")
        .env("PIP_INDEX_URL", "http://127.0.0.1:1")
        .env("PIP_RETRIES", "0");
    let printed = succeeded("the test without PyPI", tests.output());
    assert!(printed.contains("1 passed"), "{printed}");
    let left_out = fs::read_to_string(&list).expect("it is there");
    assert_eq!(
        left_out,
        "the recipes with oelint-adv: PyPI cannot be reached\n"
    );
}

/// Runs the `do_install` of both recipes for these components and compares the packages with
/// tests/golden/.
#[track_caller]
fn packages(golden: &str, release: &str, components: &[&str]) {
    let expected = read(&format!("tests/golden/yocto_{golden}.txt"));
    let (release_recipe, _) = release_recipe(&repository(""));
    for recipe in [TREE_RECIPE, &release_recipe] {
        let folder = scratch::folder("yocto");
        let listed = bake(recipe, folder.path(), release, components, &[]);
        // Only the tree is built where it lies.
        let listed = listed.replacen(" externalsrc\n", "\n", usize::from(recipe == TREE_RECIPE));
        assert_eq!(
            listed, expected,
            "tests/golden/yocto_{golden}.txt differs from {recipe}"
        );
    }
}

/// Runs the `do_install` of a recipe, and prints what each package gets. `unpacked` are files that
/// a .bbappend brings.
#[track_caller]
fn bake(
    recipe: &str,
    folder: &Path,
    release: &str,
    components: &[&str],
    unpacked: &[&Path],
) -> String {
    let mut bake = Command::new("python3");
    bake.env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(repository("tests/python/bake.py"));
    let unpacked: Vec<String> = unpacked
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    bake.env("ANKAIOS_BAKE_UNPACK", unpacked.join(" "));
    bake.arg(repository(RECIPES).join(recipe))
        .arg(folder.join("bake"))
        .arg(release)
        .args(components);
    run("bake.py", &mut bake)
}

#[test]
fn packages_of_all_components() {
    packages("all", "wrynose", &["server", "agent", "cli"]);
    packages("all", "scarthgap", &["server", "agent", "cli"]);
}

#[test]
fn packages_of_a_node_with_the_agent_alone() {
    packages("agent", "wrynose", &["agent"]);
}

#[test]
fn packages_with_all_programs_in_one_file() {
    packages(
        "multicall",
        "wrynose",
        &["server", "agent", "cli", "multicall"],
    );
}

#[test]
fn settings_of_a_bbappend_replace_those_of_the_sources() {
    let folder = scratch::folder("yocto");
    let own = folder.path().join("ank-agent.conf");
    fs::write(&own, "# of a product\n").expect("own folder is writable");
    bake(
        TREE_RECIPE,
        folder.path(),
        "wrynose",
        &["agent", "cli"],
        &[&own],
    );
    let installed = folder.path().join("bake/image/etc/ankaios");
    assert_eq!(
        fs::read_to_string(installed.join("ank-agent.conf")).expect("installed"),
        "# of a product\n"
    );
    assert_eq!(
        fs::read_to_string(installed.join("ank.conf")).expect("installed"),
        read("cross/package/ank.conf")
    );
}

/// In a recipe there is no class 'base' to inherit: bitbake stops with any choice that has no
/// server.
#[test]
fn what_is_inherited_for_the_server_is_nothing_without_it() {
    let recipe = recipe(COMMON);
    let deferred: Vec<&str> = recipe
        .lines()
        .filter_map(|line| line.strip_prefix("inherit_defer "))
        .collect();
    assert_eq!(
        deferred,
        ["${@bb.utils.contains('PACKAGECONFIG', 'server', 'useradd', '', d)}"]
    );
    let inherited = recipe.lines().filter(|line| line.starts_with("inherit"));
    assert_eq!(
        inherited
            .filter(|line| line.split(&[' ', '\'']).any(|class| class == "base"))
            .count(),
        0
    );
}

#[test]
fn files_beside_the_recipes_are_those_that_they_name() {
    let recipe = recipe(COMMON);
    let named: BTreeSet<String> = recipe
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("file://"))
        .filter(|word| !word.starts_with("LICENSE"))
        .map(|word| word.split(';').next().unwrap_or(word).to_owned())
        .collect();
    let files = fs::read_dir(repository(RECIPES).join("files"))
        .expect("the recipe has files")
        .flatten();
    let there: BTreeSet<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(named, there);
}

#[test]
fn every_file_for_packages_is_installed() {
    let recipe = recipe(COMMON);
    let installed: BTreeSet<String> = files_to_install(&recipe);
    let files = fs::read_dir(repository("cross/package"))
        .expect("there are files")
        .flatten();
    let files = files.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file()));
    let files: BTreeSet<String> = files
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect();
    let not_installed: Vec<&String> = files.difference(&installed).collect();
    assert_eq!(
        not_installed,
        ["install.sh", "man.rs"],
        "for other ways to install"
    );
    assert!(installed.is_subset(&files), "{installed:?}");
}

/// The files of cross/package/ that the common part installs.
fn files_to_install(recipe: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in recipe
        .lines()
        .filter_map(|line| line.trim().strip_prefix("install_file "))
    {
        let name = line.split(' ').next().expect("it names a file");
        for service in ["ank-server", "ank-agent"] {
            names.insert(name.replace("$1", service));
        }
    }
    names
}

#[test]
fn crates_are_those_of_the_lock_file() {
    let mut crates = Command::new("python3");
    let printed = run(
        "crates.py",
        crates.arg(repository("yocto/crates.py")).arg("--print"),
    );
    assert!(printed.matches("crate://").count() > 100, "{printed}");
    assert!(
        recipe(CRATES) == printed,
        "{CRATES} does not fit Cargo.lock: run './justw release crates'"
    );
    let version = locked_version(&read("Cargo.lock"), "grpcio-sys");
    assert!(
        printed.contains(&format!(
            "\nANKAIOS_GRPCIO_SYS = \"grpcio-sys-{version}\"\n"
        )),
        "{printed}"
    );
}

#[test]
fn recipe_of_the_tree_fits_the_tree() {
    let recipe = recipe(TREE_RECIPE);
    let manifest = read("Cargo.toml");
    assert_eq!(
        value(&recipe, "PV"),
        format!("{}+git", version_of(&manifest))
    );
    assert!(
        recipe
            .lines()
            .any(|line| line == format!("require {CRATES}")),
        "{recipe}"
    );
    assert!(!recipe.contains("SRCREV"), "it points at no commit");
    fits(&manifest, &read(".cargo/config.toml"));
}

/// Else a change of a file would not compile the programs again.
#[test]
fn recipe_of_the_tree_names_all_that_is_compiled() {
    let recipe = recipe(TREE_RECIPE);
    let sources: Vec<&str> = value(&recipe, "ANKAIOS_SOURCES").split(' ').collect();
    for source in &sources {
        assert!(repository(source).exists(), "'{source}' does not exist");
    }
    for file in compiled_files() {
        assert!(
            sources.iter().any(|source| file.starts_with(source)),
            "'{}' is not named",
            file.display()
        );
    }
}

/// What the programs are compiled from, relative to the repository: the manifest, its build script,
/// the folders of their sources, and the files that these take in by a macro. Only tests take in
/// files of tests/.
fn compiled_files() -> BTreeSet<PathBuf> {
    let manifest: Table = read("Cargo.toml").parse().expect("TOML");
    let build_script = manifest["package"]["build"].as_str().expect("a path");
    let mut compiled: BTreeSet<PathBuf> = ["Cargo.lock", "Cargo.toml", build_script]
        .map(PathBuf::from)
        .into();
    for folder in ["src", "proto", "cross/package"] {
        for file in files_below(&repository(folder)) {
            let file = Path::new(folder).join(file);
            compiled.extend(taken_in_by(&file));
            compiled.insert(file);
        }
    }
    compiled.retain(|file| !file.starts_with("tests"));
    compiled
}

/// The files that `include_str!` and `include_bytes!` with a literal path take into `source`.
fn taken_in_by(source: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if source.extension().is_none_or(|extension| extension != "rs") {
        return found;
    }
    let text = fs::read_to_string(repository("").join(source)).expect("sources are text");
    for macro_name in ["include_str!(\"", "include_bytes!(\""] {
        for after in text.split(macro_name).skip(1) {
            let literal = after.split('"').next().expect("the literal ends");
            let folder = source.parent().expect("it is in a folder");
            found.push(without_parents(&folder.join(literal)));
        }
    }
    found
}

/// `src/bin/../../a` is `a`.
fn without_parents(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                assert!(plain.pop(), "'{}' is in the repository", path.display())
            }
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn files_taken_in_by_sources_are_found() {
    let compiled = compiled_files();
    for file in ["ank_schema.json", "src/wire/build.rs", "src/lib.rs"] {
        assert!(compiled.contains(Path::new(file)), "'{file}'");
    }
}

#[test]
fn release_recipe_fits_its_release() {
    let fault = release_fault(&repository(""));
    if let Some(fault) = fault {
        panic!("{fault}");
    }
}

/// The faults of the recipe of a release in the sources at `top`. Before the release the recipe is
/// compared with the sources themselves, after it with the commit of its tag, as far as this clone
/// has it.
fn release_fault(top: &Path) -> Option<String> {
    let (name, version) = release_recipe(top);
    let read = |path: &str| {
        fs::read_to_string(top.join(path)).unwrap_or_else(|error| panic!("'{path}': {error}"))
    };
    let recipe = read(&format!("{RECIPES}/{name}"));
    assert_eq!(
        value(&recipe, "DEFAULT_PREFERENCE"),
        "-1",
        "the tree is built unless somebody chooses the release"
    );
    let commit = value(&recipe, "SRCREV");
    let requires = |crates: &str| {
        recipe
            .lines()
            .any(|line| line == format!("require {crates}"))
    };
    if commit == NO_COMMIT {
        let next = version_of(&read("Cargo.toml"));
        if next != version {
            return Some(format!(
                "'{name}' is pinned to no commit, but the sources are those of {next}"
            ));
        }
        return (!requires(CRATES)).then(|| format!("'{name}' does not require {CRATES}"));
    }
    // Cargo.lock goes on, the release does not.
    let own_crates = format!("ankaios-lite-{version}-crates.inc");
    if !requires(&own_crates) {
        return Some(format!("'{name}' does not require {own_crates}"));
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(top)
            .args(arguments)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(tagged) = git(&[
        "rev-parse",
        "--verify",
        "--quiet",
        &format!("refs/tags/v{version}^{{commit}}"),
    ]) else {
        leave_out(
            &format!("'{name}'"),
            &format!("this clone has no tag v{version}"),
        );
        return None;
    };
    if tagged.trim() != commit {
        return Some(format!(
            "'{name}' is pinned to {commit}, and the tag v{version} is {}",
            tagged.trim()
        ));
    }
    let at_tag = |path: &str| git(&["show", &format!("{commit}:{path}")]);
    if at_tag(&format!("{RECIPES}/{CRATES}")) != Some(read(&format!("{RECIPES}/{own_crates}"))) {
        return Some(format!("{own_crates} is not {CRATES} of v{version}"));
    }
    let common = read(&format!("{RECIPES}/{COMMON}"));
    for file in files_to_install(&common) {
        if at_tag(&format!("cross/package/{file}")).is_none() {
            return Some(format!(
                "{COMMON} installs '{file}', which v{version} does not have"
            ));
        }
    }
    fits(
        &at_tag("Cargo.toml").expect("it has a manifest"),
        &at_tag(".cargo/config.toml").expect("it has settings"),
    );
    None
}

/// Sources with the layer alone, which is all that `release_fault` looks at, as a repository.
struct Sources {
    folder: TempDir,
}

impl Sources {
    fn new() -> Self {
        let sources = Self {
            folder: scratch::folder("release"),
        };
        let (release_recipe, _) = release_recipe(&repository(""));
        let recipes =
            [&release_recipe, TREE_RECIPE, COMMON, CRATES].map(|name| format!("{RECIPES}/{name}"));
        let files = files_to_install(&recipe(COMMON))
            .into_iter()
            .map(|name| format!("cross/package/{name}"));
        let others = ["Cargo.toml", ".cargo/config.toml"].map(str::to_owned);
        for path in recipes.into_iter().chain(files).chain(others) {
            sources.write(&path, &read(&path));
        }
        sources.git(&["init", "--quiet", "--initial-branch=main"]);
        sources.commit();
        sources
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("it is in the folder"))
            .expect("own folder is writable");
        fs::write(path, text).expect("own folder is writable");
    }

    fn replace(&self, path: &str, old: &str, new: &str) {
        let text = fs::read_to_string(self.path(path)).expect("it is there");
        assert!(text.contains(old), "'{path}' has no '{old}'");
        self.write(path, &text.replace(old, new));
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut git = clean_command("git", self.folder.path());
        git.env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .arg("-C")
            .arg(self.folder.path());
        git.args(["-c", "user.name=test", "-c", "user.email=test@example.org"])
            .args(arguments);
        succeeded(&format!("git {arguments:?}"), git.output())
    }

    fn commit(&self) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message=test: a state"]);
    }

    /// Tags the sources and pins the recipe to that, as "Releases" in CONTRIBUTING.md says.
    fn release(&self) -> String {
        let (name, version) = release_recipe(self.folder.path());
        self.git(&["tag", &format!("v{version}")]);
        let commit = self.git(&["rev-parse", "HEAD"]).trim().to_owned();
        let name = format!("{RECIPES}/{name}");
        let own_crates = format!("ankaios-lite-{version}-crates.inc");
        self.replace(&name, NO_COMMIT, &commit);
        self.replace(&name, CRATES, &own_crates);
        self.write(&format!("{RECIPES}/{own_crates}"), &recipe(CRATES));
        self.commit();
        name
    }

    #[track_caller]
    fn assert_fault(&self, words: &str) {
        let fault = release_fault(self.folder.path()).unwrap_or_default();
        assert!(fault.contains(words), "'{words}' is not in '{fault}'");
    }
}

#[test]
fn release_recipe_fits_its_tag_while_the_sources_go_on() {
    let sources = Sources::new();
    assert_eq!(release_fault(sources.folder.path()), None);
    sources.release();
    sources.replace(
        &format!("{RECIPES}/{CRATES}"),
        "crate://crates.io/libc/",
        "crate://crates.io/newer-libc/",
    );
    let version = version_of(&read("Cargo.toml"));
    sources.replace(
        "Cargo.toml",
        &format!("\nversion = \"{version}\"\n"),
        "\nversion = \"9.8.7\"\n",
    );
    sources.commit();
    assert_eq!(release_fault(sources.folder.path()), None);
}

#[test]
fn release_recipe_that_does_not_fit_is_named() {
    let sources = Sources::new();
    let version = version_of(&read("Cargo.toml"));
    sources.replace(
        "Cargo.toml",
        &format!("\nversion = \"{version}\"\n"),
        "\nversion = \"9.8.7\"\n",
    );
    sources.assert_fault("pinned to no commit, but the sources are those of 9.8.7");

    let sources = Sources::new();
    let name = sources.release();
    let commit = sources.git(&["rev-parse", "HEAD"]);
    sources.replace(
        &format!("{RECIPES}/ankaios-lite-{version}-crates.inc"),
        "/libc/",
        "/newer-libc/",
    );
    sources.assert_fault(&format!("-crates.inc is not {CRATES} of v{version}"));
    let text = fs::read_to_string(sources.path(&name)).expect("it is there");
    sources.replace(&name, value(&text, "SRCREV"), commit.trim());
    sources.assert_fault(&format!("and the tag v{version} is "));
    sources.replace(&name, &format!("ankaios-lite-{version}-crates.inc"), CRATES);
    sources.assert_fault("does not require");

    let sources = Sources::new();
    sources.release();
    let common = format!("{RECIPES}/{COMMON}");
    sources.replace(
        &common,
        "install_file state.yaml ",
        "install_file newer.yaml ",
    );
    sources.assert_fault("installs 'newer.yaml', which ");
}

fn version_of(manifest: &str) -> String {
    let manifest: Table = manifest.parse().expect("TOML");
    shared(&manifest, "version").to_owned()
}

/// What all crates have in common.
fn shared<'m>(manifest: &'m Table, key: &str) -> &'m str {
    manifest["workspace"]["package"][key]
        .as_str()
        .expect("text")
}

/// License, features, programs and compiler flags that the recipes name are those of these files.
fn fits(manifest: &str, cargo_config: &str) {
    let recipe = recipe(COMMON);
    let manifest: Table = manifest.parse().expect("TOML");
    assert_eq!(value(&recipe, "LICENSE"), shared(&manifest, "license"));
    let sum = run("md5sum", Command::new("md5sum").arg("LICENSE"));
    assert!(
        recipe.contains(&format!("file://LICENSE;md5={}", &sum[..32])),
        "{sum}"
    );

    let bins: BTreeSet<&str> = manifest["bin"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|bin| bin["name"].as_str())
        .collect();
    let features = manifest["features"].as_table().expect("features");
    let mut chosen = 0;
    for line in recipe
        .lines()
        .filter_map(|line| line.strip_prefix("PACKAGECONFIG["))
    {
        let (name, arguments) = line.split_once("] = ").expect("a value");
        let arguments: Vec<&str> = arguments.trim_matches('"').split(' ').collect();
        assert_eq!(arguments[..2], ["--features", name]);
        assert!(features.contains_key(name), "no feature '{name}'");
        assert!(
            arguments.get(3).is_none_or(|bin| bins.contains(bin)),
            "{arguments:?}"
        );
        chosen += 1;
    }
    assert_eq!(chosen, 4);
    for program in ["ank-server", "ank-agent", "ank", "ankaios"] {
        assert!(bins.contains(program), "no program '{program}'");
    }

    let config: Table = cargo_config.parse().expect("TOML");
    let common = value(&recipe, "ANKAIOS_CFLAGS");
    for variable in ["CFLAGS", "CXXFLAGS"] {
        let wanted = config["env"]
            .get(variable)
            .and_then(Value::as_str)
            .expect("flags");
        let given =
            value(&recipe, &format!("{variable}:append")).replace("${ANKAIOS_CFLAGS}", common);
        assert!(
            given.trim().starts_with(wanted),
            "{variable}: '{given}' does not begin with '{wanted}'"
        );
    }
}

fn locked_version(lock: &str, name: &str) -> String {
    let lock: Table = lock.parse().expect("TOML");
    let packages = lock["package"].as_array().expect("packages");
    let found = packages
        .iter()
        .find(|package| package["name"].as_str() == Some(name))
        .expect("it is locked");
    found["version"].as_str().expect("a version").to_owned()
}

#[test]
fn patches_apply_to_the_locked_crate() {
    let manifest = PathBuf::from(
        package("grpcio-sys")["manifest_path"]
            .as_str()
            .expect("a path"),
    );
    let files = fs::read_dir(repository(RECIPES).join("files"))
        .expect("the recipe has files")
        .flatten();
    let patches = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|end| end == "patch"));
    let mut applied = 0;
    for patch in patches {
        let mut command = Command::new("patch");
        command
            .args(["--dry-run", "--strip=1", "--fuzz=0", "--forward", "--input"])
            .arg(&patch);
        let output = command
            .current_dir(manifest.parent().expect("a folder"))
            .output();
        let printed = succeeded(&patch.display().to_string(), output);
        assert!(
            !printed.contains("FAILED") && !printed.contains("offset"),
            "{printed}"
        );
        applied += 1;
    }
    assert_eq!(applied, 1);
}

/// The Rust of the oldest supported Yocto release builds every crate.
#[test]
fn no_locked_crate_needs_a_newer_rust_than_we_promise() {
    let number = |text: &str| -> Vec<u32> {
        text.split('.')
            .map(|part| part.parse().expect("a number"))
            .collect()
    };
    let floor = package(env!("CARGO_PKG_NAME"))["rust_version"]
        .as_str()
        .expect("a version");
    assert!(number(floor) <= number("1.94"), "wrynose has Rust 1.94");
    let packages = metadata()["packages"].as_array().expect("packages");
    for package in packages {
        let Some(wanted) = package["rust_version"].as_str() else {
            continue;
        };
        assert!(
            number(wanted) <= number(floor),
            "{} needs Rust {wanted}, we promise {floor}",
            package["name"]
        );
    }
}

/// The example of a build names folders and components that there are.
#[test]
fn example_of_a_build_names_what_there_is() {
    let example: serde_json::Value =
        serde_yaml::from_str(&read(&format!("{LAYER}/kas/ankaios-lite.yml"))).expect("YAML");
    let layers = example["repos"]["ankaios-lite"]["layers"]
        .as_object()
        .expect("layers");
    assert!(
        layers
            .keys()
            .all(|layer| repository(layer).join("conf/layer.conf").exists()),
        "{layers:?}"
    );
    let image = example["local_conf_header"]["ankaios-lite"]
        .as_str()
        .expect("settings");
    let installed = value(image, "IMAGE_INSTALL:append");
    for package in installed
        .split_whitespace()
        .filter(|name| name.starts_with("ank"))
    {
        assert!(
            read("tests/golden/yocto_all.txt")
                .lines()
                .any(|line| line == package),
            "no package '{package}'"
        );
    }
}

#[test]
fn list_of_crates_is_written_for_a_lock_file_alone() {
    let mut crates = Command::new("python3");
    crates
        .arg(repository("yocto/crates.py"))
        .args(["--print", "/missing/Cargo.lock"]);
    let output = crates.output().expect("python starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("error: '/missing/Cargo.lock' is no Cargo.lock: ")
            && said.contains("\nhint: "),
        "{said}"
    );
}
