//! Keeps messages with log lines below the size that every peer accepts.
//!
//! Thread: none, plain functions; used by agents that send lines and by the server that forwards
//! them.

use super::messages::LogEntry;
use super::names::InstanceName;
use crate::limits::LOG_MESSAGE_MAX;

/// The end of a line that was cut.
const CUT: &str = " [truncated]";
/// The line that follows one that was cut.
const CUT_NOTE: &str = "The previous message was truncated due to exceeding the maximum 2 MB size.";

/// Bytes of an encoded entry beside its texts: more than the tags and lengths of its seven fields.
const ENTRY_OVERHEAD: usize = 48;

fn names_bytes(entry: &LogEntry) -> usize {
    entry.instance.bytes() + ENTRY_OVERHEAD
}

fn bytes(entry: &LogEntry) -> usize {
    names_bytes(entry) + entry.message.len()
}

/// Splits `entries` into messages of at most [`LOG_MESSAGE_MAX`] bytes, in order. A line that is
/// longer by itself is cut and followed by a note.
pub fn split(entries: Vec<LogEntry>) -> Vec<Vec<LogEntry>> {
    let mut messages: Vec<Vec<LogEntry>> = Vec::new();
    let mut room = 0;
    for entry in cut_long_lines(entries) {
        let bytes = bytes(&entry);
        match messages.last_mut() {
            Some(message) if bytes <= room => message.push(entry),
            _ => {
                room = LOG_MESSAGE_MAX;
                messages.push(vec![entry]);
            }
        }
        room = room.saturating_sub(bytes);
    }
    messages
}

/// Cuts lines that are longer than a message, and adds a note after each of them.
fn cut_long_lines(entries: Vec<LogEntry>) -> Vec<LogEntry> {
    let mut cut = Vec::with_capacity(entries.len());
    for mut entry in entries {
        if bytes(&entry) <= LOG_MESSAGE_MAX {
            cut.push(entry);
            continue;
        }
        let instance = entry.instance.clone();
        let end = LOG_MESSAGE_MAX.saturating_sub(names_bytes(&entry) + CUT.len());
        entry
            .message
            .truncate(entry.message.floor_char_boundary(end));
        entry.message.push_str(CUT);
        cut.push(entry);
        cut.push(LogEntry::line(instance, CUT_NOTE));
    }
    cut
}

/// Begins the reason why there are no lines, for programs that show it as a line.
const NO_LOG: &str = "[no log: ";

/// The reason why there is no log of `instance`, in place of its lines.
pub fn no_log(instance: InstanceName, why: &str) -> LogEntry {
    LogEntry {
        instance,
        message: format!("{NO_LOG}{why}]"),
        is_reason: true,
    }
}

/// The reason in an entry that holds one, as it was given to [`no_log`].
pub fn reason(entry: &LogEntry) -> &str {
    let text = entry.message.strip_prefix(NO_LOG);
    let inner = text.and_then(|text| text.strip_suffix(']'));
    inner.unwrap_or(&entry.message)
}

/// A line in place of `lines` lines of `instance` that were dropped: they came faster than their
/// receiver has read.
pub fn dropped(instance: InstanceName, lines: u64) -> LogEntry {
    let plural = if lines == 1 { "" } else { "s" };
    LogEntry::line(
        instance,
        format!("[{lines} line{plural} not shown: they came faster than they were read]"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(message: &str) -> LogEntry {
        LogEntry::line(InstanceName::with_id("w", "id", "A"), message)
    }

    #[test]
    fn short_lines_stay_together_and_long_ones_are_split_in_order() {
        assert_eq!(split(vec![]), Vec::<Vec<LogEntry>>::new());
        let short = vec![entry("a"), entry(""), entry("b")];
        assert_eq!(split(short.clone()), [short]);
        let half = "x".repeat(LOG_MESSAGE_MAX / 2);
        let messages = split(vec![entry("a"), entry(&half), entry(&half), entry("b")]);
        assert_eq!(messages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert!(
            messages
                .iter()
                .all(|message| message.iter().map(bytes).sum::<usize>() <= LOG_MESSAGE_MAX)
        );
    }

    #[test]
    fn long_line_is_cut_between_characters_and_followed_by_a_note() {
        for text in [
            "x".repeat(LOG_MESSAGE_MAX + 1),
            "ä".repeat(LOG_MESSAGE_MAX),
            "🦀".repeat(LOG_MESSAGE_MAX / 3),
        ] {
            let messages = split(vec![entry("first"), entry(&text), entry("last")]);
            assert!(
                messages
                    .iter()
                    .all(|message| message.iter().map(bytes).sum::<usize>() <= LOG_MESSAGE_MAX)
            );
            let lines: Vec<&str> = messages
                .iter()
                .flatten()
                .map(|entry| entry.message.as_str())
                .collect();
            assert_eq!(
                (lines.len(), lines[0], lines[2], lines[3]),
                (4, "first", CUT_NOTE, "last")
            );
            let kept = lines[1].strip_suffix(CUT).unwrap();
            assert!(
                text.starts_with(kept) && kept.len() + 200 > LOG_MESSAGE_MAX,
                "{}",
                kept.len()
            );
        }
    }

    #[test]
    fn long_names_of_an_instance_count_in_the_size_of_a_message() {
        let name = "n".repeat(63);
        let instance = InstanceName::new(&name, "c", &name);
        let entries = vec![LogEntry::line(instance, "x"); LOG_MESSAGE_MAX / 100];
        let count = entries.len();
        let messages = split(entries);
        assert_eq!(messages.iter().map(Vec::len).sum::<usize>(), count);
        for message in messages {
            // The text and the names of an entry: 1, 63, 64 and 63 bytes.
            assert!(message.len() * 191 <= LOG_MESSAGE_MAX, "{}", message.len());
        }
    }

    #[test]
    fn reason_without_a_log_is_read_back_from_its_entry() {
        let instance = InstanceName::with_id("w", "id", "A");
        let entry = no_log(instance.clone(), "it has ended");
        assert_eq!(entry.message, "[no log: it has ended]");
        assert_eq!(reason(&entry), "it has ended");
        assert_eq!(reason(&LogEntry::line(instance, "[other]")), "[other]");
    }

    #[test]
    fn dropped_lines_are_replaced_by_a_line_with_their_number() {
        let instance = InstanceName::with_id("w", "id", "A");
        for (lines, text) in [
            (
                1,
                "[1 line not shown: they came faster than they were read]",
            ),
            (
                2,
                "[2 lines not shown: they came faster than they were read]",
            ),
        ] {
            let expected = LogEntry::line(instance.clone(), text);
            assert_eq!(dropped(instance.clone(), lines), expected);
        }
    }
}
