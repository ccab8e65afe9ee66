//! Why a request is refused, as far as programs decide by it. The text beside it is for people, and
//! for programs that do not know these reasons.
//!
//! Thread: none, plain values.

use super::guarded_update::REMEMBERED;
use super::messages::NO_STATE;
use super::modes::NO_MODE_ITEM;
use super::names::named_enum;

named_enum! {
    /// The reason of a refusal. Its number on the wire is its place in this list, so a new one
    /// comes last.
    #[derive(Default)]
    Refusal {
        /// Programs decide by the refusal alone.
        #[default]
        None = "NONE",
        /// The same update was rolled back before.
        RolledBackBefore = "ROLLED_BACK_BEFORE",
        /// A workload names modes, and the config item with the current mode does not exist.
        NoModeItem = "NO_MODE_ITEM",
        /// The update has no content, or none that this server knows.
        NoState = "NO_STATE",
    }
}

impl Refusal {
    /// The number on the wire.
    pub fn number(self) -> i32 {
        self as i32
    }

    /// Finds the reason with this number; `None` for one of a newer program.
    pub fn from_number(number: i32) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).copied()
    }

    /// Derives the reason from the words of a refusal, for servers that send no reason. No other
    /// code decides by these words.
    fn from_text(text: &str) -> Self {
        if text.starts_with(NO_STATE) {
            return Self::NoState;
        }
        let Some(text) = text.strip_prefix("Update rejected: '") else {
            return Self::None;
        };
        if text.starts_with(REMEMBERED) {
            return Self::RolledBackBefore;
        }
        let is_of_workload = text.starts_with("Resulting State is invalid, reason: 'Workload '")
            || text.starts_with("Resulting State is invalid, reason: 'Hook output: Workload '");
        if is_of_workload && text.contains(NO_MODE_ITEM) {
            return Self::NoModeItem;
        }
        Self::None
    }
}

/// The response to a request that is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorResponse {
    /// The text for people.
    pub text: String,
    /// The reason for programs.
    pub refusal: Refusal,
}

impl ErrorResponse {
    /// The response to an update without content.
    pub fn no_state() -> Self {
        Self {
            text: NO_STATE.to_owned(),
            refusal: Refusal::NoState,
        }
    }

    /// The response of a program that sent this number, or none.
    pub fn received(text: String, number: Option<i32>) -> Self {
        let known = number.and_then(Refusal::from_number);
        let refusal = known.unwrap_or_else(|| Refusal::from_text(&text));
        Self { text, refusal }
    }

    /// The reason to send. It is left out if there is none, unless the receiver would derive one
    /// from the text.
    pub fn sent_refusal(&self) -> Option<Refusal> {
        if self.refusal == Refusal::None && Refusal::from_text(&self.text) == Refusal::None {
            return None;
        }
        Some(self.refusal)
    }
}

/// An error by whose reason no program decides.
impl From<String> for ErrorResponse {
    fn from(text: String) -> Self {
        Self {
            text,
            refusal: Refusal::None,
        }
    }
}

impl From<&str> for ErrorResponse {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_refusals_never_change() {
        let texts = ["NONE", "ROLLED_BACK_BEFORE", "NO_MODE_ITEM", "NO_STATE"];
        assert_eq!(Refusal::TEXTS, texts);
        for (number, refusal) in (0..).zip(Refusal::ALL) {
            assert_eq!(refusal.number(), number);
            assert_eq!(Refusal::from_number(number), Some(*refusal));
        }
        assert_eq!(Refusal::from_number(-1), None);
    }

    // [utest->swdd~api-reasons-of-refusals~1]
    #[test]
    fn text_of_an_older_server_has_the_reason_that_it_meant() {
        let no_item = "Workload 'nav' has the tag 'modes', but config item 'mode' does not exist";
        for (text, refusal) in [
            (NO_STATE, Refusal::NoState),
            (
                "Update rejected: 'it is the same as update 3, which was rolled back: web: x'",
                Refusal::RolledBackBefore,
            ),
            (
                &format!("Update rejected: 'Resulting State is invalid, reason: '{no_item}''"),
                Refusal::NoModeItem,
            ),
            (
                &format!(
                    "Update rejected: 'Resulting State is invalid, reason: 'Hook output: {no_item}''"
                ),
                Refusal::NoModeItem,
            ),
            ("Update rejected: 'x'", Refusal::None),
            ("", Refusal::None),
        ] {
            let received = |number| ErrorResponse::received(text.to_owned(), number).refusal;
            assert_eq!(received(None), refusal, "{text}");
            assert_eq!(received(Some(77)), refusal, "of a newer server: {text}");
            assert_eq!(received(Some(0)), Refusal::None, "{text}");
        }
    }

    #[test]
    fn words_of_a_hook_are_not_the_reason_of_a_refusal() {
        for words in [REMEMBERED, NO_MODE_ITEM, NO_STATE] {
            let text = format!("Update rejected by mutating hook 'h': '{words}'");
            assert_eq!(ErrorResponse::received(text, None).refusal, Refusal::None);
        }
    }

    #[test]
    fn reason_is_absent_unless_it_says_more_than_the_text() {
        let rows = [
            ("x", Refusal::None, None),
            (
                "x",
                Refusal::RolledBackBefore,
                Some(Refusal::RolledBackBefore),
            ),
            (NO_STATE, Refusal::NoState, Some(Refusal::NoState)),
            (NO_STATE, Refusal::None, Some(Refusal::None)),
        ];
        for (text, refusal, sent) in rows {
            let response = ErrorResponse {
                text: text.to_owned(),
                refusal,
            };
            assert_eq!(response.sent_refusal(), sent, "{text}");
        }
    }
}
