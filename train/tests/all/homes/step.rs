//! Five steps of a model, on one rank and on the ranks of a mesh.

use std::collections::BTreeMap;

use meshgrad_autograd::{Grads, Module, Param, Tape};
use meshgrad_collectives::{full_tensor, redistribute};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Redistributor};
use meshgrad_mesh::{Placement, RowBox};
use meshgrad_models::{Decoder, IGNORE_INDEX, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor, ops};
use meshgrad_train::optim::{
    AdamW, AdamWConfig, Groups, Muon, MuonConfig, OptimizerPart, UpdateRule,
};
use meshgrad_train::optimizer::Optimizer;

use crate::homes::cases::{Case, Trained};
use crate::small::{BALANCING, add_adapters};

pub(crate) const TOKENS: usize = 7;
pub(crate) const PASSES: usize = 2;
const STEPS: usize = 5;
const SEED: u64 = 7;

/// Whole tensors by name: losses, norms, the gradients of the first step, and the weights after the
/// last.
pub(crate) type Outcome = BTreeMap<String, Vec<f32>>;

pub(crate) type Result<T> = meshgrad_train::Result<T>;

/// What one rank has of a tensor, and where that is in the whole one.
#[derive(PartialEq)]
pub(crate) struct Share {
    name: String,
    shape: Vec<usize>,
    boxes: Vec<RowBox>,
    row_elements: usize,
    values: Vec<f32>,
}

/// Rows of different lengths, so that ranks have different numbers of labels.
fn batch(case: &Case, step: usize, device: &Device) -> meshgrad_runtime::Result<TokenBatch> {
    let vocabulary = case.config().vocab_size;
    let shape = [case.rows(), TOKENS];
    let id = |at: usize, by: usize| ((at * by + at * at + 5 + step) % vocabulary) as i64;
    let count = shape[0] * shape[1];
    let rotated = |at: usize| (at + case.rotated * TOKENS) % count;
    let ids: Vec<i64> = (0..count).map(|at| id(rotated(at), 11)).collect();
    let label = |at: usize| match at % TOKENS > 1 + at / TOKENS % 4 {
        true => IGNORE_INDEX,
        false => id(at, 17),
    };
    let labels: Vec<i64> = (0..count).map(|at| label(rotated(at))).collect();
    let ids = Tensor::from_slice(device, &shape, &ids)?;
    let labels = Tensor::from_slice(device, &shape, &labels)?;
    Ok(TokenBatch::new(&own_rows(case, &ids)?, &own_rows(case, &labels)?))
}

/// This rank's rows of a batch `x`; on one rank, all.
pub(crate) fn own_rows(case: &Case, x: &Tensor) -> meshgrad_runtime::Result<Tensor> {
    let x = x.as_replicated()?;
    let axes = case.batch_axes().filter(|_| x.sharding().is_some());
    let rows: Vec<_> = axes.map(|axis| (axis, Placement::shard(0))).collect();
    redistribute(&x, &rows)
}

/// This rank's rows `value` of `param`.
pub(crate) fn share(name: String, param: &Param, value: &Tensor) -> Result<Share> {
    let kept = param.kept();
    let [_, row_elements] = kept.by_row();
    Ok(Share {
        name,
        shape: kept.shape().to_vec(),
        boxes: kept.boxes(),
        row_elements,
        values: ops::cast(&value.local(), DType::F32)?.to_vec()?,
    })
}

pub(crate) fn scalar(name: String, value: &Tensor) -> Result<Share> {
    Ok(Share {
        name,
        shape: Vec::new(),
        boxes: meshgrad_mesh::Region::whole(&[]).row_boxes(0..1),
        row_elements: 1,
        values: value.local().to_vec()?,
    })
}

fn rule(case: &Case, parts: &[OptimizerPart]) -> Result<Box<dyn UpdateRule>> {
    // A large eps, so that tiny gradients do not become large updates.
    let adamw = AdamWConfig { eps: 1e-3, ..AdamWConfig::default() };
    let muon = MuonConfig { product_dtype: DType::F32, adamw, ..MuonConfig::default() };
    let groups = Groups::default();
    Ok(match case.muon {
        true => Box::new(Muon::new(parts, muon, &groups)?),
        false => Box::new(AdamW::new(parts, adamw, &groups)?),
    })
}

/// An optimizer with averages.
pub(crate) fn optimizer(case: &Case, model: &Decoder, device: &Device) -> Result<Optimizer> {
    Optimizer::with(model, device, 1.0, |parts| rule(case, parts))?.averaging(0.9)
}

/// Adds the gradients of the passes of a step. Returns the losses, and the weight of their sum.
pub(crate) fn passes(
    case: &Case,
    model: &Decoder,
    grads: &mut Grads,
    device: &Device,
    step: usize,
) -> Result<(Vec<Tensor>, Tensor)> {
    if let Some(passes) = case.expected_passes {
        grads.expect_passes(passes);
    }
    let mut losses = Vec::new();
    let mut weight = ops::full(device, &[], DType::F32, 0.0)?;
    for pass in 0..PASSES {
        let batch = batch(case, step * PASSES + pass, device)?;
        let (loss, tape) = Tape::record(|| model.loss(&batch, case.compute()))?;
        tape.backward(&loss.total, grads)?;
        let counts = loss.statistics.iter().map(full_tensor);
        let scale = Tensor::scalar(device, 1.0f32)?.as_replicated()?;
        model.after_step(&counts.collect::<meshgrad_runtime::Result<Vec<_>>>()?, &scale)?;
        losses.push(full_tensor(loss.total.value())?);
        weight = ops::add(&weight, &full_tensor(&loss.weight)?)?;
    }
    Ok((losses, weight))
}

fn train(case: &Case, model: &Decoder, device: &Device) -> Result<Vec<Share>> {
    let mut optimizer = optimizer(case, model, device)?;
    let mut shares = Vec::new();
    for step in 0..STEPS {
        let (losses, weight) = passes(case, model, optimizer.grads(), device, step)?;
        for (pass, loss) in losses.iter().enumerate() {
            shares.push(scalar(format!("loss {step} {pass}"), loss)?);
        }
        if step == 0 {
            for (param, gradient) in optimizer.grads().all()? {
                let name = format!("gradient of {}", param.name());
                shares.push(share(name, &param, &gradient)?);
            }
        }
        let norm = optimizer.step(&weight, step as u64 + 1, 0.01)?;
        shares.push(scalar(format!("norm {step}"), &norm)?);
    }
    let state = optimizer.state();
    let averages = state.iter().filter(|state| state.name == "ema");
    let averages: BTreeMap<_, _> = averages.flat_map(|state| state.tensors.clone()).collect();
    for param in model.params() {
        if let Some(average) = averages.get(param.name()) {
            let name = format!("average of {}", param.name());
            shares.push(share(name, &param, average)?);
        }
        let value = param.kept_value()?;
        shares.push(share(param.name().to_owned(), &param, &value)?);
    }
    Ok(shares)
}

fn model(case: &Case) -> Result<Decoder> {
    let mut model = Decoder::new(&case.config())?.balanced(BALANCING);
    model.add_router_biases();
    match case.trained {
        Trained::All => (),
        Trained::Except(layer) => model.layers[layer].freeze(),
        Trained::Adapters => {
            model.freeze();
            add_adapters(&mut model);
        }
    }
    Ok(model)
}

/// The whole model, with values.
pub(crate) fn alone(case: &Case, device: &Device) -> Result<Decoder> {
    let model = model(case)?;
    model.materialize(device, SEED)?;
    Ok(model)
}

/// A rank's part of the model, with its homes and values.
pub(crate) fn divided(case: &Case, rank: &dyn Rank) -> Result<Decoder> {
    let (model, mesh) = (model(case)?, case.mesh());
    let plan = model.plan(&case.parallelism(&mesh))?;
    plan.apply(&model, rank.rank())?;
    let homes = case.homes(rank, &mesh);
    match case.learns_classes {
        true => homes.apply_for(&model, |meta| {
            let batch = batch(case, 0, meta)?;
            Ok(model.loss(&batch, case.compute())?.total)
        })?,
        false => homes.apply(&model)?,
    }
    model.materialize(rank.device(), SEED)?;
    Ok(model)
}

/// The outcome of one rank, with the rows in their order.
pub(crate) fn on_one_rank(case: &Case) -> Outcome {
    let case = &Case { rotated: 0, ..*case };
    let device = Device::cpu();
    let run = || train(case, &alone(case, &device)?, &device);
    assembled(&[run().unwrap()]).unwrap()
}

/// The outcome of the case's mesh.
pub(crate) fn on_ranks(case: &Case, fault: Fault) -> std::result::Result<Outcome, String> {
    let mesh = case.mesh();
    let shares = Local::new(mesh.len()).launch(|rank| {
        let faulty = RewiredRank::faulty(rank, fault);
        Redistributor::new(rank).run_on(&mesh, || {
            let model = divided(case, &faulty)?;
            train(case, &model, rank.device())
        })
    });
    assembled(&shares.map_err(|error| error.to_string())?)
}

/// Puts together what the ranks have. Copies of an element must be equal.
pub(crate) fn assembled(ranks: &[Vec<Share>]) -> std::result::Result<Outcome, String> {
    let mut whole: BTreeMap<String, Vec<Option<f32>>> = BTreeMap::new();
    for share in ranks.iter().flatten() {
        let elements = share.shape.iter().product();
        let whole = whole.entry(share.name.clone()).or_insert_with(|| vec![None; elements]);
        let rows = share.boxes.iter().flat_map(|it| {
            let start = it.rows.start * share.row_elements;
            offsets(&it.global, &share.shape)
                .zip(offsets(&it.within, &it.shape).map(move |at| start + at))
        });
        for (to, from) in rows {
            let value = share.values[from];
            match whole[to].replace(value) {
                Some(other) if other.to_bits() != value.to_bits() => {
                    return Err(format!("{}: {other} and {value} at {to}", share.name));
                }
                _ => (),
            }
        }
    }
    let mut outcome = Outcome::new();
    for (name, values) in whole {
        let values: Option<Vec<f32>> = values.into_iter().collect();
        let missing = || format!("{name}: no rank has some elements");
        outcome.insert(name.clone(), values.ok_or_else(missing)?);
    }
    Ok(outcome)
}

/// The offsets of the elements of a box in a contiguous tensor.
fn offsets(of: &[std::ops::Range<usize>], shape: &[usize]) -> impl Iterator<Item = usize> {
    let mut offsets = vec![0];
    for (range, extent) in of.iter().zip(shape) {
        let longer = offsets.iter();
        offsets =
            longer.flat_map(|outer| range.clone().map(move |at| outer * extent + at)).collect();
    }
    offsets.into_iter()
}
