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

use clap::Parser;
use meshgrad::prelude::*;
use meshgrad_harness::{Options, PeerOptions, Spread, cell, finish, numbers, seconds};
use serde_json::{Value, json};

const WHAT: [&str; 4] = ["plain", "record", "backward", "bookkeeping"];

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
    bench(&arguments, &device)
}

fn bench(arguments: &Arguments, device: &Device) -> anyhow::Result<()> {
    let mut peer = arguments.peer.start("op_overhead.py", &[])?;
    let (mut ours, mut theirs) = ([const { Vec::new() }; 4], [const { Vec::new() }; 3]);

    // The first turns are warm-up.
    let warmup = if arguments.options.smoke { 0 } else { 3 };
    for round in 0..warmup + arguments.rounds {
        let measured = turn(device, arguments.operations)?;
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

    println!(
        "ns per operation, {} rounds: medians (minimum - maximum)\n",
        arguments.rounds
    );
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

/// Nanoseconds per operation of each of [`WHAT`].
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
        let (backward, done) = seconds(|| tape.backward(&[(&y, one.clone())], &mut grads));
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
