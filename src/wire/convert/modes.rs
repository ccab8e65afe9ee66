//! Modes of the vehicle as a field tree, `modes.{configItem,current,known,onFailure,cause}`.
//!
//! Thread: whichever reads or writes the stream.

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

/// The message of modes.
pub fn write(node: &Node) -> base::Modes {
    let text = |key| node.get(key).and_then(Node::as_text).map(str::to_owned);
    let known = node.get("known").and_then(Node::as_list).unwrap_or_default();
    base::Modes {
        configItem: text("configItem"),
        current: text("current"),
        known: known.iter().filter_map(Node::as_text).map(str::to_owned).collect(),
        onFailure: text("onFailure"),
        cause: text("cause"),
        ..Default::default()
    }
}
