//! The gradient with respect to w: partial sums over blocks of heads, which
//! [`SumPartials`](crate::column_sums::SumPartials) then adds.

use crate::assembler::{
    F32, GlobalAddress, In, Kernel, Launch, Out, Ptx, Target, U32, Variable, Variant,
    sum_across_groups,
};
use crate::column_sums::rows_per_partial;
use crate::dtype::Dtype;
use crate::params;
use crate::rope::{
    Direction, Form, Head, HeadCoordinates, HeadStrides, HeadTile, Heads, Style, TableStrides,
};
use crate::row::{Values, element};

/// Threads per CTA.
const THREADS: u32 = 256;

/// For longer heads, one row of sums per warp would not fit in static shared memory.
const MAX_FEATURES: u32 = 1024;

/// Heads per thread whose loads are in flight together: two if the sums leave enough registers.
fn heads_in_flight(tile: HeadTile) -> u32 {
    if tile.elements() <= 16 { 2 } else { 1 }
}

/// partial_pd = sum over the heads r of block p of dz_rd x_rd inv_rms_r,
/// where dz = inverse_rotate(dy).
///
/// The blocks are those of [`rows_per_partial`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormRopeGradWeight {
    form: Form,
}

impl NormRopeGradWeight {
    /// The kernel for `heads`. `aligned`: whether all heads and rows of tables begin at multiples
    /// of 16 bytes.
    pub fn new(dtype: Dtype, style: Style, heads: &Heads, aligned: bool) -> NormRopeGradWeight {
        let fits = heads.features <= MAX_FEATURES;
        NormRopeGradWeight { form: Form::new(dtype, style, heads, aligned && fits) }
    }

    /// The launch over these heads; `None` if there are no heads.
    pub fn launch(&self, heads: &Heads) -> Option<Launch> {
        let rows = u64::from(heads.rows);
        let partials = rows.div_ceil(rows_per_partial(rows)) as u32;
        let across = match self.form {
            Form::Tile(_) => 1,
            Form::Loop(..) => heads.features.div_ceil(THREADS),
        };
        Launch::new([across, partials, 1], THREADS)
    }
}

params! {
    /// Arguments of [`NormRopeGradWeight`].
    pub struct NormRopeGradWeightArguments => Call {
        /// \[B, T, N, D\].
        dy: In,
        /// \[B, T, N, D\].
        x: In,
        /// \[B, T, N\] of f32, dense.
        inv_rms: In,
        /// \[B, T, H\] of f32.
        cos: In,
        /// \[B, T, H\] of f32.
        sin: In,
        /// \[P, D\] of f32; P = R.div_ceil(rows_per_partial(R)) with R = B T N.
        partials: Out,
        /// The extents.
        heads: Heads,
        /// Rows per partial sum, from [`rows_per_partial`].
        rows_per_partial: u32,
        /// Strides of dy.
        of_dy: HeadStrides,
        /// Strides of x.
        of_x: HeadStrides,
        /// Strides of cos.
        of_cos: TableStrides,
        /// Strides of sin.
        of_sin: TableStrides,
    }
}

impl Variant for NormRopeGradWeight {
    type Arguments = NormRopeGradWeightArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);
        match self.form {
            Form::Tile(tile) => in_registers(k, tile, &call),
            Form::Loop(dtype, style) => by_features(k, dtype, style, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("norm_rope_grad_weight_{}", self.form.name())
    }
}

impl<'k> Call<'k> {
    /// The first head of this CTA's block, and the end of the block.
    #[track_caller]
    fn block(&self, k: &'k Kernel) -> [U32<'k>; 2] {
        let start = k.cta_y() * self.rows_per_partial;
        let end = (start + self.rows_per_partial).min(self.heads.rows);
        [start, end]
    }

    /// The address of the partial sum of a feature.
    #[track_caller]
    fn partial(&self, k: &'k Kernel, feature: U32<'k>) -> GlobalAddress<'k> {
        let line = k.cta_y().mul_wide(self.heads.features);
        self.partials.element_wide::<f32>(line + feature.wide())
    }

    /// `dz * x * inv_rms` for each feature of a head.
    #[track_caller]
    fn products(&self, head: &Head<'k>) -> Values<'k> {
        let (dy, x) = (head.load(self.dy, &self.of_dy), head.load(self.x, &self.of_x));
        let angles = head.angles([(self.cos, self.of_cos), (self.sin, self.of_sin)]);
        let inv_rms = head.row.load_scalar(self.inv_rms);
        let dz = head.rotated(Direction::Inverse, &dy, angles);
        head.row.map([&dz, &x], move |[dz, x]| dz * (x * inv_rms))
    }
}

/// Each lane sums its features over its heads. Then the sums are added over the groups of a warp,
/// and over the warps of the CTA, in order.
fn in_registers<'k>(k: &'k Kernel, tile: HeadTile, call: &Call<'k>) {
    let group = k.thread() >> tile.lanes().trailing_zeros();
    let lane = k.thread() & (tile.lanes() - 1);
    let groups = THREADS / tile.lanes();
    let [start, end] = call.block(k);

    let sums: Vec<Variable<'k, f32>> = (0..tile.elements()).map(|_| k.var(0.0_f32)).collect();
    let in_flight = heads_in_flight(tile);
    let step = groups * in_flight;
    k.for_range(start + group, end, step, |first| {
        let heads = (0..in_flight).map(|i| {
            let index = first + i * groups;
            let head = Head::new(k, tile, &call.heads, [index, lane], index.lt(end));
            let products = call.products(&head);
            (head, products)
        });
        for (head, products) in heads.collect::<Vec<_>>() {
            let products = head.row.kept(&products).expect("a head in registers");
            for (sum, product) in sums.iter().zip(products) {
                sum.add(product);
            }
        }
    });

    let of_warp = sums.iter().map(|sum| sum_across_groups(k, sum.get(), tile.lanes()));
    let of_warp: Vec<F32<'k>> = of_warp.collect();
    let features = tile.features();
    let line = padded(features - 1) + 1;
    let shared = k.shared::<f32>(THREADS / 32 * line);
    let of_this_warp = shared.byte_add(k.warp() * (4 * line));
    let vectors = of_warp.chunks_exact(tile.per_vector() as usize);
    let columns = tile.columns(lane, k.lane().lt(tile.lanes()));
    for (values, (column, exists)) in vectors.zip(columns) {
        k.if_(exists, || {
            for (i, value) in (0..).zip(values) {
                of_this_warp.element::<f32>(padded_at(column + i)).store(*value);
            }
        });
    }
    k.barrier();

    k.for_range(k.thread(), features, THREADS, |feature| {
        let first = shared.element::<f32>(padded_at(feature));
        let of_warp = |warp: u32| first.offset(4 * line * warp).load::<f32>();
        let total = (1..THREADS / 32).fold(of_warp(0), |sum, warp| sum + of_warp(warp));
        call.partial(k, feature).store(total);
    });
}

/// The position of a feature in a row of shared memory. Rows have one padding word after every 32,
/// so that lanes one vector apart use different banks.
fn padded(feature: u32) -> u32 {
    feature + feature / 32
}

/// [`padded`] for a feature in a register.
#[track_caller]
fn padded_at(feature: U32<'_>) -> U32<'_> {
    feature + (feature >> 5)
}

/// Each thread owns one feature and loops over the heads of the CTA's block. No thread has both
/// features of a pair, so the rotation is written again, per feature.
fn by_features<'k>(k: &'k Kernel, dtype: Dtype, style: Style, call: &Call<'k>) {
    let shape = &call.heads;
    let feature = k.cta().mad(THREADS, k.thread());
    let turns = feature.lt(shape.pairs << 1);
    let [pair, other, second] = match style {
        Style::Half => {
            let second = feature.ge(shape.pairs);
            let pair = second.select(feature - shape.pairs, feature);
            let other = second.select(pair, feature + shape.pairs);
            [pair, other, second.select(1u32, 0)]
        }
        Style::Interleaved => [feature >> 1, feature ^ 1, feature & 1],
    };

    let [start, end] = call.block(k);
    let sum = k.var(0.0_f32);
    let exists = feature.lt(shape.features);
    k.if_(exists, || {
        k.for_range(start, end, 1, |row| {
            let coordinates = HeadCoordinates::new(shape, row);
            let dy = coordinates.strided(dtype, call.dy, &call.of_dy);
            let x = coordinates.strided(dtype, call.x, &call.of_x);
            let own = dtype.load(element(dtype, dy, feature));
            let other = dtype.load_if(turns, element(dtype, dy, other));
            let [cos, sin] =
                [(call.cos, call.of_cos), (call.sin, call.of_sin)].map(|(table, strides)| {
                    let table = coordinates.in_table(table, &strides);
                    element(Dtype::F32, table, pair).load_if::<f32>(turns)
                });
            // Inverse rotation: (a, b) -> (a cos + b sin, b cos - a sin).
            let sin = second.differs(0).select(-sin, sin);
            let dz = turns.select(own * cos + other * sin, own);
            let inv_rms = coordinates.scalar(call.inv_rms).load::<f32>();
            sum.add(dz * (dtype.load(element(dtype, x, feature)) * inv_rms));
        });
        call.partial(k, feature).store(sum.get());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { rows: 600, positions: 300, heads: 2, features: 64, pairs: 32 };

    #[test]
    fn sums_of_the_longest_heads_fit_in_static_memory() {
        for dtype in Dtype::ALL {
            for features in [MAX_FEATURES, 2 * MAX_FEATURES] {
                let heads = Heads { features, pairs: features / 4, ..HEADS };
                let variant = NormRopeGradWeight::new(dtype, Style::Half, &heads, true);
                assert_eq!(variant.ptx().dynamic_shared, 0);
            }
        }
    }

    #[test]
    fn every_block_has_a_cta() {
        let grid = |heads: Heads, aligned| {
            let variant = NormRopeGradWeight::new(Dtype::F32, Style::Half, &heads, aligned);
            variant.launch(&heads).map(|launch| launch.grid)
        };
        assert_eq!(grid(HEADS, true), Some([1, 10, 1]));
        let long = Heads { features: 600, ..HEADS };
        assert_eq!(grid(long, false), Some([3, 10, 1]));
        assert_eq!(grid(Heads { rows: 0, ..HEADS }, true), None);
    }
}
