//! Concatenation, splitting and indexing.

use meshgrad_runtime::{ShardedShape, Tensor, ops};

use crate::backward::no_gradient;
use crate::{Operand, Result, Save, Track, tracked_list_linear};

/// Concatenates `parts` along dim `dim`. The gradient of each part is a view.
///
/// # Errors
/// As [`meshgrad_runtime::ops::concat`].
pub fn concat<V: Operand>(parts: &[&V], dim: isize) -> Result<V> {
    let values: Vec<&Tensor> = parts.iter().map(|part| part.value()).collect();
    let y = ops::concat(&values, dim)?;
    let sizes: Result<Vec<usize>> = values.iter().map(|x| x.extent(dim)).collect();
    let (sizes, shapes) = (sizes?, values.iter().map(|x| x.sharded_shape()));
    let shapes: Vec<ShardedShape> = shapes.collect();

    let mut vars = tracked_list_linear(vec![y], parts, move |dys, slots| {
        let Some(dy) = &dys[0] else {
            return Ok(());
        };
        let dparts = ops::split(&dy.local(), &sizes, dim)?;
        let dparts = slots.into_iter().zip(shapes.iter().zip(dparts));
        dparts
            .into_iter()
            .try_for_each(|(slot, (shape, dpart))| slot.add(|| shape.part_like(&dpart, dy)))
    })?;
    Ok(vars.remove(0))
}

/// Splits `x` along dim `dim` into parts of `sizes`. The parts are views; their gradients are
/// concatenated in one copy.
///
/// # Errors
/// As [`meshgrad_runtime::ops::split`].
pub fn split<V: Operand>(x: &V, sizes: &[usize], dim: isize) -> Result<Vec<V>> {
    let parts = ops::split(x.value(), sizes, dim)?;
    let shapes: Vec<_> = parts.iter().map(Tensor::global_shape).collect();
    tracked_list_linear(parts, &[x], move |dys, slots| {
        let gradient = || {
            let Some(some) = dys.iter().flatten().next() else {
                return Err(no_gradient(&shapes[0]));
            };
            let whole = |(dy, shape): (&Option<Tensor>, &meshgrad_runtime::Shape)| match dy {
                Some(dy) => Ok(dy.clone()),
                None => some.zeros_beside(shape),
            };
            let dparts: Result<Vec<Tensor>> = dys.iter().zip(&shapes).map(whole).collect();
            ops::concat(&dparts?.iter().collect::<Vec<_>>(), dim)
        };
        slots.into_iter().try_for_each(|dx| dx.add(gradient))
    })
}

/// The slices of `x` at `ids` along dim `dim`.
///
/// # Shapes
/// `ids` \[M\] of an index dtype; returns `x`'s shape with M in `dim`.
///
/// # Errors
/// As [`meshgrad_runtime::ops::index_select`].
pub fn index_select<V: Operand>(x: &V, dim: isize, ids: &Tensor) -> Result<V> {
    let y = ops::index_select(x.value(), dim, ids)?;
    let (shape, saved_ids) = (x.value().sharded_shape(), ids.save());
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| ops::index_select_grad_to(dy, dim, &saved_ids.get()?, &shape))
    })
}

/// Gathers elements along dim `dim`: y\[c\] = x\[c with index\[c\] in `dim`\].
///
/// # Shapes
/// `index` of an index dtype, no larger than `x` in any dim except `dim`; returns `index`'s shape.
///
/// # Errors
/// As [`meshgrad_runtime::ops::gather`].
pub fn gather<V: Operand>(x: &V, dim: isize, index: &Tensor) -> Result<V> {
    let y = ops::gather(x.value(), dim, index)?;
    let (shape, saved_index) = (x.value().sharded_shape(), index.save());
    y.tracked_linear([x], move |dy, [dx]| {
        dx.add(|| ops::scatter_add_to(&shape, dim, &saved_index.get()?, dy))
    })
}

/// Reorders the elements along dim `dim`: as [`gather`] at `order`, which has each index of the dim once.
/// The gradient is gathered at `inverse`, the indices of the inverse permutation.
///
/// # Shapes
/// `order` and `inverse` of an index dtype and the shape of `x`.
///
/// # Errors
/// As [`meshgrad_runtime::ops::gather`].
pub fn reorder<V: Operand>(x: &V, dim: isize, order: &Tensor, inverse: &Tensor) -> Result<V> {
    let y = ops::gather(x.value(), dim, order)?;
    let inverse = inverse.save();
    y.tracked_linear([x], move |dy, [dx]| dx.add(|| ops::gather(dy, dim, &inverse.get()?)))
}

/// Adds elements at indices into zeros of `shape`: y\[c with index\[c\] in `dim`\] += src\[c\].
///
/// # Shapes
/// `src` and `index` of one shape, no larger than `shape` in any dim except `dim`; returns `shape`.
///
/// # Errors
/// As [`meshgrad_runtime::ops::scatter_add`].
pub fn scatter_add<V: Operand>(shape: &[usize], dim: isize, index: &Tensor, src: &V) -> Result<V> {
    let y = ops::scatter_add(shape, dim, index, src.value())?;
    let saved_index = index.save();
    y.tracked_linear([src], move |dy, [dsrc]| {
        dsrc.add(|| ops::gather(dy, dim, &saved_index.get()?))
    })
}

#[cfg(test)]
mod tests {
    use meshgrad_runtime::Device;

    use super::*;
    use crate::{Tolerance, Var, gradcheck};

    fn numbered(device: &Device, shape: &[usize], step: f64) -> Tensor {
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| (i as f64 * step).sin()).collect();
        Tensor::from_slice(device, shape, &values).unwrap()
    }

    fn check(inputs: &[Tensor], function: impl Fn(&[Var]) -> Result<Vec<Var>>) {
        gradcheck(function, inputs, Tolerance::default()).unwrap();
    }

    #[test]
    fn concat_and_split_gradients() {
        let device = Device::cpu();
        let inputs = [numbered(&device, &[2, 3], 0.7), numbered(&device, &[2, 1], 1.1)];
        // The same part is used twice; its gradient is the sum over both uses.
        check(&inputs, |x| Ok(vec![concat(&[&x[0], &x[1], &x[0]], -1)?]));
        check(&inputs[..1], |x| split(&x[0], &[1, 0, 2], 1));
        // An unused part has a zero gradient.
        check(&inputs[..1], |x| Ok(split(&x[0], &[1, 2], 1)?.split_off(1)));
    }

    #[test]
    fn index_select_gather_and_scatter_add_gradients() {
        let device = Device::cpu();
        let x = [numbered(&device, &[3, 4], 0.7)];
        let ids = Tensor::from_slice(&device, &[5], &[2i64, 0, 2, 1, 2]).unwrap();
        check(&x, |x| Ok(vec![index_select(&x[0], 0, &ids)?]));
        check(&x, |x| Ok(vec![index_select(&x[0], -1, &ids)?]));

        let index = Tensor::from_slice(&device, &[2, 3], &[2i32, 0, 2, 1, 1, 1]).unwrap();
        check(&x, |x| Ok(vec![gather(&x[0], 0, &index)?]));
        check(&x, |x| Ok(vec![gather(&x[0], 1, &index)?]));

        let src = [numbered(&device, &[2, 3], 1.3)];
        check(&src, |src| Ok(vec![scatter_add(&[3, 3], 0, &index, &src[0])?]));
        check(&src, |src| Ok(vec![scatter_add(&[4, 3], 1, &index, &src[0])?]));
    }
}
