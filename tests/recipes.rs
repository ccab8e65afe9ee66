//! The recipes that take minutes look at what was asked for before they compile anything.
//!
//! Thread: the test's. Owns: one scratch folder per test. In place of cargo stands a program that fails without a word.

#![allow(clippy::disallowed_methods)] // Tests start processes.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use support::scratch;

/// The code of what stands in place of cargo, which says nothing. The scripts say why they end.
const COMPILED: (i32, &str) = (1, "");

/// The code and the errors of a script of tests/scripts.
fn run(folder: &Path, script: &str, arguments: &[&str], settings: &[(&str, &str)]) -> (i32, String) {
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts").join(script));
    for name in ["ANKAIOS_SIM_WITHOUT", "ANKAIOS_SIM_FIRST", "ANKAIOS_SIM_SEEDS", "PEER_BIN", "BENCH_REPEATS"] {
        command.env_remove(name);
    }
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
