//! What a YAML text becomes when it is read, counted without reading it: aliases and tag prefixes make much of little.
//!
//! Thread: none, plain functions.
//!
//! The reader keeps all events of a document and follows each alias to its anchor again, so neither a text nor what is
//! made of it is bounded by the length of the text. Here the events are counted one by one and dropped.

use super::YamlError;
use crate::limits::{YAML_DEPTH_MAX, YAML_INDENT, YAML_NODE};
use libyaml_rs as sys;
use std::collections::HashMap;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ops::{Add, Sub};
use std::slice;

/// Counts what `text` becomes, in bytes; each node counts [`YAML_NODE`] beside its text. Other errors of the text
/// are left to its reader.
///
/// # Errors
/// [`YamlError`] when it is more than `budget`, when nodes are nested too deep, or when a node contains itself.
pub fn expanded_size(text: &str, budget: usize) -> Result<usize, YamlError> {
    let mut counter = Counter { budget, spent: Size::default(), open: Vec::new(), anchors: HashMap::new() };
    let mut events = Events::new(text);
    while let Some(event) = events.next() {
        counter.take(event)?;
    }
    Ok(counter.spent.bytes)
}

/// What a part of a text becomes.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    bytes: usize,
    /// Lines it has when it is written again; each may be indented.
    lines: usize,
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), lines: self.lines.saturating_add(other.lines) }
    }
}

impl Sub for Size {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), lines: self.lines.saturating_sub(other.lines) }
    }
}

/// An anchored node; without size while it has not ended.
type Anchored = Option<Size>;

struct Counter {
    budget: usize,
    spent: Size,
    /// Lists and mappings that have not ended, with their anchor and what was spent before them.
    open: Vec<(Option<Vec<u8>>, Size)>,
    anchors: HashMap<Vec<u8>, Anchored>,
}

impl Counter {
    fn take(&mut self, event: Event) -> Result<(), YamlError> {
        match event {
            Event::Document => self.anchors.clear(),
            Event::Scalar { anchor, size } => {
                let before = self.spent;
                self.spend(size)?;
                if let Some(anchor) = anchor {
                    self.anchors.insert(anchor, Some(self.spent - before));
                }
            }
            Event::Start { anchor, size } => {
                if self.open.len() >= YAML_DEPTH_MAX {
                    return Err(refused(format!("lists and mappings are nested more than {YAML_DEPTH_MAX} deep")));
                }
                if let Some(anchor) = &anchor {
                    self.anchors.insert(anchor.clone(), None);
                }
                self.open.push((anchor, self.spent));
                // Its end is an event of its own.
                self.spend(size + Size { bytes: YAML_NODE, lines: 0 })?;
            }
            Event::End => {
                if let Some((Some(anchor), before)) = self.open.pop() {
                    self.anchors.insert(anchor, Some(self.spent - before));
                }
            }
            Event::Alias { anchor } => match self.anchors.get(&anchor) {
                Some(Some(size)) => self.spend(*size + Size { bytes: YAML_NODE, lines: 0 })?,
                Some(None) => {
                    let name = String::from_utf8_lossy(&anchor).into_owned();
                    return Err(refused(format!("the alias '*{name}' is inside of its own anchor")));
                }
                None => {} // An error of its reader.
            },
        }
        Ok(())
    }

    fn spend(&mut self, size: Size) -> Result<(), YamlError> {
        let indented = size.lines.saturating_mul(YAML_INDENT * self.open.len());
        self.spent = self.spent + size + Size { bytes: indented, lines: 0 };
        if self.spent.bytes <= self.budget {
            return Ok(());
        }
        let budget = self.budget;
        Err(refused(format!(
            "the YAML text becomes more than {budget} bytes when its aliases are followed (each node counts \
             {YAML_NODE} bytes beside its text); use fewer aliases or several smaller texts"
        )))
    }
}

fn refused(message: String) -> YamlError {
    YamlError { message, location: None }
}

// ----------------------------------------------------------------- events

/// An event, as far as it counts.
enum Event {
    Document,
    Alias { anchor: Vec<u8> },
    Scalar { anchor: Option<Vec<u8>>, size: Size },
    Start { anchor: Option<Vec<u8>>, size: Size },
    End,
}

/// The events of a text, up to its end or to the first mistake.
struct Events<'t> {
    parser: Box<MaybeUninit<sys::yaml_parser_t>>,
    /// The parser reads it as it goes.
    _text: &'t str,
}

impl<'t> Events<'t> {
    #[allow(unsafe_code)]
    fn new(text: &'t str) -> Self {
        let mut parser = Box::new(MaybeUninit::uninit());
        let raw: *mut sys::yaml_parser_t = parser.as_mut_ptr();
        // SAFETY: the parser is initialised before anything else is done with it. It stays where it is, in its box, and
        // the text lives as long as `Self`; both are gone only after `drop` deleted the parser.
        unsafe {
            let initialised = sys::yaml_parser_initialize(raw);
            assert!(initialised.ok, "the parser can be initialised: it only allocates, which ends the program itself");
            sys::yaml_parser_set_encoding(raw, sys::YAML_UTF8_ENCODING);
            sys::yaml_parser_set_input_string(raw, text.as_ptr(), text.len() as u64);
        }
        Self { parser, _text: text }
    }

    #[allow(unsafe_code)]
    fn next(&mut self) -> Option<Event> {
        loop {
            let mut raw = MaybeUninit::<sys::yaml_event_t>::uninit();
            // SAFETY: the parser was initialised by `new`. It fills the event. Its type says which part of the data was
            // filled, and only that is read; texts in it are null or end with a zero, and the value of a scalar has its
            // length beside it. The event is deleted once and not used after that.
            let found = unsafe {
                if !sys::yaml_parser_parse(self.parser.as_mut_ptr(), raw.as_mut_ptr()).ok {
                    return None;
                }
                let event = &*raw.as_ptr();
                let text =
                    |start: *const u8| (!start.is_null()).then(|| CStr::from_ptr(start.cast()).to_bytes().to_vec());
                // A tag stands here with the whole prefix it is written with.
                let node = |anchor: *const u8, tag: *const u8| {
                    let (anchor, tag) = (text(anchor), text(tag));
                    let names = anchor.as_ref().map_or(0, Vec::len) + tag.map_or(0, |tag| tag.len());
                    (anchor, Size { bytes: YAML_NODE + names, lines: 1 })
                };
                let found = match event.type_ {
                    sys::YAML_DOCUMENT_START_EVENT => Found::Counts(Event::Document),
                    sys::YAML_ALIAS_EVENT => {
                        Found::Counts(Event::Alias { anchor: text(event.data.alias.anchor).unwrap_or_default() })
                    }
                    sys::YAML_SCALAR_EVENT => {
                        let scalar = &event.data.scalar;
                        let length = usize::try_from(scalar.length).unwrap_or(usize::MAX);
                        let value = slice::from_raw_parts(scalar.value, length);
                        let (anchor, mut size) = node(scalar.anchor, scalar.tag);
                        size.bytes += length;
                        size.lines += value.iter().filter(|byte| **byte == b'\n').count();
                        Found::Counts(Event::Scalar { anchor, size })
                    }
                    sys::YAML_SEQUENCE_START_EVENT => {
                        let (anchor, size) = node(event.data.sequence_start.anchor, event.data.sequence_start.tag);
                        Found::Counts(Event::Start { anchor, size })
                    }
                    sys::YAML_MAPPING_START_EVENT => {
                        let (anchor, size) = node(event.data.mapping_start.anchor, event.data.mapping_start.tag);
                        Found::Counts(Event::Start { anchor, size })
                    }
                    sys::YAML_SEQUENCE_END_EVENT | sys::YAML_MAPPING_END_EVENT => Found::Counts(Event::End),
                    sys::YAML_STREAM_END_EVENT | sys::YAML_NO_EVENT => Found::EndOfText,
                    _ => Found::MeansNothing,
                };
                sys::yaml_event_delete(raw.as_mut_ptr());
                found
            };
            match found {
                Found::Counts(event) => return Some(event),
                Found::MeansNothing => {}
                Found::EndOfText => return None,
            }
        }
    }
}

impl Drop for Events<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was initialised by `new` and is not used any more.
        unsafe { sys::yaml_parser_delete(self.parser.as_mut_ptr()) }
    }
}

enum Found {
    Counts(Event),
    MeansNothing,
    EndOfText,
}
