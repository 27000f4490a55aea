//! Experts divided over two ranks: rows of tokens that travel to their experts and back, beside copies
//! of as many bytes and torch's `all_to_all_single` on gloo; then a training step of *tiny* with 32
//! experts, beside torch on the same, from the same weights and tokens. Contestants take turns.
//!
//! ```text
//! cargo bench --bench experts -- --torch venv/bin/python [--json FILE]
//! ```
//!
//! Each rank has one thread. Rows travel without being computed: an expert returns what it gets. A rate
//! counts each row of a token once on its way there and once on its way back, also a row that stays on
//! its rank: 2 n k d f32 of a rank's n tokens, and the same again for gradients. Slots without a row
//! do not count.

mod learner;
mod tiny;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use learner::Learner;
use meshgrad::comm::{Collectives, Local, LocalRank, Rank, Redistributor, Tcp};
use meshgrad::data_parallel::{DataParallel, Strategy};
use meshgrad::mesh::{Mesh, Placement};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::hf;
use meshgrad::models::moe::{AllToAll, Dispatch, Dispatcher, ExpertPeers, RoutedTokens};
use meshgrad::prelude::*;
use meshgrad::runtime::ops::expert_order;
use meshgrad_harness::{
    Contestant, Inbox, Options, OtherRanks, Peer, PeerOptions, Ranks, Spread, Step, Turn,
    TurnOptions, finish, loss_difference, seconds,
};
use serde_json::{Value, json};
use tiny::{CONFIG, Stream, TOKENS};

const RANKS: usize = 2;
const EXPERTS: usize = 32;
const EXPERTS_PER_TOKEN: usize = 2;
/// The tokens of a rank whose rows travel, and their features.
const ROWS: usize = 2048;
const FEATURES: usize = 1024;
/// Sequences per step: of the rows that travel, and of tiny.
const TRAVELLING: usize = RANKS * ROWS / TOKENS;
const TRAINED: usize = 8;

/// The slots of a rank for each rank: as many as can be needed, like those of the first step; and as few
/// as slots that adapt can be, of which four fifths are filled.
const SLOTS: [(&str, usize); 2] = [
    ("all slots", ROWS * EXPERTS_PER_TOKEN),
    ("adapted slots", ROWS * EXPERTS_PER_TOKEN / RANKS * 5 / 4),
];

/// Sends rows to experts on two ranks, and trains tiny with them.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    #[command(flatten)]
    turns: TurnOptions,
    /// Of a started process: its rank.
    #[arg(long, hide = true, default_value_t = 0)]
    rank: usize,
    /// Of a started process: the file through which the ranks meet.
    #[arg(long, hide = true)]
    meeting: Option<PathBuf>,
    #[command(flatten)]
    pass: Pass,
}

/// How rows travel.
#[derive(Clone, Copy, clap::Args)]
struct Pass {
    #[arg(long, hide = true, default_value_t = 0)]
    slots: usize,
    /// Gradients travel, too.
    #[arg(long, hide = true)]
    backward: bool,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if let Some(meeting) = &arguments.meeting {
        return process(arguments.rank, arguments.pass, meeting);
    }
    arguments.turns = arguments.turns.or_smoke(&arguments.options);
    let forward = travels(&arguments, false)?;
    let both = travels(&arguments, true)?;
    let folder = std::env::temp_dir().join(format!("meshgrad-experts-{}", std::process::id()));
    let trained = trained(&arguments, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    report(&arguments, [&forward, &both], &trained?)
}

fn take_turns(
    arguments: &Arguments,
    mut contestants: Vec<Contestant>,
    sequences: usize,
) -> anyhow::Result<Vec<Contestant>> {
    arguments.turns.run(&mut contestants.iter_mut().collect::<Vec<_>>(), &[sequences])?;
    Ok(contestants)
}

/// Copies, the transports of meshgrad, and last gloo if there is torch.
fn travels(arguments: &Arguments, backward: bool) -> anyhow::Result<Vec<Contestant>> {
    let copies = Ranks::start(RANKS, move |inboxes| copies(backward, inboxes));
    let mut contestants = vec![Contestant::ranks("copies", copies)];
    for (name, slots) in SLOTS {
        let pass = Pass { slots, backward };
        let threads = Ranks::start(RANKS, move |inboxes| {
            let local = Local::new(RANKS).threads(1);
            local.launch(|rank| inboxes[rank.rank()].serve(travel(rank, pass)?))?;
            Ok(())
        });
        contestants.push(Contestant::ranks(format!("threads, {name}"), threads));
        let file = format!("meshgrad-experts-{}-{slots}-{backward}", std::process::id());
        let meeting = std::env::temp_dir().join(file);
        let processes = Peer::start_command(&mut own_process(0, pass, &meeting)?)?;
        contestants.push(Contestant::peer(format!("processes, {name}"), processes));
    }
    let options = ["--travel", if backward { "backward" } else { "forward" }];
    let torch = arguments.peer.start("experts.py", &options)?;
    contestants.extend(torch.map(|peer| Contestant::peer("gloo", peer)));
    take_turns(arguments, contestants, TRAVELLING)
}

/// Ranks that copy as many bytes: there and back, and the same for gradients.
fn copies(backward: bool, inboxes: &[Inbox]) -> anyhow::Result<()> {
    Local::new(RANKS).threads(1).launch(|rank| {
        let world = rank.world()?;
        let mut here = vec![1.0f32; ROWS * EXPERTS_PER_TOKEN * FEATURES];
        let mut there = here.clone();
        let mut copy = || {
            for _ in 0..1 + usize::from(backward) {
                there.copy_from_slice(black_box(&here));
                here.copy_from_slice(black_box(&there));
            }
        };
        inboxes[rank.rank()].serve(|turn| {
            world.barrier()?.wait()?;
            let step = |_| Step { loss: f64::NAN, seconds: seconds(&mut copy).0, waited: 0.0 };
            Ok((0..turn.steps).map(step).collect())
        })
    })?;
    Ok(())
}

/// The turns of a rank. The loss of a step is that of [`Rows::agreement`].
fn travel(
    rank: &dyn Rank,
    pass: Pass,
) -> anyhow::Result<impl FnMut(Turn) -> anyhow::Result<Vec<Step>>> {
    let (world, rows) = (rank.world()?, Rows::new(rank, pass)?);
    Ok(move |turn: Turn| {
        world.barrier()?.wait()?;
        let step = |_| {
            let (seconds, y_nd) = seconds(|| rows.travel());
            Ok(Step { loss: rows.agreement(&y_nd?)?, seconds, waited: 0.0 })
        };
        (0..turn.steps).map(step).collect()
    })
}

/// The tokens of a rank and their experts, which are those of benches/torch/experts.py.
struct Rows {
    x_nd: Tensor,
    weights_nk: Tensor,
    experts_nk: Tensor,
    peers: ExpertPeers,
    backward: bool,
}

impl Rows {
    fn new(rank: &dyn Rank, pass: Pass) -> anyhow::Result<Rows> {
        let (device, first) = (rank.device(), rank.rank() * ROWS);
        let number = |at: usize| (at * 7919 % 4093) as f32 / 4093.0 - 0.5;
        let x: Vec<f32> = (first * FEATURES..).take(ROWS * FEATURES).map(number).collect();
        let weights: Vec<f32> = [0.625, 0.375].repeat(ROWS);
        let experts = (first..).take(ROWS).flat_map(|token| {
            let best = token * 7919 % 4093 % EXPERTS;
            [best, (best + 1 + token % (EXPERTS - 1)) % EXPERTS].map(|expert| expert as i32)
        });
        let of_token = [ROWS, EXPERTS_PER_TOKEN];
        Ok(Rows {
            x_nd: Tensor::from_slice(device, &[ROWS, FEATURES], &x)?,
            weights_nk: Tensor::from_slice(device, &of_token, &weights)?,
            experts_nk: Tensor::from_slice(device, &of_token, &experts.collect::<Vec<i32>>())?,
            peers: ExpertPeers {
                group: rank.world()?,
                shards: 1,
                tokens: vec![ROWS; RANKS],
                held: EXPERTS / RANKS,
                slots: pass.slots,
            },
            backward: pass.backward,
        })
    }

    fn travel(&self) -> Result<Tensor> {
        let operands = [self.x_nd.clone(), self.weights_nk.clone()];
        if !self.backward {
            let [x_nd, weights_nk] = operands.map(Var::constant);
            return Ok(self.forward(x_nd, weights_nk)?.value().clone());
        }
        let ((inputs, y_nd), tape) = Tape::record(|| {
            let [x_nd, weights_nk] = operands.map(Var::input);
            let y_nd = self.forward(x_nd.clone(), weights_nk.clone())?;
            Ok(([x_nd, weights_nk], y_nd))
        })?;
        drop(tape.backward_inputs(&[(&y_nd, y_nd.value().clone())], &inputs.each_ref())?);
        Ok(y_nd.value().clone())
    }

    fn forward(&self, x_nd: Var, weights_nk: Var) -> Result<Var> {
        let experts_nk = self.experts_nk.clone();
        let order = expert_order(&experts_nk, EXPERTS, 0, EXPERTS)?;
        let tokens = RoutedTokens { x_nd, weights_nk, experts_nk, order };
        let (rows, sent) = AllToAll.dispatch(tokens, &self.peers)?;
        AllToAll.combine(&rows.x_cd, sent, &self.peers)
    }

    /// The mean of x y, which is that of x^2 if each row came back to its token.
    fn agreement(&self, y_nd: &Tensor) -> Result<f64> {
        let sum = ops::sum(&ops::mul(&self.x_nd, y_nd)?, &[0, 1])?.item::<f32>()?;
        Ok(f64::from(sum) / (ROWS * FEATURES) as f64)
    }
}

/// This program as a rank of its own.
fn own_process(rank: usize, pass: Pass, meeting: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--rank", &rank.to_string(), "--slots", &pass.slots.to_string()]);
    command.args(pass.backward.then_some("--backward")).arg("--meeting").arg(meeting);
    Ok(command)
}

/// A rank over TCP.
fn process(rank: usize, pass: Pass, meeting: &Path) -> anyhow::Result<()> {
    let others = OtherRanks::start(rank, vec![own_process(1, pass, meeting)?])?;
    let world = Tcp::through_file(rank, RANKS, meeting).threads(1).join()?;
    others.serve(travel(&world, pass)?)
}

fn trained(arguments: &Arguments, folder: &Path) -> anyhow::Result<Vec<Contestant>> {
    let windows = (arguments.turns.rounds + 1) * arguments.turns.steps * TRAINED;
    let (windows, path) = (windows.to_string(), folder.display().to_string());
    let options = ["--folder", &path, "--windows", &windows];
    let torch = arguments.peer.start("experts.py", &options)?;
    let weights = torch.is_some().then(|| folder.to_owned());
    let ours = [("all_to_all", Dispatch::AllToAll), ("all_gather", Dispatch::AllGather)];
    let ours = ours.map(|(name, dispatch)| {
        let weights = weights.clone();
        let ranks = Ranks::start(RANKS, move |inboxes| {
            let train =
                |rank: &_| train(rank, dispatch, weights.as_deref(), &inboxes[Rank::rank(rank)]);
            Local::new(RANKS).threads(1).launch(train)?;
            Ok(())
        });
        Contestant::ranks(format!("meshgrad, {name}"), ranks)
    });
    let torch = torch.map(|peer| Contestant::peer("torch, all_to_all_single", peer));
    take_turns(arguments, ours.into_iter().chain(torch).collect(), TRAINED)
}

/// A rank: trains in each turn.
fn train(
    rank: &LocalRank,
    dispatch: Dispatch,
    weights: Option<&Path>,
    inbox: &Inbox,
) -> anyhow::Result<()> {
    let (device, world, none) = (rank.device(), rank.world()?, [""; 0]);
    let config = Qwen3Config { num_experts: EXPERTS, ..Qwen3Config::from_json(CONFIG)? };
    let mut model = Decoder::new(&config)?;
    model.dispatch_experts_by(dispatch);
    let [mesh, experts] = ["dp", "ep"].map(|axis| Mesh::new(&[RANKS], &[axis]));
    let (mesh, experts) = (mesh?, experts?);
    Redistributor::new(rank).run_on(&mesh, || {
        let parallelism = ModelParallelism::new(&mesh).experts(&experts, ["ep"], none)?;
        model.plan(&parallelism)?.apply(&model, rank.rank())?;
        let homes = DataParallel::new(rank, &mesh, Strategy::replicate(["dp"]));
        homes.mesh(&experts, none, none).apply(&model)?;
        match weights {
            Some(folder) => drop(hf::Loader::new(folder).fill(&model, device)?),
            None => model.materialize(device, 0)?,
        }
        let mut learner = Learner::new(model, device, DType::F32, &learner::adamw())?;
        let mut tokens = Stream::new();
        inbox.serve(|turn| {
            let batches = (0..turn.steps).map(|_| rows_of(&tokens.batch(device, turn.sequences)?));
            let batches = batches.collect::<Result<Vec<TokenBatch>>>()?;
            world.barrier()?.wait()?;
            let step = |batch| {
                let (seconds, step) = seconds(|| learner.step(batch));
                Ok(Step { loss: step?.0, seconds, waited: 0.0 })
            };
            batches.iter().map(step).collect()
        })
    })
}

/// The rank's rows of a batch.
fn rows_of(batch: &TokenBatch) -> Result<TokenBatch> {
    let rows = |tokens| ops::redistribute(tokens, [("dp", Placement::shard(0))]);
    Ok(TokenBatch::new(&rows(&batch.ids)?, &rows(&batch.labels)?))
}

fn report(
    arguments: &Arguments,
    travels: [&[Contestant]; 2],
    trained: &[Contestant],
) -> anyhow::Result<()> {
    let has_torch = arguments.peer.torch.is_some();
    println!("medians (minimum - maximum)");
    for (of, ways, all) in [("forward", 2, travels[0]), ("forward and backward", 4, travels[1])] {
        let megabytes =
            (ways * ROWS * EXPERTS_PER_TOKEN * FEATURES * size_of::<f32>()) as f64 / 1e6;
        println!("\n| {of}: {megabytes:.1} MB of a rank | ms | GB/s | of copies | of gloo |");
        println!("|---|---|---|---|---|");
        for one in all {
            let ms = time(one, TRAVELLING);
            let of_copies = time(&all[0], TRAVELLING).median / ms.median;
            let of_gloo = of_last(all, has_torch, one, TRAVELLING);
            let rate = megabytes / ms.median;
            println!("| {} | {ms} | {rate:.2} | {of_copies:.2} | {of_gloo} |", one.name);
        }
        println!("\nmeans of x y agree within {:.1e}", loss_difference(all[1..].iter()));
    }
    println!("\n| tiny with {EXPERTS} experts | ms per step | tok/s | of torch | last loss |");
    println!("|---|---|---|---|---|");
    for one in trained {
        let ms = time(one, TRAINED);
        let rate = 1e3 * (TRAINED * TOKENS) as f64 / ms.median;
        let of_torch = of_last(trained, has_torch, one, TRAINED);
        println!("| {} | {ms} | {rate:.0} | {of_torch} | {:.5} |", one.name, one.last_loss());
    }
    let apart = loss_difference(trained.iter());
    println!("\nlosses of the first steps agree within {apart:.1e}");

    let json_of = |all: &[Contestant], sequences| -> Vec<Value> {
        all.iter().map(|one| one.json(&[sequences])).collect()
    };
    let report = json!({
        "bench": "experts",
        "rounds": arguments.turns.rounds,
        "steps_a_turn": arguments.turns.steps,
        "forward": json_of(travels[0], TRAVELLING),
        "forward_and_backward": json_of(travels[1], TRAVELLING),
        "first_losses_agree_within": apart,
        "trained": json_of(trained, TRAINED),
    });
    finish(&arguments.options, report, trained.last().map_or(Value::Null, Contestant::versions))
}

/// Milliseconds of a step.
fn time(contestant: &Contestant, sequences: usize) -> Spread {
    contestant.milliseconds(sequences, |step| step.seconds)
}

/// How many times as fast as torch, the last one of `all`, a contestant is.
fn of_last(all: &[Contestant], has_torch: bool, one: &Contestant, sequences: usize) -> String {
    let torch = all.last().filter(|_| has_torch).map(|torch| time(torch, sequences).median);
    let ratio = torch.map(|torch| torch / time(one, sequences).median);
    ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
}
