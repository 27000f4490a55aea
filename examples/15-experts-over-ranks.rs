//! A mixture of experts over ranks: each rank has some of the experts and some of the tokens. Tokens travel to their
//! experts and back, and so do gradients. They equal those of one rank.
//!
//! `cargo run --example 15-experts-over-ranks`

use std::ops::Range;
use std::sync::Arc;

use meshgrad::comm::{Collectives, Communicator, Local, Rank};
use meshgrad::prelude::*;
use meshgrad::runtime::Key;
use meshgrad::runtime::ops::normal;

const TOKENS: [usize; 3] = [5, 0, 8];
const EXPERTS_PER_RANK: usize = 2;
const EXPERTS: usize = 3 * EXPERTS_PER_RANK;
const FEATURES: usize = 4;

/// Each token's most probable expert, weighted by its probability. `w` has the experts of this rank, which follow
/// those of the ranks before it.
fn experts([x, w, gate]: [&Var; 3], group: Option<&Arc<dyn Communicator>>) -> Result<Var> {
    let held = w.value().shape()[0];
    let probabilities = ops::softmax(&ops::linear(x, gate)?)?;
    let (weights, chosen) = ops::router_top_k(&probabilities, 1, false, None)?;
    let order = ops::expert_order(&chosen, EXPERTS, 0, EXPERTS)?;
    let sorted = ops::permute_tokens(x, &order)?;
    let Some(group) = group else {
        return ops::unpermute_tokens(
            &ops::grouped_matmul(&sorted, w, &order.offsets)?,
            &weights,
            &order,
        );
    };

    let ends: Vec<usize> = order.offsets.to_vec::<i64>()?.iter().map(|end| *end as usize).collect();
    let sent: Vec<usize> =
        (0..group.size()).map(|rank| ends[(rank + 1) * held] - ends[rank * held]).collect();
    let counts: Vec<i64> = sent.iter().map(|rows| *rows as i64).collect();
    let counts = Tensor::from_slice(x.value().device(), &[sent.len()], &counts)?;
    let counts = group.all_to_all(&counts)?.wait()?.to_vec::<i64>()?;
    let received: Vec<usize> = counts.iter().map(|rows| *rows as usize).collect();

    let arrived = ops::all_to_all_rows(&sorted, &sent, &received, group)?;
    let experts: Vec<i32> = ends
        .windows(2)
        .zip(0..)
        .flat_map(|(ends, expert)| vec![expert; ends[1] - ends[0]])
        .collect();
    let experts = Tensor::from_slice(x.value().device(), &[experts.len(), 1], &experts)?;
    let experts = ops::all_to_all_rows(&experts, &sent, &received, group)?;
    let here = ops::expert_order(&experts, EXPERTS, group.index() * held, held)?;
    let y = ops::grouped_matmul(&ops::permute_tokens(&arrived, &here)?, w, &here.offsets)?;
    let ones = ops::full(y.value().device(), &[y.value().shape()[0], 1], DType::F64, 1.0)?;
    let y = ops::unpermute_tokens(&y, &Var::constant(ones), &here)?;
    let back = ops::all_to_all_rows(&y, &received, &sent, group)?;
    ops::unpermute_tokens(&back, &weights, &order)
}

/// The gradients of the tokens `rows`, the experts `held` and the router for dy = y, and y: their elements.
fn gradients(
    device: &Device,
    [rows, held]: [Range<usize>; 2],
    group: Option<&Arc<dyn Communicator>>,
) -> Result<Vec<Vec<f64>>> {
    let random =
        |shape: &[usize], seed| normal(device, shape, DType::F64, Key::new(seed), 0.0, 1.0);
    let x = random(&[TOKENS.iter().sum(), FEATURES], 1)?.slice(0, rows)?;
    let w = random(&[EXPERTS, FEATURES, FEATURES], 2)?.slice(0, held)?;
    let gate = random(&[EXPERTS, FEATURES], 3)?;
    let ((inputs, y), tape) = Tape::record(|| {
        let inputs = [x, w, gate].map(Var::input);
        let y = experts(inputs.each_ref(), group)?;
        Ok((inputs, y))
    })?;
    let (mut results, _) = tape.backward_inputs(&[(&y, y.value().clone())], &inputs.each_ref())?;
    results.push(y.into_value());
    results.iter().map(Tensor::to_vec).collect()
}

fn main() -> Result<()> {
    let one = gradients(&Device::cpu(), [0..TOKENS.iter().sum(), 0..EXPERTS], None)?;
    let ranks = Local::run(TOKENS.len(), |rank| {
        let (own, start) = (rank.rank(), TOKENS[..rank.rank()].iter().sum::<usize>());
        let held = own * EXPERTS_PER_RANK..(own + 1) * EXPERTS_PER_RANK;
        gradients(rank.device(), [start..start + TOKENS[own], held], Some(&rank.world()?))
    })?;
    for (at, name) in ["dx", "dw", "dgate", "y"].into_iter().enumerate() {
        let parts = ranks.iter().map(|results| results[at].clone());
        let whole: Vec<f64> = match name {
            // All ranks have the router, so its gradient is the sum of theirs.
            "dgate" => {
                (0..one[at].len()).map(|i| parts.clone().map(|part| part[i]).sum()).collect()
            }
            _ => parts.flatten().collect(),
        };
        let largest = one[at].iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        println!("{name}: three ranks differ from one by {largest:.1e}");
        assert!(one[at].len() == whole.len() && largest < 1e-12, "{name}");
    }
    Ok(())
}
