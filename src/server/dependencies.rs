//! Dependencies between workloads: who uses what.
//!
//! Thread: `server`; plain values and functions.

use crate::model::workload::{AddCondition, Workload};
use std::collections::{BTreeMap, BTreeSet};

/// The names of workloads that `workload` needs running.
pub fn needed_running(workload: &Workload) -> impl Iterator<Item = &String> {
    workload.dependencies.iter().filter(|(_, condition)| **condition == AddCondition::Running).map(|(name, _)| name)
}

/// Who uses what, by the name of what is used. Kept up to date, so that the users of one name are found without a search
/// of all workloads.
#[derive(Debug)]
pub struct Users<T>(BTreeMap<String, BTreeSet<T>>);

impl<T> Default for Users<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord + Clone> Users<T> {
    /// `user` uses `names`.
    pub fn add<'n>(&mut self, user: &T, names: impl IntoIterator<Item = &'n String>) {
        for name in names {
            self.0.entry(name.clone()).or_default().insert(user.clone());
        }
    }

    /// `user` does not use `names` any more.
    pub fn remove<'n>(&mut self, user: &T, names: impl IntoIterator<Item = &'n String>) {
        for name in names {
            if let Some(users) = self.0.get_mut(name) {
                users.remove(user);
                if users.is_empty() {
                    self.0.remove(name);
                }
            }
        }
    }

    /// The users of `name`.
    pub fn of(&self, name: &str) -> impl Iterator<Item = &T> {
        self.0.get(name).into_iter().flatten()
    }

    /// Whether nothing is used.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
