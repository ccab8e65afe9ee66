//! The streams of `ank`.
//!
//! Results and progress go to standard output, warnings, errors and debug messages to standard
//! error. Texts of others - files, names, states, texts of the server - reach a terminal only
//! through here: characters that would act on it are escaped.
//!
//! Thread: `main`. Owns: both streams. Colours only in a terminal, without `NO_COLOR` and
//! `TERM=dumb`: scripts match `error: ` and `warn: ` at the beginning of a line.

mod document;
mod table;

pub(crate) use document::{
    Ordered, all_lines, document, event_text, manifest_text, object, optional, state_text,
    timestamp, value,
};
pub(crate) use table::{
    Column, LiveFrames, Table, TooWide, View, one_line, row_data, shortened, show, some_of,
};

use super::error::{Result, meant_or, unknown};
use ankaios_model::fields::reader::{MANIFEST_WARNINGS_MAX, UnknownKey};
use ankaios_model::node::Node;
use ankaios_model::shown_text::{acts_on_terminal, printable, printable_with_colours};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Width without a terminal: nothing is cut or wrapped.
pub(crate) const UNLIMITED: usize = usize::MAX;
/// The part of the state with a warning about the stored state. A server without this part ignores
/// the mask.
pub(crate) const WARNING: &str = "warning";

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TerminalSize {
    pub(crate) columns: usize,
    pub(crate) lines: usize,
}

/// A line of a result with the escape sequence of its colour; an empty one means no colour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColouredLine {
    pub(crate) colour: &'static str,
    pub(crate) text: String,
}

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
    pub(crate) result_colours: bool,
    /// Progress is not written.
    pub(crate) quiet: bool,
    /// Debug messages are written.
    verbose: bool,
    /// How many warnings were written.
    pub(crate) warnings: usize,
    /// Whether questions can be answered: standard input and error are terminals.
    pub(crate) can_ask: bool,
}

impl Output {
    /// The streams of the process.
    pub(crate) fn of_process() -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
        let no_color = std::env::var_os("NO_COLOR").unwrap_or_default();
        let has_colours = !is_dumb && no_color.is_empty();
        let is_terminal = io::stdout().is_terminal();
        Self {
            out: Box::new(io::stdout().lock()),
            err: Box::new(io::stderr()),
            terminal: is_terminal.then_some(terminal_size),
            redraws: is_terminal && !is_dumb,
            colours: io::stderr().is_terminal() && has_colours,
            result_colours: is_terminal && has_colours,
            quiet: false,
            verbose: false,
            warnings: 0,
            can_ask: io::stdin().is_terminal() && io::stderr().is_terminal(),
        }
    }

    /// Streams for tests; with `terminal`, standard output pretends to be one.
    pub fn to(
        out: impl Write + 'static,
        err: impl Write + 'static,
        terminal: Option<fn() -> (usize, usize)>,
    ) -> Self {
        Self {
            redraws: terminal.is_some(),
            out: Box::new(out),
            err: Box::new(err),
            terminal,
            colours: false,
            result_colours: false,
            quiet: false,
            verbose: false,
            warnings: 0,
            can_ask: false,
        }
    }

    /// Sets the levels; quiet wins.
    pub(crate) fn set_level(&mut self, quiet: bool, verbose: bool) {
        self.quiet = quiet;
        self.verbose = verbose && !quiet;
    }

    /// The size of the terminal; `None` when standard output is none.
    pub(crate) fn terminal(&self) -> Option<TerminalSize> {
        let (columns, lines) = self.terminal?();
        Some(TerminalSize { columns, lines })
    }

    /// Columns for a table.
    pub(crate) fn width(&self) -> usize {
        self.terminal().map_or(UNLIMITED, |size| size.columns)
    }

    /// Writes a result.
    pub(crate) fn result(&mut self, text: &str) -> Result<()> {
        self.raw(&printable(text))
    }

    /// Writes lines of a result.
    pub(crate) fn coloured_result(
        &mut self,
        lines: impl IntoIterator<Item = ColouredLine>,
    ) -> Result<()> {
        let mut shown = String::new();
        for ColouredLine { colour, text } in lines {
            let text = printable(&text);
            if self.result_colours && !colour.is_empty() {
                shown.push_str(&format!("{colour}{text}\x1b[0m\n"));
            } else {
                shown.push_str(&format!("{text}\n"));
            }
        }
        self.raw(&shown)
    }

    /// Writes lines that workloads have printed. In a terminal only their colours act on it:
    /// otherwise a workload could overwrite lines of others, or set the clipboard.
    pub(crate) fn lines_of_workloads(&mut self, text: &str) -> Result<()> {
        if self.terminal.is_none() {
            return self.raw(text);
        }
        let mut shown = String::new();
        for line in text.lines() {
            shown.push_str(&printable_with_colours(line));
            shown.push('\n');
        }
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

    /// Writes a warning, and what to do about it unless that is empty.
    pub(crate) fn warn_with_hint(&mut self, text: impl Display, hint: &str) {
        self.warn(text);
        self.hint(hint);
    }

    /// Writes the warning about the stored state, if `state` has one. It must have been read with
    /// the mask [`WARNING`].
    pub(crate) fn warn_of_storage(&mut self, state: &Node) {
        if let Some(text) = state.get(WARNING).and_then(Node::as_text) {
            self.warn(text);
        }
    }

    /// Warns about unknown keys, which are ignored. Each warning begins with `prefix`. Of many keys
    /// it names the first ones and the number of the others.
    pub(crate) fn warn_of_unknown_keys<'k>(
        &mut self,
        prefix: &str,
        keys: impl Iterator<Item = &'k UnknownKey>,
    ) {
        let mut more = 0;
        for (index, key) in keys.enumerate() {
            if index < MANIFEST_WARNINGS_MAX {
                self.warn(format_args!("{prefix}{key}"));
            } else {
                more += 1;
            }
        }
        if more > 0 {
            self.warn(format_args!("{prefix}and {more} more of these"));
        }
    }

    /// Warns about the `names` that are not in `known`: they are probably typing errors.
    pub(crate) fn warn_of_unknown_workloads<'k>(
        &mut self,
        names: &[String],
        known: impl Iterator<Item = &'k str> + Clone,
    ) {
        for name in unknown(names, known.clone()) {
            let text = format!("workload '{name}' does not exist");
            self.warn_with_hint(text, &meant_or(name, known.clone(), ""));
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
        self.hint(hint);
    }

    fn hint(&mut self, text: &str) {
        if !text.is_empty() {
            self.labelled("\x1b[38;5;14m", "hint:", &text);
        }
    }

    /// Writes a question. The answer follows on the same line.
    pub(crate) fn ask(&mut self, text: impl Display) {
        // No stream is left to report an error to.
        let _ = self.err.write_all(printable(&text.to_string()).as_bytes());
        let _ = self.err.flush();
    }

    /// Writes text that belongs to the warning or error before it.
    pub(crate) fn explain(&mut self, text: &str) {
        // No stream is left to report an error to.
        let _ = self.err.write_all(printable(text).as_bytes());
    }

    fn labelled(&mut self, colour: &str, label: &str, text: &dyn Display) {
        let text = text.to_string();
        let text = printable(&text);
        let line = if self.colours {
            format!("{colour}{label}\x1b[0m {text}\n")
        } else {
            format!("{label} {text}\n")
        };
        let _ = self.err.write_all(line.as_bytes()); // No stream is left to report an error to.
    }
}

/// Prints the help, or a usage error of the command line `words`. An error repeats words, so those
/// that act on a terminal are escaped.
pub(crate) fn print_usage(error: &clap::Error, words: &[OsString]) {
    let has_hostile_word = words.iter().any(is_hostile);
    // No stream is left to report an error to.
    if error.use_stderr() && has_hostile_word {
        let text = error.render().to_string(); // Without colours, which would be escaped too.
        let _ = io::stderr().write_all(printable(&text).as_bytes());
    } else {
        let _ = error.print();
    }
}

/// Returns whether a word would act on a terminal that prints it.
fn is_hostile(word: &OsString) -> bool {
    word.to_string_lossy().chars().any(acts_on_terminal)
}

/// Columns and lines of a terminal that does not report its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => USUAL_SIZE,
    }
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
    fn texts_of_others_never_act_on_the_terminal() {
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
            let line = |colour, text: &str| ColouredLine {
                colour,
                text: text.to_owned(),
            };
            let lines = [line("\x1b[31m", "-\x1bold"), line("", "same")];
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
