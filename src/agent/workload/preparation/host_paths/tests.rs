//! Which paths a container names, and which of their changes count.

use super::*;
use ankaios_model::runtime_config::EngineConfig;
use ankaios_model::workload::Workload;
use ankaios_runtime::probes::paths::PathProbe;
use crossbeam_channel::bounded;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Instant, SystemTime};

/// Longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(60);

fn paths_of(options: &str) -> BTreeSet<String> {
    let workload = Workload::new(
        "A",
        "podman",
        &format!("image: /no/path\n{options}\ncommandArgs: [/bin/sh]"),
    );
    let read = workload.config();
    let Ok(EngineConfig::Container(config)) = &read.engine else {
        panic!("{read:?}")
    };
    let new = NewContainer {
        instance: workload.instance_name("w"),
        workload: Arc::new(workload.clone()),
        control_interface: Some("/run/a/control_interface".into()),
        files: vec![("/run/a/files/x".into(), "/x".to_owned())],
        notify_socket: Some("/run/a/notify/1".into()),
        pid_file: None,
    };
    named_paths(config, &new)
}

#[test]
fn paths_are_the_pieces_of_all_options_and_the_agents_own() {
    let options = "generalOptions: ['--root=/r']\ncommandOptions: ['-v', '/a:/b:ro', '--mount=type=bind,source=./c,target=/d', \
                   '--device=/dev/null', '--env-file', /e, 'NAME=x/y', '-v/f:/g', '-itv./h', '--rm', 'x']";
    let expected = [
        "./c",
        "./h",
        "/a",
        "/b",
        "/d",
        "/dev/null",
        "/e",
        "/f",
        "/g",
        "/r",
        "/run/a/control_interface",
        "/run/a/files/x",
        "x/y",
    ];
    assert_eq!(
        paths_of(options)
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn each_change_that_another_container_would_notice_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let make = |name: &str| fs::write(at(name), "content").unwrap();
    ["file", "old", "touched", "replaced"]
        .into_iter()
        .for_each(make);
    ["folder", "moved", "other"]
        .into_iter()
        .for_each(|name| fs::create_dir(at(name)).unwrap());
    symlink("/dev/null", at("device")).unwrap();
    symlink(at("moved"), at("link")).unwrap();
    type Change<'c> = &'c dyn Fn(&Path);
    let changes: [(&str, Change<'_>); 8] = [
        ("file", &|path| fs::write(path, "other content").unwrap()),
        ("old", &|path| fs::remove_file(path).unwrap()),
        ("touched", &|path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() + Duration::from_secs(5))
                .unwrap();
        }),
        ("replaced", &|path| {
            fs::rename(path, at("away")).unwrap();
            fs::write(path, "content").unwrap();
        }),
        ("new", &|path| fs::write(path, "").unwrap()),
        ("device", &|path| {
            fs::remove_file(path).unwrap();
            symlink("/dev/zero", path).unwrap();
        }),
        ("link", &|path| {
            fs::remove_file(path).unwrap();
            symlink(at("other"), path).unwrap();
        }),
        ("folder", &|path| {
            fs::rename(path, at("gone")).unwrap();
            fs::create_dir(path).unwrap();
        }),
    ];
    for (name, change) in changes {
        let path = at(name);
        let before = look(&[path.display().to_string()].into(), LONG).unwrap();
        assert_eq!(compare(&before, LONG), Ok(()), "{name}");
        change(&path);
        let expected = format!(
            "'{}' has changed since the container was created",
            path.display()
        );
        assert_eq!(compare(&before, LONG), Err(expected), "{name}");
    }
    let before = look(&[folder.path().display().to_string()].into(), LONG).unwrap();
    fs::write(at("one more"), "").unwrap();
    assert_eq!(
        compare(&before, LONG),
        Ok(()),
        "what a folder holds is looked up by the container"
    );
}

#[test]
fn a_container_without_paths_needs_no_thread_to_look() {
    assert_eq!(look(&BTreeSet::new(), Duration::ZERO), Ok(HostPaths::new()));
    assert_eq!(compare(&HostPaths::new(), Duration::ZERO), Ok(()));
}

#[test]
fn path_without_answer_is_waited_for_once() {
    let (release, released) = bounded::<()>(0);
    let hanging = move |probe: &PathProbe| {
        if *probe == PathProbe::Look("hangs".to_owned()) {
            let _ = released.recv_timeout(LONG);
        }
        Err(Errno::NOENT)
    };
    let mut probes = PathProbes::new(Arc::new(|| ()), Arc::new(hanging));
    let mut look = |paths: &[&str], limit| {
        let paths = paths.iter().map(|&path| path.to_owned()).collect();
        look_by(&mut probes, &paths, limit).map(|found| found.len())
    };
    let silent = |ms: u128| {
        Err(format!(
            "the host path 'hangs' does not answer within {ms} ms"
        ))
    };
    let short = Duration::from_millis(50);
    assert_eq!(look(&["hangs", "or", "not"], short), silent(50));
    assert_eq!(
        look(&["a", "hangs"], LONG),
        silent(LONG.as_millis()),
        "at once"
    );
    assert_eq!(look(&["a"], LONG), Ok(1));
    drop(release);
    let end = Instant::now() + LONG;
    while look(&["hangs"], LONG).is_err() {
        assert!(
            Instant::now() < end,
            "a path that answers again is looked at again"
        );
        std::thread::yield_now();
    }
}
