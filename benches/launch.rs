//! What starting a kernel costs on the host, beyond the driver: on the emulator with a kernel that
//! does nothing, beside the driver's own function and cudarc's safe layer, in turns.
//!
//! ```text
//! cargo build --release -p meshgrad-emulator && cargo bench --bench launch [-- --json FILE]
//! ```
//!
//! `own` is an operation less a bare call of `cuLaunchKernel` with the same kernel: checks, plan,
//! arguments, the result's memory, finding the kernel. The operations after that run on a device
//! that stands for a GPU and launches nothing: all of it is ours.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx as CudarcPtx;
use meshgrad::prelude::*;
use meshgrad::runtime::{Result as ValueResult, Signature};
use meshgrad_harness::{Options, Spread, finish, interleave, timed};
use meshgrad_kernels::assembler::{Arguments, Kernel, Launch, Ptx, Target, Variant};
use serde_json::{Value, json};

/// Times what starting a kernel costs.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// How often the contestants take turns.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Launches of a turn.
    #[arg(long, default_value_t = 1000)]
    launches: usize,
}

/// Takes two addresses and a number, and returns at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Nothing;

impl Variant for Nothing {
    fn entry(&self) -> String {
        "nothing".into()
    }

    fn ptx(&self) -> Ptx {
        let k = Kernel::new(self.entry(), Target::Sm80, 32);
        k.pointer("x");
        k.pointer("y");
        k.u64_param("n");
        k.finish()
    }
}

static NOTHING: Signature = Signature::new("nothing", "x: F[..] -> y: F[..]", 0);

/// The kernel as an operation of a user.
fn nothing(x: &Tensor) -> ValueResult<Tensor> {
    let mut call = NOTHING.call(&[x])?;
    let y = call.output(0)?;
    call.launch(|gpu| {
        let mut arguments = Arguments::new();
        arguments.push_pointer(gpu.ptr(x)?);
        arguments.push_pointer(gpu.uninit_ptr(&y)?);
        arguments.push_u64(call.rows() as u64);
        let launch = Launch {
            grid: [1, 1, 1],
            block: [32, 1, 1],
            dynamic_shared: 0,
        };
        // SAFETY: these are its parameters; it accesses nothing.
        unsafe { gpu.launch(&Nothing, Some(launch), &arguments) }
    })?;
    Ok(y.finish())
}

/// The same kernel, launched by others.
struct Peers {
    stream: Arc<CudaStream>,
    module: sys::CUmodule,
    bare: sys::CUfunction,
    safe: CudaFunction,
}

impl Peers {
    fn new() -> anyhow::Result<Peers> {
        let context = CudaContext::new(0)?;
        let text = Nothing.ptx().text;
        let safe = context.load_module(CudarcPtx::from_src(text.clone()))?;
        let text = CString::new(text)?;
        // SAFETY: the text ends with a NUL; the module stays loaded.
        let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
        // SAFETY: the module is loaded.
        let bare = unsafe { result::module::get_function(module, c"nothing".to_owned()) }?;
        Ok(Peers {
            stream: context.default_stream(),
            module,
            bare,
            safe: safe.load_function("nothing")?,
        })
    }

    /// `cuLaunchKernel`.
    fn launch_bare(&self) -> anyhow::Result<()> {
        let (mut x, mut y, mut n) = (0u64, 0u64, 1u64);
        let mut parameters = [
            (&raw mut x).cast::<c_void>(),
            (&raw mut y).cast(),
            (&raw mut n).cast(),
        ];
        let stream = self.stream.cu_stream();
        // SAFETY: these are its parameters; it accesses nothing.
        let code = unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(
                self.bare,
                1,
                1,
                1,
                32,
                1,
                1,
                0,
                stream,
                parameters,
                null_mut(),
            )
        };
        anyhow::ensure!(code == CUresult::CUDA_SUCCESS, "cuLaunchKernel: {code:?}");
        Ok(())
    }

    fn launch_safe(&self) -> anyhow::Result<()> {
        let (x, y, n) = (0u64, 0u64, 1u64);
        let extents = LaunchConfig {
            grid_dim: (1, 1, 1),
            block_dim: (32, 1, 1),
            shared_mem_bytes: 0,
        };
        let mut launch = self.stream.launch_builder(&self.safe);
        launch.arg(&x).arg(&y).arg(&n);
        // SAFETY: these are its parameters; it accesses nothing.
        unsafe { launch.launch(extents) }?;
        Ok(())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // SAFETY: nothing is launched from it any more. An error would say that the driver has
        // ended, and the module with it.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// What is done with a result: nothing that a compiler could foresee.
fn kept(y: ValueResult<Tensor>) -> anyhow::Result<()> {
    std::hint::black_box(y?);
    Ok(())
}

/// Something to time, and what it is called.
struct Contestant<'c> {
    name: &'static str,
    run: Box<dyn Fn() -> anyhow::Result<()> + 'c>,
    nanoseconds: Vec<f64>,
}

impl<'c> Contestant<'c> {
    fn new(name: &'static str, run: impl Fn() -> anyhow::Result<()> + 'c) -> Contestant<'c> {
        Contestant {
            name,
            run: Box::new(run),
            nanoseconds: Vec::new(),
        }
    }

    fn turn(&mut self, launches: usize) -> anyhow::Result<f64> {
        let time = timed(|| (0..launches).try_for_each(|_| (self.run)()))?;
        Ok(1e9 * time / launches as f64)
    }
}

fn main() -> anyhow::Result<()> {
    let mut cli = Cli::parse();
    if cli.options.smoke {
        (cli.rounds, cli.launches) = (1, 10);
    }
    if !Device::emulator_is_built() {
        println!("no emulator beside this executable: cargo build --release -p meshgrad-emulator");
        return Ok(());
    }
    let emulator = Device::emulator(0)?;
    let peers = Peers::new().context("cudarc does not find the emulator")?;
    let planned = Device::meta(emulator.properties());
    let [x, there] = [&planned, &emulator].map(|it| values::full(it, &[1, 64], DType::F32, 0.0));
    let (x, there) = (x?, there?);
    let w = values::full(&planned, &[64], DType::F32, 0.0)?;

    let mut contestants = [
        Contestant::new("cuLaunchKernel", || peers.launch_bare()),
        Contestant::new("cudarc launch_builder", || peers.launch_safe()),
        Contestant::new("an operation", || kept(nothing(&there))),
        Contestant::new("nothing", || kept(nothing(&x))),
        Contestant::new("mul", || kept(values::mul(&x, &x))),
        Contestant::new("silu_grad", || kept(values::silu_grad(&x, &x))),
        Contestant::new("rms_norm", || {
            kept(values::rms_norm(&x, &w, 1e-6).map(|(y, _)| y))
        }),
        Contestant::new("linear", || kept(values::linear(&x, &x))),
    ];
    interleave(contestants.len(), cli.rounds, |round, at| {
        let nanoseconds = contestants[at].turn(cli.launches)?;
        if round > 0 {
            contestants[at].nanoseconds.push(nanoseconds);
        }
        anyhow::Ok(())
    })?;
    report(&cli, &contestants)
}

fn report(cli: &Cli, contestants: &[Contestant<'_>]) -> anyhow::Result<()> {
    let [bare, _, ours, ..] = contestants else {
        return Ok(());
    };
    // Round by round, so that what slowed a round slowed both.
    let own = ours.nanoseconds.iter().zip(&bare.nanoseconds);
    let own: Vec<f64> = own.map(|(ours, bare)| ours - bare).collect();
    let (rounds, launches) = (cli.rounds, cli.launches);
    println!("ns a launch, {rounds} rounds of {launches}: medians (least - most)\n");
    println!("| | ns |\n|---|---|");
    let mut rows: Vec<Value> = Vec::new();
    let mut row = |name: &str, nanoseconds: &[f64]| {
        let spread = Spread::of(nanoseconds);
        println!("| {name} | {spread} |");
        rows.push(json!({"what": name, "ns": spread.json()}));
    };
    for contestant in &contestants[..3] {
        row(contestant.name, &contestant.nanoseconds);
    }
    row("own: the operation less cuLaunchKernel", &own);
    for contestant in &contestants[3..] {
        row(
            &format!("own, no driver: {}", contestant.name),
            &contestant.nanoseconds,
        );
    }
    let report = json!({"bench": "launch", "launches": launches, "rounds": rounds, "rows": rows});
    finish(&cli.options, report, json!({"cudarc": "0.19"}))
}
