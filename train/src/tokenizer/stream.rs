//! Text from ids as they come.

use super::{Result, Tokenizer};

impl Tokenizer {
    /// A decoder that takes one id at a time.
    pub fn stream(&self) -> DecodeStream<'_> {
        DecodeStream {
            tokenizer: self,
            ids: Vec::new(),
            shown: String::new(),
            pending: 0,
        }
    }
}

/// Text from ids one by one. A character whose bytes are spread over several ids comes with the
/// last of them. All pieces together are what [`Tokenizer::decode`] gives for all ids.
pub struct DecodeStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The ids since the text was last whole, and those of the piece before, since some decoders
    /// look back.
    ids: Vec<u32>,
    /// The part of the text of `ids` that was given out.
    shown: String,
    /// How many of `ids` are new since the text was last whole.
    pending: usize,
}

impl DecodeStream<'_> {
    /// The text that is now certain; often empty.
    ///
    /// # Errors
    /// [`super::TokenizerError::Use`].
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        self.pending += 1;
        let text = self.tokenizer.decode(&self.ids)?;

        let certain = certain(&text);
        let piece = certain
            .get(self.shown.len()..)
            .unwrap_or_default()
            .to_owned();
        if certain.len() == text.len() {
            self.ids.drain(..self.ids.len() - self.pending);
            self.pending = 0;
            self.shown = self.tokenizer.decode(&self.ids)?;
        } else {
            self.shown = certain.to_owned();
        }
        Ok(piece)
    }

    /// What is still held, lossy.
    ///
    /// # Errors
    /// [`super::TokenizerError::Use`].
    pub fn finish(self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids)?;
        Ok(text.get(self.shown.len()..).unwrap_or_default().to_owned())
    }
}

/// The text without the end that the next ids may change: a character has at most four bytes, so
/// that at most three replacement characters may still become one.
fn certain(text: &str) -> &str {
    let mut certain = text;
    for _ in 0..3 {
        certain = certain
            .strip_suffix(char::REPLACEMENT_CHARACTER)
            .unwrap_or(certain);
    }
    certain
}
