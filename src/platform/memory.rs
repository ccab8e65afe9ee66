//! Keeps the memory of a program with many threads small: one malloc arena, and memory of a burst
//! is returned to the system.
//!
//! Thread: [`at_start`] on `main` before any other thread starts; [`settle_until`] on `main`, which
//! waits for the end of the program anyway; [`give_back_after`] and [`settle_again`] on any.

use crate::limits::{SETTLE_AFTER, TRIM_FROM};
use crate::sync::EventFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// Malloc's arenas. Each one keeps unused memory, and all but the first grow by a page at a time, a
/// call of the kernel each. Threads that allocate at the same time rarely wait for each other, since
/// each keeps some free memory of its own.
#[cfg(target_env = "gnu")]
const ARENAS: c_int = 1;

/// Unused part of a stack that is kept, in bytes: room for the call that returns the rest.
const STACK_RESERVE: usize = if cfg!(debug_assertions) { 8 } else { 1 } * 1024;

/// Delay of the first return of code after the start. The start is often part of the largest burst,
/// and callers that wait for it must not wait for this as well.
const FIRST_DELAY: Duration = Duration::from_millis(50);

/// Size of the pieces in which code is mapped, in bytes. With a needed page the kernel maps up to
/// 64 KiB around it, but never more than its piece. A piece costs the kernel some 200 bytes;
/// program and libraries have about 9 MB.
const CODE_PIECE: usize = 8 * 1024;

/// Smallest allocation with a mapping of its own, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: c_int = 1024 * 1024;

/// Sets up the allocator, and records the mappings of code. Must be called before any other thread
/// starts.
///
/// - Bounds the number of arenas of glibc's malloc. Its default is eight per core. See [`ARENAS`].
/// - Gives a large allocation a mapping of its own, which is returned with it. By default malloc
///   raises the size of a large one with each large message, up to 32 MiB.
/// - Records the code that is loaded now, since it stays until the end of the program. A library
///   that is loaded later may be unloaded, and other memory mapped in its place.
pub fn at_start() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: sets numbers inside malloc; called before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 * LARGE);
    }
    let _ = CODE.set(code_mappings()); // Set once: a program starts once.
}

/// Sets up the allocator for a program that ends soon. Must be called before any other thread
/// starts.
///
/// All threads use one arena, since they work one after the other. The heap grows in few steps and
/// never shrinks: reading the command line allocates and frees half a megabyte.
pub fn at_start_of_command() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: sets numbers inside malloc; called before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        libc::mallopt(libc::M_TOP_PAD, LARGE);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 8 * LARGE);
    }
}

/// Returns free memory to the system after about `bytes` were dropped, if that is worth the time.
pub fn give_back_after(bytes: usize) {
    if bytes < TRIM_FROM {
        return;
    }
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: takes no pointers and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// The stack of the thread that created this value. Pages that a call has used stay in memory,
/// which adds up over the many idle threads of an agent.
#[derive(Debug)]
pub struct OwnStack {
    lowest: usize,
    page: usize,
    /// Only its own thread can use it.
    _not_send: PhantomData<*const u8>,
}

impl OwnStack {
    /// The stack of the calling thread; `None` if the system does not tell its place.
    #[allow(unsafe_code)]
    pub fn of_this_thread() -> Option<Self> {
        let mut attributes = std::mem::MaybeUninit::uninit();
        // SAFETY: the pointer is to a value that lives here.
        let error =
            unsafe { libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) };
        if error != 0 {
            return None;
        }
        let mut lowest = std::ptr::null_mut();
        let mut size = 0;
        // SAFETY: the call above has written the attributes. They are read before they are
        // destroyed, and all pointers are to values that live here.
        let error = unsafe {
            let error =
                libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            error
        };
        if error != 0 {
            return None;
        }
        Some(Self {
            lowest: lowest.addr(),
            page: page_size(),
            _not_send: PhantomData,
        })
    }

    /// Returns the pages that are not in use now to the system.
    #[inline(never)]
    #[allow(unsafe_code)]
    pub fn give_back_unused(&self) {
        let here = 0_u8;
        let end = (&raw const here).addr().saturating_sub(STACK_RESERVE) & !(self.page - 1);
        let length = end.saturating_sub(self.lowest);
        if length == 0 {
            return;
        }
        let start = std::ptr::without_provenance_mut(self.lowest);
        // SAFETY: the range is a part of the stack of this thread. It ends so far below the used
        // part that the frames of this call do not reach it.
        match unsafe { rustix::mm::madvise(start, length, Advice::LinuxDontNeed) } {
            // The stack of `main` has pages only as far as it was used.
            Ok(()) | Err(Errno::NOMEM) => {}
            Err(error) => log::debug!("Unused pages of a stack stay in memory: '{error}'"),
        }
    }
}

/// Returns the unused pages of the stack of this thread to the system.
pub fn give_back_stack() {
    if let Some(stack) = OwnStack::of_this_thread() {
        stack.give_back_unused();
    }
}

/// Wakes the thread in [`settle_until`].
static WORK_DONE: OnceLock<EventFd> = OnceLock::new();

/// Mappings with the code and constants of the program and of the libraries that it was started
/// with.
static CODE: OnceLock<Vec<Range<usize>>> = OnceLock::new();

#[allow(unsafe_code)]
fn code_mappings() -> Vec<Range<usize>> {
    let mut mappings = Vec::new();
    // SAFETY: `add_code` gets the pointer to the vector back, which lives here and has no other
    // user meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(add_code), (&raw mut mappings).cast()) };
    mappings
}

/// Adds the segments of one loaded file that are never written. Parts that the loader changes
/// belong to writable segments, even if they are read-only later. The architectures of these
/// programs have no relocations in code.
#[allow(unsafe_code)]
// SAFETY: for `dl_iterate_phdr` only, see `code_mappings`.
unsafe extern "C" fn add_code(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    mappings: *mut c_void,
) -> c_int {
    // SAFETY: the loader calls this with a description that it owns.
    let info = unsafe { &*info };
    // SAFETY: the loader passes on the pointer of `code_mappings`.
    let mappings = unsafe { &mut *mappings.cast::<Vec<Range<usize>>>() };
    let mut name = c"";
    if !info.dlpi_name.is_null() {
        // SAFETY: the loader's names end with a zero.
        name = unsafe { CStr::from_ptr(info.dlpi_name) };
    }
    // The program itself has no name. The code that the kernel adds has a name without a path: it
    // is left out. 0 lets the loader continue with the next file.
    if !matches!(name.to_bytes(), [] | [b'/', ..]) {
        return 0;
    }
    // SAFETY: at this address, this number of headers follow each other.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let page = page_size();
    for header in headers {
        let is_writable = header.p_flags & libc::PF_W != 0;
        if header.p_type != libc::PT_LOAD || is_writable {
            continue;
        }
        let Ok(address) = usize::try_from(header.p_vaddr) else {
            continue;
        };
        let Ok(bytes) = usize::try_from(header.p_filesz) else {
            continue;
        };
        let Ok(base) = usize::try_from(info.dlpi_addr) else {
            continue;
        };
        let start = base.wrapping_add(address);
        mappings.push(start & !(page - 1)..(start + bytes).next_multiple_of(page));
    }
    0
}

/// The largest pages of the architectures of these programs.
const PAGE_MAX: usize = 64 * 1024;

/// The size of a page, a power of two.
fn page_size() -> usize {
    #[allow(unsafe_code)]
    // SAFETY: takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    match usize::try_from(page) {
        Ok(page) if page.is_power_of_two() => page,
        _ => PAGE_MAX,
    }
}

/// Waits until `end` is readable. Meanwhile it returns pages of code to the kernel, since most of
/// the code is needed rarely: soon after the start, once more when the start is over, and after
/// each burst of work that [`settle_again`] reports. A page that is needed again comes from the page
/// cache. This saves 4 of 6.3 MiB of an agent that has just connected.
///
/// # Errors
/// There is no descriptor for reports of work.
pub fn settle_until(end: impl AsFd) -> io::Result<()> {
    let code: &[Range<usize>] = CODE.get().map_or(&[], Vec::as_slice);
    let work_done = EventFd::new()?;
    let _ = WORK_DONE.set(work_done.clone()); // Set once: a program starts once.
    let next = |limit| wait(end.as_fd(), &work_done, limit);
    // First, soon after the start. Work that is reported meanwhile only shortens the wait.
    if next(Some(FIRST_DELAY))? == Wake::End {
        return Ok(());
    }
    for range in code {
        map_in_pieces(range); // Then a needed page brings back less code around it.
    }
    give_back_code(code);
    // Then, after the rest of the start and after each later burst of work.
    let mut is_burst = true;
    loop {
        // A burst is over when no work was reported for some time.
        let limit = if is_burst { Some(SETTLE_AFTER) } else { None };
        match next(limit)? {
            Wake::End => return Ok(()),
            Wake::Work => is_burst = true,
            Wake::Quiet => {
                give_back_code(code);
                is_burst = false;
            }
        }
    }
}

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// The program must end.
    End,
    /// Work was reported.
    Work,
    /// Neither, until the limit.
    Quiet,
}

/// Waits for the end of the program or a report of work, at most for `limit`.
fn wait(end: BorrowedFd<'_>, work_done: &EventFd, limit: Option<Duration>) -> io::Result<Wake> {
    let limit = limit.and_then(|time| Timespec::try_from(time).ok());
    let mut waits = [
        PollFd::from_borrowed_fd(end, PollFlags::IN),
        PollFd::new(work_done, PollFlags::IN),
    ];
    loop {
        match poll(&mut waits, limit.as_ref()) {
            Ok(_) => break,
            Err(Errno::INTR) => {} // A signal; the program ends if it has written to `end`.
            Err(error) => return Err(error.into()),
        }
    }
    if !waits[0].revents().is_empty() {
        return Ok(Wake::End);
    }
    if work_done.reset() {
        return Ok(Wake::Work);
    }
    Ok(Wake::Quiet)
}

/// Reports the use of code that is usually idle, such as that of a call of an engine. Never waits.
pub fn settle_again() {
    if let Some(work_done) = WORK_DONE.get() {
        work_done.set();
    }
}

/// Returns the pages of code, and free memory, to the system.
fn give_back_code(code: &[Range<usize>]) {
    for range in code {
        advise(range, Advice::LinuxDontNeed);
    }
    give_back_after(TRIM_FROM);
}

/// Splits a mapping into pieces of [`CODE_PIECE`] bytes. With pieces twice as large, an idle agent
/// would have 2.5 MiB instead of 2.0.
///
/// The kernel keeps neighbouring mappings apart if they differ. So every other piece is left out of
/// core dumps, which have no code anyway.
fn map_in_pieces(range: &Range<usize>) {
    for piece in every_other_piece(range) {
        advise(&piece, Advice::LinuxDontDump);
    }
}

/// The second piece of a mapping, the fourth, and so on. Core dumps need the first one: it
/// identifies the file.
fn every_other_piece(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    let piece = CODE_PIECE.max(page_size()); // A piece has whole pages.
    let starts = range.clone().step_by(piece).skip(1).step_by(2);
    starts.map(move |start| start..end.min(start + piece))
}

/// Advises the kernel about a range of code.
fn advise(range: &Range<usize>, advice: Advice) {
    #[allow(unsafe_code)]
    // SAFETY: the range is code or constants of a file that stays loaded. They are never written,
    // so each access reads the same content from the file, with any advice.
    let result = unsafe {
        rustix::mm::madvise(
            std::ptr::without_provenance_mut(range.start),
            range.len(),
            advice,
        )
    };
    if let Err(error) = result {
        log::debug!("Idle pages of code stay in memory: '{error}'");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses as much of the stack as this is long.
    #[inline(never)]
    fn deep(fill: u8) -> u64 {
        let filled = std::hint::black_box([fill; 200_000]);
        filled.iter().map(|byte| u64::from(*byte)).sum()
    }

    #[test]
    fn pages_of_a_stack_are_given_back_and_can_be_used_again() {
        let resident = || -> usize {
            let local = 0_u8;
            let here = (&raw const local).addr();
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let is_own = |line: &&str| {
                let range = line
                    .split(' ')
                    .next()
                    .and_then(|range| range.split_once('-'));
                let range = range
                    .map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16)));
                matches!(range, Some([Ok(start), Ok(end)]) if (start..end).contains(&here))
            };
            let mut own = maps.lines().skip_while(|line| !is_own(line));
            let line = own.find(|line| line.starts_with("Rss:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let body = move || {
            let stack = OwnStack::of_this_thread().unwrap();
            for fill in 0..3 {
                assert_eq!(deep(fill), u64::from(fill) * 200_000);
                assert!(resident() > 190);
                stack.give_back_unused();
                assert!(resident() < 100);
            }
        };
        std::thread::Builder::new()
            .stack_size(1024 * 1024)
            .spawn(body)
            .unwrap()
            .join()
            .unwrap();
    }

    #[test]
    fn returned_code_of_program_and_libraries_runs_again() {
        let code = code_mappings();
        let is_code = |address: usize| code.iter().any(|range| range.contains(&address));
        assert!(
            is_code((resident_kib as fn() -> usize as *const ()).addr()),
            "of this program"
        );
        assert!(is_code((libc::getpid as *const ()).addr()), "of a library");
        static CHANGED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
        assert!(!is_code((&raw const CHANGED).addr()), "data");
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        for range in &code {
            let begins = format!("{:x}-", range.start);
            let line = maps
                .lines()
                .find(|line| line.starts_with(&begins))
                .unwrap_or_else(|| panic!("{begins}\n{maps}"));
            assert!(line.contains(" r--p ") || line.contains(" r-xp "), "{line}");
            assert!(
                line.contains(&format!("-{:x} ", range.end)),
                "{range:x?}: {line}"
            );
        }
        code.iter().for_each(map_in_pieces);
        give_back_code(&code);
        assert_eq!(deep(1), 200_000);
    }

    #[test]
    fn wait_tells_work_quiet_and_the_end_apart() {
        let (end, work_done) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let next = |limit| wait(end.as_fd(), &work_done, limit).unwrap();
        let now = Some(Duration::ZERO);
        assert_eq!(next(now), Wake::Quiet);
        work_done.set();
        work_done.set();
        assert_eq!(next(None), Wake::Work);
        assert_eq!(next(now), Wake::Quiet, "it was reported before");
        work_done.set();
        end.set();
        assert_eq!(next(None), Wake::End, "the end comes first");
        assert_eq!(next(None), Wake::End);
    }

    #[test]
    fn pieces_alternate_and_end_with_their_mapping() {
        let piece = CODE_PIECE;
        let rows = [
            (0..0, vec![]),
            (0..piece, vec![]),
            (piece..2 * piece + 1, vec![(2 * piece, 2 * piece + 1)]),
            (
                0..5 * piece,
                vec![(piece, 2 * piece), (3 * piece, 4 * piece)],
            ),
        ];
        for (range, expected) in rows {
            let pieces: Vec<_> = every_other_piece(&range)
                .map(|piece| (piece.start, piece.end))
                .collect();
            assert_eq!(pieces, expected, "{range:?}");
        }
    }

    fn resident_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("Anonymous:"))
            .unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn a_burst_of_small_pieces_is_given_back() {
        // Small pieces come from the heap, where a hole below a living piece is kept unless asked
        // for.
        let mut pieces: Vec<Box<[u8; 1024]>> =
            (0..64 * 1024).map(|_| Box::new([1; 1024])).collect();
        let last = pieces.pop();
        let full = resident_kib();
        drop(pieces);
        give_back_after(64 * 1024 * 1024);
        let after = resident_kib();
        drop(last);
        assert!(
            after + 32 * 1024 < full,
            "{full} KiB before, {after} KiB after"
        );
    }
}
