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
    /// Those of the message that `bytes` are.
    pub(crate) fn of(bytes: &'b [u8]) -> Self {
        let mut stream = CodedInputStream::from_bytes(bytes);
        // Without the end as a limit the library panics when it skips more than there is. It fails
        // only within another one.
        let _ = stream.push_limit(bytes.len() as u64);
        Self { bytes, stream }
    }

    fn field(&mut self) -> Option<ReceivedField<'b>> {
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
            other => self.stream.skip_field(other).map(|()| Value::Other).ok()?,
        };
        Some(ReceivedField {
            number: tag >> 3,
            value,
        })
        .filter(|field| field.number > 0)
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
            *self = Self::of(&[]);
        }
        Some(field.ok_or_else(|| ConvertError(MALFORMED.to_owned())))
    }
}
