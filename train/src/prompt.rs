//! Prompts from held-out text, for samples without a prompt of their own.

use std::ops::Range;

use twox_hash::XxHash3_64;

use crate::Result;
use crate::data::Data;
use crate::tokens::Tokens;

/// Ids that a prompt is taken from.
const IDS: usize = 64;

/// Characters of a prompt, up to the end of a word.
const CHARACTERS: usize = 40;

/// A prompt for the sample after `step`: the start of a line in the validation text, or in the
/// training text if nothing is held out; the question of an answer if only answers are trained. It
/// depends on the data, `seed` and `step` only.
///
/// # Errors
/// When the tokenizer fails.
pub fn held_out(data: &Data, seed: u64, step: u64) -> Result<String> {
    let validation = data.tokens.validation();
    let tokens = match validation.is_empty() {
        true => data.tokens.training(),
        false => validation,
    };
    let starts = tokens.len().saturating_sub(IDS) + 1;
    let hash = XxHash3_64::oneshot_with_seed(seed, &step.to_le_bytes());
    let start = (hash % starts as u64) as usize;

    if tokens.is_masked() {
        let ids = question(tokens, start, data.tokenizer.separator());
        return Ok(data.tokenizer.decode(&ids_of(tokens, ids))?);
    }
    let ids = ids_of(tokens, start..start + IDS);
    // The start of a document if there is one.
    let separator = data.tokenizer.separator();
    let after = ids.iter().position(|id| Some(*id) == separator);
    let ids = after.map_or(&ids[..], |at| &ids[at + 1..]);
    let text = data.tokenizer.decode(ids)?;
    let words = first_words(&text, after.is_some());
    // Some tokenizers cannot start from an empty prompt.
    Ok(if words.is_empty() {
        "\n".to_owned()
    } else {
        words
    })
}

fn ids_of(tokens: Tokens<'_>, range: Range<usize>) -> Vec<u32> {
    range.filter_map(|at| tokens.get(at)).collect()
}

/// The ids from the start of a conversation, or the last [`IDS`], up to the first answer after
/// `start`, or the first of all.
fn question(tokens: Tokens<'_>, start: usize, separator: Option<u32>) -> Range<usize> {
    let is_answer = |at: &usize| tokens.is_trained(*at) && (*at == 0 || !tokens.is_trained(at - 1));
    let answer = (start..tokens.len()).find(is_answer);
    let end = answer.or_else(|| (0..start).find(is_answer)).unwrap_or(0);
    let earliest = end.saturating_sub(IDS);
    let before = (earliest..end)
        .rev()
        .find(|at| tokens.get(*at) == separator);
    before.map_or(earliest, |at| at + 1)..end
}

/// The first words of a line of `text`; of its first line if the text is the start of a document.
fn first_words(text: &str, is_start: bool) -> String {
    let line = match text.split_once('\n') {
        Some((_, rest)) if !is_start && !rest.trim().is_empty() => rest,
        _ => text,
    };
    let line = line.trim_start();
    let line = line.lines().next().unwrap_or_default();
    let end = line
        .char_indices()
        .nth(CHARACTERS)
        .map_or(line.len(), |(at, _)| at);
    let cut = &line[..end];
    let whole = match cut.rfind(' ') {
        Some(at) if end < line.len() => &cut[..at],
        _ => cut,
    };
    whole
        .trim_end()
        .trim_end_matches(char::REPLACEMENT_CHARACTER)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{DataConfig, TokenizerChoice};
    use crate::run_folder::RunFolder;

    fn data(name: &str, text: &str) -> (tempfile::TempDir, Data) {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(name);
        fs::write(&path, text).unwrap();
        let config = DataConfig {
            paths: vec![path.to_string_lossy().into_owned()],
            tokenizer: TokenizerChoice::Byte,
            val_fraction: 0.5,
            ..DataConfig::default()
        };
        let folder = RunFolder::open(&place.path().join("run")).unwrap();
        let data = Data::prepare(&config, &folder).unwrap();
        (place, data)
    }

    #[test]
    fn prompts_are_words_of_held_out_lines() {
        let text: String = (1000..1400)
            .map(|line| format!("line {line} has words\n"))
            .collect();
        let (_place, data) = data("a.txt", &text);
        let ids: Vec<u32> = data.tokens.validation().iter().collect();
        let held_out_text = data.tokenizer.decode(&ids).unwrap();
        let mut prompts = Vec::new();
        for step in 0..50 {
            let prompt = held_out(&data, 1, step).unwrap();
            assert!(
                !prompt.is_empty() && held_out_text.contains(&prompt),
                "{prompt:?}"
            );
            assert_eq!(prompt, held_out(&data, 1, step).unwrap());
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
            assert_eq!(prompt, "user:\nWhy?\n\nassistant:\n");
        }
    }

    #[test]
    fn a_prompt_ends_with_a_word() {
        let long = "one two three four five six seven eight nine ten";
        assert_eq!(
            first_words(long, true),
            "one two three four five six seven eight"
        );
        assert_eq!(first_words("ne\nfn main() {\n    x", false), "fn main() {");
        assert_eq!(first_words("no newline", false), "no newline");
        assert_eq!(first_words("\n \n", false), "");
    }
}
