//! Paths that do not answer, as those of a network mount whose server is gone.

use super::*;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// Paths below `/hangs` answer when the sender of the answer is dropped.
fn hanging() -> (Sender<()>, Look) {
    let (release, released) = bounded::<()>(0);
    let look = move |question: &PathQuestion| {
        let (PathQuestion::Exists(path) | PathQuestion::Connects(path)) = question;
        if path.starts_with("/hangs") {
            let _ = released.recv_timeout(PATIENCE);
        }
        if path.contains("missing") { Err(Errno::NOENT) } else { Ok(()) }
    };
    (release, Arc::new(look))
}

fn looks(look: Look) -> (PathLooks, Receiver<()>) {
    let (wake, woken) = bounded(100);
    (PathLooks::new(Arc::new(move || wake.send(()).unwrap()), look), woken)
}

fn exists(path: &str) -> PathQuestion {
    PathQuestion::Exists(path.to_owned())
}

#[test]
fn a_path_that_does_not_answer_keeps_one_thread_and_nobody_else() {
    let (release, look) = hanging();
    let (mut looks, woken) = looks(look);
    for _ in 0..10 {
        looks.ask(&exists("/hangs/a")).unwrap();
        looks.lose_patience(&exists("/hangs/a"));
        looks.ask(&exists("/up")).unwrap();
        woken.recv_timeout(PATIENCE).expect("another thread answers");
        assert_eq!(looks.take_answers(), [(exists("/up"), Ok(()))]);
    }
    assert_eq!(looks.threads, 2);
    drop(release);
    woken.recv_timeout(PATIENCE).unwrap();
    assert_eq!(looks.take_answers(), [(exists("/hangs/a"), Ok(()))]);
    assert!(looks.open.is_empty());
}

#[test]
fn there_are_only_so_many_threads_and_questions() {
    let (_release, look) = hanging();
    let (mut looks, _woken) = looks(look);
    for number in 0..PATH_LOOKS_MAX {
        let question = exists(&format!("/hangs/{number}"));
        looks.ask(&question).unwrap();
        looks.lose_patience(&question);
    }
    assert_eq!(looks.ask(&exists("/up")), Err(format!("{PATH_THREADS} other paths do not answer")));
    assert_eq!(looks.threads, PATH_THREADS);
}

#[test]
fn what_is_known_is_answered_although_another_path_hangs() {
    let (release, look) = hanging();
    let (mut looks, woken) = looks(look);
    let paths = BTreeSet::from(["/a", "/hangs/b", "/missing"]);
    let known = |entries: &[(&str, bool)]| -> BTreeMap<String, bool> {
        entries.iter().map(|(path, exists)| ((*path).to_owned(), *exists)).collect()
    };
    looks.exist(&BTreeSet::from(["/hangs/b"]));
    for _ in 0..3 {
        assert_eq!(looks.exist(&paths), known(&[("/a", true), ("/missing", false)]));
    }
    drop(release);
    // It answers late, which counts the next time.
    while woken.recv_timeout(PATIENCE).is_ok() && looks.answers.1.is_empty() {}
    assert_eq!(looks.exist(&paths), known(&[("/a", true), ("/hangs/b", true), ("/missing", false)]));
}
