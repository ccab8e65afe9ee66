//! Writes messages, and field trees by the table. What a tree lacks, or has in another shape, is
//! left out, since it may be partial.
//!
//! Thread: whichever writes the stream.

use super::WireField;
use super::WireKind::{self, Choice, List, Map, Number, Only, Own, Short, Text};
use ankaios_model::node::Node;

/// The wire type of numbers.
const VARINT: u32 = 0;
/// That of texts and messages, which begin with their length.
const LENGTH: u32 = 2;

/// Bytes that are added to.
#[derive(Default)]
pub(crate) struct MessageWriter {
    pub(crate) bytes: Vec<u8>,
}

impl MessageWriter {
    /// The message with these fields.
    pub(crate) fn tree(fields: &[WireField], tree: &Node) -> Vec<u8> {
        let mut writer = Self::default();
        writer.fields(fields, tree);
        writer.bytes
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    pub(crate) fn number(&mut self, number: u32, value: u64) {
        self.tag(number, VARINT);
        self.varint(value);
    }

    pub(crate) fn text(&mut self, number: u32, text: &str) {
        self.bytes(number, text.as_bytes());
    }

    /// Adds a message that is written already.
    pub(crate) fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.begin(number, bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds the tag and length of a field with this number of bytes.
    pub(crate) fn begin(&mut self, number: u32, bytes: usize) {
        self.tag(number, LENGTH);
        self.varint(bytes as u64);
    }

    /// Adds a message that `body` writes, as one field.
    pub(crate) fn nested(&mut self, number: u32, body: impl FnOnce(&mut Self)) {
        self.tag(number, LENGTH);
        // Leave room for a length of one byte, which most have.
        let at = self.bytes.len();
        self.bytes.push(0);
        body(self);
        let length = self.bytes.len() - at - 1;
        if let Ok(short @ ..0x80) = u8::try_from(length) {
            self.bytes[at] = short;
            return;
        }
        // A longer length has more bytes: put them in place of that one, before the message.
        let mut prefix = Self::default();
        prefix.varint(length as u64);
        self.bytes.splice(at..=at, prefix.bytes);
    }

    pub(crate) fn fields(&mut self, fields: &[WireField], node: &Node) {
        for WireField {
            number, key, kind, ..
        } in fields
        {
            if let Some(child) = node.get(key) {
                self.node(*number, *kind, child);
            }
        }
    }

    /// Adds a node as a field of this kind. Parts of another shape are left out.
    pub(crate) fn node(&mut self, number: u32, kind: WireKind, node: &Node) {
        match kind {
            Text => {
                if let Some(text) = node.as_text() {
                    self.text(number, text);
                }
            }
            Number => {
                if let Some(value) = node.as_number() {
                    self.number(number, value);
                }
            }
            Short => {
                if let Some(value) = node.as_number() {
                    self.number(number, value.min(u32::MAX.into()));
                }
            }
            Choice(texts, numbers) => {
                let Some(text) = node.as_text() else { return };
                if let Some(index) = texts.iter().position(|one| *one == text) {
                    self.number(number, numbers[index]);
                } else if let Ok(value) = text.parse::<i64>() {
                    // A number that only a newer program knows is passed on.
                    self.number(number, value.cast_unsigned());
                }
            }
            WireKind::Message(fields) => self.nested(number, |writer| writer.fields(fields, node)),
            Only(kind) => self.nested(number, |writer| writer.node(1, *kind, node)),
            Map(kind) => {
                for (key, value) in node.as_map().into_iter().flatten() {
                    self.nested(number, |writer| {
                        writer.text(1, key);
                        writer.node(2, *kind, value);
                    });
                }
            }
            List(kind) => {
                for item in node.as_list().unwrap_or_default() {
                    self.node(number, *kind, item);
                }
            }
            Own(codec) => (codec.write)(self, number, node),
        }
    }
}
