//! One step of a model, on one rank and on the ranks of a mesh.

use std::sync::Arc;
use std::time::Duration;

use meshgrad_autograd::{Buffer, Grads, Module, Param, Result, Tape};
use meshgrad_collectives::{Redistribute, full_tensor, redistribute, with_redistribution};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, LocalRank, Rank, Redistributor};
use meshgrad_models::{
    Decoder, FeedForward, IGNORE_INDEX, Loss, Model, ModelPlan, TokenBatch, by_document,
};
use meshgrad_runtime::{Device, Element, Tensor, with_mesh};

use crate::sharded::cases::Case;
use crate::small::{add_adapters, distance, norm};

pub(crate) const SEED: u64 = 7;

/// What a step computes: every tensor under its name, whole.
pub(crate) type Outcome = Vec<(String, Vec<f32>)>;

/// Ids and labels, of which some are ignored.
pub(crate) fn batch(case: &Case, device: &Device) -> Result<TokenBatch> {
    let vocabulary = case.config().vocab_size;
    let id = |at: usize, by: usize| ((at * by + at * at + 5) % vocabulary) as i64;
    let ids: Vec<i64> = (0..case.rows * case.tokens).map(|at| id(at, 11)).collect();
    let label = |at: usize| match at % 5 {
        3 => IGNORE_INDEX,
        _ => id(at, 17),
    };
    let labels: Vec<i64> = (0..case.rows * case.tokens).map(label).collect();
    let own = |values: &[i64]| own_part(case, values, &[], device);
    let batch = TokenBatch::new(&own(&ids)?, &own(&labels)?);
    if !case.documents {
        return Ok(batch);
    }
    let rows = (0..case.rows).map(|row| documents(row, case.tokens));
    let (documents, positions): (Vec<Vec<i64>>, Vec<Vec<i64>>) = rows.unzip();
    let [documents, positions] = [documents, positions].map(|rows| own(&rows.concat()));
    let places: Vec<i64> = (0..case.rows).flat_map(|_| 0..case.tokens as i64).collect();
    let places = case.ranks_of_documents().map(|_| own(&places)).transpose()?;
    Ok(TokenBatch { documents: Some(documents?), positions: Some(positions?), places, ..batch })
}

/// The documents and the positions of the tokens of a row: a document of one token, and two others.
fn documents(row: usize, tokens: usize) -> (Vec<i64>, Vec<i64>) {
    let starts = [0, 1 + row % 3, 2 + row % 3];
    let of_token = |at: usize| {
        let document = starts.iter().rposition(|start| *start <= at).unwrap();
        (document as i64, (at - starts[document]) as i64)
    };
    (0..tokens).map(of_token).unzip()
}

/// A rank's part of values for all tokens, of shape `each` for each.
fn own_part<T: Element>(
    case: &Case,
    values: &[T],
    each: &[usize],
    device: &Device,
) -> Result<Tensor> {
    let width = each.iter().product();
    let mut values = values.to_vec();
    let is_on_ranks = Tensor::scalar(device, 0.0)?.as_replicated()?.sharding().is_some();
    if let Some(ranks) = case.ranks_of_documents().filter(|_| is_on_ranks) {
        let rows = values.chunks(case.tokens * width).enumerate();
        let divided = rows.flat_map(|(row, values)| {
            let places = by_document(&documents(row, case.tokens).0, ranks).into_iter();
            places.flat_map(|place| values[place * width..][..width].to_vec()).collect::<Vec<T>>()
        });
        values = divided.collect();
    }
    let shape = [&[case.rows, case.tokens], each].concat();
    let of_all = Tensor::from_slice(device, &shape, &values)?;
    redistribute(&of_all.as_replicated()?, case.of_batch())
}

/// The experts of all tokens in each sparse layer.
pub(crate) type Choices = Vec<Vec<i32>>;

/// Those that one rank chooses in f32.
pub(crate) fn choices(case: &Case) -> Result<Choices> {
    let case = Case { bf16: false, ..*case };
    let (model, device) = (model(&case)?, Device::cpu());
    model.materialize(&device, SEED)?;
    let routings = model.route(&batch(&case, &device)?, case.compute())?;
    routings.iter().map(|routing| routing.experts_nk.to_vec()).collect()
}

/// [`batch`] with these experts: rounding does not change what tokens choose.
pub(crate) fn replaying(case: &Case, choices: &Choices, device: &Device) -> Result<TokenBatch> {
    let of_token = [case.config().num_experts_per_tok];
    let of_layer = |experts: &Vec<i32>| own_part(case, experts, &of_token, device);
    let experts = choices.iter().map(of_layer).collect::<Result<_>>()?;
    Ok(TokenBatch { experts: Some(experts), ..batch(case, device)? })
}

/// The loss that `loss` computes, and the gradients of its total.
pub(crate) fn gradients(
    params: &[Param],
    loss: impl FnOnce() -> Result<Loss>,
) -> Result<(Loss, Grads)> {
    let mut grads = Grads::new(params)?;
    let (loss, tape) = Tape::record(loss)?;
    tape.backward(&loss.total, &mut grads)?;
    Ok((loss, grads))
}

fn step(case: &Case, model: &Decoder, choices: &Choices, device: &Device) -> Result<Outcome> {
    let model = model.clone().balanced(case.balancing());
    let batch = replaying(case, choices, device)?;
    let (mut loss, mut grads) = gradients(&model.params(), || model.loss(&batch, case.compute()))?;
    let counts = |of_layer: &Tensor| of_layer.slice(0, 0..case.config().num_experts);
    loss.statistics = loss.statistics.iter().map(counts).collect::<Result<_>>()?;
    let counts = loss.statistics.iter().map(full_tensor);
    let one = Tensor::scalar(device, 1.0f32)?.as_replicated()?;
    model.after_step(&counts.collect::<Result<Vec<_>>>()?, &one)?;
    outcome_of(&loss, &mut grads, &model.buffers())
}

/// The losses, statistics, gradients and buffers of a step.
pub(crate) fn outcome_of(loss: &Loss, grads: &mut Grads, buffers: &[Buffer]) -> Result<Outcome> {
    let mut outcome = vec![
        ("total".to_owned(), full_tensor(loss.total.value())?.to_vec()?),
        ("sum".to_owned(), full_tensor(&loss.sum)?.to_vec()?),
        ("weight".to_owned(), full_tensor(&loss.weight)?.to_vec()?),
    ];
    for (layer, counts) in loss.statistics.iter().enumerate() {
        outcome.push((format!("counts {layer}"), full_tensor(counts)?.to_vec()?));
    }
    for (param, gradient) in grads.all()? {
        outcome.push((param.name().to_owned(), full_tensor(&gradient)?.to_vec()?));
    }
    for buffer in buffers {
        outcome.push((buffer.name().to_owned(), buffer.value()?.to_vec()?));
    }
    Ok(outcome)
}

/// With adapters that are not zero and shared experts, if the case has them.
pub(crate) fn model(case: &Case) -> Result<Decoder> {
    let mut model = Decoder::new(&case.config())?;
    model.add_router_biases();
    model.dispatch_experts_by(case.dispatch());
    if case.lora {
        add_adapters(&mut model);
    }
    if case.shared {
        add_shared_experts(&mut model);
    }
    Ok(model)
}

pub(crate) fn add_shared_experts(model: &mut Decoder) {
    for layer in &mut model.layers {
        if let FeedForward::Sparse(moe) = &mut layer.mlp {
            *moe = moe.clone().shared_experts(1);
        }
    }
}

fn on_one_rank(case: &Case) -> Result<Outcome> {
    let device = Device::cpu();
    let model = model(case)?;
    model.materialize(&device, SEED)?;
    step(case, &model, &choices(case)?, &device)
}

/// The outcome of every rank of the case's mesh, with the plan changed by `change`.
pub(crate) fn on_ranks(
    case: &Case,
    fault: Fault,
    change: impl Fn(ModelPlan) -> ModelPlan + Sync,
) -> std::result::Result<Vec<Outcome>, String> {
    let local = Local::new(case.mesh().len());
    let local = match fault {
        Fault::None => local,
        // What swapped ranks send each other matches no receive.
        _ => local.deadline(Duration::from_secs(2)),
    };
    on_ranks_of(&local, case, fault, change)
}

/// As [`on_ranks`], on the ranks of `local`.
pub(crate) fn on_ranks_of(
    local: &Local,
    case: &Case,
    fault: Fault,
    change: impl Fn(ModelPlan) -> ModelPlan + Sync,
) -> std::result::Result<Vec<Outcome>, String> {
    let through = |rank: &LocalRank| -> Arc<dyn Redistribute> {
        Arc::new(Redistributor::new(&RewiredRank::faulty(rank, fault)))
    };
    on_ranks_through(local, case, through, change)
}

/// As [`on_ranks`], where each rank redistributes by `through`.
pub(crate) fn on_ranks_through(
    local: &Local,
    case: &Case,
    through: impl Fn(&LocalRank) -> Arc<dyn Redistribute> + Sync,
    change: impl Fn(ModelPlan) -> ModelPlan + Sync,
) -> std::result::Result<Vec<Outcome>, String> {
    let mesh = case.mesh();
    let choices = choices(case).map_err(|error| error.to_string())?;
    let outcomes = local.launch(|rank| {
        let step = || {
            let model = sharded(case, rank, &change)?;
            step(case, &model, &choices, rank.device())
        };
        with_redistribution(through(rank), || with_mesh(&mesh, rank.rank(), step))
    });
    outcomes.map_err(|error| error.to_string())
}

/// A rank's part of a model, with values.
pub(crate) fn sharded(
    case: &Case,
    rank: &dyn Rank,
    change: impl Fn(ModelPlan) -> ModelPlan,
) -> Result<Decoder> {
    let model = model(case)?;
    let plan = model.plan(&case.parallelism(&case.mesh()))?;
    change(plan).apply(&model, rank.rank())?;
    model.materialize(rank.device(), SEED)?;
    Ok(model)
}

/// The outcome of one rank.
pub(crate) struct Expected {
    outcome: Outcome,
    /// In bf16, the outcome in f32.
    exact: Option<Outcome>,
}

impl Expected {
    pub(crate) fn of(case: &Case) -> Result<Expected> {
        let exact = Case { bf16: false, ..*case };
        let exact = case.bf16.then(|| on_one_rank(&exact)).transpose()?;
        let outcome = on_one_rank(case)?;
        Ok(Expected { outcome, exact })
    }

    /// Checks that each tensor of `actual` is near; in bf16, that it is about as near to the exact
    /// outcome as that of one rank.
    pub(crate) fn compare(&self, actual: &Outcome) -> std::result::Result<(), String> {
        let names = |outcome: &Outcome| -> Vec<String> {
            outcome.iter().map(|(name, _)| name.clone()).collect()
        };
        if names(actual) != names(&self.outcome) {
            return Err(format!("other tensors: {:?}", names(actual)));
        }
        let mut problems = Vec::new();
        for (at, (name, actual)) in actual.iter().enumerate() {
            let one_rank = &self.outcome[at].1;
            let exact = self.exact.as_ref().map_or(one_rank, |exact| &exact[at].1);
            let (size, own) = (norm(exact), distance(one_rank, exact));
            let allowed = match self.exact {
                Some(_) => 3.0 * own + 0.01 * size,
                None => 2e-5 * size + 1e-6,
            };
            let difference = distance(actual, exact);
            if actual.len() != exact.len() || difference.is_nan() || difference > allowed {
                problems.push(format!(
                    "{name}: differs by {difference:.1e}, and one rank by {own:.1e}, of {size:.1e}"
                ));
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problems.join("; ")),
        }
    }
}
