//! Grouped matrix products: ragged groups of rows, one matrix per group, as in the experts of a
//! mixture-of-experts layer.
//!
//! Legend: C capacity in rows, G groups, I input features, O output features. Group g has the rows
//! `offsets[g]..offsets[g + 1]`, possibly none. Rows after the last offset are not read; in results
//! they are unspecified (currently zero). FLOPs are counted for all C rows, because only the device
//! knows how many are used.

use crate::cpu::gemm::{self, MatrixMut, MatrixRef, Update};
use crate::cpu::moe::check_offsets;
use crate::cpu::rows::Flat;
use crate::cpu::{BLOCK, for_blocks};
use crate::launch::grouped_matmul as launch;
use crate::launch::matmul::{Matrices, Product};
use crate::ops::contiguous;
use crate::ops::matmul::{matrices, update};
use crate::{Accumulator, Call, Float, Result, Signature, Tensor, for_float};

static GROUPED_MATMUL_NT: Signature = Signature::new(
    "grouped_matmul_nt",
    "x: F[c! i], w: F[g! o i], offsets: i64[b!] -> y: F[c o]",
    2,
)
.linear_in(&["x", "w"]);
static GROUPED_MATMUL_GRAD_INPUT: Signature = Signature::new(
    "grouped_matmul_grad_input",
    "dy: F[c! o], w: F[g! o i], offsets: i64[b!] -> dx: F[c i]",
    2,
)
.linear_in(&["dy", "w"]);
static GROUPED_MATMUL_GRAD_WEIGHT: Signature = Signature::new(
    "grouped_matmul_grad_weight_into",
    "dy: F[c! o], x: F[c! i], offsets: i64[b!], into: A[g! o i] -> into: A[g o i]",
    2,
)
.linear_in(&["dy", "x"]);

pub(super) static SIGNATURES: &[&Signature] =
    &[&GROUPED_MATMUL_NT, &GROUPED_MATMUL_GRAD_INPUT, &GROUPED_MATMUL_GRAD_WEIGHT];

/// y = x w_g^T for the rows of each group g: one linear layer per expert, with the weight layout of
/// Hugging Face. Accumulated in f32 (f64 for f64) and rounded once.
///
/// # Shapes
/// `x` [C, I], `w` [G, O, I], both of one float dtype and with any strides, `offsets` [G + 1] i64;
/// returns [C, O].
///
/// # Errors
/// For offsets that do not start at 0, decrease, or exceed the rows. On a GPU such offsets give
/// zeros, and are reported at the next synchronization.
pub fn grouped_matmul_nt(x: &Tensor, w: &Tensor, offsets: &Tensor) -> Result<Tensor> {
    let mut call = grouped(&GROUPED_MATMUL_NT, &[x, w, offsets])?;
    let (rows, width) = (call.extent("c"), call.extent("o"));
    let mut y = call.output(0)?;
    if call.device().is_gpu() {
        let operands = [&Matrices::row_major(x)?, &Matrices::new(&w.local().transpose(1, 2)?)?];
        call.launch(|gpu| {
            let y = Product::uninit(gpu, &y)?;
            launch::rows_by_group(gpu, operands, offsets, &y)
        })?;
        return Ok(y.finish());
    }

    let offsets = contiguous(offsets)?;
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let (x_read, w_read) = (x.read::<T>()?, w.read::<T>()?);
            let (x, w) = (matrices(x, &x_read), matrices(w, &w_read));
            let y = (y.slice::<T>()?, [rows, width]);
            multiply(call.name(), x, w.transposed(), &Flat::new(&offsets)?, y)
        })
    })?;
    Ok(y.finish())
}

/// dx = dy w_g for the rows of each group g: the gradient of [`grouped_matmul_nt`] with respect to
/// `x`.
///
/// # Shapes
/// `dy` [C, O], `w` [G, O, I], `offsets` [G + 1] i64; returns [C, I].
///
/// # Errors
/// As [`grouped_matmul_nt`].
pub fn grouped_matmul_grad_input(dy: &Tensor, w: &Tensor, offsets: &Tensor) -> Result<Tensor> {
    let mut call = grouped(&GROUPED_MATMUL_GRAD_INPUT, &[dy, w, offsets])?;
    let (rows, width) = (call.extent("c"), call.extent("i"));
    let mut dx = call.output(0)?;
    if call.device().is_gpu() {
        let operands = [&Matrices::row_major(dy)?, &Matrices::new(w)?];
        call.launch(|gpu| {
            let dx = Product::uninit(gpu, &dx)?;
            launch::rows_by_group(gpu, operands, offsets, &dx)
        })?;
        return Ok(dx.finish());
    }

    let offsets = contiguous(offsets)?;
    call.compute(|| {
        for_float!(dy.dtype(), T => {
            let (dy_read, w_read) = (dy.read::<T>()?, w.read::<T>()?);
            let (dy, w) = (matrices(dy, &dy_read), matrices(w, &w_read));
            let dx = (dx.slice::<T>()?, [rows, width]);
            multiply(call.name(), dy, w, &Flat::new(&offsets)?, dx)
        })
    })?;
    Ok(dx.finish())
}

/// dw_g += dy_g^T x_g, over the rows of each group g: the gradient of [`grouped_matmul_nt`] with
/// respect to `w`. A group without rows adds zero.
///
/// # Shapes
/// `dy` [C, O], `x` [C, I], `offsets` [G + 1] i64; `into` [G, O, I] of the accumulator dtype.
///
/// # Errors
/// As [`grouped_matmul_nt`]; while the storage is in use.
pub fn grouped_matmul_grad_weight_into(
    dy: &Tensor,
    x: &Tensor,
    offsets: &Tensor,
    into: &mut Accumulator,
) -> Result<()> {
    let call = into.call(&GROUPED_MATMUL_GRAD_WEIGHT, &[dy, x, offsets])?;
    let operands = [dy, x, offsets, into.buffer()];
    let call = check_groups(&GROUPED_MATMUL_GRAD_WEIGHT, call, &operands)?;
    let range = into.buffer().contiguous_range(call.name())?;
    let shape = *into.buffer().shape();
    let strides = [(shape[1] * shape[2]) as isize];
    if call.device().is_gpu() {
        let operands = [&Matrices::row_major(dy)?, &Matrices::row_major(x)?];
        call.launch(|gpu| {
            let to = Product::into(gpu, into.buffer(), into.is_empty())?;
            launch::sum_by_group(gpu, operands, offsets, shape[0], &to)
        })?;
        return into.filled_by(&call);
    }

    let offsets = contiguous(offsets)?;
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let (dy_read, x_read) = (dy.read::<T>()?, x.read::<T>()?);
            let (dy, x) = (matrices(dy, &dy_read), matrices(x, &x_read));
            let offsets = Flat::<i64>::new(&offsets)?;
            check_offsets(call.name(), &offsets, dy.rows())?;

            let mut to = into.buffer().write::<<T as Float>::Wide>(call.name())?;
            let to = MatrixMut::batched(
                &mut to[range],
                0,
                [shape[1], shape[2]],
                [shape[2] as isize, 1],
                &shape[..1],
                &strides,
            );
            gemm::grouped_gemm_weight(dy, x, to, &offsets, update(into));
            Ok(())
        })
    })?;
    into.filled_by(&call)
}

/// Checks the operands, including that there are G + 1 offsets.
fn grouped(signature: &'static Signature, operands: &[&Tensor]) -> Result<Call> {
    check_groups(signature, signature.call(operands)?, operands)
}

fn check_groups(signature: &Signature, call: Call, operands: &[&Tensor]) -> Result<Call> {
    let (bounds, groups) = (call.extent("b"), call.extent("g"));
    if bounds != groups + 1 {
        let problem = format!("`offsets` needs {} elements for {groups} groups", groups + 1);
        return Err(signature.error(operands, problem));
    }
    let flops = 2 * call.extent("c") * call.extent("o") * call.extent("i");
    Ok(call.with_flops(flops as u64))
}

/// Multiplies the rows of each group, and sets the rows after the last group to zero.
fn multiply<T>(
    op: &'static str,
    x: MatrixRef<'_, T>,
    w: MatrixRef<'_, T>,
    offsets: &[i64],
    (y, extents): (&mut [T], [usize; 2]),
) -> Result<()>
where
    T: Float + gemm::Element + gemm::Output<<T as gemm::Element>::Sum>,
{
    let used = check_offsets(op, offsets, extents[0])? * extents[1];
    for_blocks(&mut y[used..], BLOCK, |_, unused| unused.fill(T::zeroed()));
    gemm::grouped_gemm(x, w, MatrixMut::new(y, extents), offsets, Update::Replace);
    Ok(())
}

#[cfg(test)]
mod tests;
