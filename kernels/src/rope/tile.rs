//! How heads that fit in registers are distributed over lanes.
//!
//! A few lanes of a warp share a head. A lane owns *chunks*: a vector of the first half of the
//! rotated features, and the vector H features later. In either style both features of a pair are
//! in one chunk, so both styles use the same accesses, and consecutive lanes access consecutive
//! vectors. Features that are not rotated follow, vector by vector.

use super::{Direction, Heads, Style};
use crate::assembler::{F32, Pred, U32};
use crate::dtype::Dtype;

/// Maximum number of chunks per lane.
const MAX_CHUNKS: u32 = 2;

/// Maximum number of pass-through vectors per lane.
const MAX_PASSED: u32 = 4;

/// How heads are distributed over lanes. Known when the kernel is generated, so all loops unroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadTile {
    pub(super) dtype: Dtype,
    pub(super) style: Style,
    features: u32,
    pairs: u32,
    lanes: u32,
}

impl HeadTile {
    /// Threads per CTA.
    pub(crate) const THREADS: u32 = 128;

    /// The tile for `heads`. `None` if a head or its halves are not whole 16-byte vectors, if no
    /// features are rotated, or if a head does not fit in registers.
    pub(crate) fn new(dtype: Dtype, style: Style, heads: &Heads) -> Option<HeadTile> {
        let Heads { features, pairs, .. } = *heads;
        let per_vector = dtype.per_vector();
        let whole = features.is_multiple_of(per_vector) && pairs.is_multiple_of(per_vector);
        if !whole || pairs == 0 {
            return None;
        }

        let lanes = (pairs / per_vector).min(32).next_power_of_two();
        let tile = HeadTile { dtype, style, features, pairs, lanes };
        let fits = tile.chunks() <= MAX_CHUNKS && tile.passed() <= MAX_PASSED;
        fits.then_some(tile)
    }

    /// Elements per head.
    pub(crate) fn features(self) -> u32 {
        self.features
    }

    /// Elements per vector.
    pub(crate) fn per_vector(self) -> u32 {
        self.dtype.per_vector()
    }

    /// Elements per thread.
    pub(crate) fn elements(self) -> u32 {
        self.vectors().len() as u32 * self.per_vector()
    }

    /// Lanes per head.
    pub(crate) fn lanes(self) -> u32 {
        self.lanes
    }

    /// Heads per CTA of [`HeadTile::THREADS`].
    pub(crate) fn rows(self) -> u32 {
        Self::THREADS / self.lanes
    }

    /// The part of a kernel's name for this tile: `bf16_half_d128_h64`.
    pub(crate) fn name(self) -> String {
        let (dtype, style) = (self.dtype.name(), self.style.name());
        format!("{dtype}_{style}_d{}_h{}", self.features, self.pairs)
    }

    /// Rotates the features of a thread, in the order of [`HeadTile::columns`].
    #[track_caller]
    pub(crate) fn rotated<'k>(
        self,
        direction: Direction,
        values: &[F32<'k>],
        angles: &[[F32<'k>; 2]],
    ) -> Vec<F32<'k>> {
        let per_vector = self.dtype.per_vector() as usize;
        let mut rotated = values.to_vec();
        for (i, [cos, sin]) in angles.iter().enumerate() {
            let (chunk, pair) = (i / per_vector * 2 * per_vector, i % per_vector);
            let [a, b] = match self.style {
                Style::Half => [chunk + pair, chunk + per_vector + pair],
                Style::Interleaved => [chunk + 2 * pair, chunk + 2 * pair + 1],
            };
            [rotated[a], rotated[b]] = direction.rotate([values[a], values[b]], [*cos, *sin]);
        }
        rotated
    }

    /// The first element of each vector of a lane, and whether the vector is within the head.
    #[track_caller]
    pub(crate) fn columns<'k>(self, lane: U32<'k>, exists: Pred<'k>) -> Vec<(U32<'k>, Pred<'k>)> {
        let column = lane * self.dtype.per_vector();
        let vectors = self.vectors_at(column, exists).into_iter();
        vectors.map(|(first, exists)| (column + first, exists)).collect()
    }

    /// The first element of each vector of lane 0, and whether the vector of the lane whose first
    /// element is `column` is within an existing head.
    #[track_caller]
    pub(super) fn vectors_at<'k>(self, column: U32<'k>, exists: Pred<'k>) -> Vec<(u32, Pred<'k>)> {
        let step = self.lanes * self.dtype.per_vector();
        let in_line = |i: u32, line: u32| match line - i * step >= step {
            true => exists,
            false => exists & column.lt(line - i * step),
        };
        let chunks = (0..self.chunks()).flat_map(|i| [in_line(i, self.pairs); 2]);
        let passed = (0..self.passed()).map(|i| in_line(i, self.features - 2 * self.pairs));
        self.vectors().into_iter().zip(chunks.chain(passed)).collect()
    }

    /// Whether the vector of lane 0 that begins at `first` has angles: one per feature in the half
    /// style, where they are those of the first half, and one per two features in the interleaved
    /// style.
    pub(super) fn has_angles(self, first: u32) -> bool {
        match self.style {
            Style::Half => first < self.pairs,
            Style::Interleaved => first < 2 * self.pairs,
        }
    }

    fn chunks(self) -> u32 {
        (self.pairs / self.dtype.per_vector()).div_ceil(self.lanes)
    }

    fn passed(self) -> u32 {
        let vectors = (self.features - 2 * self.pairs) / self.dtype.per_vector();
        vectors.div_ceil(self.lanes)
    }

    /// The first element of each vector of lane 0, in register order.
    fn vectors(self) -> Vec<u32> {
        let step = self.lanes * self.dtype.per_vector();
        let chunks = (0..self.chunks()).flat_map(|i| [i * step, self.pairs + i * step]);
        let passed = (0..self.passed()).map(|i| 2 * self.pairs + i * step);
        chunks.chain(passed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(dtype: Dtype, features: u32, pairs: u32) -> Option<HeadTile> {
        let heads = Heads { rows: 1, positions: 1, heads: 1, features, pairs };
        HeadTile::new(dtype, Style::Half, &heads)
    }

    /// Every element of a head belongs to exactly one lane, and no lane has more vectors than fit.
    #[test]
    fn tiles_cover_their_heads() {
        for dtype in Dtype::ALL {
            for features in 1..600 {
                for pairs in 0..=features / 2 {
                    let Some(tile) = tile(dtype, features, pairs) else {
                        continue;
                    };
                    let step = tile.lanes * dtype.per_vector();
                    let reach = |count: u32, line: u32| {
                        assert!(count * step >= line && count * step < line + step, "{tile:?}");
                    };
                    reach(tile.chunks(), pairs);
                    reach(tile.passed(), features - 2 * pairs);
                    assert!(tile.lanes.is_power_of_two() && tile.lanes <= 32);
                }
            }
        }
    }

    #[test]
    fn heads_that_do_not_fit_have_no_tile() {
        assert!(tile(Dtype::Bf16, 128, 64).is_some());
        assert!(tile(Dtype::Bf16, 128, 32).is_some());
        assert!(tile(Dtype::Bf16, 128, 60).is_none(), "halves are not whole vectors");
        assert!(
            tile(Dtype::Bf16, 130, 64).is_none(),
            "pass-through features are not whole vectors"
        );
        assert!(tile(Dtype::Bf16, 128, 0).is_none(), "nothing to rotate");
        assert!(tile(Dtype::F32, 2048, 1024).is_none(), "too long");
        assert!(tile(Dtype::F32, 512, 4).is_none(), "too many pass-through features");
    }
}
