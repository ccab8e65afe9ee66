//! Folders and files that only our user can change, in a place where other users can create folders
//! too.
//!
//! Links are never followed. An existing folder or file is used only if it belongs to us and no
//! other user can write to it: otherwise that user could read or replace our data.
//!
//! Thread: any. Takes: paths. Gives: open folders and files, with their modes set.

use ankaios_model::limits::MESSAGE_MAX;
use rustix::fs::{
    CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, ftruncate, mkdirat, open, openat, readlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// All users may create files in it, and rename or remove only their own ones.
const SHARED: u32 = 0o1777;
/// Users may rename or remove only their own files.
const STICKY: u32 = 0o1000;
/// Group and others may write.
const OTHERS_WRITE: u32 = 0o022;

/// How folders are opened.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Longest file that is read, in bytes: what agents keep came to them in one message.
const READ_MAX: u64 = MESSAGE_MAX as u64;

/// A folder that only our user can change.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl PrivateFolder {
    /// Opens `path`, or creates it and the folders above it. Its mode becomes 0700.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)?;
        }
        Self::at(CWD, path, path.to_owned(), Mode::RWXU)
    }

    /// Opens `path`, which has to exist, and leaves it as it is.
    pub fn existing(path: &Path) -> io::Result<Self> {
        let descriptor = openat(CWD, path, FOLDER, Mode::empty())?;
        check(&fstat(&descriptor)?, path)?;
        Ok(Self {
            path: path.to_owned(),
            descriptor,
        })
    }

    /// Opens the folder `name` in this one in the same way as [`Self::open`].
    pub fn subfolder(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        self.subfolder_with_mode(name.as_ref(), Mode::RWXU)
    }

    /// As [`Self::subfolder`], with a mode for a folder that is mounted where others may read it.
    pub fn subfolder_with_mode(&self, name: &Path, mode: Mode) -> io::Result<Self> {
        Self::at(self.descriptor.as_fd(), name, self.path.join(name), mode)
    }

    /// Opens the folder `name` in `parent`, or creates it. Its mode becomes `mode`.
    fn at(parent: BorrowedFd, name: &Path, path: PathBuf, mode: Mode) -> io::Result<Self> {
        let mut opened = openat(parent, name, FOLDER, Mode::empty());
        if matches!(opened, Err(Errno::NOENT)) {
            match mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            opened = openat(parent, name, FOLDER, Mode::empty());
        }
        let descriptor = opened?;
        let stat = fstat(&descriptor)?;
        check(&stat, &path)?;
        if Mode::from_raw_mode(stat.st_mode) != mode {
            fchmod(&descriptor, mode)?;
        }
        Ok(Self { path, descriptor })
    }

    /// Opens the file `name` in this folder for writing, empty, and creates it if it is missing. An
    /// existing one stays the same file, since it may be mounted.
    pub fn write_anew(&self, name: &Path, mode: Mode) -> io::Result<File> {
        // Without waiting: it may be a FIFO.
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR)?;
        if self.check_file(&file, name)? != mode {
            fchmod(&file, mode)?;
        }
        ftruncate(&file, 0)?;
        Ok(File::from(file))
    }

    /// Reads the file `name` in this folder, of at most [`READ_MAX`] bytes.
    pub fn read(&self, name: &Path) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.descriptor, name, flags, Mode::empty())?;
        self.check_file(&file, name)?;
        let file = File::from(file);
        if file.metadata()?.len() > READ_MAX {
            let text = format!(
                "'{}' has more than {READ_MAX} bytes",
                self.path.join(name).display()
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        io::read_to_string(file)
    }

    /// Checks that this is a regular file of our user. Returns its mode.
    fn check_file(&self, file: &OwnedFd, name: &Path) -> io::Result<Mode> {
        let stat = fstat(file)?;
        let path = self.path.join(name);
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("'{}' is not a file", path.display()),
            ));
        }
        check(&stat, &path)?;
        Ok(Mode::from_raw_mode(stat.st_mode))
    }

    /// The folder itself.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Checks that `stat` is of a file or folder of our user.
pub fn check_owner(stat: &Stat) -> Result<(), String> {
    let owner = stat.st_uid;
    let user = geteuid().as_raw();
    if owner == user {
        return Ok(());
    }
    Err(format!(
        "belongs to user {owner}, not to user {user} who runs this program. Remove it if nobody needs it"
    ))
}

/// Checks that only our user can have created or changed the file or folder at `path`.
fn check(stat: &Stat, path: &Path) -> io::Result<()> {
    let user = geteuid().as_raw();
    let path = path.display();
    check_owner(stat).map_err(|text| {
        io::Error::new(io::ErrorKind::PermissionDenied, format!("'{path}' {text}"))
    })?;
    let mode = stat.st_mode & 0o7777;
    // A group with the number of our user has only this user. Where users have such groups, new
    // files are often writable for them.
    let others = if user != 0 && stat.st_gid == user {
        OTHERS_WRITE & 0o007
    } else {
        OTHERS_WRITE
    };
    if mode & others != 0 {
        let text = format!(
            "others may write to '{path}' (mode {mode:04o}). Remove it; or, if all that is in it may be trusted, use \
             'chmod go-w'"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

/// Prepares the folder `path` so that each user can create a folder in it that no other user can
/// replace.
///
/// # Errors
/// If that is impossible, for example because it belongs to a third user, who could replace
/// everything in it.
pub fn share(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    if let Err(error) = DirBuilder::new().mode(SHARED).create(path)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    set_trusted_mode(path, |_| SHARED)
}

/// Ensures that no other user can replace anything in the existing folder `path`.
pub fn use_shared(path: &Path) -> io::Result<()> {
    set_trusted_mode(path, with_sticky)
}

/// Adds the sticky bit to the mode of a folder if others can write to it.
fn with_sticky(mode: u32) -> u32 {
    if mode & OTHERS_WRITE == 0 {
        return mode;
    }
    mode | STICKY
}

/// Checks that `stat` is of root or our user.
fn check_trusted(stat: &Stat) -> io::Result<()> {
    let owner = stat.st_uid;
    let user = geteuid().as_raw();
    if owner == 0 || owner == user {
        return Ok(());
    }
    let text = format!(
        "it belongs to user {owner}, who could replace everything in it. It must belong to root or to user {user}, who \
         runs this program. Name another folder, or remove this one"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Sets the mode of a folder of root or our user. `wanted` returns the new mode for the present
/// one.
fn set_trusted_mode(path: &Path, wanted: fn(u32) -> u32) -> io::Result<()> {
    // First, open the folder. `path` may be a link of root or our user: its target is read from the
    // descriptor that was checked, since others could replace a link by its name.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = open(path, flags, Mode::empty())?;
    let mut stat = fstat(&folder)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        check_trusted(&stat)?;
        let target = readlinkat(&folder, c"", Vec::new())?;
        let above = path.parent().unwrap_or(path);
        let target = above.join(OsStr::from_bytes(target.as_bytes()));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        folder = open(&target, flags, Mode::empty())?;
        stat = fstat(&folder)?;
    }
    // Then, check it.
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Errno::NOTDIR.into());
    }
    check_trusted(&stat)?;
    // Finally, set its mode.
    let mode = stat.st_mode & 0o7777;
    let wanted = wanted(mode);
    if mode == wanted {
        return Ok(());
    }
    let by_descriptor = format!("/proc/self/fd/{}", folder.as_raw_fd());
    let Err(error) = fs::set_permissions(by_descriptor, Permissions::from_mode(wanted)) else {
        return Ok(());
    };
    let is_safe = mode & OTHERS_WRITE == 0 || mode & STICKY != 0;
    if is_safe {
        return Ok(()); // Others cannot replace our files in it.
    }
    let text = format!(
        "others may rename what is in it (mode {mode:04o}), and that cannot be changed: {error}. Let its owner \
         use 'chmod +t', or name another folder"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl PrivateFolder {
        pub(crate) fn path(&self) -> &Path {
            &self.path
        }
    }
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    const STRANGER: Option<u32> = Some(65534);

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Gives `path` to another user, which only root can.
    fn give_away(path: &Path) -> bool {
        geteuid().is_root() && chown(path, STRANGER, STRANGER).is_ok()
    }

    fn refused<T: std::fmt::Debug>(result: io::Result<T>, text: &str) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }

    #[test]
    fn folders_are_closed_to_others_whoever_made_them_open() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("missing/own");
        let folder = PrivateFolder::open(&path).unwrap();
        let inner = folder.subfolder("inner").unwrap();
        assert_eq!([mode(&path), mode(inner.path())], [0o700; 2]);
        [path.as_path(), inner.path()]
            .into_iter()
            .for_each(|path| set(path, 0o755));
        PrivateFolder::open(&path)
            .unwrap()
            .subfolder("inner")
            .unwrap();
        assert_eq!([mode(&path), mode(inner.path())], [0o700; 2]);
    }

    #[test]
    fn what_others_own_or_may_write_to_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let own = PrivateFolder::open(base.path()).unwrap();
        let (folder, file) = (base.path().join("folder"), base.path().join("file"));
        let try_both = |text: &str| {
            refused(own.subfolder("folder"), text);
            refused(PrivateFolder::open(&folder), text);
            refused(own.write_anew(Path::new("file"), Mode::RWXU), text);
            refused(own.read(Path::new("file")), text);
        };
        fs::create_dir(&folder).unwrap();
        fs::write(&file, "kept").unwrap();
        [&folder, &file]
            .into_iter()
            .for_each(|path| set(path, 0o702));
        try_both("others may write to '");
        if give_away(&folder) && give_away(&file) {
            try_both("' belongs to user 65534, not to user 0 ");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    }

    #[test]
    fn links_and_fifos_are_refused_and_lead_nowhere() {
        let base = tempfile::tempdir().unwrap();
        let own = PrivateFolder::open(base.path()).unwrap();
        let (outside, kept) = (base.path().join("outside"), base.path().join("kept"));
        fs::create_dir(&outside).unwrap();
        fs::write(&kept, "kept").unwrap();
        symlink(&outside, base.path().join("folder")).unwrap();
        symlink(&kept, base.path().join("link")).unwrap();
        own.subfolder("folder").unwrap_err();
        own.write_anew(Path::new("link"), Mode::RWXU).unwrap_err();
        rustix::fs::mknodat(own.descriptor(), "fifo", FileType::Fifo, Mode::RWXU, 0).unwrap();
        own.write_anew(Path::new("fifo"), Mode::RWXU).unwrap_err();
        refused(own.read(Path::new("fifo")), "is not a file");
        own.read(Path::new("link")).unwrap_err();
        PrivateFolder::existing(&base.path().join("folder")).unwrap_err();
        assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
    }

    #[test]
    fn existing_folder_is_not_made_and_files_too_long_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let missing = base.path().join("missing");
        PrivateFolder::existing(&missing).unwrap_err();
        assert!(!missing.exists());
        fs::write(base.path().join("file"), "text").unwrap();
        let own = PrivateFolder::existing(base.path()).unwrap();
        assert_eq!(own.read(Path::new("file")).unwrap(), "text");
        // It has no content, so it takes no room.
        File::create(base.path().join("long"))
            .unwrap()
            .set_len(READ_MAX + 1)
            .unwrap();
        refused(own.read(Path::new("long")), "has more than 67108864 bytes");
    }

    #[test]
    fn a_shared_folder_lets_nobody_replace_what_others_have_in_it() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("missing/shared");
        share(&path).unwrap();
        assert_eq!(mode(&path), 0o1777);
        for (before, given, default) in [
            (0o777, 0o1777, 0o1777),
            (0o700, 0o700, 0o1777),
            (0o775, 0o1775, 0o1777),
        ] {
            set(&path, before);
            use_shared(&path).unwrap();
            assert_eq!(mode(&path), given, "{before:o}");
            set(&path, before);
            share(&path).unwrap();
            assert_eq!(mode(&path), default, "{before:o}");
        }
        if give_away(&path) {
            refused(
                share(&path),
                "it belongs to user 65534, who could replace everything in it. It must belong to root",
            );
            refused(use_shared(&path), "Name another folder");
        }
    }

    #[test]
    fn a_link_of_somebody_else_is_no_shared_folder() {
        let base = tempfile::tempdir().unwrap();
        let (real, link) = (base.path().join("real"), base.path().join("link"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        share(&link).unwrap();
        assert_eq!(mode(&real), 0o1777);
        if geteuid().is_root() {
            std::os::unix::fs::lchown(&link, STRANGER, STRANGER).unwrap();
            refused(share(&link), "it belongs to user 65534");
        }
    }
}
