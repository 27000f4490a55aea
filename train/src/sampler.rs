//! The batches of a run: which rows of the token stream each step trains on.
//!
//! The stream is divided into windows of `seq_len` tokens. Each epoch visits every window once, in
//! an order that depends only on seed and epoch: a Feistel network over the window index. A batch
//! is therefore a pure function of seed and step. There is no state to save, and each rank computes
//! its own rows. The rows of conversations are not windows but whole documents (`packing.rs`), in an
//! order of the same kind.
//!
//! The tokens of several sources form one stream, and no row crosses from one source into the next.
//! The samples of a run are divided among the sources by weight, as evenly as possible, and each
//! source has epochs of its own.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_error::{Result, ensure};
use twox_hash::XxHash3_128;

pub use crate::packing::PackingInfo;
use crate::packing::{Packing, Pieces, Plan};
use crate::permutation::{mix, permute};
use crate::rows::{Row, RowFormat, TokenStream};

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

    fn row(self, window: usize) -> Row {
        let start = window * self.seq_len;
        Row::of(start..start + self.seq_len)
    }

    /// The windows in the part `within` of `stream` that have a label.
    pub(crate) fn with_labels(self, within: &Range<usize>, stream: &impl TokenStream) -> Choice {
        let windows = self.within(within);
        let has_label = |window: &usize| {
            let mut inputs = self.row(*window).0.into_iter().flatten();
            inputs.any(|at| stream.label(at).is_some())
        };
        match windows.clone().all(|window| has_label(&window)) {
            true => Choice::Range(windows),
            false => Choice::List(windows.filter(has_label).collect()),
        }
    }

    /// The windows whose tokens are all in `tokens`.
    pub fn within(self, tokens: &Range<usize>) -> Range<usize> {
        let first = tokens.start.div_ceil(self.seq_len);
        let end = tokens.end.saturating_sub(1) / self.seq_len;
        first..end.min(self.count).max(first)
    }
}

/// Some windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Consecutive windows.
    Range(Range<usize>),
    /// These windows.
    List(Arc<[usize]>),
}

impl Choice {
    /// Number of windows.
    pub(crate) fn count(&self) -> usize {
        match self {
            Choice::Range(range) => range.len(),
            Choice::List(list) => list.len(),
        }
    }

    /// The window at `position`, which is below [`Choice::count`].
    fn window(&self, position: usize) -> usize {
        match self {
            Choice::Range(range) => range.start + position,
            Choice::List(list) => list[position],
        }
    }
}

/// What the rows of a text or a source are made of.
#[derive(Debug)]
pub(crate) enum Units {
    /// Each row is one of these windows.
    Windows(Windows, Choice),
    /// Rows have whole documents.
    Pieces(Pieces),
}

/// All rows of a text in its order, to validate.
#[derive(Debug)]
pub struct Rows {
    pub(crate) format: RowFormat,
    units: Units,
    plan: Plan,
}

impl Rows {
    pub(crate) fn new(format: RowFormat, units: Units) -> Rows {
        let plan = match &units {
            Units::Windows(..) => Plan::default(),
            Units::Pieces(pieces) => pieces.in_order(),
        };
        Rows { format, units, plan }
    }

    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        match &self.units {
            Units::Windows(_, choice) => choice.count(),
            Units::Pieces(_) => self.plan.rows(),
        }
    }

    /// The row at `position`, which is below [`Rows::count`].
    pub(crate) fn row(&self, position: usize) -> Row {
        match &self.units {
            Units::Windows(windows, choice) => windows.row(choice.window(position)),
            Units::Pieces(pieces) => pieces.row(&self.plan, position),
        }
    }

    /// The number of documents that are cut, because they are longer than a row.
    pub fn cut(&self) -> usize {
        match &self.units {
            Units::Windows(..) => 0,
            Units::Pieces(pieces) => pieces.cut,
        }
    }
}

/// The order of training rows.
#[derive(Debug, Clone)]
pub struct Order {
    pub(crate) format: RowFormat,
    sources: Vec<Source>,
    batch_size: usize,
}

#[derive(Debug, Clone)]
struct Source {
    rows: SourceRows,
    /// Its share of the samples that earlier sources do not take, in units of 2^-32.
    share: u64,
}

#[derive(Debug, Clone)]
enum SourceRows {
    Windows { windows: Windows, choice: Choice, seed: u64 },
    Packed(Arc<Packing>),
}

impl SourceRows {
    fn new(units: Units, seed: u64) -> SourceRows {
        match units {
            Units::Windows(windows, choice) => SourceRows::Windows { windows, choice, seed },
            Units::Pieces(pieces) => SourceRows::Packed(Arc::new(Packing::new(pieces, seed))),
        }
    }

    /// The row of sample `sample` of this source.
    fn row(&self, sample: u128) -> Row {
        match self {
            SourceRows::Windows { windows, choice, seed } => {
                let count = choice.count() as u128;
                let (epoch, position) = ((sample / count) as u64, (sample % count) as u64);
                let position = permute(position, count as u64, mix(*seed, epoch));
                windows.row(choice.window(position as usize))
            }
            SourceRows::Packed(packing) => packing.row(sample as u64).0,
        }
    }
}

/// What the rows of a step have, where they are packed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPacking {
    /// The share of padding.
    pub padding: f64,
    /// The number of labels that the loss counts.
    pub trained: usize,
}

/// A share of 1.
const WHOLE: u64 = 1 << 32;

impl Order {
    /// `batch_size` rows per step over all ranks, taken from several sources, each with the weight of
    /// its share. There must be sources, each with rows; weights must be finite and above 0.
    pub(crate) fn new(
        format: RowFormat,
        sources: Vec<(Units, f64)>,
        batch_size: usize,
        seed: u64,
    ) -> Self {
        let mut rest: f64 = sources.iter().map(|(_, weight)| weight).sum();
        let last = sources.len().saturating_sub(1);
        let source = |(at, (units, weight)): (usize, (Units, f64))| {
            let share = (weight / rest * WHOLE as f64).round() as u64;
            rest -= weight;
            let share = if at == last { WHOLE } else { share.min(WHOLE) };
            let seed = match at {
                0 => seed,
                at => mix(!seed, at as u64),
            };
            Source { rows: SourceRows::new(units, seed), share }
        };
        let sources = sources.into_iter().enumerate().map(source).collect();
        Self { format, sources, batch_size }
    }

    /// Row `row` of the batch of `step` (from 1).
    pub(crate) fn row(&self, step: u64, row: usize) -> Row {
        let (at, sample) = self.source(self.sample(step, row));
        self.sources[at].rows.row(sample)
    }

    fn sample(&self, step: u64, row: usize) -> u128 {
        u128::from(step.saturating_sub(1)) * self.batch_size as u128 + row as u128
    }

    /// What the rows of `step` have; `None` if they are windows.
    pub fn packing_of(&self, step: u64) -> Option<StepPacking> {
        let (mut tokens, mut trained) = (0, 0);
        for row in 0..self.batch_size {
            let (at, sample) = self.source(self.sample(step, row));
            let SourceRows::Packed(packing) = &self.sources[at].rows else {
                return None;
            };
            let (row, labels) = packing.row(sample as u64);
            tokens += row.len();
            trained += labels;
        }
        let all = (self.batch_size * self.format.seq_len) as f64;
        Some(StepPacking { padding: 1.0 - tokens as f64 / all, trained })
    }

    /// How the first epoch of each source is packed; `None` for windows.
    pub fn packing(&self) -> Option<PackingInfo> {
        let mut info = PackingInfo { seq_len: self.format.seq_len, ..PackingInfo::default() };
        for source in &self.sources {
            match &source.rows {
                SourceRows::Windows { .. } => return None,
                SourceRows::Packed(packing) => packing.describe(&mut info),
            }
        }
        Some(info)
    }

    /// XXH3-128 of the rows of each source's first epoch, in hexadecimal; `None` for windows. A run
    /// resumes only with the rows that it started with.
    pub fn packing_digest(&self) -> Option<String> {
        let mut hash = XxHash3_128::new();
        for source in &self.sources {
            match &source.rows {
                SourceRows::Windows { .. } => return None,
                SourceRows::Packed(packing) => packing.hash(&mut hash),
            }
            hash.write(&u64::MAX.to_le_bytes());
        }
        Some(format!("{:032x}", hash.finish_128()))
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Order {
        /// The windows of `windows`.
        fn of(windows: Windows, batch_size: usize, seed: u64) -> Order {
            mixed_windows(windows, vec![(0..windows.count, 1.0)], batch_size, seed)
        }

        fn window(&self, step: u64, row: usize) -> usize {
            self.row(step, row).0[0].start / self.format.seq_len
        }

        fn windows(&self, step: u64, rows: Range<usize>) -> impl Iterator<Item = usize> + '_ {
            rows.map(move |row| self.window(step, row))
        }
    }

    fn mixed_windows(
        windows: Windows,
        sources: Vec<(Range<usize>, f64)>,
        batch_size: usize,
        seed: u64,
    ) -> Order {
        let seq_len = windows.seq_len;
        let format = RowFormat { seq_len, has_documents: false, padding: 0 };
        let units = |range| Units::Windows(windows, Choice::Range(range));
        let sources = sources.into_iter().map(|(range, weight)| (units(range), weight));
        Order::new(format, sources.collect(), batch_size, seed)
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
        let order = Order::of(Windows::new("training", 1001, 10).unwrap(), 4, 1);
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
        let range = |(count, weight): &(usize, f64)| {
            let start = end;
            end += count;
            (start..end, *weight)
        };
        let sources: Vec<_> = sources.iter().map(range).collect();
        mixed_windows(Windows { seq_len: 1, count: end }, sources, batch_size, seed)
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
            let order = Order::of(Windows { seq_len: 1, count }, count, seed);
            let mut seen: Vec<usize> = order.windows(epoch, 0..count).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }

        /// The batch size only cuts the sequence of windows into batches; the sequence stays the
        /// same.
        #[test]
        fn the_order_does_not_depend_on_the_batch_size(count in 1usize..100, seed: u64, batch_size in 1usize..9) {
            let grid = Windows { seq_len: 1, count };
            let (one, many) = (Order::of(grid, 1, seed), Order::of(grid, batch_size, seed));
            for step in 1..20 {
                for row in 0..batch_size {
                    let sample = (step - 1) * batch_size as u64 + row as u64;
                    prop_assert_eq!(many.window(step, row), one.window(sample + 1, 0));
                }
            }
        }

        #[test]
        fn epochs_and_seeds_differ(count in 50usize..500, seed: u64) {
            let order = Order::of(Windows { seq_len: 1, count }, count, seed);
            let other = Order::of(Windows { seq_len: 1, count }, count, seed ^ 1);
            let epoch = |order: &Order, epoch| order.windows(epoch, 0..count).collect::<Vec<_>>();

            prop_assert_ne!(epoch(&order, 1), epoch(&order, 2));
            prop_assert_ne!(epoch(&order, 1), epoch(&other, 1));
        }
    }
}
