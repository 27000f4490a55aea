//! Rows of whole documents, for data with conversations.
//!
//! The documents of an epoch come in an order that depends only on seed and epoch. The next
//! [`BUFFER`] of them wait in a buffer. A row takes the longest one that still fits, until none does,
//! and the rest of it is padding. So the rows of an epoch are a pure function of seed and epoch, and
//! there is no state to save.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use twox_hash::XxHash3_128;

use crate::permutation::{mix, permute};
use crate::rows::{Row, TokenStream};

/// The documents that a row chooses from. More leave less padding, but let a document move further
/// from its place in the order.
const BUFFER: usize = 256;

/// The documents of a text that have labels. One that is longer than a row is several pieces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pieces {
    pieces: Vec<Piece>,
    seq_len: usize,
    /// The documents that are longer than a row.
    pub(crate) cut: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Piece {
    ids: Range<usize>,
    labels: usize,
}

impl Pieces {
    /// The documents of `stream` in `within`, in rows of `seq_len` tokens.
    pub(crate) fn of(stream: &impl TokenStream, within: Range<usize>, seq_len: usize) -> Pieces {
        let (mut pieces, mut cut) = (Vec::new(), 0);
        for document in stream.documents(within) {
            cut += usize::from(document.len() > seq_len);
            for start in document.clone().step_by(seq_len) {
                let ids = start..(start + seq_len).min(document.end);
                let labels = ids.clone().filter(|at| stream.label(*at).is_some()).count();
                if labels > 0 {
                    pieces.push(Piece { ids, labels });
                }
            }
        }
        Pieces { pieces, seq_len, cut }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Packs the pieces in their own order.
    pub(crate) fn in_order(&self) -> Plan {
        self.pack(0..self.pieces.len())
    }

    /// Packs the pieces in the order of an epoch, which has the key `key`.
    fn shuffled(&self, key: u64) -> Plan {
        let count = self.pieces.len() as u64;
        self.pack((0..count).map(|at| permute(at, count, key) as usize))
    }

    /// Packs pieces, which come in this order.
    fn pack(&self, order: impl IntoIterator<Item = usize>) -> Plan {
        let mut plan = Plan::default();
        let arrivals = order.into_iter().enumerate();
        // Of equally long pieces, the first is the largest.
        let mut arrivals =
            arrivals.map(|(at, piece)| (self.pieces[piece].ids.len(), Reverse(at), piece));
        let mut buffer: Vec<_> = arrivals.by_ref().take(BUFFER).collect();
        buffer.sort_unstable();
        while !buffer.is_empty() {
            let mut room = self.seq_len;
            while let Some(at) =
                buffer.partition_point(|(length, ..)| *length <= room).checked_sub(1)
            {
                let (length, _, piece) = buffer.remove(at);
                room -= length;
                plan.pieces.push(piece);
                if let Some(next) = arrivals.next() {
                    buffer.insert(buffer.partition_point(|other| *other < next), next);
                }
            }
            plan.ends.push(plan.pieces.len());
        }
        plan
    }

    /// Row `row` of `plan`.
    pub(crate) fn row(&self, plan: &Plan, row: usize) -> Row {
        Row(plan.row(row).iter().map(|piece| self.pieces[*piece].ids.clone()).collect())
    }

    fn labels(&self, plan: &Plan, row: usize) -> usize {
        plan.row(row).iter().map(|piece| self.pieces[*piece].labels).sum()
    }
}

/// The rows of an epoch, as pieces.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pieces: Vec<usize>,
    /// Where each row ends in `pieces`.
    ends: Vec<usize>,
}

impl Plan {
    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.ends.len()
    }

    fn row(&self, row: usize) -> &[usize] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.pieces[start..self.ends[row]]
    }
}

/// The rows of a source over all epochs.
#[derive(Debug)]
pub(crate) struct Packing {
    pieces: Pieces,
    seed: u64,
    epochs: Mutex<Epochs>,
}

/// What is known of epochs. The next one begins where the last row of an epoch was, so finding a row
/// takes the numbers of rows of all earlier epochs.
#[derive(Debug, Default)]
struct Epochs {
    /// Where each epoch ends, in rows.
    ends: Vec<u64>,
    /// The plans that were used last.
    plans: Vec<(usize, Arc<Plan>)>,
}

/// The plans to keep. A step may have rows of two epochs, or of one and of its report.
const KEPT: usize = 2;

impl Packing {
    /// The rows of `pieces`, of which there is at least one.
    pub(crate) fn new(pieces: Pieces, seed: u64) -> Packing {
        Packing { pieces, seed, epochs: Mutex::default() }
    }

    /// The ids of row `sample` of the run, and the number of its labels.
    pub(crate) fn row(&self, sample: u64) -> (Row, usize) {
        let (plan, row) = self.find(sample);
        (self.pieces.row(&plan, row), self.pieces.labels(&plan, row))
    }

    /// The plan that has row `sample` of the run, and its place there.
    fn find(&self, sample: u64) -> (Arc<Plan>, usize) {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        while epochs.ends.last().is_none_or(|end| *end <= sample) {
            let next = epochs.ends.len();
            let plan = self.plan(&mut epochs, next);
            let end = epochs.ends.last().unwrap_or(&0) + plan.rows() as u64;
            epochs.ends.push(end);
        }
        let epoch = epochs.ends.partition_point(|end| *end <= sample);
        let start = epoch.checked_sub(1).map_or(0, |before| epochs.ends[before]);
        (self.plan(&mut epochs, epoch), (sample - start) as usize)
    }

    fn plan(&self, epochs: &mut Epochs, epoch: usize) -> Arc<Plan> {
        let known = epochs.plans.iter().find(|(known, _)| *known == epoch);
        if let Some((_, plan)) = known {
            return plan.clone();
        }
        let plan = Arc::new(self.pieces.shuffled(mix(self.seed, epoch as u64)));
        if epochs.plans.len() == KEPT {
            epochs.plans.remove(0);
        }
        epochs.plans.push((epoch, plan.clone()));
        plan
    }

    /// Adds the first epoch's rows to `info`.
    pub(crate) fn describe(&self, info: &mut PackingInfo) {
        let (plan, _) = self.find(0);
        info.pieces += self.pieces.pieces.len();
        info.tokens += self.pieces.pieces.iter().map(|piece| piece.ids.len()).sum::<usize>();
        info.rows += plan.rows();
        info.cut += self.pieces.cut;
    }

    /// Adds the first epoch's rows to `hash`.
    pub(crate) fn hash(&self, hash: &mut XxHash3_128) {
        let (plan, _) = self.find(0);
        for row in 0..plan.rows() {
            let Row(ranges) = self.pieces.row(&plan, row);
            let numbers = ranges.iter().flat_map(|range| [range.start, range.end]);
            for number in [ranges.len()].into_iter().chain(numbers) {
                hash.write(&(number as u64).to_le_bytes());
            }
        }
    }
}

/// The first epoch of data that are packed in rows of whole documents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackingInfo {
    /// The documents that have labels. One that is cut is several.
    pub pieces: usize,
    /// The tokens of these documents.
    pub tokens: usize,
    /// The rows.
    pub rows: usize,
    /// Tokens per row.
    pub seq_len: usize,
    /// The documents that were cut, because they are longer than a row.
    pub cut: usize,
}

impl PackingInfo {
    /// The share of padding in all rows.
    pub fn padding(&self) -> f64 {
        1.0 - self.tokens as f64 / (self.rows * self.seq_len) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rows::tests::Consecutive;

    const SEQ_LEN: usize = 64;

    fn pieces(lengths: &[usize]) -> (Consecutive, Pieces) {
        let stream = Consecutive::of(lengths);
        let pieces = Pieces::of(&stream, 0..stream.length, SEQ_LEN);
        (stream, pieces)
    }

    fn rows(pieces: &Pieces, plan: &Plan) -> Vec<Vec<Range<usize>>> {
        (0..plan.rows()).map(|row| pieces.row(plan, row).0).collect()
    }

    /// Lengths of conversations, log-uniform from 2 to `SEQ_LEN`.
    fn lengths(count: usize, seed: u64) -> Vec<usize> {
        let unit = |at| mix(seed, at) as f64 / u64::MAX as f64;
        let length = |at| 2.0 * (SEQ_LEN as f64 / 2.0).powf(unit(at));
        (0..count as u64).map(|at| length(at) as usize).collect()
    }

    /// The rows of a packing that starts a row where a document does not fit into the last one.
    fn first_come(lengths: impl Iterator<Item = usize>) -> usize {
        let mut rows = 0;
        let mut room = 0;
        for length in lengths {
            if length > room {
                (rows, room) = (rows + 1, SEQ_LEN);
            }
            room -= length;
        }
        rows
    }

    #[test]
    fn a_row_takes_the_longest_that_fits() {
        let (_, pieces) = pieces(&[10, 60, 30, 20, 4, 30, 2]);
        let found = rows(&pieces, &pieces.in_order());
        let expected =
            [vec![10..70, 120..124], vec![70..100, 124..154, 154..156], vec![100..120, 0..10]];
        assert_eq!(found, expected);
    }

    /// Only the documents of the buffer are considered.
    #[test]
    fn a_row_knows_the_next_documents_only() {
        let mut lengths = vec![33; BUFFER];
        lengths.push(31);
        let (_, pieces) = pieces(&lengths);
        let found = rows(&pieces, &pieces.in_order());
        let last = BUFFER * 33;
        assert_eq!(found[0], [0..33, last..last + 31]);
        lengths.insert(BUFFER, 33);
        let (_, pieces) = self::pieces(&lengths);
        let found = rows(&pieces, &pieces.in_order());
        let last = last + 33;
        assert_eq!((found[0].len(), found[0][0].clone()), (1, 0..33));
        assert_eq!(found[1], [33..66, last..last + 31]);
    }

    #[test]
    fn documents_longer_than_a_row_are_cut_and_counted() {
        let (_, pieces) = pieces(&[SEQ_LEN + 1, SEQ_LEN, 2 * SEQ_LEN + 5]);
        assert_eq!(pieces.cut, 2);
        let mut lengths: Vec<_> = pieces.pieces.iter().map(|piece| piece.ids.len()).collect();
        lengths.sort_unstable();
        // The single id at the end of the first document has no label.
        assert_eq!(lengths, [5, SEQ_LEN, SEQ_LEN, SEQ_LEN, SEQ_LEN]);
        let labels: usize = pieces.pieces.iter().map(|piece| piece.labels).sum();
        assert_eq!(labels, SEQ_LEN + (SEQ_LEN - 1) + (2 * SEQ_LEN + 4));
    }

    #[test]
    fn the_rows_never_change() {
        // Golden: other rows would silently break exact resume of older runs.
        let (_, pieces) = pieces(&lengths(2000, 3));
        let packing = Packing::new(pieces, 1);
        let rows = [0, 1, 700].map(|row| packing.row(row).0.0);
        assert_eq!(rows.map(|row| row.iter().map(|ids| ids.start).collect::<Vec<_>>()), GOLDEN);
    }

    const GOLDEN: [&[usize]; 3] = [&[33757], &[13851], &[1179, 31462, 2499]];

    /// Best fit leaves less padding than first come, on the same documents in the same order.
    #[test]
    fn best_fit_leaves_less_padding_than_first_come() {
        for seed in 0..20 {
            for count in [1, 10, 100, 2000] {
                let lengths = lengths(count, seed);
                let (_, pieces) = pieces(&lengths);
                let rows = pieces.shuffled(seed).rows();
                let count = count as u64;
                let order = (0..count).map(|at| lengths[permute(at, count, seed) as usize]);
                let simple = first_come(order);
                assert!(rows <= simple, "{count} documents: {rows} rows, {simple} by first come");
                let total: usize = lengths.iter().sum();
                let padding = |rows: usize| 1.0 - total as f64 / (rows * SEQ_LEN) as f64;
                if count == 2000 {
                    assert!(padding(rows) < 0.01, "{}", padding(rows));
                    assert!(padding(simple) > 0.15, "{}", padding(simple));
                }
            }
        }
    }

    proptest! {
        /// Every epoch has every document once, whole, and no row has more than it can hold. Rows are
        /// the same in whatever order they are asked for.
        #[test]
        fn an_epoch_has_every_document_once(
            lengths in prop::collection::vec(2usize..=SEQ_LEN, 1..400),
            seed: u64,
            jump in 0u64..500,
        ) {
            let (stream, pieces) = pieces(&lengths);
            let (_, same) = self::pieces(&lengths);
            let (packing, other) = (Packing::new(pieces, seed), Packing::new(same, seed));
            prop_assert_eq!(packing.row(jump), other.row(jump));
            let mut sample = 0;
            for epoch in 0..3u64 {
                let mut seen = Vec::new();
                let mut labels = 0;
                let mut padded = 0;
                while seen.len() < lengths.len() {
                    let (row, of_row) = packing.row(sample);
                    prop_assert_eq!(&other.row(sample), &(row.clone(), of_row));
                    prop_assert!(!row.0.is_empty() && row.len() <= SEQ_LEN);
                    padded += SEQ_LEN - row.len();
                    labels += of_row;
                    seen.extend(row.0);
                    sample += 1;
                }
                let (plan, at) = packing.find(sample);
                prop_assert_eq!(at, 0, "the next epoch starts after epoch {}", epoch);
                prop_assert!(plan.rows() > 0);
                seen.sort_unstable_by_key(|ids| ids.start);
                let expected: Vec<_> = stream.documents(0..stream.length).collect();
                prop_assert_eq!(seen, expected);
                prop_assert_eq!(labels, stream.length - lengths.len());
                prop_assert!(padded < SEQ_LEN * lengths.len());
            }
        }

        #[test]
        fn epochs_and_seeds_differ(seed: u64) {
            let lengths = lengths(300, 1);
            let plan = |key| pieces(&lengths).1.shuffled(key);
            prop_assert_ne!(plan(mix(seed, 0)), plan(mix(seed, 1)));
            prop_assert_ne!(plan(mix(seed, 0)), plan(mix(seed ^ 1, 0)));
        }
    }
}
