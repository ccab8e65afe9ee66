//! The events of a YAML text, one by one, as the parser finds them.
//!
//! Thread: none, plain values.

use super::{Location, YamlError};
use libyaml_rs as sys;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::slice;

pub(super) enum Event {
    DocumentStart,
    DocumentEnd,
    Alias(String),
    Scalar {
        properties: Properties,
        text: Rc<str>,
        is_plain: bool,
    },
    Start {
        properties: Properties,
        is_map: bool,
    },
    /// Of the list or mapping that was started last.
    End,
    EndOfText,
}

/// The properties before a node. A tag has its whole prefix in place of the handle.
#[derive(Default)]
pub(super) struct Properties {
    pub(crate) anchor: Option<String>,
    pub(crate) tag: Option<String>,
}

pub(super) struct Events<'t> {
    parser: Box<MaybeUninit<sys::yaml_parser_t>>,
    /// The parser reads it as it goes.
    _text: &'t str,
}

impl<'t> Events<'t> {
    #[allow(unsafe_code)]
    pub(super) fn new(text: &'t str) -> Self {
        // Some editors on Windows put a byte order mark first. The parser would take it for
        // content.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut parser = Box::new(MaybeUninit::uninit());
        let raw: *mut sys::yaml_parser_t = parser.as_mut_ptr();
        // SAFETY: the parser is initialised before anything else is done with it. Neither the
        // parser, which stays in its box, nor the text is dropped before `drop` has deleted the
        // parser.
        unsafe {
            let initialised = sys::yaml_parser_initialize(raw);
            assert!(
                initialised.ok,
                "the parser can be initialised: it only allocates, and without memory the program aborts"
            );
            sys::yaml_parser_set_encoding(raw, sys::YAML_UTF8_ENCODING);
            sys::yaml_parser_set_input_string(raw, text.as_ptr(), text.len() as u64);
        }
        Self {
            parser,
            _text: text,
        }
    }

    /// The next event and where it begins.
    #[allow(unsafe_code)]
    pub(super) fn next(&mut self) -> Result<(Event, Location), YamlError> {
        loop {
            let mut raw = MaybeUninit::<sys::yaml_event_t>::uninit();
            // SAFETY: the parser was initialised by `new`. It fills the event. Its type says which
            // part of the data was filled, and only that is read; texts in it are null or end with
            // a zero, and the value of a scalar has its length beside it. The event is deleted once
            // and not used after that.
            let (found, at) = unsafe {
                if !sys::yaml_parser_parse(self.parser.as_mut_ptr(), raw.as_mut_ptr()).ok {
                    return Err(self.failure());
                }
                let event = &*raw.as_ptr();
                let found = match event.type_ {
                    sys::YAML_DOCUMENT_START_EVENT => Some(Event::DocumentStart),
                    sys::YAML_DOCUMENT_END_EVENT => Some(Event::DocumentEnd),
                    sys::YAML_ALIAS_EVENT => Some(Event::Alias(
                        text(event.data.alias.anchor).unwrap_or_default(),
                    )),
                    sys::YAML_SCALAR_EVENT => {
                        let scalar = &event.data.scalar;
                        let length = usize::try_from(scalar.length).unwrap_or_default();
                        Some(Event::Scalar {
                            properties: properties(scalar.anchor, scalar.tag),
                            text: String::from_utf8_lossy(slice::from_raw_parts(
                                scalar.value,
                                length,
                            ))
                            .into(),
                            is_plain: scalar.style == sys::YAML_PLAIN_SCALAR_STYLE,
                        })
                    }
                    sys::YAML_SEQUENCE_START_EVENT => {
                        let start = &event.data.sequence_start;
                        Some(Event::Start {
                            properties: properties(start.anchor, start.tag),
                            is_map: false,
                        })
                    }
                    sys::YAML_MAPPING_START_EVENT => {
                        let start = &event.data.mapping_start;
                        Some(Event::Start {
                            properties: properties(start.anchor, start.tag),
                            is_map: true,
                        })
                    }
                    sys::YAML_SEQUENCE_END_EVENT | sys::YAML_MAPPING_END_EVENT => Some(Event::End),
                    sys::YAML_STREAM_END_EVENT | sys::YAML_NO_EVENT => Some(Event::EndOfText),
                    _ => None,
                };
                let at = Location::of(event.start_mark);
                sys::yaml_event_delete(raw.as_mut_ptr());
                (found, at)
            };
            if let Some(event) = found {
                return Ok((event, at));
            }
        }
    }

    /// The problem of the parser, with its place and context.
    #[allow(unsafe_code)]
    fn failure(&self) -> YamlError {
        // SAFETY: the parser was initialised by `new`.
        let parser = unsafe { &*self.parser.as_ptr() };
        // SAFETY: the text is null or ends with a zero.
        let problem = unsafe { text(parser.problem.cast()) };
        // SAFETY: the text is null or ends with a zero.
        let context = unsafe { text(parser.context.cast()) };
        let at = Location::of(parser.problem_mark);
        let mut message =
            problem.unwrap_or_else(|| "libyaml parser failed but there is no error".to_owned());
        let offset = parser.problem_offset;
        // The parser marks the beginning if it only knows the offset.
        if at == Location::BEGIN && offset != 0 {
            message.push_str(&format!(" at position {offset}"));
        } else {
            message.push_str(&at.suffix());
        }
        if let Some(context) = context {
            message.extend([", ", &context]);
            let context_at = Location::of(parser.context_mark);
            if context_at != at {
                message.push_str(&context_at.suffix());
            }
        }
        YamlError::new(message, Some(at))
    }
}

impl Location {
    fn of(mark: sys::yaml_mark_t) -> Self {
        Self {
            line: from_one(mark.line),
            column: from_one(mark.column),
        }
    }
}

/// A number that counts from 1, of one that counts from 0.
fn from_one(from_zero: u64) -> u32 {
    u32::try_from(from_zero).unwrap_or(u32::MAX - 1) + 1
}

/// SAFETY: each is null, or the beginning of a text that ends with a zero.
#[allow(unsafe_code)]
unsafe fn properties(anchor: *const u8, tag: *const u8) -> Properties {
    // SAFETY: as the caller says.
    unsafe {
        Properties {
            anchor: text(anchor),
            tag: text(tag),
        }
    }
}

/// SAFETY: `start` is null, or the beginning of a text that ends with a zero.
#[allow(unsafe_code)]
unsafe fn text(start: *const u8) -> Option<String> {
    if start.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(start.cast()) };
    Some(text.to_string_lossy().into_owned())
}

impl Drop for Events<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: it was initialised by `new` and is not used any more.
        unsafe { sys::yaml_parser_delete(self.parser.as_mut_ptr()) }
    }
}
