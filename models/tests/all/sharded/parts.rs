//! The stages of a model, one after the other, compute what the whole model does.

use meshgrad_autograd::{Module, Result};
use meshgrad_models::{Decoder, Flow, Loss, Model, Stage, hf};
use meshgrad_runtime::{Device, Tensor};

use crate::sharded::cases::{CASES, Case};
use crate::sharded::run::{
    Expected, Outcome, SEED, add_shared_experts, batch, choices, gradients, outcome_of, replaying,
};
use crate::small::add_adapters;

/// Three stages: the first layer, no layer, and all others.
fn stages(case: &Case) -> Result<Vec<(Stage, Decoder)>> {
    let config = case.config();
    let stages = Stage::of_sizes(&[1, 0, config.num_hidden_layers - 1])?.into_iter();
    let part = |stage: Stage| {
        let mut part = Decoder::new(&config)?.part(std::slice::from_ref(&stage))?;
        part.add_router_biases();
        if case.shared {
            add_shared_experts(&mut part);
        }
        Ok((stage, part.balanced(case.balancing())))
    };
    stages.map(part).collect()
}

/// The loss, and the statistics of each stage.
fn loss(
    stages: &[(Stage, Decoder)],
    case: &Case,
    device: &Device,
    statistics: &mut Vec<Vec<Tensor>>,
) -> Result<Loss> {
    let batch = replaying(case, &choices(case)?, device)?;
    let mut stream = None;
    for (stage, part) in stages {
        match part.forward(stage, stream.take(), &batch, case.compute())? {
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
    unreachable!("the last stage has a loss")
}

/// The gradients of a tied table are added, as its two copies in a pipeline must be.
fn outcome(case: &Case) -> Result<Outcome> {
    let device = Device::cpu();
    let stages = stages(case)?;
    let parts: Vec<&Decoder> = stages.iter().map(|(_, part)| part).collect();
    for part in &parts {
        part.materialize(&device, SEED)?;
    }
    let params = parts.iter().flat_map(|part| part.params()).collect::<Vec<_>>();
    let mut statistics = Vec::new();
    let (loss, mut grads) = gradients(&params, || loss(&stages, case, &device, &mut statistics))?;
    for (part, counts) in parts.iter().zip(&statistics) {
        part.after_step(counts, &Tensor::scalar(&device, 1.0f32)?)?;
    }
    let buffers = parts.iter().flat_map(|part| part.buffers()).collect::<Vec<_>>();
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
fn stages_compute_what_the_model_does() {
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

/// Any of them can write the folder of the whole model.
#[test]
fn parts_have_the_files_of_the_model() {
    let mut model = Decoder::new(&CASES[0].config()).unwrap();
    add_adapters(&mut model);
    let files = hf::all_files(&model).unwrap();
    assert!(files.iter().any(|(name, _)| name == hf::ADAPTER_CONFIG));
    for stage in Stage::of_sizes(&[0, model.layers()]).unwrap() {
        assert_eq!(hf::all_files(&model.part(&[stage]).unwrap()).unwrap(), files);
    }
}

#[test]
fn a_stage_refuses_what_it_cannot_do() {
    let case = &CASES[0];
    let stages = stages(case).unwrap();
    let device = Device::cpu();
    let batch = batch(case, &device).unwrap();
    for (_, part) in &stages {
        part.materialize(&device, SEED).unwrap();
    }
    let error = |at: usize| {
        let (stage, part) = &stages[at];
        let stage = Stage { is_first: true, is_last: true, ..stage.clone() };
        part.forward(&stage, None, &batch, case.compute()).err().unwrap().to_string()
    };
    assert!(error(0).contains("have no head: only the last stage"), "{}", error(0));
    assert!(error(2).contains("have no embedding: only the first"), "{}", error(2));
    let whole = stages[0].1.loss(&batch, case.compute()).err().unwrap();
    assert!(whole.to_string().starts_with("layers 0..3 are not all here"), "{whole}");
    let outside = Stage { layers: 1..5, is_first: false, is_last: true };
    let outside = Decoder::new(&case.config()).unwrap().part(&[outside]).err().unwrap();
    assert!(outside.to_string().starts_with("layers 1..5 are not all here"), "{outside}");
}
