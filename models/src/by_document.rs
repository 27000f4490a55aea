//! Rows whose documents are divided evenly over the ranks of a sequence.
//!
//! Head-and-tail shards give ranks equally many pairs of a query and a key of one document. For several
//! documents, the tokens of a row change places: each chunk of the row gets a part of each document.

use std::iter::repeat_n;

use meshgrad_autograd::{Operand, Result, ops};
use meshgrad_error::ensure;
use meshgrad_runtime::{DType, Tensor};

use crate::ends::sharded_like;

/// The former place of the token at each place of a row, for [`TokenBatch::places`]. Of the 2 `ranks`
/// equal chunks of the row, chunk c gets the c-th part of each document; parts of a document differ by
/// at most one token. So with [`Placement::head_and_tail`](meshgrad_mesh::Placement::head_and_tail), each
/// rank has a part of the head and of the tail of each document (Megatron-LM divides packed sequences
/// likewise).
///
/// Within each range of the row that one rank has, tokens stay in their order.
///
/// `documents` has the document of each token of the row, and a length that 2 `ranks` divides; otherwise
/// chunks are not equal. One rank, or none, has the row as it is.
///
/// [`TokenBatch::places`]: crate::TokenBatch::places
pub fn by_document(documents: &[i64], ranks: usize) -> Vec<usize> {
    let (ranks, chunks) = (ranks.max(1), 2 * ranks.max(1));
    // The chunks in the middle of the row are one range, since one rank has both.
    let range_of = |chunk: usize| if chunk < ranks { chunk } else { chunk - 1 };
    let mut ranges = Vec::with_capacity(documents.len());
    let mut first_longer = 0;
    for document in documents.chunk_by(|a, b| a == b) {
        let (least, longer) = (document.len() / chunks, document.len() % chunks);
        for chunk in 0..chunks {
            let is_longer = (chunk + chunks - first_longer) % chunks < longer;
            ranges.extend(repeat_n(range_of(chunk), least + usize::from(is_longer)));
        }
        first_longer = (first_longer + longer) % chunks;
    }
    let mut places: Vec<usize> = (0..documents.len()).collect();
    places.sort_by_key(|place| ranges[*place]); // stable
    places
}

/// The order of the tokens of rows before they were divided by document.
#[derive(Clone)]
pub(crate) struct RowOrder {
    /// Where each token is now, [b, t].
    order: Tensor,
    /// Where it was, [b, t].
    places: Tensor,
}

impl RowOrder {
    /// The order of the former places, i64 [b, t], of whole rows.
    pub(crate) fn new(places_bt: Tensor) -> Result<RowOrder> {
        const LIMIT: usize = 1 << 24; // f32 has all integers up to it
        let tokens = places_bt.global_extent(1)?;
        ensure!(
            tokens <= LIMIT,
            Invalid,
            "rows of {tokens} tokens cannot be divided by document; use at most {LIMIT}"
        );
        let order = ops::argsort(&ops::cast(&places_bt, DType::F32)?, 1, false)?;
        Ok(RowOrder { order, places: places_bt })
    }

    /// The tokens `x_bt..` in this order.
    pub(crate) fn of<V: Operand>(&self, x: &V) -> Result<V> {
        let [order, places] = [&self.order, &self.places].map(|index| like(index, x.value()));
        ops::reorder(x, 1, &order?, &places?)
    }
}

/// A number for each token, [b, t], for each element of `x` [b, t, ..].
fn like(index_bt: &Tensor, x: &Tensor) -> Result<Tensor> {
    let shape = x.global_shape();
    let mut index = index_bt.clone();
    for dim in 2..shape.len() {
        index = index.unsqueeze(dim)?;
    }
    sharded_like(&index.broadcast_to(&shape)?, x, 2..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Document and position of each token.
    fn tokens(lengths: &[usize]) -> Vec<[i64; 2]> {
        let of = |(document, length): (usize, &usize)| {
            (0..*length as i64).map(move |position| [document as i64, position])
        };
        lengths.iter().enumerate().flat_map(of).collect()
    }

    fn documents(tokens: &[[i64; 2]]) -> Vec<i64> {
        tokens.iter().map(|[document, _]| *document).collect()
    }

    #[test]
    fn each_chunk_has_a_part_of_each_document() {
        // Parts of 4, 1 and 2 tokens over four chunks: one each; then the first, and the next two.
        let lengths = [4, 1, 2, 1];
        let order = by_document(&documents(&tokens(&lengths)), 2);
        assert_eq!(order, [0, 4, 1, 2, 5, 6, 3, 7]);
        for ranks in [0, 1] {
            assert_eq!(by_document(&[0, 0, 0, 1, 1, 1], ranks), [0, 1, 2, 3, 4, 5]);
        }
        assert_eq!(by_document(&[], 3), [0; 0]);
    }

    proptest! {
        /// Each place occurs once. Each document is divided evenly, in its order, and tokens ascend in
        /// each range of a rank.
        #[test]
        fn documents_are_divided_evenly(
            mut lengths in prop::collection::vec(1usize..40, 1..12),
            ranks in 1usize..6,
        ) {
            let chunks = 2 * ranks;
            let total: usize = lengths.iter().sum();
            lengths.push(total.next_multiple_of(chunks) - total);
            let tokens = tokens(&lengths);
            let order = by_document(&documents(&tokens), ranks);

            let mut places = order.clone();
            places.sort_unstable();
            prop_assert_eq!(places, (0..tokens.len()).collect::<Vec<_>>());

            let divided: Vec<[i64; 2]> = order.iter().map(|place| tokens[*place]).collect();
            let of_chunk = tokens.len() / chunks;
            for (document, length) in lengths.iter().enumerate() {
                let count = |chunks: &[[i64; 2]]| {
                    chunks.iter().filter(|token| token[0] == document as i64).count()
                };
                for (chunk, part) in divided.chunks(of_chunk).enumerate() {
                    // The chunks in the middle are one range.
                    let is_middle = chunk == ranks - 1 || chunk == ranks;
                    let (least, most) = (length / chunks, length.div_ceil(chunks));
                    prop_assert!(is_middle || (least..=most).contains(&count(part)));
                }
                let positions = divided.iter().filter(|token| token[0] == document as i64);
                prop_assert!(positions.map(|token| token[1]).is_sorted());
            }
            let mut ranges: Vec<&[[i64; 2]]> = divided.chunks(of_chunk).collect();
            let middle = &divided[(ranks - 1) * of_chunk..(ranks + 1) * of_chunk];
            ranges.splice(ranks - 1..=ranks, [middle]);
            prop_assert!(ranges.iter().all(|range| range.is_sorted()));
        }
    }
}
