//! The recipes that take minutes check their arguments before they compile anything.
//!
//! Thread: the test's. Owns: one scratch folder per test. In place of cargo stands a program that
//! fails without a word.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::process::{Identity, children, write_program};
use crate::support::python::succeeded;
use crate::support::{LIMIT, Process, leave_out, poll, scratch, wait_until};

/// The code of what stands in place of cargo, which says nothing. The scripts say why they end.
const COMPILED: (i32, &str) = (1, "");

/// The code and the errors of a script of `scripts/`.
fn run(
    folder: &Path,
    script: &str,
    arguments: &[&str],
    settings: &[(&str, &str)],
) -> (i32, String) {
    let mut command = Command::new(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("scripts")
            .join(script),
    );
    for name in [
        "ANKAIOS_SIM_WITHOUT",
        "ANKAIOS_SIM_FIRST",
        "ANKAIOS_SIM_SEEDS",
        "PEER_BIN",
        "BENCH_REPEATS",
    ] {
        command.env_remove(name);
    }
    command.env_remove("ANKAIOS_LEFT_OUT");
    // Nothing of this run belongs into the folder of the programs that run it.
    command
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("ANKAIOS_CARGO", "/bin/false");
    let output = command
        .args(arguments)
        .envs(settings.iter().copied())
        .output()
        .expect("bash is there");
    (
        output.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

#[test]
fn unknown_argument_is_refused_by_name_before_compiling() {
    type Settings = &'static [(&'static str, &'static str)];
    let folder = scratch::folder("refused");
    let cases: [(&str, &[&str], Settings, &str); 27] = [
        ("demo.sh", &["halt"], &[], "the demo knows no 'halt'"),
        ("device.sh", &["tank"], &[], "there is no device 'tank'"),
        ("device.sh", &[], &[], "there is no device ''"),
        ("release.sh", &["deb", "rpm"], &[], "no part 'rpm'"),
        (
            "stest.sh",
            &["crun"],
            &[],
            "the system tests know no 'crun'",
        ),
        (
            "stest.sh",
            &["--engine", "kata"],
            &[],
            "no system tests with 'kata'",
        ),
        ("sim.sh", &["abc"], &[], "the seed is 'abc'"),
        ("sim.sh", &["-5"], &[], "the seed is '-5'"),
        (
            "sim.sh",
            &["18446744073709551616"],
            &[],
            "the seed is '18446744073709551616'",
        ),
        ("sim.sh", &["4'2"], &[], "the seed is '4'2'"),
        ("sim.sh", &["1", "2"], &[], "one seed at a time"),
        (
            "sim.sh",
            &[],
            &[("ANKAIOS_SIM_WITHOUT", "cuts")],
            "for one seed",
        ),
        (
            "sim.sh",
            &[],
            &[("ANKAIOS_SIM_SEEDS", "many")],
            "ANKAIOS_SIM_SEEDS is 'many'",
        ),
        ("soak.sh", &["x"], &[], "'x', not a whole number from 1"),
        ("soak.sh", &["0"], &[], "'0', not a whole number from 1"),
        ("soak.sh", &["inf"], &[], "'inf', not"),
        ("fuzz.sh", &["nonsense"], &[], "'nonsense', not"),
        (
            "fuzz.sh",
            &["0", "masks"],
            &[],
            "'0', not a whole number from 1",
        ),
        ("fuzz.sh", &["5", "mask"], &[], "no fuzz target 'mask'"),
        (
            "test-busy.sh",
            &["nonsense"],
            &[],
            "no test program 'nonsense'",
        ),
        (
            "test-busy.sh",
            &["loops", "process", "0"],
            &[],
            "'0', not a whole number from 1",
        ),
        (
            "test-busy.sh",
            &["2x"],
            &[],
            "'2x', not a whole number from 1",
        ),
        (
            "bench.sh",
            &["nonsense"],
            &[],
            "there is no part 'nonsense' to measure",
        ),
        (
            "bench.sh",
            &["size"],
            &[("BENCH_REPEATS", "0")],
            "BENCH_REPEATS is '0'",
        ),
        (
            "bench.sh",
            &["size"],
            &[("BENCH_REPEATS", "often")],
            "BENCH_REPEATS is 'often'",
        ),
        (
            "bench.sh",
            &["agent"],
            &[("BENCH_PARTS", "idle ls")],
            "BENCH_PARTS names 'ls'",
        ),
        (
            "bench.sh",
            &["size"],
            &[("PEER_BIN", "/nonexistent")],
            "PEER_BIN is not a folder: '/nonexistent'",
        ),
    ];
    for (script, arguments, settings, named) in cases {
        let (code, errors) = run(folder.path(), script, arguments, settings);
        assert!(
            code == 1 && errors.contains(named),
            "{script} {arguments:?} {settings:?}: {code} {errors}"
        );
    }
}

#[test]
fn old_name_of_a_recipe_is_answered_with_the_new_one() {
    let folder = scratch::folder("old-names");
    for (old, new) in [
        ("demo-stop", "demo stop"),
        ("deny", "check"),
        ("advisories", "check"),
        ("soak", "bench soak"),
        ("pictures", "bench pictures"),
        ("engines", "stest --engine"),
        ("cross-test", "cross test"),
        ("systemd-test", "device systemd"),
        ("device-test", "device qemu"),
        ("deb", "release deb"),
        ("yocto-crates", "release crates"),
    ] {
        let (code, errors) = run(folder.path(), "../justw", &[old], &[]);
        let expected = format!("justw: '{old}' is now './justw {new}'\n");
        assert_eq!((code, errors), (1, expected));
    }
}

#[test]
fn what_a_recipe_needs_is_installed_or_it_fails() {
    let folder = scratch::folder("needs");
    write_script(&folder.path().join("apt-get"), "exit 1");
    // Without /usr/sbin, where debootstrap is if there is one.
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    let (code, errors) = run(folder.path(), "device-systemd.sh", &[], &[("PATH", &path)]);
    assert!(code == 1 && errors.contains("error: "), "{code} {errors}");
    let script = ". scripts/common.sh; leave_out 'a part' 'it cannot be had' 'get it'";
    let (code, errors) = shell(script);
    assert_eq!(
        (code, errors.as_str()),
        (Some(1), "error: a part: it cannot be had\nhint: get it\n")
    );
}

/// `test.sh` with a `just` and a `cargo` that run these lines, with caches and results in `folder`.
fn test_script(folder: &Path, just: &str, cargo: &str) -> Command {
    write_script(&folder.join("just"), just);
    write_script(&folder.join("cargo"), cargo);
    let mut command = Command::new("scripts/test.sh");
    command
        .arg(folder.join("just"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("ANKAIOS_LEFT_OUT");
    command
        .env("ANKAIOS_CARGO", folder.join("cargo"))
        .env("XDG_CACHE_HOME", folder.join("cache"));
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command
}

#[test]
fn the_last_lines_of_all_tests_say_what_was_left_out() {
    let folder = scratch::folder("left-out");
    let part = ". scripts/common.sh; leave_out 'a part' 'it cannot be had'";
    for (checks, said) in [
        (part, "\nLeft out:\n  a part: it cannot be had\n"),
        ("true", "\nNothing was left out.\n"),
        ("exit 3", ""),
    ] {
        let output = test_script(folder.path(), checks, "exit 0")
            .output()
            .expect("bash is there");
        let failed = checks == "exit 3";
        assert_eq!(output.status.success(), !failed, "{output:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            printed.ends_with(said) && printed.is_empty() == failed,
            "{checks}: {printed}"
        );
    }
}

fn write_script(path: &Path, script: &str) {
    write_program(path, &format!("#!/bin/bash\n{script}\n"));
}

fn shell(script: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command
        .args(["-c", script])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("ANKAIOS_LEFT_OUT");
    let output = command.output().expect("bash is there");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// An unpacked tarball is no git repository.
#[test]
fn tags_are_compared_in_sources_without_a_repository() {
    let folder = scratch::folder("tags");
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("own folder");
        fs::write(path, text).expect("own folder");
    };
    for script in ["scripts/common.sh", "scripts/trace.sh"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(script))
            .expect("it is there");
        write(script, &text);
    }
    // In two parts, so that these are no tags of this file.
    let tag = |kind: &str| format!("// [{kind}{}swdd~one~1]\n", "->");
    write(
        "docs/requirements.md",
        "## Of Ankaios\n\n- `swdd~one~1`\n  *impl, utest.* It does.\n\n## Our own\n",
    );
    write("src/one.rs", &tag("impl"));
    write("proto/one.proto", "");
    write("tests/fuzz/target/built.rs", &tag("utest"));
    let trace = || {
        let output = Command::new("bash")
            .arg(folder.path().join("scripts/trace.sh"))
            .arg("--strict")
            .output();
        let output = output.expect("bash is there");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (complete, printed) = trace();
    assert!(
        !complete && printed.starts_with("missing utest"),
        "{printed}"
    );
    write("tests/one.rs", &tag("utest"));
    let (complete, printed) = trace();
    assert!(
        complete && printed.starts_with("trace: 1 requirements: 1 complete"),
        "{printed}"
    );
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
fn unusable_peer_programs_are_named_before_compiling() {
    let scratch = scratch::folder("peer");
    let folder = scratch.path().join("with spaces");
    fs::create_dir(&folder).expect("own folder");
    let text = folder.to_str().expect("the path is text").to_owned();
    let bench = || {
        run(
            scratch.path(),
            "bench.sh",
            &["size"],
            &[("PEER_BIN", &text)],
        )
    };
    for name in ["ank-server", "ank-agent", "ank"] {
        symlink("/bin/echo", folder.join(name)).expect("own folder");
    }
    let (code, errors) = bench();
    assert_eq!((code, errors.as_str()), COMPILED);

    let agent = folder.join("ank-agent");
    fs::remove_file(&agent).expect("own file");
    let (code, errors) = bench();
    assert!(
        code == 1 && errors.contains("no program 'ank-agent' that can be run"),
        "missing: {errors}"
    );

    fs::write(&agent, "text").expect("own folder");
    let (code, errors) = bench();
    assert!(
        code == 1 && errors.contains("no program 'ank-agent' that can be run"),
        "not executable: {errors}"
    );

    fs::remove_file(&agent).expect("own file");
    symlink("/bin/false", &agent).expect("own folder");
    let (code, errors) = bench();
    assert!(
        code == 1 && errors.contains("ank-agent' of PEER_BIN does not run"),
        "ends at once: {errors}"
    );
}

/// Runs `test-busy.sh` with a cargo that names two test programs: `process`, which runs
/// `script`, and `delivery`, which does nothing. The code, the output and the errors.
fn run_busy(folder: &Path, script: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut lines = String::new();
    for (name, script) in [("process", script), ("delivery", "exit 0")] {
        let program = folder.join(name);
        write_script(&program, script);
        lines += &format!(
            "{{\"reason\":\"compiler-artifact\",\"target\":{{\"kind\":[\"test\"],\"crate_types\":[\"bin\"],\
             \"name\":\"{name}\",\"test\":true}},\"profile\":{{\"debuginfo\":1,\"test\":true}},\
             \"executable\":\"{}\",\"fresh\":true}}\n",
            program.display()
        );
    }
    fs::write(folder.join("artifacts"), lines).expect("own folder");
    let cargo = folder.join("cargo");
    write_script(
        &cargo,
        &format!("cat '{}'", folder.join("artifacts").display()),
    );
    let mut command =
        Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/test-busy.sh"));
    command
        .args(arguments)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .env("ANKAIOS_CARGO", cargo);
    let output = command.output().expect("bash is there");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn busy_processes_run_beside_a_test_program_and_end_with_it() {
    let folder = scratch::folder("loops");
    let parent = folder.path().join("parent");
    let beside = folder.path().join("beside");
    // The program is a child of the script, as the busy processes are. It lists them, and waits
    // until it may end.
    let script = format!(
        "echo $PPID >'{parent}.new' && mv '{parent}.new' '{parent}'\nuntil [ -e '{beside}' ]; do sleep 0.01; done",
        parent = parent.display(),
        beside = beside.display(),
    );
    let busy = std::thread::scope(|scope| {
        let run = scope.spawn(|| run_busy(folder.path(), &script, &["loops", "process", "2"]));
        let script = poll(LIMIT, || {
            fs::read_to_string(&parent).ok()?.trim().parse::<u32>().ok()
        });
        let busy: Option<Vec<Identity>> =
            script.map(|script| children(script).into_iter().map(Identity::of).collect());
        fs::write(&beside, "").expect("own folder");
        let (code, printed, errors) = run.join().expect("it does not panic");
        assert_eq!((code, errors.as_str()), (0, ""), "{printed}");
        assert_eq!(printed.matches("passed process").count(), 2, "{printed}");
        busy.expect("the program runs")
    });
    // Two for each core, and the program itself. A control group may leave this process less than
    // its cores.
    let cores: usize = succeeded("nproc", Command::new("nproc").output())
        .trim()
        .parse()
        .expect("a number");
    assert_eq!(busy.len(), 2 * cores + 1, "{busy:?}");
    assert!(
        !busy.iter().any(Identity::is_alive),
        "all of them have ended"
    );
}

#[test]
fn half_of_a_core_holds_a_test_program_and_groups_that_it_makes() {
    let folder = scratch::folder("half");
    let seen = folder.path().join("seen");
    // What an engine does: it makes a group below the root of all groups. The half is that of the
    // root.
    let script = format!(
        "top=/sys/fs/cgroup; [ ! -d $top/cpu ] || top=$top/cpu\n\
         mkdir $top/engine && {{ cat $top/cpu.cfs_quota_us $top/cpu.max; ls -d $top/engine; echo $PPID; }} \
         >'{}' 2>/dev/null",
        seen.display()
    );
    let (code, printed, errors) = run_busy(folder.path(), &script, &["half", "process"]);
    if errors.contains("only root can") || errors.contains("no control group") {
        leave_out("half of a core", errors.lines().next().unwrap_or_default());
        return;
    }
    let seen = fs::read_to_string(&seen).unwrap_or_default();
    assert!(
        code == 0 && errors.is_empty(),
        "{code} {errors} {printed} {seen}"
    );
    let lines: Vec<&str> = seen.lines().collect();
    assert!(
        lines.len() == 3 && lines[0].starts_with("50000") && lines[1].ends_with("/engine"),
        "{seen}"
    );
    let engine = Path::new(lines[1]);
    assert!(
        !engine.exists(),
        "it was made within the group of the program"
    );
    let group = engine.with_file_name(format!("ankaios-test-busy-{}", lines[2]));
    assert!(!group.exists(), "the group is removed");
}

#[test]
fn a_failed_busy_run_is_named_and_the_next_one_still_runs() {
    let folder = scratch::folder("failed-run");
    let failure = "failures:\n\n---- a::b stdout ----\nwrong\n    text\n\nfailures:\n    a::b\n\ntest result: FAILED. 0 passed\n";
    let script = format!("printf '{}'; exit 101", failure.replace('\n', "\\n"));
    let (code, printed, _) = run_busy(folder.path(), &script, &["loops", "process", "delivery"]);
    assert_eq!(code, 1, "{printed}");
    let results = printed.rsplit("Results\n").next().expect("the last lines");
    let repeats = "./justw test-busy loops process -- --exact a::b\n";
    assert!(
        results.starts_with("failed process") && results.contains(repeats),
        "{printed}"
    );
    assert!(
        results.contains("passed delivery") && !results.contains("--exact text"),
        "{printed}"
    );
}

/// What a test program prints of which one test fails.
const FAILED: &str = "running 2 tests\ntest a::b ... FAILED\ntest c ... ok\n\nfailures:\n\n---- a::b stdout ----\n    text\n\n\
                      failures:\n    a::b\n\ntest result: FAILED. 1 passed; 1 failed\n";

#[test]
fn failed_test_is_followed_by_the_command_that_repeats_it() {
    let folder = scratch::folder("repeats");
    let failed = folder.path().join("failed");
    fs::write(&failed, FAILED).expect("own folder");
    let cargo = format!(
        "case \"$*\" in *'--test process'*) cat '{}'; exit 101;; esac",
        failed.display()
    );
    let output = test_script(folder.path(), "exit 0", &cargo)
        .output()
        .expect("bash is there");
    assert_eq!(output.status.code(), Some(101));
    let [printed, errors] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(printed.ends_with(FAILED), "{printed}");
    let repeats = "failed: process; to repeat it:\n  \
                   scripts/cargo.sh test --locked --features multicall --test process -- --exact a::b\n";
    assert!(
        errors.ends_with(repeats) && !errors.contains('\r'),
        "{errors}"
    );
}

#[test]
fn all_tests_say_first_how_long_they_take_on_this_machine() {
    let folder = scratch::folder("durations");
    let first_line = || {
        let output = test_script(folder.path(), "exit 0", "exit 0")
            .output()
            .expect("bash is there");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr)
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let unknown = first_line();
    assert!(
        unknown.starts_with("All tests take about ") && unknown.ends_with(" core(s)."),
        "{unknown}"
    );
    // Now each stage is known. One of them is made to have taken an hour.
    let durations = folder.path().join("cache/ankaios-lite/test-durations");
    let text = fs::read_to_string(&durations).expect("the durations are kept");
    let process = text
        .lines()
        .find(|line| line.starts_with("process "))
        .expect("each stage is kept");
    fs::write(&durations, text.replace(process, "process 3600")).expect("own folder");
    let known = first_line();
    let minutes = known
        .strip_prefix("All tests take about ")
        .and_then(|rest| rest.split(' ').next()?.parse().ok());
    assert!(
        minutes.is_some_and(|minutes: u32| minutes >= 60) && known.ends_with(", as the last time."),
        "{known}"
    );
    assert!(
        !fs::read_to_string(&durations)
            .expect("they are kept")
            .contains("3600"),
        "the newest one counts"
    );
}

#[test]
fn stage_of_all_tests_shows_how_far_it_is_on_a_terminal() {
    let folder = scratch::folder("progress");
    let go_on = folder.path().join("go-on");
    let cargo = format!(
        "case \"$*\" in *'--test process'*)\necho 'running 3 tests'; echo 'test a ... ok'\n\
         until [ -e '{}' ]; do sleep 0.01; done; echo 'test result: ok. 3 passed'; esac",
        go_on.display()
    );
    let inner = test_script(folder.path(), "exit 0", &cargo);
    let line = format!("scripts/test.sh '{}'", folder.path().join("just").display());
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null());
    command.env_remove("ANKAIOS_LEFT_OUT").env("TERM", "xterm");
    command.envs(
        inner
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let mut terminal = Process::start(&mut command, folder.path(), "terminal");
    wait_until("the progress", || {
        terminal.stdout().contains("process, ") && terminal.stdout().contains("1 of 3 tests")
    });
    fs::write(&go_on, "").expect("own folder");
    let status = terminal.wait(LIMIT).expect("it ends");
    let shown = terminal.stdout();
    assert!(
        status.success() && shown.contains("\r\x1b[K") && shown.contains(", 3 tests passed"),
        "{shown}"
    );
    assert!(
        !shown.contains("test a ... ok"),
        "what went well is in a file: {shown}"
    );
}
