//! Random values and dropout.

use super::op_case::{CaseOperands, OpCase, Results, Source, writable};
use crate::{Region, RegionKey, Result, Tensor, ops};

/// Random values of `shape`, as a part of a larger tensor if `key` is within a region.
pub fn random(source: &dyn Source, shape: &[usize], key: &RegionKey) -> Result<Vec<OpCase>> {
    let x = source.numbers("x", shape)?;
    let into = writable(&x)?;
    type Fill = fn(&Tensor, RegionKey) -> Result<()>;
    type Draw = fn(&Tensor, RegionKey) -> Result<Tensor>;
    let fills: [(&str, Fill); 2] = [
        ("uniform_into", |x, key| ops::uniform_into(x, key, 0.0, 1.0)),
        ("normal_into", |x, key| ops::normal_into(x, key, 0.0, 1.0)),
    ];
    let draws: [(&str, Draw); 4] = [
        ("dropout", |x, key| ops::dropout(x, key, 0.5)),
        ("dropout_grad", |dy, key| ops::dropout_grad(dy, key, 0.5)),
        ("dropout_mask", |x, key| ops::dropout_mask(x.device(), x.shape(), key, 0.5)),
        ("normal", |x, key| ops::normal(x.device(), x.shape(), x.dtype(), key, 0.0, 1.0)),
    ];
    let whole = *x.shape();
    let fills = fills.map(|(name, fill)| {
        let key = key.clone();
        let call = move |of: &CaseOperands| {
            let into = of.changed(0)?;
            fill(&into, local(&key, &whole, of)?)?;
            Ok(into.list())
        };
        OpCase::new(name, vec![into.clone()], call).writing()
    });
    let draws = draws.map(|(name, draw)| {
        let key = key.clone();
        OpCase::new(name, vec![x.clone()], move |of| {
            Ok(draw(&of.tensors[0], local(&key, &whole, of)?)?.list())
        })
    });
    Ok(fills.into_iter().chain(draws).collect())
}

/// The key of a part of the operand. A part without a sharding states its region.
fn local(key: &RegionKey, whole: &[usize], of: &CaseOperands) -> Result<RegionKey> {
    let x = &of.tensors[0];
    if x.sharding().is_some() || x.shape()[..] == *whole {
        return Ok(key.clone());
    }
    let mut region = Region::whole(whole)?;
    for (dim, start) in of.starts[0].iter().enumerate() {
        region = region.slice(dim, *start..start + x.shape()[dim])?;
    }
    Ok(key.key().within(&region))
}
