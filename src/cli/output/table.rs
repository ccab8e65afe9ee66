//! Tables of `ank`, and frames that replace each other. One list of columns for each view gives the
//! table, JSON and YAML. Tables have no borders and are laid out so that scripts can cut them at
//! the headings. Frames replace each other in a terminal, and follow each other elsewhere.
//!
//! Thread: `main`, plain values.

use super::document::{document, object, optional};
use super::{Output, UNLIMITED};
use crate::args::Format;
use crate::error::Result;
use ankaios_model::shown_text::{acts_on_terminal, printable};
use serde::ser::Serialize;
use serde_yaml::Value;
use unicode_width::UnicodeWidthChar;

/// Blanks between two columns.
const GAP: usize = 3;
/// The end of a cell that was shortened, and of headings where columns were left out.
const ELLIPSIS: &str = "...";
/// Heading of the column that is never left out.
const STATE_HEADING: &str = "EXECUTION STATE";
/// Columns of the longest state: as much of it is shown at any width.
const STATE_WIDTH: usize = 28;
/// Columns in which a sentence can still be read.
const SENTENCE_WIDTH: usize = 60;
/// Columns of a cell that still widen its column where the width has no end.
const PADDED_MAX: usize = 100;
/// The indent of text below its row.
const INDENT: &str = "  ";

/// One column of one row. Tables show its heading and cell, JSON and YAML its key and value. A
/// column without a heading is only in JSON and YAML, one without a value only in tables.
pub(crate) struct Column {
    heading: &'static str,
    is_wide: bool,
    cell: String,
    key: String,
    value: Value,
}

impl Column {
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

    /// A column with the same text in the cell and as the value.
    pub(crate) fn text(heading: &'static str, key: &str, text: &str) -> Self {
        Self::new(heading, key, one_line(text), text)
    }

    /// A column with a text. Programs get no value for an empty text.
    pub(crate) fn optional_text(heading: &'static str, key: &str, text: &str) -> Self {
        Self {
            value: optional(text),
            ..Self::text(heading, key, text)
        }
    }

    /// A value that is no column of the table.
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

    fn is_shown(&self, format: Format) -> bool {
        !self.heading.is_empty() && (!self.is_wide || format == Format::Wide)
    }
}

/// The rows of a command, as a table and as data.
pub(crate) struct View {
    format: Format,
    pub(crate) table: Table,
    pub(crate) rows: Vec<Value>,
    /// Entries of the document before the rows.
    pub(crate) head: Vec<(&'static str, Value)>,
}

impl View {
    /// `blank` has the columns of `rows`, of which there may be none.
    pub(crate) fn new(
        format: Format,
        blank: &[Column],
        rows: impl IntoIterator<Item = Vec<Column>>,
    ) -> Self {
        let shown = blank.iter().filter(|column| column.is_shown(format));
        let table = Table {
            headings: shown.map(|column| column.heading).collect(),
            rows: Vec::new(),
            least_wanted: &[],
            most_wanted: &[],
        };
        let mut view = Self {
            format,
            table,
            rows: Vec::new(),
            head: Vec::new(),
        };
        for columns in rows {
            view.push_cells(&columns);
            view.rows.push(row_data(columns));
        }
        view
    }

    /// Adds a row of the table only.
    pub(crate) fn push_cells(&mut self, columns: &[Column]) {
        let shown = columns.iter().filter(|column| column.is_shown(self.format));
        let cells = shown.map(|column| column.cell.clone()).collect();
        self.table.rows.push(cells);
    }

    /// Pads the cells below each of `headings` on the left, so that they end at the same place.
    pub(crate) fn align(&mut self, headings: &[&str]) {
        for (at, heading) in self.table.headings.iter().enumerate() {
            if !headings.contains(heading) {
                continue;
            }
            let cells = self.table.rows.iter().map(|row| width(&row[at]));
            let widest = cells.max().unwrap_or_default();
            for row in &mut self.table.rows {
                row[at] = format!("{:>widest$}", row[at]);
            }
        }
    }

    /// Prints the table, or a document that has the rows as `key`. `frames` is there if several
    /// tables or documents follow each other.
    pub(crate) fn print(
        self,
        key: &'static str,
        too_wide: TooWide,
        frames: Option<&mut LiveFrames>,
        output: &mut Output,
    ) -> Result<()> {
        let mut entries = self.head;
        entries.push((key, Value::Sequence(self.rows)));
        let data = object(entries);
        show(self.format, &data, &self.table, too_wide, frames, output)
    }
}

/// One row for programs.
pub(crate) fn row_data(columns: Vec<Column>) -> Value {
    object(columns.into_iter().map(|column| (column.key, column.value)))
}

/// Prints `table`, or `data` in a format for programs. `frames` is there if several tables or
/// documents follow each other.
pub(crate) fn show(
    format: Format,
    data: &impl Serialize,
    table: &Table,
    too_wide: TooWide,
    frames: Option<&mut LiveFrames>,
    output: &mut Output,
) -> Result<()> {
    if format == Format::Name {
        return output.result(&table.names());
    }
    if matches!(format, Format::Json | Format::Yaml) {
        return output.result(&document(data, format, frames.is_some()));
    }
    if let Some(frames) = frames {
        return frames.show_table(table, too_wide, output);
    }
    let columns = if format == Format::Wide {
        UNLIMITED
    } else {
        output.width()
    };
    output.result(&table.text(columns, too_wide))
}

/// The way in which a table fits into a terminal that is too narrow for it. If that is not enough,
/// columns are left out from the right, except the first, that of the state and those that are
/// wanted most. Then the headings end in `...`. Where the first column would be cut beside the
/// state, each row takes several lines instead, unless the last cell is shortened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TooWide {
    /// Only leave out columns.
    Drop,
    /// Continue the last cell in the next line, below its heading; below its row if one of its
    /// words is wider than the column.
    Wrap,
    /// End the last cell in `...`.
    Shorten,
    /// As `Wrap`. If the last column would have less than [`SENTENCE_WIDTH`] columns, print no
    /// table: each row is a line without padding, with its last cell in the lines below it.
    Whole,
}

/// Headings and rows; every row has a cell for each heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) headings: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Headings of columns that are left out first where the terminal is narrow, in this order.
    pub(crate) least_wanted: &'static [&'static str],
    /// Headings of columns that are never left out.
    pub(crate) most_wanted: &'static [&'static str],
}

impl Table {
    /// The lines of the table, without line ends, in a terminal with `columns` columns.
    pub(crate) fn lines(&self, columns: usize, too_wide: TooWide) -> Vec<String> {
        let Some(layout) = Layout::of(self, columns, too_wide) else {
            let mut lines = self.plain_lines(columns);
            if too_wide != TooWide::Whole {
                cut_all(&mut lines, columns);
            }
            return lines;
        };
        let headings: Vec<String> = self.headings.iter().map(ToString::to_string).collect();
        let mut lines = layout.row(&headings);
        if layout.has_left_out() {
            lines[0] = format!("{} {ELLIPSIS}", lines[0]);
        }
        for row in &self.rows {
            lines.extend(layout.row(row));
        }
        cut_all(&mut lines, columns);
        lines
    }

    /// The first cell of each row, one a line; instances of one workload are one name.
    fn names(&self) -> String {
        let mut names: Vec<String> = Vec::new();
        for row in &self.rows {
            if !names.contains(&row[0]) {
                names.push(row[0].clone());
            }
        }
        with_line_ends(&names)
    }

    /// The width of the widest cell of a column, its heading included.
    fn widest(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| width(&row[column]));
        cells.fold(width(self.headings[column]), usize::max)
    }

    fn is_state(&self, column: usize) -> bool {
        self.headings[column].trim_start() == STATE_HEADING
    }

    /// Returns whether the column may be left out.
    fn may_go(&self, column: usize) -> bool {
        let heading = self.headings[column];
        column > 0 && !self.is_state(column) && !self.most_wanted.contains(&heading)
    }

    /// The rows without columns: the last cell of each row stands below its other cells, which
    /// continue in further lines.
    fn plain_lines(&self, columns: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for row in &self.rows {
            let Some((last, cells)) = row.split_last() else {
                continue;
            };
            let mut line = String::new();
            for cell in cells {
                if cell.is_empty() {
                    continue;
                }
                if line.is_empty() {
                    line.push_str(cell);
                } else if width(&line) + GAP + width(cell) <= columns {
                    line.push_str(&" ".repeat(GAP));
                    line.push_str(cell);
                } else {
                    lines.push(std::mem::replace(&mut line, format!("{INDENT}{cell}")));
                }
            }
            lines.push(line);
            lines.extend(indented(last, columns));
        }
        lines
    }

    /// The table as text, every line with its end.
    pub(crate) fn text(&self, columns: usize, too_wide: TooWide) -> String {
        with_line_ends(&self.lines(columns, too_wide))
    }
}

fn with_line_ends(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// The columns of a table that a terminal shows, and their widths.
struct Layout {
    /// Columns of the terminal.
    terminal: usize,
    too_wide: TooWide,
    /// The width of each column of the table.
    widths: Vec<usize>,
    /// The columns that are shown.
    shown: Vec<usize>,
}

impl Layout {
    /// Fits `table` into `terminal` columns. `None` when the table cannot be read there.
    fn of(table: &Table, terminal: usize, too_wide: TooWide) -> Option<Self> {
        let mut layout = Self::complete(table, terminal, too_wide);
        let last = layout.last();
        // First the last column becomes narrower, if it can be broken or cut.
        let wanted = table.widest(last).min(terminal);
        let room = wanted.saturating_sub(layout.excess_width());
        // A sentence in it must stay readable.
        if too_wide == TooWide::Whole && room < layout.widths[last].min(SENTENCE_WIDTH) {
            return None;
        }
        if too_wide != TooWide::Drop {
            let least = if table.is_state(last) {
                STATE_WIDTH
            } else {
                width(table.headings[last])
            };
            layout.widths[last] = layout.widths[last].min(room.max(least));
        }
        // Then columns are left out: first those that matter least, then from the right.
        for heading in table.least_wanted {
            if layout.excess_width() > 0 {
                layout.shown.retain(|at| table.headings[*at] != *heading);
            }
        }
        while layout.excess_width() > 0 {
            let Some(rightmost) = layout.shown.iter().rposition(|at| table.may_go(*at)) else {
                break;
            };
            layout.shown.remove(rightmost);
        }
        // Finally the first column is cut. Where a row can have several lines, there is no table
        // instead: names and states can be read without headings.
        let excess = layout.excess_width();
        let has_state = layout.shown.iter().any(|at| table.is_state(*at));
        if excess > 0 && has_state && too_wide != TooWide::Shorten {
            return None;
        }
        layout.widths[0] = layout.widths[0].saturating_sub(excess).max(1);
        Some(layout)
    }

    /// All columns, each as wide as its widest cell.
    fn complete(table: &Table, terminal: usize, too_wide: TooWide) -> Self {
        let width_max = if terminal == UNLIMITED {
            PADDED_MAX
        } else {
            terminal
        };
        let mut widths = Vec::new();
        let mut shown = Vec::new();
        for column in 0..table.headings.len() {
            widths.push(table.widest(column).min(width_max));
            shown.push(column);
        }
        Self {
            terminal,
            too_wide,
            widths,
            shown,
        }
    }

    fn last(&self) -> usize {
        self.widths.len() - 1
    }

    fn has_left_out(&self) -> bool {
        self.shown.len() < self.widths.len()
    }

    /// By how many characters the shown columns are wider than the terminal.
    fn excess_width(&self) -> usize {
        let widths = self.shown.iter().map(|at| self.widths[*at] + GAP);
        let mut needed = widths.sum::<usize>() - GAP; // No gap follows the last column.
        if self.has_left_out() {
            needed += 1 + ELLIPSIS.len(); // It follows the headings, after a space.
        }
        needed.saturating_sub(self.terminal)
    }

    /// The lines of one row, padded.
    fn row(&self, cells: &[String]) -> Vec<String> {
        let mut lines = Vec::new();
        let last = &cells[self.last()];
        let mut below = Vec::new();
        let mut pieces = vec![String::new()];
        if self.stands_below(last) {
            below = indented(last, self.terminal);
        } else {
            pieces = self.last_cell(last);
        }
        for (number, piece) in pieces.iter().enumerate() {
            let mut padded = Vec::new();
            for &column in &self.shown {
                let cell = if column == self.last() {
                    piece.clone()
                } else if number > 0 {
                    String::new() // Below the first line only the last column has text.
                } else if column == 0 && self.terminal != UNLIMITED {
                    shortened(&cells[0], self.widths[0])
                } else {
                    cells[column].clone()
                };
                let padding = self.widths[column].saturating_sub(width(&cell));
                padded.push(cell + &" ".repeat(padding));
            }
            lines.push(padded.join(&" ".repeat(GAP)));
        }
        lines.extend(below);
        lines
    }

    /// The pieces of the last cell, one a line.
    fn last_cell(&self, cell: &str) -> Vec<String> {
        let room = self.widths[self.last()];
        if self.terminal == UNLIMITED || width(cell) <= room {
            return vec![cell.to_owned()];
        }
        if self.wraps_last() {
            return wrap_words(cell, room);
        }
        vec![shortened(cell, room)]
    }

    /// Returns whether the last cell would be broken within a word.
    fn stands_below(&self, last: &str) -> bool {
        let room = self.widths[self.last()];
        self.terminal != UNLIMITED
            && self.wraps_last()
            && last.split(' ').any(|word| width(word) > room)
    }

    fn wraps_last(&self) -> bool {
        let is_shown = self.shown.contains(&self.last());
        is_shown && matches!(self.too_wide, TooWide::Wrap | TooWide::Whole)
    }
}

/// The number of columns that `text` takes in a terminal.
fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The lines of `text` below a row, indented.
fn indented(text: &str, columns: usize) -> Vec<String> {
    let room = columns.saturating_sub(INDENT.len());
    let mut lines = wrap_words(text, room);
    for line in &mut lines {
        line.insert_str(0, INDENT);
    }
    lines
}

fn cut_all(lines: &mut [String], columns: usize) {
    for line in lines {
        line.truncate(cut(line, columns).len());
    }
}

/// Makes a cell of text from outside: one line, trimmed, without control characters.
pub(crate) fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    let mut cell = String::new();
    for c in lines.join(", ").chars() {
        cell.push(match c {
            '\t' => ' ',
            c if acts_on_terminal(c) => char::REPLACEMENT_CHARACTER,
            c => c,
        });
    }
    cell
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
        // A word that is wider than a line is broken.
        while width(&line) > columns.max(1) {
            let mut pieces = wrap(&line, columns);
            line = pieces.pop().unwrap_or_default();
            if pieces.is_empty() {
                break; // One character that is wider than a line.
            }
            lines.append(&mut pieces);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
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
        if let Some(size) = output.terminal() {
            shorten(&mut lines, size.lines.saturating_sub(1)); // The cursor is below the frame.
        }
        self.show(lines, output)
    }

    /// Shows `lines`. In a terminal that can redraw they replace the frame before; elsewhere they
    /// are written, followed by an empty line, when they differ from the frame before.
    pub(crate) fn show(&mut self, mut lines: Vec<String>, output: &mut Output) -> Result<()> {
        for line in &mut lines {
            *line = printable(line).into_owned();
        }
        if output.redraws
            && let Some(size) = output.terminal()
        {
            let text = self.redraw(&lines, size.columns);
            return output.progress(&text);
        }
        if self.last.as_ref() == Some(&lines) {
            return Ok(());
        }
        let text = with_line_ends(&lines) + "\n";
        self.last = Some(lines);
        output.progress(&text)
    }

    /// The text that draws `lines` over the frame before.
    fn redraw(&mut self, lines: &[String], columns: usize) -> String {
        // First, move the cursor to the begin of that frame.
        let mut text = "\x1b[1G".to_owned();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        // Then, write the lines. Each clears the rest of the line below it.
        for line in lines {
            // A line that is wider than the terminal would take two and spoil the count.
            text.push_str(cut(line, columns));
            text.push_str("\x1b[K\n");
        }
        // Finally, clear the rest of the frame before.
        if self.drawn > lines.len() {
            text.push_str("\x1b[J");
        }
        self.drawn = lines.len();
        text
    }
}

/// Keeps at most `lines_max` lines, since lines that scroll away cannot be redrawn. The last line
/// then has the number of the others.
fn shorten(lines: &mut Vec<String>, lines_max: usize) {
    let lines_max = lines_max.max(2);
    if lines.len() > lines_max {
        let hidden = lines.len() - (lines_max - 1);
        lines.truncate(lines_max - 1);
        lines.push(format!("and {hidden} more lines"));
    }
}

#[cfg(test)]
mod tests {
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
            least_wanted: &[],
            most_wanted: &[],
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
            least_wanted: &[],
            most_wanted: &[],
        };
        assert_eq!(empty.text(80, TooWide::Drop), "CONFIG\n");
    }

    #[test]
    fn wide_last_column_is_wrapped_shortened_or_left_out() {
        let info = "0123456789abcdef XYZ";
        for (columns, too_wide, expected) in [
            (
                70,
                TooWide::Wrap,
                "\
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE   ADDITIONAL INFO\x20
sleepy          agent_A   podman    Running(Ok)                      \x20
web             B                   Removed           0123456789abcdef
                                                      XYZ            \x20
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
web             B                   Removed                          \n  \
  0123456789abcdef XYZ\n",
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
            (35, "WORKLOAD NAME EXECUTION STATE ..."),
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
    fn name_beside_a_state_is_never_cut() {
        let table = table("0123456789abcdef XYZ");
        for (columns, too_wide, expected) in [
            (
                34,
                TooWide::Wrap,
                "sleepy   agent_A   podman\n  Running(Ok)\nweb   B   Removed\n  0123456789abcdef XYZ\n",
            ),
            (
                20,
                TooWide::Drop,
                "sleepy   agent_A\n  podman\n  Running(Ok)\nweb   B   Removed\n  0123456789abcdef\n  XYZ\n",
            ),
        ] {
            assert_eq!(
                table.text(columns, too_wide),
                expected,
                "{columns} {too_wide:?}"
            );
        }
        // A frame that is redrawn has one line for each row.
        let lines = table.lines(28, TooWide::Shorten);
        assert_eq!(lines[0], "WOR...   EXECUTION STATE ...");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn most_wanted_columns_stay_and_the_name_is_cut() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let table = Table {
            headings: vec!["WORKLOAD NAME", "AGENT", "CPU", "PEAK"],
            rows: vec![row(["a_workload_with_a_long_name", "A", "12.5%", "9 MiB"])],
            least_wanted: &["AGENT"],
            most_wanted: &["CPU"],
        };
        let lines = table.lines(30, TooWide::Drop);
        assert_eq!(lines[0], "WORKLOAD NAME        CPU   ...");
        assert_eq!(lines[1], "a_workload_with...   12.5%");
    }

    #[test]
    fn least_wanted_columns_go_first_in_a_narrow_terminal() {
        let mut table = table("info");
        table.least_wanted = &["EXECUTION STATE", "AGENT"];
        for (columns, headings) in [
            (
                72,
                "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ADDITIONAL INFO",
            ),
            (60, "WORKLOAD NAME AGENT RUNTIME ADDITIONAL INFO ..."),
            (50, "WORKLOAD NAME RUNTIME ADDITIONAL INFO ..."),
        ] {
            let lines = table.lines(columns, TooWide::Drop);
            let found = lines[0].split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(found, headings, "{columns}");
        }
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
                Column::text("NAME", "name", name),
                Column::text("ID", "id", id).wide(),
                Column::new(
                    "COUNT",
                    "count",
                    count.map_or_else(|| "-".to_owned(), |count| format!("{count}x")),
                    value(count),
                ),
                Column::data("more", name.len() as u64),
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
            let mut view = View::new(format, &fields("", "", None), rows);
            view.head.push(("at", 7.into()));
            let out = Written::default();
            let mut output = Output::to(out.clone(), io::sink(), None);
            view.print("rows", TooWide::Drop, None, &mut output)
                .unwrap();
            drop(output);
            assert_eq!(out.text(), expected, "{format:?}");
        }
    }

    #[test]
    fn a_summary_is_a_table_only_where_its_last_column_can_be_read() {
        let info = "waits for 'a_workload_with_a_long_name' to run: it is Pending(WaitingToStart)";
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
  run: it is Pending(WaitingToStart)
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
            least_wanted: &[],
            most_wanted: &[],
        };
        assert_eq!(
            table.text(65_535, TooWide::Drop),
            "A     B     \nä     日本語\nxyz   b     \n"
        );
        // A wide character that does not fit goes to the next line as a whole, and nothing is cut
        // inside one.
        assert_eq!(
            table.text(7, TooWide::Wrap),
            "A     B\nä      \n  日本\n  語\nxyz   b\n"
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
