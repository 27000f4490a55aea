//! A rank's part of a batch.

use std::ops::Range;

use meshgrad_collectives::redistribute;
use meshgrad_mesh::{Region, Sharding};
use meshgrad_runtime::Tensor;

use crate::Result;

/// This rank's part of a batch of [rows, tokens]. Ids, labels, positions and documents are divided
/// alike.
pub(crate) struct BatchPart {
    /// The sequences.
    pub(crate) rows: Range<usize>,
    /// The tokens of each sequence.
    tokens: Vec<Range<usize>>,
    /// The sharding of the batch, and this rank.
    sharding: Option<(Sharding, usize)>,
}

impl BatchPart {
    /// The whole batch.
    pub(crate) fn whole(rows: usize, seq_len: usize) -> BatchPart {
        let all = 0..seq_len;
        BatchPart { rows: 0..rows, tokens: vec![all], sharding: None }
    }

    /// The part of rank `rank` of a batch with the sharding `sharding`, of which each rank has one
    /// range of the rows.
    pub(crate) fn of(sharding: Sharding, rank: usize) -> BatchPart {
        let region = sharding.region(rank);
        let dims = region.as_ref().map_or(&[][..], Region::dims);
        let tokens = dims.get(1).map(|dim| dim.ranges().to_vec());
        BatchPart {
            rows: dims.first().and_then(|dim| dim.as_range()).unwrap_or(0..0),
            tokens: tokens.unwrap_or_default(),
            sharding: Some((sharding, rank)),
        }
    }

    /// The shape of the part: [rows, tokens].
    pub(crate) fn shape(&self) -> [usize; 2] {
        [self.rows.len(), self.tokens.iter().map(Range::len).sum()]
    }

    /// The tokens of this part, from `values` of whole sequences: [these rows, `seq_len`].
    pub(crate) fn select(&self, values: &[i64], seq_len: usize) -> Vec<i64> {
        let of_row = |row: &[i64]| -> Vec<i64> {
            self.tokens.iter().flat_map(|range| row[range.clone()].to_vec()).collect()
        };
        values.chunks_exact(seq_len).flat_map(of_row).collect()
    }

    /// The part of a batch that all ranks have whole.
    pub(crate) fn of_whole(&self, batch: &Tensor) -> Result<Tensor> {
        match &self.sharding {
            None => Ok(batch.clone()),
            Some((sharding, _)) => redistribute(&batch.as_replicated()?, sharding.placements()),
        }
    }

    /// States that `x`, of the part's shape, is this part of the batch.
    pub(crate) fn tensor(&self, x: Tensor) -> Result<Tensor> {
        match &self.sharding {
            None => Ok(x),
            Some((sharding, rank)) => x.local().with_sharding(sharding, *rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use meshgrad_mesh::{Mesh, Placement};
    use meshgrad_runtime::Device;

    use super::*;

    /// The parts of all ranks of a mesh have each token of the batch once, at its place.
    #[test]
    fn parts_of_rows_and_tokens_are_the_batch() {
        let (rows, seq_len, device) = (5, 12, Device::cpu());
        let mesh = Mesh::new(&[3, 2], &["dp", "cp"]).unwrap();
        let whole: Vec<i64> = (0..rows * seq_len).map(|at| at as i64).collect();
        for of_tokens in [Placement::shard(1), Placement::head_and_tail(1), Placement::Replicate] {
            let placements = [("dp", Placement::ragged(0, [2, 0, 3])), ("cp", of_tokens.clone())];
            let sharding = Sharding::new(&mesh, placements, &[rows, seq_len]).unwrap();
            let mut seen = vec![0; rows * seq_len];
            for rank in 0..mesh.len() {
                let part = BatchPart::of(sharding.clone(), rank);
                let own = part.rows.start * seq_len..part.rows.end * seq_len;
                let ids = part.select(&whole[own], seq_len);
                let ids = Tensor::from_slice(&device, &part.shape(), &ids).unwrap();
                let ids = part.tensor(ids).unwrap();
                assert_eq!(ids.global_shape()[..], [rows, seq_len]);
                for id in ids.local().to_vec::<i64>().unwrap() {
                    seen[id as usize] += 1;
                }
            }
            let copies = if of_tokens == Placement::Replicate { 2 } else { 1 };
            assert_eq!(seen, vec![copies; rows * seq_len], "{of_tokens}");
        }
    }
}
