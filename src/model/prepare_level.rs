//! How much of the start of a workload is done before it.
//!
//! Thread: none, plain values.

use super::names::named_enum;

named_enum! {
    /// How much of a start is done while the workload still waits. Each level includes those before
    /// it.
    #[derive(Default)]
    PrepareLevel {
        /// Nothing.
        #[default]
        None = "NONE",
        /// The image is there.
        Image = "IMAGE",
        /// The container is created.
        Create = "CREATE",
        /// The container is initialised: its first process waits to be started.
        Init = "INIT",
    }
}

impl PrepareLevel {
    /// The number on the wire.
    pub fn number(self) -> u64 {
        self as u64
    }

    /// Finds the level with this number; `None` for one of a newer program.
    pub fn from_number(number: u64) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).copied()
    }
}
