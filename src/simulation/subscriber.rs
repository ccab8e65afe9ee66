//! Commanders that follow events: a copy of the state that only events change, compared with what a
//! fresh read says.
//!
//! Thread: the one of the test.

use ankaios_model::field_path::WILDCARD;
use ankaios_model::messages::{
    AlteredFields, FromServer, ReadState, Request, RequestContent, ResponseContent,
};
use ankaios_model::node::Node;
use ankaios_wire::outbox::OutboxReader;
use ankaios_wire::peer::PeerId;
use std::collections::BTreeMap;
use std::time::Instant;

/// What subscribers ask for.
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
    /// One that asks for one of several parts of the state.
    pub(crate) fn new(reader: OutboxReader, peer: PeerId, kind: usize, reads_at: Instant) -> Self {
        let masks = MASKS[kind % MASKS.len()]
            .iter()
            .map(|mask| (*mask).to_owned())
            .collect();
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

    /// Counts a time without events. Returns whether it compares, now and then: an event may be
    /// missing.
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
        match (content, &mut self.copy) {
            (
                ResponseContent::CompleteState {
                    state,
                    altered: None,
                },
                copy @ None,
            ) => *copy = Some(state),
            (
                ResponseContent::CompleteState {
                    state,
                    altered: Some(altered),
                },
                Some(copy),
            ) => {
                return take_over(copy, &state, &altered).err();
            }
            (other, _) => return Some(format!("a subscriber was sent {other:?}")),
        }
        None
    }

    /// Returns a difference from `fresh`, a read with the same masks.
    pub(crate) fn differs(&self, fresh: &Node) -> Option<String> {
        let (fresh, copy) = (self.leaves(fresh), self.leaves(self.copy.as_ref()?));
        let paths = fresh.keys().chain(copy.keys());
        let different = paths
            .into_iter()
            .find(|path| fresh.get(*path) != copy.get(*path));
        different.map(|path| {
            let (told, is) = (copy.get(path), fresh.get(path));
            format!(
                "a follower of {:?} knows '{path}' as {told:?}, a read says {is:?}",
                self.masks
            )
        })
    }

    /// The values of what the masks select; a read brings more along. An empty list or map means
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

/// Whether a leaf is below what a mask names; no key here has a dot in it.
fn selects(mask: &str, path: &str) -> bool {
    let mut parts = path.split('.');
    mask.split('.').all(|wanted| {
        parts
            .next()
            .is_some_and(|part| wanted == WILDCARD || wanted == part)
    })
}

fn collect(node: &Node, path: String, found: &mut BTreeMap<String, String>) {
    match node {
        Node::Map(entries) => {
            for (key, child) in entries {
                collect(
                    child,
                    if path.is_empty() {
                        key.to_owned()
                    } else {
                        format!("{path}.{key}")
                    },
                    found,
                );
            }
        }
        Node::List(items) if items.is_empty() => {}
        other => _ = found.insert(path, format!("{other:?}")),
    }
}

/// Applies an event as a client does: sets added and updated fields, removes removed ones.
fn take_over(copy: &mut Node, state: &Node, altered: &AlteredFields) -> Result<(), String> {
    for path in altered.added.iter().chain(&altered.updated) {
        let parts: Vec<&str> = path.split('.').collect();
        let value = state
            .at(&parts)
            .ok_or_else(|| format!("an event tells of '{path}' and does not hold it"))?;
        let (last, parents) = parts.split_last().ok_or("an event about nothing")?;
        let mut place = copy.as_map_mut().ok_or("a state is no map")?;
        for key in parents {
            let next = place.child((*key).to_owned());
            place = next
                .as_map_mut()
                .ok_or_else(|| format!("an event about '{path}', which has no place"))?;
        }
        place.insert((*last).to_owned(), value.clone());
    }
    for path in &altered.removed {
        let parts: Vec<&str> = path.split('.').collect();
        let Some((last, parents)) = parts.split_last() else {
            continue;
        };
        let place = parents
            .iter()
            .try_fold(&mut *copy, |node, key| node.as_map_mut()?.get_mut(*key));
        // Of overlapping masks the shorter one may have taken the way to it.
        if let Some(entries) = place.and_then(Node::as_map_mut) {
            entries.remove(*last);
        }
    }
    Ok(())
}
