//! Heads in registers, for all kernels that rotate them.
//!
//! A few lanes of a warp share a head. A lane owns *chunks*: a vector of the first half of the
//! rotated features, and the vector H features later. In either style both features of a pair are
//! in one chunk, so both styles use the same accesses, and consecutive lanes access consecutive
//! vectors. Features that are not rotated follow, vector by vector.

use super::form::{Shape, Strides, StridesOfTable};
use super::{Direction, Heads, Style};
use crate::assembler::{F32, GlobalAddress, Kernel, Pred, S64, U32, group_sum};
use crate::dtype::{Dtype, Vector};

/// Maximum number of chunks per lane.
const MAX_CHUNKS: u32 = 2;

/// Maximum number of pass-through vectors per lane.
const MAX_PASSED: u32 = 4;

/// How heads are distributed over lanes. Known when the kernel is generated, so all loops unroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadTile {
    dtype: Dtype,
    style: Style,
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
        let Heads {
            features, pairs, ..
        } = *heads;
        let per_vector = dtype.per_vector();
        let whole = features.is_multiple_of(per_vector) && pairs.is_multiple_of(per_vector);
        if !whole || pairs == 0 {
            return None;
        }

        let lanes = (pairs / per_vector).min(32).next_power_of_two();
        let tile = HeadTile {
            dtype,
            style,
            features,
            pairs,
            lanes,
        };
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

    /// Rotates the features of a thread, given in the order of [`LoadedHead::widen`].
    #[track_caller]
    pub(crate) fn rotated<'k>(
        self,
        direction: Direction,
        values: &[F32<'k>],
        angles: &Angles<'k>,
    ) -> Vec<F32<'k>> {
        let per_vector = self.dtype.per_vector() as usize;
        let mut rotated = values.to_vec();
        for (i, [cos, sin]) in angles.0.iter().enumerate() {
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
        let exist = self.exist(column, exists);
        let starts = self.vectors().into_iter().map(|first| column + first);
        starts.zip(exist).collect()
    }

    /// For each vector of the lane that starts at `column`: whether it is within an existing head.
    #[track_caller]
    fn exist<'k>(self, column: U32<'k>, exists: Pred<'k>) -> Vec<Pred<'k>> {
        let step = self.lanes * self.dtype.per_vector();
        let in_line = |i: u32, line: u32| match line - i * step >= step {
            true => exists,
            false => exists & column.lt(line - i * step),
        };
        let chunks = (0..self.chunks()).flat_map(|i| [in_line(i, self.pairs); 2]);
        let passed = (0..self.passed()).map(|i| in_line(i, self.features - 2 * self.pairs));
        chunks.chain(passed).collect()
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

/// The coordinates of a head.
#[derive(Clone, Copy)]
pub(crate) struct HeadCoordinates<'k> {
    index: U32<'k>,
    batch: S64<'k>,
    position: S64<'k>,
    head: S64<'k>,
}

impl<'k> HeadCoordinates<'k> {
    /// Head `index`, counted in row-major order.
    #[track_caller]
    pub(crate) fn new(shape: &Shape<'k>, index: U32<'k>) -> HeadCoordinates<'k> {
        let token = index / shape.heads;
        let head = index - token * shape.heads;
        let batch = token / shape.positions;
        let position = token - batch * shape.positions;
        let signed = |x: U32<'k>| x.wide().signed();
        HeadCoordinates {
            index,
            batch: signed(batch),
            position: signed(position),
            head: signed(head),
        }
    }

    /// The address of the head in a strided tensor.
    #[track_caller]
    pub(crate) fn strided(
        &self,
        dtype: Dtype,
        tensor: GlobalAddress<'k>,
        strides: &Strides<'k>,
    ) -> GlobalAddress<'k> {
        let row = self.of_position(strides.batch, strides.position);
        let element = self.head.mad(strides.head, row).unsigned();
        tensor.byte_add(element * u64::from(dtype.size()))
    }

    /// The address of the head's row in a table of f32.
    #[track_caller]
    pub(crate) fn in_table(
        &self,
        table: GlobalAddress<'k>,
        strides: &StridesOfTable<'k>,
    ) -> GlobalAddress<'k> {
        let element = self.of_position(strides.batch, strides.position).unsigned();
        table.byte_add(element * 4u64)
    }

    #[track_caller]
    fn of_position(&self, batch: S64<'k>, position: S64<'k>) -> S64<'k> {
        self.batch.mad(batch, self.position * position)
    }

    /// The address of the head in a dense tensor.
    #[track_caller]
    pub(crate) fn dense(
        &self,
        dtype: Dtype,
        tensor: GlobalAddress<'k>,
        features: U32<'k>,
    ) -> GlobalAddress<'k> {
        tensor.byte_add(self.index.mul_wide(features) * u64::from(dtype.size()))
    }

    /// The address of the head's element in a dense vector with one f32 per head.
    #[track_caller]
    pub(crate) fn scalar(&self, vector: GlobalAddress<'k>) -> GlobalAddress<'k> {
        vector.element::<f32>(self.index)
    }
}

/// A head, and the thread's part of it.
pub(crate) struct Head<'k> {
    k: &'k Kernel,
    tile: HeadTile,
    coordinates: HeadCoordinates<'k>,
    features: U32<'k>,
    /// Index of the thread's first element in each half.
    column: U32<'k>,
    exists: Pred<'k>,
    /// For each of the thread's vectors: whether it is within an existing head.
    exist: Vec<Pred<'k>>,
    leads: Pred<'k>,
}

/// Vectors of a head, as stored in memory.
pub(crate) struct LoadedHead<'k>(Vec<Vector<'k>>);

impl<'k> LoadedHead<'k> {
    /// The elements as f32; 0 where the head or the vector does not exist.
    #[track_caller]
    pub(crate) fn widen(&self) -> Vec<F32<'k>> {
        self.0.iter().flat_map(Vector::widen).collect()
    }
}

/// Cosines and sines of a thread's pairs.
pub(crate) struct Angles<'k>(Vec<[F32<'k>; 2]>);

impl<'k> Head<'k> {
    /// Head `index`, if it `exists`, in lane `lane` of the lanes that share it.
    #[track_caller]
    pub(crate) fn new(
        k: &'k Kernel,
        tile: HeadTile,
        shape: &Shape<'k>,
        [index, lane]: [U32<'k>; 2],
        exists: Pred<'k>,
    ) -> Head<'k> {
        let column = lane * tile.dtype.per_vector();
        Head {
            k,
            tile,
            coordinates: HeadCoordinates::new(shape, index),
            features: shape.features,
            column,
            exists,
            exist: tile.exist(column, exists),
            leads: exists & lane.equals(0),
        }
    }

    /// The head of this thread in a kernel of [`HeadTile::THREADS`] threads.
    #[track_caller]
    pub(crate) fn of_thread(k: &'k Kernel, tile: HeadTile, shape: &Shape<'k>) -> Head<'k> {
        let (thread, bits) = (k.thread(), tile.lanes.trailing_zeros());
        let index = k.cta().mad(tile.rows(), thread >> bits);
        let lane = thread & (tile.lanes - 1);
        Head::new(k, tile, shape, [index, lane], index.lt(shape.rows))
    }

    /// Loads this head from a strided tensor.
    #[track_caller]
    pub(crate) fn load(&self, tensor: GlobalAddress<'k>, strides: &Strides<'k>) -> LoadedHead<'k> {
        self.load_from(self.coordinates.strided(self.tile.dtype, tensor, strides))
    }

    /// Loads this thread's features from a \[D\] vector.
    #[track_caller]
    pub(crate) fn load_vector(&self, vector: GlobalAddress<'k>) -> LoadedHead<'k> {
        self.load_from(vector)
    }

    /// Loads the element of this head from a dense vector with one f32 per head.
    #[track_caller]
    pub(crate) fn load_scalar(&self, vector: GlobalAddress<'k>) -> F32<'k> {
        self.coordinates.scalar(vector).load_if(self.exists)
    }

    /// Loads the angles of this head's position from both tables.
    #[track_caller]
    pub(crate) fn angles(
        &self,
        tables: [(GlobalAddress<'k>, StridesOfTable<'k>); 2],
    ) -> Angles<'k> {
        let [cos, sin] = tables.map(|(table, strides)| self.table(table, &strides));
        Angles(
            cos.into_iter()
                .zip(sin)
                .map(|(cos, sin)| [cos, sin])
                .collect(),
        )
    }

    /// Rounds and stores this head of a dense tensor; `values` in the order of
    /// [`LoadedHead::widen`].
    #[track_caller]
    pub(crate) fn store(&self, tensor: GlobalAddress<'k>, values: &[F32<'k>]) {
        let dtype = self.tile.dtype;
        let start = self.column_of(
            self.coordinates.dense(dtype, tensor, self.features),
            dtype.size(),
        );
        let vectors = self.tile.vectors().into_iter().zip(&self.exist);
        let values = values.chunks_exact(dtype.per_vector() as usize);
        for ((first, exists), values) in vectors.zip(values) {
            let to = start.offset(i64::from(first * dtype.size()));
            dtype.round(|i| values[i]).store_if(*exists, to);
        }
    }

    /// Stores one f32 for this head in a dense vector.
    #[track_caller]
    pub(crate) fn store_scalar(&self, vector: GlobalAddress<'k>, value: F32<'k>) {
        self.coordinates.scalar(vector).store_if(self.leads, value);
    }

    /// The sum over the lanes of this head, in all of them. All lanes of the warp must call it.
    #[track_caller]
    pub(crate) fn sum(&self, value: F32<'k>) -> F32<'k> {
        group_sum(self.k, value, self.tile.lanes)
    }

    #[track_caller]
    fn load_from(&self, start: GlobalAddress<'k>) -> LoadedHead<'k> {
        let dtype = self.tile.dtype;
        let start = self.column_of(start, dtype.size());
        let vectors = self.tile.vectors().into_iter().zip(&self.exist);
        let load = |(first, exists): (u32, &Pred<'k>)| {
            dtype.load_vector_if(*exists, start.offset(i64::from(first * dtype.size())))
        };
        LoadedHead(vectors.map(load).collect())
    }

    /// Loads the elements of a table for this thread's pairs, chunk by chunk.
    #[track_caller]
    fn table(&self, table: GlobalAddress<'k>, strides: &StridesOfTable<'k>) -> Vec<F32<'k>> {
        let start = self.coordinates.in_table(table, strides);
        let chunks = 2 * self.tile.chunks() as usize;
        let vectors = self.tile.vectors().into_iter().zip(&self.exist);
        // A vector of features has one angle per feature in the half style, and one per two
        // features in the interleaved style.
        let per_vector = self.tile.dtype.per_vector();
        let load = |(first, exists): (u32, &Pred<'k>)| match self.tile.style {
            Style::Half if first >= self.tile.pairs => Vec::new(),
            Style::Half => {
                let from = self.column_of(start, 4).offset(i64::from(4 * first));
                load_angles(*exists, from, per_vector)
            }
            Style::Interleaved => {
                let from = self.column_of(start, 2).offset(i64::from(2 * first));
                load_angles(*exists, from, per_vector / 2)
            }
        };
        vectors.take(chunks).flat_map(load).collect()
    }

    /// The address of the thread's first element in a row at `start` with elements of `size` bytes.
    #[track_caller]
    fn column_of(&self, start: GlobalAddress<'k>, size: u32) -> GlobalAddress<'k> {
        start.byte_add(self.column.mul_wide(size))
    }
}

/// Loads 2, 4 or 8 consecutive f32.
#[track_caller]
fn load_angles<'k>(exists: Pred<'k>, from: GlobalAddress<'k>, count: u32) -> Vec<F32<'k>> {
    match count {
        2 => from.load_vector_if::<f32, 2>(exists).to_vec(),
        _ => {
            let fours = 0..i64::from(count / 4);
            fours
                .flat_map(|i| from.offset(16 * i).load_vector_if::<f32, 4>(exists))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(dtype: Dtype, features: u32, pairs: u32) -> Option<HeadTile> {
        let heads = Heads {
            rows: 1,
            positions: 1,
            heads: 1,
            features,
            pairs,
        };
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
                        assert!(
                            count * step >= line && count * step < line + step,
                            "{tile:?}"
                        );
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
        assert!(
            tile(Dtype::Bf16, 128, 60).is_none(),
            "halves are not whole vectors"
        );
        assert!(
            tile(Dtype::Bf16, 130, 64).is_none(),
            "pass-through features are not whole vectors"
        );
        assert!(tile(Dtype::Bf16, 128, 0).is_none(), "nothing to rotate");
        assert!(tile(Dtype::F32, 2048, 1024).is_none(), "too long");
        assert!(
            tile(Dtype::F32, 512, 4).is_none(),
            "too many pass-through features"
        );
    }
}
