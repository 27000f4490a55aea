//! What a rank sends again when it recomputes.

use meshgrad_autograd::{Module, Result};
use meshgrad_comm::{Plan, Rank, Redistributor};
use meshgrad_models::{Compute, Decoder, Model};

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{batch, gradients, sharded};
use crate::sharded::unchanged;

/// The collectives that rank 0 starts, with their bytes.
type Calls = Vec<(String, u64)>;

/// What rank 0 sends in `body`.
fn calls(case: &Case, body: impl Fn(&dyn Rank, &Decoder) -> Result<()>) -> Calls {
    let mesh = case.mesh();
    let plan = Plan::new(mesh.len()).unwrap();
    let log = plan.trace(0, |rank| -> Result<()> {
        Redistributor::new(rank).run_on(&mesh, || body(rank, &sharded(case, rank, unchanged)?))
    });
    let log = log.unwrap();
    let calls = log.calls();
    calls.map(|it| (it.request.fingerprint.to_string(), it.bytes)).collect()
}

fn sorted(mut calls: Calls) -> Calls {
    calls.sort();
    calls
}

/// With checkpointing, a rank sends what it sends without it, and once more what the layers send in
/// the forward pass, except in a ring: the same collectives with the same bytes.
#[test]
fn checkpointing_sends_the_forward_pass_of_layers_twice() {
    let mut checked = 0;
    for case in CASES.iter().filter(|case| case.checkpointing) {
        let step = |checkpointing| {
            calls(case, |rank, model| {
                let compute = Compute { checkpointing, ..case.compute() };
                let batch = batch(case, rank.device())?;
                gradients(&model.params(), || model.loss(&batch, compute))?;
                Ok(())
            })
        };
        let stream = |has_layers: bool| {
            calls(case, |rank, model| {
                let batch = batch(case, rank.device())?;
                let compute = Compute { checkpointing: false, ..case.compute() };
                let at = model.positions_of(&batch)?;
                let stream = model.embed(&batch.ids, &at, compute)?;
                if has_layers {
                    model.advance(stream, &at, compute)?;
                }
                Ok(())
            })
        };
        let (before, after) = (stream(false), stream(true));
        let of_layers = &after[before.len()..];
        assert_eq!(after[..before.len()], before);
        assert!(!of_layers.is_empty(), "{case}");

        let is_of_ring =
            |(name, _): &(String, u64)| name.starts_with("send(") || name.starts_with("recv(");
        let again = of_layers.iter().filter(|call| !is_of_ring(call)).cloned();
        let expected = [step(false), again.collect()].concat();
        assert_eq!(sorted(step(true)), sorted(expected), "{case}");
        checked += 1;
    }
    assert!(checked >= 4);
}
