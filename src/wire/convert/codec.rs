//! One description of a message for both directions: what it says about its fields is written, or read field by field.
//!
//! Thread: whichever reads or writes the stream.
//!
//! What is read has a bound in memory, since a message of tiny parts takes many times its bytes: two bytes are enough for an
//! empty workload. Fields that are unknown, or have another wire type, are skipped; of a field that is there twice the
//! last one counts.

use super::fields::{Field, Fields, Malformed, Value};
use super::tree::writer::Writer;
use super::{ConvertError, MALFORMED, NO_TEXT};
use crate::model::workload::DeleteCondition;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What becomes of bytes.
pub type Decoded<T> = Result<T, ConvertError>;

/// What a part takes beside its content, in bytes: itself, and its place in a map or list that has grown.
pub const PART: usize = 96;
/// Memory that any message may take when it is decoded, in bytes: some 100,000 small parts.
const DECODED_ALWAYS: usize = 16 * 1024 * 1024;
/// Further memory, as a multiple of the message's own bytes. States of people take three to five times their bytes; a
/// message of tiny parts would take a hundred times.
const DECODED_FACTOR: usize = 8;

/// What a message may still take in memory when it is decoded.
#[derive(Debug)]
pub struct Left {
    /// Bytes of the message.
    length: usize,
    max: usize,
    left: usize,
    /// Why the message is refused although it is one.
    refused: Option<String>,
}

impl Left {
    /// For a message from outside.
    pub fn of(bytes: &[u8]) -> Self {
        Self::at_most(DECODED_ALWAYS.saturating_add(bytes.len().saturating_mul(DECODED_FACTOR)), bytes)
    }

    pub fn at_most(max: usize, bytes: &[u8]) -> Self {
        Self { length: bytes.len(), max, left: max, refused: None }
    }

    /// For a message of the server, which is trusted.
    pub fn unbounded() -> Self {
        Self::at_most(usize::MAX, &[])
    }

    pub fn taken(&self) -> usize {
        self.max - self.left
    }

    pub fn take(&mut self, bytes: usize) -> Decoded<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => self.left = left,
            None => {
                let (length, max) = (self.length, self.max);
                return Err(self.refuse(format!(
                    "a message of {length} bytes that takes more than {max} bytes of memory when it is decoded"
                )));
            }
        }
        Ok(())
    }

    pub fn refuse(&mut self, reason: String) -> ConvertError {
        ConvertError(self.refused.insert(reason).clone())
    }

    pub fn refused(&self) -> Option<&String> {
        self.refused.as_ref()
    }

    /// The text that `bytes` are.
    pub fn text(&mut self, bytes: &[u8]) -> Decoded<String> {
        self.take(bytes.len())?;
        let text = std::str::from_utf8(bytes).map_err(|_| ConvertError(NO_TEXT.to_owned()))?;
        Ok(text.to_owned())
    }
}

impl From<Malformed> for ConvertError {
    fn from(_: Malformed) -> Self {
        Self(MALFORMED.to_owned())
    }
}

/// Writes a message, or holds one field of it that is read.
pub enum Codec<'c> {
    Write(&'c mut Writer),
    Read(Field<'c>, &'c mut Left),
}

/// Gives each field of a message to `body`.
pub fn read_fields(bytes: &[u8], left: &mut Left, mut body: impl FnMut(&mut Codec<'_>) -> Decoded<()>) -> Decoded<()> {
    Fields::of(bytes).try_for_each(|field| body(&mut Codec::Read(field?, left)))
}

/// The bytes of a message.
pub fn to_bytes(message: &mut impl Message) -> Vec<u8> {
    let mut writer = Writer::default();
    let _ = message.fields(&mut Codec::Write(&mut writer)); // Only reading fails.
    writer.bytes
}

/// The message that `bytes` are.
pub fn from_bytes<M: Message>(bytes: &[u8], left: &mut Left) -> Decoded<M> {
    let mut message = M::default();
    read_fields(bytes, left, |codec| message.fields(codec))?;
    Ok(message)
}

/// The last of the fields with this number, which holds bytes.
pub fn last_of(bytes: &[u8], number: u32) -> Option<&[u8]> {
    let fields = Fields::of(bytes).map_while(Result::ok);
    let contents = fields.filter_map(|field| match field.value {
        Value::Bytes(bytes) if field.number == number => Some(bytes),
        _ => None,
    });
    contents.last()
}

impl Codec<'_> {
    /// The number of the message or text that is read, 0 for another field; `None` while writing.
    pub fn number(&self) -> Option<u32> {
        match self {
            Self::Write(_) => None,
            Self::Read(Field { number, value: Value::Bytes(_) }, _) => Some(*number),
            Self::Read(..) => Some(0),
        }
    }

    fn is(&self, wanted: u32) -> bool {
        matches!(self, Self::Read(field, _) if field.number == wanted)
    }

    /// A message of its own.
    pub fn nested(&mut self, number: u32, mut body: impl FnMut(&mut Codec<'_>) -> Decoded<()>) -> Decoded<()> {
        match self {
            Self::Write(writer) => {
                let mut written = Ok(());
                writer.nested(number, |writer| written = body(&mut Codec::Write(writer)));
                written
            }
            Self::Read(Field { number: found, value: Value::Bytes(bytes) }, left) if *found == number => {
                read_fields(bytes, left, body)
            }
            Self::Read(..) => Ok(()),
        }
    }

    fn item<T: Item>(&mut self, number: u32) -> Decoded<Option<T>> {
        match self {
            Self::Read(field, left) if field.number == number => T::read(field.value, left),
            _ => Ok(None),
        }
    }

    pub fn field<T: Item>(&mut self, number: u32, value: &mut T) -> Decoded<()> {
        match self {
            Self::Write(_) if value.is_left_out() => {}
            Self::Write(writer) => value.write(number, writer),
            Self::Read(..) => self.item(number)?.into_iter().for_each(|item| *value = item),
        }
        Ok(())
    }

    pub fn optional<T: Item>(&mut self, number: u32, value: &mut Option<T>) -> Decoded<()> {
        match self {
            Self::Write(writer) => value.iter_mut().for_each(|item| item.write(number, writer)),
            Self::Read(..) => self.item(number)?.into_iter().for_each(|item| *value = Some(item)),
        }
        Ok(())
    }

    pub fn list<T: Item>(&mut self, number: u32, values: &mut Vec<T>) -> Decoded<()> {
        match self {
            Self::Write(writer) => values.iter_mut().for_each(|item| item.write(number, writer)),
            Self::Read(Field { number: found, .. }, left) if *found == number => {
                left.take(PART)?;
                values.extend(self.item(number)?);
            }
            Self::Read(..) => {}
        }
        Ok(())
    }

    pub fn map<K, V>(&mut self, number: u32, values: &mut BTreeMap<K, V>) -> Decoded<()>
    where
        K: Item + Default + Ord + Clone,
        V: Item + Default,
    {
        let entry = |codec: &mut Self, key: &mut K, value: &mut V| {
            codec.nested(number, |codec| {
                codec.field(1, key)?;
                codec.field(2, value)
            })
        };
        if let Self::Write(_) = self {
            return values.iter_mut().try_for_each(|(key, value)| entry(self, &mut key.clone(), value));
        }
        if self.is(number) {
            let (mut key, mut value) = (K::default(), V::default());
            entry(self, &mut key, &mut value)?;
            if let Self::Read(_, left) = self {
                left.take(PART + size_of::<V>())?;
            }
            values.insert(key, value);
        }
        Ok(())
    }
}

/// What a field holds.
pub trait Item: Sized {
    fn write(&mut self, number: u32, writer: &mut Writer);

    /// `None` when it has another wire type, or lacks what it needs.
    fn read(value: Value<'_>, left: &mut Left) -> Decoded<Option<Self>>;

    /// Whether a field that has to have a value is not written.
    fn is_left_out(&self) -> bool {
        false
    }
}

/// A message that says what it has.
pub trait Message: Default {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()>;
}

impl<M: Message> Item for M {
    fn write(&mut self, number: u32, writer: &mut Writer) {
        // Only reading fails.
        writer.nested(number, |writer| drop(self.fields(&mut Codec::Write(writer))));
    }

    fn read(value: Value<'_>, left: &mut Left) -> Decoded<Option<Self>> {
        let Value::Bytes(bytes) = value else { return Ok(None) };
        left.take(PART + size_of::<M>())?;
        from_bytes(bytes, left).map(Some)
    }
}

macro_rules! text {
    ($($type:ty),+) => { $(
        impl Item for $type {
            fn write(&mut self, number: u32, writer: &mut Writer) {
                writer.text(number, self);
            }

            fn read(value: Value<'_>, left: &mut Left) -> Decoded<Option<Self>> {
                if let Value::Bytes(bytes) = value { Ok(Some(left.text(bytes)?.into())) } else { Ok(None) }
            }

            fn is_left_out(&self) -> bool {
                self.is_empty()
            }
        }
    )+ };
}
text!(String, Arc<str>);

/// Numbers, and how one is made of that on the wire.
macro_rules! number {
    ($($type:ty: $from:expr),+) => { $(
        impl Item for $type {
            fn write(&mut self, number: u32, writer: &mut Writer) {
                writer.number(number, *self as u64);
            }

            fn read(value: Value<'_>, _: &mut Left) -> Decoded<Option<Self>> {
                let Value::Varint(number) = value else { return Ok(None) };
                let from: fn(u64) -> Decoded<Self> = $from;
                from(number).map(Some)
            }

            fn is_left_out(&self) -> bool {
                *self as u64 == 0
            }
        }
    )+ };
}
number!(
    u64: Ok,
    u32: |number| Ok(number as u32),
    i32: |number| Ok(number as i32),
    bool: |number| Ok(number != 0),
    DeleteCondition: |number| match number {
        0 => Ok(Self::Running),
        1 => Ok(Self::NotPendingNorRunning),
        unknown => Err(ConvertError::unknown_enum(unknown)),
    }
);

/// A message that is one of several: `number => Variant { field: name } { what it has }`.
macro_rules! one_of {
    ($codec:ident, $value:expr, $type:ident:
     $($number:literal => $variant:ident { $($field:tt: $name:ident),* } $body:block)+) => {
        match $codec.number() {
            $(Some($number) => {
                let mut new = $type::$variant { $($field: Default::default()),* };
                $codec.nested($number, |$codec| {
                    if let $type::$variant { $($field: $name),* } = &mut new $body
                    let _ = &$codec;
                    Ok(())
                })?;
                *$value = Some(new);
            })+
            Some(_) => {}
            None => match $value {
                $(Some($type::$variant { $($field: $name),* }) => $codec.nested($number, |$codec| {
                    $body
                    let _ = &$codec;
                    Ok(())
                })?,)+
                _ => {}
            },
        }
    };
}
pub(super) use one_of;
