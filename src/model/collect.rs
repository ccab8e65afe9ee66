//! Maps and sets that are made of iterators.
//!
//! Thread: none; used by every thread of the three programs.

/// Collects into a map or set, one entry after the other.
pub trait CollectEntries: Iterator + Sized {
    /// As [`Iterator::collect`], which sorts the entries of a `BTreeMap` or `BTreeSet` first: the
    /// code for that has 4.5 KB for each type of entries, a third of a megabyte in the server.
    fn collect_entries<C: Default + Extend<Self::Item>>(self) -> C {
        let mut all = C::default();
        all.extend(self);
        all
    }
}

impl<I: Iterator> CollectEntries for I {}
