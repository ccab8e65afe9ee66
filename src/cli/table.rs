//! Tables without borders, laid out so that scripts can cut them at the headings.
//!
//! Thread: `main`, plain functions.

use crate::model::shown_text::acts_on_terminal;
use unicode_width::UnicodeWidthChar;

/// Blanks between two columns.
const GAP: usize = 3;
/// The end of a cell that was shortened.
const ELLIPSIS: &str = "...";
/// Fewer columns are too few to read a sentence.
const READABLE: usize = 60;
/// The indent of text below its row.
const INDENT: &str = "  ";

/// The layout of a last column that is wider than the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooWide {
    /// Each line ends at the edge.
    Cut,
    /// The cell goes on in the next line, below its heading.
    Wrap,
    /// The cell ends in `...`.
    Shorten,
    /// As `Wrap`, but where the last column would have less than [`READABLE`] columns there is no table: each row
    /// takes a line, and its last cell those below it. Nothing is cut.
    Whole,
}

/// Headings and rows; every row has a cell for each heading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<const N: usize> {
    /// First line.
    pub headings: [&'static str; N],
    /// Further lines.
    pub rows: Vec<[String; N]>,
}

/// Columns that `text` takes in a terminal.
#[must_use]
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Makes a cell of text from outside: one line, trimmed, without control characters.
#[must_use]
pub fn one_line(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    let blank = |c: char| if c == '\t' { ' ' } else { c };
    let visible = |c: char| if acts_on_terminal(c) { char::REPLACEMENT_CHARACTER } else { c };
    lines.join(", ").chars().map(blank).map(visible).collect()
}

impl<const N: usize> Table<N> {
    /// The lines of the table, without line ends, in a terminal with `columns` columns.
    #[must_use]
    pub fn lines(&self, columns: usize, too_wide: TooWide) -> Vec<String> {
        let mut widths = self.headings.map(width);
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(row) {
                *widest = (*widest).max(width(cell));
            }
        }
        let before_last: usize = widths.iter().take(N - 1).map(|width| width + GAP).sum();
        let room = columns.saturating_sub(before_last);
        let fits = room >= width(self.headings[N - 1]);
        if too_wide == TooWide::Whole && room < widths[N - 1].min(READABLE) {
            return self.plain_lines(columns);
        }
        let too_wide = if fits { too_wide } else { TooWide::Cut };
        if too_wide != TooWide::Cut {
            widths[N - 1] = widths[N - 1].min(room);
        }
        let mut lines = vec![line(&self.headings.map(str::to_owned), &widths)];
        for row in &self.rows {
            lines.extend(row_lines(row, &widths, too_wide));
        }
        if too_wide == TooWide::Cut {
            lines.iter_mut().for_each(|line| *line = cut(line, columns).to_owned());
        }
        lines
    }

    fn plain_lines(&self, columns: usize) -> Vec<String> {
        let room = columns.saturating_sub(INDENT.len());
        let lines = self.rows.iter().flat_map(|row| {
            let cells: Vec<&str> = row[..N - 1].iter().map(String::as_str).filter(|cell| !cell.is_empty()).collect();
            let last = wrap_words(&row[N - 1], room).into_iter().map(|line| format!("{INDENT}{line}"));
            std::iter::once(cells.join(&" ".repeat(GAP))).chain(last)
        });
        lines.collect()
    }

    /// The table as text, every line with its end.
    #[must_use]
    pub fn text(&self, columns: usize, too_wide: TooWide) -> String {
        self.lines(columns, too_wide).iter().flat_map(|line| [line.as_str(), "\n"]).collect()
    }
}

fn row_lines<const N: usize>(row: &[String; N], widths: &[usize; N], too_wide: TooWide) -> Vec<String> {
    let (last, room) = (&row[N - 1], widths[N - 1]);
    if width(last) <= room {
        return vec![line(row, widths)];
    }
    let pieces = match too_wide {
        TooWide::Wrap | TooWide::Whole => wrap(last, room),
        TooWide::Cut | TooWide::Shorten => vec![shortened(last, room)],
    };
    let mut cells = row.clone();
    let mut lines = Vec::with_capacity(pieces.len());
    for piece in pieces {
        cells[N - 1] = piece;
        lines.push(line(&cells, widths));
        cells = std::array::from_fn(|_| String::new()); // Below the first line only the last column has text.
    }
    lines
}

fn line<const N: usize>(cells: &[String; N], widths: &[usize; N]) -> String {
    let mut line = String::new();
    for (index, (cell, room)) in cells.iter().zip(widths).enumerate() {
        if index > 0 {
            line.push_str(&" ".repeat(GAP));
        }
        line.push_str(cell);
        line.push_str(&" ".repeat(room.saturating_sub(width(cell))));
    }
    line
}

/// The beginning of `text` that fits in `columns`.
#[must_use]
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
#[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification: the columns before the last take 54.
    fn table(info: &str) -> Table<5> {
        let row = |cells: [&str; 5]| cells.map(str::to_owned);
        Table {
            headings: ["WORKLOAD NAME", "AGENT", "RUNTIME", "EXECUTION STATE", "ADDITIONAL INFO"],
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
        for too_wide in [TooWide::Cut, TooWide::Wrap, TooWide::Shorten] {
            assert_eq!(table("Exit code: '137'").text(65_535, too_wide), expected, "{too_wide:?}");
        }
        let empty = Table { headings: ["CONFIG"], rows: Vec::new() };
        assert_eq!(empty.text(80, TooWide::Cut), "CONFIG\n");
    }

    #[test]
    fn a_last_column_that_is_too_wide_is_wrapped_shortened_or_cut() {
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
WORKLOAD NAME   AGENT     RUNTIME   EXECUTION STATE   ADDITIONAL INF
sleepy          agent_A   podman    Running(Ok)                     \n\
web             B                   Removed           0123456789abcd
",
            ),
            (20, TooWide::Shorten, "WORKLOAD NAME   AGEN\nsleepy          agen\nweb             B   \n"),
            (0, TooWide::Wrap, "\n\n\n"),
        ] {
            assert_eq!(table(info).text(columns, too_wide), expected, "{columns} {too_wide:?}");
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
        let row = |cells: [&str; 2]| cells.map(str::to_owned);
        let table = Table { headings: ["A", "B"], rows: vec![row(["ä", "日本語"]), row(["xyz", "b"])] };
        assert_eq!(table.text(65_535, TooWide::Cut), "A     B     \nä     日本語\nxyz   b     \n");
        // A wide character that does not fit goes to the next line as a whole, and nothing is cut inside one.
        assert_eq!(table.text(11, TooWide::Wrap), "A     B    \nä     日本 \n      語   \nxyz   b    \n");
        assert_eq!(table.text(6, TooWide::Cut), "A     \nä     \nxyz   \n");
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
