//! Modes of the vehicle as a field tree, `modes.{configItem,current,known,onFailure,cause}`.
//!
//! Thread: whichever reads the stream.

use crate::model::node::Node;
use crate::wire::schema::ank_base as base;

/// The tree of modes.
pub fn read(modes: &base::Modes) -> Node {
    let texts = [
        ("configItem", &modes.configItem),
        ("current", &modes.current),
        ("onFailure", &modes.onFailure),
        ("cause", &modes.cause),
    ];
    let texts = texts.into_iter().filter_map(|(key, text)| Some((key, Node::text(text.as_ref()?))));
    let known = Node::List(modes.known.iter().map(Node::text).collect());
    // The wire cannot tell an empty list from none.
    let known = (!modes.known.is_empty()).then_some(("known", known));
    Node::map(texts.chain(known))
}
