//! Many field masks as one tree, so that a state or a change is compared with all of them in one
//! walk.
//!
//! Thread: none, plain values.

use super::field_path::WILDCARD;
use super::node::{Entries, Node};

/// A longer read mask cannot match: decoders limit the depth of states to about 100.
const MASK_PARTS_MAX: usize = 256;
/// Masks of one read or subscription that may lead to the same field, because one has a wildcard
/// where the other has a key. Each of them costs again for each field.
pub const MASKS_OVERLAP_MAX: usize = 16;

/// Field masks without those that are there twice. Kept small, since subscriptions last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskTree {
    /// A mask ends here, so all that is below is wanted.
    pub(super) ends_here: bool,
    /// Where masks go on, sorted by key.
    pub(super) below: Vec<Branch>,
}

/// A key of masks, and how they go on.
pub(super) type Branch = (Box<str>, MaskTree);

/// Each field that may be read would have to be compared with too many masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "Up to {0} of the field masks lead to the same field because of '*', at most {MASKS_OVERLAP_MAX} may; use fewer \
     masks with '*'"
)]
pub struct TooMuchOverlap(usize);

impl MaskTree {
    /// Joins `masks`. Empty ones select nothing; those with more than [`MASK_PARTS_MAX`] parts
    /// cannot match anything, and leaving them out bounds every recursion over the tree.
    pub fn new<'m>(masks: impl IntoIterator<Item = &'m str>) -> Self {
        let possible =
            |mask: &&str| !mask.is_empty() && mask.split('.').nth(MASK_PARTS_MAX).is_none();
        Self::of_parts(
            masks
                .into_iter()
                .filter(possible)
                .map(|mask| mask.split('.').collect())
                .collect(),
        )
    }

    /// Joins paths whose keys may contain dots.
    pub fn of_paths<'p>(paths: impl IntoIterator<Item = &'p [String]>) -> Self {
        let possible = |path: &&[String]| path.len() <= MASK_PARTS_MAX;
        Self::of_parts(
            paths
                .into_iter()
                .filter(possible)
                .map(|path| path.iter().map(String::as_str).collect())
                .collect(),
        )
    }

    fn of_parts(mut masks: Vec<Vec<&str>>) -> Self {
        masks.sort_unstable();
        masks.dedup();
        Self::of_sorted(&masks, 0)
    }

    /// The tree of what stands behind the first `depth` parts of masks that agree in these.
    fn of_sorted(mut masks: &[Vec<&str>], depth: usize) -> Self {
        let mut tree = Self::default();
        if let Some((first, others)) = masks.split_first()
            && first.len() == depth
        {
            // Sorted, and none is there twice: all others go on.
            (tree.ends_here, masks) = (true, others);
        }
        let same = masks.chunk_by(|one, next| one[depth] == next[depth]);
        tree.below = same
            .map(|same| (same[0][depth].into(), Self::of_sorted(same, depth + 1)))
            .collect();
        tree.below.shrink_to_fit();
        tree
    }

    /// What the tree takes in memory, in bytes.
    pub fn bytes(&self) -> usize {
        size_of::<Branch>()
            // What the allocations of a key and of the list behind it take beside their content, in
            // bytes.
            + 48
            + self.below.iter().map(|(key, below)| key.len() + below.bytes()).sum::<usize>()
    }

    /// Joins the masks of a read or subscription; `None` without any, which stands for everything.
    ///
    /// # Errors
    /// [`TooMuchOverlap`].
    pub fn of_request(masks: &[String]) -> Result<Option<Self>, TooMuchOverlap> {
        if masks.is_empty() {
            return Ok(None);
        }
        let tree = Self::new(masks.iter().map(String::as_str));
        let overlap = tree.overlap();
        if overlap > MASKS_OVERLAP_MAX {
            Err(TooMuchOverlap(overlap))
        } else {
            Ok(Some(tree))
        }
    }

    /// How many masks may lead to one field at most, because a wildcard and a key stand at the same
    /// place.
    fn overlap(&self) -> usize {
        let highest = |is_wildcard| {
            let below = self
                .below
                .iter()
                .filter(|(key, _)| (**key == *WILDCARD) == is_wildcard);
            below
                .map(|(_, below)| below.overlap())
                .max()
                .unwrap_or_default()
        };
        (highest(true) + highest(false)).max(1)
    }

    /// Whether a mask begins with a key that begins with `text`.
    pub fn begins_with(&self, text: &str) -> bool {
        self.below.iter().any(|(key, _)| key.starts_with(text))
    }

    /// The position of all masks at their beginning.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted(vec![self])
    }

    /// The position after `key` of the masks that begin with it literally, not with a wildcard.
    pub fn named(&self, key: &str) -> Wanted<'_> {
        Wanted(
            self.child(key)
                .map(|(_, below)| below)
                .into_iter()
                .collect(),
        )
    }

    /// All masks by their parts.
    pub(crate) fn masks(&self) -> Vec<Vec<&str>> {
        let mut all = if self.ends_here {
            vec![Vec::new()]
        } else {
            Vec::new()
        };
        for (key, below) in &self.below {
            all.extend(
                below
                    .masks()
                    .into_iter()
                    .map(|rest| [&[&**key], &rest[..]].concat()),
            );
        }
        all
    }

    fn child(&self, key: &str) -> Option<&Branch> {
        #[cfg(debug_assertions)]
        LOOKUPS.with(|lookups| lookups.set(lookups.get() + 1));
        self.below
            .binary_search_by(|(other, _)| (**other).cmp(key))
            .ok()
            .map(|index| &self.below[index])
    }

    /// Where the masks go on at the entry `key`.
    pub(super) fn on(&self, key: &str) -> impl Iterator<Item = &Branch> {
        // A wildcard as a literal key would be found twice.
        let named = if key == WILDCARD {
            None
        } else {
            self.child(key)
        };
        named.into_iter().chain(self.child(WILDCARD))
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many keys `work` looks up, which is what the comparison with many masks costs.
#[cfg(debug_assertions)]
pub fn lookups(work: impl FnOnce()) -> usize {
    let before = LOOKUPS.get();
    work();
    LOOKUPS.get() - before
}

/// A position in all masks of a [`MaskTree`] that lead to the same node.
#[derive(Debug)]
pub struct Wanted<'m>(Vec<&'m MaskTree>);

/// Which entries of a map are wanted.
#[derive(Debug, PartialEq, Eq)]
pub enum Keys<'m> {
    /// All that exist.
    All,
    /// These, sorted, if they exist.
    Named(Vec<&'m str>),
}

impl<'m> Wanted<'m> {
    /// Whether no mask leads here.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the node itself is wanted with everything below it.
    pub fn is_whole(&self) -> bool {
        self.0.iter().any(|place| place.ends_here)
    }

    /// What is wanted of the entry `key`; everything of it when the node itself is wanted as a
    /// whole.
    pub fn below(&self, key: &str) -> Wanted<'m> {
        match self.0.iter().find(|place| place.ends_here) {
            Some(whole) => Wanted(vec![whole]), // The others cannot add anything.
            None => self.on(key),
        }
    }

    /// Where the masks go on at the entry `key`, without those that end above it.
    pub fn on(&self, key: &str) -> Wanted<'m> {
        Wanted(
            self.0
                .iter()
                .flat_map(|place| place.on(key))
                .map(|(_, below)| below)
                .collect(),
        )
    }

    /// Which entries are wanted, wholly or in part.
    pub fn keys(&self) -> Keys<'m> {
        if self.is_whole() || self.0.iter().any(|place| place.child(WILDCARD).is_some()) {
            return Keys::All;
        }
        let mut names: Vec<&'m str> = self
            .0
            .iter()
            .flat_map(|place| &place.below)
            .map(|(key, _)| &**key)
            .collect();
        names.sort_unstable();
        names.dedup();
        Keys::Named(names)
    }

    /// What is wanted of `node`; `None` when that is nothing.
    // [impl->swdd~server-filters-get-complete-state-result~2]
    pub fn take(&self, node: Node) -> Option<Node> {
        if self.is_whole() {
            return Some(node);
        }
        let Node::Map(entries) = node else {
            return None;
        };
        let kept: Entries = entries
            .into_iter()
            .filter_map(|(key, child)| {
                let wanted = self.below(&key);
                if wanted.is_nothing() {
                    None
                } else {
                    Some((key, wanted.take(child)?))
                }
            })
            .collect();
        (!kept.is_empty()).then_some(Node::Map(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_masks_lists_the_wanted_entries() {
        let masks = MaskTree::new(["a.b", "a.c.d", "*.c", "x"]);
        assert_eq!(masks.wanted().keys(), Keys::All);
        assert_eq!(
            masks.wanted().below("a").keys(),
            Keys::Named(vec!["b", "c"])
        );
        assert_eq!(masks.wanted().below("other").keys(), Keys::Named(vec!["c"]));
        assert_eq!(
            masks.wanted().below("x").below("anything").keys(),
            Keys::All
        );
        assert!(masks.wanted().below("a").below("c").is_whole());
        assert!(masks.wanted().below("other").below("b").is_nothing());
        let literal = MaskTree::new(["*.a"]);
        assert_eq!(literal.wanted().below("*").0.len(), 1);
        assert!(masks.named("a").below("c").below("d").is_whole());
        assert!(masks.named("other").is_nothing() && masks.named("x").is_whole());
        assert_eq!(masks.named("a").keys(), Keys::Named(vec!["b", "c"]));
    }

    #[test]
    fn masks_count_once_and_their_overlap_is_counted() {
        let once = MaskTree::new(["a.b", "x"]);
        assert_eq!(MaskTree::new(["x", "a.b", "a.b", "x", "", "a.b"]), once);
        assert_eq!(
            MaskTree::new(std::iter::repeat_n("a.b", 100_000).chain(["x"])).bytes(),
            once.bytes()
        );
        for (masks, overlap) in [
            (vec![], 1),
            (vec!["a.b.c", "a.b.d", "b"], 1),
            (vec!["*.b.c", "a.b.c"], 2),
            (vec!["*.*", "*.b", "a.*", "a.b", "b.*"], 4),
            (vec!["*.*.x", "a.a.a.x", "a.*.x", "b.b.b.b"], 3),
        ] {
            assert_eq!(
                MaskTree::new(masks.iter().copied()).overlap(),
                overlap,
                "{masks:?}"
            );
        }
    }
}
