//! Reads field trees by the table. Fields that are not in it, or have another wire type, are skipped; of a field that is
//! there twice the last one counts. It takes no more memory than is counted before a message is decoded (wire/weight.rs).
//!
//! Thread: whichever reads the stream.

use super::Kind::{Choice, List, Map, Number, Only, Own, Short, Text};
use super::{ConvertError, Field, Kind};
use crate::model::node::{Key, Node};
use crate::wire::fields::{Fields, Malformed, Value};
use std::ops::RangeInclusive;

/// Messages nest at most so deep: with those around a state at most a hundred, as in the library.
const DEPTH_MAX: usize = 97;

/// What becomes of bytes.
pub type Decoded<T> = Result<T, ConvertError>;

impl From<Malformed> for ConvertError {
    fn from(_: Malformed) -> Self {
        Self::malformed()
    }
}

fn deeper(depth: usize) -> Decoded<usize> {
    if depth < DEPTH_MAX { Ok(depth + 1) } else { Err(ConvertError("messages that nest too deep".to_owned())) }
}

/// The text that `bytes` are.
pub fn text(bytes: &[u8]) -> Decoded<String> {
    let text = std::str::from_utf8(bytes).map_err(|_| ConvertError("a text that is no UTF-8".to_owned()))?;
    Ok(text.to_owned())
}

/// The last of the fields with these numbers, which holds bytes.
pub fn last_of(bytes: &[u8], numbers: RangeInclusive<u32>) -> Decoded<Option<(u32, &[u8])>> {
    Fields::of(bytes).try_fold(None, |last, field| {
        let field = field?;
        Ok(match field.value {
            Value::Bytes(bytes) if numbers.contains(&field.number) => Some((field.number, bytes)),
            _ => last,
        })
    })
}

/// The tree of a message with these fields.
pub fn message(fields: &[Field], bytes: &[u8], depth: usize) -> Decoded<Node> {
    let depth = deeper(depth)?;
    // A field has two bytes at least.
    let mut found: Vec<(Key, Node)> = Vec::with_capacity(fields.len().min(bytes.len() / 2));
    for part in Fields::of(bytes) {
        let part = part?;
        let Some(field) = fields.iter().find(|field| field.number == part.number) else { continue };
        let before = found.iter().position(|(key, _)| *key == field.key);
        let node = match field.kind {
            // Its other parts were read with the first one.
            Map(_) | List(_) if before.is_some() => continue,
            Map(_) | List(_) => {
                Some(repeated(field.kind, field.number, bytes, depth)?).filter(|node| !node.is_empty_container())
            }
            kind => value(kind, part.value, depth)?,
        };
        match (before, node) {
            (_, None) => {}
            (Some(index), Some(node)) => found[index].1 = node,
            (None, Some(node)) => found.push((Key::Borrowed(field.key), node)),
        }
    }
    for field in fields.iter().filter(|field| field.always) {
        if !found.iter().any(|(key, _)| *key == field.key) {
            found.push((Key::Borrowed(field.key), absent(field.kind, depth)?));
        }
    }
    Ok(Node::Map(found.into_iter().collect()))
}

/// The tree of a message whose only field, with the number 1, is of this kind.
pub fn only(kind: &Kind, bytes: &[u8], depth: usize) -> Decoded<Node> {
    let depth = deeper(depth)?;
    if let Map(_) | List(_) = kind {
        return repeated(*kind, 1, bytes, depth);
    }
    let mut node = None;
    for part in Fields::of(bytes) {
        let part = part?;
        if part.number == 1 {
            node = value(*kind, part.value, depth)?.or(node);
        }
    }
    node.map_or_else(|| absent(*kind, depth), Ok)
}

/// The map or list of all fields with that number.
fn repeated(kind: Kind, number: u32, bytes: &[u8], depth: usize) -> Decoded<Node> {
    let items = Fields::of(bytes).filter_map(|field| match field {
        Ok(field) if field.number == number => {
            if let Value::Bytes(item) = field.value {
                Some(Ok(item))
            } else {
                None
            }
        }
        Ok(_) => None,
        Err(malformed) => Some(Err(ConvertError::from(malformed))),
    });
    match kind {
        Map(kind) => {
            let entries: Vec<(Key, Node)> = items.map(|item| entry(*kind, item?, depth)).collect::<Decoded<_>>()?;
            Ok(Node::Map(entries.into_iter().collect()))
        }
        List(kind) => {
            let nodes = items.map(|item| Ok(value(*kind, Value::Bytes(item?), depth)?.unwrap_or_default()));
            Ok(Node::List(nodes.collect::<Decoded<_>>()?))
        }
        _ => Ok(Node::empty()),
    }
}

fn entry(kind: Kind, bytes: &[u8], depth: usize) -> Decoded<(Key, Node)> {
    let (mut key, mut node) = (&[][..], None);
    for field in Fields::of(bytes) {
        let field = field?;
        match (field.number, field.value) {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, found) => node = Some(found),
            _ => {}
        }
    }
    let node = node.map_or(Ok(None), |found| value(kind, found, depth))?;
    Ok((text(key)?.into(), node.map_or_else(|| absent(kind, depth), Ok)?))
}

/// The node of a value; `None` when it is not of this kind.
fn value(kind: Kind, value: Value<'_>, depth: usize) -> Decoded<Option<Node>> {
    Ok(Some(match (kind, value) {
        (Text, Value::Bytes(bytes)) => Node::Text(text(bytes)?),
        (Number | Short, Value::Varint(number)) => Node::Number(number),
        (Choice(names), Value::Varint(number)) => {
            // The wire has them with a sign, in 64 bits.
            let number = number.cast_signed() as i32;
            Node::text((names.name)(number).ok_or_else(|| ConvertError::unknown_enum(number))?)
        }
        (Kind::Message(fields), Value::Bytes(bytes)) => message(fields, bytes, depth)?,
        (Only(kind), Value::Bytes(bytes)) => only(kind, bytes, depth)?,
        (Own(codec), Value::Bytes(bytes)) => (codec.read)(bytes, deeper(depth)?)?,
        _ => return Ok(None),
    }))
}

/// The node of a value that was left out.
fn absent(kind: Kind, depth: usize) -> Decoded<Node> {
    match kind {
        Map(_) | List(_) => repeated(kind, 1, &[], depth),
        Number | Short | Choice(_) => Ok(value(kind, Value::Varint(0), depth)?.unwrap_or_default()),
        _ => Ok(value(kind, Value::Bytes(&[]), depth)?.unwrap_or_default()),
    }
}
