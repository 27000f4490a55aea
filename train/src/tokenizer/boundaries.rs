//! Splits a text into pieces that have the same ids as the whole.

use twox_hash::XxHash3_64;

/// The length of the first piece of a text for any tokenizer. It ends after a newline between two
/// visible characters, where the usual pre-tokenizers split too.
pub(super) fn next_chunk(text: &str) -> usize {
    const CHUNK_BYTES: usize = 32 << 10;

    let bytes = text.as_bytes();
    let is_boundary = |&at: &usize| {
        let visible = bytes[at - 2].is_ascii_graphic() && bytes[at].is_ascii_graphic();
        visible && bytes[at - 1] == b'\n'
    };
    (CHUNK_BYTES..bytes.len()).find(is_boundary).unwrap_or(bytes.len())
}

/// The length of the first piece of a text for GPT-2's pre-tokenizer. Its pieces are an optional
/// space followed by only letters, only digits or only punctuation; or only white space; or an
/// apostrophe with letters. No piece continues from a letter or digit to another kind of ASCII
/// character, nor from punctuation to white space.
pub(super) fn next_word(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_boundary = |&at: &usize| {
        let (before, after) = (bytes[at - 1], bytes[at]);
        let ends_word =
            before.is_ascii_alphanumeric() && after.is_ascii() && !after.is_ascii_alphanumeric();
        let ends_punctuation = before.is_ascii_punctuation() && after.is_ascii_whitespace();
        ends_word || ends_punctuation
    };
    (1..bytes.len()).find(is_boundary).unwrap_or(bytes.len())
}

/// All chunks if they fit into `limit` bytes, otherwise a fraction of them. The chunks are selected
/// by hash, so they come from the whole text.
pub(super) fn training_sample<'t>(texts: &[&'t str], limit: usize) -> Vec<&'t str> {
    let total: usize = texts.iter().map(|text| text.len()).sum();
    let share = limit as f64 / total as f64;

    let mut all = Vec::new();
    for text in texts {
        let mut rest = *text;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(next_chunk(rest));
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
