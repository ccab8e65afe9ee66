//! The Yocto layer against this repository: everything that its recipe names is there, its packages get what they
//! should, its patches apply, and the linter of recipes has nothing to say. What only bitbake itself could tell is in the
//! layer's README.
//!
//! Thread: the test's. Owns: folders for the recipe's `do_install`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::support::python::{interpreter, repository, succeeded};
use crate::support::scratch;
use toml::{Table, Value};

const LAYER: &str = "yocto/meta-ankaios-lite";
const RECIPES: &str = "yocto/meta-ankaios-lite/recipes-core/ankaios-lite";

/// Rules of the linter that are left out: one needs a network, the other takes what is inherited without the server, which
/// is nothing, for a space at the end of the line.
const NOT_LINTED: [&str; 2] = ["oelint.vars.homepageping", "oelint.spaces.lineend"];

fn read(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("'{path}': {error}"))
}

fn run(what: &str, command: &mut Command) -> String {
    succeeded(what, command.current_dir(repository("")).output())
}

fn git(arguments: &[&str]) -> String {
    run(&format!("git {arguments:?}"), Command::new("git").args(arguments))
}

/// The path of the only recipe, from the top of the repository.
fn recipe_path() -> String {
    let files = fs::read_dir(repository(RECIPES)).expect("the layer has recipes").flatten();
    let mut names: Vec<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.ends_with(".bb"));
    assert_eq!(names.len(), 1, "{names:?}");
    format!("{RECIPES}/{}", names[0])
}

fn recipe() -> String {
    read(&recipe_path())
}

/// The value of `name = "..."` in one line of `text`.
fn value<'t>(text: &'t str, name: &str) -> &'t str {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='));
    let line = line.unwrap_or_else(|| panic!("'{name}' is not set"));
    line.trim().trim_matches('"')
}

/// What cargo knows of all locked packages.
fn metadata() -> &'static serde_json::Value {
    static METADATA: OnceLock<serde_json::Value> = OnceLock::new();
    METADATA.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version", "1", "--locked", "--offline"]);
        // Other systems' packages are locked, but nobody has fetched them.
        command.args(["--filter-platform", "x86_64-unknown-linux-gnu"]);
        serde_json::from_str(&run("cargo metadata", &mut command)).expect("JSON")
    })
}

fn package(name: &str) -> &'static serde_json::Value {
    let packages = metadata()["packages"].as_array().expect("packages");
    packages.iter().find(|package| package["name"] == name).unwrap_or_else(|| panic!("'{name}' is not locked"))
}

#[test]
fn linter_has_nothing_to_say() {
    let python = interpreter("venv-yocto", "yocto_requirements.txt", "import oelint_adv");
    let layer = read(&format!("{LAYER}/conf/layer.conf"));
    let releases: Vec<&str> = value(&layer, "LAYERSERIES_COMPAT_ankaios-lite").split(' ').collect();
    assert_eq!(releases, ["scarthgap", "wrynose", "blacksail"]);
    assert!(!recipe().lines().any(|line| line.ends_with(' ')), "a line of the recipe ends with a space");
    for release in releases {
        let mut lint = Command::new(python.with_file_name("oelint-adv"));
        lint.args(["--quiet", "--mode", "all", "--release", release]);
        lint.args(NOT_LINTED.iter().flat_map(|rule| ["--suppress", rule]));
        lint.args([&recipe_path(), &format!("{RECIPES}/ankaios-lite-crates.inc"), &format!("{LAYER}/conf/layer.conf")]);
        let output = lint.current_dir(repository("")).output().expect("the linter starts");
        let found = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !found.contains("oelint."), "for {release}:\n{found}");
    }
}

/// Runs the recipe's `do_install` for these components and compares the packages with tests/golden/.
#[track_caller]
fn packages(golden: &str, release: &str, components: &[&str]) {
    let folder = scratch::folder("yocto");
    let mut bake = Command::new("python3");
    bake.env("PYTHONDONTWRITEBYTECODE", "1").arg(repository("tests/python/bake.py"));
    bake.arg(repository(&recipe_path())).arg(folder.path().join("bake")).arg(release).args(components);
    let listed = run("bake.py", &mut bake);
    assert_eq!(listed, read(&format!("tests/golden/yocto_{golden}.txt")), "tests/golden/yocto_{golden}.txt differs");
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
    packages("multicall", "wrynose", &["server", "agent", "cli", "multicall"]);
}

/// In a recipe there is no class 'base' to inherit: bitbake stops with any choice that has no server.
#[test]
fn what_is_inherited_for_the_server_is_nothing_without_it() {
    let recipe = recipe();
    let deferred: Vec<&str> = recipe.lines().filter_map(|line| line.strip_prefix("inherit_defer ")).collect();
    assert_eq!(deferred, ["${@bb.utils.contains('PACKAGECONFIG', 'server', 'useradd', '', d)}"]);
    let inherited = recipe.lines().filter(|line| line.starts_with("inherit"));
    assert_eq!(inherited.filter(|line| line.split(&[' ', '\'']).any(|class| class == "base")).count(), 0);
}

#[test]
fn every_file_beside_the_recipe_is_named_in_it_and_the_other_way_round() {
    let recipe = recipe();
    let named: BTreeSet<String> = recipe
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("file://"))
        .filter(|word| !word.starts_with("LICENSE"))
        .map(|word| word.split(';').next().unwrap_or(word).to_owned())
        .collect();
    let files = fs::read_dir(repository(RECIPES).join("files")).expect("the recipe has files").flatten();
    let there: BTreeSet<String> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(named, there);
    let package = fs::read_dir(repository("cross/package")).expect("there are files").flatten();
    let package = package.filter(|file| file.file_type().is_ok_and(|kind| kind.is_file()));
    let package: BTreeSet<String> = package.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    let not_shipped: Vec<&String> = package.difference(&there).collect();
    assert_eq!(not_shipped, ["install.sh", "man.rs"], "for other ways to install");
}

#[test]
fn recipe_fits_the_commit_it_builds() {
    let commit = value(&recipe(), "SRCREV").to_owned();
    git(&["merge-base", "--is-ancestor", &commit, "HEAD"]); // Else nobody could fetch it.
    let show = |path: &str| git(&["show", &format!("{commit}:{path}")]);
    fits(&show("Cargo.toml"), &show(".cargo/config.toml"));
    let mut update = Command::new("python3");
    let printed = run("update.py", update.arg(repository("yocto/update.py")).args(["--print", &commit]));
    assert_eq!(printed, read(&format!("{RECIPES}/ankaios-lite-crates.inc")), "run `just yocto-update`");
    assert!(recipe().contains(&format!("/grpcio-sys-{} \\", locked_version(&show("Cargo.lock"), "grpcio-sys"))));
}

/// So that `just yocto-update` is all that the next release needs.
#[test]
fn recipe_fits_the_working_tree() {
    fits(&read("Cargo.toml"), &read(".cargo/config.toml"));
}

/// Version, license, features, programs and compiler flags that the recipe names are those of these files.
fn fits(manifest: &str, cargo_config: &str) {
    let recipe = recipe();
    let manifest: Table = manifest.parse().expect("TOML");
    let text = |table: &str, key: &str| manifest[table][key].as_str().unwrap_or_default().to_owned();
    assert!(recipe_path().ends_with(&format!("_{}.bb", text("package", "version"))));
    assert_eq!(value(&recipe, "LICENSE"), text("package", "license"));
    let sum = run("md5sum", Command::new("md5sum").arg("LICENSE"));
    assert!(recipe.contains(&format!("file://LICENSE;md5={}", &sum[..32])), "{sum}");

    let bins: BTreeSet<&str> =
        manifest["bin"].as_array().into_iter().flatten().filter_map(|bin| bin["name"].as_str()).collect();
    let features = manifest["features"].as_table().expect("features");
    let mut chosen = 0;
    for line in recipe.lines().filter_map(|line| line.strip_prefix("PACKAGECONFIG[")) {
        let (name, arguments) = line.split_once("] = ").expect("a value");
        let arguments: Vec<&str> = arguments.trim_matches('"').split(' ').collect();
        assert_eq!(arguments[..2], ["--features", name]);
        assert!(features.contains_key(name), "no feature '{name}'");
        assert!(arguments.get(3).is_none_or(|bin| bins.contains(bin)), "{arguments:?}");
        chosen += 1;
    }
    assert_eq!(chosen, 4);
    for program in ["ank-server", "ank-agent", "ank", "ankaios"] {
        assert!(bins.contains(program), "no program '{program}'");
    }

    let config: Table = cargo_config.parse().expect("TOML");
    let common = value(&recipe, "ANKAIOS_CFLAGS");
    for variable in ["CFLAGS", "CXXFLAGS"] {
        let wanted = config["env"].get(variable).and_then(Value::as_str).expect("flags");
        let given = value(&recipe, &format!("{variable}:append")).replace("${ANKAIOS_CFLAGS}", common);
        assert!(given.trim().starts_with(wanted), "{variable}: '{given}' does not begin with '{wanted}'");
    }
}

fn locked_version(lock: &str, name: &str) -> String {
    let lock: Table = lock.parse().expect("TOML");
    let packages = lock["package"].as_array().expect("packages");
    let found = packages.iter().find(|package| package["name"].as_str() == Some(name)).expect("it is locked");
    found["version"].as_str().expect("a version").to_owned()
}

#[test]
fn patches_apply_to_the_locked_crate() {
    let manifest = PathBuf::from(package("grpcio-sys")["manifest_path"].as_str().expect("a path"));
    let files = fs::read_dir(repository(RECIPES).join("files")).expect("the recipe has files").flatten();
    let patches = files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|end| end == "patch"));
    let mut applied = 0;
    for patch in patches {
        let mut command = Command::new("patch");
        command.args(["--dry-run", "--strip=1", "--fuzz=0", "--forward", "--input"]).arg(&patch);
        let output = command.current_dir(manifest.parent().expect("a folder")).output();
        let printed = succeeded(&patch.display().to_string(), output);
        assert!(!printed.contains("FAILED") && !printed.contains("offset"), "{printed}");
        applied += 1;
    }
    assert_eq!(applied, 1);
}

/// The Rust of the oldest supported Yocto release builds every crate.
#[test]
fn no_locked_crate_needs_a_newer_rust_than_we_promise() {
    let number = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().expect("a number")).collect() };
    let floor = package(env!("CARGO_PKG_NAME"))["rust_version"].as_str().expect("a version");
    assert!(number(floor) <= number("1.94"), "wrynose has Rust 1.94");
    let packages = metadata()["packages"].as_array().expect("packages");
    for package in packages {
        let Some(wanted) = package["rust_version"].as_str() else { continue };
        assert!(number(wanted) <= number(floor), "{} needs Rust {wanted}, we promise {floor}", package["name"]);
    }
}

/// The example of a build names folders and components that there are.
#[test]
fn example_of_a_build_names_what_there_is() {
    let example: serde_json::Value =
        serde_yaml::from_str(&read(&format!("{LAYER}/kas/ankaios-lite.yml"))).expect("YAML");
    let layers = example["repos"]["ankaios-lite"]["layers"].as_object().expect("layers");
    assert!(layers.keys().all(|layer| repository(layer).join("conf/layer.conf").exists()), "{layers:?}");
    let image = example["local_conf_header"]["ankaios-lite"].as_str().expect("settings");
    let installed = value(image, "IMAGE_INSTALL:append");
    for package in installed.split_whitespace().filter(|name| name.starts_with("ank")) {
        assert!(read("tests/golden/yocto_all.txt").lines().any(|line| line == package), "no package '{package}'");
    }
}

/// A clone of this repository in `folder`, whose version is then another one.
fn clone_with_version(folder: &Path, version: &str) -> PathBuf {
    let clone = folder.join("clone");
    let of_clone = |arguments: &[&str]| {
        let identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"];
        run(&format!("git {arguments:?}"), Command::new("git").arg("-C").arg(&clone).args(identity).args(arguments))
    };
    run("git clone", Command::new("git").args(["clone", "--quiet", "--shared", "."]).arg(&clone));
    // As it is in the working tree, committed or not.
    fs::copy(repository("yocto/update.py"), clone.join("yocto/update.py")).expect("own folder is writable");
    let manifest = fs::read_to_string(clone.join("Cargo.toml")).expect("it was cloned");
    // That of the commit, which need not be the one that is being worked on.
    let old = manifest.lines().find(|line| line.starts_with("version = ")).expect("it has a version").to_owned();
    let new = manifest.replacen(&old, &format!("version = \"{version}\""), 1);
    fs::write(clone.join("Cargo.toml"), new).expect("own folder is writable");
    of_clone(&["commit", "--quiet", "--all", "--message", "a release"]);
    clone
}

#[test]
fn update_points_the_recipe_at_a_release() {
    let folder = scratch::folder("yocto-update");
    let clone = clone_with_version(folder.path(), "9.8.7");
    fs::write(clone.join("README.md"), "not committed").expect("own folder is writable");
    let mut update = Command::new("python3");
    let output = update.arg(clone.join("yocto/update.py")).output().expect("python starts");
    let (said, warned) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && warned.starts_with("warning: changes"), "{said}{warned}");
    let commit = run("git", Command::new("git").arg("-C").arg(&clone).args(["rev-parse", "HEAD"]));
    assert!(said.starts_with(&format!("the recipe builds 9.8.7 at {}", commit.trim())), "{said}");
    let recipes: Vec<String> = fs::read_dir(clone.join(RECIPES))
        .expect("the layer has recipes")
        .flatten()
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".bb"))
        .collect();
    assert_eq!(recipes, ["ankaios-lite_9.8.7.bb"]);
    let recipe = fs::read_to_string(clone.join(RECIPES).join(&recipes[0])).expect("it can be read");
    assert_eq!(value(&recipe, "SRCREV"), commit.trim());
    let crates = fs::read_to_string(clone.join(RECIPES).join("ankaios-lite-crates.inc")).expect("it can be read");
    assert!(crates.contains("crate://crates.io/grpcio-sys/"), "{crates}");
}

#[test]
fn update_names_a_commit_that_there_is_not() {
    let mut update = Command::new("python3");
    let output = update.arg(repository("yocto/update.py")).args(["--print", "no-such-commit"]).output();
    let output = output.expect("python starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("error: 'no-such-commit' is no commit of '") && said.contains("\nhint: "), "{said}");
}
