//! Times the overhead of recording an operation: a chain of multiplications of one-element tensors
//! on one thread, alternating with torch.
//!
//! ```text
//! cargo bench --bench op_overhead -- --torch venv/bin/python [--json FILE]
//! ```
//!
//! `plain` computes without recording, `record` computes and records, `backward` is the backward
//! pass. `bookkeeping` is the cost of the tape alone: record and backward of an operation without
//! kernels.
//!
//! `sharded` is what shardings add to `plain`, and `memo hit` what they add to the check of an
//! operation's operands: both are differences within a turn. `plan hit` finds a known
//! redistribution plan. For these, a turn takes the least of [`REPEATS`].

use std::hint::black_box;

use clap::Parser;
use meshgrad::comm::{Local, Redistributor};
use meshgrad::mesh::{Hosts, LinkCosts, Mesh, Placement, Sharding};
use meshgrad::prelude::*;
use meshgrad::runtime::Signature;
use meshgrad_harness::{Options, PeerOptions, Spread, cell, finish, numbers, seconds};
use serde_json::{Value, json};

const WHAT: [&str; 7] =
    ["plain", "record", "backward", "bookkeeping", "sharded", "memo hit", "plan hit"];

/// Repeats in a turn of what shardings add.
const REPEATS: usize = 5;

static CHECKED: Signature = Signature::new("checked", "x: F[~], y: F[~] -> z: F[~]", 1);

/// Times the overhead of autograd per operation.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Turns of each implementation.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Operations per turn.
    #[arg(long, default_value_t = 1000)]
    operations: usize,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        (arguments.rounds, arguments.operations) = (1, 10);
    }
    let device = Device::cpu_with_threads(1)?;
    let redistributor = Local::run(1, |rank| -> Result<_> {
        let hosts = Hosts::Uniform(4);
        Ok(Redistributor::with_links(rank, hosts, LinkCosts::default()))
    });
    let redistributor = redistributor?.remove(0);
    bench(&arguments, &device, &redistributor)
}

fn bench(
    arguments: &Arguments,
    device: &Device,
    redistributor: &Redistributor,
) -> anyhow::Result<()> {
    let mut peer = arguments.peer.start("op_overhead.py", &[])?;
    let (mut ours, mut theirs) = ([const { Vec::new() }; 7], [const { Vec::new() }; 3]);

    // The first turns are warm-up.
    let warmup = if arguments.options.smoke { 0 } else { 3 };
    for round in 0..warmup + arguments.rounds {
        let mut measured = turn(device, arguments.operations)?.to_vec();
        measured.extend(turn_of_shardings(device, redistributor, arguments.operations)?);
        let answer = match &mut peer {
            Some(peer) => {
                let answer = peer.ask(&json!({"operations": arguments.operations}))?;
                numbers(&answer["ns"])
            }
            None => Vec::new(),
        };
        if round < warmup {
            continue;
        }
        for (all, ns) in ours.iter_mut().zip(measured) {
            all.push(ns);
        }
        for (all, ns) in theirs.iter_mut().zip(answer) {
            all.push(ns);
        }
    }

    println!("ns per operation, {} rounds: medians (minimum - maximum)\n", arguments.rounds);
    println!("| | meshgrad | torch |");
    println!("|---|---|---|");
    let spread = |all: &Vec<f64>| Spread::try_of(all);
    let mut rows = Vec::new();
    for (at, what) in WHAT.into_iter().enumerate() {
        let (ours, theirs) = (spread(&ours[at]), theirs.get(at).and_then(spread));
        println!("| {what} | {} | {} |", cell(ours), cell(theirs));
        rows.push(json!({
            "what": what, "meshgrad": ours.map(Spread::json), "torch": theirs.map(Spread::json),
        }));
    }

    let versions = peer.map_or(Value::Null, |peer| peer.hello["versions"].clone());
    let report = json!({"bench": "op_overhead", "operations": arguments.operations, "ns": rows});
    finish(&arguments.options, report, versions)
}

/// Nanoseconds per operation of the first four of [`WHAT`].
fn turn(device: &Device, operations: usize) -> anyhow::Result<[f64; 4]> {
    let one = ops::full(device, &[1], DType::F32, 1.0)?;
    let factor = Var::constant(ops::full(device, &[1], DType::F32, 1.0001)?);
    let each = |seconds: f64| 1e9 * seconds / operations as f64;
    let mut grads = Grads::new(&[])?;

    let (plain, y) =
        seconds(|| (0..operations).try_fold(one.clone(), |x, _| ops::mul(&x, factor.value())));
    y?;

    let mut there_and_back = |op: &dyn Fn(&Var) -> meshgrad::autograd::Result<Var>| {
        let (record, recorded) = seconds(|| {
            Tape::record(|| {
                let x = Var::input(one.clone());
                (0..operations).try_fold(x, |x, _| op(&x))
            })
        });
        let (y, tape) = recorded?;
        let (backward, done) = seconds(|| tape.backward_from(&[(&y, one.clone())], &mut grads));
        done?;
        anyhow::Ok([record, backward])
    };
    let [record, backward] = there_and_back(&|x| ops::mul(x, &factor))?;
    let bookkeeping = there_and_back(&without_kernels)?.iter().sum();
    Ok([plain, record, backward, bookkeeping].map(each))
}

/// An operation that saves its operand, as most do, and computes nothing in either direction.
fn without_kernels(x: &Var) -> meshgrad::autograd::Result<Var> {
    let kept = x.save();
    x.value().clone().tracked([x], move |dy, [dx]| {
        kept.get()?;
        dx.add(|| Ok(dy.clone()))
    })
}

/// Nanoseconds per operation of the last three of [`WHAT`].
fn turn_of_shardings(
    device: &Device,
    redistributor: &Redistributor,
    operations: usize,
) -> anyhow::Result<[f64; 3]> {
    let mesh = Mesh::new(&[2, 2], &["dp", "tp"])?;
    let from = Sharding::new(&mesh, [("tp", Placement::shard(0))], &[2])?;
    let to = Sharding::replicated(&mesh, &[2])?;
    let one = ops::full(device, &[1], DType::F32, 1.0)?;
    let sharded = one.with_sharding(&from, 0)?;

    // The least of some repeats, so that differences are not those of interruptions.
    let least = |body: &dyn Fn() -> Result<()>| -> anyhow::Result<f64> {
        let mut least = f64::INFINITY;
        for _ in 0..REPEATS {
            let (seconds, done) = seconds(body);
            done?;
            least = least.min(1e9 * seconds / operations as f64);
        }
        Ok(least)
    };
    let chain = |x: &Tensor| {
        let products = || (0..operations).try_fold(x.clone(), |y, _| ops::mul(&y, x));
        least(&|| products().map(drop))
    };
    let checks = |x: &Tensor| {
        let check = |_| CHECKED.call(black_box(&[x, x])).map(drop);
        least(&|| (0..operations).try_for_each(check))
    };
    let plan = |_| redistributor.plan(black_box(&from), &to, 32).map(drop);
    Ok([
        chain(&sharded)? - chain(&one)?,
        checks(&sharded)? - checks(&one)?,
        least(&|| (0..operations).try_for_each(plan))?,
    ])
}
