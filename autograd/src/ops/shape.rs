//! Views, copies and casts. Their gradients are the inverse views, copies and casts; the gradient
//! of a broadcast is a sum.

use std::ops::Range;

use meshgrad_error::bail;
use meshgrad_runtime::{DType, ops};

use crate::var::Node;
use crate::{Operand, Result, Track, Var};

/// `x` in `dtype`. Its gradient has `x`'s dtype.
///
/// # Shapes
/// `x` any shape; returns the same.
///
/// # Errors
/// As [`meshgrad_runtime::ops::cast`].
pub fn cast<V: Operand>(x: &V, dtype: DType) -> Result<V> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    let from = x.dtype();
    let y = ops::cast(x.value(), dtype)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::cast(dy, from)))
}

/// The same elements in the same row-major order with another shape. A reshaped parameter uses the
/// same gradient buffer.
///
/// # Errors
/// As [`meshgrad_runtime::ops::reshape`].
pub fn reshape<V: Operand>(x: &V, shape: &[usize]) -> Result<V> {
    let from = x.value().sharded_shape();
    let y = ops::reshape(x.value(), shape)?;
    if let Some(node @ Node::Param(_)) = x.as_var().map(Var::node) {
        // The gradient buffer has the same elements in the same order.
        return Ok(V::from_var(Var::new(y, node.clone())));
    }
    // The gradient has the shards of `y`, so its elements are those of `x`'s part. The reverse rule
    // might give an equal layout another sharding.
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| from.part_like(&ops::reshape(&dy.local(), from.local())?, dy))
    })
}

/// Exchanges dims `a` and `b`; negative dims count from the end. A view.
///
/// # Errors
/// As [`meshgrad_runtime::Tensor::transpose`].
pub fn transpose<V: Operand>(x: &V, a: isize, b: isize) -> Result<V> {
    let y = x.value().transpose(a, b)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| dy.transpose(a, b)))
}

/// Reorders the dims. A view.
///
/// # Errors
/// As [`meshgrad_runtime::Tensor::permute`].
pub fn permute<V: Operand>(x: &V, order: &[usize]) -> Result<V> {
    let y = x.value().permute(order)?;
    let mut inverse = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        inverse[from] = to;
    }
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| dy.permute(&inverse)))
}

/// Broadcasts to `shape`. A view; its gradient is the sum over the broadcast dims.
///
/// # Errors
/// As [`meshgrad_runtime::Tensor::broadcast_to`].
pub fn broadcast_to<V: Operand>(x: &V, shape: &[usize]) -> Result<V> {
    let from = x.global_shape();
    let y = x.value().broadcast_to(shape)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::sum_to(dy, &from)))
}

/// The elements of `x` at `range` in dim `dim`. A view; the gradient is zero outside of it.
///
/// # Errors
/// As [`meshgrad_runtime::Tensor::slice`].
pub fn slice<V: Operand>(x: &V, dim: isize, range: Range<usize>) -> Result<V> {
    let from = x.global_shape();
    let y = x.value().slice(dim, range.clone())?;
    let dim = x.value().dim("slice", dim)?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::slice_grad(dy, &from, dim, range.clone())))
}

/// `x` if it is contiguous in row-major order, else a contiguous copy.
///
/// # Errors
/// As [`meshgrad_runtime::ops::contiguous`].
pub fn contiguous<V: Operand>(x: &V) -> Result<V> {
    let y = ops::contiguous(x.value())?;
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| Ok(dy.clone())))
}

/// Splits the last dim in two: [.., n c] to [.., n, c].
///
/// # Errors
/// When `c` does not divide the last dim.
pub fn split_last<V: Operand>(x: &V, c: usize) -> Result<V> {
    let last = x.value().global_extent(-1)?;
    if c == 0 || last % c != 0 {
        bail!(Invalid, "split_last: cannot split {last} features into groups of {c}");
    }
    let shape = x.global_shape();
    let leading = &shape[..shape.len() - 1];
    reshape(x, &[leading, &[last / c, c]].concat())
}

/// Splits the last dim into `chunks` equal parts, which become a new dim before it: [.., n c] to
/// [.., n, c].
///
/// # Errors
/// When `chunks` does not divide the last dim.
pub fn chunk<V: Operand>(x: &V, chunks: usize) -> Result<V> {
    let last = x.value().global_extent(-1)?;
    if chunks == 0 || last % chunks != 0 {
        bail!(Invalid, "chunk: cannot split {last} features into {chunks} equal chunks");
    }
    let shape = x.global_shape();
    let leading = &shape[..shape.len() - 1];
    reshape(x, &[leading, &[chunks, last / chunks]].concat())
}

/// Merges the last two dims: [.., n, c] to [.., n c].
///
/// # Errors
/// When there are fewer than two.
pub fn merge_last<V: Operand>(x: &V) -> Result<V> {
    let at = x.value().dim("merge_last", -2)?;
    let shape = x.global_shape();
    reshape(x, &[&shape[..at], &[shape[at] * shape[at + 1]]].concat())
}

/// Merges the first two dims: [n, c, ..] to [n c, ..].
///
/// # Errors
/// When there are fewer than two.
pub fn merge_first<V: Operand>(x: &V) -> Result<V> {
    let second = x.value().dim("merge_first", 1)?;
    let shape = x.global_shape();
    reshape(x, &[&[shape[0] * shape[second]], &shape[2..]].concat())
}

/// Merges all dims but the last: [.., c] to [n, c].
///
/// # Errors
/// When `x` has no dims.
pub fn merge_leading<V: Operand>(x: &V) -> Result<V> {
    let last = x.value().dim("merge_leading", -1)?;
    let shape = x.global_shape();
    let rows = shape[..last].iter().product();
    reshape(x, &[rows, shape[last]])
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::{Device, Tensor};

    use super::*;
    use crate::Tape;

    /// The gradient of a cast has the operand's dtype.
    #[test]
    fn the_gradient_of_a_cast_is_cast_back() {
        let device = Device::cpu();
        let x = Tensor::from_slice(&device, &[2], &[1.5f32, -2.0]).unwrap();
        let ((x, y), tape) = Tape::record(|| {
            let x = Var::input(x);
            let y = cast(&x, DType::BF16)?;
            Ok((x, y))
        })
        .unwrap();
        let dy = ops::full(&device, &[2], DType::BF16, 0.25).unwrap();
        let (dx, _weights) = tape.backward_inputs(&[(&y, dy)], &[&x]).unwrap();
        assert_eq!(dx[0].to_vec::<f32>().unwrap(), [0.25; 2]);
    }
}
