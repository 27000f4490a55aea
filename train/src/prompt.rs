//! Prompts, which generated texts continue. Samples without a prompt of their own get one from
//! held-out text.

use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::data::Data;
use crate::tokenizer::Tokenizer;
use crate::tokens::Tokens;
use crate::{Result, chat};

/// The start of a generated text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// The ids.
    pub ids: Vec<u32>,
    /// The text of the ids, without special tokens.
    pub text: String,
    /// The string that ends the continuation, if no token does.
    pub stop: Option<String>,
}

impl Prompt {
    /// A prompt of `text`. The spelling of a special token in it is plain text. An empty text
    /// starts a new document.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn new(tokenizer: &Tokenizer, text: &str) -> Result<Prompt> {
        Ok(Prompt { ids: tokenizer.encode(text)?, text: text.to_owned(), stop: None })
    }

    /// A conversation with the message `text` of a user, up to the start of the answer, in the
    /// format of [`chat`]. Special tokens come from the format, never from `text`.
    ///
    /// # Errors
    /// When the tokenizer fails.
    pub fn chat(tokenizer: &Tokenizer, text: &str) -> Result<Prompt> {
        Prompt::of_question(tokenizer, chat::question(tokenizer, text)?)
    }

    /// The ids of a conversation up to the start of an answer.
    fn of_question(tokenizer: &Tokenizer, ids: Vec<u32>) -> Result<Prompt> {
        Ok(Prompt { text: tokenizer.decode(&ids)?, ids, stop: chat::end_of_answer(tokenizer) })
    }
}

/// The number of ids that a prompt is taken from.
const IDS: usize = 64;

/// The maximum number of ids of a conversation before an answer.
const QUESTION_IDS: usize = 512;

/// The maximum number of characters of a prompt, which ends with a whole word.
const CHARACTERS: usize = 40;

/// A prompt for the sample after `step`, from the validation text, or from the training text if
/// nothing is held out. It is the start of a line or, if there are conversations, one of them up to
/// an answer. It depends on the data, `seed` and `step` only, and is never empty.
///
/// # Errors
/// When the tokenizer fails.
pub fn held_out(data: &Data, seed: u64, step: u64) -> Result<Prompt> {
    let validation = data.tokens.validation();
    let tokens = match validation.is_empty() {
        true => data.tokens.training(),
        false => validation,
    };
    let starts = tokens.len().saturating_sub(IDS) + 1;
    let hash = XxHash3_64::oneshot_with_seed(seed, &step.to_le_bytes());
    let start = (hash % starts as u64) as usize;

    let (tokenizer, separator) = (&data.tokenizer, data.tokenizer.separator());
    if let Some(question) = question(tokens, start) {
        return Prompt::of_question(tokenizer, ids_of(tokens, question));
    }
    let ids = ids_of(tokens, start..start + IDS);
    // Skip to the start of a document, if there is one.
    let after = ids.iter().position(|id| Some(*id) == separator);
    let ids = after.map_or(&ids[..], |at| &ids[at + 1..]);
    let words = first_words(&tokenizer.decode(ids)?, after.is_some());
    // Some tokenizers cannot start from an empty prompt.
    let words = if words.is_empty() { "\n" } else { &words };
    Prompt::new(tokenizer, words)
}

fn ids_of(tokens: Tokens<'_>, range: Range<usize>) -> Vec<u32> {
    range.filter_map(|at| tokens.get(at)).collect()
}

/// The ids before an answer, from the start of its conversation, but at most [`QUESTION_IDS`];
/// never empty. The answer is the first after `start`, or the first of all if none follows; `None`
/// if there is none.
fn question(tokens: Tokens<'_>, start: usize) -> Option<Range<usize>> {
    if !tokens.is_masked() {
        return None;
    }
    // A document that starts with a trained id is not a conversation.
    let is_template = |at: usize| !tokens.is_trained(at) && !tokens.is_start(at + 1);
    let is_answer =
        |at: &usize| tokens.is_trained(*at) && at.checked_sub(1).is_some_and(is_template);
    let answer = (start..tokens.len()).find(is_answer);
    let end = answer.or_else(|| (0..start).find(is_answer))?;
    let earliest = end.saturating_sub(QUESTION_IDS);
    let start = (earliest..end).rev().find(|at| tokens.is_start(*at));
    Some(start.unwrap_or(earliest)..end)
}

/// The first words of the first whole line of `text`. If `is_start`, the first line is whole,
/// because a document starts there.
fn first_words(text: &str, is_start: bool) -> String {
    let line = match text.split_once('\n') {
        Some((_, rest)) if !is_start && !rest.trim().is_empty() => rest,
        _ => text,
    };
    let line = line.trim_start();
    let line = line.lines().next().unwrap_or_default();
    let end = line.char_indices().nth(CHARACTERS).map_or(line.len(), |(at, _)| at);
    let cut = &line[..end];
    let whole = match cut.rfind(' ') {
        Some(at) if end < line.len() => &cut[..at],
        _ => cut,
    };
    whole.trim_end().trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{DataConfig, TokenizerChoice};
    use crate::run_folder::RunFolder;

    fn data(name: &str, text: &str) -> (tempfile::TempDir, Data) {
        data_with(name, text, 0.5)
    }

    fn data_with(name: &str, text: &str, val_fraction: f64) -> (tempfile::TempDir, Data) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        let config = DataConfig {
            paths: vec![path.to_string_lossy().into_owned()],
            tokenizer: TokenizerChoice::Byte,
            val_fraction,
            ..DataConfig::default()
        };
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let data = Data::prepare(&config, &folder).unwrap();
        (place, data)
    }

    #[test]
    fn prompts_are_words_of_held_out_lines() {
        let text: String = (1000..1400).map(|line| format!("line {line} has words\n")).collect();
        let (_place, data) = data("a.txt", &text);
        let ids: Vec<u32> = data.tokens.validation().iter().collect();
        let held_out_text = data.tokenizer.decode(&ids).unwrap();
        let mut prompts = Vec::new();
        for step in 0..50 {
            let found = held_out(&data, 1, step).unwrap();
            assert_eq!(found, held_out(&data, 1, step).unwrap());
            let prompt = found.text;
            assert!(!prompt.is_empty() && held_out_text.contains(&prompt), "{prompt:?}");
            prompts.push(prompt);
        }
        let lines = prompts.iter().filter(|prompt| prompt.starts_with("line 1"));
        assert!(lines.count() > 40, "{prompts:?}");
        prompts.dedup();
        assert!(prompts.len() > 40, "{prompts:?}");
    }

    #[test]
    fn prompts_of_conversations_are_questions() {
        let line = r#"{"messages": [{"role": "user", "content": "Why?"},
                     {"role": "assistant", "content": "Because."}]}"#;
        let line = line.replace('\n', " ") + "\n";
        let (_place, data) = data("a.jsonl", &line.repeat(20));
        for step in 0..20 {
            let prompt = held_out(&data, 1, step).unwrap();
            assert_eq!(prompt.text, "user:\nWhy?\n\nassistant:\n");
            let same = Prompt::chat(&data.tokenizer, "Why?").unwrap();
            assert_eq!(prompt, same);
        }
    }

    /// A question has the earlier turns of its conversation, and nothing of other documents.
    #[test]
    fn prompts_of_conversations_have_the_earlier_turns() {
        let turn =
            |role: &str, content: &str| serde_json::json!({"role": role, "content": content});
        let messages = [
            turn("system", "Be brief."),
            turn("user", "Which planet is the largest of all?"),
            turn("assistant", "Jupiter."),
            turn("user", "And the smallest?"),
            turn("assistant", "Mercury."),
        ];
        let line = serde_json::json!({ "messages": messages }).to_string() + "\n";
        let text = "{\"text\": \"\\n\\na text that starts with an empty line\"}\n";
        let (_place, data) = data("a.jsonl", &(line + text).repeat(20));
        let first = "system:\nBe brief.\n\nuser:\nWhich planet is the largest of all?\n\n\
                     assistant:\n";
        let second = format!("{first}Jupiter.\n\nuser:\nAnd the smallest?\n\nassistant:\n");
        let mut found: Vec<String> =
            (0..40).map(|step| held_out(&data, 1, step).unwrap().text).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, [first, second.as_str()]);
    }

    /// Prompts are never empty, even if conversations and other documents are mixed.
    #[test]
    fn prompts_of_masked_data_are_never_empty() {
        let messages =
            r#"[{"role": "user", "content": ""}, {"role": "assistant", "content": "So."}]"#;
        let text = "{\"text\": \"some words of a text\"}\n".repeat(20);
        let conversation = format!("{{\"messages\": {messages}}}\n");
        let mixed = conversation.clone() + &text;
        let empty_start = format!("{conversation}{text}{conversation}");
        for lines in [&mixed, &empty_start, &text] {
            for val_fraction in [0.0, 0.3, 0.5] {
                let (_place, data) = data_with("a.jsonl", lines, val_fraction);
                for step in 0..40 {
                    let prompt = held_out(&data, 1, step).unwrap();
                    assert!(!prompt.ids.is_empty() && !prompt.text.is_empty());
                }
            }
        }
    }

    #[test]
    fn a_prompt_ends_with_a_word() {
        let long = "one two three four five six seven eight nine ten";
        assert_eq!(first_words(long, true), "one two three four five six seven eight");
        assert_eq!(first_words("ne\nfn main() {\n    x", false), "fn main() {");
        assert_eq!(first_words("no newline", false), "no newline");
        assert_eq!(first_words("\n \n", false), "");
    }
}
