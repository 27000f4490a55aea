//! Five steps on one rank, and as a configuration divides them.

use std::collections::BTreeMap;
use std::time::Duration;

use meshgrad_autograd::{Module, Param, ops};
use meshgrad_comm::{CommLog, Local, NcclRank, Plan, PlanRank, Rank};
use meshgrad_models::moe::Dispatch;
use meshgrad_models::{Decoder, IGNORE_INDEX, TokenBatch, by_document};
use meshgrad_runtime::{Device, Tensor};
use meshgrad_train::ranks::RunRanks;
use meshgrad_train::trainer::Trainer;
use meshgrad_train::{Kind as ErrorKind, Result};

use crate::homes::step::{Outcome, Share, assembled, share};
use crate::small::{self, BALANCING};
use crate::together::draw::{Combination, Kind};
use crate::together::planted::Planted;

const SEED: u64 = 11;
/// What no step takes, even on a busy machine: a rank that waits longer for another is an error.
const LIMIT: Duration = Duration::from_secs(20);
const CHOSEN: usize = 2;
/// What each parameter of a unit is padded to, in elements.
const PADDING: usize = 64;

const EXPERTS: &str = r#"
    model_type = "qwen3_moe"
    vocab_size = 61
    hidden_size = 24
    intermediate_size = 24
    num_hidden_layers = 4
    num_attention_heads = 12
    num_key_value_heads = 4
    head_dim = 4
    num_experts = 24
    num_experts_per_tok = 2
    moe_intermediate_size = 8
    mlp_only_layers = [2]
    norm_topk_prob = true
    initializer_range = 0.2
"#;

const DENSE: &str = r#"
    model_type = "qwen3"
    vocab_size = 61
    hidden_size = 24
    intermediate_size = 36
    num_hidden_layers = 4
    num_attention_heads = 12
    num_key_value_heads = 6
    head_dim = 4
    attention_bias = true
    initializer_range = 0.2
"#;

const TIED: &str = r#"
    model_type = "qwen3"
    vocab_size = 61
    hidden_size = 16
    intermediate_size = 24
    num_hidden_layers = 3
    num_attention_heads = 8
    num_key_value_heads = 4
    head_dim = 4
    tie_word_embeddings = true
    use_sliding_window = true
    sliding_window = 5
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    initializer_range = 0.2
"#;

/// How training went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trained {
    /// The loss and the norm of the gradient of each step.
    pub(crate) steps: Vec<[f64; 2]>,
    /// Each expert's share of the tokens of each step.
    pub(crate) experts: Vec<Vec<f64>>,
    /// Before the first step, on one rank.
    pub(crate) initial: Outcome,
    pub(crate) weights: Outcome,
    /// How many steps were repeated.
    pub(crate) repeats: usize,
}

/// The experts of all tokens of a microbatch in each sparse layer, by the microbatch's number.
pub(crate) type Choices = BTreeMap<usize, Vec<Vec<i32>>>;

fn model(of: &Combination) -> Result<Decoder> {
    let text = match of.model {
        Kind::Experts => EXPERTS,
        Kind::Dense => DENSE,
        Kind::Tied => TIED,
    };
    let mut model = Decoder::new(&small::config(text))?.balanced(BALANCING);
    model.add_router_biases();
    model.dispatch_experts_by(match of.all_to_all {
        true => Dispatch::AllToAll,
        false => Dispatch::AllGather,
    });
    model.adapt_expert_slots(of.overflows);
    Ok(model)
}

/// The document of each token of a row.
fn documents(row: usize, tokens: usize) -> Vec<i64> {
    let starts = [1 + row % 3, 4 + row % 2, tokens / 2 + row % 5];
    (0..tokens).map(|at| starts.iter().filter(|start| **start <= at).count() as i64).collect()
}

/// A microbatch, or a rank's part of it.
pub(super) struct Microbatch<'a> {
    pub(super) of: &'a Combination,
    pub(super) number: usize,
    pub(super) device: &'a Device,
    pub(super) ranks: Option<&'a RunRanks<'a>>,
}

impl Microbatch<'_> {
    fn shape(&self) -> [usize; 2] {
        [self.of.replicas(), self.of.tokens()]
    }

    fn own<T: meshgrad_runtime::Element>(&self, values: &[T]) -> Result<Tensor> {
        let [rows, tokens] = self.shape();
        let Some(ranks) = self.ranks else {
            return Tensor::from_slice(self.device, &[rows, tokens], values);
        };
        let mut placed = values.to_vec();
        if self.of.documents && self.of.context() > 1 {
            let row = |row: usize| {
                let places = by_document(&documents(row, tokens), self.of.context()).into_iter();
                places.map(move |place| values[row * tokens + place])
            };
            placed = (0..rows).flat_map(row).collect();
        }
        ranks.own_part(&Tensor::from_slice(self.device, &[rows, tokens], &placed)?)
    }

    pub(super) fn tensors(&self) -> Result<TokenBatch> {
        let [rows, tokens] = self.shape();
        let all = 0..rows * tokens;
        let id = |at: usize, by: usize| ((at * by + at * at + 5 + 7 * self.number) % 61) as i64;
        let ids: Vec<i64> = all.clone().map(|at| id(at, 11)).collect();
        let label = |at: usize| match (at + self.number) % 7 {
            3 => IGNORE_INDEX,
            _ => id(at, 17),
        };
        let labels: Vec<i64> = all.clone().map(label).collect();
        let mut batch = TokenBatch::new(&self.own(&ids)?, &self.own(&labels)?);
        if self.of.documents {
            let rows = (0..rows).map(|row| documents(row, tokens));
            let documents = rows.collect::<Vec<_>>().concat();
            let mut start = 0;
            let position = |at: usize| {
                let is_first = at.is_multiple_of(tokens) || documents[at - 1] != documents[at];
                start = if is_first { at } else { start };
                (at - start) as i64
            };
            let positions: Vec<i64> = all.clone().map(position).collect();
            batch.positions = Some(self.own(&positions)?);
            batch.documents = Some(self.own(&documents)?);
            if self.ranks.is_some() && self.of.context() > 1 {
                let places: Vec<i64> = all.map(|at| (at % tokens) as i64).collect();
                batch.places = Some(self.own(&places)?);
            }
        }
        Ok(batch)
    }

    /// With the experts that one rank chose.
    fn replaying(&self, choices: &Choices) -> Result<TokenBatch> {
        let mut batch = self.tensors()?;
        if let Some(layers) = choices.get(&self.number) {
            let of_layer = |experts: &Vec<i32>| {
                let column = |at: usize| {
                    let values: Vec<i32> =
                        experts.iter().skip(at).step_by(CHOSEN).copied().collect();
                    self.own(&values)?.unsqueeze(2)
                };
                ops::concat(&[&column(0)?, &column(1)?], 2)
            };
            batch.experts = Some(layers.iter().map(of_layer).collect::<Result<_>>()?);
        }
        Ok(batch)
    }
}

/// Trains. On one rank, adds what is chosen to `choices`, where they have nothing.
fn train(
    of: &Combination,
    mut trainer: Trainer<Decoder>,
    device: &Device,
    ranks: Option<&RunRanks<'_>>,
    choices: &mut Choices,
) -> Result<(Trained, Vec<Share>)> {
    let mut trained = Trained::default();
    for step in 1..=of.steps() {
        let first = (step as usize - 1) * of.microbatches();
        let numbers = first..first + of.microbatches();
        let microbatch = |number| Microbatch { of, number, device, ranks };
        if ranks.is_none() && of.model == Kind::Experts {
            for number in numbers.clone() {
                if choices.contains_key(&number) {
                    continue;
                }
                let batch = microbatch(number).tensors()?;
                let routed = trainer.model.route(&batch, small::compute(false, false))?;
                let chosen = routed.iter().map(|routing| routing.experts_nk.to_vec());
                choices.insert(number, chosen.collect::<Result<_>>()?);
            }
        }
        if of.overflows {
            trainer.model.sparse_blocks().for_each(|moe| moe.set_slots(1));
        }
        let done = loop {
            let batches = numbers.clone().map(|number| microbatch(number).replaying(choices));
            let batches: Vec<_> = batches.collect::<Result<_>>()?;
            let done = trainer.step(step, batches.into_iter().map(Ok))?.wait(&trainer.model)?;
            if !done.overflowed {
                break done;
            }
            trained.repeats += 1;
            trainer.clear_overflow()?;
        };
        trained.steps.push([done.loss, done.grad_norm]);
        trained.experts.push(done.expert_shares);
    }
    Ok((trained, weights(&trainer.model)?))
}

/// What this rank has of the weights.
pub(super) fn weights(model: &Decoder) -> Result<Vec<Share>> {
    let of_param = |param: &Param| share(param.name().to_owned(), param, &param.kept_value()?);
    model.params().iter().map(of_param).collect()
}

/// Trains with `choices`, and what the model chooses where they have nothing.
pub(crate) fn on_one_rank(of: &Combination, choices: &Choices) -> (Trained, Choices) {
    let run = || {
        let (device, mut choices) = (Device::cpu(), choices.clone());
        let model = model(of)?;
        model.materialize(&device, SEED)?;
        let initial = weights(&model)?;
        let alone = Combination { degrees: Vec::new(), schedule: None, ..of.clone() };
        let trainer = Trainer::new(model, &alone.config(), &device)?;
        let (trained, shares) = train(of, trainer, &device, None, &mut choices)?;
        Ok::<_, meshgrad_train::Error>((trained, [initial, shares], choices))
    };
    let (trained, shares, choices) = run().unwrap();
    let [initial, weights] = shares.map(|shares| assembled(&[shares]).unwrap());
    (Trained { initial, weights, ..trained }, choices)
}

/// The refusal of a combination that cannot work.
pub(crate) fn refusal(of: &Combination) -> Option<String> {
    let config = of.config();
    let tried = Local::new(of.ranks()).threads(1).launch(|rank| -> Result<()> {
        let ranks = RunRanks::new(rank, &config)?;
        ranks.on_mesh(|| ranks.divide(&model(of)?).map(drop))
    });
    tried.err().map(|error| error.to_string())
}

/// A trainer of this rank's part of the model.
pub(super) fn divided(
    of: &Combination,
    ranks: &RunRanks<'_>,
    device: &Device,
) -> Result<Trainer<Decoder>> {
    let model = model(of)?;
    let (model, pipeline) = match ranks.divide(&model)? {
        Some((part, pipeline)) => (part, Some(pipeline)),
        None => (model, None),
    };
    model.materialize(device, SEED)?;
    Trainer::of(model).pipeline(pipeline).build(&of.config(), device)
}

/// What a rank sends in a step.
pub(crate) struct Sent {
    pub(crate) log: CommLog,
    /// The bytes of the parameters that it computes with: outside of experts, and of experts. With
    /// padding.
    pub(crate) params: [u64; 2],
}

/// What each rank sends in a step.
pub(crate) fn sent(of: &Combination) -> Vec<Sent> {
    let (config, world) = (of.config(), Plan::new(of.ranks()).unwrap());
    let of_rank = |number| {
        let mut params = [0; 2];
        let step = |rank: &PlanRank| -> Result<()> {
            let ranks = RunRanks::new(rank, &config)?;
            ranks.on_mesh(|| {
                let (mut trainer, device) = (divided(of, &ranks, rank.device())?, rank.device());
                for param in trainer.model.params() {
                    let elements: usize = param.sharded_shape().local().iter().product();
                    let bytes = 4 * elements.next_multiple_of(PADDING) as u64;
                    params[usize::from(param.name().contains(".experts."))] += bytes;
                }
                let batch =
                    |number| Microbatch { of, number, device, ranks: Some(&ranks) }.tensors();
                match trainer.step(1, (0..of.microbatches()).map(batch)) {
                    // At its end, a step reads the loss.
                    Err(error) if error.kind() != ErrorKind::NoValues => Err(error),
                    _ => Ok(()),
                }
            })
        };
        let log = world.trace(number, step).unwrap();
        Sent { log, params }
    };
    (0..of.ranks()).map(of_rank).collect()
}

/// What carries tensors between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The memory of the process, between CPUs.
    Local,
    /// NCCL, between emulated GPUs.
    Nccl,
}

pub(crate) fn on_ranks(
    of: &Combination,
    choices: &Choices,
    fault: Planted,
) -> std::result::Result<Trained, String> {
    on_ranks_over(Over::Local, of, choices, fault)
}

pub(crate) fn on_ranks_over(
    over: Over,
    of: &Combination,
    choices: &Choices,
    fault: Planted,
) -> std::result::Result<Trained, String> {
    let config = of.config();
    let run = |rank: &dyn Rank| {
        let rank = fault.rewire(rank);
        let ranks = RunRanks::new(&rank, &config)?;
        ranks.on_mesh(|| {
            let mut trainer = divided(of, &ranks, rank.device())?;
            fault.plant(of, &mut trainer);
            train(of, trainer, rank.device(), Some(&ranks), &mut choices.clone())
        })
    };
    // Emulated GPUs are slow, and ranks call collectives long before their GPUs reach them.
    let limit = if over == Over::Local { LIMIT } else { 10 * LIMIT };
    let local = Local::new(of.ranks()).threads(1).deadline(limit);
    let ran = local.launch(|rank| match over {
        Over::Local => run(rank),
        Over::Nccl => run(&NcclRank::new(rank, Device::emulator(rank.rank())?)?),
    });
    let (all, shares): (Vec<_>, Vec<_>) =
        ran.map_err(|error: meshgrad_train::Error| error.to_string())?.into_iter().unzip();
    if all.iter().any(|trained| trained.steps != all[0].steps) {
        return Err("ranks report different losses".to_owned());
    }
    Ok(Trained { weights: assembled(&shares)?, ..all[0].clone() })
}
