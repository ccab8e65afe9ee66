//! Tests of the removal: nested, linked and locked entries, and ones that others swap meanwhile.

use super::*;
use ankaios_platform::clock::SystemClock;
use ankaios_platform::limits::STACK_SMALL;
use crossbeam_channel::Receiver;
use rustix::fs::{RenameFlags, mkdirat, renameat_with};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

const LONG: Duration = Duration::from_secs(60);

fn remove(folder: &Path) -> io::Result<()> {
    FolderRemoval {
        clock: &SystemClock,
        until: SystemClock.now() + LONG,
        limit: LONG,
    }
    .remove(folder)
}

/// Makes `depth` folders, one in the other, with a file in each.
fn nest(folder: &Path, depth: usize) {
    let mut inner = open_folder(CWD, folder).unwrap();
    for _ in 0..depth {
        openat(
            &inner,
            c"file",
            OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::RWXU,
        )
        .unwrap();
        mkdirat(&inner, c"nested", Mode::RWXU).unwrap();
        inner = open_folder(&inner, c"nested").unwrap();
    }
}

#[test]
fn depth_costs_neither_stack_nor_descriptors_nor_long_paths() {
    // A disk takes half a minute for as many folders.
    let parent = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let folder = parent.path().join("control_interface");
    fs::create_dir(&folder).unwrap();
    nest(&folder, 8_000);
    let removed = folder.clone();
    let thread =
        ankaios_platform::threads::spawn("removes", STACK_SMALL, move || remove(&removed).unwrap())
            .unwrap();
    assert!(ankaios_platform::threads::join_all(vec![thread], LONG).is_empty());
    assert!(!folder.exists());
}

#[test]
fn a_folder_that_took_too_long_to_remove_stayed_for_ever() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("web.1");
    fs::create_dir(&folder).unwrap();
    nest(&folder, 50);
    remove_folder(&folder, &SystemClock, Duration::ZERO);
    assert!(
        !folder.exists(),
        "the next container of the workload finds it"
    );
    let left = || fs::read_dir(parent.path()).unwrap().count();
    assert_eq!(left(), 1);
    fs::create_dir(&folder).unwrap();
    remove_set_aside(parent.path());
    let deadline = SystemClock.now() + LONG;
    while left() > 1 && SystemClock.now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        left() == 1 && folder.exists(),
        "only what was set aside is removed"
    );
}

#[test]
fn links_are_removed_and_never_followed() {
    let parent = tempfile::tempdir().unwrap();
    let (outside, folder) = (parent.path().join("outside"), parent.path().join("folder"));
    fs::create_dir_all(outside.join("kept")).unwrap();
    fs::create_dir_all(folder.join("a/b")).unwrap();
    for place in ["link", "a/link", "a/b/link"] {
        symlink(&outside, folder.join(place)).unwrap();
        symlink(outside.join("kept"), folder.join(place).with_extension("2")).unwrap();
    }
    remove(&folder).unwrap();
    assert!(!folder.exists() && outside.join("kept").exists());
    symlink(&outside, &folder).unwrap();
    remove(&folder).unwrap();
    assert!(!folder.is_symlink() && outside.join("kept").exists());
    remove(&folder).unwrap(); // Missing is fine.
}

#[test]
fn what_is_swapped_while_it_is_removed_leads_nowhere_else() {
    let parent = tempfile::tempdir().unwrap();
    let (outside, folder) = (parent.path().join("outside"), parent.path().join("folder"));
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The container: a folder with something in it and a link take turns at one name.
            let (one, other) = (folder.join("one"), folder.join("other"));
            while !done.load(Ordering::Relaxed) {
                let _ = fs::create_dir_all(one.join("inner/innermost"));
                let _ = symlink(&outside, &other);
                for _ in 0..10 {
                    let _ = renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE);
                }
            }
        });
        for _ in 0..300 {
            let _ = remove(&folder); // It may be filled again at any moment.
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(outside.join("kept").exists());
    remove(&folder).unwrap();
    assert!(!folder.exists());
}

#[test]
fn folders_that_their_owner_has_locked_are_removed() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("folder");
    for mode in [0o000, 0o500, 0o300] {
        fs::create_dir_all(folder.join("a/b/c")).unwrap();
        for place in ["a/b/c", "a/b", "a", ""] {
            fs::set_permissions(folder.join(place), fs::Permissions::from_mode(mode)).unwrap();
        }
        remove(&folder).unwrap();
        assert!(!folder.exists(), "{mode:o}");
    }
}

/// A clock that goes on by a second with each look.
#[derive(Clone)]
struct Hurried {
    start: Instant,
    looks: Cell<u64>,
}

impl Clock for Hurried {
    fn now(&self) -> Instant {
        self.looks.set(self.looks.get() + 1);
        self.start + Duration::from_secs(self.looks.get())
    }

    fn alarm(&self, _: Instant) -> Receiver<Instant> {
        unreachable!("nobody waits")
    }
}

#[test]
fn a_removal_ends_in_time_and_the_next_one_goes_on() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("folder");
    fs::create_dir(&folder).unwrap();
    (0..100).for_each(|number| fs::write(folder.join(number.to_string()), "").unwrap());
    let clock = Hurried {
        start: SystemClock.now(),
        looks: Cell::new(0),
    };
    let limit = Duration::from_secs(60);
    let removal = || {
        FolderRemoval {
            clock: &clock,
            until: clock.now() + limit,
            limit,
        }
        .remove(&folder)
    };
    let error = removal().unwrap_err();
    assert_eq!(error.to_string(), "not everything was removed within 60s");
    assert!((1..100).contains(&fs::read_dir(&folder).unwrap().count()));
    removal().unwrap();
    assert!(!folder.exists());
}
