//! Ring attention (Liu et al. 2023): each rank has a part of the sequence. Keys and values travel around a ring of
//! ranks, and so do their gradients. They equal those of one rank.
//!
//! `cargo run --example 16-ring-attention`

use std::ops::Range;
use std::sync::Arc;

use meshgrad::comm::{Communicator, Local};
use meshgrad::prelude::*;
use meshgrad::runtime::{Key, ops::normal};

const TOKENS: [usize; 3] = [5, 3, 6];
const HEADS: usize = 2;
const HEAD_DIM: usize = 4;

/// Causal attention of this rank's queries to the keys of all ranks.
///
/// Each hop attends to the keys of one rank. A result counts by exp(its lse - the lse of all keys).
fn ring_attention([q, k, v]: [&Var; 3], group: &Arc<dyn Communicator>) -> Result<Var> {
    let (n, own) = (group.size(), group.index());
    let neighbours = [(own + 1) % n, (own + n - 1) % n];
    let (mut k, mut v) = (k.clone(), v.clone());
    let (mut outs, mut lses) = (Vec::new(), Vec::new());
    for hop in 0..n {
        let owner = (own + n - hop) % n;
        if owner <= own {
            let mask = AttentionMask { causal: owner == own, ..AttentionMask::default() };
            let (out, lse) = ops::attention_with_lse(q, &k, &v, &mask, 0.5)?;
            let lse = ops::transpose(&lse, 1, 2)?; // [1, T, H]
            outs.push(out);
            lses.push(ops::reshape(&lse, &[1, TOKENS[own], HEADS, 1])?);
        }
        if hop + 1 < n {
            let shape = [1, TOKENS[(owner + n - 1) % n], HEADS, HEAD_DIM];
            k = ops::send_recv(&k, neighbours, &shape, group)?;
            v = ops::send_recv(&v, neighbours, &shape, group)?;
        }
    }
    let all = ops::logsumexp(&ops::concat(&lses.iter().collect::<Vec<_>>(), 3)?, &[3])?;
    let all = ops::reshape(&all, &[1, TOKENS[own], HEADS, 1])?;
    let weighted = |(out, lse): (&Var, &Var)| ops::mul(out, &ops::exp(&ops::sub(lse, &all)?)?);
    let mut terms = outs.iter().zip(&lses).map(weighted);
    let first = terms.next().expect("its own keys")?;
    terms.try_fold(first, |sum, term| ops::add(&sum, &term?))
}

/// The gradients of q, k and v for dy = y, and y: the elements for the queries and keys `rows`.
fn gradients(
    device: &Device,
    rows: Range<usize>,
    attention: impl Fn([&Var; 3]) -> Result<Var>,
) -> Result<Vec<Vec<f64>>> {
    let shape = [1, TOKENS.iter().sum(), HEADS, HEAD_DIM];
    let part =
        |seed| normal(device, &shape, DType::F64, Key::new(seed), 0.0, 1.0)?.slice(1, rows.clone());
    let qkv = [part(1)?, part(2)?, part(3)?];
    let ((inputs, y), tape) = Tape::record(|| {
        let inputs = qkv.map(Var::input);
        let y = attention(inputs.each_ref())?;
        Ok((inputs, y))
    })?;
    let (mut results, _) = tape.backward_inputs(&[(&y, y.value().clone())], &inputs.each_ref())?;
    results.push(y.into_value());
    results.iter().map(Tensor::to_vec).collect()
}

fn main() -> Result<()> {
    let (all, causal) = (0..TOKENS.iter().sum(), AttentionMask::causal());
    let one = gradients(&Device::cpu(), all, |[q, k, v]| ops::attention(q, k, v, &causal, 0.5))?;
    let ranks = Local::run(TOKENS.len(), |rank| {
        let (own, group) = (rank.rank(), rank.world()?);
        let start: usize = TOKENS[..own].iter().sum();
        let rows = start..start + TOKENS[own];
        gradients(rank.device(), rows, |qkv| ring_attention(qkv, &group))
    })?;
    for (at, name) in ["dq", "dk", "dv", "y"].into_iter().enumerate() {
        let parts = ranks.iter().flat_map(|results| &results[at]);
        let largest = one[at].iter().zip(parts).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{name}: three ranks differ from one by {largest:.1e}");
        assert!(largest < 1e-12, "{name}");
    }
    Ok(())
}
