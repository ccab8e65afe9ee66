//! Commanders that follow events: a copy of the state that only events change, compared with what a
//! fresh read says.
//!
//! Thread: the one of the test.

use ankaios_model::field_path::WILDCARD;
use ankaios_model::messages::{
    AlteredFields, FromServer, ReadState, Request, RequestContent, ResponseContent,
};
use ankaios_model::node::{Entries, Node};
use ankaios_wire::outbox::OutboxReader;
use ankaios_wire::peer::PeerId;
use std::collections::BTreeMap;
use std::time::Instant;

/// The masks of subscriptions.
const MASKS: [&[&str]; 7] = [
    &[],
    &["workloadStates"],
    &["desiredState"],
    &["effectiveState.workloads", "agents"],
    &["desiredState.workloads.w1", "workloadStates.A"],
    &["workloadStates.*.w1", "desiredState.workloads.*.agent"],
    &[
        "effectiveState.workloads.*.dependencies",
        "workloadStates.B.*",
    ],
];

/// One subscriber. It reads its stream only now and then.
pub(crate) struct Subscriber {
    pub reader: OutboxReader,
    pub reads_at: Instant,
    pub peer: PeerId,
    followed: Followed,
    quiet: u32,
}

impl Subscriber {
    /// A subscriber with one of [`MASKS`].
    pub(crate) fn new(reader: OutboxReader, peer: PeerId, kind: usize, reads_at: Instant) -> Self {
        let masks = MASKS[kind % MASKS.len()].iter();
        let masks = masks.map(|mask| (*mask).to_owned()).collect();
        Self {
            reader,
            reads_at,
            peer,
            followed: Followed::new(masks),
            quiet: 0,
        }
    }

    pub(crate) fn request(&self) -> Request {
        let read = ReadState {
            masks: self.followed.masks.clone(),
            subscribe: true,
        };
        Request {
            id: "events".to_owned(),
            content: RequestContent::CompleteState(read),
        }
    }

    /// Applies all events so far. Returns a difference from `fresh`, a read with its masks.
    pub(crate) fn follow(&mut self, fresh: impl FnOnce(&[String]) -> Node) -> Option<String> {
        let mut news = false;
        while let Some(message) = self.reader.try_next() {
            news = true;
            let FromServer::Response(response) = message else {
                return Some(format!("a commander was sent {message:?}"));
            };
            if let Some(wrong) = self.followed.take(response.content) {
                return Some(wrong);
            }
        }
        if !news && !self.count_quiet() {
            return None;
        }
        self.followed.differs(&fresh(&self.followed.masks))
    }

    /// Counts a read without events. Returns true for each fourth one: its copy is compared anyway,
    /// since an event may be missing.
    fn count_quiet(&mut self) -> bool {
        self.quiet += 1;
        self.quiet.is_multiple_of(4)
    }
}

/// The copy of a client that has read the state once and applies each event.
pub(crate) struct Followed {
    masks: Vec<String>,
    copy: Option<Node>,
}

impl Followed {
    /// Without a copy yet.
    pub(crate) fn new(masks: Vec<String>) -> Self {
        Self { masks, copy: None }
    }

    pub(crate) fn masks(&self) -> &[String] {
        &self.masks
    }

    /// Applies the first response or an event. Returns the violation in it.
    pub(crate) fn take(&mut self, content: ResponseContent) -> Option<String> {
        let ResponseContent::CompleteState { state, altered } = content else {
            return Some(format!("a subscriber was sent {content:?}"));
        };
        // First the state, then events.
        match (&mut self.copy, &altered) {
            (copy @ None, None) => {
                *copy = Some(state);
                None
            }
            (Some(copy), Some(altered)) => apply(copy, &state, altered).err(),
            _ => Some(format!(
                "a subscriber was sent {state:?} with the event {altered:?}"
            )),
        }
    }

    /// Returns a difference from `fresh`, a read with the same masks.
    pub(crate) fn differs(&self, fresh: &Node) -> Option<String> {
        let copy = self.leaves(self.copy.as_ref()?);
        let fresh = self.leaves(fresh);
        for path in fresh.keys().chain(copy.keys()) {
            let followed = copy.get(path);
            let read = fresh.get(path);
            if followed != read {
                let masks = &self.masks;
                return Some(format!(
                    "a follower of {masks:?} has '{path}' as {followed:?}, a read returns {read:?}"
                ));
            }
        }
        None
    }

    /// The values that the masks select. A read has more than these, and an empty list or map means
    /// the same as none.
    fn leaves(&self, tree: &Node) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(tree, String::new(), &mut found);
        found.retain(|path, _| {
            self.masks.is_empty() || self.masks.iter().any(|mask| selects(mask, path))
        });
        found
    }
}

/// Returns whether a mask selects the leaf at `path`. No key here has a dot in it.
fn selects(mask: &str, path: &str) -> bool {
    let mut parts = path.split('.');
    for wanted in mask.split('.') {
        let Some(part) = parts.next() else {
            return false;
        };
        if wanted != WILDCARD && wanted != part {
            return false;
        }
    }
    true
}

/// Adds the leaves of `node`, which is at `path`.
fn collect(node: &Node, path: String, found: &mut BTreeMap<String, String>) {
    match node {
        Node::Map(entries) => {
            for (key, child) in entries {
                let below = if path.is_empty() {
                    key.to_owned()
                } else {
                    format!("{path}.{key}")
                };
                collect(child, below, found);
            }
        }
        Node::List(items) if items.is_empty() => {}
        other => _ = found.insert(path, format!("{other:?}")),
    }
}

/// Applies an event as a client does: sets added and updated fields, removes removed ones.
fn apply(copy: &mut Node, state: &Node, altered: &AlteredFields) -> Result<(), String> {
    for path in altered.added.iter().chain(&altered.updated) {
        let parts: Vec<&str> = path.split('.').collect();
        let Some(value) = state.at(&parts) else {
            return Err(format!("an event names '{path}' and does not hold it"));
        };
        let (last, parents) = parts.split_last().ok_or("an event with an empty path")?;
        let mut place = copy.as_map_mut().ok_or("a state is no map")?;
        for key in parents {
            let Some(next) = place.child((*key).to_owned()).as_map_mut() else {
                return Err(format!("an event about '{path}', which has no place"));
            };
            place = next;
        }
        place.insert((*last).to_owned(), value.clone());
    }
    for path in &altered.removed {
        let parts: Vec<&str> = path.split('.').collect();
        if let Some((last, parents)) = parts.split_last()
            && let Some(entries) = map_at(copy, parents)
        {
            entries.remove(*last);
        }
    }
    Ok(())
}

/// The map at this path; `None` if another removal of the same event has removed it already.
fn map_at<'n>(node: &'n mut Node, path: &[&str]) -> Option<&'n mut Entries> {
    let mut map = node.as_map_mut()?;
    for key in path {
        map = map.get_mut(*key)?.as_map_mut()?;
    }
    Some(map)
}
