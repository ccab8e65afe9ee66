//! What a workload may request: rules of its manifest against requests. The agent decides by it,
//! and the server once more for what agents forward.
//!
//! Thread: none, plain values. Decides on the model of a request, never on what stood on the wire.

use super::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use super::field_path::{self, WILDCARD};
use super::mask_tree::{Branch, MaskTree};
use super::messages::{RequestContent, UpdateState};
use std::collections::BTreeSet;

/// Comparisons of one request of a workload with places in its rules. A dozen masks for each of
/// 5,000 workloads need half a million; each takes some ten nanoseconds while other workloads of
/// the agent wait.
const STEPS_MAX: usize = 2_000_000;

/// The rules of one workload, split by what they are about. Two are equal when a session need not
/// change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorizer {
    read: Rules<MaskTree>,
    write: Rules<MaskTree>,
    log: Rules<NamePatterns>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rules<P> {
    allow: P,
    deny: P,
}

/// Why a request is denied, for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The request is empty.
    #[error("it requests nothing")]
    Nothing,
    /// No rule allows this mask or workload name.
    #[error("no rule allows '{0}'")]
    NotAllowed(String),
    /// A rule denies it.
    #[error("'{requested}' is denied by '{rule}'")]
    DeniedBy {
        /// The mask or workload name.
        requested: String,
        /// The mask or pattern of the rule.
        rule: String,
    },
    /// Comparing all of it with all rules takes too long.
    #[error(
        "it requests too much at once to compare it with the rules; request less or use fewer wildcards"
    )]
    TooMuch,
}

impl Authorizer {
    /// Splits the rules of a workload.
    pub fn new(access: &ControlInterfaceAccess) -> Self {
        let (allow, deny) = (&access.allow_rules, &access.deny_rules);
        let about = |wanted: Operation| Rules {
            allow: masks(allow, wanted),
            deny: masks(deny, wanted),
        };
        Self {
            read: about(Operation::Read),
            write: about(Operation::Write),
            log: Rules {
                allow: NamePatterns::of(allow),
                deny: NamePatterns::of(deny),
            },
        }
    }

    /// Decides about a request. All that it requests must be allowed, and nothing of it denied.
    ///
    /// # Errors
    /// The first mask or name that decides against it.
    pub fn check(&self, content: &RequestContent) -> Result<(), Denial> {
        let mut steps = Steps(STEPS_MAX);
        match content {
            RequestContent::CompleteState(read) => self.read.check_masks(&read.masks, &mut steps),
            RequestContent::UpdateState(UpdateState {
                new_state,
                masks,
                restart,
            }) => {
                if new_state.is_some() || restart.is_empty() {
                    self.write.check_masks(masks, &mut steps)?;
                }
                // The server compares those that need these as well.
                let mask = |name: &String| format!("desiredState.workloads.{name}");
                restart
                    .iter()
                    .try_for_each(|name| self.write.check_mask(&mask(name), &mut steps))
            }
            RequestContent::Logs(logs) => logs
                .instances
                .iter()
                .try_for_each(|instance| self.log.check_name(&instance.workload, &mut steps)),
            // Only the server has the names that it changes, and compares them with the rules.
            RequestContent::RollBack(_)
            | RequestContent::LogsCancel
            | RequestContent::EventsCancel => Ok(()),
            RequestContent::Missing => Err(Denial::Nothing),
        }
    }

    /// Decides about the masks of a subscription; `None` means everything.
    ///
    /// # Errors
    /// The first mask that decides against it.
    pub fn check_read(&self, masks: Option<&MaskTree>) -> Result<(), Denial> {
        let mut steps = Steps(STEPS_MAX);
        match masks {
            None => self.read.check_parts(&[], &mut steps),
            Some(masks) => masks
                .masks()
                .into_iter()
                .try_for_each(|parts| self.read.check_parts(&parts, &mut steps)),
        }
    }
}

/// The masks of rules about `wanted`. An empty one matches nothing.
fn masks(rules: &[AccessRule], wanted: Operation) -> MaskTree {
    MaskTree::new(rules.iter().flat_map(|rule| match rule {
        AccessRule::State {
            operation,
            filter_masks,
        } if [wanted, Operation::ReadWrite].contains(operation) => {
            filter_masks.iter().map(String::as_str)
        }
        _ => [].iter().map(String::as_str),
    }))
}

/// How many more comparisons one request may take: others wait meanwhile.
struct Steps(usize);

impl Steps {
    fn take(&mut self, count: usize) -> Result<(), Denial> {
        self.0 = self.0.checked_sub(count).ok_or(Denial::TooMuch)?;
        Ok(())
    }
}

impl Rules<MaskTree> {
    /// No mask stands for everything, as one empty mask does.
    fn check_masks(&self, masks: &[String], steps: &mut Steps) -> Result<(), Denial> {
        if masks.is_empty() {
            return self.check_mask("", steps);
        }
        masks
            .iter()
            .try_for_each(|mask| self.check_mask(mask, steps))
    }

    fn check_mask(&self, mask: &str, steps: &mut Steps) -> Result<(), Denial> {
        // The empty mask has no parts, one that ends with a dot has an empty last one.
        let parts = if mask.is_empty() {
            Vec::new()
        } else {
            field_path::parts(mask)
        };
        self.check_parts(&parts, steps)
    }

    fn check_parts(&self, requested: &[&str], steps: &mut Steps) -> Result<(), Denial> {
        // What lies above a rule contains it, so it is concerned as well as what lies below.
        if let Some(rule) = rule_on(&self.deny, requested, true, steps)? {
            return Err(Denial::DeniedBy {
                requested: requested.join("."),
                rule: rule.join("."),
            });
        }
        let for_all = if requested.is_empty() {
            &[WILDCARD]
        } else {
            requested
        };
        match rule_on(&self.allow, for_all, false, steps)? {
            Some(_) => Ok(()),
            None => Err(Denial::NotAllowed(requested.join("."))),
        }
    }
}

/// A rule that covers all that is requested, since it grants everything below it; with `in_part`
/// one about a part of that. A wildcard in a request is granted by a wildcard only, since the
/// server makes every key of it.
fn rule_on<'m>(
    rules: &'m MaskTree,
    requested: &[&str],
    in_part: bool,
    steps: &mut Steps,
) -> Result<Option<Vec<&'m str>>, Denial> {
    steps.take(1)?;
    if rules.ends_here {
        return Ok(Some(Vec::new()));
    }
    let (below, rest): (Vec<&Branch>, _) = match requested.split_first() {
        None if in_part => (rules.below.first().into_iter().collect(), requested),
        None => return Ok(None),
        Some((&WILDCARD, rest)) if in_part => (rules.below.iter().collect(), rest),
        Some((part, rest)) => (rules.on(part).collect(), rest),
    };
    for (key, below) in below {
        if let Some(rule) = rule_on(below, rest, in_part, steps)? {
            return Ok(Some([&[&**key], &rule[..]].concat()));
        }
    }
    Ok(None)
}

/// Names of log rules, each with at most one wildcard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct NamePatterns {
    exact: BTreeSet<String>,
    /// What stands before the wildcard, and what behind it.
    with_wildcard: BTreeSet<(String, String)>,
}

impl NamePatterns {
    fn of(rules: &[AccessRule]) -> Self {
        let mut patterns = Self::default();
        for rule in rules {
            let AccessRule::Log { workload_names } = rule else {
                continue;
            };
            for name in workload_names.iter().filter(|name| !name.is_empty()) {
                match name.split_once(WILDCARD) {
                    Some((start, end)) => drop(
                        patterns
                            .with_wildcard
                            .insert((start.to_owned(), end.to_owned())),
                    ),
                    None => drop(patterns.exact.insert(name.clone())),
                }
            }
        }
        patterns
    }

    /// The pattern that `name` matches.
    fn matching(&self, name: &str, steps: &mut Steps) -> Result<Option<String>, Denial> {
        steps.take(1 + self.with_wildcard.len())?;
        if self.exact.contains(name) {
            return Ok(Some(name.to_owned()));
        }
        let matches = |(start, end): &&(String, String)| {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        };
        Ok(self
            .with_wildcard
            .iter()
            .find(matches)
            .map(|(start, end)| format!("{start}{WILDCARD}{end}")))
    }
}

impl Rules<NamePatterns> {
    fn check_name(&self, name: &str, steps: &mut Steps) -> Result<(), Denial> {
        if let Some(rule) = self.deny.matching(name, steps)? {
            return Err(Denial::DeniedBy {
                requested: name.to_owned(),
                rule,
            });
        }
        if self.allow.matching(name, steps)?.is_some() {
            Ok(())
        } else {
            Err(Denial::NotAllowed(name.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests;
