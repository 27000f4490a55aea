//! Conversations as ids. The loss counts only the assistant's answers and the token that ends each
//! answer.
//!
//! A tokenizer that has the tokens `<|im_start|>` and `<|im_end|>` uses ChatML. The separator of
//! documents follows the last message:
//!
//! ```text
//! <|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\nBecause.<|im_end|>\n
//! ```
//!
//! Any other tokenizer uses a plain format, in which the separator ends an answer:
//!
//! ```text
//! user:\nWhy?\n\nassistant:\nBecause.<|endoftext|>
//! ```
//!
//! Contents are encoded on their own, so that no token mixes trained and untrained text.

use meshgrad_error::Result;

use crate::corpus::{ASSISTANT, Document, Turn};
use crate::tokenizer::Tokenizer;

/// Separates two messages in the plain format.
pub(crate) const BETWEEN: &str = "\n\n";

/// The ids of a conversation.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// The ids.
    pub ids: Vec<u32>,
    /// Whether the loss counts the prediction of each id.
    pub trained: Vec<bool>,
    /// Bytes of the text that is trained.
    pub trained_bytes: u64,
}

/// The ids of `document`, which is a conversation, followed by the separator of documents.
///
/// # Errors
/// When the tokenizer fails.
pub fn encode(tokenizer: &Tokenizer, document: &Document) -> Result<Conversation> {
    let mut to = Conversation::default();
    match chat_ml(tokenizer) {
        Some((start, end)) => to.chat_ml(tokenizer, document, start, end)?,
        None => to.plain(tokenizer, document)?,
    }
    Ok(to)
}

/// The tokens that start and end a message in ChatML.
fn chat_ml(tokenizer: &Tokenizer) -> Option<(u32, u32)> {
    Some((tokenizer.id("<|im_start|>")?, tokenizer.end_of_message()?))
}

/// The ids of a conversation with the message `text` of a user, up to the start of the answer.
pub(crate) fn question(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let turn = |role: &str, bytes| Turn { role: role.to_owned(), bytes };
    let mut document = Document::new(String::new(), text.to_owned());
    document.turns = vec![turn("user", 0..text.len()), turn(ASSISTANT, text.len()..text.len())];
    // The answer is empty, so the first trained id is its end.
    let conversation = encode(tokenizer, &document)?;
    let answer = conversation.trained.iter().position(|trained| *trained);
    let mut ids = conversation.ids;
    ids.truncate(answer.unwrap_or(ids.len()));
    Ok(ids)
}

/// The string that ends an answer; `None` if a token does.
pub(crate) fn end_of_answer(tokenizer: &Tokenizer) -> Option<String> {
    let is_token = chat_ml(tokenizer).is_some() || tokenizer.separator().is_some();
    (!is_token).then(|| BETWEEN.to_owned())
}

impl Conversation {
    fn chat_ml(
        &mut self,
        tokenizer: &Tokenizer,
        document: &Document,
        start: u32,
        end: u32,
    ) -> Result<()> {
        for turn in &document.turns {
            let is_answer = turn.role == ASSISTANT;
            self.push([start], false);
            self.text(tokenizer, &format!("{}\n", turn.role), false)?;
            self.text(tokenizer, &document.text[turn.bytes.clone()], is_answer)?;
            self.push([end], is_answer);
            self.text(tokenizer, "\n", false)?;
        }
        self.push(tokenizer.separator(), false);
        Ok(())
    }

    fn plain(&mut self, tokenizer: &Tokenizer, document: &Document) -> Result<()> {
        let separator = tokenizer.separator();
        for (index, turn) in document.turns.iter().enumerate() {
            let (is_answer, is_last) = (turn.role == ASSISTANT, index + 1 == document.turns.len());
            self.text(tokenizer, &format!("{}:\n", turn.role), false)?;
            self.text(tokenizer, &document.text[turn.bytes.clone()], is_answer)?;
            if is_answer || is_last {
                self.push(separator, is_answer);
            }
            if !is_last {
                // Without a separator, the empty line ends the answer.
                self.text(tokenizer, BETWEEN, is_answer && separator.is_none())?;
            }
        }
        Ok(())
    }

    fn text(&mut self, tokenizer: &Tokenizer, text: &str, is_trained: bool) -> Result<()> {
        self.push(tokenizer.encode(text)?, is_trained);
        if is_trained {
            self.trained_bytes += text.len() as u64;
        }
        Ok(())
    }

    fn push(&mut self, ids: impl IntoIterator<Item = u32>, is_trained: bool) {
        self.ids.extend(ids);
        self.trained.resize(self.ids.len(), is_trained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(messages: &[(&str, &str)]) -> Document {
        let mut document = Document::new("it".to_owned(), String::new());
        for (role, content) in messages {
            let start = document.text.len();
            document.text.push_str(content);
            document
                .turns
                .push(Turn { role: (*role).to_owned(), bytes: start..document.text.len() });
        }
        document
    }

    /// The text of all ids, or only of the trained ones if `trained`. The separator is shown as
    /// `|`.
    fn shown(found: &Conversation, trained: bool) -> String {
        let ids = found.ids.iter().zip(&found.trained);
        let ids = ids.filter(|(_, is_trained)| !trained || **is_trained);
        let char = |(id, _): (&u32, &bool)| u8::try_from(*id).map_or('|', char::from);
        ids.map(char).collect()
    }

    #[test]
    fn the_plain_format_trains_answers_and_their_end() {
        let document = conversation(&[
            ("system", "Short."),
            ("user", "Why?"),
            ("assistant", "Because."),
            ("user", "And?"),
            ("assistant", "So."),
        ]);
        let found = encode(&Tokenizer::byte(), &document).unwrap();
        let text = "system:\nShort.\n\nuser:\nWhy?\n\nassistant:\nBecause.|\n\n\
                    user:\nAnd?\n\nassistant:\nSo.|";
        assert_eq!(shown(&found, false), text);
        assert_eq!(shown(&found, true), "Because.|So.|");
        assert_eq!(found.trained_bytes, 11);

        let asked = question(&Tokenizer::byte(), "Why?").unwrap();
        let asked = Tokenizer::byte().decode(&asked).unwrap();
        assert_eq!(asked, "user:\nWhy?\n\nassistant:\n");
        assert_eq!(end_of_answer(&Tokenizer::byte()), None);

        let open = conversation(&[("assistant", "Hi."), ("user", "Bye")]);
        let found = encode(&Tokenizer::byte(), &open).unwrap();
        assert_eq!(shown(&found, false), "assistant:\nHi.|\n\nuser:\nBye|");
        assert_eq!(shown(&found, true), "Hi.|");
    }

    /// A tokenizer with ChatML's tokens uses their ids; their spelling in a message is plain text.
    #[cfg(feature = "tokenizers")]
    #[test]
    fn a_tokenizer_with_chat_ml_uses_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("tokenizer.json");
        let byte = Tokenizer::byte().to_json().unwrap();
        let mut json: serde_json::Value = serde_json::from_str(&byte).unwrap();
        let added = json["added_tokens"].as_array_mut().unwrap();
        for (id, name) in [(257, "<|im_start|>"), (258, "<|im_end|>")] {
            let mut token = added[0].clone();
            (token["id"], token["content"]) = (id.into(), name.into());
            added.push(token);
        }
        std::fs::write(&path, json.to_string()).unwrap();
        let tokenizer = Tokenizer::from_file(&path).unwrap();

        let document = conversation(&[("user", "<|im_end|>"), ("assistant", "No.")]);
        let found = encode(&tokenizer, &document).unwrap();
        let plain = |text: &str| tokenizer.encode(text).unwrap();
        let expected = [
            (vec![257], false),
            (plain("user\n<|im_end|>"), false),
            (vec![258], false),
            (plain("\n"), false),
            (vec![257], false),
            (plain("assistant\n"), false),
            (plain("No."), true),
            (vec![258], true),
            (plain("\n"), false),
            (vec![256], false),
        ];
        let ids: Vec<u32> = expected.iter().flat_map(|(ids, _)| ids.clone()).collect();
        let trained: Vec<bool> =
            expected.iter().flat_map(|(ids, trained)| vec![*trained; ids.len()]).collect();
        assert_eq!((&found.ids, &found.trained), (&ids, &trained));
        assert!(!plain("<|im_end|>").contains(&258));
        // A prompt has these ids up to the answer.
        let ids = question(&tokenizer, "<|im_end|>").unwrap();
        assert!(found.ids.starts_with(&ids));
        assert_eq!(ids.iter().filter(|id| **id == 258).count(), 1);
        assert!(found.ids[ids.len()..].starts_with(&plain("No.")));

        let ends = (0..259).filter(|id| tokenizer.ends_text(*id));
        assert_eq!(ends.collect::<Vec<u32>>(), [256, 258]);
    }
}
