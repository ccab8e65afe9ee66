//! What a workload may ask: rules of its manifest against requests. The agent decides by it, and the server once more
//! for what agents pass on.
//!
//! Thread: none, plain values. Decides on the model of a request, never on what stood on the wire.

use super::access_rules::{AccessRule, ControlInterfaceAccess, Operation};
use super::messages::RequestContent;
use std::fmt;

/// Stands for any one part of a mask, and in log rules for any text.
const WILDCARD: &str = "*";

/// The rules of one workload, split by what they are about. Two are equal when a session need not change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authorizer {
    read: Rules<MaskPattern>,
    write: Rules<MaskPattern>,
    log: Rules<NamePattern>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rules<P> {
    allow: Vec<P>,
    deny: Vec<P>,
}

impl<P> Default for Rules<P> {
    fn default() -> Self {
        Self { allow: Vec::new(), deny: Vec::new() }
    }
}

/// Why a request is denied, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The mask or workload name that is denied; `None` when the request asks for nothing.
    asked: Option<String>,
    /// The pattern that denies it; `None` when none allows it.
    denied_by: Option<String>,
}

impl fmt::Display for Denial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.asked, &self.denied_by) {
            (None, _) => formatter.write_str("it asks for nothing"),
            (Some(asked), None) => write!(formatter, "no rule allows '{asked}'"),
            (Some(asked), Some(rule)) => write!(formatter, "'{asked}' is denied by '{rule}'"),
        }
    }
}

impl Authorizer {
    /// Splits the rules of a workload.
    #[must_use]
    pub fn new(access: &ControlInterfaceAccess) -> Self {
        let mut authorizer = Self::default();
        for rule in &access.allow_rules {
            authorizer.add(rule, |rules| &mut rules.allow, |rules| &mut rules.allow);
        }
        for rule in &access.deny_rules {
            authorizer.add(rule, |rules| &mut rules.deny, |rules| &mut rules.deny);
        }
        authorizer
    }

    fn add(
        &mut self,
        rule: &AccessRule,
        masks: fn(&mut Rules<MaskPattern>) -> &mut Vec<MaskPattern>,
        names: fn(&mut Rules<NamePattern>) -> &mut Vec<NamePattern>,
    ) {
        match rule {
            AccessRule::State { operation, filter_masks } => {
                // An empty mask in a rule matches nothing.
                let patterns =
                    || filter_masks.iter().filter(|mask| !mask.is_empty()).map(|mask| MaskPattern::new(mask));
                if matches!(operation, Operation::Read | Operation::ReadWrite) {
                    masks(&mut self.read).extend(patterns());
                }
                if matches!(operation, Operation::Write | Operation::ReadWrite) {
                    masks(&mut self.write).extend(patterns());
                }
            }
            AccessRule::Log { workload_names } => {
                names(&mut self.log).extend(workload_names.iter().map(|name| NamePattern(name.clone())));
            }
        }
    }

    /// Decides about a request. All that it asks for must be allowed, and nothing of it denied.
    ///
    /// # Errors
    /// The first mask or name that decides against it.
    pub fn check(&self, content: &RequestContent) -> Result<(), Denial> {
        match content {
            RequestContent::CompleteState(read) => check_masks(&self.read, &read.masks),
            RequestContent::UpdateState(update) => check_masks(&self.write, &update.masks),
            RequestContent::Logs(logs) => {
                logs.instances.iter().try_for_each(|instance| self.log.check(&*instance.workload, &instance.workload))
            }
            RequestContent::LogsCancel | RequestContent::EventsCancel => Ok(()),
            RequestContent::Missing => Err(Denial { asked: None, denied_by: None }),
        }
    }
}

impl Authorizer {
    /// Decides about paths that are read, each by its parts; none means everything.
    ///
    /// # Errors
    /// The first path that decides against it.
    pub fn check_read(&self, paths: &[Vec<String>]) -> Result<(), Denial> {
        if paths.is_empty() {
            return self.read.check(&[] as &[&str], "");
        }
        paths.iter().try_for_each(|path| {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            self.read.check(&*parts, &path.join("."))
        })
    }
}

/// No mask asks for everything, as one empty mask does.
fn check_masks(rules: &Rules<MaskPattern>, masks: &[String]) -> Result<(), Denial> {
    if masks.is_empty() {
        return rules.check(&[] as &[&str], "");
    }
    masks.iter().try_for_each(|mask| rules.check(&*parts(mask), mask))
}

/// The parts of a mask; the empty one has none, one that ends with a dot has an empty last one.
fn parts(mask: &str) -> Vec<&str> {
    if mask.is_empty() { Vec::new() } else { mask.split('.').collect() }
}

trait Pattern<A: ?Sized> {
    /// Whether it stands for all that is asked for.
    fn covers(&self, asked: &A) -> bool;
    /// Whether it stands for some of what is asked for.
    fn overlaps(&self, asked: &A) -> bool;
    fn text(&self) -> String;
}

impl<P> Rules<P> {
    fn check<A: ?Sized>(&self, asked: &A, text: &str) -> Result<(), Denial>
    where
        P: Pattern<A>,
    {
        let denial = |denied_by| Err(Denial { asked: Some(text.to_owned()), denied_by });
        if let Some(pattern) = self.deny.iter().find(|pattern| pattern.overlaps(asked)) {
            return denial(Some(pattern.text()));
        }
        if self.allow.iter().any(|pattern| pattern.covers(asked)) { Ok(()) } else { denial(None) }
    }
}

/// A mask of a state rule.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MaskPattern(Vec<String>);

impl MaskPattern {
    fn new(mask: &str) -> Self {
        Self(mask.split('.').map(str::to_owned).collect())
    }
}

impl Pattern<[&str]> for MaskPattern {
    /// The pattern gives everything below it. A wildcard that is asked for is given by a wildcard only, since the
    /// server makes every key of it.
    fn covers(&self, asked: &[&str]) -> bool {
        if asked.is_empty() {
            return self.0 == [WILDCARD];
        }
        self.0.len() <= asked.len()
            && self.0.iter().zip(asked).all(|(pattern, part)| pattern == WILDCARD || pattern == part)
    }

    /// What lies above the pattern contains it, so it is concerned as well as what lies below.
    fn overlaps(&self, asked: &[&str]) -> bool {
        let equal = |(pattern, part): (&String, &&str)| pattern == WILDCARD || *part == WILDCARD || pattern == part;
        self.0.iter().zip(asked).all(equal)
    }

    fn text(&self) -> String {
        self.0.join(".")
    }
}

/// A name of a log rule, with at most one wildcard.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamePattern(String);

impl Pattern<str> for NamePattern {
    fn covers(&self, name: &str) -> bool {
        match self.0.split_once(WILDCARD) {
            Some((start, end)) => {
                name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
            }
            None => self.0 == name && !name.is_empty(),
        }
    }

    fn overlaps(&self, name: &str) -> bool {
        self.covers(name)
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests;
