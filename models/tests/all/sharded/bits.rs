//! Where ranks gather keys, each token has the bits of one rank in all layers.

use meshgrad_autograd::{Module, Result};
use meshgrad_collectives::full_tensor;
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_models::{Decoder, Flow, Model, Stage};
use meshgrad_runtime::Device;

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{SEED, batch, model, sharded};

/// The bits of each token after all layers, in the order of one rank.
fn bits(case: &Case, model: &Decoder, device: &Device) -> Result<Vec<Vec<u32>>> {
    let stage = Stage { is_last: false, ..Stage::whole(model.layers()) };
    let batch = batch(case, device)?;
    let part = model.part(std::slice::from_ref(&stage))?;
    let Flow::Next { stream, .. } = part.forward(&stage, None, &batch, case.compute())? else {
        unreachable!("the stage has no head")
    };
    let values = full_tensor(stream.x.sum()?.value())?.to_vec::<f32>()?;
    let width = values.len() / (case.rows * case.tokens);
    let of_token = |token: &[f32]| token.iter().map(|value| value.to_bits()).collect();
    let mut tokens: Vec<Vec<u32>> = values.chunks(width).map(of_token).collect();
    if let Some(places) = &batch.places {
        let places = full_tensor(places)?.to_vec::<i64>()?;
        let rows = places.iter().enumerate().map(|(at, place)| (at / case.tokens, *place));
        let mut moved: Vec<_> = rows.zip(tokens).collect();
        moved.sort();
        tokens = moved.into_iter().map(|(_, token)| token).collect();
    }
    Ok(tokens)
}

#[test]
fn gathered_keys_give_the_bits_of_one_rank() {
    let (mut compared, mut divided) = (0, 0);
    let gathers =
        |case: &&Case| case.mesh.iter().all(|(axis, _)| ["dp", "cp"].contains(axis)) && !case.ring;
    let has_experts = |case: &&Case| case.config().num_experts > 0;
    let cases = CASES.iter().filter(|case| gathers(case) && !has_experts(case) && !case.bf16);
    for case in cases {
        let (alone, device) = (model(case).unwrap(), Device::cpu());
        alone.materialize(&device, SEED).unwrap();
        let one = bits(case, &alone, &device).unwrap();
        let ranks = Local::new(case.mesh().len()).launch(|rank| {
            Redistributor::new(rank).run_on(&case.mesh(), || {
                bits(case, &sharded(case, rank, |plan| plan)?, rank.device())
            })
        });
        assert!(ranks.unwrap().iter().all(|it| *it == one), "{case}");
        compared += 1;
        divided += usize::from(case.ranks_of_documents().is_some());
    }
    assert!(compared >= 6 && divided >= 1, "{compared}, {divided}");
}
