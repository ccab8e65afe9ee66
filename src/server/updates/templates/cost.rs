//! The price of templates, which is computed before they are compiled and rendered, and the parts
//! of the engine that they may use.
//!
//! Thread: `server`; plain functions. The unit is a step: it takes at most about a microsecond on a
//! small PC. Each price below stands for an attack that kept the engine busy for seconds or hours
//! and would otherwise cost few steps (the tests of templates.rs have them all). The templates of
//! users mostly take less time than their price.

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
/// Approximate memory of a literal beside its text, in bytes; a loop copies it for 42 ns.
const LITERAL_ENTRY: usize = 64;

/// Counts steps. Templates that users write cannot name it, because of the space.
pub(crate) const COUNT_STEPS: &str = "count steps";
/// The parameter of the one partial.
const CONTENT: &str = "content";

/// Upper bound of the steps to compile a template, from its text alone.
pub(crate) fn of_compiling(template: &str) -> usize {
    let last_comment = template.rfind("--}}").unwrap_or(0);
    let mut steps = template.len() / RAW_BYTES;
    for (place, _) in template.match_indices("{{") {
        let rest = &template[place + 2..];
        steps = steps.saturating_add(of_tag(rest, place, last_comment));
    }
    // A split at all other letters leaves the runs of backslashes. For each backslash the engine
    // searches the rest of its run.
    for run in template.split(|letter| letter != '\\') {
        if run.len() > 1 {
            let searched = run.len().saturating_mul(run.len()) / 2;
            steps = steps.saturating_add(searched / TAG_BYTES);
        }
    }
    steps
}

/// The steps of one tag at `place` in the template; `rest` is the text behind its braces.
fn of_tag(rest: &str, place: usize, last_comment: usize) -> usize {
    // The text up to the next tag, and that text from the sign of the tag on.
    let text = &rest[..rest.find("{{").unwrap_or(rest.len())];
    let from_sign = text.trim_start_matches(['{', '~', ' ', '\t', '\r', '\n']);
    // The engine reads the text before the tag once more, to find the line.
    let base = TAG_STEPS + place / TAG_BYTES;
    // First, a comment.
    if from_sign.starts_with('!') {
        let length = text.find("}}").unwrap_or(text.len());
        // For a long comment without an end the engine searches the whole rest of the template,
        // before it reads the tag as a short comment.
        let searched = if from_sign.starts_with("!--") && place >= last_comment {
            rest.len()
        } else {
            0
        };
        return base + length / RAW_BYTES + searched / COMMENT_BYTES;
    }
    // Otherwise, the text inside of the tag. The engine reads it up to three times for a tag of an
    // alternative.
    let inside = text.len() - from_sign.len() + end_of_tag(from_sign);
    let reads = if from_sign.starts_with("else") || from_sign.starts_with('^') {
        3
    } else {
        1
    };
    // To find the end of a name in brackets, the engine first searches up to the last bracket of
    // the template.
    let name = from_sign.trim_start_matches(['#', '>', ' ', '\t', '\r', '\n']);
    let searched = if from_sign.contains('>') && name.starts_with('[') {
        rest.len()
    } else {
        0
    };
    base + reads * (inside / TAG_INSIDE) + searched / BRACKET_BYTES
}

/// Upper bound of the end of a tag. Brackets may contain any text, so from a bracket on the text up
/// to the next tag belongs to the tag.
fn end_of_tag(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut place = 0;
    while let Some(byte) = bytes.get(place) {
        match byte {
            b'[' | b'{' => return text.len(),
            b'}' if bytes.get(place + 1) == Some(&b'}') => return place,
            // A text in quotes, in which a backslash escapes the next byte.
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

/// The blocks around an element.
#[derive(Clone, Copy)]
struct ElementPlace {
    /// Number of blocks. The engine follows the path to their values again for each path.
    depth: usize,
    /// Whether a block works on a copy: then each path copies its value.
    copied: bool,
    /// Copies of values that the blocks hold.
    copies: usize,
}

/// The price of an element.
#[derive(Clone, Copy, Default)]
struct Price {
    steps: usize,
    /// Copies of values that it holds while it is rendered.
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

/// Computes the price of a compiled template.
pub(crate) struct Pricing {
    /// Steps to copy or to compare all values.
    steps_of_all_values: usize,
    /// Size of the values, in bytes.
    values: usize,
    /// Most copies of values that are held at the same time.
    most_copies: usize,
}

impl Pricing {
    /// For values of `size` bytes.
    pub(crate) fn new(size: usize) -> Self {
        Self {
            steps_of_all_values: 1 + size / TEMPLATE_STEP_BYTES,
            values: size,
            most_copies: 0,
        }
    }

    /// Adds an element to each block of `template` that counts the steps of the block whenever the
    /// block is rendered. Returns the steps to render the template with each block rendered once.
    ///
    /// # Errors
    /// The text for users: an element is not supported, or too many copies of values are held.
    pub(crate) fn add_step_counters(mut self, template: &mut Template) -> Result<usize, String> {
        let steps = self.template(
            template,
            ElementPlace {
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

    /// Adds up the steps of the elements of a template.
    fn template(&mut self, template: &mut Template, place: ElementPlace) -> Result<usize, String> {
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
                // An element of a later engine, whose price is unknown.
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

    /// The price of a block. Its inner templates get an element that counts their steps whenever
    /// they are rendered.
    fn block(&mut self, block: &mut HelperTemplate, place: ElementPlace) -> Result<Price, String> {
        let mut price = self.helper(block, place);
        let mut inner = ElementPlace {
            depth: place.depth + 1,
            copies: place.copies.saturating_add(price.copies),
            ..place
        };
        // The engine copies the value of a block, unless a path leads to the value and no block
        // around this one has a copy.
        let works_on_copy =
            place.copied || !matches!(block.params.first(), None | Some(Parameter::Path(_)));
        if works_on_copy && ["each", "with"].contains(&name(&block.name)) {
            inner.copied = true;
            inner.copies = inner.copies.saturating_add(2); // The value, and one under its own name.
            price.steps = price.steps.saturating_add(2 * self.steps_of_all_values);
        }
        self.most_copies = self.most_copies.max(inner.copies);
        for template in [&mut block.template, &mut block.inverse]
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

    /// The price of an expression: to find its values, and to call its helper with them. A plain
    /// value is a helper without parameters.
    fn helper(&self, helper: &HelperTemplate, place: ElementPlace) -> Price {
        let mut price = self.parameter(&helper.name, place);
        for parameter in helper.params.iter().chain(helper.hash.values()) {
            price = price.and(self.parameter(parameter, place));
        }
        // One step for the call. A value that is read as a whole may be as large as all values.
        let reads = values_read_whole(helper).saturating_mul(self.steps_of_all_values);
        let steps = 1_usize.saturating_add(reads);
        price.and(Price { steps, copies: 0 })
    }

    /// The price of a copy of a value.
    fn copy(&self) -> Price {
        Price {
            steps: self.steps_of_all_values,
            copies: 1,
        }
    }

    /// The price to find the value of a parameter.
    fn parameter(&self, parameter: &Parameter, place: ElementPlace) -> Price {
        match parameter {
            Parameter::Name(_) => Price::default(),
            Parameter::Path(path) => {
                let parts = match path {
                    Path::Relative((parts, _)) => parts.len(),
                    Path::Local((level, _, _)) => *level,
                };
                let steps = 1 + place.depth / LEVELS + parts / PATH_PARTS;
                let price = Price { steps, copies: 0 };
                if place.copied {
                    price.and(self.copy())
                } else {
                    price
                }
            }
            Parameter::Literal(value) => Price {
                steps: 1 + literal(value) / TEMPLATE_STEP_BYTES,
                copies: 0,
            },
            Parameter::Subexpression(expression) => match expression.as_element() {
                TemplateElement::Expression(helper) => {
                    let price = self.helper(helper, place);
                    if name(&helper.name) == "lookup" {
                        price.and(self.copy())
                    } else {
                        price
                    }
                }
                _ => self.copy(), // The engine makes no others.
            },
            _ => self.copy(), // A parameter of a later engine.
        }
    }

    /// The price of the partial. Removes all its parameters except the content.
    fn partial(&self, partial: &mut DecoratorTemplate, place: ElementPlace) -> Price {
        partial.hash.retain(|key, _| key == CONTENT);
        if let Some(content) = partial.hash.get(CONTENT) {
            let price = self.parameter(content, place);
            let is_literal = matches!(content, Parameter::Literal(_));
            // The engine adds the content to a copy of the first parameter, or else of all present
            // values, in which each letter of a text is an entry of its own. Null has no entries.
            partial.params = vec![Parameter::Literal(Value::Null)];
            let copies = if is_literal { 0 } else { 3 };
            return price.and(Price {
                steps: 2 + copies * self.steps_of_all_values,
                copies,
            });
        }
        partial.params.truncate(1);
        let mut price = Price {
            steps: 2 + 3 * self.steps_of_all_values,
            copies: 3,
        };
        for parameter in &partial.params {
            price = price.and(self.parameter(parameter, place));
        }
        price
    }
}

/// The number of parameters whose values a helper reads as a whole.
fn values_read_whole(helper: &HelperTemplate) -> usize {
    let mut parameters = helper.params.iter();
    match name(&helper.name) {
        "if" | "unless" | "each" | "with" | "and" | "or" | "not" | "len" => 0,
        // A comparison ends where the shorter value ends.
        "eq" | "ne" | "gt" | "gte" | "lt" | "lte"
            if parameters.any(|parameter| matches!(parameter, Parameter::Literal(_))) =>
        {
            0
        }
        _ => helper.params.len(),
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

/// The approximate memory of a literal, in bytes.
fn literal(value: &Value) -> usize {
    let mut bytes = LITERAL_ENTRY;
    match value {
        Value::String(text) => bytes += text.len(),
        Value::Array(items) => {
            for item in items {
                bytes += literal(item);
            }
        }
        Value::Object(entries) => {
            for (key, value) in entries {
                bytes += key.len() + 10 * literal(value); // A mapping has room for further entries.
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn price_of_compiling_counts_tags_texts_and_searches() {
        let x = |count: usize| "x".repeat(count);
        for (template, steps) in [
            (String::new(), 0),
            (x(32), 2),
            // A tag, and three bytes inside of it.
            ("{{n}}".to_owned(), TAG_STEPS),
            ("{{abc}}".to_owned(), TAG_STEPS + 1),
            // An alternative is read three times.
            ("{{^abc}}".to_owned(), TAG_STEPS + 3),
            ("{{else}}".to_owned(), TAG_STEPS + 3),
            // A single brace and braces in quotes do not end a tag.
            ("{{a}bcdef}}".to_owned(), TAG_STEPS + 2),
            ("{{'}}}'}}".to_owned(), TAG_STEPS + 1),
            // The text before a tag is read again.
            (x(512) + "{{n}}", 32 + TAG_STEPS + 2),
            // A comment, and a long one without an end, which is searched.
            (format!("{{{{!{}}}}}", x(32)), 2 + TAG_STEPS + 2),
            (format!("{{{{!--{}", x(28)), 2 + TAG_STEPS + 1 + 2),
            // A name in brackets is searched up to the end of the template.
            (format!("{{{{>[{}", x(798)), 50 + TAG_STEPS + 266 + 2),
            // The text behind each backslash of a run is searched.
            ("\\".repeat(64), 4 + 8),
        ] {
            let start: String = template.chars().take(12).collect();
            assert_eq!(of_compiling(&template), steps, "{start}");
        }
    }

    /// The price of rendering with values that take four steps to copy.
    fn price(template: &str) -> usize {
        let mut template = Template::compile(template).unwrap();
        let pricing = Pricing::new(3 * TEMPLATE_STEP_BYTES);
        pricing.add_step_counters(&mut template).unwrap()
    }

    #[test]
    fn price_of_the_partial_counts_copies_of_its_content() {
        assert_eq!(price("{{> indent content='x'}}"), 3);
        // The path, and three copies of all values.
        assert_eq!(price("{{> indent content=n}}"), 1 + 2 + 3 * 4);
        assert_eq!(price("{{> indent}}"), 2 + 3 * 4);
    }

    #[test]
    fn price_of_a_path_grows_with_the_blocks_around_it() {
        let nested = |depth: usize| {
            let begin = "{{#if n}}".repeat(depth);
            price(&format!("{begin}{{{{n}}}}{}", "{{/if}}".repeat(depth)))
        };
        let of_block = nested(2) - nested(1);
        assert_eq!(nested(LEVELS - 1) - nested(LEVELS - 2), of_block);
        // The paths of the value and of the block below the bound cost one step more.
        assert_eq!(nested(LEVELS) - nested(LEVELS - 1), of_block + 1);
        assert_eq!(nested(LEVELS + 1) - nested(LEVELS), of_block + 1);
    }

    #[test]
    fn memory_of_a_literal_counts_its_texts_and_entries() {
        assert_eq!(literal(&json!(1)), LITERAL_ENTRY);
        assert_eq!(literal(&json!("ab")), LITERAL_ENTRY + 2);
        assert_eq!(literal(&json!(["ab", 1])), 3 * LITERAL_ENTRY + 2);
        let entries = json!({ "key": "ab" });
        let entry = 3 + 10 * (LITERAL_ENTRY + 2);
        assert_eq!(literal(&entries), LITERAL_ENTRY + entry);
    }
}
