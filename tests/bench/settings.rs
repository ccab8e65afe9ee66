//! What the environment says about how much is measured. scripts/bench.sh has checked it.
//!
//! Thread: `main` of the bench.

use std::path::{Path, PathBuf};

use crate::support::from_environment;

/// How often a part is repeated: `BENCH_ROUNDS`.
pub fn rounds() -> usize {
    let rounds = from_environment("BENCH_ROUNDS").unwrap_or(5);
    usize::try_from(rounds).expect("at most 1,000")
}

/// Seconds that something is watched: `BENCH_SECONDS`.
pub fn seconds() -> u64 {
    from_environment("BENCH_SECONDS").unwrap_or(60)
}

/// Whether the measured programs are not ours, and so have no levels and no guarded updates:
/// `BENCH_FOREIGN`.
pub fn is_foreign() -> bool {
    std::env::var_os("BENCH_FOREIGN").is_some_and(|value| !value.is_empty())
}

/// The folder of the measured programs: `ANKAIOS_TEST_PROGRAMS`, else those that cargo has built.
pub fn programs() -> PathBuf {
    let folder = std::env::var_os("ANKAIOS_TEST_PROGRAMS").filter(|folder| !folder.is_empty());
    if let Some(folder) = folder {
        return folder.into();
    }
    let server = Path::new(env!("CARGO_BIN_EXE_ank-server"));
    server.parent().expect("it lies in a folder").to_owned()
}
