//! Many field masks as one tree, so that a state or a change is compared with all of them in one walk.
//!
//! Thread: none, plain values.

use super::field_path::WILDCARD;
use super::node::{Entries, Node};
use std::ops::Range;

/// A longer read mask cannot match: decoders limit the depth of states to about 100.
const MASK_PARTS_MAX: usize = 256;
/// Masks of one read or subscription that may lead to the same field, because one has a wildcard where the other has a
/// key. Each of them costs again for each field.
pub const MASKS_OVERLAP_MAX: usize = 16;

/// Field masks without those that are there twice. Kept small, since subscriptions last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskTree {
    /// The root first. The places below one place stand in a row, sorted by their keys.
    places: Vec<Place>,
    /// The keys of all places in the same order.
    keys: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Place {
    key: Range<usize>,
    below: Range<usize>,
    ends_here: bool,
}

/// Each field that may be read would have to be compared with too many masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "Up to {0} of the field masks lead to the same field because of '*', at most {MASKS_OVERLAP_MAX} may; use fewer \
     masks with '*'"
)]
pub struct TooMuchOverlap(usize);

impl MaskTree {
    /// Joins `masks`. Empty ones select nothing; those with more than [`MASK_PARTS_MAX`] parts cannot match
    /// anything, and leaving them out bounds every recursion over the tree.
    pub fn new<'m>(masks: impl IntoIterator<Item = &'m str>) -> Self {
        let possible = |mask: &&str| !mask.is_empty() && mask.split('.').nth(MASK_PARTS_MAX).is_none();
        Self::of_parts(masks.into_iter().filter(possible).map(|mask| mask.split('.').collect()).collect())
    }

    /// Joins paths whose keys may contain dots.
    pub fn of_paths<'p>(paths: impl IntoIterator<Item = &'p [String]>) -> Self {
        let possible = |path: &&[String]| path.len() <= MASK_PARTS_MAX;
        Self::of_parts(
            paths.into_iter().filter(possible).map(|path| path.iter().map(String::as_str).collect()).collect(),
        )
    }

    /// Level by level: a place is followed by all others of its level before those below it.
    fn of_parts(mut masks: Vec<Vec<&str>>) -> Self {
        masks.sort_unstable();
        masks.dedup();
        let mut tree = Self { places: vec![Place::default()], keys: String::new() };
        // Which masks lead through each place, and how many of their parts lead to it.
        let mut through = vec![(masks.as_slice(), 0)];
        let mut index = 0;
        while let Some(&(mut masks, depth)) = through.get(index) {
            if let Some((first, others)) = masks.split_first()
                && first.len() == depth
            {
                tree.places[index].ends_here = true; // Sorted, and none is there twice: all others go on.
                masks = others;
            }
            let begin = tree.places.len();
            while let Some(key) = masks.first().map(|mask| mask[depth]) {
                let (same, others) = masks.split_at(masks.partition_point(|mask| mask[depth] == key));
                let start = tree.keys.len();
                tree.keys.push_str(key);
                tree.places.push(Place { key: start..tree.keys.len(), ..Place::default() });
                through.push((same, depth + 1));
                masks = others;
            }
            tree.places[index].below = begin..tree.places.len();
            index += 1;
        }
        tree.places.shrink_to_fit();
        tree.keys.shrink_to_fit();
        tree
    }

    /// What the tree takes in memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.places.len() * size_of::<Place>() + self.keys.len()
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
        if overlap > MASKS_OVERLAP_MAX { Err(TooMuchOverlap(overlap)) } else { Ok(Some(tree)) }
    }

    /// How many masks may lead to one field at most, because a wildcard and a key stand at the same place.
    fn overlap(&self) -> usize {
        let mut overlaps = vec![1; self.places.len()];
        for (index, place) in self.places.iter().enumerate().rev() {
            let (mut by_wildcard, mut by_key) = (0, 0);
            for below in place.below.clone() {
                if self.key(below) == WILDCARD {
                    by_wildcard = overlaps[below];
                } else {
                    by_key = overlaps[below].max(by_key);
                }
            }
            overlaps[index] = (by_wildcard + by_key).max(1);
        }
        overlaps[0]
    }

    /// Whether a mask begins with a key that begins with `text`.
    #[must_use]
    pub fn begins_with(&self, text: &str) -> bool {
        self.places[0].below.clone().any(|place| self.key(place).starts_with(text))
    }

    /// The position of all masks at their beginning.
    #[must_use]
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted { tree: self, places: vec![0] }
    }

    /// The position after `key` of the masks that begin with it literally, not with a wildcard.
    #[must_use]
    pub fn named(&self, key: &str) -> Wanted<'_> {
        Wanted { tree: self, places: self.child(0, key).into_iter().collect() }
    }

    /// All masks by their parts.
    pub fn masks(&self) -> impl Iterator<Item = Vec<&str>> {
        let ended = self.places.iter().enumerate().filter(|(_, place)| place.ends_here);
        ended.map(|(place, _)| self.path(place))
    }

    /// The keys that lead to a place.
    fn path(&self, mut place: usize) -> Vec<&str> {
        let mut keys = Vec::new();
        while place > 0 {
            keys.push(self.key(place));
            place = self.places.partition_point(|above| above.below.end <= place); // In rows, so the ends are sorted.
        }
        keys.reverse();
        keys
    }

    fn key(&self, place: usize) -> &str {
        &self.keys[self.places[place].key.clone()]
    }

    fn child(&self, place: usize, key: &str) -> Option<usize> {
        #[cfg(test)]
        LOOKUPS.with(|lookups| lookups.set(lookups.get() + 1));
        let below = self.places[place].below.clone();
        let found = self.places[below.clone()].binary_search_by(|place| self.keys[place.key.clone()].cmp(key));
        found.ok().map(|index| below.start + index)
    }
}

#[cfg(test)]
thread_local! {
    static LOOKUPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// How many keys `work` looks up, which is what the comparison with many masks costs.
#[cfg(test)]
pub fn lookups(work: impl FnOnce()) -> usize {
    let before = LOOKUPS.get();
    work();
    LOOKUPS.get() - before
}

/// A position in all masks of a [`MaskTree`] that lead to the same node.
#[derive(Debug)]
pub struct Wanted<'m> {
    tree: &'m MaskTree,
    places: Vec<usize>,
}

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
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether the node itself is wanted with everything below it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.places.iter().any(|place| self.tree.places[*place].ends_here)
    }

    /// What is wanted of the entry `key`; everything of it when the node itself is wanted as a whole.
    #[must_use]
    pub fn below(&self, key: &str) -> Wanted<'m> {
        match self.places.iter().find(|place| self.tree.places[**place].ends_here) {
            Some(whole) => Wanted { tree: self.tree, places: vec![*whole] }, // The others cannot add anything.
            None => self.on(key),
        }
    }

    /// Where the masks go on at the entry `key`, without those that end above it.
    #[must_use]
    pub fn on(&self, key: &str) -> Wanted<'m> {
        let mut places = Vec::new();
        for place in &self.places {
            // A wildcard as a literal key would be found twice.
            let named = if key == WILDCARD { None } else { self.tree.child(*place, key) };
            places.extend(named.into_iter().chain(self.tree.child(*place, WILDCARD)));
        }
        Wanted { tree: self.tree, places }
    }

    /// Where the masks go on at any entry.
    #[must_use]
    pub fn on_all(&self) -> Wanted<'m> {
        let below = |place: &usize| self.tree.places[*place].below.clone();
        Wanted { tree: self.tree, places: self.places.iter().flat_map(below).collect() }
    }

    /// How many places of the tree this is.
    #[must_use]
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// One of the masks that lead here; the shortest one that ends here if there is any.
    #[must_use]
    pub fn mask(&self) -> Option<String> {
        let places = &self.tree.places;
        let ended = self.places.iter().find(|place| places[**place].ends_here);
        let mut place = *ended.or(self.places.first())?;
        while !places[place].ends_here {
            place = places[place].below.clone().next()?;
        }
        Some(self.tree.path(place).join("."))
    }

    /// Which entries are wanted, wholly or in part.
    #[must_use]
    pub fn keys(&self) -> Keys<'m> {
        if self.is_whole() || self.places.iter().any(|place| self.tree.child(*place, WILDCARD).is_some()) {
            return Keys::All;
        }
        let below = |place: &usize| self.tree.places[*place].below.clone();
        let tree = self.tree;
        let mut names: Vec<&'m str> = self.places.iter().flat_map(below).map(|place| tree.key(place)).collect();
        names.sort_unstable();
        names.dedup();
        Keys::Named(names)
    }

    /// What is wanted of `node`; `None` when that is nothing.
    // [impl->swdd~server-filters-get-complete-state-result~2]
    #[must_use]
    pub fn take(&self, node: Node) -> Option<Node> {
        if self.is_whole() {
            return Some(node);
        }
        let Node::Map(entries) = node else { return None };
        let kept: Entries = entries
            .into_iter()
            .filter_map(|(key, child)| {
                let wanted = self.below(&key);
                if wanted.is_nothing() { None } else { Some((key, wanted.take(child)?)) }
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
        assert_eq!(masks.wanted().below("a").keys(), Keys::Named(vec!["b", "c"]));
        assert_eq!(masks.wanted().below("other").keys(), Keys::Named(vec!["c"]));
        assert_eq!(masks.wanted().below("x").below("anything").keys(), Keys::All);
        assert!(masks.wanted().below("a").below("c").is_whole());
        assert!(masks.wanted().below("other").below("b").is_nothing());
        let literal = MaskTree::new(["*.a"]);
        assert_eq!(literal.wanted().below("*").places.len(), 1);
        assert!(masks.named("a").below("c").below("d").is_whole());
        assert!(masks.named("other").is_nothing() && masks.named("x").is_whole());
        assert_eq!(masks.named("a").keys(), Keys::Named(vec!["b", "c"]));
    }

    #[test]
    fn masks_count_once_and_their_overlap_is_counted() {
        let once = MaskTree::new(["a.b", "x"]);
        assert_eq!(MaskTree::new(["x", "a.b", "a.b", "x", "", "a.b"]), once);
        assert_eq!(MaskTree::new(std::iter::repeat_n("a.b", 100_000).chain(["x"])).bytes(), once.bytes());
        for (masks, overlap) in [
            (vec![], 1),
            (vec!["a.b.c", "a.b.d", "b"], 1),
            (vec!["*.b.c", "a.b.c"], 2),
            (vec!["*.*", "*.b", "a.*", "a.b", "b.*"], 4),
            (vec!["*.*.x", "a.a.a.x", "a.*.x", "b.b.b.b"], 3),
        ] {
            assert_eq!(MaskTree::new(masks.iter().copied()).overlap(), overlap, "{masks:?}");
        }
    }
}
