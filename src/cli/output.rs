//! What `ank` prints: the streams, tables and frames, and documents in YAML and JSON.
//!
//! Results and progress go to standard output, warnings, errors and debug messages to standard
//! error. Texts of others - files, names, states, texts of the server - reach a terminal only
//! through here: characters that would act on it are escaped. One list of columns for each view
//! gives the table, JSON and YAML. Tables have no borders and are laid out so that scripts can cut
//! them at the headings. Frames replace each other in a terminal, and follow each other elsewhere.
//!
//! Documents have the documented order of fields. Names of workloads, agents, tags and configs are
//! sorted, so that two outputs can be compared. Empty maps and lists are left out where only an
//! unmasked response of the server has them.
//!
//! Thread: `main`. Owns: both streams. Colours only in a terminal, without `NO_COLOR` and
//! `TERM=dumb`: scripts match `error: ` and `warn: ` at the beginning of a line.

use super::args::Format;
use super::error::{Result, unknown};
use ankaios_model::fields::table::COMPLETE_STATE;
use ankaios_model::fields::{Kind, Object};
use ankaios_model::messages::AlteredFields;
use ankaios_model::nearest::meant;
use ankaios_model::node::{Entries, Node};
use ankaios_model::shown_text::{acts_on_terminal, printable, printable_with_colours};
use ankaios_platform::logging::utc;
use serde::ser::{Serialize, Serializer};
use serde_yaml::{Mapping, Value};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{SystemTime, UNIX_EPOCH};
use unicode_width::UnicodeWidthChar;

/// Width without a terminal: nothing is cut or wrapped.
pub(crate) const UNLIMITED: usize = usize::MAX;
/// The part of the state that says what is wrong with the stored state. Servers that have none do
/// not mind the mask.
pub(crate) const WARNING: &str = "warning";

/// Both streams and their levels.
pub struct Output {
    out: Box<dyn Write>,
    err: Box<dyn Write>,
    /// Reads columns and lines of the terminal; `None` when standard output is none.
    terminal: Option<fn() -> (usize, usize)>,
    /// Whether frames replace each other: standard output is a terminal that can move its cursor.
    pub(crate) redraws: bool,
    /// Whether labels have colours.
    colours: bool,
    /// Whether results have colours.
    result_colours: bool,
    /// Progress is not written.
    pub(crate) quiet: bool,
    /// Debug messages are written.
    verbose: bool,
    /// How many warnings were written.
    pub(crate) warnings: usize,
}

impl Output {
    /// The streams of the process.
    pub(crate) fn of_process() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
        let no_colour = dumb || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            out: Box::new(io::stdout().lock()),
            err: Box::new(io::stderr()),
            terminal: io::stdout()
                .is_terminal()
                .then_some(terminal_size as fn() -> (usize, usize)),
            redraws: io::stdout().is_terminal() && !dumb,
            colours: io::stderr().is_terminal() && !no_colour,
            result_colours: io::stdout().is_terminal() && !no_colour,
            quiet: false,
            verbose: false,
            warnings: 0,
        }
    }

    /// Streams for tests; with `terminal`, standard output pretends to be one.
    pub fn to(
        out: impl Write + 'static,
        err: impl Write + 'static,
        terminal: Option<fn() -> (usize, usize)>,
    ) -> Self {
        let (out, err) = (Box::new(out), Box::new(err));
        Self {
            redraws: terminal.is_some(),
            out,
            err,
            terminal,
            colours: false,
            result_colours: false,
            quiet: false,
            verbose: false,
            warnings: 0,
        }
    }

    /// Sets the levels; quiet wins.
    pub(crate) fn set_level(&mut self, quiet: bool, verbose: bool) {
        self.quiet = quiet;
        self.verbose = verbose && !quiet;
    }

    /// Columns and lines of the terminal; `None` when standard output is none.
    pub(crate) fn terminal(&self) -> Option<(usize, usize)> {
        self.terminal.map(|size| size())
    }

    /// Columns for a table.
    pub(crate) fn width(&self) -> usize {
        self.terminal().map_or(UNLIMITED, |(columns, _)| columns)
    }

    /// Writes a result.
    pub(crate) fn result(&mut self, text: &str) -> Result<()> {
        self.raw(&printable(text))
    }

    /// Writes lines of a result, each with the escape sequence of its colour; an empty one means no
    /// colour.
    pub(crate) fn coloured_result(
        &mut self,
        lines: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<()> {
        let colours = self.result_colours;
        let shown = |(colour, line): (&str, String)| match (
            colours && !colour.is_empty(),
            printable(&line),
        ) {
            (true, line) => format!("{colour}{line}\x1b[0m\n"),
            (false, line) => format!("{line}\n"),
        };
        self.raw(&lines.into_iter().map(shown).collect::<String>())
    }

    /// Writes lines that workloads have printed, unchanged where there is no terminal. A terminal
    /// gets their colours and nothing else that acts on it: a workload could overwrite lines of
    /// others, or set the clipboard.
    pub(crate) fn lines_of_workloads(&mut self, text: &str) -> Result<()> {
        if self.terminal.is_none() {
            return self.raw(text);
        }
        let shown: String = text
            .lines()
            .map(|line| printable_with_colours(line) + "\n")
            .collect();
        self.raw(&shown)
    }

    fn raw(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes())?;
        Ok(self.out.flush()?)
    }

    /// Writes a line of progress, unless quiet.
    pub(crate) fn status(&mut self, text: &str) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        self.result(&format!("{text}\n"))
    }

    /// Writes frames of progress, unless quiet. They hold cursor movements, so nothing is escaped.
    pub(crate) fn progress(&mut self, text: &str) -> Result<()> {
        if self.quiet { Ok(()) } else { self.raw(text) }
    }

    /// Writes a warning.
    pub(crate) fn warn(&mut self, text: impl Display) {
        self.warnings += 1;
        self.labelled("\x1b[38;5;11m", "warn:", &text);
    }

    /// Warns of what is wrong with the stored state, when `state` was read with [`WARNING`] as a
    /// mask.
    pub(crate) fn warn_of_storage(&mut self, state: &Node) {
        if let Some(text) = state.get(WARNING).and_then(Node::as_text) {
            self.warn(text);
        }
    }

    /// Warns about names that no workload of `known` has: they are probably typing errors.
    pub(crate) fn warn_of_unknown_workloads<'k>(
        &mut self,
        names: &[String],
        known: impl Iterator<Item = &'k str> + Clone,
    ) {
        for name in unknown(names, known.clone()) {
            self.warn(format_args!(
                "workload '{name}' does not exist{}",
                meant(name, known.clone())
            ));
        }
    }

    /// Writes a debug message, when verbose.
    pub(crate) fn debug(&mut self, text: impl Display) {
        if self.verbose {
            self.labelled("\x1b[38;5;12m", "debug:", &text);
        }
    }

    /// Writes why the command failed, and what to do.
    pub(crate) fn error(&mut self, text: impl Display, hint: &str) {
        self.labelled("\x1b[1;38;5;9m", "error:", &text);
        if !hint.is_empty() {
            self.labelled("\x1b[38;5;14m", "hint:", &hint);
        }
    }

    /// Writes text that belongs to the warning or error before it.
    pub(crate) fn explain(&mut self, text: &str) {
        let _ = self.err.write_all(printable(text).as_bytes()); // As for labels.
    }

    fn labelled(&mut self, colour: &str, label: &str, text: &dyn Display) {
        let text = text.to_string();
        let text = printable(&text);
        // There is no stream left for an error of standard error.
        let _ = if self.colours {
            writeln!(self.err, "{colour}{label}\x1b[0m {text}")
        } else {
            writeln!(self.err, "{label} {text}")
        };
    }
}

/// Prints a usage error of the command line `words`, or the help. An error repeats the words, which
/// may be texts of others.
pub(crate) fn print_usage(error: &clap::Error, words: &[OsString]) {
    let hostile = |word: &OsString| word.to_string_lossy().chars().any(acts_on_terminal);
    // There is no stream left for an error of this one.
    let _ = if error.use_stderr() && words.iter().any(hostile) {
        io::stderr().write_all(printable(&error.render().to_string()).as_bytes())
    } else {
        error.print()
    };
}

fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        // Size of a terminal that does not report one: columns and lines.
        _ => (80, 24),
    }
}

// ------------------------------------------------------ tables and frames

/// Blanks between two columns.
const GAP: usize = 3;
/// The end of a cell that was shortened, and of headings where columns were left out.
const ELLIPSIS: &str = "...";
/// The longest state: as much of it is shown at any width.
const STATE: usize = 28;
/// The indent of text below its row.
const INDENT: &str = "  ";

/// One column of one row: its heading, the cell, the key in JSON and YAML, and the value there.
/// Without a heading it is no column of the table, without a value no part of the data.
pub(crate) struct Field {
    heading: &'static str,
    is_wide: bool,
    cell: String,
    key: String,
    value: Value,
}

impl Field {
    pub(crate) fn new(
        heading: &'static str,
        key: &str,
        cell: String,
        value: impl Into<Value>,
    ) -> Self {
        Self {
            heading,
            is_wide: false,
            cell,
            key: key.to_owned(),
            value: value.into(),
        }
    }

    /// A text of others.
    pub(crate) fn text(heading: &'static str, key: &str, text: &str) -> Self {
        Self::new(heading, key, one_line(text), text)
    }

    /// No column of the table.
    pub(crate) fn data(key: &str, value: impl Into<Value>) -> Self {
        Self::new("", key, String::new(), value)
    }

    /// A column of `-o wide` only.
    pub(crate) fn wide(self) -> Self {
        Self {
            is_wide: true,
            ..self
        }
    }
}

/// What a command shows: its rows, as a table and as data.
pub(crate) struct View {
    format: Format,
    pub(crate) table: Table,
    pub(crate) rows: Vec<Value>,
}

impl View {
    /// `blank` has the columns of `rows`, of which there may be none.
    pub(crate) fn new(
        format: Format,
        blank: &[Field],
        rows: impl IntoIterator<Item = Vec<Field>>,
    ) -> Self {
        let columns = blank.iter().filter(|field| is_column(format, field));
        let table = Table {
            headings: columns.map(|field| field.heading).collect(),
            rows: Vec::new(),
        };
        let mut view = Self {
            format,
            table,
            rows: Vec::new(),
        };
        for fields in rows {
            view.push_cells(&fields);
            view.rows.push(object(
                fields.into_iter().map(|field| (field.key, field.value)),
            ));
        }
        view
    }

    /// A row of the table only.
    pub(crate) fn push_cells(&mut self, fields: &[Field]) {
        let columns = fields.iter().filter(|field| is_column(self.format, field));
        self.table
            .rows
            .push(columns.map(|field| field.cell.clone()).collect());
    }

    /// Lets the cells below each of `headings` end at the same place.
    pub(crate) fn align(&mut self, headings: &[&str]) {
        for at in
            (0..self.table.headings.len()).filter(|at| headings.contains(&self.table.headings[*at]))
        {
            let widest = self
                .table
                .rows
                .iter()
                .map(|row| width(&row[at]))
                .max()
                .unwrap_or_default();
            self.table
                .rows
                .iter_mut()
                .for_each(|row| row[at] = format!("{:>widest$}", row[at]));
        }
    }

    /// Prints the table, or the rows as `key` of one document, after `more`. Those of `frames`
    /// follow each other.
    pub(crate) fn print<const N: usize>(
        self,
        (key, more): (&str, [(&str, Value); N]),
        too_wide: TooWide,
        frames: Option<&mut LiveFrames>,
        output: &mut Output,
    ) -> Result<()> {
        let rows = [(key, Value::Sequence(self.rows))];
        show(
            self.format,
            &object(more.into_iter().chain(rows)),
            &self.table,
            too_wide,
            frames,
            output,
        )
    }
}

/// Prints `table`, or `data` where the format is one for programs.
pub(crate) fn show(
    format: Format,
    data: &impl Serialize,
    table: &Table,
    too_wide: TooWide,
    frames: Option<&mut LiveFrames>,
    output: &mut Output,
) -> Result<()> {
    match (format, frames) {
        (Format::Json | Format::Yaml, frames) => {
            output.result(&document(data, format, frames.is_some()))
        }
        (_, Some(frames)) => frames.show_table(table, too_wide, output),
        _ => {
            let columns = if format == Format::Wide {
                UNLIMITED
            } else {
                output.width()
            };
            output.result(&table.text(columns, too_wide))
        }
    }
}

fn is_column(format: Format, field: &Field) -> bool {
    !field.heading.is_empty() && (!field.is_wide || format == Format::Wide)
}

/// The layout of a table that is wider than the terminal. Columns are left out from the right,
/// which `...` behind the headings says, but for the first and that of the state; what is left ends
/// at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooWide {
    /// Nothing else.
    Drop,
    /// The last cell goes on in the next line, below its heading.
    Wrap,
    /// The last cell ends in `...`.
    Shorten,
    /// As `Wrap`, but where the last column would have less than 60 columns there is no table: each
    /// row takes a line, and its last cell those below it. Nothing is cut.
    Whole,
}

/// Headings and rows; every row has a cell for each heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) headings: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Columns that `text` takes in a terminal.
fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Makes a cell of text from outside: one line, trimmed, without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    let blank = |c: char| if c == '\t' { ' ' } else { c };
    let visible = |c: char| {
        if acts_on_terminal(c) {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    lines.join(", ").chars().map(blank).map(visible).collect()
}

/// Names in one cell of a table.
const NAMES_SHOWN: usize = 3;

/// Names; of many the first ones.
pub(crate) fn some_of<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let names: Vec<String> = names.map(one_line).collect();
    let shown = names[..names.len().min(NAMES_SHOWN)].join(", ");
    if names.len() > NAMES_SHOWN {
        format!("{shown} and {} more", names.len() - NAMES_SHOWN)
    } else {
        shown
    }
}

impl Table {
    /// The lines of the table, without line ends, in a terminal with `columns` columns.
    pub(crate) fn lines(&self, columns: usize, too_wide: TooWide) -> Vec<String> {
        let last = self.headings.len() - 1;
        let headings: Vec<String> = self.headings.iter().map(ToString::to_string).collect();
        let rows = || std::iter::once(&headings).chain(&self.rows);
        // Where the width has no end, longer cells make no column wider.
        let padded_max = if columns == UNLIMITED { 100 } else { columns };
        let widest = |at: usize| rows().map(|row| width(&row[at])).max().unwrap_or_default();
        let mut widths: Vec<usize> = (0..=last).map(|at| widest(at).min(padded_max)).collect();
        let mut shown: Vec<usize> = (0..=last).collect();
        let missing = |widths: &[usize], shown: &[usize]| {
            let sign = if shown.len() > last {
                0
            } else {
                1 + ELLIPSIS.len()
            };
            (shown.iter().map(|at| widths[*at] + GAP).sum::<usize>() - GAP + sign)
                .saturating_sub(columns)
        };
        let room = widest(last)
            .min(columns)
            .saturating_sub(missing(&widths, &shown));
        // Fewer columns are too few to read a sentence.
        if too_wide == TooWide::Whole && room < widths[last].min(60) {
            return self.plain_lines(columns);
        }
        // The heading of the column that is never left out.
        let is_state = |at: usize| self.headings[at].trim_start() == "EXECUTION STATE";
        if too_wide != TooWide::Drop {
            let least = if is_state(last) {
                STATE
            } else {
                width(self.headings[last])
            };
            widths[last] = widths[last].min(room.max(least));
        }
        while missing(&widths, &shown) > 0
            && let Some(at) = shown.iter().rposition(|at| *at > 0 && !is_state(*at))
        {
            shown.remove(at);
        }
        widths[0] = widths[0].saturating_sub(missing(&widths, &shown)).max(1);
        let mut lines = Vec::new();
        for row in rows() {
            let pieces = match too_wide {
                _ if columns == UNLIMITED || width(&row[last]) <= widths[last] => {
                    vec![row[last].clone()]
                }
                TooWide::Wrap | TooWide::Whole if shown.contains(&last) => {
                    wrap(&row[last], widths[last])
                }
                _ => vec![shortened(&row[last], widths[last])],
            };
            for (number, piece) in pieces.iter().enumerate() {
                let cells = shown.iter().map(|at| {
                    let cell = match *at {
                        at if at == last => piece.clone(),
                        // Below the first line only the last column has text.
                        _ if number > 0 => String::new(),
                        0 if columns != UNLIMITED => shortened(&row[0], widths[0]),
                        at => row[at].clone(),
                    };
                    let padding = " ".repeat(widths[*at].saturating_sub(width(&cell)));
                    cell + &padding
                });
                let mut line = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
                if lines.is_empty() && shown.len() <= last {
                    line = format!("{line} {ELLIPSIS}");
                }
                lines.push(cut(&line, columns).to_owned());
            }
        }
        lines
    }

    fn plain_lines(&self, columns: usize) -> Vec<String> {
        let room = columns.saturating_sub(INDENT.len());
        let lines = self
            .rows
            .iter()
            .filter_map(|row| row.split_last())
            .flat_map(|(last, cells)| {
                let cells: Vec<&str> = cells
                    .iter()
                    .map(String::as_str)
                    .filter(|cell| !cell.is_empty())
                    .collect();
                let last = wrap_words(last, room)
                    .into_iter()
                    .map(|line| format!("{INDENT}{line}"));
                std::iter::once(cells.join(&" ".repeat(GAP))).chain(last)
            });
        lines.collect()
    }

    /// The table as text, every line with its end.
    pub(crate) fn text(&self, columns: usize, too_wide: TooWide) -> String {
        self.lines(columns, too_wide)
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect()
    }
}

/// The beginning of `text` that fits in `columns`.
pub(crate) fn cut(text: &str, columns: usize) -> &str {
    let mut used = 0;
    for (index, c) in text.char_indices() {
        used += c.width().unwrap_or(0);
        if used > columns {
            return &text[..index];
        }
    }
    text
}

/// `text`, or its beginning and `...` when it is wider than `columns`.
pub(crate) fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    format!(
        "{}{ELLIPSIS}",
        cut(text, columns.saturating_sub(ELLIPSIS.len()))
    )
}

/// Lines of `text` of at most `columns`, broken between words where there are any.
fn wrap_words(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() && width(&line) + 1 + width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        while width(&line) > columns.max(1) {
            let mut pieces = wrap(&line, columns);
            line = pieces.pop().unwrap_or_default();
            if pieces.is_empty() {
                break; // One character that is wider than a line.
            }
            lines.append(&mut pieces);
        }
    }
    lines.extend((!line.is_empty()).then_some(line));
    lines
}

/// Pieces of `text` of at most `columns`, without regard to words; at least one character each.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let fits = cut(rest, columns).len();
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let (piece, after) = rest.split_at(fits.max(first));
        pieces.push(piece.to_owned());
        rest = after;
    }
    pieces
}

/// The place on the screen where frames are drawn.
#[derive(Debug, Default)]
pub(crate) struct LiveFrames {
    /// Lines of the frame above the cursor.
    drawn: usize,
    /// The last frame that was written without a terminal.
    last: Option<Vec<String>>,
}

impl LiveFrames {
    /// Shows `table`, as far as the terminal has lines for it.
    pub(crate) fn show_table(
        &mut self,
        table: &Table,
        too_wide: TooWide,
        output: &mut Output,
    ) -> Result<()> {
        let mut lines = table.lines(output.width(), too_wide);
        if let Some((_, height)) = output.terminal() {
            shorten(&mut lines, height.saturating_sub(1)); // The cursor stands below.
        }
        self.show(lines, output)
    }

    /// Shows `lines`. In a terminal that can redraw they replace the frame before; elsewhere they
    /// are written, followed by an empty line, when they differ from the frame before.
    pub(crate) fn show(&mut self, lines: Vec<String>, output: &mut Output) -> Result<()> {
        let lines: Vec<String> = lines
            .into_iter()
            .map(|line| printable(&line).into_owned())
            .collect();
        if let Some((columns, _)) = output.terminal().filter(|_| output.redraws) {
            let text = self.redraw(&lines, columns);
            return output.progress(&text);
        }
        if self.last.as_ref() == Some(&lines) {
            return Ok(());
        }
        let text: String = lines
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .chain(["\n"])
            .collect();
        self.last = Some(lines);
        output.progress(&text)
    }

    fn redraw(&mut self, lines: &[String], columns: usize) -> String {
        let mut text = "\x1b[1G".to_owned();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in lines {
            // A line that is wider than the terminal would take two and spoil the count.
            text.extend([cut(line, columns), "\x1b[K\n"]);
        }
        if self.drawn > lines.len() {
            text.push_str("\x1b[J"); // The rest of the frame before.
        }
        self.drawn = lines.len();
        text
    }
}

/// Leaves at most `lines_max` lines, the last one with the number of the others: lines that
/// scrolled away cannot be redrawn.
fn shorten(lines: &mut Vec<String>, lines_max: usize) {
    let lines_max = lines_max.max(2);
    if lines.len() > lines_max {
        let hidden = lines.len() - (lines_max - 1);
        lines.truncate(lines_max - 1);
        lines.push(format!("and {hidden} more lines"));
    }
}

// -------------------------------------------------------------- documents

/// A node with its kind: it is written with the documented order of fields.
pub(crate) struct Ordered<'n> {
    /// The node.
    pub(crate) node: &'n Node,
    /// What it is.
    pub(crate) kind: Kind,
}

// [impl->swdd~api-object-serialization~1]
impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let below = |kind: Kind| move |node| Ordered { node, kind };
        match (self.node, self.kind) {
            (Node::Map(entries), Kind::Map(value) | Kind::Named(value)) => serializer.collect_map(
                entries
                    .iter()
                    .map(|(name, node)| (name, below(*value)(node))),
            ),
            (Node::List(items), Kind::List(item)) => {
                serializer.collect_seq(items.iter().map(below(*item)))
            }
            (Node::Map(entries), kind) => match kind.object(self.node) {
                Some(object) => serializer.collect_map(ordered_fields(entries, object)),
                None => self.node.serialize(serializer),
            },
            (node, _) => node.serialize(serializer),
        }
    }
}

/// The fields to print in their order; those that are not in the table come last.
fn ordered_fields<'n>(
    entries: &'n Entries,
    object: &'static Object,
) -> Vec<(&'n str, Ordered<'n>)> {
    let known = object.fields.iter().filter_map(|field| {
        let node = entries
            .get(field.name)
            .filter(|node| !field.is_omitted(node))?;
        Some((
            field.name,
            Ordered {
                node,
                kind: field.kind,
            },
        ))
    });
    let unknown = entries
        .iter()
        .filter(|(name, _)| object.field(name).is_none());
    known
        .chain(unknown.map(|(name, node)| {
            (
                name,
                Ordered {
                    node,
                    kind: Kind::Any,
                },
            )
        }))
        .collect()
}

/// The text of a complete state or a part of one, as `ank get state` prints it.
pub(crate) fn state_text(state: &Node, format: Format) -> String {
    let text = document(
        &Ordered {
            node: state,
            kind: Kind::Object(&COMPLETE_STATE),
        },
        format,
        false,
    );
    if format == Format::Yaml {
        text + "\n"
    } else {
        text
    }
}

/// Anything that can be written in both formats, which are texts, numbers, lists and maps with text
/// keys. In a `stream`, YAML follows after a line `---`, and JSON has one line.
pub(crate) fn document(value: &impl Serialize, format: Format, stream: bool) -> String {
    let json = if stream {
        serde_json::to_string
    } else {
        serde_json::to_string_pretty
    };
    match format {
        Format::Yaml if stream => format!("---\n{}\n", yaml_text(value).trim_end()),
        Format::Yaml => yaml_text(value),
        _ => escaped_json(&json(value).unwrap_or_default()) + "\n",
    }
}

/// One event as a document of a stream.
pub(crate) fn event_text(
    now: SystemTime,
    altered: &AlteredFields,
    state: &Node,
    format: Format,
) -> String {
    let paths = |paths: &Vec<String>| value(Some(paths).filter(|paths| !paths.is_empty()));
    let event = object([
        ("timestamp", timestamp(now).into()),
        ("addedFields", paths(&altered.added)),
        ("updatedFields", paths(&altered.updated)),
        ("removedFields", paths(&altered.removed)),
        (
            "completeState",
            value(Some(Ordered {
                node: state,
                kind: Kind::Object(&COMPLETE_STATE),
            })),
        ),
    ]);
    document(&event, format, true)
}

/// Anything as a value; what is missing has none.
pub(crate) fn value(of: Option<impl Serialize>) -> Value {
    of.map_or(Value::Null, |of| {
        serde_yaml::to_value(of).unwrap_or_default()
    }) // States can always be written.
}

/// A map of what is known.
pub(crate) fn object<K: Into<Value>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
    let known = entries.into_iter().filter(|(_, value)| !value.is_null());
    Value::Mapping(
        known
            .map(|(key, value)| (key.into(), value))
            .collect::<Mapping>(),
    )
}

/// JSON in which nothing acts on a terminal. Such characters stand only inside of texts, where an
/// escape means the same.
fn escaped_json(json: &str) -> String {
    // The last two are not allowed in YAML, which `yaml_text` makes of this.
    let escapes = |c: char| acts_on_terminal(c) || matches!(c, '\u{fffe}' | '\u{ffff}');
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if escapes(c) {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)))
        } else {
            escaped.push(c)
        }
    }
    escaped
}

/// YAML in which nothing acts on a terminal.
fn yaml_text(value: &impl Serialize) -> String {
    let text = serde_yaml::to_string(value).unwrap_or_default();
    if !text.chars().any(acts_on_terminal) {
        return text;
    }
    // The library writes some of these characters as they are.
    all_lines(&serde_yaml::to_value(value).unwrap_or_default()).join("\n") + "\n"
}

/// The lines of a value as YAML.
pub(crate) fn all_lines(value: &Value) -> Vec<String> {
    let (beside, below) = yaml_lines(value);
    Some(beside)
        .filter(|line| !line.is_empty())
        .into_iter()
        .chain(below)
        .collect()
}

/// A value as YAML: what stands beside its key, and the lines below. Texts of several lines are
/// written line by line, so that these can be compared.
pub(crate) fn yaml_lines(value: &Value) -> (String, Vec<String>) {
    match value {
        Value::Mapping(map) if !map.is_empty() => {
            let lines = map.iter().flat_map(|(key, value)| {
                let (key, (beside, below)) = (scalar(key), yaml_lines(value));
                let indent = if value.is_sequence() { "" } else { "  " };
                let blank = if beside.is_empty() { "" } else { " " };
                // Bytes of a key that stands before its value; YAML reads no longer ones there than
                // 1,024.
                let key = if key.len() > 128 {
                    format!("? {key}\n")
                } else {
                    key
                };
                let first = format!("{key}:{blank}{beside}");
                std::iter::once(first)
                    .chain(below.into_iter().map(move |line| format!("{indent}{line}")))
            });
            // A long key has a line of its own.
            (
                String::new(),
                lines
                    .flat_map(|line| line.split('\n').map(str::to_owned).collect::<Vec<_>>())
                    .collect(),
            )
        }
        Value::Sequence(items) if !items.is_empty() => {
            let lines = items.iter().flat_map(|item| {
                // The first entry of a map stands beside the dash.
                let leads = std::iter::once("- ").chain(std::iter::repeat("  "));
                all_lines(item)
                    .into_iter()
                    .zip(leads)
                    .map(|(line, lead)| format!("{lead}{line}"))
            });
            (String::new(), lines.collect())
        }
        Value::String(text) if text.contains('\n') && is_block(text) => {
            let body = text.strip_suffix('\n');
            let style = match body {
                None => "|-",
                Some(body) if body.is_empty() || body.ends_with('\n') => "|+",
                Some(_) => "|",
            };
            (
                style.to_owned(),
                body.unwrap_or(text)
                    .split('\n')
                    .map(str::to_owned)
                    .collect(),
            )
        }
        value => (scalar(value), Vec::new()),
    }
}

/// Whether a text of several lines can be written line by line, and is read back as it was.
fn is_block(text: &str) -> bool {
    let begins_deeper = text.trim_start_matches('\n').starts_with([' ', '\t']);
    // The last two are not allowed in YAML.
    !begins_deeper
        && text
            .chars()
            .all(|c| !acts_on_terminal(c) && !matches!(c, '\u{fffe}' | '\u{ffff}'))
}

/// A value on one line.
fn scalar(value: &Value) -> String {
    match value {
        // Each text of JSON is one of YAML as well.
        Value::String(text) if text.contains('\n') || text.chars().any(acts_on_terminal) => {
            escaped_json(&serde_json::to_string(text).unwrap_or_default())
        }
        _ => serde_yaml::to_string(value)
            .unwrap_or_default()
            .trim_end()
            .to_owned(),
    }
}

/// UTC with nanoseconds, the format that scripts expect.
pub(super) fn timestamp(now: SystemTime) -> String {
    let nanoseconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    format!("{}.{nanoseconds:09}+00:00", utc(now).trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Written;

    /// Writes one of everything and gives both streams.
    fn all(quiet: bool, verbose: bool, colours: bool) -> (String, String) {
        let (out, err) = (Written::default(), Written::default());
        let mut output = Output::to(out.clone(), err.clone(), None);
        output.colours = colours;
        output.set_level(quiet, verbose);
        output.result("result\n").unwrap();
        output.status("status").unwrap();
        output.progress("frame\n").unwrap();
        output.warn("careful");
        output.debug("detail");
        output.error("failed", "try again");
        drop(output);
        (out.text(), err.text())
    }

    #[test]
    fn quiet_and_verbose_change_what_the_table_says() {
        for (quiet, verbose, out, err) in [
            (
                false,
                false,
                "result\nstatus\nframe\n",
                "warn: careful\nerror: failed\nhint: try again\n",
            ),
            (
                true,
                false,
                "result\n",
                "warn: careful\nerror: failed\nhint: try again\n",
            ),
            (
                false,
                true,
                "result\nstatus\nframe\n",
                "warn: careful\ndebug: detail\nerror: failed\nhint: try again\n",
            ),
            (
                true,
                true,
                "result\n",
                "warn: careful\nerror: failed\nhint: try again\n",
            ),
        ] {
            assert_eq!(
                all(quiet, verbose, false),
                (out.to_owned(), err.to_owned()),
                "quiet {quiet} verbose {verbose}"
            );
        }
    }

    #[test]
    fn texts_of_others_cannot_act_on_the_terminal_whatever_prints_them() {
        let hostile = "\x1b]0;x\x07\u{9b}2J\u{202e}\r";
        let (out, err) = (Written::default(), Written::default());
        let mut output = Output::to(out.clone(), err.clone(), Some(|| (80, 24)));
        output.set_level(false, true);
        output.result(hostile).unwrap();
        output.status(hostile).unwrap();
        output.lines_of_workloads(hostile).unwrap();
        output.warn(hostile);
        output.debug(hostile);
        output.error(hostile, hostile);
        output.explain(hostile);
        drop(output);
        let shown = "\\u{1b}]0;x\\u{7}\\u{9b}2J\\u{202e}";
        for (written, times) in [(out, 3), (err, 5)] {
            let written = written.text();
            assert!(!written.chars().any(acts_on_terminal), "{written:?}");
            assert_eq!(written.matches(shown).count(), times, "{written:?}");
        }
    }

    #[test]
    fn lines_of_workloads_are_left_alone_where_no_terminal_is() {
        let text = "\x1b[31mred\x1b[0m \x1b[2J\r\n";
        let on_terminal: fn() -> (usize, usize) = || (80, 24);
        for (terminal, expected) in [
            (None, text),
            (Some(on_terminal), "\x1b[31mred\x1b[0m \\u{1b}[2J\x1b[0m\n"),
        ] {
            let out = Written::default();
            Output::to(out.clone(), io::sink(), terminal)
                .lines_of_workloads(text)
                .unwrap();
            assert_eq!(out.text(), expected);
        }
    }

    #[test]
    fn lines_of_results_are_coloured_in_a_terminal_only() {
        for (colours, expected) in [
            (true, "\x1b[31m-\\u{1b}old\x1b[0m\nsame\n"),
            (false, "-\\u{1b}old\nsame\n"),
        ] {
            let out = Written::default();
            let mut output = Output::to(out.clone(), io::sink(), None);
            output.result_colours = colours;
            let lines = [("\x1b[31m", "-\x1bold".to_owned()), ("", "same".to_owned())];
            output.coloured_result(lines).unwrap();
            drop(output);
            assert_eq!(out.text(), expected);
        }
    }

    #[test]
    fn colours_are_around_the_label_only() {
        let (out, err) = all(false, true, true);
        assert!(!out.contains('\x1b'), "{out:?}");
        assert_eq!(
            err,
            "\x1b[38;5;11mwarn:\x1b[0m careful\n\x1b[38;5;12mdebug:\x1b[0m detail\n\
             \x1b[1;38;5;9merror:\x1b[0m failed\n\x1b[38;5;14mhint:\x1b[0m try again\n"
        );
    }
}

#[cfg(test)]
mod table_tests {
    use super::*;
    use crate::output::value;
    use crate::tests::Written;
    use std::io;

    /// The example of the specification: the columns before the last take 54.
    fn table(info: &str) -> Table {
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        Table {
            headings: vec![
                "WORKLOAD NAME",
                "AGENT",
                "RUNTIME",
                "EXECUTION STATE",
                "ADDITIONAL INFO",
            ],
            rows: vec![
                row(["sleepy", "agent_A", "podman", "Running(Ok)", ""]),
                row(["web", "B", "", "Removed", info]),
            ],
        }
    }

    #[test]
    fn all_columns_are_padded_to_their_widest_cell() {
        let expected = "\
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE   ADDITIONAL INFO\x20
sleepy          agent_A   podman    Running(Ok)                      \x20
web             B                   Removed           Exit code: '137'
";
        for too_wide in [TooWide::Drop, TooWide::Wrap, TooWide::Shorten] {
            assert_eq!(
                table("Exit code: '137'").text(65_535, too_wide),
                expected,
                "{too_wide:?}"
            );
        }
        let empty = Table {
            headings: vec!["CONFIG"],
            rows: Vec::new(),
        };
        assert_eq!(empty.text(80, TooWide::Drop), "CONFIG\n");
    }

    #[test]
    fn a_last_column_that_is_too_wide_is_wrapped_shortened_or_left_out() {
        let info = "0123456789abcdef XYZ";
        for (columns, too_wide, expected) in [
            (
                70,
                TooWide::Wrap,
                "\
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE   ADDITIONAL INFO\x20
sleepy          agent_A   podman    Running(Ok)                      \x20
web             B                   Removed           0123456789abcdef
                                                       XYZ           \x20
",
            ),
            (
                70,
                TooWide::Shorten,
                "\
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE   ADDITIONAL INFO\x20
sleepy          agent_A   podman    Running(Ok)                      \x20
web             B                   Removed           0123456789abc...
",
            ),
            (
                69,
                TooWide::Wrap,
                "\
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE   ADDITIONAL INFO
sleepy          agent_A   podman    Running(Ok)                      \n\
web             B                   Removed           0123456789abcde
                                                      f XYZ          \n",
            ),
            (
                68,
                TooWide::Wrap,
                "\
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE ...
sleepy          agent_A   podman    Running(Ok)    \n\
web             B                   Removed        \n",
            ),
        ] {
            assert_eq!(
                table(info).text(columns, too_wide),
                expected,
                "{columns} {too_wide:?}"
            );
        }
    }

    #[test]
    fn columns_are_left_out_from_the_right_but_never_the_state() {
        let table = table("0123456789abcdef XYZ");
        for (columns, headings) in [
            (
                200,
                "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ADDITIONAL INFO",
            ),
            (
                74,
                "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ADDITIONAL INFO",
            ),
            (73, "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ..."),
            (54, "WORKLOAD NAME AGENT EXECUTION STATE ..."),
            (44, "WORKLOAD NAME EXECUTION STATE ..."),
            (28, "WOR... EXECUTION STATE ..."),
        ] {
            let lines = table.lines(columns, TooWide::Drop);
            let found = lines[0].split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(found, headings, "{columns}");
            assert!(
                lines.iter().all(|line| width(line) <= columns),
                "{columns}: {lines:?}"
            );
            assert!(lines[2].contains("Removed"), "{columns}: {lines:?}");
        }
        assert!(table.lines(0, TooWide::Wrap).iter().all(String::is_empty));
    }

    #[test]
    fn in_a_pipe_a_long_cell_widens_no_column() {
        let mut table = table("x");
        table.rows[1][0] = "n".repeat(300);
        let lines = table.lines(UNLIMITED, TooWide::Drop);
        assert!(
            lines[0].starts_with("WORKLOAD NAME") && width(&lines[0]) < 200,
            "{lines:?}"
        );
        assert!(
            lines[2].starts_with(&format!("{}   B ", "n".repeat(300))),
            "{lines:?}"
        );
    }

    #[test]
    fn one_list_of_columns_gives_table_wide_table_and_data() {
        let fields = |name: &str, id: &str, count: Option<u64>| {
            [
                Field::text("NAME", "name", name),
                Field::text("ID", "id", id).wide(),
                Field::new(
                    "COUNT",
                    "count",
                    count.map_or_else(|| "-".to_owned(), |count| format!("{count}x")),
                    value(count),
                ),
                Field::data("more", name.len() as u64),
            ]
        };
        for (format, expected) in [
            (
                Format::Table,
                "NAME   COUNT\none    2x   \na\u{fffd}     -    \n",
            ),
            (
                Format::Wide,
                "NAME   ID   COUNT\none    i    2x   \na\u{fffd}     j    -    \n",
            ),
            (
                Format::Yaml,
                "at: 7\nrows:\n- name: one\n  id: i\n  count: 2\n  more: 3\n- name: \"a\\e\"\n  id: j\n  more: 2\n",
            ),
        ] {
            let rows = [
                fields("one", "i", Some(2)).into(),
                fields("a\x1b", "j", None).into(),
            ];
            let view = View::new(format, &fields("", "", None), rows);
            let out = Written::default();
            let mut output = Output::to(out.clone(), io::sink(), None);
            view.print(
                ("rows", [("at", 7.into())]),
                TooWide::Drop,
                None,
                &mut output,
            )
            .unwrap();
            drop(output);
            assert_eq!(out.text(), expected, "{format:?}");
        }
    }

    #[test]
    fn a_summary_is_a_table_only_where_its_last_column_can_be_read() {
        let info = "waits for 'a_workload_with_a_long_name' to run, it is Pending(WaitingToStart)";
        let text = |columns| table(info).text(columns, TooWide::Whole);
        assert!(text(200).starts_with("WORKLOAD NAME   AGENT "));
        assert!(
            text(114).starts_with("WORKLOAD NAME   AGENT ") && text(114).lines().count() == 4,
            "{}",
            text(114)
        );
        let expected = "\
sleepy   agent_A   podman   Running(Ok)
web   B   Removed
  waits for 'a_workload_with_a_long_name' to
  run, it is Pending(WaitingToStart)
";
        assert_eq!(text(44), expected);
        assert_eq!(
            wrap_words("ab  abcdef 語語語 x", 4),
            ["ab", "abcd", "ef", "語語", "語 x"]
        );
        assert_eq!(wrap_words("語語", 1), ["語", "語"]);
        assert_eq!(wrap_words("", 0), [""; 0]);
        // Short texts stay in the table, however narrow it is.
        assert!(
            table("short")
                .text(70, TooWide::Whole)
                .starts_with("WORKLOAD NAME ")
        );
    }

    #[test]
    fn columns_are_counted_as_a_terminal_shows_them() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = Table {
            headings: vec!["A", "B"],
            rows: vec![row(["ä", "日本語"]), row(["xyz", "b"])],
        };
        assert_eq!(
            table.text(65_535, TooWide::Drop),
            "A     B     \nä     日本語\nxyz   b     \n"
        );
        // A wide character that does not fit goes to the next line as a whole, and nothing is cut
        // inside one.
        assert_eq!(
            table.text(11, TooWide::Wrap),
            "A     B    \nä     日本 \n      語   \nxyz   b    \n"
        );
        assert_eq!(table.text(8, TooWide::Drop), "A   ...\nä  \nxyz\n");
        assert_eq!(wrap("語語", 1), ["語", "語"]);
    }

    #[test]
    fn text_of_others_cannot_control_the_terminal() {
        for (text, expected) in [
            ("  one\n two \r\n\nthree\n", "one,  two, , three"),
            ("a\tb", "a b"),
            ("\x1b[2Jgone\x07", "\u{fffd}[2Jgone\u{fffd}"),
            ("\u{202e}drow\u{2066}", "\u{fffd}drow\u{fffd}"),
            ("", ""),
        ] {
            assert_eq!(one_line(text), expected, "{text:?}");
        }
    }
}

#[cfg(test)]
mod frame_tests {
    use super::*;
    use crate::tests::Written;
    use std::io;

    fn frames(frames: &[&[&str]], terminal: Option<fn() -> (usize, usize)>) -> String {
        let out = Written::default();
        let mut output = Output::to(out.clone(), io::sink(), terminal);
        let mut live = LiveFrames::default();
        for frame in frames {
            live.show(frame.iter().map(ToString::to_string).collect(), &mut output)
                .unwrap();
        }
        drop(output);
        out.text()
    }

    #[test]
    fn a_terminal_is_redrawn_in_place() {
        assert_eq!(
            frames(&[&["a", "b"], &["c"], &["d", "e"]], Some(|| (80, 24))),
            "\x1b[1Ga\x1b[K\nb\x1b[K\n\x1b[1G\x1b[2Ac\x1b[K\n\x1b[J\x1b[1G\x1b[1Ad\x1b[K\ne\x1b[K\n"
        );
        assert_eq!(
            frames(&[&["abcdef"]], Some(|| (4, 24))),
            "\x1b[1Gabcd\x1b[K\n"
        );
    }

    #[test]
    fn a_terminal_without_cursor_movements_gets_no_escapes() {
        let out = Written::default();
        let mut output = Output::to(out.clone(), io::sink(), Some(|| (80, 24)));
        output.redraws = false;
        let mut live = LiveFrames::default();
        for frame in ["a", "a", "b"] {
            live.show(vec![frame.to_owned()], &mut output).unwrap();
        }
        drop(output);
        assert_eq!(out.text(), "a\n\nb\n\n");
    }

    #[test]
    fn texts_in_a_frame_do_not_move_the_cursor() {
        let hostile: &[&str] = &["\x1b[2J\u{202e}x"];
        assert_eq!(
            frames(&[hostile], Some(|| (80, 24))),
            "\x1b[1G\\u{1b}[2J\\u{202e}x\x1b[K\n"
        );
        assert_eq!(frames(&[hostile], None), "\\u{1b}[2J\\u{202e}x\n\n");
    }

    #[test]
    fn elsewhere_a_frame_is_written_only_when_something_changed() {
        assert_eq!(
            frames(&[&["a", "b"], &["a", "b"], &["a", "c"]], None),
            "a\nb\n\na\nc\n\n"
        );
    }

    #[test]
    fn a_watch_frame_is_no_higher_than_the_terminal() {
        for (lines_max, expected) in [
            (6, vec!["0", "1", "2", "3", "4"]),
            (5, vec!["0", "1", "2", "3", "4"]),
            (4, vec!["0", "1", "2", "and 2 more lines"]),
            (0, vec!["0", "and 4 more lines"]),
        ] {
            let mut lines: Vec<String> = (0..5).map(|line| line.to_string()).collect();
            shorten(&mut lines, lines_max);
            assert_eq!(lines, expected, "{lines_max}");
        }
    }
}

#[cfg(test)]
mod document_tests {
    use super::*;
    use ankaios_model::complete_state::Rendering;
    use ankaios_model::execution_state::{ExecutionState, Phase};
    use ankaios_model::manifest::Manifest;

    fn state(rendering: Rendering) -> Node {
        let manifest = "\
apiVersion: v1
workloads:
  web:
    agent: agent_A
    runtime: podman
    runtimeConfig: |
      image: x
      commandArgs: [\"a\"]
    tags: {b: '1', a: yes}
    dependencies: {db: ADD_COND_RUNNING}
    configs: {alias: key}
    files:
    - {mountPoint: /b, binaryData: aGk=}
    controlInterfaceAccess:
      allowRules:
      - {type: StateRule, operation: Read, filterMasks: [a.*, b]}
      denyRules:
      - {type: LogRule, workloadNames: [\"*\"]}
  bare: {agent: '', runtime: podman, runtimeConfig: ''}
configs: {key: [v, {n: ''}]}
";
        let desired = Manifest::parse(manifest)
            .unwrap()
            .into_desired_state()
            .unwrap();
        let load = Node::map([
            ("cpuUsage", Node::Number(7)),
            ("freeMemory", Node::Number(1024)),
        ]);
        let agent = Node::map([("tags", Node::empty()), ("status", load)]);
        let info = ExecutionState::with_info(Phase::FailedExecFailed, "Exit code: '1'");
        let id = Node::map([(
            "0a",
            ankaios_model::complete_state::execution_state_node(&info),
        )]);
        let states = Node::map([("agent_A", Node::map([("web", id)])), ("", Node::empty())]);
        Node::map([
            ("desiredState", desired.node(rendering)),
            ("workloadStates", states),
            ("agents", Node::map([("agent_A", agent)])),
            (
                "effectiveState",
                Node::map([
                    ("apiVersion", Node::text("v1")),
                    ("workloads", Node::empty()),
                ]),
            ),
        ])
    }

    const YAML: &str = "\
desiredState:
  apiVersion: v1
  workloads:
    bare:
      agent: ''
      restartPolicy: NEVER
      runtime: podman
      runtimeConfig: ''
    web:
      agent: agent_A
      restartPolicy: NEVER
      dependencies:
        db: ADD_COND_RUNNING
      tags:
        a: yes
        b: '1'
      runtime: podman
      runtimeConfig: |-
        image: x
        commandArgs: [\"a\"]
      controlInterfaceAccess:
        allowRules:
        - type: StateRule
          operation: Read
          filterMasks:
          - a.*
          - b
        denyRules:
        - type: LogRule
          workloadNames:
          - '*'
      configs:
        alias: key
      files:
      - mountPoint: /b
        binaryData: aGk=
  configs:
    key:
    - v
    - n: ''
workloadStates:
  '': {}
  agent_A:
    web:
      0a:
        additionalInfo: 'Exit code: ''1'''
        state: Failed
        subState: ExecFailed
agents:
  agent_A:
    status:
      cpuUsage: 7
      freeMemory: 1024
effectiveState:
  apiVersion: v1
  workloads: {}

";

    // [utest->swdd~api-object-serialization~1]
    #[test]
    fn yaml_has_the_documented_order_whatever_the_server_sends() {
        for rendering in [Rendering::Full, Rendering::Sparse] {
            assert_eq!(
                state_text(&state(rendering), Format::Yaml),
                YAML,
                "{rendering:?}"
            );
        }
        assert_eq!(state_text(&Node::empty(), Format::Yaml), "{}\n\n");
    }

    #[test]
    fn json_is_indented_and_holds_the_same() {
        let text = state_text(&state(Rendering::Full), Format::Json);
        assert!(text.starts_with(
            "{\n  \"desiredState\": {\n    \"apiVersion\": \"v1\",\n    \"workloads\": {\n"
        ));
        assert!(text.contains("\"cpuUsage\": 7,"));
        assert!(text.ends_with("\n}\n"));
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let yaml: serde_json::Value = serde_yaml::from_str(YAML).unwrap();
        assert_eq!(json, yaml);
        assert_eq!(state_text(&Node::empty(), Format::Json), "{}\n");
    }

    #[test]
    fn characters_that_act_on_a_terminal_are_escaped_and_read_back_as_they_were() {
        let all = (0..0x3000)
            .chain(0xfe00..=0xffff)
            .filter_map(char::from_u32);
        let mut texts: Vec<String> = all.map(|c| format!("a {c}b: '\"\\\u{ffff}🦀")).collect();
        let long = format!("\u{202e}{}", "k".repeat(3_000));
        texts.extend([
            "\x1b[2J\nline: \u{202e}two\n".to_owned(),
            "\u{2066}".to_owned(),
            long,
        ]);
        let keys = Node::map(
            texts
                .iter()
                .map(|text| (text.as_str(), Node::text(text.as_str()))),
        );
        let state = Node::map([
            ("keys", keys),
            (
                "list",
                Node::List(texts.iter().map(|text| Node::text(&**text)).collect()),
            ),
        ]);
        let altered = AlteredFields {
            added: texts.clone(),
            ..AlteredFields::default()
        };
        let plain = serde_json::to_value(&state).unwrap();
        for format in [Format::Yaml, Format::Json] {
            for (text, path) in [
                (state_text(&state, format), ""),
                (
                    event_text(UNIX_EPOCH, &altered, &state, format),
                    "/completeState",
                ),
            ] {
                assert!(!text.chars().any(acts_on_terminal), "{format:?}");
                let read: serde_json::Value = match format {
                    Format::Yaml => serde_yaml::from_str(&text).unwrap(),
                    _ => serde_json::from_str(&text).unwrap(),
                };
                assert_eq!(read.pointer(path), Some(&plain), "{format:?}");
                assert!(
                    path.is_empty() || read["addedFields"] == serde_json::json!(texts),
                    "{format:?}"
                );
            }
        }
    }
}
