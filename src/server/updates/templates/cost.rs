//! What templates cost, known before they are compiled and rendered, and what of the engine they
//! may use.
//!
//! Thread: `server`; plain functions. The unit is a step: it takes at most about a microsecond on a
//! small PC. Each price below stands for an attack that kept the engine busy for seconds or hours
//! with what else would be few steps (the tests of templates.rs have them all); the templates of
//! users are mostly cheaper than their price.

use crate::limits::{TEMPLATE_STEP_BYTES, TEMPLATE_VALUES_MAX};
use handlebars::Path;
use handlebars::template::{
    DecoratorTemplate, HelperTemplate, Parameter, Subexpression, Template, TemplateElement,
};
use serde_json::Value;

/// Bytes of a template outside of tags that are compiled in one step; each takes 41 ns, in a
/// comment 62 ns.
const RAW_BYTES: usize = 16;
/// Bytes inside of a tag that are compiled in one step; a parameter takes up to a microsecond.
const TAG_INSIDE: usize = 3;
/// Steps to compile a tag, beside its length.
const TAG_STEPS: usize = 3;
/// Bytes before a tag that are read again for it in one step; each takes up to 2 ns.
const TAG_BYTES: usize = 256;
/// Bytes searched for the end of a comment in one step; each takes 68 ns.
const COMMENT_BYTES: usize = 14;
/// Bytes searched for the last bracket in one step; each takes 2.4 ns.
const BRACKET_BYTES: usize = 400;
/// Blocks around a path that cost one step: the path is followed from the outermost one, 30 ns for
/// each.
const LEVELS: usize = 16;
/// Parts of a path that cost one step; each takes 29 ns.
const PATH_PARTS: usize = 16;
/// What a literal of a template takes beside its text, in bytes, about; a loop copies it for 42 ns.
const LITERAL_ENTRY: usize = 64;

/// Counts steps. Templates that users write cannot name it, because of the space.
pub(crate) const COUNT_STEPS: &str = "count steps";
/// The parameter of the one partial.
const CONTENT: &str = "content";

/// The most steps that it takes to compile a template, from its text alone.
pub(crate) fn of_compiling(template: &str) -> usize {
    let last_comment = template.rfind("--}}").unwrap_or(0);
    let tags = template
        .match_indices("{{")
        .map(|(place, _)| of_tag(&template[place + 2..], place, last_comment));
    let runs = template
        .split(|letter| letter != '\\')
        .map(str::len)
        .filter(|run| *run > 1);
    // Of a run of backslashes the engine searches the text behind each.
    let backslashes = runs.map(|run| run.saturating_mul(run) / (2 * TAG_BYTES));
    tags.chain(backslashes)
        .fold(template.len() / RAW_BYTES, usize::saturating_add)
}

/// What one tag takes, of which `rest` follows its braces, at `place` in the template.
fn of_tag(rest: &str, place: usize, last_comment: usize) -> usize {
    let stretch = &rest[..rest.find("{{").unwrap_or(rest.len())];
    let sign = stretch.trim_start_matches(['{', '~', ' ', '\t', '\r', '\n']);
    // The text before is read once more, to know the line.
    let base = TAG_STEPS + place / TAG_BYTES;
    if sign.starts_with('!') {
        let length = stretch.find("}}").unwrap_or(stretch.len());
        // Without an end, the engine searches the whole rest of the template, and takes it for a
        // short one.
        let searched = if sign.starts_with("!--") && place >= last_comment {
            rest.len()
        } else {
            0
        };
        return base + length / RAW_BYTES + searched / COMMENT_BYTES;
    }
    let inside = stretch.len() - sign.len() + end_of_tag(sign);
    let twice = if sign.starts_with("else") || sign.starts_with('^') {
        3
    } else {
        1
    };
    // A name in brackets is taken to go on up to the last bracket of the template, at first.
    let name = sign.trim_start_matches(['#', '>', ' ', '\t', '\r', '\n']);
    let searched = if sign.contains('>') && name.starts_with('[') {
        rest.len()
    } else {
        0
    };
    base + twice * (inside / TAG_INSIDE) + searched / BRACKET_BYTES
}

/// Where a tag ends at the latest. Brackets may hold anything, so that what follows them up to the
/// next tag counts.
fn end_of_tag(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut place = 0;
    while let Some(byte) = bytes.get(place) {
        match byte {
            b'[' | b'{' => return text.len(),
            b'}' if bytes.get(place + 1) == Some(&b'}') => return place,
            quote @ (b'"' | b'\'') => {
                place += 1;
                while bytes.get(place).is_some_and(|byte| byte != quote) {
                    place += if bytes[place] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        place += 1;
    }
    text.len()
}

/// Where an element stands.
#[derive(Clone, Copy)]
struct Place {
    /// Blocks around it. The engine follows the way to their values again for each path.
    depth: usize,
    /// Whether a block around it works on a copy: then each path copies what it leads to.
    copied: bool,
    /// Copies of values that are held by blocks around it.
    copies: usize,
}

/// The price of an element, and how many copies of values it holds meanwhile.
#[derive(Clone, Copy, Default)]
struct Price {
    steps: usize,
    copies: usize,
}

impl Price {
    fn and(self, other: Self) -> Self {
        Self {
            steps: self.steps.saturating_add(other.steps),
            copies: self.copies.saturating_add(other.copies),
        }
    }
}

/// Prices compiled templates whose values take so many bytes.
pub(crate) struct Pricing {
    /// Steps that it takes to copy or to compare all values.
    weight: usize,
    values: usize,
    most_copies: usize,
}

impl Pricing {
    /// For values of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            weight: 1 + size / TEMPLATE_STEP_BYTES,
            values: size,
            most_copies: 0,
        }
    }

    /// What it takes to render `template` when each of its blocks is rendered once. Each block then
    /// counts its own price whenever it is rendered, by a step at its end.
    ///
    /// # Errors
    /// The text for users: an element that may not be used, or more copies of values than may be
    /// held.
    pub(crate) fn prepare(mut self, template: &mut Template) -> Result<usize, String> {
        let steps = self.template(
            template,
            Place {
                depth: 0,
                copied: false,
                copies: 0,
            },
        )?;
        // Copies of config values that blocks and parameters inside of each other may hold at the
        // same time, in bytes.
        if self.most_copies.saturating_mul(self.values) > 4 * TEMPLATE_VALUES_MAX {
            return Err(format!(
                "blocks and parameters inside of each other make up to {} copies of the configs of the workload, which \
                 hold {} bytes; reference fewer or smaller configs",
                self.most_copies, self.values
            ));
        }
        Ok(steps)
    }

    fn template(&mut self, template: &mut Template, place: Place) -> Result<usize, String> {
        let mut total = 0_usize;
        for element in &mut template.elements {
            let price = match element {
                TemplateElement::RawString(_) | TemplateElement::Comment(_) => Price {
                    steps: 1,
                    copies: 0,
                },
                TemplateElement::Expression(helper) | TemplateElement::HtmlExpression(helper) => {
                    self.helper(helper, place)
                }
                TemplateElement::HelperBlock(block) => self.block(block, place)?,
                TemplateElement::PartialExpression(partial) => self.partial(partial, place),
                TemplateElement::PartialBlock(_) => {
                    return Err(
                        "partial blocks ('{{#> ...}}') are not supported; use '{{> indent content=...}}'".into()
                    );
                }
                TemplateElement::DecoratorExpression(_) | TemplateElement::DecoratorBlock(_) => {
                    return Err("decorators and inline partials ('{{* ...}}', '{{#* ...}}') are not supported".into());
                }
                // One of a later engine, of which nothing is known.
                other => {
                    return Err(format!(
                        "an element of this kind is not supported: {other:.100?}"
                    ));
                }
            };
            self.most_copies = self
                .most_copies
                .max(place.copies.saturating_add(price.copies));
            total = total.saturating_add(price.steps);
        }
        Ok(total)
    }

    fn block(&mut self, block: &mut HelperTemplate, place: Place) -> Result<Price, String> {
        let mut price = self.helper(block, place);
        let mut inner = Place {
            depth: place.depth + 1,
            copies: place.copies.saturating_add(price.copies),
            ..place
        };
        let works_on_copy =
            place.copied || !matches!(block.params.first(), None | Some(Parameter::Path(_)));
        if works_on_copy && ["each", "with"].contains(&name(&block.name)) {
            inner.copied = true;
            inner.copies = inner.copies.saturating_add(2); // The value, and one under its own name.
            price.steps = price.steps.saturating_add(2 * self.weight);
        }
        self.most_copies = self.most_copies.max(inner.copies);
        for template in [block.template.as_mut(), block.inverse.as_mut()]
            .into_iter()
            .flatten()
        {
            let steps = self.template(template, inner)?.saturating_add(1);
            price.steps = price.steps.saturating_add(steps);
            let parameters = vec![Parameter::Literal(Value::from(steps))];
            let count = Subexpression::new(
                Parameter::Name(COUNT_STEPS.to_owned()),
                parameters,
                Default::default(),
            );
            // At the end, so that the places that errors name stay the same.
            template.elements.push(*count.element);
        }
        Ok(price)
    }

    /// A value, or a helper with its parameters.
    fn helper(&self, helper: &HelperTemplate, place: Place) -> Price {
        let given = helper
            .params
            .iter()
            .chain(helper.hash.values())
            .map(|parameter| self.parameter(parameter, place));
        let price = given.fold(self.parameter(&helper.name, place), Price::and);
        let looked_at = match name(&helper.name) {
            "if" | "unless" | "each" | "with" | "and" | "or" | "not" | "len" => 0,
            // A comparison ends where the shorter one does.
            "eq" | "ne" | "gt" | "gte" | "lt" | "lte"
                if helper
                    .params
                    .iter()
                    .any(|parameter| matches!(parameter, Parameter::Literal(_))) =>
            {
                0
            }
            _ => helper.params.len(),
        };
        let steps = 1_usize.saturating_add(looked_at.saturating_mul(self.weight));
        price.and(Price { steps, copies: 0 })
    }

    fn parameter(&self, parameter: &Parameter, place: Place) -> Price {
        let copy = |copied: bool| {
            if copied {
                Price {
                    steps: self.weight,
                    copies: 1,
                }
            } else {
                Price::default()
            }
        };
        match parameter {
            Parameter::Name(_) => Price::default(),
            Parameter::Path(path) => {
                let parts = match path {
                    Path::Relative((parts, _)) => parts.len(),
                    Path::Local((level, _, _)) => *level,
                };
                let steps = 1 + place.depth / LEVELS + parts / PATH_PARTS;
                copy(place.copied).and(Price { steps, copies: 0 })
            }
            Parameter::Literal(value) => Price {
                steps: 1 + literal(value) / TEMPLATE_STEP_BYTES,
                copies: 0,
            },
            Parameter::Subexpression(expression) => match expression.as_element() {
                TemplateElement::Expression(helper) => self
                    .helper(helper, place)
                    .and(copy(name(&helper.name) == "lookup")),
                _ => copy(true), // The engine makes no others.
            },
            _ => copy(true),
        }
    }

    /// The partial gets its content and nothing else: the engine would copy all that can be named,
    /// each letter of a text alone.
    fn partial(&self, partial: &mut DecoratorTemplate, place: Place) -> Price {
        partial.hash.retain(|key, _| key == CONTENT);
        if let Some(content) = partial.hash.get(CONTENT) {
            let price = self.parameter(content, place);
            let is_literal = matches!(content, Parameter::Literal(_));
            partial.params = vec![Parameter::Literal(Value::Null)];
            let copies = if is_literal { 0 } else { 3 };
            return price.and(Price {
                steps: 2 + copies * self.weight,
                copies,
            });
        }
        partial.params.truncate(1);
        let given = partial
            .params
            .iter()
            .map(|parameter| self.parameter(parameter, place));
        given.fold(
            Price {
                steps: 2 + 3 * self.weight,
                copies: 3,
            },
            Price::and,
        )
    }
}

/// The name of a helper, as written.
fn name(parameter: &Parameter) -> &str {
    match parameter {
        Parameter::Name(name)
        | Parameter::Path(Path::Relative((_, name)) | Path::Local((_, _, name))) => name,
        _ => "",
    }
}

/// What a literal takes, in bytes, about.
fn literal(value: &Value) -> usize {
    let below: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(literal).sum(),
        Value::Object(entries) => entries
            .iter()
            .map(|(key, value)| key.len() + 10 * literal(value))
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    LITERAL_ENTRY + below
}
