//! Paths that do not answer, as those of a network mount whose server is gone.

use super::*;

const PATIENCE: Duration = Duration::from_secs(180);

/// Paths below `/hangs` answer when the sender is dropped.
fn hanging() -> (Sender<()>, PathProbes, Receiver<()>) {
    let (release, released) = bounded::<()>(0);
    let (wake, woken) = bounded(100);
    let probe_path = move |probe: &PathProbe| {
        let (PathProbe::Look(path) | PathProbe::Connects(path)) = probe;
        if path.starts_with("/hangs") {
            let _ = released.recv_timeout(PATIENCE);
        }
        if path.contains("missing") {
            Err(Errno::NOENT)
        } else {
            Ok(facts(&fs::metadata("/").unwrap()).into())
        }
    };
    (
        release,
        PathProbes::new(
            Arc::new(move || wake.send(()).unwrap()),
            Arc::new(probe_path),
        ),
        woken,
    )
}

fn exists(path: &str) -> PathProbe {
    PathProbe::Look(path.to_owned())
}

#[test]
fn hanging_path_blocks_one_thread_and_no_other_probe() {
    let (release, mut probes, woken) = hanging();
    for _ in 0..10 {
        probes.start(&exists("/hangs/a")).unwrap();
        probes.abandon(&exists("/hangs/a"));
        probes.start(&exists("/up")).unwrap();
        woken
            .recv_timeout(PATIENCE)
            .expect("another thread answers");
        let results = probes.take_results();
        let [up] = results.as_slice() else {
            panic!("one result");
        };
        assert_eq!(up.probe, exists("/up"));
        assert!(matches!(up.result, Ok(Some(_))));
    }
    assert_eq!(probes.threads, 2);
    drop(release);
    woken.recv_timeout(PATIENCE).unwrap();
    let results = probes.take_results();
    let [late] = results.as_slice() else {
        panic!("one result");
    };
    assert_eq!(late.probe, exists("/hangs/a"));
    assert!(late.result.is_ok());
    assert!(probes.open.is_empty());
}

#[test]
fn there_are_only_so_many_threads_and_probes() {
    let (_release, mut probes, _woken) = hanging();
    for number in 0..PATH_PROBES_MAX {
        let probe = exists(&format!("/hangs/{number}"));
        probes.start(&probe).unwrap();
        probes.abandon(&probe);
    }
    assert_eq!(
        probes.start(&exists("/up")),
        Err(format!("{PATH_THREADS} other paths do not answer"))
    );
    assert_eq!(probes.threads, PATH_THREADS);
}

#[test]
fn what_is_known_is_returned_although_another_path_hangs() {
    let (release, mut probes, woken) = hanging();
    let mut look = |paths: &[&str], limit| {
        let found = probes.look(paths.iter().map(|&path| path.to_owned()), limit);
        found
            .into_iter()
            .map(|(path, facts)| (path, facts.is_some()))
            .collect::<Vec<_>>()
    };
    let known = |entries: &[(&str, bool)]| -> Vec<(String, bool)> {
        entries
            .iter()
            .map(|(path, exists)| ((*path).to_owned(), *exists))
            .collect()
    };
    look(&["/hangs/b"], Duration::from_millis(50));
    // It is not waited for again.
    for _ in 0..3 {
        assert_eq!(
            look(&["/a", "/hangs/b", "/missing"], PATIENCE),
            known(&[("/a", true), ("/missing", false)])
        );
    }
    drop(release);
    // It answers late, and is looked at again the next time.
    while look(&["/hangs/b"], PATIENCE).is_empty() {
        woken.recv_timeout(PATIENCE).unwrap();
    }
}
