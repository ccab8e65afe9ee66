//! The store of the state, if there is one, and the warnings about it.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`]. [`super::state_store`] writes.

use super::state_store::{StateStore, Stored};

/// The store of the state, and the warnings about it.
#[derive(Default)]
pub(crate) struct Storage {
    /// `None` without a state folder, and during the start.
    store: Option<StateStore>,
    /// The warning of the start, until another state is stored.
    start_warning: Option<String>,
}

impl Storage {
    /// Sets the store that gets each accepted desired state.
    pub(crate) fn set_store(&mut self, store: StateStore) {
        self.store = Some(store);
    }

    /// Sets the warning of the start.
    pub(crate) fn set_start_warning(&mut self, text: String) {
        self.start_warning = Some(text);
    }

    /// Returns whether the newest state is stored, or is about to be; `None` without a state
    /// folder.
    pub(crate) fn has_newest(&self) -> Option<bool> {
        let store = self.store.as_ref()?;
        Some(store.warning().is_none())
    }

    /// Returns whether states are stored.
    pub(crate) fn is_on(&self) -> bool {
        self.store.is_some()
    }

    /// Receives the newest report of the writer. The warning of the start ends once another state
    /// was stored.
    pub(crate) fn take_report(&mut self) {
        let Some(store) = &mut self.store else { return };
        store.take_report();
        if store.has_stored() {
            self.start_warning = None;
        }
    }

    /// Gives a state to the writer.
    pub(crate) fn store(&mut self, state: Stored) {
        if let Some(store) = &mut self.store {
            store.store(state);
        }
    }

    /// Gives a state to the writer, and waits for it within bounds.
    pub(crate) fn store_and_wait(&mut self, state: Stored) {
        if let Some(store) = &mut self.store {
            store.store_and_wait(state);
        }
    }

    /// Gives lines with changes of states to the writer.
    pub(crate) fn append_changes(&self, lines: String) {
        if let Some(store) = &self.store
            && !lines.is_empty()
        {
            store.append_changes(lines);
        }
    }

    /// The warning for users about the stored state; `None` while there is no problem.
    pub(crate) fn warning(&self) -> Option<String> {
        let unstored = self.store.as_ref().and_then(StateStore::warning);
        match (&self.start_warning, unstored) {
            (Some(start), Some(unstored)) => Some(format!("{start}; also, {unstored}")),
            (Some(start), None) => Some(start.clone()),
            (None, unstored) => unstored,
        }
    }
}
