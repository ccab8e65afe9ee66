//! The Go templates of `--format`, as far as the agent uses them: fields, `json`,
//! `index` and `printf "%.<number>s"`.
//!
//! Thread: `main`. Owns nothing.

use serde_json::Value;

/// What `template` prints of `data`.
///
/// # Errors
/// When it names a field that there is not, or cannot be read.
pub fn render(template: &str, data: &Value) -> Result<String, String> {
    let mut pieces = template.split("{{");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (expression, rest) = piece.split_once("}}").ok_or("unclosed action")?;
        match evaluate(&mut words(expression).into_iter(), data)? {
            Value::String(value) => text.push_str(&value),
            value => text.push_str(&value.to_string()),
        }
        text.push_str(rest);
    }
    Ok(text)
}

/// Parentheses, quoted texts and words between blanks.
fn words(expression: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    let mut quoted = false;
    for character in expression.chars() {
        quoted ^= character == '"';
        match character {
            ' ' if !quoted => words.push(String::new()),
            '(' | ')' if !quoted => words.extend([character.to_string(), String::new()]),
            _ => words
                .last_mut()
                .expect("it begins with one")
                .push(character),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The value of all words up to the closing parenthesis or the end.
fn evaluate(words: &mut dyn Iterator<Item = String>, data: &Value) -> Result<Value, String> {
    let mut function = None;
    let mut values = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            ")" => break,
            "(" => values.push(evaluate(words, data)?),
            _ if word.starts_with('.') => values.push(field(&word, data)?),
            _ if word.starts_with('"') => values.push(Value::from(word.trim_matches('"'))),
            _ => function = Some(word),
        }
    }
    let text = |value: &Value| {
        value
            .as_str()
            .map(str::to_owned)
            .ok_or(format!("{value} is no text"))
    };
    match (function.as_deref(), values.as_slice()) {
        (None, [value]) => Ok(value.clone()),
        (Some("json"), [value]) => Ok(value.to_string().into()),
        (Some("index"), [map, key]) => {
            Ok(map.get(text(key)?).cloned().unwrap_or_else(|| "".into()))
        }
        (Some("printf"), [format, value]) => {
            let format = text(format)?;
            let longest = format
                .strip_prefix("%.")
                .and_then(|rest| rest.strip_suffix('s')?.parse().ok());
            let longest: usize = longest.ok_or(format!("unknown format {format}"))?;
            Ok(text(value)?
                .chars()
                .take(longest)
                .collect::<String>()
                .into())
        }
        (function, values) => Err(format!(
            "function {function:?} with {} values",
            values.len()
        )),
    }
}

fn field(path: &str, data: &Value) -> Result<Value, String> {
    let mut names = path.split('.').skip(1);
    let found = names.try_fold(data, |value, name| {
        value
            .get(name)
            .ok_or(format!("can't evaluate field {name}"))
    });
    found.cloned()
}
