//! Where a text may be cut so that its pieces have the ids of the whole.

use tokenizers::{PreTokenizerWrapper, Tokenizer as Library};
use twox_hash::XxHash3_64;

/// The length of the first piece of a text for any tokenizer: up to a line end between two visible
/// characters, behind which the usual pre-tokenizers cut as well.
pub(super) fn chunks(text: &str) -> usize {
    const CHUNK_BYTES: usize = 32 << 10;

    let bytes = text.as_bytes();
    let is_cut = |&at: &usize| {
        let visible = bytes[at - 2].is_ascii_graphic() && bytes[at].is_ascii_graphic();
        visible && bytes[at - 1] == b'\n'
    };
    (CHUNK_BYTES..bytes.len())
        .find(is_cut)
        .unwrap_or(bytes.len())
}

/// The length of the first piece of a text for GPT-2's pre-tokenizer: its pieces are one space at
/// most and then only letters, only digits or only signs, or else only white space, or an
/// apostrophe with letters. So none goes on from a letter or digit to anything else in ASCII, nor
/// from a sign to white space.
pub(super) fn words(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_cut = |&at: &usize| {
        let (before, behind) = (bytes[at - 1], bytes[at]);
        let ends_word =
            before.is_ascii_alphanumeric() && behind.is_ascii() && !behind.is_ascii_alphanumeric();
        let ends_signs = before.is_ascii_punctuation() && behind.is_ascii_whitespace();
        ends_word || ends_signs
    };
    (1..bytes.len()).find(is_cut).unwrap_or(bytes.len())
}

/// Whether a tokenizer sees no further than GPT-2's pre-tokenizer, as those that are trained here.
pub(super) fn cuts_words(library: &Library) -> bool {
    let pre_tokenizer = matches!(
        library.get_pre_tokenizer(),
        Some(PreTokenizerWrapper::ByteLevel(plain)) if plain.use_regex && !plain.add_prefix_space
    );
    let mut added = library.get_added_tokens_decoder().into_values();
    pre_tokenizer && library.get_normalizer().is_none() && added.all(|token| token.special)
}

/// All chunks if they are within `limit` bytes, else a share of them that is spread over the whole
/// text, by hash.
pub(super) fn training_sample<'t>(texts: &[&'t str], limit: usize) -> Vec<&'t str> {
    let total: usize = texts.iter().map(|text| text.len()).sum();
    let share = limit as f64 / total as f64;

    let mut all = Vec::new();
    for text in texts {
        let mut rest = *text;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(chunks(rest));
            all.push(chunk);
            rest = after;
        }
    }

    let is_taken = |index: usize, chunk: &str| {
        let hash = XxHash3_64::oneshot_with_seed(index as u64, chunk.as_bytes());
        (hash as f64 / u64::MAX as f64) < share
    };
    let numbered = all.into_iter().enumerate();
    numbered
        .filter(|&(index, chunk)| total <= limit || is_taken(index, chunk))
        .map(|(_, chunk)| chunk)
        .collect()
}
