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
    let mut starts = Vec::new();
    let mut blanks = 2; // The first heading may begin at once.
    for (at, character) in heading.chars().enumerate() {
        if character == ' ' {
            blanks += 1;
            continue;
        }
        if blanks >= 2 {
            starts.push(at);
        }
        blanks = 0;
    }
    starts
}

/// Cuts a line into cells that begin at these character positions.
fn cut(line: &str, starts: &[usize]) -> Vec<String> {
    let mut rest: Vec<char> = line.chars().collect();
    let mut cells = Vec::new();
    for start in starts.iter().rev() {
        // The last cell first, so that the positions of the others stay.
        let cell: String = rest.drain(rest.len().min(*start)..).collect();
        cells.push(cell.trim().to_owned());
    }
    cells.reverse();
    cells
}
