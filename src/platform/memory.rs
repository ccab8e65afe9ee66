//! Keeps the memory of a program with many threads small: few malloc arenas, and what a burst took is given back.
//!
//! Thread: [`bound_arenas`] on `main` before any other thread starts; [`give_back_after`] and [`settle_again`] on any;
//! `settle` is a thread that waits until nothing was done for a while, and gives back what only that needed.

use crate::limits::{CODE_PIECE, MALLOC_ARENAS, SETTLE_AFTER, SETTLE_FIRST, STACK_KEPT, STACK_SMALL, TRIM_FROM};
use crate::platform::threads;
use crossbeam_channel::{Sender, bounded};
use rustix::mm::Advice;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

/// Bounds the number of arenas of glibc's malloc, which by default may grow to eight per core and keep what each
/// thread once needed. Other C libraries have no such arenas.
pub fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: sets a number inside malloc; called before other threads exist.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, MALLOC_ARENAS);
    }
}

/// Gives free memory back to the system after something of about `bytes` was dropped, if that is worth the time.
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

/// The stack of the thread that made this. Pages that a call needed once stay otherwise, which adds up over the many
/// threads of an agent that mostly wait.
#[derive(Debug)]
pub struct OwnStack {
    lowest: usize,
    page: usize,
    /// Of use to its own thread only.
    _not_send: PhantomData<*const u8>,
}

impl OwnStack {
    /// `None` when the system does not say where it is.
    #[must_use]
    #[allow(unsafe_code)]
    pub fn of_this_thread() -> Option<Self> {
        let mut attributes = std::mem::MaybeUninit::uninit();
        let (mut lowest, mut size) = (std::ptr::null_mut(), 0);
        // SAFETY: the attributes are written by the first call before they are read and destroyed, all pointers are to
        // values that live here.
        let found = unsafe {
            libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) == 0 && {
                let found = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut lowest, &raw mut size) == 0;
                libc::pthread_attr_destroy(attributes.as_mut_ptr());
                found
            }
        };
        // SAFETY: takes no pointers.
        let page =
            usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok().filter(|page| page.is_power_of_two());
        page.filter(|_| found).map(|page| Self { lowest: lowest.addr(), page, _not_send: PhantomData })
    }

    /// Gives back the pages that are not in use now.
    #[inline(never)]
    #[allow(unsafe_code)]
    pub fn give_back_unused(&self) {
        let here = 0_u8;
        let end = (&raw const here).addr().saturating_sub(STACK_KEPT) & !(self.page - 1);
        let Some(length) = end.checked_sub(self.lowest).filter(|length| *length > 0) else { return };
        let start = std::ptr::without_provenance_mut(self.lowest);
        // SAFETY: the range is a part of the stack of this thread, further below all that is in use than the frames of
        // this call can reach.
        if let Err(error) = unsafe { rustix::mm::madvise(start, length, Advice::LinuxDontNeed) } {
            log::debug!("Pages of a stack stay: '{error}'");
        }
    }
}

/// Wakes the thread of [`settle`]; it has room for one message, more are not needed.
static WORK_DONE: OnceLock<Sender<()>> = OnceLock::new();

/// Starts a thread that returns the pages of code that only the start needed to the kernel, and does so again some time
/// after the start and after [`settle_again`]. A page that is needed again comes from the page cache. Without this an agent
/// that has just connected has 6.3 MiB instead of 2.4, more than promised.
///
/// # Errors
/// When the system gives no thread; nothing but a little memory is lost then.
pub fn settle() -> io::Result<()> {
    let (work_done, woken) = bounded(1);
    threads::spawn("settle", STACK_SMALL, move || {
        // What follows the start may be the largest burst of all, and should not add to what only the start needed. Whoever
        // waits for the start does not wait for this as well.
        let _ = woken.recv_timeout(SETTLE_FIRST);
        let pages = clean_pages(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default());
        pages.iter().for_each(map_in_pieces);
        give_back_clean_pages(&pages);
        loop {
            // Work comes in bursts: wait for the end of one.
            while woken.recv_timeout(SETTLE_AFTER).is_ok() {}
            give_back_clean_pages(&pages);
            if woken.recv().is_err() {
                return;
            }
        }
    })?;
    let _ = WORK_DONE.set(work_done); // Set once: a program starts once.
    Ok(())
}

/// Code was used that is idle otherwise, such as for a call of an engine. Never waits.
pub fn settle_again() {
    if let Some(work_done) = WORK_DONE.get() {
        let _ = work_done.try_send(()); // Full: it is woken anyway.
    }
}

fn give_back_clean_pages(pages: &[Range<usize>]) {
    pages.iter().for_each(|range| advise(range, Advice::LinuxDontNeed));
    give_back_after(TRIM_FROM);
}

/// Splits a mapping into mappings of [`CODE_PIECE`] bytes. For a page that is needed the kernel maps its neighbours too,
/// as far as the mapping goes: with pieces twice as large an idle agent has 2.5 MiB instead of 2.0. Mappings stay apart when
/// they differ, and these differ in whether a core dump has them, which has no code anyway.
fn map_in_pieces(range: &Range<usize>) {
    for piece in every_other_piece(range) {
        advise(&piece, Advice::LinuxDontDump);
    }
}

/// Never the first one: core dumps have it, since it identifies the file.
fn every_other_piece(range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    let starts = range.clone().step_by(CODE_PIECE).skip(1).step_by(2);
    starts.map(move |start| start..end.min(start + CODE_PIECE))
}

fn advise(range: &Range<usize>, advice: Advice) {
    #[allow(unsafe_code)]
    // SAFETY: the range is a mapping of a file that is never written, so its content stays the same whatever is advised
    // here: the next access reads it from the file again.
    let result = unsafe { rustix::mm::madvise(std::ptr::without_provenance_mut(range.start), range.len(), advice) };
    if let Err(error) = result {
        log::debug!("Pages that rest stay: '{error}'");
    }
}

/// The mappings that hold nothing but unchanged content of a file, of the program and its libraries: code and constants.
/// What the loader has changed counts as anonymous memory.
fn clean_pages(smaps: &str) -> Vec<Range<usize>> {
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let is_file = rest.splitn(5, ' ').last()?.trim_start().starts_with('/');
        let is_fixed = matches!(rest.get(..4)?, "r--p" | "r-xp");
        Some((address(start)?..address(end)?, is_file && is_fixed))
    };
    let mut pages = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        if let Some((range, is_candidate)) = mapping(line) {
            current = Some(range).filter(|_| is_candidate);
        } else if let Some(anonymous) = line.strip_prefix("Anonymous:") {
            pages.extend(current.take().filter(|_| anonymous.trim() == "0 kB"));
        }
    }
    pages
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
                let range = line.split(' ').next().and_then(|range| range.split_once('-'));
                let range = range.map(|(start, end)| [start, end].map(|text| usize::from_str_radix(text, 16)));
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
        std::thread::Builder::new().stack_size(1024 * 1024).spawn(body).unwrap().join().unwrap();
    }

    #[test]
    fn only_mappings_of_files_that_nobody_has_changed_are_given_back() {
        let mapping = |range: &str, permissions: &str, path: &str, anonymous: u32| {
            format!(
                "{range} {permissions} 00000000 fe:00 1234567                    {path}\nRss: 8 kB\n\
                 Anonymous:             {anonymous} kB\nVmFlags: rd mr\n"
            )
        };
        let smaps = [
            mapping("1000-2000", "r--p", "/usr/bin/ank agent", 0),
            mapping("2000-5000", "r-xp", "/usr/bin/ank agent", 0),
            mapping("5000-6000", "r--p", "/usr/bin/ank agent", 4),
            mapping("6000-7000", "rw-p", "/usr/bin/ank agent", 0),
            mapping("8000-9000", "r-xp", "/lib/libc.so.6 (deleted)", 0),
            mapping("9000-a000", "r--s", "/dev/shared", 0),
            mapping("a000-b000", "r--p", "", 0),
            mapping("b000-c000", "r-xp", "[vdso]", 0),
            mapping("c000-d000", "rwxp", "/p", 0),
        ]
        .concat();
        assert_eq!(clean_pages(&smaps), [0x1000..0x2000, 0x2000..0x5000, 0x8000..0x9000]);
        assert!(clean_pages("1000-2000 r-xp 00000000 fe:00 1 /p\nno number follows\n").is_empty());
        assert!(clean_pages("garbage\n\n").is_empty());
    }

    #[test]
    fn code_is_given_back_and_runs_again() {
        let pages = clean_pages(&std::fs::read_to_string("/proc/self/smaps").unwrap());
        let here = (code_is_given_back_and_runs_again as fn() as *const ()).addr();
        assert!(pages.iter().any(|range| range.contains(&here)), "the code of this program");
        pages.iter().for_each(map_in_pieces);
        give_back_clean_pages(&pages);
        assert_eq!(deep(1), 200_000);
    }

    #[test]
    fn pieces_alternate_and_end_with_their_mapping() {
        let piece = CODE_PIECE;
        let rows = [
            (0..0, vec![]),
            (0..piece, vec![]),
            (piece..2 * piece + 1, vec![(2 * piece, 2 * piece + 1)]),
            (0..5 * piece, vec![(piece, 2 * piece), (3 * piece, 4 * piece)]),
        ];
        for (range, expected) in rows {
            let pieces: Vec<_> = every_other_piece(&range).map(|piece| (piece.start, piece.end)).collect();
            assert_eq!(pieces, expected, "{range:?}");
        }
    }

    fn resident_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = status.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn a_burst_of_small_pieces_is_given_back() {
        // Small pieces come from the heap, where a hole below a living piece is kept unless asked for.
        let mut pieces: Vec<Box<[u8; 1024]>> = (0..64 * 1024).map(|_| Box::new([1; 1024])).collect();
        let last = pieces.pop();
        let full = resident_kib();
        drop(pieces);
        give_back_after(64 * 1024 * 1024);
        let after = resident_kib();
        drop(last);
        assert!(after + 32 * 1024 < full, "{full} KiB before, {after} KiB after");
    }
}
