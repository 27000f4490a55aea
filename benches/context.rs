//! Long sequences: attention to ranges of keys beside causal attention; a ring of two ranks over TCP
//! beside torch's ring on gloo; and training on packed documents beside padded ones. Contestants take
//! turns.
//!
//! ```text
//! cargo bench --bench context -- --torch venv/bin/python [--json FILE]
//! ```
//!
//! Times are those of a forward and a backward pass; ranks of a ring have one thread each. Packed and
//! padded rows have the same documents of the default text, cut where they are longer than a row.
//! Padded ones have a row each, as long as the longest of their batch.

mod learner;
#[expect(dead_code, reason = "its tokens are for other benches")]
mod tiny;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use learner::Learner;
use meshgrad::autograd::ops::{Ring, RingPart};
use meshgrad::comm::{Collectives, Rank, Tcp};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::models::{IGNORE_INDEX, TokenBatch};
use meshgrad::prelude::*;
use meshgrad::runtime::ops::{
    AttentionMask, AttentionSequences, mean, mul, token_words, visible_keys,
};
use meshgrad::train::batches::TokenBatches;
use meshgrad::train::config::{DataConfig, TokenizerChoice, TooLong};
use meshgrad::train::corpus::Corpus;
use meshgrad::train::data::Data;
use meshgrad::train::run_folder::RunFolder;
use meshgrad_harness::{
    Contestant, Options, OtherRanks, Peer, PeerOptions, Ranks, Spread, Step, Turn, TurnOptions,
    finish, loss_difference, seconds,
};
use serde_json::{Value, json};

const RANKS: usize = 2;
/// Of attention.
const TOKENS: usize = 4096;
const HEADS: usize = 8;
const FEATURES: usize = 64;
const SCALE: f64 = 0.125;
/// Of packed rows; how many a batch has; the batches of a step, and how far apart in an epoch they are,
/// which begins with long documents.
const SEQ_LEN: usize = 2048;
const ROWS: usize = 2;
const BATCHES: usize = 6;
const APART: usize = 37;

/// Computes attention over ranges of keys and over ranks, and trains on packed documents.
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
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if let Some(meeting) = &arguments.meeting {
        return process(arguments.rank, meeting);
    }
    arguments.turns = arguments.turns.or_smoke(&arguments.options);
    let masks = [("causal", None), ("one document", Some(1)), ("eight documents", Some(8))];
    let masks = masks.map(|(name, documents)| {
        let rank = alone(move || Ok(move |_| attention_step(documents)));
        Contestant::ranks(name, rank)
    });
    let masks = take_turns(&arguments, masks.into())?;
    let rings = rings(&arguments)?;
    let folder = std::env::temp_dir().join(format!("meshgrad-context-{}", std::process::id()));
    let packed = packed(&arguments, &folder);
    let _ = std::fs::remove_dir_all(&folder);
    report(&arguments, &masks, &rings, &packed?)
}

fn take_turns(
    arguments: &Arguments,
    mut contestants: Vec<Contestant>,
) -> anyhow::Result<Vec<Contestant>> {
    arguments.turns.run(&mut contestants.iter_mut().collect::<Vec<_>>(), &[1])?;
    Ok(contestants)
}

/// A contestant on this process's device, which calls what `start` returns with the numbers of steps.
fn alone<F: FnMut(usize) -> anyhow::Result<Step>>(
    start: impl FnOnce() -> anyhow::Result<F> + Send + 'static,
) -> Ranks {
    Ranks::start(1, move |inboxes| {
        let (mut step, mut number) = (start()?, 0);
        inboxes[0].serve(|turn| {
            (0..turn.steps)
                .map(|_| {
                    number += 1;
                    step(number)
                })
                .collect()
        })
    })
}

/// q, k, v [1, tokens, H, D] in turn, of which benches/torch/context.py has the same.
fn operands(device: &Device, tokens: &[Range<usize>]) -> Result<[Tensor; 3]> {
    let of = |which: usize| {
        let number = |at: usize| (((at + 17 * which) * 7919) % 4093) as f32 / 4093.0 - 0.5;
        let values = tokens
            .iter()
            .cloned()
            .flatten()
            .flat_map(|token| (token * HEADS * FEATURES..).take(HEADS * FEATURES).map(number));
        let values: Vec<f32> = values.collect();
        Tensor::from_slice(device, &[1, values.len() / HEADS / FEATURES, HEADS, FEATURES], &values)
    };
    Ok([of(0)?, of(1)?, of(2)?])
}

/// A forward and a backward pass of `attention`, for dy = y. The loss is the mean of q y + q dq + k dk.
fn both_passes(
    operands: &[Tensor; 3],
    attention: impl Fn([&Var; 3]) -> Result<Var>,
) -> anyhow::Result<Step> {
    let (seconds, done) = seconds(|| -> Result<_> {
        let ((inputs, y), tape) = Tape::record(|| {
            let inputs = operands.clone().map(Var::input);
            let y = attention(inputs.each_ref())?;
            Ok((inputs, y))
        })?;
        let dy = y.value().clone();
        let (gradients, _) = tape.backward_inputs(&[(&y, dy.clone())], &inputs.each_ref())?;
        Ok((dy, gradients))
    });
    let (y, gradients) = done?;
    let [q, k, _] = operands;
    let pairs = [(q, &y), (q, &gradients[0]), (k, &gradients[1])];
    let of_pair = |(x, y): (&Tensor, &Tensor)| mean(&mul(x, y)?, &[0, 1, 2, 3])?.item::<f32>();
    let means: Result<Vec<f32>> = pairs.into_iter().map(of_pair).collect();
    Ok(Step { loss: f64::from(means?.iter().sum::<f32>()), seconds, waited: 0.0 })
}

/// Attention of a whole row with so many equal documents; `None` for a causal mask without ranges.
fn attention_step(documents: Option<usize>) -> anyhow::Result<Step> {
    let device = Device::cpu();
    let mask = match documents {
        None => AttentionMask { causal: true, ..AttentionMask::default() },
        Some(count) => {
            let of_token = |of: &dyn Fn(usize) -> usize| {
                let values: Vec<i64> = (0..TOKENS).map(|at| of(at) as i64).collect();
                Tensor::from_slice(&device, &[1, TOKENS], &values)
            };
            let length = TOKENS / count;
            let words = token_words(&of_token(&|at| at / length)?, &of_token(&|at| at % length)?)?;
            let sequences = AttentionSequences::Ranges(visible_keys(&words, &words, None)?);
            AttentionMask { sequences, ..AttentionMask::default() }
        }
    };
    let operands = operands(&device, std::slice::from_ref(&(0..TOKENS)))?;
    both_passes(&operands, |[q, k, v]| ops::attention(q, k, v, &mask, SCALE))
}

/// A ring over TCP, and torch's if there is torch.
fn rings(arguments: &Arguments) -> anyhow::Result<Vec<Contestant>> {
    let file = format!("meshgrad-ring-{}", std::process::id());
    let meeting = std::env::temp_dir().join(file);
    let processes = Peer::start_command(&mut own_process(0, &meeting)?)?;
    let mut contestants = vec![Contestant::peer("meshgrad", processes)];
    for rotation in ["alltoall", "allgather"] {
        let torch = arguments.peer.start("context.py", &["--rotation", rotation])?;
        let named = |peer| Contestant::peer(format!("torch on gloo, {rotation}"), peer);
        contestants.extend(torch.map(named));
    }
    take_turns(arguments, contestants)
}

/// This program as a rank of its own.
fn own_process(rank: usize, meeting: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--rank", &rank.to_string()]).arg("--meeting").arg(meeting);
    Ok(command)
}

/// A rank over TCP.
fn process(rank: usize, meeting: &Path) -> anyhow::Result<()> {
    let others = OtherRanks::start(rank, vec![own_process(1, meeting)?])?;
    let world = Tcp::through_file(rank, RANKS, meeting).threads(1).join()?;
    let (group, ring) = (world.world()?, Arc::new(ring(rank)));
    let operands = operands(world.device(), &chunks(rank))?;
    others.serve(|turn: Turn| {
        group.barrier()?.wait()?;
        let attention = |qkv: [&Var; 3]| ops::ring_attention(qkv, &ring, SCALE, &group);
        (0..turn.steps).map(|_| both_passes(&operands, attention)).collect()
    })
}

/// The tokens of a rank: a chunk of the head and one of the tail.
fn chunks(rank: usize) -> [Range<usize>; 2] {
    let length = TOKENS / (2 * RANKS);
    [rank, 2 * RANKS - 1 - rank].map(|chunk| chunk * length..(chunk + 1) * length)
}

/// Which keys a rank's queries see of each rank.
fn ring(rank: usize) -> Ring {
    let length = TOKENS / (2 * RANKS);
    let own = [0..length, length..2 * length];
    let hop = |distance: usize| {
        let of_keys = chunks((rank + RANKS - distance) % RANKS);
        let mut parts = Vec::new();
        for (queries, of_queries) in own.iter().zip(chunks(rank)) {
            for (keys, of_keys) in own.iter().zip(&of_keys) {
                if of_keys.start <= of_queries.start {
                    let causal = *of_keys == of_queries;
                    let mask = AttentionMask { causal, ..AttentionMask::default() };
                    parts.push(RingPart { queries: queries.clone(), keys: keys.clone(), mask });
                }
            }
        }
        (distance, parts)
    };
    Ring { keys: vec![2 * length; RANKS], hops: (0..RANKS).map(hop).collect() }
}

/// Training on the same documents of the default text, packed and padded.
fn packed(arguments: &Arguments, folder: &Path) -> anyhow::Result<Vec<Contestant>> {
    let data = Arc::new(data(folder)?);
    let contestants = [("packed", false), ("padded", true)].map(|(name, is_padded)| {
        let data = data.clone();
        let ranks = alone(move || {
            let device = Device::cpu();
            let config = Qwen3Config {
                max_position_embeddings: SEQ_LEN,
                ..Qwen3Config::from_json(tiny::CONFIG)?
            };
            let model = Decoder::materialized(&config, &device, 0)?;
            let mut learner = Learner::new(model, &device, DType::F32, &learner::adamw())?;
            let order = data.order(SEQ_LEN, ROWS, 0)?;
            Ok(move |number: usize| {
                let mut all = Step { loss: 0.0, seconds: 0.0, waited: 0.0 };
                for at in (number - 1) * BATCHES..number * BATCHES {
                    let batches = TokenBatches::new(data.tokens.training(), &device);
                    let mut batches = batches.of_step(&order, (at * APART) as u64 + 1, ROWS, ROWS);
                    let batch = batches.next().context("a step without rows")??;
                    let batch = if is_padded { padded(&batch)? } else { batch };
                    let (seconds, step) = seconds(|| learner.step(&batch));
                    all.loss += step?.0 / BATCHES as f64;
                    all.seconds += seconds;
                }
                Ok(all)
            })
        });
        Contestant::ranks(name, ranks)
    });
    take_turns(arguments, contestants.into())
}

/// The default text with each document as the answer of a conversation, since those are packed whole.
fn data(folder: &Path) -> anyhow::Result<Data> {
    let run = RunFolder::open(&folder.join("run"))?;
    let path = folder.join("text.jsonl");
    let mut lines = String::new();
    for document in Corpus::load(&[])?.documents {
        let messages = [("user", "?"), ("assistant", &document.text)];
        let messages = messages.map(|(role, content)| json!({"role": role, "content": content}));
        lines += &format!("{}\n", json!({ "messages": messages }));
    }
    std::fs::write(&path, lines)?;
    let config = DataConfig {
        paths: vec![path.display().to_string()],
        tokenizer: TokenizerChoice::Bpe(4096),
        too_long: TooLong::Cut,
        ..DataConfig::default()
    };
    Ok(Data::prepare(&config, &run)?)
}

/// The documents of a batch that have labels, each in a row of its own.
fn padded(batch: &TokenBatch) -> anyhow::Result<TokenBatch> {
    let documents = batch.documents.as_ref().context("a batch without documents")?;
    let documents = documents.to_vec::<i64>()?;
    let (ids, labels) = (batch.ids.to_vec::<i64>()?, batch.labels.to_vec::<i64>()?);
    let mut rows: Vec<Range<usize>> = Vec::new();
    for start in (0..ids.len()).step_by(SEQ_LEN) {
        let mut end = start;
        for document in documents[start..start + SEQ_LEN].chunk_by(|a, b| a == b) {
            rows.push(end..end + document.len());
            end += document.len();
        }
    }
    rows.retain(|row| labels[row.clone()].iter().any(|label| *label != IGNORE_INDEX));
    let longest = rows.iter().map(Range::len).max().unwrap_or_default();
    let tensor = |of: &[i64], padding: i64| {
        let row = |row: &Range<usize>| {
            let mut values = of[row.clone()].to_vec();
            values.resize(longest, padding);
            values
        };
        let values: Vec<i64> = rows.iter().flat_map(row).collect();
        Tensor::from_slice(batch.ids.device(), &[rows.len(), longest], &values)
    };
    Ok(TokenBatch::new(&tensor(&ids, 0)?, &tensor(&labels, IGNORE_INDEX)?))
}

fn report(
    arguments: &Arguments,
    masks: &[Contestant],
    rings: &[Contestant],
    packed: &[Contestant],
) -> anyhow::Result<()> {
    println!("medians (minimum - maximum), forward and backward");
    let tables = [
        (format!("attention, {TOKENS} tokens, {HEADS} heads of {FEATURES}"), masks),
        (format!("the same as a ring of {RANKS} ranks"), rings),
        (format!("tiny, {BATCHES} batches of {ROWS} rows of {SEQ_LEN} tokens"), packed),
    ];
    for (of, all) in &tables {
        println!("\n| {of} | ms | times the time of the first |\n|---|---|---|");
        for one in *all {
            let (ms, first) = (time(one), time(&all[0]));
            println!("| {} | {ms} | {:.2} |", one.name, ms.median / first.median);
        }
    }
    println!("\nmeans of the ring agree within {:.1e}", loss_difference(rings.iter()));
    println!(
        "losses of the first steps of tiny agree within {:.1e}",
        loss_difference(packed.iter())
    );
    let json_of =
        |all: &[Contestant]| -> Vec<Value> { all.iter().map(|one| one.json(&[1])).collect() };
    let report = json!({
        "bench": "context",
        "rounds": arguments.turns.rounds,
        "steps_a_turn": arguments.turns.steps,
        "masks": json_of(masks),
        "rings": json_of(rings),
        "packed": json_of(packed),
    });
    finish(&arguments.options, report, rings.last().map_or(Value::Null, Contestant::versions))
}

/// Milliseconds of a step.
fn time(contestant: &Contestant) -> Spread {
    contestant.milliseconds(1, |step| step.seconds)
}
