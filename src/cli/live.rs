//! Frames that replace each other in a terminal, and follow each other elsewhere.
//!
//! Thread: `main`. Owns: the last frame.

use super::output::Output;
use super::table::{Table, TooWide, cut};
use crate::model::shown_text::printable;
use std::io;

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
    pub fn show_table(&mut self, table: &Table, too_wide: TooWide, output: &mut Output<'_>) -> io::Result<()> {
        let mut lines = table.lines(output.width(), too_wide);
        if let Some((_, height)) = output.terminal() {
            shorten(&mut lines, height.saturating_sub(1)); // The cursor stands below.
        }
        self.show(lines, output)
    }

    /// Shows `lines`. In a terminal that can redraw they replace the frame before; elsewhere they are written, followed by
    /// an empty line, when they differ from the frame before.
    pub fn show(&mut self, lines: Vec<String>, output: &mut Output<'_>) -> io::Result<()> {
        let lines: Vec<String> = lines.into_iter().map(|line| printable(&line).into_owned()).collect();
        if let Some((columns, _)) = output.terminal().filter(|_| output.redraws()) {
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

    fn frames(frames: &[&[&str]], terminal: Option<fn() -> (usize, usize)>) -> String {
        let mut out = Vec::new();
        let mut output = Output::to(&mut out, io::sink(), terminal);
        let mut live = LiveFrames::default();
        for frame in frames {
            live.show(frame.iter().map(ToString::to_string).collect(), &mut output).unwrap();
        }
        drop(output);
        String::from_utf8(out).unwrap()
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
        let mut out = Vec::new();
        let mut output = Output::to(&mut out, io::sink(), Some(|| (80, 24))).dumb();
        let mut live = LiveFrames::default();
        for frame in ["a", "a", "b"] {
            live.show(vec![frame.to_owned()], &mut output).unwrap();
        }
        drop(output);
        assert_eq!(String::from_utf8(out).unwrap(), "a\n\nb\n\n");
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
