//! Streamed decoding.

use super::{Result, Tokenizer};

impl Tokenizer {
    /// A decoder that takes one id at a time.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream { tokenizer: self, ids: Vec::new(), shown: String::new(), pending: 0 }
    }
}

/// Decodes ids one by one. A character whose bytes span several ids is returned with the last of
/// them. The concatenation of all pieces equals [`Tokenizer::decode`] of all ids.
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The ids since the text was last complete, and the ids of the piece before them, because some
    /// decoders look back.
    ids: Vec<u32>,
    /// The part of the text of `ids` that was returned.
    shown: String,
    /// How many of `ids` were added since the text was last complete.
    pending: usize,
}

impl DecodeStream<'_> {
    /// Adds an id and returns the text that is now complete; it may be empty.
    ///
    /// # Errors
    /// When the library fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        self.pending += 1;
        let text = self.tokenizer.decode(&self.ids)?;

        let complete = complete(&text);
        let piece = complete.get(self.shown.len()..).unwrap_or_default().to_owned();
        if complete.len() == text.len() {
            self.ids.drain(..self.ids.len() - self.pending);
            self.pending = 0;
            self.shown = self.tokenizer.decode(&self.ids)?;
        } else {
            self.shown = complete.to_owned();
        }
        Ok(piece)
    }

    /// Returns the remaining text, with U+FFFD for incomplete characters.
    ///
    /// # Errors
    /// When the library fails.
    pub fn finish(self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids)?;
        Ok(text.get(self.shown.len()..).unwrap_or_default().to_owned())
    }
}

/// The text without an end that later ids may change. A character has at most four bytes, so at
/// most three replacement characters may still become one.
fn complete(text: &str) -> &str {
    let mut complete = text;
    for _ in 0..3 {
        complete = complete.strip_suffix(char::REPLACEMENT_CHARACTER).unwrap_or(complete);
    }
    complete
}
