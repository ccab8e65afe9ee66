//! Texts of others as people may see them: without characters that act on a terminal, and without
//! passwords.
//!
//! Thread: none, plain functions.

use std::borrow::Cow;
use std::ops::Range;

/// Stands for a password.
pub const MASK: &str = "***";

/// Returns whether a terminal acts on `character` in place of showing it: it moves the cursor,
/// begins a command, or changes the order of the characters around it. Ends of lines and tabs are
/// harmless.
#[inline]
pub fn acts_on_terminal(character: char) -> bool {
    // The fast path for nearly all of a long text.
    if matches!(character, ' '..='~' | '\n' | '\t') {
        return false;
    }
    let invisible = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}'
    );
    invisible || character.is_control()
}

/// Appends a `sentence` to `text`, which gets a full stop if it has none: errors of engines mostly
/// have none. `text` is cut so that both have at most `bytes_max` bytes.
pub fn with_sentence(text: &str, sentence: &str, bytes_max: usize) -> String {
    let room = bytes_max.saturating_sub(". ".len() + sentence.len());
    let text = text[..text.floor_char_boundary(room)].trim_end();
    if text.is_empty() {
        return sentence.to_owned();
    }
    let is_ended = text.ends_with(['.', '!', '?', ':', ';']);
    let between = if is_ended { " " } else { ". " };
    format!("{text}{between}{sentence}")
}

/// Returns `text` with the characters that act on a terminal written out.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(acts_on_terminal) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\r' => shown.push_str("\\r"),
            _ if acts_on_terminal(character) => shown.extend(character.escape_unicode()),
            _ => shown.push(character),
        }
    }
    shown.into()
}

/// Makes a line of a program printable as [`printable`] does, but keeps its colours, which end with
/// the line. A carriage return at the end is left out.
pub fn printable_with_colours(line: &str) -> String {
    // Each piece but the first follows the beginning of an escape sequence.
    let mut pieces = line.trim_end_matches('\r').split("\x1b[");
    let mut shown = printable(pieces.next().unwrap_or_default()).into_owned();
    let mut coloured = false;
    for piece in pieces {
        let end = piece
            .find(|c: char| !matches!(c, '0'..='9' | ';' | ':'))
            .unwrap_or(piece.len());
        match piece[end..].strip_prefix('m') {
            Some(rest) => {
                shown.extend(["\x1b[", &piece[..end], "m", &printable(rest)]);
                coloured = true;
            }
            // It is no colour: write the escape out, so that the rest is shown as text.
            None => shown.push_str(&printable(&format!("\x1b[{piece}"))),
        }
    }
    if coloured {
        shown.push_str("\x1b[0m");
    }
    shown
}

/// Returns the place of the password in a name of an image or an address:
/// `https://user:password@host`, `user:password@host` or `https://token@host`.
pub fn password_in(text: &str) -> Option<Range<usize>> {
    let name = without_digest(text);
    // The last '@' ends the password, which may contain others.
    let end = name.rfind('@')?;
    let scheme_end = name[..end].find("://").map(|at| at + "://".len());
    let has_scheme = scheme_end.is_some();
    let begin = scheme_end.unwrap_or_default();
    let user_info = &name[begin..end];
    let Some((user, password)) = user_info.split_once(':') else {
        // Behind a scheme it may be a token without a user.
        if has_scheme && !user_info.contains('/') {
            return not_empty(begin..end);
        }
        return None;
    };
    // Without a scheme it may be a path, as in `docker-archive:/tmp/image@0`.
    let may_be_path = !has_scheme && password.starts_with('/');
    if may_be_path || user.contains('/') {
        return None;
    }
    not_empty(begin + user.len() + 1..end)
}

fn not_empty(range: Range<usize>) -> Option<Range<usize>> {
    if range.is_empty() { None } else { Some(range) }
}

/// Removes the digest of the name of an image, which stands behind an '@' as a host does.
fn without_digest(name: &str) -> &str {
    let Some((before, digest)) = name.rsplit_once('@') else {
        return name;
    };
    for algorithm in ["sha256:", "sha384:", "sha512:"] {
        if digest.starts_with(algorithm) {
            return before;
        }
    }
    name
}

/// Returns `text` with a mask in place of the passwords in its words.
pub fn without_passwords(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for word in text.split_inclusive(ends_word) {
        match password_in(word) {
            Some(Range { start, end }) => shown.extend([&word[..start], MASK, &word[end..]]),
            None => shown.push_str(word),
        }
    }
    shown
}

/// Returns whether `character` separates an address from the sentence or list around it.
fn ends_word(character: char) -> bool {
    character.is_whitespace()
        || matches!(
            character,
            '"' | '\'' | '`' | '<' | '>' | '(' | ')' | '[' | ']' | '{' | '}' | ','
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sentences_were_glued_without_a_full_stop() {
        let age = "It has run for 10 s.";
        for (text, expected) in [
            ("", age.to_owned()),
            (
                "Error: no supported kube kind",
                format!("Error: no supported kube kind. {age}"),
            ),
            (
                "Error: unknown kind 'x'\n",
                format!("Error: unknown kind 'x'. {age}"),
            ),
            (
                "Triggered at runtime.",
                format!("Triggered at runtime. {age}"),
            ),
            ("Really?", format!("Really? {age}")),
        ] {
            assert_eq!(with_sentence(text, age, 100), expected, "{text:?}");
        }
        let cut = with_sentence(&"\u{fc}".repeat(100), age, 41);
        assert_eq!(cut, format!("{}. {age}", "\u{fc}".repeat(9)));
        assert_eq!(with_sentence("text", age, 5), age);
    }

    #[test]
    fn what_acts_on_a_terminal_is_written_out() {
        for (text, expected) in [
            ("\x1b[2Jgone\x07\r\n", "\\u{1b}[2Jgone\\u{7}\\r\n"),
            ("\u{9b}31m\u{7f}\u{85}", "\\u{9b}31m\\u{7f}\\u{85}"),
            (
                "a\u{202e}b\u{2066}c\u{200f}\u{61c}\u{2028}\u{feff}",
                "a\\u{202e}b\\u{2066}c\\u{200f}\\u{61c}\\u{2028}\\u{feff}",
            ),
            ("ä\t🦀 \"'\\ עברית", "ä\t🦀 \"'\\ עברית"),
            ("", ""),
        ] {
            assert_eq!(printable(text), expected);
        }
        for code in (0..9)
            .chain(0xb..0x20)
            .chain(0x7f..0xa0)
            .chain(0x202a..=0x202e)
            .chain(0x2066..=0x2069)
        {
            let character = char::from_u32(code).unwrap();
            assert!(acts_on_terminal(character), "{code:x}");
        }
    }

    #[test]
    fn of_the_sequences_of_a_program_only_colours_stay() {
        for (text, expected) in [
            (
                "\x1b[1;31mred\x1b[0m plain",
                "\x1b[1;31mred\x1b[0m plain\x1b[0m",
            ),
            ("\x1b[38:5:9mx", "\x1b[38:5:9mx\x1b[0m"),
            ("\x1b[mx", "\x1b[mx\x1b[0m"),
            ("plain\r", "plain"),
            ("10%\r20%", "10%\\r20%"),
            (
                "\x1b[2J\x1b]52;c;aGk=\x07",
                "\\u{1b}[2J\\u{1b}]52;c;aGk=\\u{7}",
            ),
            ("\x1b[31", "\\u{1b}[31"),
            ("\x1b[\x1b[31mx", "\\u{1b}[\x1b[31mx\x1b[0m"),
            ("\x1b[3ä1m\u{9b}1m", "\\u{1b}[3ä1m\\u{9b}1m"),
            ("\x1b", "\\u{1b}"),
        ] {
            assert_eq!(printable_with_colours(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_password_in_an_address_is_not_shown() {
        for (text, expected) in [
            (
                "https://user:word@host/image",
                "https://user:***@host/image",
            ),
            ("user:word@host/image:tag", "user:***@host/image:tag"),
            (
                "docker://user:word@host:5000/image@sha256:0a",
                "docker://user:***@host:5000/image@sha256:0a",
            ),
            ("https://token@host/x", "https://***@host/x"),
            ("https://:word@host", "https://:***@host"),
            ("https://u:wo@rd/x:@host/i", "https://u:***@host/i"),
            ("u:w/o@rd@host", "u:***@host"),
            (
                "--proxy=http://u:word@host:3128",
                "--proxy=http://u:***@host:3128",
            ),
            (
                "initializing 'https://u:word@h/i': no 'u:word@h'",
                "initializing 'https://u:***@h/i': no 'u:***@h'",
            ),
            (
                "[https://a:b@c, https://d:e@f]",
                "[https://a:***@c, https://d:***@f]",
            ),
        ] {
            assert_eq!(without_passwords(text), expected);
        }
    }

    #[test]
    fn what_is_no_password_stays() {
        for text in [
            "docker.io/library/alpine:3.20@sha256:0a",
            "alpine:3.20@sha256:0a1b",
            "host:5000/image",
            "http://127.0.0.1:8080/health",
            "docker-archive:/tmp/image.tar@0",
            "/srv/a:/srv/b@c",
            "unix:///run/user@1000.service/x",
            "user@host",
            "user:@host",
            "at 12:30:01",
            "@",
            "://@",
            "",
        ] {
            assert_eq!(without_passwords(text), text);
        }
    }
}
