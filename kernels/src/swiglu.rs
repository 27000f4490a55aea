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
use crate::dtype::{Dtype, Loaded};
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
        let Call { gate_up, y, rows, features } = self.parameters(k);
        let dtype = self.dtype;

        each_access(k, dtype, self.form, [rows, features.wide()], |accesses| {
            let pairs: Vec<_> = accesses.iter().map(|it| it.load_pair(gate_up)).collect();
            for (access, [gate, up]) in accesses.iter().zip(pairs) {
                let (gate, up) = (gate.widen(), up.widen());
                access.store(access.in_row(y), |i| product(gate[i], up[i]));
            }
        });
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
        let SwiGluGradCall { gate_up, dy, dgate_up, rows, features } = self.parameters(k);
        let dtype = self.dtype;

        each_access(k, dtype, self.form, [rows, features.wide()], |accesses| {
            for access in accesses {
                let [gate, up] = access.load_pair(gate_up);
                let dy = access.load(access.in_row(dy)).widen();
                let (gate, up) = (gate.widen(), up.widen());
                let slopes = (0..dy.len()).map(|i| slopes(gate[i], up[i], dy[i]));
                let slopes: Vec<[F32<'_>; 2]> = slopes.collect();
                for (half, to) in access.halves(dgate_up).into_iter().enumerate() {
                    access.store(to, |i| slopes[i][half]);
                }
            }
        });
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

/// Consecutive elements in a row of \[R, F\], and in both halves of a row of \[R, 2, F\].
struct Access<'k> {
    dtype: Dtype,
    /// The number of elements: a vector, or one.
    width: u32,
    exists: Pred<'k>,
    /// The index of the row's first element in \[R, F\].
    row: U64<'k>,
    column: U64<'k>,
    features: U64<'k>,
}

impl<'k> Access<'k> {
    /// The address in a matrix \[R, F\].
    #[track_caller]
    fn in_row(&self, matrix: GlobalAddress<'k>) -> GlobalAddress<'k> {
        matrix.byte_add((self.row + self.column) * u64::from(self.dtype.size()))
    }

    /// The addresses in both halves of a tensor \[R, 2, F\].
    #[track_caller]
    fn halves(&self, pairs: GlobalAddress<'k>) -> [GlobalAddress<'k>; 2] {
        let size = u64::from(self.dtype.size());
        let first = pairs.byte_add((self.row * 2 + self.column) * size);
        [first, first.byte_add(self.features * size)]
    }

    #[track_caller]
    fn load(&self, from: GlobalAddress<'k>) -> Loaded<'k> {
        Loaded::new(self.dtype, self.width, self.exists, from)
    }

    #[track_caller]
    fn load_pair(&self, pairs: GlobalAddress<'k>) -> [Loaded<'k>; 2] {
        self.halves(pairs).map(|half| self.load(half))
    }

    /// Rounds and stores the elements.
    #[track_caller]
    fn store(&self, to: GlobalAddress<'k>, value: impl Fn(usize) -> F32<'k>) {
        Loaded::rounded(self.dtype, self.width, value).store_if(self.exists, to);
    }
}

/// Calls `body` with the accesses of a thread that are in flight together: once, or in a loop over
/// the CTA's row.
#[track_caller]
fn each_access<'k>(
    k: &'k Kernel,
    dtype: Dtype,
    form: Form,
    [rows, features]: [U64<'k>; 2],
    body: impl FnOnce(&[Access<'k>]),
) {
    let access = |width, exists, row, column: U32<'k>| Access {
        dtype,
        width,
        exists,
        row,
        column: column.wide(),
        features,
    };
    match form {
        Form::Vectors { per_thread } => {
            let bits = dtype.per_vector().trailing_zeros();
            let a_row = features.low() >> bits;
            let count = rows.low() * a_row;
            let first = k.cta().mad(THREADS * per_thread, k.thread());
            let accesses = (0..per_thread).map(|i| {
                let vector = first + i * THREADS;
                let row = vector / a_row;
                let column = (vector - row * a_row) << bits;
                let (exists, row) = (vector.lt(count), row.wide() * features);
                access(dtype.per_vector(), exists, row, column)
            });
            body(&accesses.collect::<Vec<_>>());
        }
        Form::Loop => {
            let (features, always) = (features.low(), k.constant(true));
            let row = k.cta().mul_wide(features);
            k.for_range(k.thread(), features, THREADS, |column| {
                body(&[access(1, always, row, column)]);
            });
        }
    }
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
