//! Many field masks as one tree, so that a state or a change is compared with all of them in one
//! walk.
//!
//! Thread: none, plain values.

use super::field_path::WILDCARD;
use super::node::Node;

/// Parts of a read mask. A longer one cannot match: decoders limit the depth of states to about 100.
const MASK_PARTS_MAX: usize = 256;
/// Masks of one read or subscription that may lead to the same field, because one has a wildcard
/// in place of a key of the other. Each of them is compared with each field.
pub const MASKS_OVERLAP_MAX: usize = 16;

/// Field masks without duplicates. Kept small, since subscriptions last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskTree {
    /// Whether a mask ends here, so that everything below is wanted.
    pub(super) ends_here: bool,
    /// The continuations of masks, sorted by key.
    pub(super) below: Vec<Branch>,
}

/// A key of masks, and their continuation.
pub(super) type Branch = (Box<str>, MaskTree);

/// Memory of the allocations of a key and of the list behind it, beside their content, in bytes.
const BRANCH_OVERHEAD: usize = 48;

/// A field would have to be compared with too many masks.
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
        let masks = masks.into_iter().filter(|mask| !mask.is_empty());
        Self::of_parts(masks.map(|mask| mask.split('.').collect()).collect())
    }

    /// Joins paths whose keys may contain dots.
    pub fn of_paths<'p>(paths: impl IntoIterator<Item = &'p [String]>) -> Self {
        let mut masks = Vec::new();
        for path in paths {
            masks.push(path.iter().map(String::as_str).collect());
        }
        Self::of_parts(masks)
    }

    fn of_parts(mut masks: Vec<Vec<&str>>) -> Self {
        masks.retain(|parts| parts.len() <= MASK_PARTS_MAX);
        masks.sort_unstable();
        masks.dedup();
        Self::of_sorted(&masks, 0)
    }

    /// Returns the tree below a common beginning of `depth` parts, which all `masks` have.
    fn of_sorted(mut masks: &[Vec<&str>], depth: usize) -> Self {
        let mut tree = Self::default();
        if let Some((first, others)) = masks.split_first()
            && first.len() == depth
        {
            // They are sorted and without duplicates: all others are longer.
            tree.ends_here = true;
            masks = others;
        }
        for same in masks.chunk_by(|one, next| one[depth] == next[depth]) {
            let key = same[0][depth].into();
            tree.below.push((key, Self::of_sorted(same, depth + 1)));
        }
        tree.below.shrink_to_fit();
        tree
    }

    /// Memory of the tree, in bytes.
    pub fn bytes(&self) -> usize {
        let mut bytes = size_of::<Branch>() + BRANCH_OVERHEAD;
        for (key, below) in &self.below {
            bytes += key.len() + below.bytes();
        }
        bytes
    }

    /// Joins the masks of a read or subscription; `None` if there are none, which means everything.
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

    /// Returns how many masks may lead to the same field at most. Where a wildcard and a key are at
    /// the same place, the masks below both lead to the fields of that key.
    fn overlap(&self) -> usize {
        let mut of_wildcard = 0;
        let mut of_keys = 0;
        for (key, below) in &self.below {
            let highest = if **key == *WILDCARD {
                &mut of_wildcard
            } else {
                &mut of_keys
            };
            *highest = below.overlap().max(*highest);
        }
        (of_wildcard + of_keys).max(1) // Without branches it is the mask that ends here.
    }

    /// Returns whether a mask begins with a key that begins with `text`.
    pub fn begins_with(&self, text: &str) -> bool {
        self.below.iter().any(|(key, _)| key.starts_with(text))
    }

    /// The position of all masks at their beginning.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted(vec![self])
    }

    /// The position after `key` of the masks that begin with it literally, not with a wildcard.
    pub fn named(&self, key: &str) -> Wanted<'_> {
        match self.child(key) {
            Some((_, below)) => Wanted(vec![below]),
            None => Wanted(Vec::new()),
        }
    }

    /// All masks by their parts.
    pub(crate) fn masks(&self) -> Vec<Vec<&str>> {
        let mut all = if self.ends_here {
            vec![Vec::new()]
        } else {
            Vec::new()
        };
        for (key, below) in &self.below {
            for rest in below.masks() {
                all.push([&[&**key], &rest[..]].concat());
            }
        }
        all
    }

    /// Returns the branch with exactly this key.
    fn child(&self, key: &str) -> Option<&Branch> {
        #[cfg(debug_assertions)]
        LOOKUPS.with(|lookups| lookups.set(lookups.get() + 1));
        let index = self
            .below
            .binary_search_by(|(other, _)| (**other).cmp(key))
            .ok()?;
        Some(&self.below[index])
    }

    /// Returns the continuations of the masks at the entry `key`.
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

/// Returns how many keys `work` looks up: the cost of a comparison with many masks.
#[cfg(debug_assertions)]
pub fn lookups(work: impl FnOnce()) -> usize {
    let before = LOOKUPS.get();
    work();
    LOOKUPS.get() - before
}

/// A position in all masks of a [`MaskTree`] that lead to the same node.
#[derive(Debug)]
pub struct Wanted<'m>(Vec<&'m MaskTree>);

/// The wanted entries of a map.
#[derive(Debug, PartialEq, Eq)]
pub enum WantedKeys<'m> {
    /// All that exist.
    All,
    /// These, sorted, if they exist.
    Named(Vec<&'m str>),
}

impl<'m> Wanted<'m> {
    /// Returns whether no mask leads here.
    pub fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the node itself is wanted with everything below it.
    pub fn is_whole(&self) -> bool {
        self.whole().is_some()
    }

    /// Returns the position of a mask that ends here.
    fn whole(&self) -> Option<&'m MaskTree> {
        self.0.iter().copied().find(|place| place.ends_here)
    }

    /// Returns the wanted part of the entry `key`: all of it if the node itself is wanted.
    pub fn below(&self, key: &str) -> Wanted<'m> {
        match self.whole() {
            Some(whole) => Wanted(vec![whole]), // The others cannot add anything.
            None => self.on(key),
        }
    }

    /// Returns the continuations of the masks at the entry `key`, without masks that end above it.
    pub fn on(&self, key: &str) -> Wanted<'m> {
        let mut places = Vec::new();
        for place in &self.0 {
            places.extend(place.on(key).map(|(_, below)| below));
        }
        Wanted(places)
    }

    /// Returns the entries that are wanted, wholly or in part.
    pub fn keys(&self) -> WantedKeys<'m> {
        if self.is_whole() {
            return WantedKeys::All;
        }
        let mut names: Vec<&'m str> = Vec::new();
        for place in &self.0 {
            if place.child(WILDCARD).is_some() {
                return WantedKeys::All;
            }
            names.extend(place.below.iter().map(|(key, _)| &**key));
        }
        names.sort_unstable();
        names.dedup();
        WantedKeys::Named(names)
    }

    /// Takes the wanted part of `node`; `None` if there is none.
    // [impl->swdd~server-filters-get-complete-state-result~2]
    pub fn take(&self, node: Node) -> Option<Node> {
        if self.is_whole() {
            return Some(node);
        }
        let Node::Map(entries) = node else {
            return None;
        };
        let mut kept = Vec::new();
        for (key, child) in entries {
            let wanted = self.below(&key);
            if !wanted.is_nothing()
                && let Some(child) = wanted.take(child)
            {
                kept.push((key, child));
            }
        }
        if kept.is_empty() {
            return None;
        }
        Some(Node::Map(kept.into_iter().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_masks_lists_the_wanted_entries() {
        let masks = MaskTree::new(["a.b", "a.c.d", "*.c", "x"]);
        assert_eq!(masks.wanted().keys(), WantedKeys::All);
        assert_eq!(
            masks.wanted().below("a").keys(),
            WantedKeys::Named(vec!["b", "c"])
        );
        assert_eq!(
            masks.wanted().below("other").keys(),
            WantedKeys::Named(vec!["c"])
        );
        assert_eq!(
            masks.wanted().below("x").below("anything").keys(),
            WantedKeys::All
        );
        assert!(masks.wanted().below("a").below("c").is_whole());
        assert!(masks.wanted().below("other").below("b").is_nothing());
        let literal = MaskTree::new(["*.a"]);
        assert_eq!(literal.wanted().below("*").0.len(), 1);
        assert!(masks.named("a").below("c").below("d").is_whole());
        assert!(masks.named("other").is_nothing() && masks.named("x").is_whole());
        assert_eq!(masks.named("a").keys(), WantedKeys::Named(vec!["b", "c"]));
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

    #[test]
    fn masks_of_a_tree_are_those_that_it_was_made_of() {
        let masks = MaskTree::new(["b", "a.c", "a.b.d", "b"]);
        assert_eq!(
            masks.masks(),
            [vec!["a", "b", "d"], vec!["a", "c"], vec!["b"]]
        );
        assert!(masks.begins_with("a") && masks.begins_with(""));
        assert!(!masks.begins_with("c") && !masks.begins_with("ab"));
        assert_eq!(MaskTree::new([]).masks(), [[""; 0]; 0]);
    }

    #[test]
    fn memory_of_a_tree_counts_each_key_with_its_list() {
        let one = size_of::<Branch>() + BRANCH_OVERHEAD;
        assert_eq!(MaskTree::new([]).bytes(), one);
        assert_eq!(MaskTree::new(["ab.c", "ab.def"]).bytes(), 4 * one + 6);
    }

    #[test]
    fn lookups_of_keys_are_counted() {
        let masks = MaskTree::new(["a.b"]);
        let counted = lookups(|| {
            masks.named("a");
            masks.named("b");
        });
        assert_eq!(counted, 2);
    }

    #[test]
    fn request_with_too_many_overlapping_masks_is_refused() {
        assert_eq!(MaskTree::of_request(&[]), Ok(None));
        // Each level with a key and a wildcard doubles the overlap.
        let mut overlapping = Vec::new();
        for number in 0..32 {
            let mut parts = Vec::new();
            for level in 0..5 {
                let is_key = number & (1 << level) != 0;
                parts.push(if is_key { "a" } else { WILDCARD });
            }
            overlapping.push(parts.join("."));
        }
        assert_eq!(MaskTree::of_request(&overlapping), Err(TooMuchOverlap(32)));
        let half: Vec<String> = overlapping.iter().take(16).cloned().collect();
        assert!(MaskTree::of_request(&half).unwrap().is_some());
    }

    #[test]
    fn wanted_part_of_a_state_has_only_what_masks_select() {
        let leaf = || Node::text("x");
        let state = || {
            Node::map([
                ("a", Node::map([("b", leaf()), ("c", leaf())])),
                ("d", leaf()),
            ])
        };
        for (mask, expected) in [
            ("a.b", Some(Node::map([("a", Node::map([("b", leaf())]))]))),
            ("d", Some(Node::map([("d", leaf())]))),
            ("d.e", None),
            ("e", None),
        ] {
            let taken = MaskTree::new([mask]).wanted().take(state());
            assert_eq!(taken, expected, "{mask}");
        }
    }
}
