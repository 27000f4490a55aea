//! The range of keys that each query sees, by document and position.

use meshgrad_error::ensure;

use crate::cpu::{for_blocks, index_out_of_range};
use crate::launch::attention as launch;
use crate::ops::contiguous;
use crate::{Result, Signature, Tensor};

static VISIBLE_KEYS: Signature =
    Signature::new("visible_keys", "queries: i64[b t], keys: i64[b s!] -> ranges: i32[b t 2]", 0);

static TOKEN_WORDS: Signature =
    Signature::new("token_words", "documents: i64[..], positions: i64[..] -> words: i64[..]", 0);

pub(super) static SIGNATURES: &[&Signature] = &[&TOKEN_WORDS, &VISIBLE_KEYS];

/// Document and position of a token are the high and the low 32 bits of one word.
const POSITIONS: u64 = 1 << 32;

/// Exclusive upper bounds of documents and of positions.
const LIMITS: [usize; 2] = [1 << 31, POSITIONS as usize];

/// Queries per task.
const BLOCK: usize = 1024;

/// document * 2^32 + position: the word of each token, for [`visible_keys`].
///
/// # Shapes
/// `documents` and `positions` i64 of one shape; returns the same.
///
/// # Errors
/// When a document is not in 0..2^31, or a position not in 0..2^32. A GPU reads 0 for it and reports
/// it at the next synchronization.
pub fn token_words(documents: &Tensor, positions: &Tensor) -> Result<Tensor> {
    let mut call = TOKEN_WORDS.call(&[documents, positions])?;
    let mut words = call.output(0)?;
    let (documents, positions) = (contiguous(documents)?, contiguous(positions)?);
    if call.device().is_gpu() {
        call.launch(|gpu| launch::token_words(gpu, [&documents, &positions], LIMITS, &words))?;
        return Ok(words.finish());
    }
    let name = call.name();
    call.compute(|| {
        let (of_documents, of_positions) = (documents.read::<i64>()?, positions.read::<i64>()?);
        let of_documents = documents.elements_of(&of_documents);
        let of_positions = positions.elements_of(&of_positions);
        let tokens = of_documents.iter().zip(of_positions).enumerate();
        for ((at, (document, position)), word) in tokens.zip(words.slice::<i64>()?) {
            for (value, limit) in [*document, *position].into_iter().zip(LIMITS) {
                if !(0..limit as i64).contains(&value) {
                    return Err(index_out_of_range(name, value, at, limit));
                }
            }
            *word = (document << 32) + position;
        }
        Ok(())
    })?;
    Ok(words.finish())
}

/// The range of keys that each query sees: those of its document whose position is at most the
/// query's and, with a window, above the query's position - `window`. The result is an
/// [`AttentionSequences::Ranges`](super::AttentionSequences::Ranges).
///
/// A token is one word of [`token_words`]. Those of keys must ascend along each row; they can be equal.
/// Only documents and positions matter, not the places of tokens in their row, so keys can be another
/// part of the sequence than the queries. Padding can be a document of its own.
///
/// # Shapes
/// `queries` [B, T] and `keys` [B, S] i64; returns i32 [B, T, 2], the first key and the end. `queries`
/// can be sharded along B and T, `keys` along B.
///
/// # Errors
/// For 2^31 keys or more. For keys with descending words on a CPU; on a GPU their ranges are
/// unspecified, and within 0..S.
pub fn visible_keys(queries: &Tensor, keys: &Tensor, window: Option<usize>) -> Result<Tensor> {
    let mut call = VISIBLE_KEYS.call(&[queries, keys])?;
    let mut ranges = call.output(0)?;
    let (t, s) = (call.extent("t"), call.extent("s"));
    let name = call.name();
    ensure!(i32::try_from(s).is_ok(), Invalid, "{name}: {s} keys exceed the limit of 2^31 - 1");
    let window = window.map_or(POSITIONS, |window| (window as u64).min(POSITIONS));
    let (queries, keys) = (contiguous(queries)?, contiguous(keys)?);
    if call.device().is_gpu() {
        call.launch(|gpu| launch::visible_keys(gpu, [&queries, &keys], window, &ranges))?;
        return Ok(ranges.finish());
    }
    call.compute(|| {
        let (of_queries, of_keys) = (queries.read::<i64>()?, keys.read::<i64>()?);
        let of_queries = queries.elements_of(&of_queries);
        let of_keys = keys.elements_of(&of_keys);
        check_ascend(name, of_keys, s)?;
        for_blocks(ranges.slice()?, 2 * BLOCK, |start, ranges: &mut [i32]| {
            for (at, range) in (start / 2..).zip(ranges.as_chunks_mut().0) {
                let row = &of_keys[at / t * s..][..s];
                *range = visible(of_queries[at], row, window).map(|key| key as i32);
            }
        });
        Ok(())
    })?;
    Ok(ranges.finish())
}

/// The range of the keys of one row that a query sees.
fn visible(query: i64, row: &[i64], window: u64) -> [usize; 2] {
    let end = row.partition_point(|key| *key <= query);
    let Some(before) = window.checked_sub(1) else {
        return [end, end];
    };
    let before = before.min(query as u64 % POSITIONS);
    [row.partition_point(|key| *key < query - before as i64), end]
}

fn check_ascend(op: &str, keys: &[i64], per_row: usize) -> Result<()> {
    for (row, words) in keys.chunks(per_row.max(1)).enumerate() {
        for (at, pair) in (1..).zip(words.windows(2)) {
            let [before, word] = [pair[0], pair[1]];
            ensure!(
                before <= word,
                Invalid,
                "{op}: key {at} of row {row} is the word {word} after {before}; sort keys by document and \
                 position"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_words_do_not_overflow() {
        for word in [i64::MIN, -1, 0, i64::MAX] {
            assert_eq!(visible(word, &[word, word], 1), [0, 2]);
            assert_eq!(visible(word, &[word, word], POSITIONS), [0, 2]);
            assert_eq!(visible(word, &[word, word], 0), [2, 2]);
        }
    }
}
