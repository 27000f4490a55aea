//! Times matrix products at the shapes of the model *tiny* and at larger ones. meshgrad, the `gemm`
//! crate (f32) and torch alternate every few repeats.
//!
//! ```text
//! cargo bench --bench gemm -- --torch venv/bin/python [--json FILE]
//! ```
//!
//! C [m, n] = A [m, k] B [k, n]. The first letter of a row is `t` if A is stored as [k, m], the
//! second if B is stored as [n, k], like a weight [out, in]. A product is 2 m n k operations.

use clap::Parser;
use meshgrad::prelude::*;
use meshgrad::runtime::ops;
use meshgrad_harness::{Options, Peer, PeerOptions, Spread, cell, finish, numbers, seconds};
use serde_json::{Value, json};

/// m, n, k, and which operands are stored transposed.
type Row = (usize, usize, usize, &'static str, &'static str);

const ROWS: &[Row] = &[
    (2048, 256, 256, "nt", "attention's projections"),
    (2048, 256, 256, "nn", "their input gradients"),
    (256, 256, 2048, "tn", "their weight gradients"),
    (512, 512, 256, "nt", "an expert's gate and up"),
    (512, 256, 256, "nt", "an expert's down"),
    (2048, 4096, 256, "nt", "logits"),
    (2048, 256, 4096, "nn", "their input gradient"),
    (4096, 256, 2048, "tn", "their weight gradient"),
    (1, 1024, 1024, "nt", "one token"),
    (64, 64, 64, "nn", "small"),
    (1024, 1024, 1024, "nn", "square"),
    (1024, 1024, 1024, "tt", "square, both transposed"),
    (2048, 2048, 2048, "nt", "larger square"),
];

/// Operations per turn, which take a few hundredths of a second.
const TURN: f64 = 1e10;

/// Times matrix products.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    peer: PeerOptions,
    /// Turns of each implementation.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.options.smoke {
        arguments.rounds = 1;
    }
    let device = Device::cpu();
    bench(&arguments, &device)
}

fn bench(arguments: &Arguments, device: &Device) -> anyhow::Result<()> {
    let threads = device.properties().threads.to_string();
    let mut peer = arguments.peer.start("gemm.py", &["--threads", &threads])?;

    println!("GFLOP/s, {} rounds: medians (minimum - maximum)\n", arguments.rounds);
    println!("| m, n, k | | | dtype | meshgrad | gemm crate | torch |");
    println!("|---|---|---|---|---|---|---|");
    let rows = match arguments.options.smoke {
        true => &ROWS[9..10],
        false => ROWS,
    };
    let mut report = Vec::new();
    for dtype in [DType::F32, DType::BF16] {
        for row in rows {
            report.push(measure(*row, dtype, arguments.rounds, device, peer.as_mut())?);
        }
    }

    let versions = peer.map_or(Value::Null, |peer| peer.hello["versions"].clone());
    let report = json!({"bench": "gemm", "rounds": arguments.rounds, "rows": report});
    finish(&arguments.options, report, versions)
}

/// Times one product with each implementation, prints its row and returns it.
fn measure(
    (m, n, k, transposes, name): Row,
    dtype: DType,
    rounds: usize,
    device: &Device,
    mut peer: Option<&mut Peer>,
) -> anyhow::Result<Value> {
    let flops = 2.0 * (m * n * k) as f64;
    let repeats = (TURN / flops).clamp(5.0, 2000.0) as usize;
    // The first repeats of a turn run with cold caches and sleeping threads.
    let cold = repeats.div_ceil(10);
    let a = Operand::new(device, [m, k], transposes.starts_with('t'), dtype)?;
    let b = Operand::new(device, [k, n], transposes.ends_with('t'), dtype)?;
    let mut crate_out = vec![0.0f32; m * n];

    let mut rates = [const { Vec::<f64>::new() }; 3];
    for _ in 0..rounds {
        let mut take = |who: usize, seconds: f64| rates[who].push(1e-9 * flops / seconds);
        for repeat in 0..cold + repeats {
            let (seconds, product) = seconds(|| ops::matmul(&a.tensor, &b.tensor));
            product?;
            if repeat >= cold {
                take(0, seconds);
            }
        }
        if dtype == DType::F32 {
            for repeat in 0..cold + repeats {
                let (seconds, ()) = seconds(|| by_crate(&a, &b, [m, n, k], &mut crate_out));
                if repeat >= cold {
                    take(1, seconds);
                }
            }
        }
        if let Some(peer) = &mut peer {
            let request = json!({
                "m": m, "n": n, "k": k, "dtype": dtype.name(),
                "transposes": transposes, "repeats": cold + repeats,
            });
            let answer = peer.ask(&request)?;
            numbers(&answer["seconds"]).into_iter().skip(cold).for_each(|seconds| take(2, seconds));
        }
    }

    let spreads = rates.map(|rates| Spread::try_of(&rates));
    let [ours, by_crate, torch] = spreads.map(cell);
    println!("| {m}, {n}, {k} | {transposes} | {name} | {dtype} | {ours} | {by_crate} | {torch} |");

    let [ours, by_crate, torch] = spreads.map(|spread| spread.map(Spread::json));
    Ok(json!({
        "m": m, "n": n, "k": k, "transposes": transposes, "dtype": dtype.name(), "what": name,
        "gflops": {"meshgrad": ours, "gemm_crate": by_crate, "torch": torch},
    }))
}

/// A matrix, possibly a transposed view, and its elements in memory order.
struct Operand {
    tensor: Tensor,
    elements: Vec<f32>,
    strides: [isize; 2],
}

impl Operand {
    fn new(
        device: &Device,
        shape: [usize; 2],
        transposed: bool,
        dtype: DType,
    ) -> anyhow::Result<Operand> {
        let [rows, columns] = shape;
        let elements: Vec<f32> =
            (0..rows * columns).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
        let stored = match transposed {
            true => Tensor::from_slice(device, &[columns, rows], &elements)?.transpose(0, 1)?,
            false => Tensor::from_slice(device, &[rows, columns], &elements)?,
        };
        // A cast would make a transposed view contiguous.
        let tensor = match (dtype, transposed) {
            (DType::F32, _) => stored,
            (_, true) => ops::cast(&stored.transpose(0, 1)?, dtype)?.transpose(0, 1)?,
            (_, false) => ops::cast(&stored, dtype)?,
        };
        Ok(Operand {
            tensor,
            elements,
            strides: match transposed {
                true => [1, rows as isize],
                false => [columns as isize, 1],
            },
        })
    }
}

fn by_crate(a: &Operand, b: &Operand, [m, n, k]: [usize; 3], out: &mut [f32]) {
    // SAFETY: the strides describe matrices of m x k, k x n and m x n elements, which the slices
    // hold.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.elements.as_ptr(),
            a.strides[1],
            a.strides[0],
            b.elements.as_ptr(),
            b.strides[1],
            b.strides[0],
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::Rayon(0),
        );
    }
}
