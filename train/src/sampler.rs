//! The batches of a run: which windows of the token stream each step trains on.
//!
//! The stream is divided into windows of `seq_len` tokens. Each epoch visits every window once, in
//! an order that depends only on seed and epoch: a Feistel network over the window index. A batch
//! is therefore a pure function of seed and step. There is no state to save, and each rank computes
//! its own rows.

use std::ops::Range;

/// The reason why there are no batches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The text is shorter than one window.
    #[error(
        "the {part} text has {tokens} tokens but train.seq_len = {seq_len} needs {}; \
         add text, change data.val_fraction or set train.seq_len to at most {}",
        seq_len + 1,
        tokens.saturating_sub(1)
    )]
    TooShort {
        /// `training` or `validation`.
        part: &'static str,
        /// Tokens of the text.
        tokens: usize,
        /// Tokens per sequence.
        seq_len: usize,
    },

    /// A window ends after the text, so it is not a window of this text.
    #[error("the text has no token {position}; its windows were computed for a longer text")]
    OutOfRange {
        /// The position, from 0.
        position: usize,
    },
}

/// The windows of a token stream. Window `w` has inputs `[w L, w L + L)`, and labels shifted by one
/// token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    seq_len: usize,
    count: usize,
}

impl Windows {
    /// Divides `tokens` tokens into windows of `seq_len`. Up to `seq_len` tokens at the end are not
    /// used. `part` (`training`, `validation`) names the stream in the error.
    ///
    /// # Errors
    /// [`SamplerError::TooShort`] for fewer than `seq_len + 1` tokens.
    pub fn new(part: &'static str, tokens: usize, seq_len: usize) -> Result<Self, SamplerError> {
        let count = tokens.saturating_sub(1).checked_div(seq_len).unwrap_or(0);
        match count {
            0 => Err(SamplerError::TooShort {
                part,
                tokens,
                seq_len,
            }),
            count => Ok(Self { seq_len, count }),
        }
    }

    /// Number of windows, at least 1.
    pub fn count(self) -> usize {
        self.count
    }

    /// The tokens of a window, one more than `seq_len`: inputs are all but the last, labels all but
    /// the first.
    pub fn tokens(self, window: usize) -> Range<usize> {
        let start = window * self.seq_len;
        start..start + self.seq_len + 1
    }
}

/// Inputs and labels, row by row, [rows, seq_len].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Input tokens.
    pub input_ids: Vec<i64>,
    /// The token that follows each of `input_ids`, aligned by position.
    pub labels: Vec<i64>,
    /// Sequences.
    pub rows: usize,
    /// Tokens per sequence.
    pub seq_len: usize,
}

impl Batch {
    /// Gathers `windows` from a stream; `token` returns the id at a position, `None` past the end.
    ///
    /// # Errors
    /// [`SamplerError::OutOfRange`].
    pub fn gather(
        grid: Windows,
        windows: impl IntoIterator<Item = usize>,
        token: impl Fn(usize) -> Option<u32>,
    ) -> Result<Self, SamplerError> {
        let mut batch = Self {
            input_ids: Vec::new(),
            labels: Vec::new(),
            rows: 0,
            seq_len: grid.seq_len,
        };

        for window in windows {
            let id = |at| token(at).ok_or(SamplerError::OutOfRange { position: at });
            let tokens = grid.tokens(window).map(|at| id(at).map(i64::from));
            let tokens = tokens.collect::<Result<Vec<i64>, _>>()?;
            batch.input_ids.extend(&tokens[..grid.seq_len]);
            batch.labels.extend(&tokens[1..]);
            batch.rows += 1;
        }
        Ok(batch)
    }
}

/// The order of training windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    windows: usize,
    seed: u64,
    batch_size: usize,
}

impl Order {
    /// `batch_size` windows per step over all ranks, taken from `windows`.
    pub fn new(windows: Windows, batch_size: usize, seed: u64) -> Self {
        Self {
            windows: windows.count,
            seed,
            batch_size,
        }
    }

    /// The window in row `row` of the batch of `step` (from 1).
    pub fn window(&self, step: u64, row: usize) -> usize {
        let sample = u128::from(step.saturating_sub(1)) * self.batch_size as u128 + row as u128;
        let epoch = (sample / self.windows as u128) as u64;
        let position = (sample % self.windows as u128) as u64;

        permute(position, self.windows as u64, mix(self.seed, epoch)) as usize
    }

    /// The windows of some rows of the batch of `step`, such as those of a microbatch or a rank.
    pub fn windows(&self, step: u64, rows: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        rows.map(move |row| self.window(step, row))
    }
}

/// The windows of validation batch `batch` (from 0). Batches cover all windows in order; the last
/// one may be shorter, and later ones are empty.
pub fn validation_windows(windows: Windows, batch_size: usize, batch: usize) -> Range<usize> {
    let start = batch.saturating_mul(batch_size).min(windows.count);
    start..start.saturating_add(batch_size).min(windows.count)
}

/// A permutation of `0..count`: a balanced Feistel network (Luby & Rackoff 1988) over the next
/// power of four, applied until the result is below `count` (cycle walking).
fn permute(index: u64, count: u64, key: u64) -> u64 {
    const ROUNDS: u64 = 4;

    let bits = u64::BITS - (count - 1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1 << half) - 1;

    let mut value = index;
    loop {
        let (mut left, mut right) = (value >> half, value & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key ^ round, right) & mask));
        }
        value = left << half | right;
        if value < count {
            return value;
        }
    }
}

/// Mixes two words into one: the finalizer of SplitMix64 (Steele, Lea & Flood 2014) over both.
fn mix(a: u64, b: u64) -> u64 {
    let finish = |mut z: u64| {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let step = |z: u64| finish(z.wrapping_add(0x9e37_79b9_7f4a_7c15));
    step(step(a) ^ b)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_the_next_tokens() {
        let grid = Windows::new("training", 11, 3).unwrap();
        assert_eq!(grid.count(), 3);

        let batch = Batch::gather(grid, [0, 2], |at| Some(at as u32 * 10)).unwrap();
        assert_eq!(batch.input_ids, [0, 10, 20, 60, 70, 80]);
        assert_eq!(batch.labels, [10, 20, 30, 70, 80, 90]);
        assert_eq!((batch.rows, batch.seq_len), (2, 3));

        let short = Batch::gather(grid, [2], |at| (at < 9).then_some(0));
        assert_eq!(short, Err(SamplerError::OutOfRange { position: 9 }));
    }

    #[test]
    fn a_short_text_is_an_error_with_both_numbers() {
        let error = Windows::new("validation", 256, 256)
            .unwrap_err()
            .to_string();
        assert!(error.contains("validation text has 256 tokens"), "{error}");
        assert!(error.contains("needs 257"), "{error}");
        assert!(error.contains("at most 255"), "{error}");

        assert_eq!(Windows::new("validation", 257, 256).unwrap().count(), 1);
        assert!(Windows::new("training", 0, 1).is_err());
        assert!(Windows::new("training", 5, 0).is_err());
    }

    #[test]
    fn the_order_never_changes() {
        // Golden: another order would silently break exact resume of older runs.
        let order = Order::new(Windows::new("training", 1001, 10).unwrap(), 4, 1);
        let first: Vec<usize> = order
            .windows(1, 0..4)
            .chain(order.windows(26, 0..4))
            .collect();
        assert_eq!(first, GOLDEN);
    }

    const GOLDEN: [usize; 8] = [59, 40, 74, 0, 46, 12, 90, 41];

    #[test]
    fn validation_covers_all_windows_once() {
        let grid = Windows::new("validation", 71, 10).unwrap();
        let all: Vec<usize> = (0..5)
            .flat_map(|batch| validation_windows(grid, 3, batch))
            .collect();
        assert_eq!(all, (0..7).collect::<Vec<_>>());
        assert!(validation_windows(grid, 3, usize::MAX).is_empty());
    }

    proptest! {
        /// Every epoch visits every window exactly once, for any batch size.
        #[test]
        fn an_epoch_is_a_permutation(count in 1usize..600, seed: u64, epoch in 1u64..1000) {
            let order = Order::new(Windows { seq_len: 1, count }, count, seed);
            let mut seen: Vec<usize> = order.windows(epoch, 0..count).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }

        /// The batch size only cuts the sequence of windows into batches; the sequence stays the
        /// same.
        #[test]
        fn the_order_does_not_depend_on_the_batch_size(count in 1usize..100, seed: u64, batch_size in 1usize..9) {
            let grid = Windows { seq_len: 1, count };
            let (one, many) = (Order::new(grid, 1, seed), Order::new(grid, batch_size, seed));
            for step in 1..20 {
                for row in 0..batch_size {
                    let sample = (step - 1) * batch_size as u64 + row as u64;
                    prop_assert_eq!(many.window(step, row), one.window(sample + 1, 0));
                }
            }
        }

        #[test]
        fn epochs_and_seeds_differ(count in 50usize..500, seed: u64) {
            let order = Order::new(Windows { seq_len: 1, count }, count, seed);
            let other = Order::new(Windows { seq_len: 1, count }, count, seed ^ 1);
            let epoch = |order: &Order, epoch| order.windows(epoch, 0..count).collect::<Vec<_>>();

            prop_assert_ne!(epoch(&order, 1), epoch(&order, 2));
            prop_assert_ne!(epoch(&order, 1), epoch(&other, 1));
        }
    }
}
