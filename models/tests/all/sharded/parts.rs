//! Parts of a model, one after the other, compute what the whole model does.

use meshgrad_autograd::{Module, Result};
use meshgrad_models::{Flow, Loss, Model, Qwen3};
use meshgrad_runtime::{Device, Tensor};

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{Expected, Outcome, SEED, batch, gradients, outcome_of};
use crate::small::BALANCING;

/// The loss of three parts: the first layer, no layer, and all others.
fn parts(case: &Case) -> Result<[Qwen3; 3]> {
    let config = case.config();
    let layers = config.num_hidden_layers;
    let part = |layers, first, last| -> Result<Qwen3> {
        let mut part = Qwen3::part(&config, layers, first, last)?;
        part.add_router_biases();
        Ok(part.balanced(BALANCING))
    };
    Ok([part(0..1, true, false)?, part(1..1, false, false)?, part(1..layers, false, true)?])
}

/// The loss, and the statistics of each part.
fn loss(
    parts: &[Qwen3; 3],
    case: &Case,
    device: &Device,
    statistics: &mut Vec<Vec<Tensor>>,
) -> Result<Loss> {
    let batch = batch(case, device)?;
    let mut stream = None;
    for part in parts {
        match part.forward(stream.take(), &batch, case.compute())? {
            Flow::Next { stream: next, statistics: own } => {
                stream = Some(next);
                statistics.push(own);
            }
            Flow::Loss(loss) => {
                statistics.push(loss.statistics.clone());
                return Ok(Loss { statistics: statistics.concat(), ..*loss });
            }
        }
    }
    unreachable!("the last part has a loss")
}

/// The gradients of a tied table are added, as its two copies in a pipeline must be.
fn outcome(case: &Case) -> Result<Outcome> {
    let device = Device::cpu();
    let parts = parts(case)?;
    for part in &parts {
        part.materialize(&device, SEED)?;
    }
    let params = parts.iter().flat_map(Module::params).collect::<Vec<_>>();
    let mut statistics = Vec::new();
    let (loss, mut grads) = gradients(&params, || loss(&parts, case, &device, &mut statistics))?;
    for (part, counts) in parts.iter().zip(&statistics) {
        part.after_step(counts, &Tensor::scalar(&device, 1.0f32)?)?;
    }
    let buffers = parts.iter().flat_map(Module::buffers).collect::<Vec<_>>();
    let mut outcome = outcome_of(&loss, &mut grads, &buffers)?;

    let table = "model.embed_tokens.weight";
    let tables: Vec<usize> = (0..outcome.len()).filter(|at| outcome[*at].0 == table).collect();
    if let [first, second] = tables[..] {
        let (_, of_head) = outcome.remove(second);
        for (sum, gradient) in outcome[first].1.iter_mut().zip(of_head) {
            *sum += gradient;
        }
    }
    Ok(outcome)
}

#[test]
fn parts_compute_what_the_model_does() {
    let mut models = Vec::new();
    for case in CASES.iter().filter(|case| !case.bf16) {
        if !models.contains(&case.model) {
            models.push(case.model);
            let outcome = outcome(case).unwrap();
            Expected::of(case).unwrap().compare(&outcome).unwrap();
        }
    }
    assert!(models.len() >= 3);
}

#[test]
fn a_part_refuses_what_it_cannot_do() {
    let case = &CASES[0];
    let [first, middle, last] = parts(case).unwrap();
    let device = Device::cpu();
    let batch = batch(case, &device).unwrap();
    for part in [&first, &middle, &last] {
        part.materialize(&device, SEED).unwrap();
    }
    let error = |part: &Qwen3| part.loss(&batch, case.compute()).err().unwrap().to_string();
    assert!(error(&first).contains("has no head: only the last part"), "{}", error(&first));
    assert!(error(&last).contains("has no embedding: only the first"), "{}", error(&last));
    let outside = Qwen3::part(&case.config(), 1..5, false, true).err().unwrap();
    assert!(outside.to_string().contains("1..5 are not a range of the model's 3 layers"));
}
