//! The batches of a run: which windows of the token stream each step trains on.
//!
//! The stream is divided into windows of `seq_len` tokens. Each epoch visits every window once, in
//! an order that depends only on seed and epoch: a Feistel network over the window index. A batch
//! is therefore a pure function of seed and step. There is no state to save, and each rank computes
//! its own rows.
//!
//! The tokens of several sources form one stream, and no window crosses from one source into the
//! next. The samples of a run are divided among the sources by weight, as evenly as possible, and
//! each source has epochs of its own.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_error::{Result, ensure, error};

use crate::tokens::Tokens;

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
    /// For fewer than `seq_len + 1` tokens.
    pub fn new(part: &'static str, tokens: usize, seq_len: usize) -> Result<Self> {
        let count = tokens.saturating_sub(1).checked_div(seq_len).unwrap_or(0);
        ensure!(
            count > 0,
            Invalid,
            "the {part} text has {tokens} tokens but train.seq_len = {seq_len} needs {}; add text, \
             change data.val_fraction or set train.seq_len to at most {}",
            seq_len + 1,
            tokens.saturating_sub(1)
        );
        Ok(Self { seq_len, count })
    }

    /// Tokens per window.
    pub fn seq_len(self) -> usize {
        self.seq_len
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

    /// The windows in the part `within` of `tokens` that have a trained label. `text` names the
    /// part in the error.
    ///
    /// # Errors
    /// When there are none.
    pub fn trained_within(
        self,
        within: Range<usize>,
        tokens: Tokens<'_>,
        text: impl FnOnce() -> String,
    ) -> Result<Choice> {
        let windows = self.trained(self.within(&within), tokens);
        ensure!(
            windows.count() > 0,
            Invalid,
            "no sequence of {} has a token of an assistant's message ({} of {} tokens count towards the \
             loss); add conversations or lower train.seq_len",
            text(),
            within.clone().filter(|at| tokens.is_trained(*at)).count(),
            within.len()
        );
        Ok(windows)
    }

    /// The windows of `windows` that have a trained label.
    pub fn trained(self, windows: Range<usize>, tokens: Tokens<'_>) -> Choice {
        if !tokens.is_masked() {
            return Choice::Range(windows);
        }
        let has_trained = |window: &usize| {
            let mut labels = self.tokens(*window).skip(1);
            labels.any(|at| tokens.is_trained(at))
        };
        Choice::List(windows.filter(has_trained).collect())
    }

    /// The windows whose tokens are all in `tokens`.
    pub fn within(self, tokens: &Range<usize>) -> Range<usize> {
        let first = tokens.start.div_ceil(self.seq_len);
        let end = tokens.end.saturating_sub(1) / self.seq_len;
        first..end.min(self.count).max(first)
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
    /// When a window ends after the text.
    pub fn gather(
        grid: Windows,
        windows: impl IntoIterator<Item = usize>,
        token: impl Fn(usize) -> Option<u32>,
    ) -> Result<Self> {
        let mut batch =
            Self { input_ids: Vec::new(), labels: Vec::new(), rows: 0, seq_len: grid.seq_len };

        for window in windows {
            // A window that ends after the text is not a window of this text.
            let id = |at| {
                token(at).ok_or_else(|| {
                    error!(
                        Invalid,
                        "the text has no token {at}; its windows were computed for a longer text"
                    )
                })
            };
            let tokens = grid.tokens(window).map(|at| id(at).map(i64::from));
            let tokens = tokens.collect::<Result<Vec<i64>>>()?;
            batch.input_ids.extend(&tokens[..grid.seq_len]);
            batch.labels.extend(&tokens[1..]);
            batch.rows += 1;
        }
        Ok(batch)
    }
}

/// The windows of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Consecutive windows.
    Range(Range<usize>),
    /// These windows.
    List(Arc<[usize]>),
}

impl Choice {
    /// Number of windows.
    pub fn count(&self) -> usize {
        match self {
            Choice::Range(range) => range.len(),
            Choice::List(list) => list.len(),
        }
    }

    /// The window at `position`, which is below [`Choice::count`].
    pub fn window(&self, position: usize) -> usize {
        match self {
            Choice::Range(range) => range.start + position,
            Choice::List(list) => list[position],
        }
    }
}

/// The order of training windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    sources: Vec<Source>,
    seed: u64,
    batch_size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    windows: Choice,
    /// Its share of the samples that earlier sources do not take, in units of 2^-32.
    share: u64,
}

/// A share of 1.
const WHOLE: u64 = 1 << 32;

impl Order {
    /// `batch_size` windows per step over all ranks, taken from `windows`.
    pub fn new(windows: Windows, batch_size: usize, seed: u64) -> Self {
        let all = Choice::Range(0..windows.count);
        Self::mixed(vec![(all, 1.0)], batch_size, seed)
    }

    /// As [`Order::new`], from several sources, each with the weight of its share. There must be
    /// sources, each with windows; weights must be finite and above 0.
    pub(crate) fn mixed(sources: Vec<(Choice, f64)>, batch_size: usize, seed: u64) -> Self {
        let mut rest: f64 = sources.iter().map(|(_, weight)| weight).sum();
        let last = sources.len().saturating_sub(1);
        let source = |(at, (windows, weight)): (usize, (Choice, f64))| {
            let share = (weight / rest * WHOLE as f64).round() as u64;
            rest -= weight;
            let share = if at == last { WHOLE } else { share.min(WHOLE) };
            Source { windows, share }
        };
        Self { sources: sources.into_iter().enumerate().map(source).collect(), seed, batch_size }
    }

    /// The window in row `row` of the batch of `step` (from 1).
    pub fn window(&self, step: u64, row: usize) -> usize {
        let sample = u128::from(step.saturating_sub(1)) * self.batch_size as u128 + row as u128;
        let (at, sample) = self.source(sample);
        let windows = &self.sources[at].windows;
        let count = windows.count() as u128;
        let (epoch, position) = ((sample / count) as u64, (sample % count) as u64);

        let seed = match at {
            0 => self.seed,
            at => mix(!self.seed, at as u64),
        };
        windows.window(permute(position, count as u64, mix(seed, epoch)) as usize)
    }

    /// The source of sample `sample` of the run, and how many samples this source had before.
    fn source(&self, mut sample: u128) -> (usize, u128) {
        let last = self.sources.len() - 1;
        for (at, source) in self.sources[..last].iter().enumerate() {
            let taken = |samples: u128| samples * u128::from(source.share) / u128::from(WHOLE);
            let before = taken(sample);
            if taken(sample + 1) > before {
                return (at, before);
            }
            sample -= before;
        }
        (last, sample)
    }

    /// The windows of some rows of the batch of `step`, such as those of a microbatch or a rank.
    pub fn windows(&self, step: u64, rows: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        rows.map(move |row| self.window(step, row))
    }
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
        assert!(short.unwrap_err().to_string().starts_with("the text has no token 9; "));
    }

    #[test]
    fn a_short_text_is_an_error_with_both_numbers() {
        let error = Windows::new("validation", 256, 256).unwrap_err().to_string();
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
        let first: Vec<usize> = order.windows(1, 0..4).chain(order.windows(26, 0..4)).collect();
        assert_eq!(first, GOLDEN);
    }

    const GOLDEN: [usize; 8] = [59, 40, 74, 0, 46, 12, 90, 41];

    #[test]
    fn windows_within_a_source_use_only_its_tokens() {
        let grid = Windows::new("training", 100, 10).unwrap();
        assert_eq!(grid.within(&(0..100)), 0..9);
        assert_eq!(grid.within(&(0..31)), 0..3);
        assert_eq!(grid.within(&(31..100)), 4..9);
        assert!(grid.within(&(31..50)).is_empty());
        assert_eq!(grid.within(&(31..51)), 4..5);
    }

    /// An order of sources, each given by its number of windows and its weight. The first starts at
    /// window 0.
    fn mixed(sources: &[(usize, f64)], batch_size: usize, seed: u64) -> Order {
        let mut end = 0;
        let choice = |(count, weight): &(usize, f64)| {
            let start = end;
            end += count;
            (Choice::Range(start..end), *weight)
        };
        Order::mixed(sources.iter().map(choice).collect(), batch_size, seed)
    }

    /// Golden, as [`the_order_never_changes`].
    #[test]
    fn the_order_of_a_mixture_never_changes() {
        let order = mixed(&[(10, 3.0), (20, 1.0), (30, 1.0)], 5, 1);
        let first: Vec<usize> = order.windows(1, 0..5).chain(order.windows(9, 0..5)).collect();
        assert_eq!(first, MIXED);
    }

    const MIXED: [usize; 10] = [52, 6, 14, 9, 2, 44, 1, 27, 7, 4];

    proptest! {
        /// In any prefix of a run, each source has its share to within one sample per source, and
        /// visits all of its windows before it repeats one.
        #[test]
        fn a_mixture_keeps_the_shares(
            sources in prop::collection::vec((1usize..40, 0.01f64..10.0), 1..5),
            seed: u64,
        ) {
            let order = mixed(&sources, 1, seed);
            let total: f64 = sources.iter().map(|(_, weight)| weight).sum();
            let starts: Vec<usize> = sources
                .iter()
                .scan(0, |end, (count, _)| { *end += count; Some(*end - count) })
                .collect();
            let mut seen = vec![Vec::new(); sources.len()];
            for step in 1..300u64 {
                let window = order.window(step, 0);
                let at = starts.iter().rposition(|start| *start <= window).unwrap();
                seen[at].push(window);
                for ((_, weight), seen) in sources.iter().zip(&seen) {
                    let due = weight / total * step as f64;
                    prop_assert!((seen.len() as f64 - due).abs() <= sources.len() as f64);
                }
            }
            for ((count, _), seen) in sources.iter().zip(&seen) {
                for epoch in seen.chunks(*count) {
                    let mut distinct = epoch.to_vec();
                    distinct.sort_unstable();
                    distinct.dedup();
                    prop_assert_eq!(distinct.len(), epoch.len());
                }
            }
        }

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
