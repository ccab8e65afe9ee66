//! The fields of an encoded message, one after the other, without a copy.
//!
//! Thread: none, plain functions.

/// A field as it stands in a message.
#[derive(Debug, Clone, Copy)]
pub struct Field<'b> {
    /// Its number.
    pub number: u32,
    /// What it has.
    pub value: Value<'b>,
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub enum Value<'b> {
    /// A number.
    Varint(u64),
    /// A text or a message.
    Bytes(&'b [u8]),
    /// What no field of the schema has: numbers of fixed length, and groups.
    Other,
}

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// Iterates over the fields; what is malformed is the last item.
#[derive(Debug)]
pub struct Fields<'b>(&'b [u8]);

impl<'b> Fields<'b> {
    /// Those of the message that `bytes` are.
    pub fn of(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    /// Number and wire type.
    fn tag(&mut self) -> Option<(u32, u64)> {
        let tag = read_varint(&mut self.0)?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
        Some((number, tag & 7))
    }

    fn value(&mut self, wire_type: u64) -> Option<Value<'b>> {
        Some(match wire_type {
            0 => Value::Varint(read_varint(&mut self.0)?),
            1 => skip(&mut self.0, 8).map(|_| Value::Other)?,
            2 => {
                let length = usize::try_from(read_varint(&mut self.0)?).ok()?;
                Value::Bytes(skip(&mut self.0, length)?)
            }
            3 => self.skip_group()?,
            5 => skip(&mut self.0, 4).map(|_| Value::Other)?,
            _ => return None,
        })
    }

    fn skip_group(&mut self) -> Option<Value<'b>> {
        let mut open = 1_usize;
        while open > 0 {
            match self.tag()?.1 {
                3 => open += 1,
                4 => open -= 1,
                wire_type => _ = self.value(wire_type)?,
            }
        }
        Some(Value::Other)
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Result<Field<'b>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.tag().and_then(|(number, wire_type)| Some(Field { number, value: self.value(wire_type)? }));
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(Malformed))
    }
}

fn skip<'b>(rest: &mut &'b [u8], length: usize) -> Option<&'b [u8]> {
    let (skipped, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(skipped)
}

/// Takes a number from the beginning.
pub fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
