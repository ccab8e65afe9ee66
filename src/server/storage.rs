//! Whether and where the state is stored, and what users should know of that.
//!
//! Thread: `server`; a plain value owned by [`super::ServerLoop`]. [`super::state_store`] writes.

use super::state_store::{StateStore, Stored};

/// The stored state, as the server sees it.
#[derive(Default)]
pub(crate) struct Storage {
    /// There is none without a state folder, and during the start.
    store: Option<StateStore>,
    /// What happened at the start that users should know of, until something else is stored.
    start_warning: Option<String>,
}

impl Storage {
    /// Sets the store that gets each accepted desired state.
    pub(crate) fn set_store(&mut self, store: StateStore) {
        self.store = Some(store);
    }

    /// Sets what users should know of the start.
    pub(crate) fn set_start_warning(&mut self, text: String) {
        self.start_warning = Some(text);
    }

    /// Whether states are stored.
    pub(crate) fn is_on(&self) -> bool {
        self.store.is_some()
    }

    /// Takes over what the writer has done meanwhile.
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

    /// Gives a state to the writer, and waits for it as long as a sound disk may take, and as the
    /// server may.
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

    /// What users should know of the stored state; `None` while all is well.
    pub(crate) fn warning(&self) -> Option<String> {
        let unstored = self.store.as_ref().and_then(StateStore::warning);
        match (&self.start_warning, unstored) {
            (Some(start), Some(unstored)) => Some(format!("{start}; also, {unstored}")),
            (Some(start), None) => Some(start.clone()),
            (None, unstored) => unstored,
        }
    }
}
