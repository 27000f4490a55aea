//! The gated linear unit of feed-forward blocks (Shazeer 2020) and its gradient.
//!
//! Legend: R rows, F features. `gate_up` is contiguous \[R, 2, F\]; a row is gate, then up.
//!
//! ```text
//! y     = gate s up                      with s = 1 / (1 + e^-gate)
//! dgate = dy up (s (1 + gate (1 - s)))
//! dup   = dy (gate s)
//! ```
//!
//! The computation is in f32 and rounded once. Threads share nothing. The kernels are memory-bound
//! and move the minimum: 3 R F elements forward and 5 R F backward.
//!
//! There are two forms. If rows are whole 16-byte vectors, the vectors of all rows form one
//! sequence that is divided evenly among CTAs, whatever F is. A division by the vectors per row
//! finds a vector's row. Otherwise a CTA loops over one row.

use crate::assembler::{
    F32, GlobalAddress, In, Kernel, Launch, Out, Pred, Ptx, Target, U32, U64, Variant,
};
use crate::dtype::{Dtype, Vector};
use crate::elementary::sigmoid;
use crate::params;

/// Threads per CTA.
const THREADS: u32 = 256;

/// The distribution of elements over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// This many vectors per thread, [`THREADS`] apart, with their loads in flight together.
    Vectors { per_thread: u32 },
    /// Element by element, one CTA per row.
    Loop,
}

impl Form {
    fn new(dtype: Dtype, [rows, features]: [u64; 2], aligned: bool, per_thread: u32) -> Form {
        let per_vector = u64::from(dtype.per_vector());
        // The indices of threads past the last vector must also fit in a u32.
        let most = u64::from(u32::MAX - THREADS * per_thread);
        let few = rows.saturating_mul(features / per_vector) <= most;
        match aligned && features.is_multiple_of(per_vector) && few {
            true => Form::Vectors { per_thread },
            false => Form::Loop,
        }
    }

    fn launch(self, dtype: Dtype, [rows, features]: [u64; 2]) -> Option<Launch> {
        let ctas = match self {
            Form::Vectors { per_thread } => {
                let vectors = rows.saturating_mul(features / u64::from(dtype.per_vector()));
                vectors.div_ceil(u64::from(THREADS * per_thread))
            }
            Form::Loop => rows.min(rows.saturating_mul(features)),
        };
        Launch::new([u32::try_from(ctas).unwrap_or(u32::MAX), 1, 1], THREADS)
    }

    fn name(self, dtype: Dtype) -> String {
        let form = match self {
            Form::Vectors { .. } => "vectors",
            Form::Loop => "loop",
        };
        format!("{}_{form}", dtype.name())
    }
}

/// y = silu(gate) up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwiGlu {
    dtype: Dtype,
    form: Form,
}

impl SwiGlu {
    /// The kernel for `extents`, R and F. `aligned`: whether gate_up and y are 16-byte aligned.
    pub fn new(dtype: Dtype, extents: [u64; 2], aligned: bool) -> SwiGlu {
        let form = Form::new(dtype, extents, aligned, 2);
        SwiGlu { dtype, form }
    }

    /// The launch for the same extents; `None` if there are no elements.
    pub fn launch(&self, extents: [u64; 2]) -> Option<Launch> {
        self.form.launch(self.dtype, extents)
    }
}

params! {
    /// Arguments of [`SwiGlu`].
    pub struct SwiGluArguments => Call {
        /// \[R, 2, F\].
        gate_up: In,
        /// \[R, F\].
        y: Out,
        /// R.
        rows: u64,
        /// F.
        features: u32,
    }
}

impl Variant for SwiGlu {
    type Arguments = SwiGluArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call {
            gate_up,
            y,
            rows,
            features,
        } = self.parameters(k);
        let dtype = self.dtype;

        match self.form {
            Form::Vectors { per_thread } => {
                let positions = vectors(k, dtype, per_thread, [rows, features.wide()]);
                let loaded: Vec<[Vector<'_>; 2]> = positions
                    .iter()
                    .map(|(exists, position)| position.load_pair(dtype, *exists, gate_up))
                    .collect();
                for ((exists, position), pair) in positions.iter().zip(loaded) {
                    let [gate, up] = pair.map(|half| half.widen());
                    let value = dtype.round(|i| product(gate[i], up[i]));
                    value.store_if(*exists, position.in_row(dtype, y));
                }
            }
            Form::Loop => each_element(k, features, |position| {
                let [gate, up] = position.halves(dtype, gate_up).map(|half| dtype.load(half));
                dtype.store(position.in_row(dtype, y), product(gate, up));
            }),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("swiglu_{}", self.form.name(self.dtype))
    }
}

/// The gradient of [`SwiGlu`]: dgate and dup in one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwiGluGrad {
    dtype: Dtype,
    form: Form,
}

impl SwiGluGrad {
    /// The kernel for `extents`, R and F. `aligned`: whether gate_up, dy and dgate_up are 16-byte
    /// aligned.
    pub fn new(dtype: Dtype, extents: [u64; 2], aligned: bool) -> SwiGluGrad {
        let form = Form::new(dtype, extents, aligned, 1);
        SwiGluGrad { dtype, form }
    }

    /// The launch for the same extents; `None` if there are no elements.
    pub fn launch(&self, extents: [u64; 2]) -> Option<Launch> {
        self.form.launch(self.dtype, extents)
    }
}

params! {
    /// Arguments of [`SwiGluGrad`].
    pub struct SwiGluGradArguments => SwiGluGradCall {
        /// \[R, 2, F\].
        gate_up: In,
        /// \[R, F\].
        dy: In,
        /// \[R, 2, F\].
        dgate_up: Out,
        /// R.
        rows: u64,
        /// F.
        features: u32,
    }
}

impl Variant for SwiGluGrad {
    type Arguments = SwiGluGradArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let SwiGluGradCall {
            gate_up,
            dy,
            dgate_up,
            rows,
            features,
        } = self.parameters(k);
        let dtype = self.dtype;

        match self.form {
            Form::Vectors { per_thread } => {
                for (exists, position) in vectors(k, dtype, per_thread, [rows, features.wide()]) {
                    let pair = position.load_pair(dtype, exists, gate_up);
                    let dy = dtype.load_vector_if(exists, position.in_row(dtype, dy));
                    let ([gate, up], dy) = (pair.map(|half| half.widen()), dy.widen());
                    let slopes: Vec<[F32<'_>; 2]> = (0..dy.len())
                        .map(|i| slopes(gate[i], up[i], dy[i]))
                        .collect();
                    for (half, to) in position.halves(dtype, dgate_up).into_iter().enumerate() {
                        let values = dtype.round(|i| slopes[i][half]);
                        values.store_if(exists, to);
                    }
                }
            }
            Form::Loop => each_element(k, features, |position| {
                let [gate, up] = position.halves(dtype, gate_up).map(|half| dtype.load(half));
                let slopes = slopes(gate, up, dtype.load(position.in_row(dtype, dy)));
                for (to, slope) in position.halves(dtype, dgate_up).into_iter().zip(slopes) {
                    dtype.store(to, slope);
                }
            }),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        format!("swiglu_grad_{}", self.form.name(self.dtype))
    }
}

#[track_caller]
fn product<'k>(gate: F32<'k>, up: F32<'k>) -> F32<'k> {
    gate * sigmoid(gate) * up
}

/// Returns dgate and dup.
#[track_caller]
fn slopes<'k>(gate: F32<'k>, up: F32<'k>, dy: F32<'k>) -> [F32<'k>; 2] {
    let one = gate.kernel().constant(1.0);
    let s = sigmoid(gate);
    let slope = s * (one + gate * (one - s));
    [dy * up * slope, dy * (gate * s)]
}

/// A position in a row of \[R, F\], and in both halves of a row of \[R, 2, F\].
struct Position<'k> {
    /// The index of the row's first element in \[R, F\].
    row: U64<'k>,
    column: U64<'k>,
    features: U64<'k>,
}

impl<'k> Position<'k> {
    /// The address in a matrix \[R, F\].
    #[track_caller]
    fn in_row(&self, dtype: Dtype, matrix: GlobalAddress<'k>) -> GlobalAddress<'k> {
        matrix.byte_add((self.row + self.column) * u64::from(dtype.size()))
    }

    /// The addresses in both halves of a tensor \[R, 2, F\].
    #[track_caller]
    fn halves(&self, dtype: Dtype, pairs: GlobalAddress<'k>) -> [GlobalAddress<'k>; 2] {
        let size = u64::from(dtype.size());
        let first = pairs.byte_add((self.row * 2 + self.column) * size);
        [first, first.byte_add(self.features * size)]
    }

    #[track_caller]
    fn load_pair(
        &self,
        dtype: Dtype,
        exists: Pred<'k>,
        pairs: GlobalAddress<'k>,
    ) -> [Vector<'k>; 2] {
        self.halves(dtype, pairs)
            .map(|half| dtype.load_vector_if(exists, half))
    }
}

/// The vectors of a thread, and whether each exists.
#[track_caller]
fn vectors<'k>(
    k: &'k Kernel,
    dtype: Dtype,
    per_thread: u32,
    [rows, features]: [U64<'k>; 2],
) -> Vec<(Pred<'k>, Position<'k>)> {
    let a_row = features.low() >> dtype.per_vector().trailing_zeros();
    let count = rows.low() * a_row;
    let first = k.cta().mad(THREADS * per_thread, k.thread());
    let position = |i: u32| {
        let vector = first + i * THREADS;
        let row = vector / a_row;
        let column = (vector - row * a_row) << dtype.per_vector().trailing_zeros();
        let position = Position {
            row: row.wide() * features,
            column: column.wide(),
            features,
        };
        (vector.lt(count), position)
    };
    (0..per_thread).map(position).collect()
}

/// Emits a loop over this thread's elements of the CTA's row.
#[track_caller]
fn each_element<'k>(k: &'k Kernel, features: U32<'k>, body: impl Fn(Position<'k>)) {
    let row = k.cta().mul_wide(features);
    k.for_range(k.thread(), features, THREADS, |column| {
        body(Position {
            row,
            column: column.wide(),
            features: features.wide(),
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loop is used for rows that are unaligned or not whole vectors, and for more vectors than
    /// a u32 can count.
    #[test]
    fn the_form_follows_extents_and_alignment() {
        let entry = |extents, aligned| SwiGlu::new(Dtype::Bf16, extents, aligned).entry();
        assert_eq!(entry([3, 64], true), "swiglu_bf16_vectors");
        assert_eq!(entry([3, 64], false), "swiglu_bf16_loop");
        assert_eq!(entry([3, 65], true), "swiglu_bf16_loop");
        assert_eq!(entry([1 << 29, 64], true), "swiglu_bf16_loop");
    }

    #[test]
    fn rows_of_any_length_fill_ctas() {
        let launch = |extents| SwiGlu::new(Dtype::Bf16, extents, true).launch(extents);
        // 768 features are 96 vectors: 512 of them fill a CTA.
        assert_eq!(launch([64, 768]).map(|it| it.grid), Some([12, 1, 1]));
        assert_eq!(launch([5, 7]).map(|it| it.grid), Some([5, 1, 1]));
        assert_eq!(launch([0, 768]), None);
        assert_eq!(launch([5, 0]), None);
    }
}
