//! A file system of a few pages, mounted where a test wants it. Needs the rights of root.
//!
//! Thread: the test's. Owns: the mount, which ends on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts `kib` KiB at `path`. `None` where mounting is not allowed; the test is left out.
    pub fn mount(path: &Path, kib: usize) -> Option<Self> {
        fs::create_dir_all(path).expect("own folder is writable");
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "small-disk"])
            .arg(path);
        let is_mounted = command.output().is_ok_and(|output| output.status.success());
        if !is_mounted {
            let why = "a small disk cannot be mounted here; run the tests as root";
            super::leave_out("full disks", why);
            return None;
        }
        let path = path.to_owned();
        Some(Self { path })
    }

    /// Fills the free space, with smaller and smaller files.
    pub fn fill(&self) {
        let mut size = 64 * 1024;
        while size > 0 {
            let name = format!("filler-{size}-{}", fastrand::u64(..));
            let file = self.path.join(name);
            if fs::write(&file, vec![0; size]).is_err() {
                size /= 2;
            }
        }
    }

    /// Removes the files of [`Self::fill`].
    pub fn clear(&self) {
        for file in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with("filler-") {
                fs::remove_file(file.path()).expect("own file");
            }
        }
    }

    pub fn read_only(&self, yes: bool) {
        let option = if yes { "remount,ro" } else { "remount,rw" };
        let output = Command::new("mount")
            .args(["-o", option])
            .arg(&self.path)
            .output()
            .expect("mount exists");
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: another process may still use it.
        let _ = Command::new("umount").arg("-l").arg(&self.path).output();
    }
}
