//! The fields of an encoded message, one after the other, without a copy.
//!
//! Thread: none, plain functions.

use super::{ConvertError, Decoded, MALFORMED};
use protobuf::CodedInputStream;
use protobuf::rt::WireType;

/// A field as it stands in a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceivedField<'b> {
    /// Its number.
    pub(crate) number: u32,
    /// Its value.
    pub(crate) value: Value<'b>,
}

impl<'b> ReceivedField<'b> {
    /// Its bytes, if it has this number.
    pub(crate) fn bytes_of(&self, number: u32) -> Option<&'b [u8]> {
        match self.value {
            Value::Bytes(bytes) if self.number == number => Some(bytes),
            _ => None,
        }
    }
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Value<'b> {
    /// A number.
    Varint(u64),
    /// A text or a message.
    Bytes(&'b [u8]),
    /// What no field of the schema has: numbers of fixed length, and groups.
    Other,
}

/// Iterates over the fields; a malformed one is the last item.
pub(crate) struct Fields<'b> {
    bytes: &'b [u8],
    stream: CodedInputStream<'b>,
}

impl<'b> Fields<'b> {
    /// The fields of the message with these `bytes`.
    pub(crate) fn of(bytes: &'b [u8]) -> Self {
        let mut stream = CodedInputStream::from_bytes(bytes);
        // With its end as a limit, the library fails when it skips past the end; otherwise it
        // panics. A limit can only be refused within a smaller one.
        let _ = stream.push_limit(bytes.len() as u64);
        Self { bytes, stream }
    }

    /// Reads the next field; `None` if it is malformed.
    fn field(&mut self) -> Option<ReceivedField<'b>> {
        // The last three bits of the tag are the wire type, the others the number of the field.
        let tag = self.stream.read_raw_varint32().ok()?;
        let value = match WireType::new(tag & 7)? {
            WireType::Varint => Value::Varint(self.stream.read_raw_varint64().ok()?),
            WireType::LengthDelimited => {
                let length = self.stream.read_raw_varint32().ok()?;
                let begin = usize::try_from(self.stream.pos()).ok()?;
                let bytes = self.bytes.get(begin..)?.get(..length as usize)?;
                self.stream.skip_raw_bytes(length).ok()?;
                Value::Bytes(bytes)
            }
            other => {
                self.stream.skip_field(other).ok()?;
                Value::Other
            }
        };
        let number = tag >> 3;
        if number == 0 {
            return None; // No field can have it.
        }
        Some(ReceivedField { number, value })
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Decoded<ReceivedField<'b>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.stream.eof().is_ok_and(|is_end| is_end) {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            *self = Self::of(&[]); // A malformed field is the last one.
        }
        Some(field.ok_or_else(|| ConvertError(MALFORMED.to_owned())))
    }
}
