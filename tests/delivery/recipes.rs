//! The recipes that take minutes look at what was asked for before they compile anything.
//!
//! Thread: the test's. Owns: one scratch folder per test. In place of cargo stands a program that fails without a word.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::scratch;

/// The code of what stands in place of cargo, which says nothing. The scripts say why they end.
const COMPILED: (i32, &str) = (1, "");

/// The code and the errors of a script of `scripts/`.
fn run(folder: &Path, script: &str, arguments: &[&str], settings: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script));
    for name in ["ANKAIOS_SIM_WITHOUT", "ANKAIOS_SIM_FIRST", "ANKAIOS_SIM_SEEDS", "PEER_BIN", "BENCH_REPEATS"] {
        command.env_remove(name);
    }
    command.env_remove("ANKAIOS_LEFT_OUT");
    // Nothing of this run belongs into the folder of the programs that run it.
    command.env("CARGO_TARGET_DIR", folder.join("target")).env("ANKAIOS_CARGO", "/bin/false");
    let output = command.args(arguments).envs(settings.iter().copied()).output().expect("bash is there");
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_makes_no_sense_is_refused_by_its_name_before_anything_is_compiled() {
    type Settings = &'static [(&'static str, &'static str)];
    let folder = scratch::folder("refused");
    let cases: [(&str, &[&str], Settings, &str); 18] = [
        ("sim.sh", &["abc"], &[], "the seed is 'abc'"),
        ("sim.sh", &["-5"], &[], "the seed is '-5'"),
        ("sim.sh", &["18446744073709551616"], &[], "the seed is '18446744073709551616'"),
        ("sim.sh", &["4'2"], &[], "the seed is '4'2'"),
        ("sim.sh", &["1", "2"], &[], "one seed at a time"),
        ("sim.sh", &[], &[("ANKAIOS_SIM_WITHOUT", "cuts")], "about one seed"),
        ("sim.sh", &[], &[("ANKAIOS_SIM_SEEDS", "many")], "ANKAIOS_SIM_SEEDS is 'many'"),
        ("soak.sh", &["x"], &[], "'x', not a whole number from 1"),
        ("soak.sh", &["0"], &[], "'0', not a whole number from 1"),
        ("soak.sh", &["inf"], &[], "'inf', not"),
        ("fuzz.sh", &["nonsense"], &[], "'nonsense', not"),
        ("fuzz.sh", &["0", "masks"], &[], "'0', not a whole number from 1"),
        ("fuzz.sh", &["5", "mask"], &[], "no fuzz target 'mask'"),
        ("bench.sh", &["nonsense"], &[], "nothing to measure called 'nonsense'"),
        ("bench.sh", &["size"], &[("BENCH_REPEATS", "0")], "BENCH_REPEATS is '0'"),
        ("bench.sh", &["size"], &[("BENCH_REPEATS", "often")], "BENCH_REPEATS is 'often'"),
        ("bench.sh", &["agent"], &[("BENCH_PARTS", "idle ls")], "BENCH_PARTS names 'ls'"),
        ("bench.sh", &["size"], &[("PEER_BIN", "/nonexistent")], "PEER_BIN is not a folder: '/nonexistent'"),
    ];
    for (script, arguments, settings, named) in cases {
        let (code, errors) = run(folder.path(), script, arguments, settings);
        assert!(code == 1 && errors.contains(named), "{script} {arguments:?} {settings:?}: {code} {errors}");
    }
}

#[test]
fn what_a_recipe_needs_is_installed_or_it_fails() {
    let folder = scratch::folder("needs");
    write_program(&folder.path().join("apt-get"), "exit 1");
    // Without /usr/sbin, where debootstrap is if there is one.
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let (code, errors) = run(folder.path(), "systemd-test.sh", &[], &[("PATH", &path)]);
    assert!(code == 1 && errors.contains("error: "), "{code} {errors}");
    let script = ". scripts/common.sh; leave_out 'a part' 'it cannot be had' 'get it'";
    let (code, errors) = shell(script);
    assert_eq!((code, errors.as_str()), (Some(1), "error: a part: it cannot be had\nhint: get it\n"));
}

#[test]
fn the_last_lines_of_all_tests_say_what_was_left_out() {
    let folder = scratch::folder("left-out");
    let just = folder.path().join("just");
    let test = format!("ANKAIOS_CARGO=/bin/true scripts/test.sh '{}'", just.display());
    let part = ". scripts/common.sh; leave_out 'a part' 'it cannot be had'";
    for (checks, said) in
        [(part, "\nLeft out:\n  a part: it cannot be had\n"), ("true", "\nNothing was left out.\n"), ("exit 3", "")]
    {
        write_program(&just, checks);
        let command = Command::new("bash").args(["-c", &test]).current_dir(env!("CARGO_MANIFEST_DIR")).output();
        let output = command.expect("bash is there");
        let failed = checks == "exit 3";
        assert_eq!(output.status.success(), !failed, "{output:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.ends_with(said) && printed.is_empty() == failed, "{checks}: {printed}");
    }
}

fn write_program(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/bash\n{script}\n")).expect("own folder");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("own file");
}

fn shell(script: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("ANKAIOS_LEFT_OUT");
    let output = command.output().expect("bash is there");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_makes_sense_is_compiled() {
    let folder = scratch::folder("compiled");
    let cases: [(&str, &[&str]); 5] = [
        ("sim.sh", &[]),
        ("sim.sh", &["18446744073709551615"]),
        ("soak.sh", &[]),
        ("soak.sh", &["1"]),
        ("bench.sh", &["size"]),
    ];
    for (script, arguments) in cases {
        let (code, errors) = run(folder.path(), script, arguments, &[]);
        assert_eq!((code, errors.as_str()), COMPILED, "{script} {arguments:?}");
    }
}

#[test]
fn programs_of_a_peer_that_cannot_run_are_named_before_anything_is_compiled() {
    let scratch = scratch::folder("peer");
    let folder = scratch.path().join("with spaces");
    fs::create_dir(&folder).expect("own folder");
    let text = folder.to_str().expect("the path is text").to_owned();
    let bench = || run(scratch.path(), "bench.sh", &["size"], &[("PEER_BIN", &text)]);
    for name in ["ank-server", "ank-agent", "ank"] {
        symlink("/bin/echo", folder.join(name)).expect("own folder");
    }
    let (code, errors) = bench();
    assert_eq!((code, errors.as_str()), COMPILED);

    let agent = folder.join("ank-agent");
    fs::remove_file(&agent).expect("own file");
    let (code, errors) = bench();
    assert!(code == 1 && errors.contains("no program 'ank-agent' that can be run"), "missing: {errors}");

    fs::write(&agent, "text").expect("own folder");
    let (code, errors) = bench();
    assert!(code == 1 && errors.contains("no program 'ank-agent' that can be run"), "not executable: {errors}");

    fs::remove_file(&agent).expect("own file");
    symlink("/bin/false", &agent).expect("own folder");
    let (code, errors) = bench();
    assert!(code == 1 && errors.contains("ank-agent' of PEER_BIN does not run"), "ends at once: {errors}");
}
