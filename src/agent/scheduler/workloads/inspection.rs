//! What the scheduler keeps, as the simulation inspects it. Only in development builds.
//!
//! Thread: `scheduler`, or that of a test.

use super::{Waits, Workloads};
use ankaios_platform::clock::Clock;

impl<C: Clock> Workloads<C> {
    /// How many records there are, of what waits, and of workloads with conditions.
    pub(crate) fn sizes(&self) -> [usize; 3] {
        let waiting = self
            .records
            .values()
            .filter(|record| record.waits != Waits::No)
            .count();
        let gates = self
            .records
            .values()
            .filter(|record| record.conditions.is_some())
            .count();
        [self.records.len(), waiting, gates]
    }
}
