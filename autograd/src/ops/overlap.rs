//! Matrix products together with the redistribution of their operand or result, in chunks of rows:
//! one chunk is communicated while another is multiplied.
//!
//! On the CPU, results and gradients have the bits of [`redistribute`] and [`linear`] one after the
//! other: a row of a product depends on no other row, a transport between threads or processes
//! reduces element by element, and a weight's gradient is one product of whole operands.

use std::sync::{Mutex, PoisonError};

use meshgrad_collectives::with_placements;
use meshgrad_mesh::Placement;
use meshgrad_runtime::{Tensor, ops};

use super::exchange::{Exchange, Product};
use super::{linear, redistribute};
use crate::slot::Slot;
use crate::track::in_dtypes;
use crate::{Operand, Result, Save, Saved, tracked_list_linear};

/// The products of `x`, redistributed to `placements` once, with each of `ws`: column-parallel
/// layers. Equals [`linear`] of [`redistribute`]. With more than one chunk, rows are gathered while
/// others are multiplied, and in the backward pass rows of `x`'s gradient are reduced while others
/// are multiplied.
///
/// Saves what [`linear`] saves. Two chunks are in memory in addition.
///
/// # Shapes
/// `x` [.., I], each of `ws` [O, I], all of one float dtype; returns [.., O] for each.
///
/// # Errors
/// As [`redistribute`] and [`linear`].
pub fn redistribute_linear<V: Operand, S: AsRef<str>, const N: usize>(
    x: &V,
    placements: impl AsRef<[(S, Placement)]>,
    ws: [&V; N],
    chunks: usize,
) -> Result<[V; N]> {
    let placements = placements.as_ref();
    let Some(exchange) = Exchange::new(x.value(), placements, chunks)? else {
        let x = redistribute(x, placements)?;
        let ys = ws.iter().map(|w| linear(&x, *w));
        return Ok(array(ys.collect::<Result<_>>()?));
    };
    let to = with_placements(&exchange.from, placements)?;
    let values = ws.map(Operand::value);
    let (whole_x, ys) = exchange.gather(x.value(), &to, &values, Product::Linear)?;

    let saved_x = ws.iter().any(|w| w.is_tracked()).then(|| whole_x.save());
    let saved_ws = ws.map(|w| w.save_for(x));
    let dtypes = [x.dtype(); N];
    let inputs: Vec<&V> = [x].into_iter().chain(ws).collect();
    let ys = tracked_list_linear(ys, &inputs, move |dys, slots| {
        let dys = in_dtypes(dys, &dtypes)?;
        let mut slots = slots.into_iter();
        let dx = slots.next().filter(Slot::due);
        let reduced = match &dx {
            Some(_) => Some(exchange.grad_input(&terms(&dys, &saved_ws)?)?),
            None => None,
        };
        // Meanwhile, the last chunk of dx is reduced.
        if let Some(x) = &saved_x {
            for (dw, dy) in slots.zip(&dys) {
                if let Some(dy) = dy {
                    dw.accumulate(|dw| ops::linear_grad_weight_into(dy, &x.get()?, dw))?;
                }
            }
        }
        match (dx, reduced) {
            (Some(dx), Some(reduced)) => dx.add(|| reduced.finish()),
            _ => Ok(()),
        }
    })?;
    Ok(array(ys))
}

/// The product of `x` and `w`, redistributed to `placements`: a row-parallel layer. Equals
/// [`redistribute`] of [`linear`]. With more than one chunk, rows are reduced while others are
/// multiplied, and in the backward pass rows of the result's gradient are gathered while others are
/// multiplied.
///
/// Saves what [`linear`] saves. Two chunks are in memory in addition, and the whole product is not.
///
/// # Shapes
/// `x` [.., I], `w` [O, I], both of one float dtype; returns [.., O].
///
/// # Errors
/// As [`redistribute`] and [`linear`].
pub fn linear_redistribute<V: Operand, S: AsRef<str>>(
    x: &V,
    w: &V,
    placements: impl AsRef<[(S, Placement)]>,
    chunks: usize,
) -> Result<V> {
    let placements = placements.as_ref();
    let Some(exchange) = Exchange::new(x.value(), placements, chunks)? else {
        return redistribute(&linear(x, w)?, placements);
    };
    let product = exchange.product_of(x.value(), w.value())?;
    let to = with_placements(&product, placements)?;
    let terms = [(x.value().clone(), w.value().clone())];
    let y = exchange.reduce(&terms, [&product, &to], Product::Linear)?;

    let (saved_x, saved_w) = (x.save_for(w), w.save_for(x));
    let (dtype, from) = ([x.dtype()], product.without_partials());
    // Between the phases of a split backward.
    let kept_dy = Mutex::new(None);
    let ys = tracked_list_linear(vec![y.finish()?], &[x, w], move |dys, slots| {
        let dys = in_dtypes(dys, &dtype)?;
        let (Some(dy), Ok([dx, dw])) = (&dys[0], <[Slot<'_>; 2]>::try_from(slots)) else {
            return Ok(());
        };
        let kept: Option<Tensor> = kept_dy.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (is_dx_due, is_dw_due) = (dx.due(), dw.due());
        let to = exchange.back(dy, &from)?;
        let dy = match (&saved_w, kept) {
            (Some(w), None) if is_dx_due => {
                let (dy, dxs) = exchange.gather(dy, &to, &[&w.get()?], Product::GradInput)?;
                let [gradient] = array(dxs);
                dx.add(|| Ok(gradient))?;
                dy
            }
            (_, Some(kept)) => kept,
            (_, None) if is_dw_due => exchange.redistribute(dy, &to)?,
            (_, None) => return Ok(()),
        };
        match &saved_x {
            Some(_) if dw.is_deferred() => {
                *kept_dy.lock().unwrap_or_else(PoisonError::into_inner) = Some(dy);
                Ok(())
            }
            Some(x) => dw.accumulate(|dw| ops::linear_grad_weight_into(&dy, &x.get()?, dw)),
            None => Ok(()),
        }
    })?;
    let [y] = array(ys);
    Ok(y)
}

/// The factors of the terms of an input's gradient, in the order in which the records of several
/// products would add them.
fn terms(dys: &[Option<Tensor>], ws: &[Option<Saved>]) -> Result<Vec<(Tensor, Tensor)>> {
    let pairs = dys.iter().zip(ws).rev();
    let pairs = pairs.filter_map(|(dy, w)| Some((dy.as_ref()?, w.as_ref()?)));
    pairs.map(|(dy, w)| Ok((dy.clone(), w.get()?))).collect()
}

fn array<T, const N: usize>(items: Vec<T>) -> [T; N] {
    let array = items.try_into();
    array.unwrap_or_else(|_| unreachable!("there is one result for each weight"))
}
