//! Reads the log of a container through a call of its engine's program, line by line, while the
//! call runs.
//!
//! The log and errors of the engine come from the same two outputs. The error is the last line of a
//! failed call, so a last line that may be an error is delayed for a moment.
//!
//! Thread: `log:<number>:<name>`, see agent/log_stream.rs.
//! Owns: the engine's process, an incomplete line, and a delayed line.

use super::call_error::{may_be_of_engine, reason};
use super::engine_children::{CALL_VARIABLE, ChildRecord, EngineChildren, READER};
use ankaios_model::limits::LOG_MESSAGE_MAX;
use ankaios_model::messages::LogsRequest;
use ankaios_platform::child::{ChildOutput, FollowedChild};
use ankaios_platform::clock::{Clock as _, SystemClock};
use ankaios_platform::limits::PIPE_CAPACITY;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, Instant};

/// Kept bytes of one line: just too long for a message, so that the line is cut and marked there.
const LOG_LINE_MAX: usize = LOG_MESSAGE_MAX + 1;

/// Longest delay of a last line that may be an error of the engine: a call that prints one ends at
/// once.
const ERROR_HELD_MAX: Duration = Duration::from_secs(1);

/// Bytes read at once: the capacity of a pipe, so that a busy container fills whole messages.
const READ_SIZE: usize = PIPE_CAPACITY;

/// Longest line in bytes. The log with a longer one is closed: the line will never end.
const ENDLESS_LINE_MIN: usize = 50 * 1024 * 1024;

/// The last line of a log with an endless line.
const ENDLESS_LINE: &str =
    "The previous log message exceeded the maximum 50 MB size. Closing the log campaign.";

/// A call that prints what one container wrote.
#[derive(Debug, Clone)]
pub struct LogCall {
    /// The engine's program.
    pub program: String,
    pub arguments: Vec<String>,
    /// The name of the container before each line, if the workload has several.
    pub prefix: String,
    /// The records of running calls, so that the next agent can end this call.
    pub children: EngineChildren,
}

/// The arguments that print the log of the container `id`.
pub(crate) fn log_arguments(wanted: &LogsRequest, id: &str) -> Vec<String> {
    let mut arguments = vec!["logs".to_owned()];
    if wanted.follow == Some(true) {
        arguments.push("-f".to_owned());
    }
    if wanted.timestamps {
        arguments.push("--timestamps".to_owned());
    }
    if let Some(since) = &wanted.since {
        arguments.extend(["--since".to_owned(), since.clone()]);
    }
    if let Some(until) = &wanted.until {
        arguments.extend(["--until".to_owned(), until.clone()]);
    }
    if let Some(tail) = wanted.tail {
        arguments.extend(["--tail".to_owned(), tail.to_string()]);
    }
    arguments.push(id.to_owned());
    arguments
}

/// A running call.
#[derive(Debug)]
pub struct LogReader {
    pub child: FollowedChild,
    program: String,
    lines: Lines,
    prefix: String,
    held: Option<HeldLine>,
    _record: Option<ChildRecord>,
}

/// The last line so far, which may be an error of the engine.
#[derive(Debug)]
struct HeldLine {
    text: String,
    until: Instant,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum LogReading {
    /// More lines may come.
    Continues,
    /// There are no further lines.
    Ended,
    /// The call has failed, for this reason.
    Failed(String),
}

impl LogCall {
    /// Starts the call.
    pub fn start(self) -> io::Result<LogReader> {
        let record = self.children.announce(&self.program, READER);
        let mut variables = Vec::new();
        if let Some(record) = &record {
            variables.push((CALL_VARIABLE, record.token.clone()));
        }
        let child = FollowedChild::start(OsStr::new(&self.program), &self.arguments, &variables)?;
        Ok(LogReader {
            child,
            program: self.program,
            lines: Lines::default(),
            prefix: self.prefix,
            held: None,
            _record: record,
        })
    }
}

impl LogReader {
    /// Longest wait for the descriptors of the child; `None` waits forever.
    pub fn wait_max(&self) -> Option<Duration> {
        let of_child = self.child.wait_max();
        let Some(held) = &self.held else {
            return of_child;
        };
        let of_held = SystemClock.until(held.until);
        Some(of_held.min(of_child.unwrap_or(of_held)))
    }

    /// Reads once and adds the complete lines to `lines`. When the output has ended, waits for the
    /// end of the call.
    pub fn read(&mut self, lines: &mut Vec<String>) -> LogReading {
        let mut buffer = [0; READ_SIZE];
        let mut new = Vec::new();
        match self.child.read(&mut buffer) {
            ChildOutput::NotYet => {
                if let Some(held) = &self.held
                    && held.until <= SystemClock.now()
                {
                    self.release(lines);
                }
                LogReading::Continues
            }
            ChildOutput::Bytes(count) => {
                let is_endless = self.lines.take(&buffer[..count], &mut new);
                self.pass_on(new, lines);
                if !is_endless {
                    return LogReading::Continues;
                }
                self.release(lines);
                LogReading::Ended
            }
            ChildOutput::End => {
                self.lines.finish(&mut new);
                self.pass_on(new, lines);
                self.end(lines)
            }
        }
    }

    /// Adds the new lines to `lines`. Delays the last one if it may be an error of the engine.
    fn pass_on(&mut self, new: Vec<String>, lines: &mut Vec<String>) {
        for text in new {
            self.release(lines); // The delayed line is not the last one any more.
            self.held = Some(HeldLine {
                text,
                until: SystemClock.now() + ERROR_HELD_MAX,
            });
        }
        if let Some(held) = &self.held
            && !may_be_of_engine(&held.text)
        {
            self.release(lines);
        }
    }

    /// Adds the delayed line to `lines`.
    fn release(&mut self, lines: &mut Vec<String>) {
        if let Some(HeldLine { text, .. }) = self.held.take() {
            lines.push(format!("{}{text}", self.prefix));
        }
    }

    /// Takes the end of the output. A delayed line is the reason if the call has failed.
    fn end(&mut self, lines: &mut Vec<String>) -> LogReading {
        match self.child.status() {
            Some(status) if !status.success() => {
                let why = match self.held.take() {
                    Some(HeldLine { text, .. }) => reason(&text),
                    None => format!("'{} logs' ended with {status}", self.program),
                };
                LogReading::Failed(format!("{}{why}", self.prefix))
            }
            _ => {
                self.release(lines);
                LogReading::Ended
            }
        }
    }
}

/// Splits bytes into lines, at line feeds only. Only the beginning of a long line is kept.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of the incomplete line, at most [`LOG_LINE_MAX`] bytes.
    partial: Vec<u8>,
    /// Bytes of that line that were not kept.
    skipped: usize,
}

impl Lines {
    /// Adds the lines that end in `bytes`. Returns whether a line is endless.
    pub fn take(&mut self, bytes: &[u8], lines: &mut Vec<String>) -> bool {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let content = piece.strip_suffix(b"\n").unwrap_or(piece);
            let kept = content.len().min(LOG_LINE_MAX - self.partial.len());
            self.partial.extend_from_slice(&content[..kept]);
            self.skipped += content.len() - kept;
            if self.partial.len() + self.skipped > ENDLESS_LINE_MIN {
                *self = Self::default();
                lines.push(ENDLESS_LINE.to_owned());
                return true;
            }
            if piece.ends_with(b"\n") {
                self.end_line(lines);
            }
        }
        false
    }

    /// Adds the last line if it has no line feed.
    pub fn finish(&mut self, lines: &mut Vec<String>) {
        if !self.partial.is_empty() {
            self.end_line(lines);
        }
    }

    /// Adds the line that was incomplete until now.
    fn end_line(&mut self, lines: &mut Vec<String>) {
        let bytes = std::mem::take(&mut self.partial);
        self.skipped = 0;
        let line = match String::from_utf8(bytes) {
            Ok(line) => line,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        };
        lines.push(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ankaios_model::limits::LOG_MESSAGE_MAX;

    fn lines_of(pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let (mut splitter, mut lines) = (Lines::default(), Vec::new());
        let endless = pieces.iter().any(|piece| splitter.take(piece, &mut lines));
        splitter.finish(&mut lines);
        (lines, endless)
    }

    #[test]
    fn wanted_arguments_have_the_documented_order() {
        let mut wanted = LogsRequest::default();
        assert_eq!(log_arguments(&wanted, "id"), ["logs", "id"]);
        wanted.follow = Some(false);
        assert_eq!(log_arguments(&wanted, "id"), ["logs", "id"]);
        wanted.follow = Some(true);
        (wanted.tail, wanted.since, wanted.until) =
            (Some(-1), Some("a b".to_owned()), Some("-x".to_owned()));
        wanted.timestamps = true;
        let expected = [
            "logs",
            "-f",
            "--timestamps",
            "--since",
            "a b",
            "--until",
            "-x",
            "--tail",
            "-1",
            "id",
        ];
        assert_eq!(log_arguments(&wanted, "id"), expected);
    }

    #[test]
    fn lines_end_at_line_feeds_only_wherever_the_reads_end() {
        for (pieces, expected) in [
            (&[b"a\nb\n" as &[u8]][..], &["a", "b"][..]),
            (&[b"a", b"b\n\nc\r", b"\nd"], &["ab", "", "c\r", "d"]),
            (&[b"\xff\n\xc3", b"\xa4"], &["\u{fffd}", "\u{e4}"]),
            (&[], &[]),
        ] {
            assert_eq!(
                lines_of(pieces),
                (
                    expected.iter().map(|line| (*line).to_owned()).collect(),
                    false
                )
            );
        }
    }

    #[test]
    fn long_line_is_cut_and_an_endless_one_ends_the_log() {
        let piece = vec![b'x'; 1024 * 1024];
        let mut pieces: Vec<&[u8]> = vec![&piece; 10];
        pieces.push(b"\nnext\n");
        let (lines, endless) = lines_of(&pieces);
        assert_eq!(
            (lines.len(), lines[0].len(), lines[1].as_str(), endless),
            (2, LOG_LINE_MAX, "next", false)
        );
        assert!(
            lines[0].len() > LOG_MESSAGE_MAX,
            "so that it is cut and said to be cut when it is sent"
        );
        let pieces: Vec<&[u8]> = vec![&piece; 51];
        assert_eq!(lines_of(&pieces), (vec![ENDLESS_LINE.to_owned()], true));
    }
}
