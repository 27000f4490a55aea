//! Matrix products. Operands may have any strides, so a transpose is a view.

use meshgrad_mesh::Sharding;

#[cfg(doc)]
use crate::Error;
use crate::cpu::gemm::{self, MatrixMut, MatrixRef, Update};
use crate::launch::matmul::{Matrices, Product, product};
use crate::{Accumulator, Call, Float, Layout, Result, Signature, Tensor, UninitTensor, for_float};

pub(super) static LINEAR: Signature =
    Signature::new("linear", "x: F[.. i], w: F[o i] -> y: F[.. o]", 2).linear_in(&["x", "w"]);
pub(super) static LINEAR_GRAD_INPUT: Signature =
    Signature::new("linear_grad_input", "dy: F[.. o], w: F[o i] -> dx: F[.. i]", 2)
        .linear_in(&["dy", "w"]);
static LINEAR_GRAD_WEIGHT: Signature = Signature::new(
    "linear_grad_weight_into",
    "dy: F[.. o], x: F[.. i], into: A[o i] -> into: A[o i]",
    2,
)
.linear_in(&["dy", "x"]);
static MATMUL: Signature =
    Signature::new("matmul", "a: F[.. m k], b: F[.. k n] -> c: F[.. m n]", 2)
        .linear_in(&["a", "b"]);
static MATMUL_INTO: Signature = Signature::new(
    "matmul_into",
    "a: F[.. m k], b: F[.. k n], into: A[.. m n] -> into: A[.. m n]",
    2,
)
.linear_in(&["a", "b"]);

pub(super) static SIGNATURES: &[&Signature] =
    &[&LINEAR, &LINEAR_GRAD_INPUT, &LINEAR_GRAD_WEIGHT, &MATMUL, &MATMUL_INTO];

/// y = x w^T: a linear layer without bias, with the weight layout of Hugging Face. Accumulated in
/// f32 (f64 for f64) and rounded once.
///
/// # Shapes
/// `x` [.., I], `w` [O, I], both of one float dtype; returns [.., O].
pub fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let mut call = LINEAR.call(&[x, w])?;
    let mut y = call.output(0)?;
    rows_product(&call, [x, &w.local().transpose(0, 1)?], &mut y, 0)?;
    Ok(y.finish())
}

/// dx = dy w: the gradient of [`linear`] with respect to `x`.
///
/// # Shapes
/// `dy` [.., O], `w` [O, I]; returns [.., I].
pub fn linear_grad_input(dy: &Tensor, w: &Tensor) -> Result<Tensor> {
    let mut call = LINEAR_GRAD_INPUT.call(&[dy, w])?;
    let mut dx = call.output(0)?;
    rows_product(&call, [dy, &w.local()], &mut dx, 0)?;
    Ok(dx.finish())
}

/// x w, for `x` [.., K] and `w` [K, N], in the rows of `y` [.., N] from `row` on.
pub(super) fn rows_product(
    call: &Call,
    [x, w]: [&Tensor; 2],
    y: &mut UninitTensor,
    row: usize,
) -> Result<()> {
    let x = as_rows(x)?;
    if call.device().is_gpu() {
        let (x, w) = (Matrices::new(&x)?, Matrices::new(w)?);
        return call.launch(|gpu| product(gpu, call, [&x, &w], &Product::rows(gpu, y, row)?));
    }
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let (x_read, w_read) = (x.read::<T>()?, w.read::<T>()?);
            let (x, w) = (matrix(&x, &x_read), matrix(w, &w_read));
            let elements = row * w.cols()..(row + x.rows()) * w.cols();
            let y = MatrixMut::new(&mut y.slice::<T>()?[elements], [x.rows(), w.cols()]);
            gemm::gemm(x, w, y, Update::Replace);
            Ok(())
        })
    })
}

/// dw += dy^T x: the gradient of [`linear`] with respect to `w`.
///
/// # Shapes
/// `dy` [.., O], `x` [.., I]; `into` [O, I] of the accumulator dtype.
///
/// # Errors
/// While the storage is in use.
pub fn linear_grad_weight_into(dy: &Tensor, x: &Tensor, into: &mut Accumulator) -> Result<()> {
    let call = into.call(&LINEAR_GRAD_WEIGHT, &[dy, x])?;
    let (dy, x) = (as_rows(dy)?, as_rows(x)?);
    let range = into.buffer().contiguous_range(call.name())?;
    if call.device().is_gpu() {
        let (dy, x) = (Matrices::new(&dy.transpose(0, 1)?)?, Matrices::new(&x)?);
        return product_into(&call, [&dy, &x], into);
    }
    call.compute(|| {
        for_float!(x.dtype(), T => {
            let (dy_read, x_read) = (dy.read::<T>()?, x.read::<T>()?);
            let (dy, x) = (matrix(&dy, &dy_read).transposed(), matrix(&x, &x_read));
            let mut to = into.buffer().write::<<T as Float>::Wide>(call.name())?;
            let to = MatrixMut::new(&mut to[range], [dy.rows(), x.cols()]);
            gemm::gemm(dy, x, to, update(into));
            Ok(())
        })
    })?;
    into.filled_by(&call)
}

/// The sharding of [`linear`] of `x` and `w`; `None` if they have none.
///
/// # Errors
/// As [`linear`].
pub fn linear_sharding(x: &Tensor, w: &Tensor) -> Result<Option<Sharding>> {
    let call = LINEAR.call(&[x, w])?;
    let shape = x.shape().with(x.shape().len() - 1, w.shape()[0]);
    let tag = call.result_tag(0, &shape)?;
    Ok(tag.map(|tag| tag.sharding().clone()))
}

/// The sharding of [`linear_grad_input`] of `dy` and `w`; `None` if they have none.
///
/// # Errors
/// As [`linear_grad_input`].
pub fn linear_grad_input_sharding(dy: &Tensor, w: &Tensor) -> Result<Option<Sharding>> {
    let call = LINEAR_GRAD_INPUT.call(&[dy, w])?;
    let shape = dy.shape().with(dy.shape().len() - 1, w.shape()[1]);
    let tag = call.result_tag(0, &shape)?;
    Ok(tag.map(|tag| tag.sharding().clone()))
}

/// c = a b, for one matrix or a batch.
///
/// # Shapes
/// `a` [.., M, K], `b` [.., K, N] with equal leading dims, of one float dtype; returns [.., M, N].
/// For a transposed operand pass [`Tensor::transpose`], which copies nothing.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let mut call = MATMUL.call(&[a, b])?;
    let mut c = call.output(0)?;
    if call.device().is_gpu() {
        let (a, b) = (Matrices::new(a)?, Matrices::new(b)?);
        call.launch(|gpu| product(gpu, &call, [&a, &b], &Product::uninit(gpu, &c)?))?;
        return Ok(c.finish());
    }
    let layout = Layout::contiguous(*c.shape(), 0);
    call.compute(|| {
        for_float!(a.dtype(), T => {
            let (a_read, b_read) = (a.read::<T>()?, b.read::<T>()?);
            let (a, b) = (matrices(a, &a_read), matrices(b, &b_read));
            let c = batch_mut(c.slice::<T>()?, &layout);
            gemm::gemm(a, b, c, Update::Replace);
            Ok(())
        })
    })?;
    Ok(c.finish())
}

/// into += a b, in place.
///
/// # Shapes
/// As [`matmul`]; `into` [.., M, N] of the accumulator dtype.
///
/// # Errors
/// While the storage is in use.
pub fn matmul_into(a: &Tensor, b: &Tensor, into: &mut Accumulator) -> Result<()> {
    let call = into.call(&MATMUL_INTO, &[a, b])?;
    let layout = Layout::contiguous(*into.buffer().shape(), 0);
    let range = into.buffer().contiguous_range(call.name())?;
    if call.device().is_gpu() {
        let (a, b) = (Matrices::new(a)?, Matrices::new(b)?);
        return product_into(&call, [&a, &b], into);
    }
    call.compute(|| {
        for_float!(a.dtype(), T => {
            let (a_read, b_read) = (a.read::<T>()?, b.read::<T>()?);
            let (a, b) = (matrices(a, &a_read), matrices(b, &b_read));
            let mut to = into.buffer().write::<<T as Float>::Wide>(call.name())?;
            let to = batch_mut(&mut to[range], &layout);
            gemm::gemm(a, b, to, update(into));
            Ok(())
        })
    })?;
    into.filled_by(&call)
}

/// into += a b, on a GPU.
fn product_into(call: &Call, operands: [&Matrices; 2], into: &mut Accumulator) -> Result<()> {
    call.launch(|gpu| {
        let to = Product::into(gpu, into.buffer(), into.is_empty())?;
        product(gpu, call, operands, &to)
    })?;
    into.filled_by(call)
}

/// Whether a product replaces the accumulator's value or adds to it.
pub(super) fn update(into: &Accumulator) -> Update {
    match into.is_empty() {
        true => Update::Replace,
        false => Update::Add,
    }
}

/// `x` [.., D] as [rows, D]; copies only if the leading dims do not merge.
fn as_rows(x: &Tensor) -> Result<Tensor> {
    let last = x.extent(-1)?;
    let rows = x.shape()[..x.shape().len() - 1].iter().product();
    super::reshape(&x.local(), &[rows, last])
}

/// A two-dimensional tensor as a matrix.
fn matrix<'a, T: gemm::Element>(x: &Tensor, elements: &'a [T]) -> MatrixRef<'a, T> {
    let (shape, strides) = (x.shape(), x.layout().strides());
    MatrixRef::strided(
        elements,
        x.layout().offset(),
        [shape[0], shape[1]],
        [strides[0], strides[1]],
    )
}

/// A tensor of at least two dims as a batch of matrices.
pub(super) fn matrices<'a, T: gemm::Element>(x: &'a Tensor, elements: &'a [T]) -> MatrixRef<'a, T> {
    let (shape, strides) = (x.shape(), x.layout().strides());
    let batch = shape.len() - 2;
    MatrixRef::batched(
        elements,
        x.layout().offset(),
        [shape[batch], shape[batch + 1]],
        [strides[batch], strides[batch + 1]],
        &shape[..batch],
        &strides[..batch],
    )
}

/// Row-major elements of `layout` as a batch of mutable matrices.
fn batch_mut<'a, T: Copy>(elements: &'a mut [T], layout: &'a Layout) -> MatrixMut<'a, T> {
    let (shape, strides) = (layout.shape(), layout.strides());
    let batch = shape.len() - 2;
    MatrixMut::batched(
        elements,
        0,
        [shape[batch], shape[batch + 1]],
        [strides[batch], strides[batch + 1]],
        &shape[..batch],
        &strides[..batch],
    )
}

#[cfg(test)]
mod tests {
    use approx::assert_abs_diff_eq;

    use super::*;
    use crate::{DType, Device, Shape};

    fn numbered(device: &Device, shape: &[usize], step: f64) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i as f64 * step).sin()).collect();
        Tensor::from_slice(device, shape, &values).unwrap()
    }

    fn naive(a: &Tensor, b: &Tensor) -> Vec<f64> {
        let (a_shape, n) = (a.shape(), b.extent(-1).unwrap());
        let (m, k) = (a_shape[a_shape.len() - 2], a_shape[a_shape.len() - 1]);
        let (a, b) = (a.to_vec::<f64>().unwrap(), b.to_vec::<f64>().unwrap());
        let batch = a.len().checked_div(m * k).unwrap_or(0);
        let element = |(g, i, j): (usize, usize, usize)| -> f64 {
            (0..k).map(|l| a[(g * m + i) * k + l] * b[(g * k + l) * n + j]).sum()
        };
        let all = (0..batch).flat_map(|g| (0..m).flat_map(move |i| (0..n).map(move |j| (g, i, j))));
        all.map(element).collect()
    }

    fn assert_close(actual: &Tensor, expected: &[f64]) {
        assert_abs_diff_eq!(actual.to_vec::<f64>().unwrap()[..], *expected, epsilon = 1e-12);
    }

    /// Operands can be transposed views of a batch.
    #[test]
    fn strided_and_batched_products() {
        let device = Device::cpu();
        let a = numbered(&device, &[5, 3, 7], 0.3).transpose(0, 1).unwrap();
        let b = numbered(&device, &[3, 4, 7], 0.7).transpose(1, 2).unwrap();
        assert_close(&matmul(&a, &b).unwrap(), &naive(&a, &b));
    }

    #[test]
    fn linear_and_its_gradients_are_products() {
        let device = Device::cpu();
        let x = numbered(&device, &[2, 3, 4], 0.3);
        let w = numbered(&device, &[5, 4], 0.7);
        let flat = |x: &Tensor, d: usize| crate::ops::reshape(x, &[6, d]).unwrap();

        let y = linear(&x, &w).unwrap();
        assert_eq!(y.shape().to_vec(), [2, 3, 5]);
        assert_close(&y, &naive(&flat(&x, 4), &w.transpose(0, 1).unwrap()));

        let dx = linear_grad_input(&y, &w).unwrap();
        assert_close(&dx, &naive(&flat(&y, 5), &w));

        let mut dw = Accumulator::new(&device, *w.shape(), DType::F64).unwrap();
        linear_grad_weight_into(&y, &x, &mut dw).unwrap();
        let expected = naive(&flat(&y, 5).transpose(0, 1).unwrap(), &flat(&x, 4));
        assert_close(dw.total().unwrap(), &expected);

        linear_grad_weight_into(&y, &x, &mut dw).unwrap();
        let doubled: Vec<f64> = expected.iter().map(|x| 2.0 * x).collect();
        assert_close(dw.total().unwrap(), &doubled);
    }

    #[test]
    fn accumulating_products() {
        let device = Device::cpu();
        let (a, b) = (numbered(&device, &[2, 3, 4], 0.3), numbered(&device, &[2, 4, 2], 0.7));
        let shape = Shape::new(&[2, 3, 2]).unwrap();
        let mut into = Accumulator::new(&device, shape, DType::F64).unwrap();
        matmul_into(&a, &b, &mut into).unwrap();
        matmul_into(&a, &b, &mut into).unwrap();
        let doubled: Vec<f64> = naive(&a, &b).iter().map(|x| 2.0 * x).collect();
        assert_close(into.total().unwrap(), &doubled);
    }

    #[test]
    fn empty_extents() {
        let device = Device::cpu();
        let y = linear(&numbered(&device, &[0, 4], 0.1), &numbered(&device, &[5, 4], 0.1)).unwrap();
        assert_eq!(y.shape().to_vec(), [0, 5]);
        let y = linear(&numbered(&device, &[3, 0], 0.1), &numbered(&device, &[5, 0], 0.1)).unwrap();
        assert_eq!(y.to_vec::<f64>().unwrap(), [0.0; 15]);
    }
}
