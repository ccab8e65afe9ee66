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
    let mut found: Vec<Option<Node>> = vec![None; fields.len()];
    for part in Fields::of(bytes) {
        let part = part?;
        let Some(index) = fields.iter().position(|field| field.number == part.number) else { continue };
        let kind = fields[index].kind;
        let node = match kind {
            _ if !fits(kind, part.value) => continue,
            // Its other parts were read with the first one.
            Map(_) | List(_) if found[index].is_some() => continue,
            Map(_) | List(_) => repeated(kind, part.number, bytes, depth)?,
            _ => value(kind, part.value, depth)?,
        };
        found[index] = Some(node);
    }
    let mut entries = Vec::with_capacity(found.iter().flatten().count());
    for (field, node) in fields.iter().zip(found) {
        let node = if field.always && node.is_none() { Some(absent(field.kind, depth)?) } else { node };
        entries.extend(node.map(|node| (Key::Borrowed(field.key), node)));
    }
    Ok(Node::Map(entries.into_iter().collect()))
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
        if part.number == 1 && fits(*kind, part.value) {
            node = Some(value(*kind, part.value, depth)?);
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
            let nodes = items.map(|item| value(*kind, Value::Bytes(item?), depth));
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
            (2, found) if fits(kind, found) => node = Some(found),
            _ => {}
        }
    }
    let node = node.map_or_else(|| absent(kind, depth), |found| value(kind, found, depth))?;
    Ok((text(key)?.into(), node))
}

/// Whether a value has the wire type of this kind.
fn fits(kind: Kind, value: Value<'_>) -> bool {
    match value {
        Value::Varint(_) => matches!(kind, Number | Short | Choice(_)),
        Value::Bytes(_) => !matches!(kind, Number | Short | Choice(_)),
        Value::Other => false,
    }
}

/// The node of a value that fits.
fn value(kind: Kind, value: Value<'_>, depth: usize) -> Decoded<Node> {
    match (kind, value) {
        (Text, Value::Bytes(bytes)) => Ok(Node::Text(text(bytes)?)),
        (Number | Short, Value::Varint(number)) => Ok(Node::Number(number)),
        (Choice(names), Value::Varint(number)) => {
            // The wire has them with a sign, in 64 bits.
            let number = number.cast_signed() as i32;
            Ok(Node::text((names.name)(number).ok_or_else(|| ConvertError::unknown_enum(number))?))
        }
        (Kind::Message(fields), Value::Bytes(bytes)) => message(fields, bytes, depth),
        (Only(kind), Value::Bytes(bytes)) => only(kind, bytes, depth),
        (Own(codec), Value::Bytes(bytes)) => (codec.read)(bytes, deeper(depth)?),
        _ => Ok(Node::empty()),
    }
}

/// The node of a value that was left out.
fn absent(kind: Kind, depth: usize) -> Decoded<Node> {
    match kind {
        Map(_) | List(_) => repeated(kind, 1, &[], depth),
        Number | Short | Choice(_) => value(kind, Value::Varint(0), depth),
        _ => value(kind, Value::Bytes(&[]), depth),
    }
}
