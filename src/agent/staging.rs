//! What the server lets this agent prepare for updates while the old instances run, and what was reported of it.
//!
//! Thread: `scheduler`; a plain value, part of [`super::runtime_manager::RuntimeManager`].
//! The list of the server is complete each time. A lost connection changes nothing: each session has a list, which is
//! empty when none has come before the hello.

use crate::model::messages::{AddedWorkload, PreparedInstance};
use crate::model::names::Name;
use crate::model::prepare_level::PrepareLevel;
use std::collections::{BTreeMap, BTreeSet};

/// All that is being staged.
#[derive(Debug, Default)]
pub struct Staging {
    staged: BTreeMap<Name, Staged>,
    /// A list has come since the session began.
    has_list: bool,
    /// What is wanted in this session is not known yet as far as containers that exist decide about it.
    awaits_hello: bool,
}

#[derive(Debug)]
struct Staged {
    added: AddedWorkload,
    /// How far it is to be prepared.
    stage: PrepareLevel,
    /// What the server was sent of it in this session.
    reported: Option<PreparedInstance>,
}

/// How far the block `update` wants the instance to be prepared.
pub fn stage_of(added: &AddedWorkload) -> PrepareLevel {
    let config = added.workload.config();
    let block = config.usable_lifecycle().and_then(|lifecycle| lifecycle.update.as_ref());
    block.map_or(PrepareLevel::None, |block| block.stage)
}

impl Staging {
    /// These are all instances to be staged from now on. Returns the workloads for which that changes something.
    pub fn replace(&mut self, list: Vec<AddedWorkload>) -> BTreeSet<Name> {
        self.has_list = true;
        let mut before = std::mem::take(&mut self.staged);
        let mut touched = BTreeSet::new();
        for added in list {
            let name = added.instance.workload.clone();
            let same = before.remove(&name).filter(|staged| staged.added == added);
            if same.is_none() {
                touched.insert(name.clone());
            }
            let new = || Staged { stage: stage_of(&added), added: added.clone(), reported: None };
            self.staged.insert(name, same.unwrap_or_else(new));
        }
        touched.extend(before.into_keys());
        touched
    }

    /// The server sends a hello, by which it forgets what was reported. Returns as [`Self::replace`].
    pub fn session_begins(&mut self) -> BTreeSet<Name> {
        let touched = if self.has_list { BTreeSet::new() } else { self.replace(Vec::new()) };
        (self.has_list, self.awaits_hello) = (false, true);
        self.staged.values_mut().for_each(|staged| staged.reported = None);
        touched
    }

    /// The hello was acted on.
    pub fn hello_is_done(&mut self) {
        self.awaits_hello = false;
    }

    /// Whether nothing may be prepared yet, because a container of the same instance may turn out to go on.
    pub fn awaits_hello(&self) -> bool {
        self.awaits_hello
    }

    /// The connection is lost: what comes from now on belongs to another session.
    pub fn session_ended(&mut self) {
        self.has_list = false;
    }

    /// How many there are.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.staged.len()
    }

    /// What is being staged of a workload, and how far it is to be prepared.
    pub fn get(&self, name: &Name) -> Option<(&AddedWorkload, PrepareLevel)> {
        self.staged.get(name).map(|staged| (&staged.added, staged.stage))
    }

    /// All that is being staged.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        self.staged.keys()
    }

    /// What has changed since the last call. `progress` returns how far an instance is.
    pub fn news(
        &mut self,
        progress: impl Fn(&AddedWorkload, PrepareLevel) -> PreparedInstance,
    ) -> Vec<PreparedInstance> {
        let mut news = Vec::new();
        for Staged { added, stage, reported } in self.staged.values_mut() {
            let now = progress(added, *stage);
            if reported.as_ref() != Some(&now) {
                *reported = Some(now.clone());
                news.push(now);
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::workload::Workload;
    use std::sync::Arc;

    fn added(name: &str, image: &str) -> AddedWorkload {
        let config = format!("image: {image}\nlifecycle: {{ update: {{ stage: IMAGE }} }}");
        let workload = Workload::new("agent_A", "podman", &config);
        AddedWorkload { instance: workload.instance_name(name), workload: Arc::new(workload) }
    }

    fn progress(added: &AddedWorkload, stage: PrepareLevel) -> PreparedInstance {
        let instance = added.instance.clone();
        PreparedInstance { instance, level: Some(stage), reason: None, tries: 0, is_final: false, unmet: None }
    }

    fn names(touched: BTreeSet<Name>) -> Vec<String> {
        touched.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_is_complete_and_what_stays_in_it_is_left_alone() {
        let mut staging = Staging::default();
        assert_eq!(names(staging.replace(vec![added("a", "1"), added("b", "1")])), ["a", "b"]);
        assert_eq!(names(staging.replace(vec![added("a", "1"), added("b", "2"), added("c", "1")])), ["b", "c"]);
        assert_eq!(names(staging.replace(vec![added("a", "1")])), ["b", "c"]);
        assert_eq!(staging.get(&"a".into()), Some((&added("a", "1"), PrepareLevel::Image)));
        assert_eq!(staging.get(&"b".into()), None);
    }

    #[test]
    fn each_session_has_a_list_and_gets_each_report_once() {
        let mut staging = Staging::default();
        let _ = staging.replace(vec![added("a", "1")]);
        assert_eq!(names(staging.session_begins()), [""; 0], "its list came before the hello");
        assert_eq!(staging.news(progress).len(), 1);
        assert_eq!(staging.news(progress), []);
        staging.session_ended();
        assert!(staging.get(&"a".into()).is_some(), "a lost connection changes nothing");
        let _ = staging.replace(vec![added("a", "1")]);
        let _ = staging.session_begins();
        assert_eq!(staging.news(progress).len(), 1);
        staging.session_ended();
        assert_eq!(names(staging.session_begins()), ["a"], "no list came before the hello");
        assert_eq!(staging.news(progress), []);
    }
}
