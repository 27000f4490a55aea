//! The rows of batches: which tokens of a stream they have, which of them the loss counts, and where
//! documents are.

use std::ops::Range;

use meshgrad_error::{Result, error};
use meshgrad_models::{IGNORE_INDEX, TokenBatch, by_document};
use meshgrad_runtime::Tensor;

/// The tokens of a text, in documents.
pub(crate) trait TokenStream {
    /// The id at `at`; `None` past the end.
    fn id(&self, at: usize) -> Option<u32>;

    /// Whether the loss counts the prediction of the id at `at`.
    fn is_trained(&self, at: usize) -> bool;

    /// Whether a document starts with the id at `at`.
    fn is_start(&self, at: usize) -> bool;

    /// What the model predicts after the id at `at`: the next id, if it is of the same document and
    /// the loss counts it.
    fn label(&self, at: usize) -> Option<u32> {
        let next = at + 1;
        let counts = self.is_trained(next) && !self.is_start(next);
        self.id(next).filter(|_| counts)
    }

    /// The documents of the ids in `within`, in order.
    fn documents(&self, within: Range<usize>) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut rest = within;
        std::iter::from_fn(move || {
            let start = rest.next()?;
            let end = rest.clone().find(|at| self.is_start(*at)).unwrap_or(rest.end);
            rest.start = end;
            Some(start..end)
        })
    }
}

/// A row: ranges of a stream. A document starts with each range, and with each id that starts one in
/// the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row(pub(crate) Vec<Range<usize>>);

impl Row {
    /// A row of one range.
    pub(crate) fn of(range: Range<usize>) -> Row {
        Row(Vec::from([range]))
    }

    /// The number of ids, without padding.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(Range::len).sum()
    }
}

/// What all rows of a text have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowFormat {
    /// Tokens per row.
    pub(crate) seq_len: usize,
    /// Whether batches have positions and documents. This is decided for the text and not for each
    /// batch, so that all steps run the same ops.
    pub(crate) has_documents: bool,
    /// The id after the last document of a row.
    pub(crate) padding: u32,
}

/// The values of some rows, each [rows, seq_len].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Input tokens.
    pub(crate) input_ids: Vec<i64>,
    /// The token that follows each of `input_ids`, [`IGNORE_INDEX`] where the loss counts none.
    pub(crate) labels: Vec<i64>,
    /// The position of each token in its document.
    pub(crate) positions: Vec<i64>,
    /// The number of each token's document, from 0 in each row.
    pub(crate) documents: Vec<i64>,
    /// Where each token was in its row, if rows are divided by document.
    places: Vec<i64>,
}

impl Batch {
    /// Gathers `rows` of `stream`. Padding is a document without labels.
    ///
    /// # Errors
    /// When a row ends after the text.
    pub(crate) fn gather<'r>(
        format: RowFormat,
        rows: impl IntoIterator<Item = &'r Row>,
        stream: &impl TokenStream,
    ) -> Result<Batch> {
        let mut batch = Batch::default();
        for row in rows {
            let end = batch.input_ids.len() + format.seq_len;
            batch.push(row, stream)?;
            batch.pad(end, i64::from(format.padding));
        }
        Ok(batch)
    }

    /// The same rows, each divided by document over `ranks` ranks.
    pub(crate) fn by_document(&self, format: RowFormat, ranks: usize) -> Batch {
        let mut divided = Batch::default();
        for start in (0..self.input_ids.len()).step_by(format.seq_len) {
            let documents = &self.documents[start..start + format.seq_len];
            for place in by_document(documents, ranks) {
                let at = start + place;
                divided.input_ids.push(self.input_ids[at]);
                divided.labels.push(self.labels[at]);
                divided.positions.push(self.positions[at]);
                divided.documents.push(self.documents[at]);
                divided.places.push(place as i64);
            }
        }
        divided
    }

    /// The batch of the tensors that `tensor` makes of values.
    ///
    /// # Errors
    /// Those of `tensor`.
    pub(crate) fn tensors(
        &self,
        format: RowFormat,
        tensor: impl Fn(&[i64]) -> Result<Tensor>,
    ) -> Result<TokenBatch> {
        let of_documents =
            |values: &[i64]| format.has_documents.then(|| tensor(values)).transpose();
        let is_divided = !self.places.is_empty();
        Ok(TokenBatch {
            positions: of_documents(&self.positions)?,
            documents: of_documents(&self.documents)?,
            places: is_divided.then(|| tensor(&self.places)).transpose()?,
            ..TokenBatch::new(&tensor(&self.input_ids)?, &tensor(&self.labels)?)
        })
    }

    fn push(&mut self, row: &Row, stream: &impl TokenStream) -> Result<()> {
        let (mut documents, mut start) = (0, 0);
        for range in &row.0 {
            for at in range.clone() {
                if at == range.start || stream.is_start(at) {
                    (documents, start) = (documents + 1, at);
                }
                // A row that ends after the text is not a row of this text.
                let id = stream.id(at).ok_or_else(|| {
                    error!(
                        Invalid,
                        "the text has no token {at}; its rows were computed for a longer text"
                    )
                })?;
                self.input_ids.push(i64::from(id));
                self.labels.push(stream.label(at).map_or(IGNORE_INDEX, i64::from));
                self.positions.push((at - start) as i64);
                self.documents.push(documents - 1);
            }
        }
        Ok(())
    }

    /// Adds a document of padding, up to `end` tokens.
    fn pad(&mut self, end: usize, padding: i64) {
        let missing = end.saturating_sub(self.input_ids.len());
        let document = self.documents.last().map_or(0, |last| last + 1);
        self.positions.extend(0..missing as i64);
        self.input_ids.resize(end, padding);
        self.labels.resize(end, IGNORE_INDEX);
        self.documents.resize(end, document);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Ids 100, 101, ..., in documents that start at `starts`. If `is_masked`, ids divisible by three
    /// are not trained.
    pub(crate) struct Consecutive {
        pub(crate) length: usize,
        pub(crate) starts: Vec<usize>,
        pub(crate) is_masked: bool,
    }

    impl Consecutive {
        /// Documents of these lengths.
        pub(crate) fn of(lengths: &[usize]) -> Consecutive {
            let starts = lengths.iter().scan(0, |end, length| {
                *end += length;
                Some(*end - length)
            });
            let length = lengths.iter().sum();
            Consecutive { length, starts: starts.collect(), is_masked: false }
        }
    }

    impl TokenStream for Consecutive {
        fn id(&self, at: usize) -> Option<u32> {
            (at < self.length).then_some(100 + at as u32)
        }

        fn is_trained(&self, at: usize) -> bool {
            !self.is_masked || !(100 + at).is_multiple_of(3)
        }

        fn is_start(&self, at: usize) -> bool {
            self.starts.contains(&at)
        }
    }

    const FORMAT: RowFormat = RowFormat { seq_len: 6, has_documents: true, padding: 7 };
    const NONE: i64 = IGNORE_INDEX;

    /// A document cut by the edge of a window is a document in each window, and loses no label.
    #[test]
    fn a_window_says_where_its_documents_are() {
        let stream = Consecutive::of(&[4, 1, 10]);
        let rows = [Row::of(0..6), Row::of(6..12)];
        let batch = Batch::gather(FORMAT, &rows, &stream).unwrap();
        assert_eq!(batch.input_ids, (100..112).collect::<Vec<i64>>());
        let labels = [101, 102, 103, NONE, NONE, 106, 107, 108, 109, 110, 111, 112];
        assert_eq!(batch.labels, labels);
        assert_eq!(batch.positions, [0, 1, 2, 3, 0, 0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(batch.documents, [0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]);

        let error = Batch::gather(FORMAT, &[Row::of(12..18)], &stream).unwrap_err();
        assert!(error.to_string().starts_with("the text has no token 15; "), "{error}");
    }

    #[test]
    fn padding_is_a_document_without_labels() {
        let stream = Consecutive::of(&[4, 2, 3]);
        let batch = Batch::gather(FORMAT, &[Row(vec![6..9, 4..6]), Row(vec![])], &stream).unwrap();
        assert_eq!(batch.input_ids, [106, 107, 108, 104, 105, 7, 7, 7, 7, 7, 7, 7]);
        let labels = [107, 108, NONE, 105, NONE, NONE];
        assert_eq!(batch.labels, [labels, [NONE; 6]].concat());
        assert_eq!(batch.positions, [0, 1, 2, 0, 1, 0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(batch.documents[..6], [0, 0, 0, 1, 1, 2]);
    }

    /// Labels are those of the row in its order: shifted after it was divided, they would be others.
    #[test]
    fn a_divided_row_keeps_the_labels_of_its_tokens() {
        let stream = Consecutive::of(&[5, 3, 8]);
        let format = RowFormat { seq_len: 8, ..FORMAT };
        let batch = Batch::gather(format, &[Row::of(0..8), Row::of(8..16)], &stream).unwrap();
        let divided = batch.by_document(format, 2);
        let places = [[0, 1, 2, 3, 5, 6, 4, 7], [0, 1, 2, 3, 4, 5, 6, 7]];
        assert_eq!(divided.places, places.concat());
        for (at, place) in divided.places.iter().enumerate() {
            let place = at / 8 * 8 + *place as usize;
            let values = |of: &Batch, at: usize| {
                [&of.input_ids, &of.labels, &of.positions, &of.documents].map(|it| it[at])
            };
            assert_eq!(values(&divided, at), values(&batch, place));
        }
        let labelled = divided.labels.iter().enumerate().filter(|(_, label)| **label != NONE);
        let next = |at: usize| divided.input_ids.get(at + 1);
        assert!(labelled.clone().any(|(at, label)| next(at) != Some(label)));
    }

    proptest! {
        /// In windows of any length, each trained id but the first of each document is a label once,
        /// at the id before it. Documents do not decrease along a row, and positions are the distance
        /// to the start of the document or of the row.
        #[test]
        fn every_id_but_the_first_of_each_document_is_a_label_once(
            lengths in prop::collection::vec(1usize..9, 1..12),
            seq_len in 1usize..12,
            is_masked: bool,
        ) {
            let stream = Consecutive { is_masked, ..Consecutive::of(&lengths) };
            let starts = (0..stream.length).step_by(seq_len);
            let rows = starts.map(|at| Row::of(at..(at + seq_len).min(stream.length)));
            let rows: Vec<Row> = rows.collect();
            let batch = Batch::gather(RowFormat { seq_len, ..FORMAT }, &rows, &stream).unwrap();

            let is_label = |at: &usize| stream.is_trained(*at) && !stream.is_start(*at);
            let expected = (0..stream.length).filter(is_label).map(|at| 100 + at as i64);
            let labels = batch.labels.iter().copied().filter(|label| *label != NONE);
            prop_assert_eq!(labels.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            for (id, label) in batch.input_ids.iter().zip(&batch.labels) {
                prop_assert!(*label == NONE || *label == id + 1);
            }
            for (index, id) in batch.input_ids.iter().enumerate().take(stream.length) {
                let (at, row) = ((id - 100) as usize, index - index % seq_len);
                let start = stream.starts.iter().rfind(|start| **start <= at).unwrap().max(&row);
                prop_assert_eq!(batch.positions[index] as usize, at - start);
                let earlier = (row + 1..=at).filter(|at| stream.is_start(*at)).count();
                prop_assert_eq!(batch.documents[index] as usize, earlier);
            }
        }

        /// Documents are the ranges between starts, whatever part of the stream is asked for.
        #[test]
        fn documents_divide_a_range(
            lengths in prop::collection::vec(1usize..9, 1..12),
            within in (0usize..50, 0usize..50),
        ) {
            let stream = Consecutive::of(&lengths);
            let within = within.0.min(stream.length)..within.1.min(stream.length);
            let documents: Vec<_> = stream.documents(within.clone()).collect();
            let all: Vec<usize> = documents.iter().cloned().flatten().collect();
            prop_assert_eq!(all, within.clone().collect::<Vec<_>>());
            for document in documents {
                let inner = (document.start + 1)..document.end;
                prop_assert!(!inner.into_iter().any(|at| stream.is_start(at)));
                prop_assert!(document.start == within.start || stream.is_start(document.start));
            }
        }
    }
}
