//! Reads the tables `ank` prints, by the rules scripts use.
//!
//! Thread: the test's. Owns nothing. Takes: text. Gives: rows.

/// One line of `ank get workloads`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub agent: String,
    pub runtime: String,
    pub state: String,
    pub info: String,
}

/// The table below the first line that contains `NAME`; empty without such a line.
pub fn parse(text: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| !line.contains("NAME"));
    let Some(heading) = lines.next() else {
        return Vec::new();
    };
    let starts = columns(heading);
    lines
        .take_while(|line| !line.trim().is_empty())
        .map(|line| cut(line, &starts))
        .collect()
}

/// Rows of `ank get workloads`.
pub fn workloads(text: &str) -> Vec<Row> {
    let rows = parse(text).into_iter();
    rows.map(|cells| {
        let [name, agent, runtime, state, info] =
            <[String; 5]>::try_from(cells).expect("five columns");
        Row {
            name,
            agent,
            runtime,
            state,
            info,
        }
    })
    .collect()
}

/// Character positions at which a heading begins: after two or more blanks.
fn columns(heading: &str) -> Vec<usize> {
    let chars: Vec<char> = heading.chars().collect();
    let begins = |at: usize| {
        chars[at] != ' ' && (at == 0 || (at >= 2 && chars[at - 1] == ' ' && chars[at - 2] == ' '))
    };
    (0..chars.len()).filter(|at| begins(*at)).collect()
}

fn cut(line: &str, starts: &[usize]) -> Vec<String> {
    let chars: Vec<char> = line.chars().collect();
    let ends = starts.iter().skip(1).copied().chain([chars.len()]);
    let cell = |from: usize, to: usize| {
        chars
            .get(from..to.max(from).min(chars.len()))
            .unwrap_or(&[])
            .iter()
            .collect()
    };
    starts
        .iter()
        .zip(ends)
        .map(|(from, to)| cell(*from, to))
        .map(|text: String| text.trim().to_owned())
        .collect()
}
