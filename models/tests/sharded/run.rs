//! One step of a model, on one rank and on the ranks of a mesh.

use meshgrad_autograd::{Error, Grads, Module, Result, Tape};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Redistributor};
use meshgrad_mesh::{Mesh, Placement};
use meshgrad_models::{IGNORE_INDEX, Model, Plan, Qwen3, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor, ops, redistribute};

use crate::cases::Case;

const ROWS: usize = 3;
const TOKENS: usize = 7;
const SEED: u64 = 7;

/// What a step computes: every tensor under its name, whole.
pub(crate) type Outcome = Vec<(String, Vec<f32>)>;

/// Ids and labels, of which some are ignored.
fn batch(case: &Case, device: &Device) -> Result<TokenBatch> {
    let vocabulary = case.config().vocab_size;
    let id = |at: usize, by: usize| ((at * by + at * at + 5) % vocabulary) as i64;
    let ids: Vec<i64> = (0..ROWS * TOKENS).map(|at| id(at, 11)).collect();
    let label = |at: usize| match at % 5 {
        3 => IGNORE_INDEX,
        _ => id(at, 17),
    };
    let labels: Vec<i64> = (0..ROWS * TOKENS).map(label).collect();
    let shape = [ROWS, TOKENS];
    let ids = Tensor::from_slice(device, &shape, &ids)?.as_replicated()?;
    let labels = Tensor::from_slice(device, &shape, &labels)?.as_replicated()?;
    let rows = [("dp", Placement::shard(0))];
    let rows = &rows[..usize::from(case.mesh.iter().any(|(axis, _)| *axis == "dp"))];
    Ok(TokenBatch::new(
        &redistribute(&ids, rows)?,
        &redistribute(&labels, rows)?,
    ))
}

/// `x` on one rank; on a mesh, replicated.
fn whole(x: &Tensor) -> Result<Tensor> {
    let Some(sharding) = x.sharding() else {
        return Ok(x.clone());
    };
    let axes = sharding.mesh().axes().iter();
    let axes: Vec<_> = axes
        .map(|axis| (axis.name(), Placement::Replicate))
        .collect();
    redistribute(x, axes)
}

fn step(case: &Case, model: &Qwen3, device: &Device) -> Result<Outcome> {
    let model = model.clone().balanced(case.balancing());
    let batch = batch(case, device)?;
    let mut grads = Grads::new(&model.params())?;
    let (loss, tape) = Tape::record(|| model.loss(&batch, case.compute()))?;
    tape.backward(
        &[(&loss.total, ops::full(device, &[], DType::F32, 1.0)?)],
        &mut grads,
    )?;
    model.after_step(&loss.statistics)?;

    let mut outcome = vec![
        ("total".to_owned(), loss.total.value().to_vec()?),
        ("sum".to_owned(), loss.sum.to_vec()?),
        ("weight".to_owned(), loss.weight.to_vec()?),
    ];
    for (layer, counts) in loss.statistics.iter().enumerate() {
        outcome.push((format!("counts {layer}"), counts.to_vec()?));
    }
    for (param, gradient) in grads.all()? {
        outcome.push((param.name().to_owned(), whole(&gradient)?.to_vec()?));
    }
    for buffer in model.buffers() {
        outcome.push((buffer.name().to_owned(), buffer.value()?.to_vec()?));
    }
    Ok(outcome)
}

fn model(case: &Case) -> Result<Qwen3> {
    let mut model = Qwen3::new(&case.config())?;
    model.add_router_biases();
    Ok(model)
}

pub(crate) fn on_one_rank(case: &Case) -> Result<Outcome> {
    let device = Device::cpu();
    let model = model(case)?;
    model.materialize(&device, SEED)?;
    step(case, &model, &device)
}

/// The outcome of every rank, with the plan changed by `change`.
pub(crate) fn on_ranks(
    case: &Case,
    mesh: &Mesh,
    fault: Fault,
    change: impl Fn(Plan) -> Plan + Sync,
) -> std::result::Result<Vec<Outcome>, String> {
    let outcomes = Local::run(mesh.len(), |rank| {
        let device = rank.device();
        Redistributor::new(&RewiredRank::faulty(rank, fault)).run_on(mesh, || {
            let model = model(case)?;
            let parallelism = case.parallelism(mesh).map_err(Error::other)?;
            change(model.plan(&parallelism)?).apply(&model, rank.rank())?;
            model.materialize(device, SEED)?;
            step(case, &model, device)
        })
    });
    outcomes.map_err(|error| error.to_string())
}

/// Checks that each tensor of `actual` is near that of `expected`.
pub(crate) fn compare(
    actual: &Outcome,
    expected: &Outcome,
    tolerance: f64,
) -> std::result::Result<(), String> {
    let names = |outcome: &Outcome| {
        outcome
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>()
    };
    if names(actual) != names(expected) {
        return Err(format!(
            "{:?} instead of {:?}",
            names(actual),
            names(expected)
        ));
    }
    let mut problems = Vec::new();
    for ((name, actual), (_, expected)) in actual.iter().zip(expected) {
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
        let size = norm(&mut expected.iter().map(|x| f64::from(*x)));
        let differences = actual.iter().zip(expected);
        let difference = norm(&mut differences.map(|(a, b)| f64::from(*a) - f64::from(*b)));
        if actual.len() != expected.len() || !(difference <= tolerance * size + 1e-6) {
            problems.push(format!("{name}: differs by {difference:.1e} of {size:.1e}"));
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(problems.join(", ")),
    }
}
