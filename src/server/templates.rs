//! Config items into rendered workloads (spec/server.md section 9.1).
//!
//! Thread: `server`; a plain value. The template engine recurses as deep as a template is nested and knows no
//! bounds, so templates are measured before it sees them, its output is cut off and its steps are counted.

use crate::limits::{RENDERED_MAX, TEMPLATE_DEPTH_MAX, TEMPLATE_STEP_BYTES, TEMPLATE_STEPS_MAX};
use crate::model::names::Name;
use crate::model::workload::{ConfigItem, File, FileContent, Workload};
use handlebars::template::{Parameter, Subexpression, TemplateElement};
use handlebars::{
    Context, Decorator, Handlebars, Helper, HelperResult, Output, RenderContext, RenderError as EngineError,
    RenderErrorReason, Renderable, Template, WriteOutput,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The one partial that templates may include: each line of its content gets the indentation of the inclusion.
const INDENT: (&str, &str) = ("indent", "{{content}}");
/// Counts steps. Templates that users write cannot name it, because of the space.
const COUNT_STEPS: &str = "count steps";

/// A workload cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A name for templates refers to a config that does not exist.
    #[error("Workload references config key '{0}' that does not exist")]
    MissingConfig(String),
    /// The template engine refuses a field.
    #[error("Failed to render field '{field}': '{reason}'")]
    Field {
        /// Name of the field.
        field: String,
        /// The engine's text.
        reason: String,
    },
}

/// Renders workloads.
pub struct Templates {
    engine: Handlebars<'static>,
    /// What the templates of this update may still do. Shared with the helper that counts.
    steps_left: Arc<AtomicUsize>,
}

impl Default for Templates {
    fn default() -> Self {
        let mut engine = Handlebars::new();
        engine.set_strict_mode(true);
        engine.register_escape_fn(handlebars::no_escape);
        engine.register_partial(INDENT.0, INDENT.1).expect("the one partial is a valid template");
        // Partials that templates define could include themselves for ever.
        engine.register_decorator(
            "inline",
            Box::new(|_: &Decorator<'_>, _: &Handlebars<'_>, _: &Context, _: &mut RenderContext<'_, '_>| {
                Err(RenderErrorReason::DecoratorNotFound("inline".to_owned()).into())
            }),
        );
        let steps_left = Arc::new(AtomicUsize::new(TEMPLATE_STEPS_MAX));
        let counter = steps_left.clone();
        engine.register_helper(
            COUNT_STEPS,
            Box::new(
                move |helper: &Helper<'_>,
                      _: &Handlebars<'_>,
                      _: &Context,
                      _: &mut RenderContext<'_, '_>,
                      _: &mut dyn Output|
                      -> HelperResult {
                    let steps = helper.param(0).and_then(|steps| steps.value().as_u64()).unwrap_or(1);
                    take_steps(&counter, usize::try_from(steps).unwrap_or(usize::MAX))
                },
            ),
        );
        Self { engine, steps_left }
    }
}

/// Takes `steps` from those that are left.
fn take_steps(left: &AtomicUsize, steps: usize) -> HelperResult {
    let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(steps));
    taken.map(drop).map_err(|_| {
        let text = format!(
            "the templates of this update take more than {TEMPLATE_STEPS_MAX} steps; use shorter lists or fewer \
             loops inside of each other"
        );
        EngineError::from(RenderErrorReason::Other(text))
    })
}

/// Lets each turn of a loop count what it renders: puts a step at the end of each block. Answers how many elements
/// are rendered when each block is rendered once, each of them counted as `weight`.
fn count_steps(template: &mut Template, weight: usize) -> usize {
    let mut total = template.elements.len().saturating_mul(weight);
    for element in &mut template.elements {
        let blocks = match element {
            TemplateElement::HelperBlock(block) => [block.template.as_mut(), block.inverse.as_mut()],
            TemplateElement::DecoratorBlock(block) | TemplateElement::PartialBlock(block) => {
                [block.template.as_mut(), None]
            }
            _ => [None, None],
        };
        for block in blocks.into_iter().flatten() {
            let steps = count_steps(block, weight).saturating_add(weight);
            total = total.saturating_add(steps);
            let parameters = vec![Parameter::Literal(Value::from(steps))];
            let count = Subexpression::new(Parameter::Name(COUNT_STEPS.to_owned()), parameters, Default::default());
            // At the end, so that the places that errors name stay the same.
            block.elements.push(*count.element);
        }
    }
    total
}

impl Templates {
    /// Another update begins: its templates may do [`TEMPLATE_STEPS_MAX`] steps altogether.
    pub fn begin_update(&self) {
        self.steps_left.store(TEMPLATE_STEPS_MAX, Ordering::Relaxed);
    }

    /// The workload as agents get it: templates in agent, runtime configuration and files are filled in and the
    /// names for templates are gone. A workload without such names is shared as it is, whatever its texts look like.
    ///
    /// # Errors
    /// [`RenderError`] for the first field, or a config that is missing even if no template uses it.
    pub fn render<'c>(
        &self,
        workload: &Arc<Workload>,
        config: impl Fn(&str) -> Option<&'c ConfigItem>,
    ) -> Result<Arc<Workload>, RenderError> {
        if workload.configs.is_empty() {
            return Ok(workload.clone());
        }
        let value = |(alias, key): (&String, &String)| match config(key) {
            Some(item) => Ok((alias.clone(), json(item))),
            None => Err(RenderError::MissingConfig(key.clone())),
        };
        let values: serde_json::Map<String, Value> = workload.configs.iter().map(value).collect::<Result<_, _>>()?;
        let values = Values {
            weight: 1 + values.values().map(bytes).sum::<usize>() / TEMPLATE_STEP_BYTES,
            context: Context::from(Value::Object(values)),
        };
        let field = |name: &str, text: &str| self.text(text, &values).map_err(|reason| at(name, reason));
        let mut rendered = Workload::clone(workload);
        rendered.configs = BTreeMap::new();
        rendered.agent = field("agent", &workload.agent)?.into();
        rendered.runtime_config = field("runtimeConfig", &workload.runtime_config)?.into();
        for file in &mut rendered.files {
            let File { mount_point, content: FileContent::Data(text) | FileContent::BinaryData(text) } = file;
            *text = field(&format!("files with mount point {mount_point}"), text)?;
        }
        Ok(Arc::new(rendered))
    }

    fn text(&self, template: &str, values: &Values) -> Result<String, String> {
        if !template.contains("{{") && !template.contains('\\') {
            return Ok(template.to_owned());
        }
        if depth(template) > TEMPLATE_DEPTH_MAX {
            return Err(format!("blocks or brackets are nested more than {TEMPLATE_DEPTH_MAX} deep"));
        }
        let mut output = Bounded { bytes: Vec::new() };
        self.render_to(template, values, &mut output).map_err(|error| error.to_string().trim_end().to_owned())?;
        String::from_utf8(output.bytes).map_err(|error| error.to_string())
    }

    fn render_to(&self, template: &str, values: &Values, output: &mut Bounded) -> Result<(), EngineError> {
        let mut template = Template::compile(template)?;
        take_steps(&self.steps_left, count_steps(&mut template, values.weight))?;
        let mut context = RenderContext::new(None);
        template.render(&self.engine, &values.context, &mut context, &mut WriteOutput::new(output))
    }
}

/// What templates of one workload can name.
struct Values {
    context: Context,
    /// How many steps one counts: a step may compare or copy all of the values.
    weight: usize,
}

fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(items) => items.iter().map(|(key, item)| key.len() + bytes(item)).sum(),
        _ => 0,
    }
}

fn at(field: &str, reason: String) -> RenderError {
    RenderError::Field { field: field.to_owned(), reason }
}

fn json(item: &ConfigItem) -> Value {
    match item {
        ConfigItem::Text(text) => Value::String(text.clone()),
        ConfigItem::List(items) => Value::Array(items.iter().map(json).collect()),
        ConfigItem::Map(items) => Value::Object(items.iter().map(|(key, item)| (key.clone(), json(item))).collect()),
    }
}

/// Which workloads use which configs, so that a change of one is proportional to its users.
#[derive(Debug, Default)]
pub struct ConfigUsers {
    by_key: BTreeMap<String, BTreeSet<Name>>,
}

impl ConfigUsers {
    /// The workload `name` of the desired state was `old` and is `new`.
    pub fn replace(&mut self, name: &Name, old: Option<&Workload>, new: Option<&Workload>) {
        for key in old.into_iter().flat_map(|workload| workload.configs.values()) {
            if let Some(users) = self.by_key.get_mut(key) {
                users.remove(name);
                if users.is_empty() {
                    self.by_key.remove(key);
                }
            }
        }
        for key in new.into_iter().flat_map(|workload| workload.configs.values()) {
            self.by_key.entry(key.clone()).or_default().insert(name.clone());
        }
    }

    /// The workloads that use the config `key`.
    pub fn of(&self, key: &str) -> impl Iterator<Item = &Name> {
        self.by_key.get(key).into_iter().flatten()
    }
}

/// Takes at most [`RENDERED_MAX`] bytes: loops in templates can multiply texts.
struct Bounded {
    bytes: Vec<u8>,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > RENDERED_MAX {
            let text = format!("the rendered text is longer than {RENDERED_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How deep the engine may recurse for this template: never less than it does.
///
/// Tags are found by their opening braces alone. What follows up to the next tag counts as part of the tag, so that
/// strings and comments need not be understood. An alternative of a block counts like another block in it.
fn depth(template: &str) -> usize {
    let mut blocks: Vec<usize> = Vec::new();
    let (mut open, mut deepest) = (0, 0);
    for tag in template.split("{{").skip(1) {
        let inside = tag.trim_start_matches(|letter: char| letter.is_whitespace() || matches!(letter, '~' | '{'));
        if inside.starts_with('#') {
            blocks.push(1);
            open += 1;
        } else if inside.starts_with('/') {
            open -= blocks.pop().unwrap_or(0);
        } else if inside.starts_with('^') || inside.starts_with("else") {
            // Without a block around it the engine refuses it anyway.
            if let Some(alternatives) = blocks.last_mut() {
                *alternatives += 1;
                open += 1;
            }
        }
        deepest = deepest.max(open + bracket_depth(tag));
    }
    deepest
}

fn bracket_depth(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
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
            ConfigItem::Map(entries.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect())
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
        let aliases =
            [("n", "port"), ("arr", "list"), ("o", "map"), ("e", "empty"), ("b", "no"), ("m", "lines"), ("h", "html")];
        workload.configs = aliases.map(|(alias, key)| (alias.to_owned(), key.to_owned())).into();
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
    fn templates_become_what_the_table_of_the_specification_says() {
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
            ("{{#each arr}}<{{this}}|{{@index}}>{{/each}}", "<m|0><n|1><o|2>"),
            ("{{#each o}}{{@key}}={{this}};{{/each}}", "b-c=d;p=q;"),
            ("{{#if e}}Y{{else}}N{{/if}}", "N"),
            ("{{#if b}}Y{{else}}N{{/if}}", "Y"),
            ("{{#if unknown}}..{{else}}N{{/if}}", "N"),
            ("{{lookup arr 0}}", "m"),
            ("{{len arr}}", "3"),
            ("{{#if (eq n \"8081\")}}Y{{/if}}", "Y"),
            ("k: |\n  {{> indent content=m}}\nend", "k: |\n  l1\n  l2\n  \n  l3\nend"),
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
            assert!(error.starts_with("Failed to render field 'runtimeConfig': '"), "{template}: {error}");
        }
        for (field, change) in [
            ("agent", (|workload| workload.agent = "{{x}}".into()) as fn(&mut Workload)),
            ("files with mount point /a", |workload| {
                let content = FileContent::BinaryData("{{x}}".into());
                workload.files.push(File { mount_point: "/a".into(), content });
            }),
        ] {
            let mut workload = workload("c");
            change(&mut workload);
            let error = render_workload(&Arc::new(workload)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("Failed to render field '{field}': '")), "{error}");
        }
        let mut unused = workload("c");
        unused.configs.insert("unused".into(), "missing".into());
        let error = render_workload(&Arc::new(unused)).unwrap_err().to_string();
        assert_eq!(error, "Workload references config key 'missing' that does not exist");
    }

    #[test]
    fn agent_and_files_are_rendered_and_a_workload_without_aliases_is_left_alone() {
        let mut with_files = workload("c\n{{m}}");
        with_files.agent = "agent_{{n}}".into();
        with_files.files = vec![
            File { mount_point: "/{{n}}".into(), content: FileContent::Data("{{o.p}}".into()) },
            File { mount_point: "/b".into(), content: FileContent::BinaryData("{{n}}".into()) },
        ];
        with_files.tags.insert("{{n}}".into(), "{{n}}".into());
        let rendered = render_workload(&Arc::new(with_files)).unwrap();
        assert_eq!(&*rendered.agent, "agent_8081");
        assert_eq!(&*rendered.runtime_config, "c\nl1\nl2\n\nl3\n", "a rendered value is not stripped again");
        assert_eq!(rendered.files[0].mount_point, "/{{n}}");
        assert_eq!(rendered.files[0].content, FileContent::Data("q".into()));
        assert_eq!(rendered.files[1].content, FileContent::BinaryData("8081".into()));
        assert!(rendered.tags.contains_key("{{n}}"));
        let plain = Arc::new(Workload::new("A", "podman", "{{literal}}"));
        let rendered = render_workload(&plain).unwrap();
        assert!(Arc::ptr_eq(&plain, &rendered));
    }

    #[test]
    fn templates_that_would_overflow_the_stack_are_refused() {
        let deep = 100_000;
        let nested = |open: &str, close: &str, times: usize| format!("{}x{}", open.repeat(times), close.repeat(times));
        for template in [
            nested("{{#if n}}", "{{/if}}", deep),
            nested("{{ ~ # if n}}", "{{/if}}", deep),
            nested("{{#> indent}}", "{{/indent}}", deep),
            nested("{{#*inline \"x\"}}", "{{/inline}}", deep),
            format!("{{{{#if e}}}}{}{{{{/if}}}}", "{{else if e}}".repeat(deep)),
            format!("{{{{#if e}}}}{}{{{{/if}}}}", "{{^if e}}".repeat(deep)),
            format!("{{{{#if {}n{}}}}}{{{{/if}}}}", "(eq ".repeat(deep), " 1)".repeat(deep)),
            format!("{{{{len {}1{}}}}}", "[".repeat(deep), "]".repeat(deep)),
            format!("{{{{len {}1{}}}}}", "{\"a\":".repeat(deep), "}".repeat(deep)),
            format!("{}{}", "{{#if n}}", "{{/if}}".repeat(deep)),
            "{{#if n}}".repeat(deep),
            "{".repeat(deep),
            "{{else}}".repeat(deep),
        ] {
            assert!(render(&template).is_err(), "{template:.100}");
        }
        for template in [
            "{{#*inline \"x\"}}{{> x}}{{/inline}}{{> x}}",
            "{{#*inline \"indent\"}}{{> indent}}{{/inline}}{{> indent}}",
            "{{> @partial-block}}",
            "{{#> indent content=n}}{{> @partial-block}}{{/indent}}{{> x}}",
        ] {
            assert!(render(template).is_err(), "{template}");
        }
        let allowed = TEMPLATE_DEPTH_MAX - 1;
        assert_eq!(render(&nested("{{#if n}}", "{{/if}}", allowed)).as_deref(), Ok("x"));
        assert_eq!(render(&nested("{{#> indent content=n}}", "{{/indent}}", allowed)).as_deref(), Ok("8081"));
    }

    #[test]
    fn loops_cannot_multiply_a_text_without_bound() {
        let loops = 20;
        let text = "x".repeat(10_000);
        let template = format!("{}{text}{}", "{{#each @root/arr}}".repeat(loops), "{{/each}}".repeat(loops));
        let error = render(&template).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
    }

    #[test]
    fn loops_that_render_nothing_end() {
        let nested = |body: &str, times: usize| {
            format!("{}{body}{}", "{{#each @root/arr}}".repeat(times), "{{/each}}".repeat(times))
        };
        for template in [
            nested("", TEMPLATE_DEPTH_MAX - 1),
            nested("{{#if e}}x{{/if}}", TEMPLATE_DEPTH_MAX - 2),
            format!("{{{{#if e}}}}{{{{else}}}}{}{{{{/if}}}}", nested("", 40)),
            format!("{{{{#> indent content=n}}}}{}{{{{/indent}}}}{}", nested("", 10), nested("", 40)),
        ] {
            let error = render(&template).unwrap_err().to_string();
            assert!(
                error.starts_with("Failed to render field 'runtimeConfig': '") && error.contains("steps"),
                "{error}"
            );
        }
        assert_eq!(render(&nested("x", 4)).as_deref(), Ok(&*"x".repeat(81)), "what is reasonable is rendered");
    }

    #[test]
    fn all_templates_of_an_update_share_their_steps_and_the_next_update_has_new_ones() {
        let templates = Templates::default();
        let configs = configs();
        let loops = Arc::new(workload(&format!("{}{}", "{{#each @root/arr}}".repeat(8), "{{/each}}".repeat(8))));
        let failed = (0..TEMPLATE_STEPS_MAX).find(|_| templates.render(&loops, |key| configs.get(key)).is_err());
        assert!(failed.is_some_and(|times| times > 1), "{failed:?}");
        templates.begin_update();
        assert!(templates.render(&loops, |key| configs.get(key)).is_ok());
    }
}
