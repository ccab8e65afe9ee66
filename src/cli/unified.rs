//! The lines in which two texts differ, as in a unified diff.
//!
//! Thread: `main`, plain functions.

use crate::limits::DIFF_CELLS_MAX;
use std::ops::Range;

/// Equal lines around those that differ.
const CONTEXT: usize = 3;

/// A line of one text or of both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'t> {
    /// In both.
    Both(&'t str),
    /// Only in the old one.
    Old(&'t str),
    /// Only in the new one.
    New(&'t str),
}

impl<'t> Line<'t> {
    /// The line itself.
    #[must_use]
    pub fn text(self) -> &'t str {
        let (Self::Both(text) | Self::Old(text) | Self::New(text)) = self;
        text
    }
}

fn is_in_old(line: &Line<'_>) -> bool {
    !matches!(line, Line::New(_))
}

fn is_in_new(line: &Line<'_>) -> bool {
    !matches!(line, Line::Old(_))
}

/// All lines of both texts, in order; as many as possible are in both.
#[must_use]
pub fn compare<'t>(old: &'t [String], new: &'t [String]) -> Vec<Line<'t>> {
    let begin = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let (old_rest, new_rest) = (&old[begin..], &new[begin..]);
    let end = old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(old, new)| old == new).count();
    let both = |lines: &'t [String]| lines.iter().map(|line| Line::Both(line));
    let mut lines: Vec<Line<'t>> = both(&old[..begin]).collect();
    compare_middle(&old_rest[..old_rest.len() - end], &new_rest[..new_rest.len() - end], &mut lines);
    lines.extend(both(&old[old.len() - end..]));
    lines
}

/// Appends the lines of two texts that begin and end differently.
fn compare_middle<'t>(old: &'t [String], new: &'t [String], lines: &mut Vec<Line<'t>>) {
    let width = new.len() + 1;
    if old.is_empty() || new.is_empty() || (old.len() + 1).saturating_mul(width) > DIFF_CELLS_MAX {
        lines.extend(old.iter().map(|line| Line::Old(line)));
        lines.extend(new.iter().map(|line| Line::New(line)));
        return;
    }
    // How many lines `old[i..]` and `new[j..]` can have in common, at `i * width + j`.
    let mut common = vec![0_u32; (old.len() + 1) * width];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i * width + j] = if old[i] == new[j] {
                common[(i + 1) * width + j + 1] + 1
            } else {
                common[(i + 1) * width + j].max(common[i * width + j + 1])
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push(Line::Both(&old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && common[(i + 1) * width + j] >= common[i * width + j + 1]) {
            lines.push(Line::Old(&old[i]));
            i += 1;
        } else {
            lines.push(Line::New(&new[j]));
            j += 1;
        }
    }
}

/// The parts of `lines` that differ, with the lines around them.
#[must_use]
pub fn hunks(lines: &[Line<'_>]) -> Vec<Range<usize>> {
    let mut hunks: Vec<Range<usize>> = Vec::new();
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| !matches!(line, Line::Both(_))) {
        let (begin, end) = (at.saturating_sub(CONTEXT), (at + 1 + CONTEXT).min(lines.len()));
        match hunks.last_mut() {
            Some(last) if begin <= last.end => last.end = end,
            _ => hunks.push(begin..end),
        }
    }
    hunks
}

/// `@@ -<line>,<lines> +<line>,<lines> @@` for a part of `lines`: where it is in the old text and in the new one.
#[must_use]
pub fn heading(lines: &[Line<'_>], hunk: &Range<usize>) -> String {
    let place = |is_in: fn(&Line<'_>) -> bool| {
        let before = lines[..hunk.start].iter().filter(|line| is_in(line)).count();
        let inside = lines[hunk.clone()].iter().filter(|line| is_in(line)).count();
        // Of no lines the one before them is named.
        format!("{},{inside}", if inside == 0 { before } else { before + 1 })
    };
    format!("@@ -{} +{} @@", place(is_in_old), place(is_in_new))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    /// Both texts compared, as `=a-b+c`.
    fn compared(old: &str, new: &str) -> String {
        let shown = |line: &Line<'_>| match line {
            Line::Both(text) => format!("={text}"),
            Line::Old(text) => format!("-{text}"),
            Line::New(text) => format!("+{text}"),
        };
        compare(&split(old), &split(new)).iter().map(shown).collect()
    }

    #[test]
    fn as_many_lines_as_possible_are_in_both() {
        for (old, new, expected) in [
            ("", "", ""),
            ("abc", "abc", "=a=b=c"),
            ("", "ab", "+a+b"),
            ("ab", "", "-a-b"),
            ("abc", "axc", "=a-b+x=c"),
            ("abcabba", "cbabac", "-a-b=c-a=b+a=b=a+c"),
            ("aaa", "aa", "=a=a-a"),
            ("ab", "ba", "-a=b+a"),
        ] {
            assert_eq!(compared(old, new), expected, "{old} {new}");
        }
    }

    #[test]
    fn both_texts_can_be_put_together_from_the_lines_whatever_they_are() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut text = |length: usize| -> String { (0..length).map(|_| random.char('a'..='d')).collect() };
        for length in 0..60 {
            let (old, new) = (text(length), text(60 - length));
            let (old_lines, new_lines) = (split(&old), split(&new));
            let lines = compare(&old_lines, &new_lines);
            let of = |is_in: fn(&Line<'_>) -> bool| -> String {
                lines.iter().filter(|line| is_in(line)).map(|line| line.text()).collect()
            };
            assert_eq!((of(is_in_old), of(is_in_new)), (old, new));
        }
    }

    #[test]
    fn texts_that_are_too_long_to_compare_are_shown_one_after_the_other() {
        let text = |first: usize| (first..first + 3_000).map(|number| number.to_string()).collect::<Vec<_>>();
        let (old, new) = (text(0), text(1));
        const { assert!(3_000 * 3_000 > DIFF_CELLS_MAX) };
        let lines = compare(&old, &new);
        assert_eq!((lines.len(), lines[0], lines[5_999]), (6_000, Line::Old("0"), Line::New("3000")));
    }

    #[test]
    fn hunks_have_three_lines_around_them_and_are_joined_when_they_touch() {
        let hunks_of = |old: &str, new: &str| {
            let (old, new) = (split(old), split(new));
            let lines = compare(&old, &new);
            hunks(&lines).iter().map(|hunk| heading(&lines, hunk)).collect::<Vec<_>>()
        };
        assert_eq!(hunks_of("abcdefghi", "abcdXfghi"), ["@@ -2,7 +2,7 @@"]);
        assert_eq!(hunks_of("abcdefghijklmn", "Xbcdefghijklmn"), ["@@ -1,4 +1,4 @@"]);
        assert_eq!(hunks_of("abcdefghijklmn", "XbcdefgYijklmn"), ["@@ -1,11 +1,11 @@"]);
        assert_eq!(hunks_of("abcdefghijklmn", "XbcdefghijklmY"), ["@@ -1,4 +1,4 @@", "@@ -11,4 +11,4 @@"]);
        assert_eq!(hunks_of("", "ab"), ["@@ -0,0 +1,2 @@"]);
        assert_eq!(hunks_of("ab", ""), ["@@ -1,2 +0,0 @@"]);
        assert_eq!(hunks_of("abcdefgh", "abcdeXfgh"), ["@@ -3,6 +3,7 @@"]);
        assert_eq!(hunks_of("ab", "ab"), [""; 0]);
    }
}
