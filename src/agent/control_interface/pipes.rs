//! The two FIFOs of a control interface: `output`, which the workload writes, and `input`, which it
//! reads.
//!
//! Thread: `wl:<name>` creates and removes them, `call:<name>` creates those of a container that is
//! only prepared, `control` reads and writes. Never waits for the other side.
//!
//! The workload has the folder mounted and can put any file there. So the agent opens the FIFOs by
//! their names only once, follows no links, and accepts only FIFOs. Later it reopens the same two
//! through their descriptors.
//!
//! The process in a container may have any user, in any user namespace, which is not known before
//! it runs. So the FIFOs and their folder are open to all users. They are protected by the folder
//! of the workload around them, which only the user of the agent can enter.

use ankaios_platform::limits::{PIPE_CAPACITY, PIPE_CONTENT_MAX};
use ankaios_platform::private_folder::{PrivateFolder, check_owner};
use rustix::fs::{
    CWD, FileType, Mode, OFlags, Stat, chmod, fstat, lstat, mknodat, open, openat, rmdir, unlink,
};
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::pipe::{fcntl_getpipe_size, fcntl_setpipe_size};
use std::io;
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes read from or written to one workload in a row while others wait.
pub(super) const PIPE_TURN: usize = 64 * 1024;
/// Most bytes of an earlier user of a pipe that are discarded: more than a pipe can hold.
const LEFTOVER_MAX: usize = 2 * PIPE_CONTENT_MAX;
/// Smallest capacity of a pipe that can be requested, in bytes. The kernel makes it one page.
const PIPE_SMALLEST: usize = 4 * 1024;

/// Written by the workload.
const OUTPUT: &str = "output";
/// Read by the workload.
const INPUT: &str = "input";

/// The folder, as the container sees it.
const FOLDER_MODE: Mode = Mode::from_bits_retain(0o755);
/// The user of the container is not known. It reads one FIFO and writes the other.
const FIFO_MODE: Mode = Mode::from_bits_retain(0o666);

/// A control interface cannot be made or opened.
#[derive(Debug, thiserror::Error)]
#[error("'{}': {source}", path.display())]
pub(crate) struct PipeError {
    path: PathBuf,
    source: io::Error,
}

impl PipeError {
    /// Whether a check has found that another user may have made or changed the files.
    pub(crate) fn is_foreign(&self) -> bool {
        // A refusal of the kernel would have an error number.
        self.source.raw_os_error().is_none()
            && self.source.kind() == io::ErrorKind::PermissionDenied
    }

    /// Whether the machine lacks a resource at the moment, so that a retry may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        const SCARCE: [Errno; 6] = [
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::IO,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
        ];
        match self.source.raw_os_error() {
            Some(error) => SCARCE.iter().any(|errno| errno.raw_os_error() == error),
            None => false,
        }
    }
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// The number of bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// All writers have closed; the pipe is reopened for the next one.
    Closed,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// The number of bytes.
    Bytes(usize),
    /// No space now.
    Full,
    /// No process reads. Bytes that were written and not read are lost.
    NoReader,
}

/// Identifies a FIFO, even when its name belongs to another file later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FifoId {
    device: u64,
    inode: u64,
}

impl FifoId {
    fn new(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }

    fn is_at(self, path: &Path) -> bool {
        match lstat(path) {
            Ok(stat) => Self::new(&stat) == self,
            Err(_) => false,
        }
    }
}

/// Identifies the two FIFOs that were opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PipeIds {
    output: FifoId,
    input: FifoId,
}

impl PipeIds {
    /// Whether these are still the FIFOs of `folder`. A cleaner of old files may have removed them.
    pub(crate) fn are_in(&self, folder: &Path) -> bool {
        self.output.is_at(&folder.join(OUTPUT)) && self.input.is_at(&folder.join(INPUT))
    }
}

/// Both FIFOs: `output` is open, and `input` while the workload reads it.
#[derive(Debug)]
pub(crate) struct Pipes {
    ids: PipeIds,
    output: OwnedFd,
    /// Names the FIFO. It can only be opened while a process reads it.
    input_place: OwnedFd,
    input: Option<Arc<OwnedFd>>,
    /// Capacity of `input`, in bytes.
    capacity: usize,
    /// `input` has the smallest capacity of a pipe.
    one_page: bool,
}

/// The pipe to a workload, for a message that is written as a whole.
#[derive(Debug)]
pub(crate) struct DirectPipe(Arc<OwnedFd>);

impl DirectPipe {
    /// Writes a small message, if the workload has read all messages before it. Returns whether it
    /// was written.
    pub(crate) fn write_whole(&self, message: &[u8]) -> bool {
        if message.len() > PIPE_SMALLEST {
            return false; // The kernel might write only a part of it.
        }
        let is_drained = ioctl_fionread(&self.0) == Ok(0);
        is_drained && write(&self.0, message) == Ok(message.len())
    }
}

/// Makes the folder and the FIFOs of a container. Those that exist are kept, with our owner and
/// mode. `is_mounted`: the container runs already and may have changed these, which is harmless,
/// since no other user can reach them.
///
/// # Errors
/// [`PipeError`] if something else has the name of a FIFO, if the folder cannot be written, or if
/// folder or FIFO have another owner or mode. If the container runs, only the folder around them is
/// checked.
// [impl->swdd~agent-control-interface-creates-two-pipes-per-workload~1]
pub(crate) fn create(folder: &Path, is_mounted: bool) -> Result<(), PipeError> {
    let place = open_place(folder, is_mounted).map_err(|source| PipeError {
        path: folder.to_owned(),
        source,
    })?;
    for name in [OUTPUT, INPUT] {
        create_fifo(&place, name, is_mounted).map_err(|source| PipeError {
            path: folder.join(name),
            source,
        })?;
    }
    Ok(())
}

/// Makes a FIFO if there is none, and checks one that a container is about to mount.
fn create_fifo(place: &OwnedFd, name: &str, is_mounted: bool) -> io::Result<()> {
    let is_new = match mknodat(place, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(errno.into()),
    };
    let fifo = fifo_at(place, name)?;
    if is_new {
        chmod(descriptor_path(&fifo), FIFO_MODE)?; // `mknodat` applies the umask.
    } else if !is_mounted {
        check_fifo(&fifo)?;
    }
    Ok(())
}

/// Opens the folder of the FIFOs, in a folder that only the user of the agent can enter. Unless a
/// running container has the folder mounted, makes it, or checks its owner and mode.
fn open_place(folder: &Path, is_mounted: bool) -> io::Result<OwnedFd> {
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = PrivateFolder::open(parent)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(parent.descriptor(), name, flags, Mode::empty()) {
        Ok(place) if is_mounted => Ok(place),
        Ok(_) | Err(Errno::NOENT) => {
            parent.subfolder_with_mode(name.as_ref(), FOLDER_MODE)?;
            Ok(openat(parent.descriptor(), name, flags, Mode::empty())?)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Checks that an existing FIFO has our owner and mode. An earlier version made it with another
/// mode in a folder that was open to others, so another user may still have it open.
fn check_fifo(fifo: &OwnedFd) -> io::Result<()> {
    let stat = fstat(fifo)?;
    check_owner(&stat).map_err(|text| io::Error::new(io::ErrorKind::PermissionDenied, text))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if mode == FIFO_MODE {
        return Ok(());
    }
    let text = format!(
        "has the mode {:04o}, not {:04o}",
        mode.bits(),
        FIFO_MODE.bits()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Removes the FIFOs, and their folder if nothing else is in it. Other files in it are removed
/// later, with the folder of the workload.
pub(crate) fn remove(folder: &Path) {
    for name in [OUTPUT, INPUT] {
        let _ = unlink(folder.join(name)); // A failure is logged at the later removal.
    }
    let _ = rmdir(folder);
}

/// Opens a descriptor that names a FIFO. It stays valid even if another file gets the name later.
fn fifo_at<P: rustix::path::Arg>(folder: impl AsFd, name: P) -> io::Result<OwnedFd> {
    let place = openat(
        folder,
        name,
        OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    if FileType::from_raw_mode(fstat(&place)?.st_mode) != FileType::Fifo {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "is not a FIFO",
        ));
    }
    Ok(place)
}

/// Opens a descriptor that names a FIFO of `folder`.
fn open_fifo(folder: &Path, name: &str) -> Result<(OwnedFd, FifoId), PipeError> {
    let path = folder.join(name);
    let fifo = match fifo_at(CWD, &path) {
        Ok(fifo) => fifo,
        Err(source) => return Err(PipeError { path, source }),
    };
    match fstat(&fifo) {
        Ok(stat) => Ok((fifo, FifoId::new(&stat))),
        Err(errno) => Err(PipeError {
            path,
            source: errno.into(),
        }),
    }
}

fn descriptor_path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

/// Opens the FIFO that a descriptor names.
fn reopen(descriptor: &OwnedFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open(
        descriptor_path(descriptor),
        flags | OFlags::NONBLOCK | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

impl Pipes {
    /// Opens the FIFOs of `folder`: `output` at once, `input` as soon as the workload reads it.
    ///
    /// # Errors
    /// [`PipeError`] when one is missing or is something else.
    pub(crate) fn open(folder: &Path) -> Result<Self, PipeError> {
        let (output_place, output_id) = open_fifo(folder, OUTPUT)?;
        let (input_place, input_id) = open_fifo(folder, INPUT)?;
        let output = reopen(&output_place, OFlags::RDONLY).map_err(|errno| PipeError {
            path: folder.join(OUTPUT),
            source: errno.into(),
        })?;
        let ids = PipeIds {
            output: output_id,
            input: input_id,
        };
        Ok(Self {
            ids,
            output,
            input_place,
            input: None,
            capacity: PIPE_CAPACITY,
            one_page: false,
        })
    }

    pub(crate) fn ids(&self) -> &PipeIds {
        &self.ids
    }

    /// The descriptor that becomes readable when the workload has written.
    pub(crate) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// The descriptor that becomes writable when there is space, and has an error when the reader
    /// closes it; `None` while no process reads.
    pub(crate) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(|input| input.as_fd())
    }

    /// Reads bytes that the workload has written.
    ///
    /// # Errors
    /// The pipe cannot be used any more.
    // [impl->swdd~agent-ensures-control-interface-output-pipe-read~1]
    pub(crate) fn read(&mut self, room: &mut [u8]) -> io::Result<ReadOutcome> {
        match read(&self.output, room) {
            Ok(0) => {
                // `poll` would report it as ready until it is reopened.
                self.output = reopen(&self.output, OFlags::RDONLY)?;
                Ok(ReadOutcome::Closed)
            }
            Ok(count) => Ok(ReadOutcome::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(ReadOutcome::Nothing),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the workload has read everything. Only then the next message begins: some clients
    /// read two messages at once into their own buffer, then wait for the pipe and miss the second
    /// one.
    pub(crate) fn is_drained(&self) -> bool {
        match &self.input {
            Some(input) => ioctl_fionread(input) == Ok(0),
            None => true, // The next reader finds an empty pipe.
        }
    }

    /// Whether `poll` reports that the pipe is drained: so it does for a pipe of one page, which
    /// has space only when it is empty.
    pub(crate) fn reports_drained(&self) -> bool {
        self.one_page
    }

    /// Writes the rest of a message, from byte `sent` on, as far as there is space.
    ///
    /// # Errors
    /// The pipe cannot be used any more.
    // [impl->swdd~agent-handles-control-interface-input-pipe-not-read~1]
    pub(crate) fn write(&mut self, message: &[u8], sent: usize) -> io::Result<WriteOutcome> {
        // First: open the pipe. This fails without a reader.
        if self.input.is_none() {
            match reopen(&self.input_place, OFlags::WRONLY) {
                Ok(input) => {
                    // If a reader had it open before, its capacity may be any.
                    self.capacity = fcntl_getpipe_size(&input).unwrap_or(PIPE_CAPACITY);
                    self.one_page = false;
                    self.input = Some(Arc::new(input));
                }
                Err(Errno::NXIO) => return Ok(WriteOutcome::NoReader),
                Err(errno) => return Err(errno.into()),
            }
        }
        if sent == 0 {
            self.fit(message.len());
        }
        // Then: write.
        let Some(input) = &self.input else {
            return Ok(WriteOutcome::NoReader);
        };
        match write(input, &message[sent..]) {
            Ok(count) => Ok(WriteOutcome::Bytes(count)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(WriteOutcome::Full),
            Err(Errno::PIPE) => {
                self.close_input();
                Ok(WriteOutcome::NoReader)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the pipe large enough for a message of this size. Some clients do not wait for the
    /// second half of a message, so it is written as a whole if possible. For a small message, the
    /// pipe is made one page large, so that `poll` reports when it is drained.
    fn fit(&mut self, message: usize) {
        let small = message <= PIPE_SMALLEST;
        let fits = if small {
            self.one_page
        } else {
            self.capacity >= message
        };
        if fits {
            return;
        }
        let Some(input) = &self.input else { return };
        // The kernel refuses more space to users with many large pipes. Then the message is written
        // in parts.
        let size = message.clamp(PIPE_SMALLEST, PIPE_CONTENT_MAX);
        if let Ok(capacity) = fcntl_setpipe_size(input, size) {
            self.capacity = capacity;
            self.one_page = small;
        }
    }

    /// The pipe to the workload, if it is open and has one page.
    pub(crate) fn direct(&self) -> Option<DirectPipe> {
        match &self.input {
            Some(input) if self.one_page => Some(DirectPipe(input.clone())),
            _ => None,
        }
    }

    /// Closes `input`. The next reader begins with the next message.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// Discards bytes that were written and not read, and closes `input` if there were any. Returns
    /// whether there were any.
    pub(crate) fn discard_unread(&mut self) -> bool {
        let Some(input) = self.input.take_if(|input| has_unread(input)) else {
            return false;
        };
        // Closing is not enough: for a reader that has it open, the pipe keeps its content.
        if let Ok(reader) = reopen(&input, OFlags::RDONLY) {
            drain(&reader);
        }
        true
    }

    /// Discards all bytes in both pipes, and closes `input`.
    pub(crate) fn reset(&mut self) {
        drain(&self.output);
        self.discard_unread();
        self.close_input();
    }
}

fn has_unread(pipe: &OwnedFd) -> bool {
    matches!(ioctl_fionread(pipe), Ok(1..))
}

/// Discards the bytes in a pipe, at most [`LEFTOVER_MAX`], since a workload may continue to write.
fn drain(reader: &OwnedFd) {
    let mut room = vec![0; PIPE_TURN];
    let mut left = LEFTOVER_MAX;
    while let Ok(count @ 1..) = read(reader, &mut room) {
        if count >= left {
            return;
        }
        left -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, OpenOptions};
    use std::io::{Read, Write};
    use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

    struct Fixture {
        _temporary: tempfile::TempDir,
        folder: PathBuf,
    }

    fn created() -> Fixture {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().join("w.1/control_interface");
        create(&folder, false).unwrap();
        Fixture {
            _temporary: temporary,
            folder,
        }
    }

    fn opened() -> (Fixture, Pipes) {
        let fixture = created();
        let pipes = Pipes::open(&fixture.folder).unwrap();
        (fixture, pipes)
    }

    fn is_ready(fd: impl std::os::fd::AsFd, flags: rustix::event::PollFlags) -> bool {
        let zero = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        rustix::event::poll(&mut [rustix::event::PollFd::new(&fd, flags)], Some(&zero)).unwrap()
            == 1
    }

    impl Fixture {
        fn writer(&self) -> File {
            OpenOptions::new()
                .write(true)
                .custom_flags(0o4000)
                .open(self.folder.join(OUTPUT))
                .unwrap()
        }

        fn reader(&self) -> File {
            OpenOptions::new()
                .read(true)
                .custom_flags(0o4000)
                .open(self.folder.join(INPUT))
                .unwrap()
        }
    }

    // [utest->swdd~agent-control-interface-creates-two-pipes-per-workload~1]
    #[test]
    fn fifos_are_open_to_any_user_in_the_container() {
        let fixture = created();
        let metadata = |name: &str| fs::metadata(fixture.folder.join(name)).unwrap();
        let mode = |name: &str| metadata(name).permissions().mode() & 0o777;
        assert_eq!(
            [mode(".."), mode(".")],
            [0o700, 0o755],
            "nobody else gets to the folder that is mounted"
        );
        let before = [OUTPUT, INPUT].map(|name| {
            assert!(metadata(name).file_type().is_fifo());
            assert_eq!(mode(name), 0o666, "{name}");
            metadata(name).ino()
        });
        for is_mounted in [false, true] {
            create(&fixture.folder, is_mounted).unwrap();
        }
        assert_eq!([OUTPUT, INPUT].map(|name| metadata(name).ino()), before);
        remove(&fixture.folder);
        assert!(!fixture.folder.exists() && fixture.folder.parent().unwrap().exists());
    }

    #[test]
    fn what_is_no_fifo_is_refused_and_left_alone() {
        let fixture = created();
        let secret = fixture.folder.join("../secret");
        fs::write(&secret, "untouched").unwrap();
        let output = fixture.folder.join(OUTPUT);
        for link in [false, true] {
            fs::remove_file(&output).unwrap();
            if link {
                symlink(&secret, &output).unwrap();
            } else {
                fs::write(&output, "").unwrap();
            }
            for result in [
                create(&fixture.folder, false),
                create(&fixture.folder, true),
                Pipes::open(&fixture.folder).map(drop),
            ] {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("output': is not a FIFO"), "{error}");
            }
        }
        assert_eq!(fs::read_to_string(secret).unwrap(), "untouched");
    }

    #[test]
    fn fifos_that_others_may_have_made_are_refused() {
        let fixture = created();
        let output = fixture.folder.join(OUTPUT);
        let set = |mode| fs::set_permissions(&output, fs::Permissions::from_mode(mode)).unwrap();
        let refused = |text: &str| {
            let error = create(&fixture.folder, false).unwrap_err();
            assert!(
                error.is_foreign() && error.to_string().contains(text),
                "{error}"
            );
            create(&fixture.folder, true).unwrap();
        };
        set(0o700);
        refused("output': has the mode 0700, not 0666");
        set(0o666);
        fs::set_permissions(&fixture.folder, fs::Permissions::from_mode(0o777)).unwrap();
        refused("others may write to '");
        fs::set_permissions(&fixture.folder, fs::Permissions::from_mode(0o755)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&output, Some(65534), None).unwrap();
            refused("output': belongs to user 65534, not to user 0 ");
            // In that of the workload only others can have done that.
            std::os::unix::fs::chown(fixture.folder.parent().unwrap(), Some(65534), None).unwrap();
            let error = create(&fixture.folder, true).unwrap_err().to_string();
            assert!(error.contains("w.1' belongs to user 65534"), "{error}");
        }
    }

    #[test]
    fn what_the_machine_has_too_little_of_may_pass() {
        let error = |errno: Errno| PipeError {
            path: PathBuf::new(),
            source: errno.into(),
        };
        for (errno, may_pass) in [
            (Errno::NOSPC, true),
            (Errno::MFILE, true),
            (Errno::ROFS, false),
            (Errno::ACCESS, false),
        ] {
            assert_eq!(error(errno).may_pass(), may_pass, "{errno}");
            assert!(!error(errno).is_foreign());
        }
    }

    #[test]
    fn a_container_that_runs_gets_back_what_it_has_lost() {
        let fixture = created();
        fs::remove_file(fixture.folder.join(OUTPUT)).unwrap();
        create(&fixture.folder, true).unwrap();
        assert_eq!(
            fs::metadata(fixture.folder.join(OUTPUT))
                .unwrap()
                .permissions()
                .mode()
                & 0o777,
            0o666
        );
        fs::remove_dir_all(&fixture.folder).unwrap();
        create(&fixture.folder, true).unwrap();
        assert!(fixture.folder.join(INPUT).exists());
    }

    #[test]
    fn a_workload_that_swaps_a_fifo_for_a_link_leads_us_nowhere() {
        let (fixture, mut pipes) = opened();
        let reader = fixture.reader();
        let secret = fixture.folder.join("../secret");
        fs::write(&secret, "untouched").unwrap();
        for name in [OUTPUT, INPUT] {
            fs::remove_file(fixture.folder.join(name)).unwrap();
            symlink(&secret, fixture.folder.join(name)).unwrap();
        }
        assert_eq!(pipes.write(b"hello", 0).unwrap(), WriteOutcome::Bytes(5));
        assert_eq!(fs::read_to_string(secret).unwrap(), "untouched");
        drop(reader);
    }

    // [utest->swdd~agent-ensures-control-interface-output-pipe-read~1]
    #[test]
    fn writers_come_and_go_and_each_end_is_told_once() {
        let (fixture, mut pipes) = opened();
        let mut room = [0; 100];
        for round in 0..3_u8 {
            let mut writer = fixture.writer();
            writer.write_all(&[round; 10]).unwrap();
            assert_eq!(pipes.read(&mut room).unwrap(), ReadOutcome::Bytes(10));
            assert_eq!(room[..10], [round; 10]);
            assert_eq!(pipes.read(&mut room).unwrap(), ReadOutcome::Nothing);
            drop(writer);
            assert_eq!(pipes.read(&mut room).unwrap(), ReadOutcome::Closed);
            let is_told = is_ready(pipes.output(), rustix::event::PollFlags::IN);
            assert!(!is_told, "nobody is there, so nothing is told");
        }
    }

    // [utest->swdd~agent-handles-control-interface-input-pipe-not-read~1]
    #[test]
    fn a_reader_may_be_late_slow_and_gone() {
        let (fixture, mut pipes) = opened();
        assert_eq!(pipes.write(b"x", 0).unwrap(), WriteOutcome::NoReader);
        let mut reader = fixture.reader();
        let piece = [7; 10_000];
        let mut written = 0;
        while let WriteOutcome::Bytes(count) = pipes.write(&piece, 0).unwrap() {
            written += count;
            assert!(written <= PIPE_CONTENT_MAX);
        }
        assert_eq!(pipes.write(&piece, 0).unwrap(), WriteOutcome::Full);
        let mut room = vec![0; written];
        reader.read_exact(&mut room).unwrap();
        assert_eq!(pipes.write(b"y", 0).unwrap(), WriteOutcome::Bytes(1));
        drop(reader);
        assert_eq!(pipes.write(b"z", 0).unwrap(), WriteOutcome::NoReader);
        let mut next = fixture.reader();
        assert_eq!(pipes.write(b"next", 0).unwrap(), WriteOutcome::Bytes(4));
        let mut room = [0; 4];
        next.read_exact(&mut room).unwrap();
        assert_eq!(&room, b"next", "what the first reader left is gone");
    }

    #[test]
    fn a_large_message_fits_the_pipe_as_a_whole() {
        let (fixture, mut pipes) = opened();
        let _reader = fixture.reader();
        let message = vec![1; 300_000];
        assert_eq!(
            pipes.write(&message, 0).unwrap(),
            WriteOutcome::Bytes(message.len())
        );
    }

    #[test]
    fn a_small_pipe_has_room_again_exactly_when_everything_was_read() {
        let (fixture, mut pipes) = opened();
        let mut reader = fixture.reader();
        assert!(pipes.is_drained(), "nobody reads, nothing is in it");
        let large = vec![1; 100_000];
        pipes.write(&large, 0).unwrap();
        assert!(!pipes.is_drained() && !pipes.reports_drained());
        reader.read_exact(&mut vec![0; large.len()]).unwrap();
        pipes.write(b"small", 0).unwrap();
        let has_room =
            |pipes: &Pipes| is_ready(pipes.input().unwrap(), rustix::event::PollFlags::OUT);
        for left in (0..5).rev() {
            assert!(
                !pipes.is_drained() && pipes.reports_drained() && !has_room(&pipes),
                "{left} more"
            );
            reader.read_exact(&mut [0]).unwrap();
        }
        assert!(pipes.is_drained() && has_room(&pipes));
    }

    #[test]
    fn unread_bytes_are_discarded_although_a_new_reader_is_there() {
        let (fixture, mut pipes) = opened();
        let mut reader = fixture.reader();
        pipes.write(b"stale", 0).unwrap();
        assert!(pipes.discard_unread());
        assert!(!pipes.discard_unread());
        pipes.write(b"new", 0).unwrap();
        let mut room = [0; 10];
        assert_eq!(reader.read(&mut room).unwrap(), 3);
        assert_eq!(&room[..3], b"new");

        let mut writer = fixture.writer();
        writer.write_all(b"old request").unwrap();
        pipes.reset();
        writer.write_all(b"new request").unwrap();
        let mut room = [0; 100];
        assert_eq!(pipes.read(&mut room).unwrap(), ReadOutcome::Bytes(11));
        assert_eq!(&room[..11], b"new request");
    }
}
