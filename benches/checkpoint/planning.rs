//! Opening and planning a checkpoint with very many tensors.

use std::cell::RefCell;
use std::path::Path;

use meshgrad::ckpt::Folder;
use meshgrad::ckpt::graph::Graph;
use meshgrad::ckpt::mapping::TensorSpec;
use meshgrad::ckpt::plan::{Catalog, LoadPlan, LoadRequest, Options};
use meshgrad_harness::{Spread, seconds, timed};
use serde_json::{Value, json};

use super::loads::{IDENTITY, bind};
use super::rounds::Contestant;

/// The map that stacks experts for training.
const STACKED: &str = "
    [model.layers.{l}. = model.layers.{l}.]
    experts.gate_up = stack(concat(mlp.experts.{e}.gate_proj.weight,
                                   mlp.experts.{e}.up_proj.weight), each=e)
    experts.down    = stack(mlp.experts.{e}.down_proj.weight, each=e)
    input_layernorm.weight = input_layernorm.weight";

/// Seconds of each step, for all samples.
#[derive(Default)]
pub(super) struct Steps {
    open: Vec<f64>,
    bind: Vec<f64>,
    plan: Vec<f64>,
}

impl Steps {
    pub(super) fn json(&self) -> Value {
        let ms = |all: &[f64]| {
            let all: Vec<f64> = all.iter().map(|it| 1e3 * it).collect();
            Spread::try_of(&all).map(Spread::json)
        };
        json!({
            "open_ms": ms(&self.open),
            "bind_ms": ms(&self.bind),
            "plan_ms": ms(&self.plan),
        })
    }
}

pub(super) const DIRECTLY: &str = "meshgrad open + plan, without a map";
pub(super) const BY_IDENTITY: &str = "meshgrad open + bind + plan, identity map";
pub(super) const BY_STACKED: &str = "meshgrad open + bind + plan, experts stacked";

/// The contestants that open and plan in this process. Ours record their steps.
pub(super) fn contestants<'a>(
    folder: &'a Path,
    steps: &'a [RefCell<Steps>; 3],
) -> Vec<Contestant<'a>> {
    let crate_parse = move || {
        let bytes = std::fs::read(folder.join("model.safetensors"))?;
        safetensors::SafeTensors::read_metadata(&bytes)?;
        Ok(())
    };
    vec![
        contestant(DIRECTLY, move || directly(folder, &steps[0])),
        contestant(BY_IDENTITY, move || by_map(folder, IDENTITY, &steps[1])),
        contestant(BY_STACKED, move || by_map(folder, STACKED, &steps[2])),
        contestant("safetensors crate: read + parse", crate_parse),
    ]
}

/// Times the second of two runs. The first gets back the memory and caches that the process lost
/// while it was idle.
fn contestant<'a>(name: &str, act: impl Fn() -> anyhow::Result<()> + 'a) -> Contestant<'a> {
    Contestant {
        name: name.to_owned(),
        destination: "recently used memory",
        files: Vec::new(),
        before: Box::new(|| Ok(())),
        sample: Box::new(move || {
            act()?;
            timed(&act)
        }),
    }
}

fn directly(folder: &Path, steps: &RefCell<Steps>) -> anyhow::Result<()> {
    let mut steps = steps.borrow_mut();
    let (took, folder) = seconds(|| Folder::open(folder));
    steps.open.push(took);
    let folder = folder?;
    let (took, plan) = seconds(|| -> anyhow::Result<LoadPlan> {
        let mut graph = Graph::new();
        let mut wants = Vec::new();
        for tensor in folder.tensors() {
            let TensorSpec { name, dtype, shape } = TensorSpec::from(tensor);
            let source = graph.source(&name, dtype, &shape)?;
            wants.push(LoadRequest::all(name, &graph, source));
        }
        let catalog = Catalog::of(&folder);
        Ok(LoadPlan::new(&graph, &catalog, &wants, &Options::default())?)
    });
    steps.plan.push(took);
    plan?;
    Ok(())
}

fn by_map(folder: &Path, map: &str, steps: &RefCell<Steps>) -> anyhow::Result<()> {
    let mut steps = steps.borrow_mut();
    let (took, folder) = seconds(|| Folder::open(folder));
    steps.open.push(took);
    let folder = folder?;
    let (took, bound) = seconds(|| bind(&folder, map));
    steps.bind.push(took);
    let bound = bound?;
    let (took, plan) = seconds(|| {
        let (catalog, wants) = (Catalog::of(&folder), bound.requests());
        LoadPlan::new(bound.graph(), &catalog, &wants, &Options::default())
    });
    steps.plan.push(took);
    plan?;
    Ok(())
}
