//! `ank get events`: changes of the state as they happen (spec/cli.md section 10).
//!
//! Thread: `main`. Takes: events. Gives: one document each, at once.

use super::args::Format;
use super::error::CliError;
use super::get::warn_of_unknown_parts;
use super::output::Output;
use super::session::ServerLink;
use super::state_output::event_text;
use crate::model::messages::AlteredFields;
use std::time::SystemTime;

/// What to print, and how far it is.
#[derive(Debug)]
pub struct Events<'a> {
    /// Parts that events are about; none means all.
    pub masks: &'a [String],
    /// Layout of the documents.
    pub format: Format,
    /// Print the state as it is, too, before the first event.
    pub include_current_state: bool,
    /// Events still to print; `None` means for ever.
    pub left: Option<u64>,
    /// The time of each document.
    pub now: fn() -> SystemTime,
}

impl Events<'_> {
    /// Prints events until enough were printed.
    ///
    /// # Errors
    /// The connection ended, the server refused, a signal asked to stop, or standard output cannot be written.
    pub fn follow(&mut self, link: &mut impl ServerLink, output: &mut Output<'_>) -> Result<(), CliError> {
        warn_of_unknown_parts(self.masks, output);
        let masks: Vec<&str> = self.masks.iter().map(String::as_str).collect();
        let current = link.subscribe(&masks)?;
        if self.include_current_state {
            output.result(&event_text((self.now)(), &AlteredFields::default(), &current, self.format))?;
        }
        drop(current); // It may be large, and following goes on for long.
        while self.left != Some(0) {
            let event = link.next_event()?;
            output.result(&event_text((self.now)(), &event.altered, &event.state, self.format))?;
            self.left = self.left.map(|left| left - 1);
        }
        Ok(())
    }

    /// Prepares for another connection: what happened meanwhile shows only in the state as it is then.
    pub fn resume(&mut self) {
        self.include_current_state = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::session::StateEvent;
    use crate::cli::testing::{ScriptedServer, Step};
    use crate::model::node::Node;
    use std::io;
    use std::time::{Duration, UNIX_EPOCH};

    fn at() -> SystemTime {
        UNIX_EPOCH + Duration::new(1_769_860_800, 123_456_789)
    }

    fn event(state: Node, added: &[&str], removed: &[&str]) -> Step {
        let texts = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
        let altered = AlteredFields { added: texts(added), updated: Vec::new(), removed: texts(removed) };
        Step::Event(StateEvent { state, altered })
    }

    fn printed(format: Format, current: bool, left: Option<u64>, steps: Vec<Step>) -> (Result<(), CliError>, String) {
        let mut server = ScriptedServer::new(steps);
        let mut out = Vec::new();
        let mut output = Output::to(&mut out, io::sink(), None);
        let masks = ["desiredState.configs".to_owned()];
        let mut events = Events { masks: &masks, format, include_current_state: current, left, now: at };
        let result = events.follow(&mut server, &mut output);
        drop(output);
        assert_eq!(server.reads, [["desiredState.configs"]]);
        (result, String::from_utf8(out).unwrap())
    }

    fn configs(value: &str) -> Node {
        Node::map([("desiredState", Node::map([("configs", Node::map([("k", Node::text(value))]))]))])
    }

    #[test]
    fn json_events_are_one_line_each_with_the_documented_keys_in_order() {
        let steps = vec![
            Step::State(configs("a")),
            event(configs("b"), &["desiredState.configs.k"], &[]),
            event(Node::empty(), &[], &["desiredState.configs.k"]),
        ];
        let (result, text) = printed(Format::Json, true, Some(2), steps);
        result.unwrap();
        let expected = "\
{\"timestamp\":\"2026-01-31T12:00:00.123456789+00:00\",\"completeState\":{\"desiredState\":{\"configs\":{\"k\":\"a\"}}}}
{\"timestamp\":\"2026-01-31T12:00:00.123456789+00:00\",\"addedFields\":[\"desiredState.configs.k\"],\"completeState\":{\"desiredState\":{\"configs\":{\"k\":\"b\"}}}}
{\"timestamp\":\"2026-01-31T12:00:00.123456789+00:00\",\"removedFields\":[\"desiredState.configs.k\"],\"completeState\":{}}
";
        assert_eq!(text, expected);
    }

    #[test]
    fn yaml_events_are_documents_without_empty_lines() {
        let steps = vec![Step::State(configs("a")), event(configs("b"), &["desiredState.configs.k"], &["x"])];
        let (result, text) = printed(Format::Yaml, false, None, steps);
        let error = result.unwrap_err();
        assert_eq!(error.to_string(), "Command failed: 'Connection to server interrupted'");
        assert!(error.may_pass());
        let expected = "\
---
timestamp: 2026-01-31T12:00:00.123456789+00:00
addedFields:
- desiredState.configs.k
removedFields:
- x
completeState:
  desiredState:
    configs:
      k: b
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_signal_ends_the_events_without_a_message() {
        let (result, text) = printed(Format::Json, false, None, vec![Step::State(configs("a")), Step::Signal]);
        assert!(result.unwrap_err().is_interrupted());
        assert_eq!(text, "");
    }

    #[test]
    fn a_refused_subscription_says_why() {
        let (result, _) = printed(Format::Json, false, None, vec![Step::Refuse("too many")]);
        let expected = "Command failed: 'Event subscription failed: 'too many''";
        assert_eq!(result.unwrap_err().to_string(), expected);
    }
}
