//! Keeps the memory of a program with many threads small: few malloc arenas, and what a burst took is given back.
//!
//! Thread: [`bound_arenas`] on `main` before any other thread starts; [`give_back_after`] on any.

use crate::limits::{MALLOC_ARENAS, TRIM_FROM};

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

#[cfg(test)]
mod tests {
    use super::*;

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
