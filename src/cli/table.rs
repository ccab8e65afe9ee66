//! Views: one list of columns for each gives the table, JSON and YAML. Tables have no borders and are laid out so that
//! scripts can cut them at the headings. Frames replace each other in a terminal, and follow each other elsewhere.
//!
//! Thread: `main`.

use super::args::Format;
use super::error::Result;
use super::output::{Output, UNLIMITED};
use super::state_output::{document, object};
use crate::model::shown_text::{acts_on_terminal, printable};
use serde::Serialize;
use serde_yaml::Value;
use unicode_width::UnicodeWidthChar;

/// Blanks between two columns.
const GAP: usize = 3;
/// The end of a cell that was shortened, and of headings where columns were left out.
const ELLIPSIS: &str = "...";
/// The longest state: as much of it is shown at any width.
const STATE: usize = 28;
/// The indent of text below its row.
const INDENT: &str = "  ";

/// One column of one row: its heading, the cell, the key in JSON and YAML, and the value there. Without a heading it is no
/// column of the table, without a value no part of the data.
pub struct Field {
    heading: &'static str,
    is_wide: bool,
    cell: String,
    key: String,
    value: Value,
}

impl Field {
    pub fn new(heading: &'static str, key: &str, cell: String, value: impl Into<Value>) -> Self {
        Self { heading, is_wide: false, cell, key: key.to_owned(), value: value.into() }
    }

    /// A text of others.
    pub fn text(heading: &'static str, key: &str, text: &str) -> Self {
        Self::new(heading, key, one_line(text), text)
    }

    /// No column of the table.
    pub fn data(key: &str, value: impl Into<Value>) -> Self {
        Self::new("", key, String::new(), value)
    }

    /// A column of `-o wide` only.
    pub fn wide(self) -> Self {
        Self { is_wide: true, ..self }
    }
}

/// What a command shows: its rows, as a table and as data.
pub struct View {
    format: Format,
    pub table: Table,
    pub rows: Vec<Value>,
}

impl View {
    /// `blank` has the columns of `rows`, of which there may be none.
    pub fn new(format: Format, blank: &[Field], rows: impl IntoIterator<Item = Vec<Field>>) -> Self {
        let columns = blank.iter().filter(|field| is_column(format, field));
        let table = Table { headings: columns.map(|field| field.heading).collect(), rows: Vec::new() };
        let mut view = Self { format, table, rows: Vec::new() };
        for fields in rows {
            view.push_cells(&fields);
            view.rows.push(object(fields.into_iter().map(|field| (field.key, field.value))));
        }
        view
    }

    /// A row of the table only.
    pub fn push_cells(&mut self, fields: &[Field]) {
        let columns = fields.iter().filter(|field| is_column(self.format, field));
        self.table.rows.push(columns.map(|field| field.cell.clone()).collect());
    }

    /// Lets the cells below each of `headings` end at the same place.
    pub fn align(&mut self, headings: &[&str]) {
        for at in (0..self.table.headings.len()).filter(|at| headings.contains(&self.table.headings[*at])) {
            let widest = self.table.rows.iter().map(|row| width(&row[at])).max().unwrap_or_default();
            self.table.rows.iter_mut().for_each(|row| row[at] = format!("{:>widest$}", row[at]));
        }
    }

    /// Prints the table, or the rows as `key` of one document, after `more`. Those of `frames` follow each other.
    pub fn print<const N: usize>(
        self,
        (key, more): (&str, [(&str, Value); N]),
        too_wide: TooWide,
        frames: Option<&mut LiveFrames>,
        output: &mut Output,
    ) -> Result<()> {
        let rows = [(key, Value::Sequence(self.rows))];
        show(self.format, &object(more.into_iter().chain(rows)), &self.table, too_wide, frames, output)
    }
}

/// Prints `table`, or `data` where the format is one for programs.
pub fn show(
    format: Format,
    data: &impl Serialize,
    table: &Table,
    too_wide: TooWide,
    frames: Option<&mut LiveFrames>,
    output: &mut Output,
) -> Result<()> {
    match (format, frames) {
        (Format::Json | Format::Yaml, frames) => output.result(&document(data, format, frames.is_some())),
        (_, Some(frames)) => frames.show_table(table, too_wide, output),
        _ => {
            let columns = if format == Format::Wide { UNLIMITED } else { output.width() };
            output.result(&table.text(columns, too_wide))
        }
    }
}

fn is_column(format: Format, field: &Field) -> bool {
    !field.heading.is_empty() && (!field.is_wide || format == Format::Wide)
}

/// The layout of a table that is wider than the terminal. Columns are left out from the right, which `...` behind the
/// headings says, but for the first and that of the state; what is left ends at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooWide {
    /// Nothing else.
    Drop,
    /// The last cell goes on in the next line, below its heading.
    Wrap,
    /// The last cell ends in `...`.
    Shorten,
    /// As `Wrap`, but where the last column would have less than 60 columns there is no table: each row
    /// takes a line, and its last cell those below it. Nothing is cut.
    Whole,
}

/// Headings and rows; every row has a cell for each heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Columns that `text` takes in a terminal.
fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Makes a cell of text from outside: one line, trimmed, without control characters.
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    let blank = |c: char| if c == '\t' { ' ' } else { c };
    let visible = |c: char| if acts_on_terminal(c) { char::REPLACEMENT_CHARACTER } else { c };
    lines.join(", ").chars().map(blank).map(visible).collect()
}

impl Table {
    /// The lines of the table, without line ends, in a terminal with `columns` columns.
    pub fn lines(&self, columns: usize, too_wide: TooWide) -> Vec<String> {
        let last = self.headings.len() - 1;
        let headings: Vec<String> = self.headings.iter().map(ToString::to_string).collect();
        let rows = || std::iter::once(&headings).chain(&self.rows);
        // Where the width has no end, longer cells make no column wider.
        let padded_max = if columns == UNLIMITED { 100 } else { columns };
        let widest = |at: usize| rows().map(|row| width(&row[at])).max().unwrap_or_default();
        let mut widths: Vec<usize> = (0..=last).map(|at| widest(at).min(padded_max)).collect();
        let mut shown: Vec<usize> = (0..=last).collect();
        let missing = |widths: &[usize], shown: &[usize]| {
            let sign = if shown.len() > last { 0 } else { 1 + ELLIPSIS.len() };
            (shown.iter().map(|at| widths[*at] + GAP).sum::<usize>() - GAP + sign).saturating_sub(columns)
        };
        let room = widest(last).min(columns).saturating_sub(missing(&widths, &shown));
        // Fewer columns are too few to read a sentence.
        if too_wide == TooWide::Whole && room < widths[last].min(60) {
            return self.plain_lines(columns);
        }
        // The heading of the column that is never left out.
        let is_state = |at: usize| self.headings[at].trim_start() == "EXECUTION STATE";
        if too_wide != TooWide::Drop {
            let least = if is_state(last) { STATE } else { width(self.headings[last]) };
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
                _ if columns == UNLIMITED || width(&row[last]) <= widths[last] => vec![row[last].clone()],
                TooWide::Wrap | TooWide::Whole if shown.contains(&last) => wrap(&row[last], widths[last]),
                _ => vec![shortened(&row[last], widths[last])],
            };
            for (number, piece) in pieces.iter().enumerate() {
                let cells = shown.iter().map(|at| {
                    let cell = match *at {
                        at if at == last => piece.clone(),
                        _ if number > 0 => String::new(), // Below the first line only the last column has text.
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
        let lines = self.rows.iter().filter_map(|row| row.split_last()).flat_map(|(last, cells)| {
            let cells: Vec<&str> = cells.iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
            let last = wrap_words(last, room).into_iter().map(|line| format!("{INDENT}{line}"));
            std::iter::once(cells.join(&" ".repeat(GAP))).chain(last)
        });
        lines.collect()
    }

    /// The table as text, every line with its end.
    pub fn text(&self, columns: usize, too_wide: TooWide) -> String {
        self.lines(columns, too_wide).iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

/// The beginning of `text` that fits in `columns`.
pub fn cut(text: &str, columns: usize) -> &str {
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
pub fn shortened(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    format!("{}{ELLIPSIS}", cut(text, columns.saturating_sub(ELLIPSIS.len())))
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
pub struct LiveFrames {
    /// Lines of the frame above the cursor.
    drawn: usize,
    /// The last frame that was written without a terminal.
    last: Option<Vec<String>>,
}

impl LiveFrames {
    /// Shows `table`, as far as the terminal has lines for it.
    pub fn show_table(&mut self, table: &Table, too_wide: TooWide, output: &mut Output) -> Result<()> {
        let mut lines = table.lines(output.width(), too_wide);
        if let Some((_, height)) = output.terminal() {
            shorten(&mut lines, height.saturating_sub(1)); // The cursor stands below.
        }
        self.show(lines, output)
    }

    /// Shows `lines`. In a terminal that can redraw they replace the frame before; elsewhere they are written, followed by
    /// an empty line, when they differ from the frame before.
    pub fn show(&mut self, lines: Vec<String>, output: &mut Output) -> Result<()> {
        let lines: Vec<String> = lines.into_iter().map(|line| printable(&line).into_owned()).collect();
        if let Some((columns, _)) = output.terminal().filter(|_| output.redraws) {
            let text = self.redraw(&lines, columns);
            return output.progress(&text);
        }
        if self.last.as_ref() == Some(&lines) {
            return Ok(());
        }
        let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).chain(["\n"]).collect();
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
        let surplus = self.drawn.saturating_sub(lines.len());
        if surplus > 0 {
            text.push_str(&"\x1b[K\n".repeat(surplus));
            text.push_str(&format!("\x1b[{surplus}A"));
        }
        self.drawn = lines.len();
        text
    }
}

/// Leaves at most `lines_max` lines, the last one with the number of the others: lines that scrolled away cannot be
/// redrawn.
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
    use crate::cli::state_output::value;
    use crate::cli::tests::Written;
    use std::io;

    /// The example of the specification: the columns before the last take 54.
    fn table(info: &str) -> Table {
        let row = |cells: [&str; 5]| cells.map(str::to_owned).to_vec();
        Table {
            headings: vec!["WORKLOAD NAME", "AGENT", "RUNTIME", "EXECUTION STATE", "ADDITIONAL INFO"],
            rows: vec![row(["sleepy", "agent_A", "podman", "Running(Ok)", ""]), row(["web", "B", "", "Removed", info])],
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
            assert_eq!(table("Exit code: '137'").text(65_535, too_wide), expected, "{too_wide:?}");
        }
        let empty = Table { headings: vec!["CONFIG"], rows: Vec::new() };
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
            assert_eq!(table(info).text(columns, too_wide), expected, "{columns} {too_wide:?}");
        }
    }

    #[test]
    fn columns_are_left_out_from_the_right_but_never_the_state() {
        let table = table("0123456789abcdef XYZ");
        for (columns, headings) in [
            (200, "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ADDITIONAL INFO"),
            (74, "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ADDITIONAL INFO"),
            (73, "WORKLOAD NAME AGENT RUNTIME EXECUTION STATE ..."),
            (54, "WORKLOAD NAME AGENT EXECUTION STATE ..."),
            (44, "WORKLOAD NAME EXECUTION STATE ..."),
            (28, "WOR... EXECUTION STATE ..."),
        ] {
            let lines = table.lines(columns, TooWide::Drop);
            let found = lines[0].split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(found, headings, "{columns}");
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
            assert!(lines[2].contains("Removed"), "{columns}: {lines:?}");
        }
        assert!(table.lines(0, TooWide::Wrap).iter().all(String::is_empty));
    }

    #[test]
    fn in_a_pipe_a_long_cell_widens_no_column() {
        let mut table = table("x");
        table.rows[1][0] = "n".repeat(300);
        let lines = table.lines(UNLIMITED, TooWide::Drop);
        assert!(lines[0].starts_with("WORKLOAD NAME") && width(&lines[0]) < 200, "{lines:?}");
        assert!(lines[2].starts_with(&format!("{}   B ", "n".repeat(300))), "{lines:?}");
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
            (Format::Table, "NAME   COUNT\none    2x   \na\u{fffd}     -    \n"),
            (Format::Wide, "NAME   ID   COUNT\none    i    2x   \na\u{fffd}     j    -    \n"),
            (
                Format::Yaml,
                "at: 7\nrows:\n- name: one\n  id: i\n  count: 2\n  more: 3\n- name: \"a\\e\"\n  id: j\n  more: 2\n",
            ),
        ] {
            let rows = [fields("one", "i", Some(2)).into(), fields("a\x1b", "j", None).into()];
            let view = View::new(format, &fields("", "", None), rows);
            let out = Written::default();
            let mut output = Output::to(out.clone(), io::sink(), None);
            view.print(("rows", [("at", 7.into())]), TooWide::Drop, None, &mut output).unwrap();
            drop(output);
            assert_eq!(out.text(), expected, "{format:?}");
        }
    }

    #[test]
    fn a_summary_is_a_table_only_where_its_last_column_can_be_read() {
        let info = "waits for 'a_workload_with_a_long_name' to run, it is Pending(WaitingToStart)";
        let text = |columns| table(info).text(columns, TooWide::Whole);
        assert!(text(200).starts_with("WORKLOAD NAME   AGENT "));
        assert!(text(114).starts_with("WORKLOAD NAME   AGENT ") && text(114).lines().count() == 4, "{}", text(114));
        let expected = "\
sleepy   agent_A   podman   Running(Ok)
web   B   Removed
  waits for 'a_workload_with_a_long_name' to
  run, it is Pending(WaitingToStart)
";
        assert_eq!(text(44), expected);
        assert_eq!(wrap_words("ab  abcdef 語語語 x", 4), ["ab", "abcd", "ef", "語語", "語 x"]);
        assert_eq!(wrap_words("語語", 1), ["語", "語"]);
        assert_eq!(wrap_words("", 0), [""; 0]);
        // Short texts stay in the table, however narrow it is.
        assert!(table("short").text(70, TooWide::Whole).starts_with("WORKLOAD NAME "));
    }

    #[test]
    fn columns_are_counted_as_a_terminal_shows_them() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = Table { headings: vec!["A", "B"], rows: vec![row(["ä", "日本語"]), row(["xyz", "b"])] };
        assert_eq!(table.text(65_535, TooWide::Drop), "A     B     \nä     日本語\nxyz   b     \n");
        // A wide character that does not fit goes to the next line as a whole, and nothing is cut inside one.
        assert_eq!(table.text(11, TooWide::Wrap), "A     B    \nä     日本 \n      語   \nxyz   b    \n");
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
    use crate::cli::tests::Written;
    use std::io;

    fn frames(frames: &[&[&str]], terminal: Option<fn() -> (usize, usize)>) -> String {
        let out = Written::default();
        let mut output = Output::to(out.clone(), io::sink(), terminal);
        let mut live = LiveFrames::default();
        for frame in frames {
            live.show(frame.iter().map(ToString::to_string).collect(), &mut output).unwrap();
        }
        drop(output);
        out.text()
    }

    #[test]
    fn a_terminal_is_redrawn_in_place() {
        assert_eq!(
            frames(&[&["a", "b"], &["c"], &["d", "e"]], Some(|| (80, 24))),
            "\x1b[1Ga\x1b[K\nb\x1b[K\n\x1b[1G\x1b[2Ac\x1b[K\n\x1b[K\n\x1b[1A\x1b[1G\x1b[1Ad\x1b[K\ne\x1b[K\n"
        );
        assert_eq!(frames(&[&["abcdef"]], Some(|| (4, 24))), "\x1b[1Gabcd\x1b[K\n");
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
        assert_eq!(frames(&[hostile], Some(|| (80, 24))), "\x1b[1G\\u{1b}[2J\\u{202e}x\x1b[K\n");
        assert_eq!(frames(&[hostile], None), "\\u{1b}[2J\\u{202e}x\n\n");
    }

    #[test]
    fn elsewhere_a_frame_is_written_only_when_something_changed() {
        assert_eq!(frames(&[&["a", "b"], &["a", "b"], &["a", "c"]], None), "a\nb\n\na\nc\n\n");
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
