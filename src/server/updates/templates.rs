//! Templates: fills config items into the texts of workloads.
//!
//! Thread: `server`; a plain value. The template engine recurses as deep as a template is nested
//! and has no bounds of its own. A template of a few lines could keep the server busy for hours or
//! fill its memory, so templates and configs are measured before, the output is bounded and steps
//! are counted.

mod cost;

use crate::limits::{
    RENDERED_MAX, RENDERED_UPDATE_MAX, TEMPLATE_DEPTH_MAX, TEMPLATE_START_SHARE,
    TEMPLATE_START_STEPS, TEMPLATE_STEP_BYTES, TEMPLATE_STEPS_MAX, TEMPLATE_VALUES_MAX,
};
use ankaios_model::workload::{ConfigItem, File, FileContent, Workload};
use cost::{COUNT_STEPS, Pricing};
use handlebars::{
    Context, Handlebars, Helper, HelperDef, HelperResult, Output, RenderContext,
    RenderError as EngineError, RenderErrorReason, Renderable, Template, TemplateError,
    WriteOutput,
};
use serde_json::Value;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes that are rendered in one step; a list takes some 10 ns for each.
const OUTPUT_BYTES: usize = 192;
/// Approximate memory of a config value, or a key, in the engine's copy, beside its text, in bytes.
const VALUE_ENTRY: usize = 64;
/// Memory of a mapping in the engine's copy, beside its entries, in bytes: room for eleven.
const VALUE_MAP: usize = 640;

/// The one partial that templates may include: each line of its content gets the indentation of the
/// inclusion.
const INDENT: (&str, &str) = ("indent", "{{content}}");

/// The reason why a workload cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RenderError {
    /// A name for templates refers to a config that does not exist.
    #[error("Workload references config key '{0}' that does not exist")]
    MissingConfig(String),
    /// The configs that a workload names are too large for templates.
    #[error(
        "The configs that the workload references hold more than {TEMPLATE_VALUES_MAX} bytes; reference fewer or \
             split them"
    )]
    ConfigsTooLarge,
    /// The templates of an update or a start do too much altogether.
    #[error("Failed to render field '{field}': '{TOO_MANY_STEPS}'")]
    TooManySteps {
        /// The first field for which no steps were left.
        field: String,
    },
    /// The template engine refuses a field.
    #[error("Failed to render field '{field}': '{reason}'")]
    Field {
        field: String,
        /// The engine's text.
        reason: String,
    },
}

/// The error when no steps are left.
const TOO_MANY_STEPS: &str = "the templates of this update or start take too many steps (about a microsecond each); \
    use shorter lists, texts and templates, fewer loops inside of each other, or several updates";

/// The template engine with the budget of one update.
pub(crate) struct Templates {
    engine: Handlebars<'static>,
    /// Shared with the helper that counts steps.
    steps: Arc<TemplateSteps>,
    /// Bytes that templates may still render.
    output_left: Cell<usize>,
}

/// The helper by which compiled templates count their steps, see [`COUNT_STEPS`].
struct StepCounter(Arc<TemplateSteps>);

impl HelperDef for StepCounter {
    fn call<'r: 'h, 'h>(
        &self,
        helper: &Helper<'h>,
        _: &'r Handlebars<'r>,
        _: &'h Context,
        _: &mut RenderContext<'r, 'h>,
        _: &mut dyn Output,
    ) -> HelperResult {
        let mut steps = 1;
        if let Some(parameter) = helper.param(0)
            && let Some(number) = parameter.value().as_u64()
        {
            steps = usize::try_from(number).unwrap_or(usize::MAX);
        }
        self.0.take(steps)
    }
}

impl Default for Templates {
    fn default() -> Self {
        let mut engine = Handlebars::new();
        engine.set_strict_mode(true);
        engine.register_escape_fn(handlebars::no_escape);
        engine
            .register_partial(INDENT.0, INDENT.1)
            .expect("the one partial is a valid template");
        let steps = Arc::new(TemplateSteps {
            left: AtomicUsize::new(TEMPLATE_STEPS_MAX),
            are_used_up: AtomicBool::new(false),
        });
        engine.register_helper(COUNT_STEPS, Box::new(StepCounter(steps.clone())));
        Self {
            engine,
            steps,
            output_left: Cell::new(RENDERED_UPDATE_MAX),
        }
    }
}

/// The steps that the templates of an update may still take. Only the thread `server` counts them;
/// they are atomic because the engine requires helpers that several threads could call.
struct TemplateSteps {
    left: AtomicUsize,
    /// Whether a field needed more than were left. The engine reports that only in its own words.
    are_used_up: AtomicBool,
}

impl TemplateSteps {
    fn set(&self, steps: usize) {
        self.left.store(steps, Ordering::Relaxed);
        self.are_used_up.store(false, Ordering::Relaxed);
    }

    /// Takes this number of steps.
    ///
    /// # Errors
    /// Fewer are left.
    fn take(&self, steps: usize) -> HelperResult {
        let before = self.left.load(Ordering::Relaxed);
        if let Some(left) = before.checked_sub(steps) {
            self.left.store(left, Ordering::Relaxed);
            return Ok(());
        }
        self.left.store(0, Ordering::Relaxed);
        self.are_used_up.store(true, Ordering::Relaxed);
        Err(RenderErrorReason::Other(TOO_MANY_STEPS.to_owned()).into())
    }
}

/// The steps for a start. Each workload may take its share first, and the rest is for workloads
/// that need more, so that no workload takes the steps of others.
pub(crate) struct StartBudget {
    steps_left: usize,
    share: usize,
}

impl StartBudget {
    /// The budget of a start with this number of workloads.
    pub(crate) fn new(workloads: usize) -> Self {
        Self {
            steps_left: TEMPLATE_START_STEPS,
            share: TEMPLATE_START_STEPS / TEMPLATE_START_SHARE / workloads.max(1),
        }
    }
}

impl Templates {
    /// Sets the steps and rendered bytes that the templates of the next update may take altogether.
    pub(crate) fn begin(&self, steps: usize, bytes: usize) {
        self.steps.set(steps);
        self.output_left.set(bytes);
    }

    /// Renders one workload of a start within its share of `budget`, or with `all` of the rest.
    ///
    /// # Errors
    /// [`RenderError`], see [`Templates::render`].
    pub(crate) fn render_within<'c, 'w>(
        &self,
        budget: &mut StartBudget,
        all: bool,
        workload: &'w Arc<Workload>,
        config: impl Fn(&str) -> Option<&'c ConfigItem>,
    ) -> Result<Arc<Workload>, RenderError> {
        let steps = if all {
            budget.steps_left
        } else {
            budget.share.min(budget.steps_left)
        };
        self.begin(steps, RENDERED_UPDATE_MAX);
        let rendered = self.render(workload, config);
        budget.steps_left -= steps - self.steps.left.load(Ordering::Relaxed);
        rendered
    }

    /// The rendered workload: templates in agent, runtime configuration and files are filled in,
    /// and its references to configs are removed. A workload without such references is not a
    /// template, and is shared.
    ///
    /// # Errors
    /// [`RenderError`] of the first field that cannot be rendered, or of a missing config, even if
    /// no template uses it.
    pub(crate) fn render<'c, 'w>(
        &self,
        workload: &'w Arc<Workload>,
        config: impl Fn(&str) -> Option<&'c ConfigItem>,
    ) -> Result<Arc<Workload>, RenderError> {
        if workload.configs.is_empty() {
            return Ok(workload.clone());
        }
        let mut configs = Configs {
            items: Vec::new(),
            values: None,
        };
        for (alias, key) in &workload.configs {
            match config(key) {
                Some(item) => configs.items.push((alias, item)),
                None => return Err(RenderError::MissingConfig(key.clone())),
            }
        }
        let mut rendered = Workload::clone(workload);
        rendered.configs = BTreeMap::new();
        let agent = self.field("agent", &workload.agent, &mut configs)?;
        rendered.agent = agent.into();
        let runtime_config = self.field("runtimeConfig", &workload.runtime_config, &mut configs)?;
        rendered.runtime_config = runtime_config.as_str().into();
        for file in &mut rendered.files {
            let File {
                mount_point,
                content: FileContent::Data(text) | FileContent::BinaryData(text),
            } = file;
            let name = format!("files with mount point {mount_point}");
            *text = self.field(&name, text, &mut configs)?;
        }
        Ok(Arc::new(rendered))
    }

    /// Renders one field of a workload. A field without braces is not a template.
    fn field(
        &self,
        name: &str,
        text: &str,
        configs: &mut Configs<'_>,
    ) -> Result<String, RenderError> {
        if !has_template(text) {
            return Ok(text.to_owned());
        }
        let values = match &mut configs.values {
            Some(values) => values,
            None => configs.values.insert(self.values(&configs.items)?),
        };
        match self.text(text, values) {
            Ok(text) => Ok(text),
            Err(reason) => Err(self.field_error(name, reason)),
        }
    }

    /// Copies configs for the engine. The steps for that are counted first: the copy may be far
    /// larger than the configs.
    fn values(&self, items: &[(&String, &ConfigItem)]) -> Result<TemplateValues, RenderError> {
        let mut size = 0;
        for (_, item) in items {
            size = add_size(size, item).ok_or(RenderError::ConfigsTooLarge)?;
        }
        if self.steps.take(size / TEMPLATE_STEP_BYTES).is_err() {
            let field = "configs".to_owned();
            return Err(RenderError::TooManySteps { field });
        }
        let mut values = serde_json::Map::new();
        for (alias, item) in items {
            values.insert((*alias).clone(), json(item));
        }
        Ok(TemplateValues {
            size,
            context: Context::from(Value::Object(values)),
        })
    }

    /// The error of a field that cannot be rendered.
    fn field_error(&self, field: &str, reason: String) -> RenderError {
        let field = field.to_owned();
        if self.steps.are_used_up.load(Ordering::Relaxed) {
            return RenderError::TooManySteps { field };
        }
        RenderError::Field { field, reason }
    }

    /// Renders one template. The steps of each part are taken before the engine does that part.
    fn text(&self, template: &str, values: &TemplateValues) -> Result<String, String> {
        if depth(template) > TEMPLATE_DEPTH_MAX {
            return Err(format!(
                "blocks or brackets are nested more than {TEMPLATE_DEPTH_MAX} deep"
            ));
        }
        // First, compile it.
        let steps = cost::of_compiling(template);
        self.steps.take(steps).map_err(render_error)?;
        let mut compiled = Template::compile(template).map_err(syntax_error)?;
        // Then, add the elements that count the steps of blocks while it is rendered.
        let steps = Pricing::new(values.size).add_step_counters(&mut compiled)?;
        self.steps.take(steps).map_err(render_error)?;
        // Finally, render it.
        let mut output = BoundedOutput {
            bytes: Vec::new(),
            uncounted: 0,
            output_left: &self.output_left,
            steps: &self.steps,
        };
        let rendered = compiled.render(
            &self.engine,
            &values.context,
            &mut RenderContext::new(None),
            &mut WriteOutput::new(&mut output),
        );
        rendered.map_err(render_error)?;
        String::from_utf8(output.bytes).map_err(|error| error.to_string())
    }
}

/// The reason and place of an error. The engine's own text quotes the lines around it, which may
/// hold secrets.
fn syntax_error(error: TemplateError) -> String {
    template_error(error.reason(), error.pos())
}

/// The reason and place of an error while a template is rendered with its values. As in
/// [`syntax_error`], without the engine's own text.
fn render_error(error: EngineError) -> String {
    let place = error.line_no.zip(error.column_no);
    match error.reason() {
        RenderErrorReason::MissingVariable(Some(name)) => {
            template_error(format!("no config defines '{name}'"), place)
        }
        reason => template_error(reason, place),
    }
}

fn template_error(reason: impl Display, place: Option<(usize, usize)>) -> String {
    let reason = reason.to_string();
    let reason = reason.trim_end();
    match place {
        Some((line, column)) => {
            format!("Template error: {reason} at line {line}, column {column}")
        }
        None => format!("Template error: {reason}"),
    }
}

/// Returns whether the engine would change a text. It changes backslashes only before braces.
fn has_template(text: &str) -> bool {
    text.contains("{{")
}

/// The configs of one workload.
struct Configs<'c> {
    /// The items with the names by which templates use them.
    items: Vec<(&'c String, &'c ConfigItem)>,
    /// Their copy for the engine. `None` until a field is a template, since it costs steps.
    values: Option<TemplateValues>,
}

/// The values that the templates of one workload can name.
struct TemplateValues {
    context: Context,
    /// Memory of the values, in bytes.
    size: usize,
}

/// `size` plus the memory of the engine's copy of `item`, in bytes. `None` above
/// [`TEMPLATE_VALUES_MAX`], so that the time to measure is bounded as well.
fn add_size(size: usize, item: &ConfigItem) -> Option<usize> {
    let mut size = size + VALUE_ENTRY;
    match item {
        ConfigItem::Text(text) => size += text.len(),
        ConfigItem::List(items) => {
            for item in items {
                size = add_size(size, item)?;
            }
        }
        ConfigItem::Map(items) => {
            size += VALUE_MAP;
            for (key, item) in items {
                size = add_size(size + VALUE_ENTRY + key.len(), item)?;
            }
        }
    }
    if size > TEMPLATE_VALUES_MAX {
        return None;
    }
    Some(size)
}

fn json(item: &ConfigItem) -> Value {
    match item {
        ConfigItem::Text(text) => Value::String(text.clone()),
        ConfigItem::List(items) => Value::Array(items.iter().map(json).collect()),
        ConfigItem::Map(items) => Value::Object(
            items
                .iter()
                .map(|(key, item)| (key.clone(), json(item)))
                .collect(),
        ),
    }
}

/// The rendered text, of at most [`RENDERED_MAX`] bytes and the bytes left for the update: loops in
/// templates can multiply texts. It costs steps as well.
struct BoundedOutput<'l> {
    bytes: Vec<u8>,
    /// Written bytes that have not cost a step yet.
    uncounted: usize,
    output_left: &'l Cell<usize>,
    steps: &'l TemplateSteps,
}

impl io::Write for BoundedOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > RENDERED_MAX {
            let text = format!(
                "the rendered text is longer than {RENDERED_MAX} bytes; use shorter configs, or several files"
            );
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let Some(left) = self.output_left.get().checked_sub(bytes.len()) else {
            let text = "the templates of this update render too much altogether; use shorter texts or several updates";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        };
        self.output_left.set(left);
        self.uncounted += bytes.len() + 1; // One more for each call: empty lines are not free.
        if self.uncounted >= OUTPUT_BYTES {
            if self.steps.take(self.uncounted / OUTPUT_BYTES).is_err() {
                return Err(io::Error::other(TOO_MANY_STEPS));
            }
            self.uncounted %= OUTPUT_BYTES;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Upper bound of the depth to which the engine recurses for this template.
///
/// Tags are found by their opening braces alone. The text up to the next tag counts as a part of
/// the tag, so that strings and comments need not be understood. An alternative of a block counts
/// as a further block in it.
fn depth(template: &str) -> usize {
    // The levels of each open block: itself and its alternatives.
    let mut blocks: Vec<usize> = Vec::new();
    let mut open = 0;
    let mut deepest = 0;
    for tag in template.split("{{").skip(1) {
        let inside = tag.trim_start_matches(|letter: char| {
            letter.is_whitespace() || matches!(letter, '~' | '{')
        });
        if inside.starts_with('#') {
            blocks.push(1);
            open += 1;
        } else if inside.starts_with('/') {
            open -= blocks.pop().unwrap_or(0); // The engine refuses an end without a block.
        } else if inside.starts_with('^') || inside.starts_with("else") {
            // The engine refuses an alternative outside of a block.
            if let Some(levels) = blocks.last_mut() {
                *levels += 1;
                open += 1;
            }
        }
        deepest = deepest.max(open + bracket_depth(tag));
    }
    deepest
}

/// The depth to which brackets of any kind are nested in a text.
fn bracket_depth(text: &str) -> usize {
    let mut open = 0_usize;
    let mut deepest = 0;
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configs() -> BTreeMap<String, ConfigItem> {
        let text = |text: &str| ConfigItem::Text(text.to_owned());
        let map = |entries: &[(&str, &str)]| {
            ConfigItem::Map(
                entries
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), text(value)))
                    .collect(),
            )
        };
        let list = |items: &[&str]| ConfigItem::List(items.iter().map(|item| text(item)).collect());
        [
            ("port", text("8081")),
            ("list", list(&["m", "n", "o"])),
            ("map", map(&[("p", "q"), ("b-c", "d")])),
            ("empty", text("")),
            ("no", text("false")),
            ("lines", text("l1\nl2\n\nl3\n")),
            ("html", text("<a & \"b\">")),
        ]
        .map(|(key, item)| (key.to_owned(), item))
        .into()
    }

    fn workload(template: &str) -> Workload {
        let mut workload = Workload::new("A", "podman", template);
        let aliases = [
            ("n", "port"),
            ("arr", "list"),
            ("o", "map"),
            ("e", "empty"),
            ("b", "no"),
            ("m", "lines"),
            ("h", "html"),
        ];
        workload.configs = aliases
            .map(|(alias, key)| (alias.to_owned(), key.to_owned()))
            .into();
        workload
    }

    fn render_workload(workload: &Arc<Workload>) -> Result<Arc<Workload>, RenderError> {
        let configs = configs();
        Templates::default().render(workload, |key| configs.get(key))
    }

    fn render(template: &str) -> Result<String, RenderError> {
        let rendered = render_workload(&Arc::new(workload(template)))?;
        assert!(rendered.configs.is_empty());
        Ok(rendered.runtime_config.to_string())
    }

    #[test]
    fn templates_are_rendered_with_values_blocks_and_helpers() {
        for (template, expected) in [
            ("{{n}}", "8081"),
            ("{{{n}}}", "8081"),
            ("{{h}}", "<a & \"b\">"),
            ("{{arr}}", "[m, n, o]"),
            ("{{o}}", "[object]"),
            ("{{o.p}}", "q"),
            ("{{o.b-c}}", "d"),
            ("{{arr.[1]}}", "n"),
            ("{{arr.1}}", "n"),
            (
                "{{#each arr}}<{{this}}|{{@index}}>{{/each}}",
                "<m|0><n|1><o|2>",
            ),
            ("{{#each o}}{{@key}}={{this}};{{/each}}", "b-c=d;p=q;"),
            ("{{#if e}}Y{{else}}N{{/if}}", "N"),
            ("{{#if b}}Y{{else}}N{{/if}}", "Y"),
            ("{{#if unknown}}..{{else}}N{{/if}}", "N"),
            ("{{lookup arr 0}}", "m"),
            ("{{len arr}}", "3"),
            ("{{#if (eq n \"8081\")}}Y{{/if}}", "Y"),
            (
                "k: |\n  {{> indent content=m}}\nend",
                "k: |\n  l1\n  l2\n  \n  l3\nend",
            ),
            ("\\{{n}}", "{{n}}"),
            ("{{> indent content=unknown}}", ""),
            ("no template", "no template"),
        ] {
            assert_eq!(render(template).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_cannot_be_rendered_is_an_error_that_names_the_field() {
        for template in [
            "{{unknown}}",
            "{{o.unknown}}",
            "{{arr.9}}",
            "{{#each unknown}}{{/each}}",
            "{{helper n}}",
            "{{> partial}}",
            "{{#if n}}",
            "{{port}}",
        ] {
            let error = render(template).unwrap_err().to_string();
            assert!(
                error.starts_with("Failed to render field 'runtimeConfig': '"),
                "{template}: {error}"
            );
        }
        for (field, change) in [
            (
                "agent",
                (|workload| workload.agent = "{{x}}".into()) as fn(&mut Workload),
            ),
            ("files with mount point /a", |workload| {
                let content = FileContent::BinaryData("{{x}}".into());
                workload.files.push(File {
                    mount_point: "/a".into(),
                    content,
                });
            }),
        ] {
            let mut workload = workload("c");
            change(&mut workload);
            let error = render_workload(&Arc::new(workload))
                .unwrap_err()
                .to_string();
            assert!(
                error.starts_with(&format!("Failed to render field '{field}': '")),
                "{error}"
            );
        }
        let mut unused = workload("c");
        unused.configs.insert("unused".into(), "missing".into());
        let error = render_workload(&Arc::new(unused)).unwrap_err().to_string();
        assert_eq!(
            error,
            "Workload references config key 'missing' that does not exist"
        );
    }

    #[test]
    fn template_error_does_not_quote_the_lines_around_it() {
        let error = render("options: [-e, KEY=hunter2]\n{{#if n}}\npassword: hunter2")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("'Template error: invalid handlebars syntax: ")
                && error.contains(" at line 3"),
            "{error}"
        );
        assert!(
            !error.contains("hunter2") && error.lines().count() == 1,
            "{error}"
        );
    }

    #[test]
    fn agent_and_files_are_rendered_only_with_references() {
        let mut with_files = workload("c\n{{m}}");
        with_files.agent = "agent_{{n}}".into();
        with_files.files = vec![
            File {
                mount_point: "/{{n}}".into(),
                content: FileContent::Data("{{o.p}}".into()),
            },
            File {
                mount_point: "/b".into(),
                content: FileContent::BinaryData("{{n}}".into()),
            },
        ];
        with_files.tags.insert("{{n}}".into(), "{{n}}".into());
        let rendered = render_workload(&Arc::new(with_files)).unwrap();
        assert_eq!(&*rendered.agent, "agent_8081");
        assert_eq!(
            &*rendered.runtime_config, "c\nl1\nl2\n\nl3\n",
            "a rendered value is not stripped again"
        );
        assert_eq!(rendered.files[0].mount_point, "/{{n}}");
        assert_eq!(rendered.files[0].content, FileContent::Data("q".into()));
        assert_eq!(
            rendered.files[1].content,
            FileContent::BinaryData("8081".into())
        );
        assert!(rendered.tags.contains_key("{{n}}"));
        let plain = Arc::new(Workload::new("A", "podman", "{{literal}}"));
        let rendered = render_workload(&plain).unwrap();
        assert!(Arc::ptr_eq(&plain, &rendered));
    }

    #[test]
    fn templates_that_would_overflow_the_stack_are_refused() {
        let deep = 100_000;
        let nested = |open: &str, close: &str, times: usize| {
            format!("{}x{}", open.repeat(times), close.repeat(times))
        };
        for template in [
            nested("{{#if n}}", "{{/if}}", deep),
            nested("{{ ~ # if n}}", "{{/if}}", deep),
            nested("{{#> indent}}", "{{/indent}}", deep),
            nested("{{#with o}}", "{{/with}}", deep),
            nested("{{#*inline \"x\"}}", "{{/inline}}", deep),
            format!("{{{{#if e}}}}{}{{{{/if}}}}", "{{else if e}}".repeat(deep)),
            format!("{{{{#if e}}}}{}{{{{/if}}}}", "{{^if e}}".repeat(deep)),
            format!(
                "{{{{#if {}n{}}}}}{{{{/if}}}}",
                "(eq ".repeat(deep),
                " 1)".repeat(deep)
            ),
            format!("{{{{len {}1{}}}}}", "[".repeat(deep), "]".repeat(deep)),
            format!(
                "{{{{len {}1{}}}}}",
                "{\"a\":".repeat(deep),
                "}".repeat(deep)
            ),
            format!("{}{}", "{{#if n}}", "{{/if}}".repeat(deep)),
            "{{#if n}}".repeat(deep),
            "{".repeat(deep),
            "{{else}}".repeat(deep),
        ] {
            assert!(render(&template).is_err(), "{template:.100}");
        }
        let allowed = TEMPLATE_DEPTH_MAX - 1;
        assert_eq!(
            render(&nested("{{#if n}}", "{{/if}}", allowed)).as_deref(),
            Ok("x")
        );
    }

    /// The engine renders a partial block into a buffer of its own before anything of it is
    /// written.
    #[test]
    fn what_renders_without_our_bounds_is_refused_by_name() {
        for (template, reason) in [
            ("{{#> indent content=n}}x{{/indent}}", "partial blocks"),
            ("{{#> unknown}}x{{/unknown}}", "partial blocks"),
            (
                "{{#if e}}{{#> @partial-block}}x{{/@partial-block}}{{/if}}",
                "partial blocks",
            ),
            (
                "{{#*inline \"x\"}}{{> x}}{{/inline}}{{> x}}",
                "decorators and inline partials",
            ),
            (
                "{{#*inline \"indent\"}}{{> indent}}{{/inline}}{{> indent}}",
                "decorators and inline partials",
            ),
            (
                "{{#if n}}{{* inline n}}{{/if}}",
                "decorators and inline partials",
            ),
        ] {
            let error = render(template).unwrap_err().to_string();
            assert!(
                error.contains(reason) && error.contains("not supported"),
                "{template}: {error}"
            );
        }
        // Such a block over a text of a megabyte made gigabytes of it.
        let text = ConfigItem::Text("x".repeat(1024 * 1024));
        let loops = "{{#each @root/a0}}".repeat(3) + "x" + &"{{/each}}".repeat(3);
        let error = render_with(1, text, &format!("{{{{#> indent}}}}{loops}{{{{/indent}}}}"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("partial blocks"), "{error}");
        assert!(render("{{> @partial-block}}").is_err());
    }

    #[test]
    fn partial_gets_its_content_and_no_other_values() {
        for (template, expected) in [
            ("{{#with h}}{{> indent content=@root/n}}{{/with}}", "8081"),
            ("{{#each arr}}{{> indent content=this}}{{/each}}", "mno"),
            (
                "{{#each arr}}{{> indent content=@index other=this}}{{/each}}",
                "012",
            ),
            ("{{#with o}}{{> indent content=p}}{{/with}}", "q"),
            ("{{> indent content=\"text\"}}", "text"),
            ("{{> indent o content=n}}", "8081"),
            ("{{> indent content=(lookup arr 1)}}", "n"),
        ] {
            assert_eq!(render(template).as_deref(), Ok(expected), "{template}");
        }
        // Each letter of this text would become an entry of a mapping.
        let text = ConfigItem::Text("x".repeat(3 * 1024 * 1024));
        let rendered =
            render_with(1, text, "{{#with a0}}{{> indent content=\"x\"}}{{/with}}").unwrap();
        assert_eq!(&*rendered.runtime_config, "x");
    }

    #[test]
    fn copies_of_large_configs_held_at_the_same_time_are_bounded() {
        let item = || ConfigItem::List(vec![ConfigItem::Text("x".repeat(512 * 1024))]);
        let nested = |times: usize| {
            format!(
                "{}{{{{this}}}}{}",
                "{{#with (lookup @root/a0 0)}}".repeat(times),
                "{{/with}}".repeat(times)
            )
        };
        let many = format!(
            "{{{{#if (or {})}}}}{{{{/if}}}}",
            "(lookup a0 0) ".repeat(200)
        );
        for template in [&nested(60), &many] {
            let error = render_with(1, item(), template).unwrap_err().to_string();
            assert!(
                error.contains("copies of the configs"),
                "{template:.40}: {error}"
            );
        }
        assert_eq!(
            render_with(1, item(), &nested(3))
                .unwrap()
                .runtime_config
                .len(),
            512 * 1024
        );
        let small = ConfigItem::List(vec![ConfigItem::Text("x".to_owned())]);
        assert_eq!(
            &*render_with(1, small, &nested(60)).unwrap().runtime_config,
            "x"
        );
    }

    /// Each of these took seconds or hours for what passed as a few steps.
    #[test]
    fn what_the_engine_is_slow_with_has_its_price() {
        let kilobytes = 1_000;
        for (what, template) in [
            (
                "backslashes",
                format!("{}{{{{n}}}}", "\\".repeat(100 * kilobytes)),
            ),
            ("comments without end", "{{!--x}}".repeat(4_000)),
            (
                "names in brackets",
                format!(
                    "{}{}",
                    "{{> [x]}}".repeat(5_000),
                    "x".repeat(500 * kilobytes)
                ),
            ),
            ("blocks", "{{#if n}}{{/if}}".repeat(20_000)),
            ("values", "{{n}}".repeat(25_000)),
            ("partials", "{{> [x]}}".repeat(25_000)),
            ("comments", "{{!--x}}".repeat(25_000)),
            ("escaped values", "\\{{n}}".repeat(25_000)),
            (
                "text",
                format!("{{{{n}}}}{}", "x".repeat(30_000 * kilobytes)),
            ),
            (
                "parameters",
                format!("{{{{len {}}}}}", "n ".repeat(1_600 * kilobytes)),
            ),
            (
                "parameters behind braces",
                format!("{{{{len \"}}}}\" {}}}}}", "n ".repeat(1_600 * kilobytes)),
            ),
            (
                "parameters behind brackets",
                format!("{{{{len [\"]}}}}\"] {}}}}}", "n ".repeat(1_600 * kilobytes)),
            ),
            ("long paths", {
                let path = ["o"; 3_000].join(".");
                format!(
                    "{}{{{{#if {path}}}}}{{{{/if}}}}{}",
                    "{{#each @root/arr}}".repeat(8),
                    "{{/each}}".repeat(8)
                )
            }),
            ("literals", {
                let list = ["1"; 3_000].join(",");
                let body = format!("{{{{#each [{list}]}}}}{{{{/each}}}}");
                format!(
                    "{}{body}{}",
                    "{{#each @root/arr}}".repeat(8),
                    "{{/each}}".repeat(8)
                )
            }),
        ] {
            let error = render(&template).expect_err(what);
            assert!(
                matches!(error, RenderError::TooManySteps { .. }),
                "{what}: {error}"
            );
        }
        assert_eq!(render(&"{{n}}".repeat(2_000)), Ok("8081".repeat(2_000)));
        // Without braces the engine has nothing to do.
        let backslashes = "\\".repeat(100 * kilobytes);
        assert_eq!(render(&backslashes).as_deref(), Ok(&*backslashes));
        for text in ["\\", "a\\\\b", "\\}}", "\\{"] {
            let engine = Template::compile(text).unwrap();
            let mut rendered = Vec::new();
            let (context, registry) = (Context::null(), Handlebars::new());
            let mut output = WriteOutput::new(&mut rendered);
            engine
                .render(
                    &registry,
                    &context,
                    &mut RenderContext::new(None),
                    &mut output,
                )
                .unwrap();
            assert_eq!(rendered, text.as_bytes(), "the engine leaves it as it is");
        }
    }

    #[test]
    fn small_maps_of_a_config_count_with_what_they_take() {
        let map = || ConfigItem::Map([("k".to_owned(), ConfigItem::Text("v".to_owned()))].into());
        let maps = ConfigItem::List((0..4_500).map(|_| map()).collect());
        let maps = ConfigItem::Map([("maps".to_owned(), maps)].into());
        let looped = "{{#each a0.maps}}{{#with (lookup @root/a0 \"maps\")}}{{/with}}{{/each}}";
        let error = render_with(1, maps, looped).unwrap_err();
        assert!(matches!(error, RenderError::TooManySteps { .. }), "{error}");
    }

    #[test]
    fn what_people_write_costs_little() {
        let template = "image: registry/app:{{n}}\ncommandOptions:\n{{#each arr}}  - \"--env={{this}}={{@index}}\"\n{{/each}}\
                        {{#if (eq n \"8081\")}}  - --net=host\n{{else}}  - -p={{n}}\n{{/if}}\
                        commandArgs: [\"{{o.p}}\", \"{{{h}}}\"]\n{{!-- the file --}}\n  {{> indent content=m}}\n";
        let (templates, configs) = (Templates::default(), configs());
        let workload = Arc::new(workload(template));
        templates.begin(TEMPLATE_STEPS_MAX, RENDERED_UPDATE_MAX);
        let rendered = (0..5_000)
            .take_while(|_| templates.render(&workload, |key| configs.get(key)).is_ok())
            .count();
        assert_eq!(
            rendered, 5_000,
            "so many of such workloads fit into one update"
        );
        // What stands behind a tag is text, whatever braces it has.
        let json = |tag: &str| format!("{tag}{}", "{ \"a\": { \"b\": [1, 2] }} > ".repeat(10_000));
        for tag in ["{{n}}", "{{#if (eq n \"x\")}}{{/if}}"] {
            assert!(cost::of_compiling(&json(tag)) < 20_000, "{tag}");
        }
    }

    #[test]
    fn loops_cannot_multiply_a_text_without_bound() {
        let loops = 20;
        let text = "x".repeat(10_000);
        let template = format!(
            "{}{text}{}",
            "{{#each @root/arr}}".repeat(loops),
            "{{/each}}".repeat(loops)
        );
        let error = render(&template).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
    }

    #[test]
    fn loops_that_render_nothing_end() {
        let nested = |body: &str, times: usize| {
            format!(
                "{}{body}{}",
                "{{#each @root/arr}}".repeat(times),
                "{{/each}}".repeat(times)
            )
        };
        for template in [
            nested("", TEMPLATE_DEPTH_MAX - 1),
            nested("{{#if e}}x{{/if}}", TEMPLATE_DEPTH_MAX - 2),
            format!("{{{{#if e}}}}{{{{else}}}}{}{{{{/if}}}}", nested("", 40)),
            format!(
                "{{{{> indent content=n}}}}{}{}",
                nested("", 10),
                nested("", 40)
            ),
        ] {
            let error = render(&template).unwrap_err().to_string();
            let begins = "Failed to render field 'runtimeConfig': 'the templates of this update or start take too many";
            assert!(error.starts_with(begins), "{error}");
        }
        assert_eq!(
            render(&nested("x", 4)).as_deref(),
            Ok(&*"x".repeat(81)),
            "what is reasonable is rendered"
        );
    }

    #[test]
    fn templates_of_one_update_share_their_steps() {
        let templates = Templates::default();
        let configs = configs();
        let loops = Arc::new(workload(&format!(
            "{}{}",
            "{{#each @root/arr}}".repeat(8),
            "{{/each}}".repeat(8)
        )));
        let failed = (0..TEMPLATE_STEPS_MAX)
            .find(|_| templates.render(&loops, |key| configs.get(key)).is_err());
        assert!(failed.is_some_and(|times| times > 1), "{failed:?}");
        templates.begin(TEMPLATE_STEPS_MAX, RENDERED_UPDATE_MAX);
        assert!(templates.render(&loops, |key| configs.get(key)).is_ok());
    }

    /// A workload whose texts use `alias`es of one config.
    fn render_with(
        aliases: usize,
        item: ConfigItem,
        template: &str,
    ) -> Result<Arc<Workload>, RenderError> {
        let mut workload = Workload::new("A", "podman", template);
        workload.configs = (0..aliases)
            .map(|number| (format!("a{number}"), "key".to_owned()))
            .collect();
        Templates::default().render(&Arc::new(workload), |key| (key == "key").then_some(&item))
    }

    #[test]
    fn nested_parameters_cost_a_read_of_a_large_config_each() {
        let text = || ConfigItem::Text("x".repeat(3 * 1024 * 1024));
        let equal = |times: usize| {
            format!(
                "{{{{#if (or {})}}}}{{{{/if}}}}",
                "(eq a0 @root/a0)".repeat(times)
            )
        };
        let error = render_with(1, text(), &equal(4_000))
            .unwrap_err()
            .to_string();
        assert!(error.contains("steps"), "{error}");
        assert!(render_with(1, text(), &equal(2)).is_ok());
        let looked_up: String = (0..4_000)
            .map(|number| format!(" k{number}=(eq a0 @root/a0)"))
            .collect();
        for parameters in [looked_up, " (eq a0 @root/a0)".repeat(4_000)] {
            let error = render_with(1, text(), &format!("{{{{len a0{parameters}}}}}"));
            assert!(
                error.is_err_and(|error| error.to_string().contains("steps")),
                "{parameters:.20}"
            );
        }
        // What only looks at one place of it costs nothing more.
        let short = format!(
            "{{{{#if (or {})}}}}{{{{/if}}}}",
            "(eq (len a0) 1)".repeat(4_000)
        );
        assert!(render_with(1, text(), &short).is_ok());
    }

    #[test]
    fn one_large_config_under_many_names_is_not_copied_for_each() {
        let text = || ConfigItem::Text("x".repeat(1024 * 1024));
        assert_eq!(
            render_with(400, text(), "{{a0}}"),
            Err(RenderError::ConfigsTooLarge)
        );
        let many = ConfigItem::List(vec![
            ConfigItem::Text(String::new());
            TEMPLATE_VALUES_MAX / VALUE_ENTRY
        ]);
        assert_eq!(
            render_with(1, many.clone(), "{{a0}}"),
            Err(RenderError::ConfigsTooLarge)
        );
        assert_eq!(
            render_with(2, text(), "{{a0}}")
                .unwrap()
                .runtime_config
                .len(),
            1024 * 1024
        );
        // Without a template nothing is copied, so nothing can be too large.
        let plain = render_with(400, many, "no template").unwrap();
        assert_eq!(
            (&*plain.runtime_config, plain.configs.len()),
            ("no template", 0)
        );
    }

    #[test]
    fn copies_of_configs_for_many_workloads_are_counted() {
        let item = ConfigItem::Text("x".repeat(3 * 1024 * 1024));
        let templates = Templates::default();
        let mut workload = Workload::new("A", "podman", "\\{{x}}");
        workload.configs = [("a".to_owned(), "key".to_owned())].into();
        let workload = Arc::new(workload);
        let failed = (0..1_000).find_map(|_| templates.render(&workload, |_| Some(&item)).err());
        assert!(failed.is_some_and(|error| error.to_string().contains("steps")));
    }

    #[test]
    fn what_all_fields_of_an_update_become_is_bounded_together() {
        let mut workload = Workload::new("A", "podman", "{{a}}{{a}}");
        workload.configs = [("a".to_owned(), "key".to_owned())].into();
        let item = ConfigItem::Text("x".repeat(RENDERED_MAX / 2));
        let (templates, workload) = (Templates::default(), Arc::new(workload));
        let render = || templates.render(&workload, |_| Some(&item));
        let fits = RENDERED_UPDATE_MAX / RENDERED_MAX;
        assert!((0..fits).all(|_| render().is_ok()));
        let error = render().unwrap_err().to_string();
        assert!(error.contains("of this update render too much"), "{error}");
        templates.begin(TEMPLATE_STEPS_MAX, RENDERED_UPDATE_MAX);
        assert!(render().is_ok());
    }

    #[test]
    fn size_of_config_values_counts_entries_and_keys() {
        let text = |text: &str| ConfigItem::Text(text.to_owned());
        assert_eq!(add_size(10, &text("abc")), Some(10 + VALUE_ENTRY + 3));
        let list = ConfigItem::List(vec![text("ab"), text("")]);
        assert_eq!(add_size(0, &list), Some(3 * VALUE_ENTRY + 2));
        let map = ConfigItem::Map(BTreeMap::from([("key".to_owned(), text("ab"))]));
        let expected = VALUE_MAP + 3 * VALUE_ENTRY + 3 + 2;
        assert_eq!(add_size(0, &map), Some(expected));
        assert_eq!(add_size(TEMPLATE_VALUES_MAX, &text("")), None);
    }

    #[test]
    fn written_bytes_cost_steps_and_each_call_one_byte_more() {
        use std::io::Write;
        let steps = TemplateSteps {
            left: AtomicUsize::new(100),
            are_used_up: AtomicBool::new(false),
        };
        let output_left = Cell::new(1_000_000);
        let mut output = BoundedOutput {
            bytes: Vec::new(),
            uncounted: 0,
            output_left: &output_left,
            steps: &steps,
        };
        let mut write = |bytes: usize| {
            output.write_all(&vec![b'x'; bytes]).unwrap();
            (steps.left.load(Ordering::Relaxed), output.uncounted)
        };
        assert_eq!(write(OUTPUT_BYTES - 2), (100, OUTPUT_BYTES - 1));
        assert_eq!(write(5), (99, 5));
        assert_eq!(write(2 * OUTPUT_BYTES), (97, 6));
    }

    #[test]
    fn alternatives_of_a_block_count_in_its_depth() {
        for (template, expected) in [
            ("{{n}}", 0),
            ("{{#if n}}{{/if}}", 1),
            ("{{#if n}}{{else}}{{/if}}", 2),
            ("{{#if n}}{{^}}{{/if}}", 2),
            ("{{#if n}}{{else if o}}{{else}}{{/if}}{{#if n}}{{/if}}", 3),
            ("{{else}}{{^}}", 0),
        ] {
            assert_eq!(depth(template), expected, "{template}");
        }
    }
}
