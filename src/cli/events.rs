//! `ank get events`: changes of the state as they happen.
//!
//! Thread: `main`. Takes: events. Gives: one document each, at once.

use super::args::{EventsArguments, Until};
use super::error::{CliError, ExitCode, shown};
use super::get::warn_of_unknown_parts;
use super::output::Output;
use super::rows::entries;
use super::session::{Incoming, ServerLink};
use super::state_output::event_text;
use crate::model::field_path::{WILDCARD, parts};
use crate::model::messages::AlteredFields;
use crate::model::node::Node;
use crate::platform::clock::Clock;
use std::time::{Duration, Instant, SystemTime};

impl Until {
    /// Whether a field of `state`, which may hold only changes, has the value.
    fn is_met(&self, state: &Node) -> bool {
        fn any(node: &Node, path: &[&str], value: &str) -> bool {
            match path {
                [] => node.as_text().map_or_else(
                    || node.as_number().is_some_and(|number| number.to_string() == value),
                    |text| text == value,
                ),
                [WILDCARD, below @ ..] => entries(Some(node)).any(|(_, node)| any(node, below, value)),
                [name, below @ ..] => node.get(name).is_some_and(|node| any(node, below, value)),
            }
        }
        any(state, &parts(&self.mask), &self.value)
    }
}

/// The progress of `get events`, which goes on when the connection is lost and made again.
#[derive(Debug)]
pub struct Events<'a> {
    arguments: &'a EventsArguments,
    /// Events still to print; `None` means no limit.
    left: Option<u64>,
    /// The end of the time to follow; `None` before the first subscription, or without a limit.
    give_up: Option<Instant>,
    /// Whether a subscription was begun before.
    subscribed: bool,
    /// The time of each document.
    now: fn() -> SystemTime,
}

impl<'a> Events<'a> {
    /// Nothing was printed yet.
    pub fn new(arguments: &'a EventsArguments, now: fn() -> SystemTime) -> Self {
        Self { arguments, left: arguments.count, give_up: None, subscribed: false, now }
    }

    /// Prints events until enough were printed, for at most `limit` in all. After a lost connection it prints the current
    /// state first: that is all that can be known about the time between.
    pub fn follow(
        &mut self,
        limit: Option<Duration>,
        link: &mut impl ServerLink,
        clock: &impl Clock,
        output: &mut Output<'_>,
    ) -> Result<ExitCode, CliError> {
        let EventsArguments { output: format, include_current_state, until, masks, .. } = self.arguments;
        let is_resumed = std::mem::replace(&mut self.subscribed, true);
        self.give_up = self.give_up.or_else(|| clock.now().checked_add(limit?));
        let field = until.as_ref().map(|until| until.mask.clone());
        let masks: Vec<String> = masks.iter().cloned().chain(field).collect();
        warn_of_unknown_parts(&masks, &[], output);
        let current = link.subscribe(&masks.iter().map(String::as_str).collect::<Vec<_>>())?;
        if *include_current_state || is_resumed {
            output.result(&event_text((self.now)(), &AlteredFields::default(), &current, *format))?;
        }
        let met = |state: &Node| until.as_ref().is_some_and(|until| until.is_met(state));
        let mut done = self.left == Some(0) || met(&current);
        drop(current); // It may be large, and following may take long.
        while !done {
            match link.next(self.give_up)? {
                Some(Incoming::Event(state, altered)) => {
                    output.result(&event_text((self.now)(), &altered, &state, *format))?;
                    self.left = self.left.map(|left| left - 1);
                    done = self.left == Some(0) || met(&state);
                }
                Some(_) => {}
                None => {
                    let limit = shown(limit.unwrap_or_default());
                    output.error(format_args!("gave up waiting for events after '{limit}'"), None);
                    return Ok(ExitCode::GaveUp);
                }
            }
        }
        Ok(ExitCode::Success)
    }

    /// Whether a signal is the usual end. It is not where an end is awaited: a script must not take the signal for it.
    pub fn end_by_signal(&self) -> bool {
        self.arguments.until.is_none() && self.arguments.count.is_none()
    }

    /// Whether a lost connection is made again: only after a first subscription, and within the limit.
    pub fn reconnect(&self, clock: &impl Clock) -> bool {
        self.arguments.reconnect && self.subscribed && self.give_up.is_none_or(|at| clock.now() < at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Format;
    use crate::cli::tests::{Step, play};
    use std::time::UNIX_EPOCH;

    fn at() -> SystemTime {
        UNIX_EPOCH + Duration::new(1_769_860_800, 123_456_789)
    }

    fn event(state: Node, added: &[&str], removed: &[&str]) -> Step {
        let texts = |paths: &[&str]| paths.iter().map(ToString::to_string).collect();
        let altered = AlteredFields { added: texts(added), updated: Vec::new(), removed: texts(removed) };
        Step::Event(state, altered)
    }

    type Printed = (Result<ExitCode, CliError>, String);

    fn printed(format: Format, current: bool, left: Option<u64>, steps: Vec<Step>) -> Printed {
        followed(format, current, left, None, steps)
    }

    fn followed(format: Format, current: bool, left: Option<u64>, until: Option<&Until>, steps: Vec<Step>) -> Printed {
        let arguments = EventsArguments {
            output: format,
            include_current_state: current,
            count: left,
            until: until.cloned(),
            reconnect: false,
            masks: vec!["desiredState.configs".to_owned()],
        };
        let limit = Some(Duration::from_secs(5));
        let played =
            play(None, steps, |server, clock, output| Events::new(&arguments, at).follow(limit, server, clock, output));
        let field = until.map(|until| until.mask.as_str());
        assert_eq!(played.server.reads, [["desiredState.configs"].into_iter().chain(field).collect::<Vec<_>>()]);
        (played.result, played.out)
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
        assert!(error.is_transient());
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
    fn events_end_when_a_field_has_its_value_even_if_it_had_it_before() {
        let until = |mask: &str, value: &str| Until { mask: mask.to_owned(), value: value.to_owned() };
        let k = until("desiredState.*.k", "b");
        let steps = |values: &[&str]| {
            let events = values[1..].iter().map(|value| event(configs(value), &["desiredState.configs.k"], &[]));
            std::iter::once(Step::State(configs(values[0]))).chain(events).collect::<Vec<_>>()
        };
        for (values, until, lines) in [
            (&["b"][..], &k, 0),
            (&["a", "b"], &k, 1),
            (&["a", "c", "b"], &k, 2),
            (&["a", "b"], &until("desiredState.configs.k", "b"), 1),
        ] {
            let (result, text) = followed(Format::Json, false, None, Some(until), steps(values));
            assert_eq!((result.unwrap(), text.lines().count()), (ExitCode::Success, lines), "{values:?}");
        }
        let (result, _) = followed(Format::Json, false, None, Some(&until("desiredState.configs", "b")), steps(&["b"]));
        assert!(result.unwrap_err().is_transient(), "a map has no value");
        assert!(until("a.n", "7").is_met(&Node::map([("a", Node::map([("n", Node::Number(7))]))])));
    }

    #[test]
    fn following_can_be_given_up() {
        let steps = vec![Step::State(configs("a")), Step::Silence(Duration::from_secs(9))];
        let (result, text) = printed(Format::Json, false, None, steps);
        assert_eq!((result.unwrap(), text.as_str()), (ExitCode::GaveUp, ""));
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
