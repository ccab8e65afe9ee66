//! What goes to which stream: results and progress to standard output, everything about them to standard error.
//!
//! Thread: `main`. Owns: both streams. Colours only where a terminal shows them and `NO_COLOR` is not set, so that
//! scripts find `error: ` and `warn: ` at the beginning of a line (spec/cli.md section 2).

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// Width of what is no terminal: nothing is ever cut or wrapped there.
pub const UNLIMITED: usize = 65_535;
/// Size of a terminal that does not tell: columns and lines.
const UNKNOWN_SIZE: (usize, usize) = (80, 24);

/// Both streams and what may be written to them.
pub struct Output<'w> {
    out: Box<dyn Write + 'w>,
    err: Box<dyn Write + 'w>,
    /// Asks for columns and lines of the terminal; `None` when standard output is none.
    terminal: Option<fn() -> (usize, usize)>,
    colours: bool,
    quiet: bool,
    verbose: bool,
}

impl<'w> Output<'w> {
    /// The streams of the process.
    #[must_use]
    pub fn of_process() -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            out: Box::new(io::stdout().lock()),
            err: Box::new(io::stderr()),
            terminal: io::stdout().is_terminal().then_some(terminal_size as fn() -> (usize, usize)),
            colours: io::stderr().is_terminal() && !no_colour,
            quiet: false,
            verbose: false,
        }
    }

    /// Streams for tests; with `terminal`, standard output pretends to be one.
    #[must_use]
    pub fn to(out: impl Write + 'w, err: impl Write + 'w, terminal: Option<fn() -> (usize, usize)>) -> Self {
        Self { out: Box::new(out), err: Box::new(err), terminal, colours: false, quiet: false, verbose: false }
    }

    /// Sets what is left out and what is added; quiet wins.
    pub fn set_level(&mut self, quiet: bool, verbose: bool) {
        self.quiet = quiet;
        self.verbose = verbose && !quiet;
    }

    /// Whether progress is left out.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether what happens is written.
    #[must_use]
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// Columns and lines of the terminal; `None` when standard output is none.
    #[must_use]
    pub fn terminal(&self) -> Option<(usize, usize)> {
        self.terminal.map(|size| size())
    }

    /// Columns for a table.
    #[must_use]
    pub fn width(&self) -> usize {
        self.terminal().map_or(UNLIMITED, |(columns, _)| columns)
    }

    /// Writes what was asked for, as it is.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn result(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes a line about the progress, unless quiet.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn status(&mut self, text: &str) -> io::Result<()> {
        if self.quiet {
            return Ok(());
        }
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// Writes bytes about the progress, unless quiet: frames with cursor movements.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn progress(&mut self, text: &str) -> io::Result<()> {
        if self.quiet { Ok(()) } else { self.result(text) }
    }

    /// Writes a warning.
    pub fn warn(&mut self, text: impl Display) {
        self.labelled("\x1b[38;5;11m", "warn:", &text);
    }

    /// Writes what happens, when verbose.
    pub fn debug(&mut self, text: impl Display) {
        if self.verbose {
            self.labelled("\x1b[38;5;12m", "debug:", &text);
        }
    }

    /// Writes why the command failed and what to do about it.
    pub fn error(&mut self, text: impl Display, hint: Option<&str>) {
        self.labelled("\x1b[1;38;5;9m", "error:", &text);
        if let Some(hint) = hint {
            self.labelled("\x1b[38;5;14m", "hint:", &hint);
        }
    }

    /// Writes what belongs to the warning or error before it, as it is.
    pub fn explain(&mut self, text: &str) {
        let _ = self.err.write_all(text.as_bytes()); // As for labels.
    }

    fn labelled(&mut self, colour: &str, label: &str, text: &dyn Display) {
        // Nobody is left to tell when standard error cannot be written.
        let _ = if self.colours {
            writeln!(self.err, "{colour}{label}\x1b[0m {text}")
        } else {
            writeln!(self.err, "{label} {text}")
        };
    }
}

fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => UNKNOWN_SIZE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes one of everything and gives both streams.
    fn all(quiet: bool, verbose: bool, colours: bool) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut output = Output::to(&mut out, &mut err, None);
        output.colours = colours;
        output.set_level(quiet, verbose);
        output.result("result\n").unwrap();
        output.status("status").unwrap();
        output.progress("frame\n").unwrap();
        output.warn("careful");
        output.debug("detail");
        output.error("failed", Some("try again"));
        drop(output);
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn quiet_and_verbose_change_what_the_table_says() {
        for (quiet, verbose, out, err) in [
            (false, false, "result\nstatus\nframe\n", "warn: careful\nerror: failed\nhint: try again\n"),
            (true, false, "result\n", "warn: careful\nerror: failed\nhint: try again\n"),
            (false, true, "result\nstatus\nframe\n", "warn: careful\ndebug: detail\nerror: failed\nhint: try again\n"),
            (true, true, "result\n", "warn: careful\nerror: failed\nhint: try again\n"),
        ] {
            assert_eq!(all(quiet, verbose, false), (out.to_owned(), err.to_owned()), "quiet {quiet} verbose {verbose}");
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
