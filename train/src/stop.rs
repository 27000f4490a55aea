//! Strings that end a generated text.

use meshgrad_error::{Result, ensure};

/// Passes on a text that comes in pieces, up to the first stop string. No part of a stop string is
/// passed on, however the text is divided.
#[derive(Debug, Clone)]
pub struct StopStrings {
    strings: Vec<String>,
    /// The end of the text that may be the start of a stop string.
    held: String,
    is_stopped: bool,
}

impl StopStrings {
    /// Ends a text at the stop string that is complete first. If several end at the same character,
    /// the longest counts.
    ///
    /// # Errors
    /// When a string is empty.
    pub fn new(strings: impl IntoIterator<Item = String>) -> Result<StopStrings> {
        let strings: Vec<String> = strings.into_iter().collect();
        let is_empty = strings.iter().any(String::is_empty);
        ensure!(!is_empty, Invalid, "a stop string is empty; it needs at least one character");
        Ok(StopStrings { strings, held: String::new(), is_stopped: false })
    }

    /// Whether a stop string was complete.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Adds a piece of the text and returns what can be passed on; it may be empty.
    pub fn push(&mut self, piece: &str) -> String {
        if self.is_stopped {
            return String::new();
        }
        self.held.push_str(piece);
        let end = match self.first_stop() {
            Some(start) => {
                self.is_stopped = true;
                start
            }
            None => self.open_end(),
        };
        let rest = self.held.split_off(end);
        std::mem::replace(&mut self.held, rest)
    }

    /// The rest of a text that ends without a stop string.
    pub fn finish(self) -> String {
        match self.is_stopped {
            true => String::new(),
            false => self.held,
        }
    }

    /// The start of the stop string that is complete first.
    fn first_stop(&self) -> Option<usize> {
        let found = self.strings.iter().filter_map(|stop| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start))
        });
        found.min().map(|(_, start)| start)
    }

    /// The end of the text that cannot belong to a stop string.
    fn open_end(&self) -> usize {
        let is_start = |at: &usize| {
            let rest = &self.held[*at..];
            self.strings.iter().any(|stop| stop.starts_with(rest))
        };
        let mut starts = self.held.char_indices().map(|(at, _)| at);
        starts.find(is_start).unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stops(strings: &[&str]) -> StopStrings {
        StopStrings::new(strings.iter().map(|it| (*it).to_owned())).unwrap()
    }

    #[test]
    fn a_text_is_held_while_it_may_be_a_stop_string() {
        let mut stops = stops(&["\n\n", "END."]);
        assert_eq!(stops.push("a\nb E"), "a\nb ");
        assert_eq!(stops.push("N"), "");
        assert_eq!(stops.push("D\n"), "END");
        assert_eq!(stops.push("\nrest"), "");
        assert!(stops.is_stopped());
        assert_eq!(stops.push("more"), "");
        assert_eq!(stops.finish(), "");
    }

    #[test]
    fn the_end_is_passed_on_without_a_stop_string() {
        let mut stops = stops(&["END."]);
        assert_eq!(stops.push("the END"), "the ");
        assert!(!stops.is_stopped());
        assert_eq!(stops.finish(), "END");
    }

    #[test]
    fn empty_stop_strings_are_errors() {
        let error = StopStrings::new([String::new()]).unwrap_err().to_string();
        assert_eq!(error, "a stop string is empty; it needs at least one character");
    }

    /// The text before the first stop string, character by character.
    fn expected(text: &str, strings: &[String]) -> String {
        for (at, char) in text.char_indices() {
            let so_far = &text[..at + char.len_utf8()];
            let ends = strings.iter().filter_map(|stop| so_far.strip_suffix(stop.as_str()));
            if let Some(before) = ends.min_by_key(|before| before.len()) {
                return before.to_owned();
            }
        }
        text.to_owned()
    }

    proptest! {
        /// The same text is passed on however it is divided, and every piece as soon as it cannot
        /// be part of a stop string.
        #[test]
        fn the_division_into_pieces_does_not_matter(
            pieces in prop::collection::vec("[ab\u{e9}]{0,4}", 0..8),
            strings in prop::collection::vec("[ab\u{e9}]{1,4}", 0..4),
        ) {
            let mut stops = StopStrings::new(strings.clone()).unwrap();
            let (mut shown, mut given) = (String::new(), String::new());
            let whole = pieces.concat();
            let expected = expected(&whole, &strings);
            for piece in &pieces {
                shown.push_str(&stops.push(piece));
                given.push_str(piece);
                prop_assert!(expected.starts_with(&shown));
                if !stops.is_stopped() {
                    let held = &given[shown.len()..];
                    let is_start = strings.iter().any(|stop| stop.starts_with(held));
                    prop_assert!(held.is_empty() || is_start, "{held:?} is held");
                }
            }
            let is_stopped = stops.is_stopped();
            shown.push_str(&stops.finish());
            prop_assert_eq!(is_stopped, strings.iter().any(|stop| whole.contains(stop.as_str())));
            prop_assert_eq!(shown, expected);
        }
    }
}
