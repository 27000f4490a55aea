//! Functions of rows, and sums over rows, on any device.

use std::borrow::Cow;
use std::ops::Deref;

use meshgrad_error::bail;

use super::{dense_rows, summed_in};
use crate::cpu::{column_sums, row_function as cpu};
use crate::launch::{column_sums as sums, row_function as launch};
use crate::{
    Accumulator, Call, Result, RowFunction, Signature, Tensor, UninitTensor, for_float, ops,
};

/// The value of `f` at each element of `y`, computed in f32 (f64 for f64) and rounded once. Use it
/// to implement a fused op over rows.
///
/// On a GPU this is one kernel. If a row fits into registers, each operand is read once. The order
/// of a sum depends only on the row's length.
///
/// ```
/// use meshgrad_runtime::{Device, Number, Result, RowFunction, Signature, Tensor, ops};
///
/// static CENTER: Signature = Signature::new("center", "x: F[.. d!] -> y: F[.. d]", 2);
///
/// /// x - mean(x).
/// struct Center {
///     features: f64,
/// }
///
/// impl RowFunction<1, 1> for Center {
///     #[inline(always)]
///     fn summand<W: Number>(&self, _: usize, [x]: [W; 1], _: [W; 1]) -> W {
///         x
///     }
///
///     #[inline(always)]
///     fn number<W: Number>(&self, _: usize, [sum]: [W; 1]) -> W {
///         sum / W::constant(self.features)
///     }
///
///     #[inline(always)]
///     fn value<W: Number>(&self, [x]: [W; 1], [mean]: [W; 1]) -> W {
///         x - mean
///     }
/// }
///
/// fn center(x: &Tensor) -> Result<Tensor> {
///     let mut call = CENTER.call(&[x])?;
///     let mut y = call.output(0)?;
///     let features = call.extent("d") as f64;
///     ops::map_rows(&call, &Center { features }, [x], [], &mut y, &mut [])?;
///     Ok(y.finish())
/// }
///
/// # fn main() -> Result<()> {
/// let x = Tensor::from_slice(&Device::cpu(), &[1, 3], &[1.0f32, 2.0, 6.0])?;
/// assert_eq!(center(&x)?.to_vec::<f32>()?, [-2.0, -1.0, 3.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Shapes
/// `y` [.., D], f64, f32 or bf16; `operands` of its dtype, each [.., D] like `y` or \[D\], which all
/// rows share. `given` has [`RowFunction::GIVEN`] tensors [..], one number per row, in the
/// accumulator dtype. `numbers` is empty, or has a tensor like those for each computed number.
///
/// # Errors
/// For other shapes or dtypes, or another count of `given` or `numbers`; on a GPU when `f` has too
/// many operations or constants.
pub fn map_rows<const N: usize, const S: usize, const G: usize, F: RowFunction<N, S>>(
    call: &Call,
    f: &F,
    operands: [&Tensor; N],
    given: [&Tensor; G],
    y: &mut UninitTensor,
    numbers: &mut [UninitTensor],
) -> Result<()> {
    check::<N, S, F>(call, operands, &given, y, numbers)?;
    let given = contiguous(given)?;
    let given = given.each_ref().map(Deref::deref);
    if call.device().is_gpu() {
        let operands = contiguous(operands)?;
        let operands = operands.each_ref().map(Deref::deref);
        return call.launch(|gpu| launch::map_rows(gpu, f, operands, given, y, numbers));
    }

    let shape = *y.shape();
    let operands = each(operands, |x| dense_rows(&x.local_broadcast_to(&shape)?))?;
    let operands = operands.each_ref();
    call.compute(|| {
        for_float!(y.dtype(), T => {
            let numbers: Vec<_> = numbers.iter_mut().map(UninitTensor::slice).collect::<Result<_>>()?;
            cpu::map_rows::<T, N, S, F>(f, operands, &given, y.slice()?, numbers)
        })
    })
}

/// The extent `d`, by which a mean divides; 1 for rows without elements, whose mean is 0.
pub(super) fn features(call: &Call) -> f64 {
    call.extent("d").max(1) as f64
}

/// `to` += the sum over all rows of the value of `f`, of whose numbers all are given: the gradient of
/// a weight that all rows share. Use it to implement the gradient of a fused op over rows.
///
/// Blocks of rows are summed separately in f32 (f64 for f64) and then added in order. The blocks
/// depend only on the shape, so the bits are the same in every run.
///
/// # Shapes
/// `matrices` [.., D], at least one, of one float dtype; `numbers` [..] in the accumulator dtype;
/// `to` \[D\] of any float dtype. The operands of `signature` are the matrices, the numbers, and
/// `to`, with shapes like these, where D is called `d`.
///
/// # Errors
/// While `to` is in use; without matrices or with more than 8 operands; on a GPU when `f` has too
/// many operations or constants.
pub fn sum_rows_into<const N: usize, const S: usize, F: RowFunction<N, S>>(
    signature: &'static Signature,
    f: &F,
    matrices: [&Tensor; N],
    numbers: [&Tensor; S],
    to: &mut Accumulator,
) -> Result<()> {
    let Some(first) = matrices.first().filter(|_| N + S <= MAX_OPERANDS) else {
        bail!(
            Invalid,
            "{}: {N} matrices and {S} numbers; sum_rows_into takes at least one matrix and at most \
             {MAX_OPERANDS} operands",
            signature.name()
        );
    };
    let (dtype, mut operands) = (first.dtype(), [*first; MAX_OPERANDS]);
    let wide = dtype.accumulator();
    summed_in(wide, to, |to| {
        for (place, operand) in operands.iter_mut().zip(matrices.iter().chain(&numbers)) {
            *place = *operand;
        }
        let call = to.call(signature, &operands[..N + S])?;
        let (matrices, numbers) = (each(matrices, dense_rows)?, contiguous(numbers)?);
        let matrices = matrices.each_ref();
        let numbers = numbers.each_ref().map(Deref::deref);
        let range = to.buffer().contiguous_range(call.name())?;
        let empty = to.is_empty();
        if call.device().is_gpu() {
            let to = (to.buffer(), empty);
            call.launch(|gpu| sums::sum_rows(gpu, &call, f, matrices, numbers, to))?;
        } else {
            let (rows, columns) = (call.rows(), call.extent("d"));
            let partials = rows.div_ceil(column_sums::rows_per_partial(columns));
            let mut partials = call.workspace(partials * columns, wide)?;
            call.compute(|| {
                for_float!(dtype, T => {
                    let mut written = to.buffer().write(call.name())?;
                    let (partials, to) = (partials.slice()?, (&mut written[range], empty));
                    column_sums::sum_rows::<T, N, S, F>(f, matrices, numbers, rows, partials, to)
                })
            })?;
        }
        to.filled_by(&call)
    })
}

/// The most operands of [`sum_rows_into`].
const MAX_OPERANDS: usize = 8;

/// The tensors, or copies of those that are not contiguous. It allocates no heap memory itself.
fn contiguous<const N: usize>(tensors: [&Tensor; N]) -> Result<[Cow<'_, Tensor>; N]> {
    let mut all = tensors.map(Cow::Borrowed);
    for place in &mut all {
        if !place.is_contiguous() {
            *place = Cow::Owned(ops::copy(place)?);
        }
    }
    Ok(all)
}

/// `f` of each tensor. It allocates no heap memory itself.
fn each<const N: usize>(
    tensors: [&Tensor; N],
    f: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<[Tensor; N]> {
    let mut all = tensors.map(Tensor::clone);
    for (place, tensor) in all.iter_mut().zip(tensors) {
        *place = f(tensor)?;
    }
    Ok(all)
}

fn check<const N: usize, const S: usize, F: RowFunction<N, S>>(
    call: &Call,
    operands: [&Tensor; N],
    given: &[&Tensor],
    y: &UninitTensor,
    numbers: &[UninitTensor],
) -> Result<()> {
    let refuse = |problem: String| {
        let op = call.name();
        bail!(Invalid, "{op}: {problem}")
    };
    let Some((features, rows)) = y.shape().split_last() else {
        return refuse("y is a scalar; map_rows needs rows [.., D]".to_owned());
    };
    let fits = |x: &&Tensor| {
        let like_y = x.shape() == y.shape() || **x.shape() == [*features];
        like_y && x.dtype() == y.dtype()
    };
    if let Some(other) = operands.into_iter().find(|x| !fits(x)) {
        let (dtype, shape) = (y.dtype(), y.shape());
        return refuse(format!(
            "cannot map rows of {other:?} to {dtype}{shape}; cast it, and pass [.., D] like y or [D]"
        ));
    }

    let wide = y.dtype().accumulator();
    let one_per_row = |shape: &[usize], dtype| shape == rows && dtype == wide;
    if let Some(other) = given.iter().find(|it| !one_per_row(it.shape(), it.dtype())) {
        return refuse(format!("{other:?} is not one {wide} per row of {}", y.shape()));
    }
    if numbers.iter().any(|it| !one_per_row(it.shape(), it.dtype())) {
        return refuse(format!("a result is not one {wide} per row of {}", y.shape()));
    }
    let computed = S - F::GIVEN;
    if given.len() != F::GIVEN || ![0, computed].contains(&numbers.len()) {
        return refuse(format!(
            "{} numbers per row are given and {} written, but the function takes {} and computes {computed}",
            given.len(),
            numbers.len(),
            F::GIVEN
        ));
    }
    Ok(())
}
