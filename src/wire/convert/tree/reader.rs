//! Reads field trees by the table. Fields that are not in it, or have another wire type, are
//! skipped; of a field that is there twice the last one counts.
//!
//! Thread: whichever reads the stream.

use super::WireKind::{Choice, List, Map, Number, Only, Own, Short, Text};
use super::{ConvertError, WireField, WireKind};
use crate::convert::fields::{Fields, Value};
use crate::convert::{Decoded, Left, PART};
use ankaios_model::node::{Key, Node};
use std::ops::RangeInclusive;

/// Messages nest at most so deep: with those around a state at most a hundred, as in the library.
const DEPTH_MAX: usize = 97;

fn deeper(depth: usize) -> Decoded<usize> {
    if depth < DEPTH_MAX {
        Ok(depth + 1)
    } else {
        Err(ConvertError("messages that nest too deep".to_owned()))
    }
}

/// The last field with one of these numbers that has bytes: its number, and its bytes.
pub(crate) fn last_of(bytes: &[u8], numbers: RangeInclusive<u32>) -> Decoded<Option<(u32, &[u8])>> {
    let mut last = None;
    for field in Fields::of(bytes) {
        let field = field?;
        if let Value::Bytes(bytes) = field.value
            && numbers.contains(&field.number)
        {
            last = Some((field.number, bytes));
        }
    }
    Ok(last)
}

/// The tree of a message that may have these `fields`. Parts with another number or wire type are
/// skipped. `left` is the memory that the tree may still take.
pub(crate) fn message(
    fields: &[WireField],
    bytes: &[u8],
    depth: usize,
    left: &mut Left,
) -> Decoded<Node> {
    let depth = deeper(depth)?;
    // First, the value of each field. The last part of a field counts.
    let mut found: Vec<Option<Node>> = vec![None; fields.len()];
    for part in Fields::of(bytes) {
        let part = part?;
        let Some(index) = fields.iter().position(|field| field.number == part.number) else {
            continue;
        };
        let kind = fields[index].kind;
        if !fits(kind, part.value) {
            continue;
        }
        let node = match kind {
            // All parts of a map or list are read with the first one.
            Map(_) | List(_) if found[index].is_some() => continue,
            Map(_) | List(_) => repeated(kind, part.number, bytes, depth, left)?,
            _ => value(kind, part.value, depth, left)?,
        };
        found[index] = Some(node);
    }
    // Then, the entries in the order of the table, with defaults for fields that are always there.
    let mut entries = Vec::with_capacity(found.iter().flatten().count());
    for (field, node) in fields.iter().zip(found) {
        let node = match node {
            Some(node) => node,
            None if field.always => absent(field.kind, depth, left)?,
            None => continue,
        };
        entries.push((Key::Borrowed(field.key), node));
    }
    Ok(Node::Map(entries.into_iter().collect()))
}

/// The tree of a message whose only field, with the number 1, is of this kind.
pub(crate) fn only(kind: &WireKind, bytes: &[u8], depth: usize, left: &mut Left) -> Decoded<Node> {
    let depth = deeper(depth)?;
    if let Map(_) | List(_) = kind {
        return repeated(*kind, 1, bytes, depth, left);
    }
    let mut node = None;
    for part in Fields::of(bytes) {
        let part = part?;
        if part.number == 1 && fits(*kind, part.value) {
            node = Some(value(*kind, part.value, depth, left)?);
        }
    }
    match node {
        Some(node) => Ok(node),
        None => absent(*kind, depth, left),
    }
}

/// The map or list of all fields with that number. Callers pass one of these two kinds.
fn repeated(
    kind: WireKind,
    number: u32,
    bytes: &[u8],
    depth: usize,
    left: &mut Left,
) -> Decoded<Node> {
    match kind {
        Map(kind) => {
            let mut entries = Vec::new();
            for field in Fields::of(bytes) {
                if let Some(item) = field?.bytes_of(number) {
                    entries.push(entry(*kind, item, depth, left)?);
                }
            }
            Ok(Node::Map(entries.into_iter().collect()))
        }
        List(kind) => {
            let mut nodes = Vec::new();
            for field in Fields::of(bytes) {
                if let Some(item) = field?.bytes_of(number) {
                    nodes.push(value(*kind, Value::Bytes(item), depth, left)?);
                }
            }
            Ok(Node::List(nodes))
        }
        _ => Ok(Node::empty()),
    }
}

/// An entry of a map: a message with the key, number 1, and the value, number 2.
fn entry(kind: WireKind, bytes: &[u8], depth: usize, left: &mut Left) -> Decoded<(Key, Node)> {
    left.take(PART)?;
    let mut key = &[][..];
    let mut node = None;
    for field in Fields::of(bytes) {
        let field = field?;
        match (field.number, field.value) {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, found) if fits(kind, found) => node = Some(found),
            _ => {}
        }
    }
    let node = match node {
        Some(found) => value(kind, found, depth, left)?,
        None => absent(kind, depth, left)?,
    };
    Ok((left.text(key)?.to_owned().into(), node))
}

/// Whether a value has the wire type of this kind.
fn fits(kind: WireKind, value: Value<'_>) -> bool {
    match value {
        Value::Varint(_) => matches!(kind, Number | Short | Choice(..)),
        Value::Bytes(_) => !matches!(kind, Number | Short | Choice(..)),
        Value::Other => false,
    }
}

/// The node of a value that fits.
fn value(kind: WireKind, received: Value<'_>, depth: usize, left: &mut Left) -> Decoded<Node> {
    left.take(PART)?;
    match (kind, received) {
        (Text, Value::Bytes(bytes)) => Ok(Node::text(left.text(bytes)?)),
        (Number | Short, Value::Varint(number)) => Ok(Node::Number(number)),
        (Choice(texts, numbers), Value::Varint(number)) => {
            match numbers.iter().position(|known| *known == number) {
                Some(index) => Ok(Node::text(texts[index])),
                None if left.shows_unknown => Ok(Node::text(number.cast_signed().to_string())),
                None => Err(ConvertError::unknown_enum(number)),
            }
        }
        (WireKind::Message(fields), Value::Bytes(bytes)) => message(fields, bytes, depth, left),
        (Only(kind), Value::Bytes(bytes)) => only(kind, bytes, depth, left),
        (Own(codec), Value::Bytes(bytes)) => (codec.read)(bytes, deeper(depth)?, left),
        _ => Ok(Node::empty()),
    }
}

/// The node of a value that was left out.
fn absent(kind: WireKind, depth: usize, left: &mut Left) -> Decoded<Node> {
    match kind {
        Map(_) | List(_) => repeated(kind, 1, &[], depth, left),
        Number | Short | Choice(..) => value(kind, Value::Varint(0), depth, left),
        _ => value(kind, Value::Bytes(&[]), depth, left),
    }
}
