//! Execution states: each phase is one number of one field.
//!
//! Thread: whichever reads or writes the stream.

use super::ConvertError;
use super::codec::{Codec, Decoded, Message};
use super::fields::{Field, Value};
use super::tree::writer::Writer;
use crate::model::execution_state::Phase;

/// Field and number of each phase, in their order.
const NUMBERS: [(u32, u64); Phase::ALL.len()] = [
    (2, 0),
    (3, 0),
    (3, 1),
    (3, 2),
    (3, 8),
    (4, 0),
    (5, 0),
    (5, 1),
    (5, 2),
    (5, 8),
    (6, 0),
    (7, 0),
    (7, 1),
    (7, 2),
    (8, 0),
    (9, 0),
];

/// Adds the fields of an execution state.
pub fn write(writer: &mut Writer, info: Option<&str>, phase: Option<Phase>) {
    info.into_iter().for_each(|info| writer.text(1, info));
    if let Some(phase) = phase {
        let (field, number) = NUMBERS[phase as usize];
        writer.number(field, number);
    }
}

/// An execution state as it is read.
#[derive(Default)]
pub struct Read {
    pub info: Option<String>,
    phase: Option<(u32, u64)>,
}

impl Read {
    /// # Errors
    /// A number that is unknown.
    pub fn phase(&self) -> Decoded<Option<Phase>> {
        let Some((_, number)) = self.phase else { return Ok(None) };
        let index = NUMBERS.iter().position(|numbers| Some(*numbers) == self.phase);
        index.map(|index| Some(Phase::ALL[index].0)).ok_or_else(|| ConvertError::unknown_enum(number))
    }
}

impl Message for Read {
    fn fields(&mut self, codec: &mut Codec<'_>) -> Decoded<()> {
        if let Codec::Read(Field { number: field @ 2..=9, value: Value::Varint(number) }, _) = codec {
            self.phase = Some((*field, *number));
        }
        codec.optional(1, &mut self.info)
    }
}
