//! How much of the start of a workload is done before it.
//!
//! Thread: none, plain values.

use super::names::named_enum;

/// Begins the additional info of a workload that waits and is prepared; the level follows.
pub const PREPARED_PREFIX: &str = "prepared: ";
/// Begins that of one that could not be prepared; the reason follows.
pub const PREPARE_PREFIX: &str = "prepare: ";

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
