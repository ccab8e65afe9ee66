//! Authorizes requests of workloads by the rules of their manifests: in the agent, and again in the
//! server for requests that agents forward.
//!
//! Thread: none, plain values. Decides on the model of a request, never on its bytes.

use super::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use super::field_path::{self, WILDCARD};
use super::mask_tree::{Branch, MaskTree};
use super::messages::{RequestContent, StopAndStart, UpdateState};
use std::collections::BTreeSet;

/// Limit of comparisons of one request with places in the rules. A dozen masks for each of 5,000
/// workloads need half a million; each takes some ten nanoseconds while other workloads of the
/// agent wait.
const STEPS_MAX: usize = 2_000_000;

/// The rules of one workload, split by their kind. Two are equal if a session need not change.
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
        Self {
            read: Rules::of_operation(access, Operation::Read),
            write: Rules::of_operation(access, Operation::Write),
            log: Rules {
                allow: NamePatterns::of(&access.allow_rules),
                deny: NamePatterns::of(&access.deny_rules),
            },
        }
    }

    /// Authorizes a request: all masks and names in it must be allowed, and none denied.
    ///
    /// # Errors
    /// The first mask or name that is denied or not allowed.
    pub fn check(&self, content: &RequestContent) -> Result<(), Denial> {
        let mut steps = Steps(STEPS_MAX);
        match content {
            RequestContent::CompleteState(read) => self.read.check_masks(&read.masks, &mut steps),
            RequestContent::UpdateState(UpdateState {
                new_state,
                masks,
                restart,
            }) => {
                // A request that only restarts workloads has no masks.
                let only_restarts = new_state.is_none() && !restart.is_empty();
                if !only_restarts {
                    self.write.check_masks(masks, &mut steps)?;
                }
                // The server also checks the dependents of these workloads.
                self.check_workloads(restart, &mut steps)
            }
            RequestContent::StopAndStart(StopAndStart { stop, start }) => {
                if stop.is_empty() && start.is_empty() {
                    return Err(Denial::Nothing);
                }
                self.check_workloads(stop, &mut steps)?;
                self.check_workloads(start, &mut steps)
            }
            RequestContent::Logs(logs) => {
                for instance in &logs.instances {
                    self.log.check_name(&instance.workload, &mut steps)?;
                }
                Ok(())
            }
            // Only the server has the names that a rollback changes, and checks them.
            RequestContent::RollBack(_)
            | RequestContent::LogsCancel
            | RequestContent::EventsCancel => Ok(()),
            RequestContent::Missing => Err(Denial::Nothing),
        }
    }

    /// A restart, stop or start of a workload needs the right to write it.
    fn check_workloads(&self, names: &[String], steps: &mut Steps) -> Result<(), Denial> {
        for name in names {
            let mask = format!("desiredState.workloads.{name}");
            self.write.check_mask(&mask, steps)?;
        }
        Ok(())
    }

    /// Authorizes the masks of a subscription; `None` means everything.
    ///
    /// # Errors
    /// The first mask that is denied or not allowed.
    pub fn check_read(&self, masks: Option<&MaskTree>) -> Result<(), Denial> {
        let mut steps = Steps(STEPS_MAX);
        let Some(masks) = masks else {
            return self.read.check_parts(&[], &mut steps);
        };
        for parts in masks.masks() {
            self.read.check_parts(&parts, &mut steps)?;
        }
        Ok(())
    }
}

/// Returns the masks of rules about `wanted`. An empty mask matches nothing.
fn masks(rules: &[AccessRule], wanted: Operation) -> MaskTree {
    let mut masks = Vec::new();
    for rule in rules {
        if let AccessRule::State {
            operation,
            filter_masks,
        } = rule
            && [wanted, Operation::ReadWrite].contains(operation)
        {
            masks.extend(filter_masks.iter().map(String::as_str));
        }
    }
    MaskTree::new(masks)
}

/// Remaining comparisons of one request: other requests wait meanwhile.
struct Steps(usize);

impl Steps {
    fn take(&mut self, count: usize) -> Result<(), Denial> {
        self.0 = self.0.checked_sub(count).ok_or(Denial::TooMuch)?;
        Ok(())
    }
}

impl Rules<MaskTree> {
    fn of_operation(access: &ControlInterfaceAccess, wanted: Operation) -> Self {
        Self {
            allow: masks(&access.allow_rules, wanted),
            deny: masks(&access.deny_rules, wanted),
        }
    }

    /// Without a mask the request is about everything, as with one empty mask.
    fn check_masks(&self, masks: &[String], steps: &mut Steps) -> Result<(), Denial> {
        if masks.is_empty() {
            return self.check_mask("", steps);
        }
        for mask in masks {
            self.check_mask(mask, steps)?;
        }
        Ok(())
    }

    fn check_mask(&self, mask: &str, steps: &mut Steps) -> Result<(), Denial> {
        // The empty mask has no parts; a mask that ends with a dot has an empty last part.
        if mask.is_empty() {
            return self.check_parts(&[], steps);
        }
        self.check_parts(&field_path::parts(mask), steps)
    }

    /// Authorizes a mask, given by its parts.
    fn check_parts(&self, requested: &[&str], steps: &mut Steps) -> Result<(), Denial> {
        // A deny rule also applies to a request above its mask, which contains the denied part.
        if let Some(rule) = rule_on(&self.deny, requested, true, steps)? {
            return Err(Denial::DeniedBy {
                requested: requested.join("."),
                rule: rule.join("."),
            });
        }
        // A request for everything needs a rule for every key at the top.
        let to_allow = if requested.is_empty() {
            &[WILDCARD]
        } else {
            requested
        };
        match rule_on(&self.allow, to_allow, false, steps)? {
            Some(_) => Ok(()),
            None => Err(Denial::NotAllowed(requested.join("."))),
        }
    }
}

/// Returns the mask of a rule that covers the whole request or, with `in_part`, at least a part of
/// it. A rule covers everything below its mask.
fn rule_on<'m>(
    rules: &'m MaskTree,
    requested: &[&str],
    in_part: bool,
    steps: &mut Steps,
) -> Result<Option<Vec<&'m str>>, Denial> {
    steps.take(1)?;
    if rules.ends_here {
        return Ok(Some(Vec::new())); // This rule covers all that is left of the request.
    }
    // First, choose the branches that may have such a rule.
    let mut rest: &[&str] = &[];
    let branches: Vec<&Branch> = match requested.split_first() {
        // The request ends here, above all rules that are left. Each covers a part of it.
        None if in_part => rules.below.first().into_iter().collect(),
        None => return Ok(None),
        Some((part, parts)) => {
            rest = parts;
            if *part == WILDCARD && in_part {
                // The request is about every key, so each branch is about a part of it.
                rules.below.iter().collect()
            } else {
                // Of a request for every key, only the wildcard of a rule covers the whole.
                rules.on(part).collect()
            }
        }
    };
    // Then, look for the rule in them.
    for (key, below) in branches {
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
    with_wildcard: BTreeSet<NamePattern>,
}

/// A pattern with a wildcard: the texts before and behind it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct NamePattern {
    start: String,
    end: String,
}

impl NamePattern {
    fn matches(&self, name: &str) -> bool {
        name.len() >= self.start.len() + self.end.len()
            && name.starts_with(&self.start)
            && name.ends_with(&self.end)
    }
}

impl NamePatterns {
    fn of(rules: &[AccessRule]) -> Self {
        let mut patterns = Self::default();
        for rule in rules {
            let AccessRule::Log { workload_names } = rule else {
                continue;
            };
            for name in workload_names {
                if let Some((start, end)) = name.split_once(WILDCARD) {
                    patterns.with_wildcard.insert(NamePattern {
                        start: start.to_owned(),
                        end: end.to_owned(),
                    });
                } else if !name.is_empty() {
                    patterns.exact.insert(name.clone());
                }
            }
        }
        patterns
    }

    /// Returns the first pattern that `name` matches.
    fn matching(&self, name: &str, steps: &mut Steps) -> Result<Option<String>, Denial> {
        steps.take(1 + self.with_wildcard.len())?;
        if self.exact.contains(name) {
            return Ok(Some(name.to_owned()));
        }
        for pattern in &self.with_wildcard {
            if pattern.matches(name) {
                let NamePattern { start, end } = pattern;
                return Ok(Some(format!("{start}{WILDCARD}{end}")));
            }
        }
        Ok(None)
    }
}

impl Rules<NamePatterns> {
    /// Authorizes the name of a workload whose logs are requested.
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
