//! Host overhead of a kernel launch, measured on the emulator with an empty kernel: for
//! `cuLaunchKernel` itself, for cudarc's safe layer, and for our operations, interleaved.
//!
//! ```text
//! cargo build --release -p meshgrad-emulator && cargo bench --bench launch [-- --json FILE]
//! ```
//!
//! `own` is the time of an operation minus the time of `cuLaunchKernel` with the same kernel. It
//! covers checks, plan, arguments, memory for the result and the lookup of the kernel. The
//! remaining operations run on a meta device, which launches nothing, so all of their time is ours.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result};
use cudarc::nvrtc::Ptx as CudarcPtx;
use meshgrad::prelude::*;
use meshgrad::runtime::{Result as ValueResult, Signature, ops};
use meshgrad_harness::{Options, Spread, finish, interleave, timed};
use meshgrad_kernels::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant};
use meshgrad_kernels::params;
use serde_json::{Value, json};

/// Measures the host overhead of kernel launches.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Rounds of measurement.
    #[arg(long, default_value_t = 50)]
    rounds: usize,
    /// Launches per measurement.
    #[arg(long, default_value_t = 1000)]
    launches: usize,
}

params! {
    struct NothingArguments {
        x: In,
        y: Out,
        n: u64,
    }
}

/// An empty kernel with two pointers and a number as parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Nothing;

impl Variant for Nothing {
    type Arguments = NothingArguments;

    fn entry(&self) -> String {
        "nothing".into()
    }

    fn ptx(&self) -> Ptx {
        let k = Kernel::new(self.entry(), Target::Sm80, 32);
        self.parameters(&k);
        k.finish()
    }
}

static NOTHING: Signature = Signature::new("nothing", "x: F[..] -> y: F[..]", 0);

/// The kernel as a user-defined operation.
fn nothing(x: &Tensor) -> ValueResult<Tensor> {
    let mut call = NOTHING.call(&[x])?;
    let y = call.output(0)?;
    call.launch(|gpu| {
        let arguments =
            NothingArguments { x: gpu.ptr(x)?, y: gpu.uninit_ptr(&y)?, n: call.rows() as u64 };
        let launch = Launch { grid: [1, 1, 1], block: [32, 1, 1], dynamic_shared: 0 };
        gpu.launch(&Nothing, Some(launch), &arguments)
    })?;
    Ok(y.finish())
}

/// The same kernel, launched without our runtime.
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
        let mut parameters =
            [(&raw mut x).cast::<c_void>(), (&raw mut y).cast(), (&raw mut n).cast()];
        let stream = self.stream.cu_stream();
        // SAFETY: the arguments match the parameters; the kernel accesses no memory.
        let code = unsafe {
            let parameters = parameters.as_mut_ptr();
            sys::cuLaunchKernel(self.bare, 1, 1, 1, 32, 1, 1, 0, stream, parameters, null_mut())
        };
        anyhow::ensure!(code == CUresult::CUDA_SUCCESS, "cuLaunchKernel: {code:?}");
        Ok(())
    }

    fn launch_safe(&self) -> anyhow::Result<()> {
        let (x, y, n) = (0u64, 0u64, 1u64);
        let extents =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.safe);
        launch.arg(&x).arg(&y).arg(&n);
        // SAFETY: the arguments match the parameters; the kernel accesses no memory.
        unsafe { launch.launch(extents) }?;
        Ok(())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // SAFETY: none of the module's kernels is running. An error would mean that the driver has
        // already released the module.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// Drops a result without letting the compiler remove its computation.
fn discard(y: ValueResult<Tensor>) -> anyhow::Result<()> {
    std::hint::black_box(y?);
    Ok(())
}

/// A timed function.
struct Candidate<'c> {
    name: &'static str,
    run: Box<dyn Fn() -> anyhow::Result<()> + 'c>,
    nanoseconds: Vec<f64>,
}

impl<'c> Candidate<'c> {
    fn new(name: &'static str, run: impl Fn() -> anyhow::Result<()> + 'c) -> Candidate<'c> {
        Candidate { name, run: Box::new(run), nanoseconds: Vec::new() }
    }

    fn measure(&mut self, launches: usize) -> anyhow::Result<f64> {
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
        println!("the emulator is not built: cargo build --release -p meshgrad-emulator");
        return Ok(());
    }
    let emulator = Device::emulator(0)?;
    let peers = Peers::new().context("cudarc cannot load the emulator")?;
    let planned = Device::meta(emulator.properties());
    let [x, on_emulator] = [&planned, &emulator].map(|it| ops::full(it, &[1, 64], DType::F32, 0.0));
    let (x, on_emulator) = (x?, on_emulator?);
    let w = ops::full(&planned, &[64], DType::F32, 0.0)?;

    let mut candidates = [
        Candidate::new("cuLaunchKernel", || peers.launch_bare()),
        Candidate::new("cudarc launch_builder", || peers.launch_safe()),
        Candidate::new("operation", || discard(nothing(&on_emulator))),
        Candidate::new("nothing", || discard(nothing(&x))),
        Candidate::new("mul", || discard(ops::mul(&x, &x))),
        Candidate::new("silu_grad", || discard(ops::silu_grad(&x, &x))),
        Candidate::new("rms_norm", || discard(ops::rms_norm(&x, &w, 1e-6).map(|(y, _)| y))),
        Candidate::new("linear", || discard(ops::linear(&x, &x))),
    ];
    interleave(candidates.len(), cli.rounds, |round, at| {
        let nanoseconds = candidates[at].measure(cli.launches)?;
        if round > 0 {
            candidates[at].nanoseconds.push(nanoseconds);
        }
        anyhow::Ok(())
    })?;
    report(&cli, &candidates)
}

fn report(cli: &Cli, candidates: &[Candidate<'_>]) -> anyhow::Result<()> {
    let [bare, _, ours, ..] = candidates else {
        return Ok(());
    };
    // The difference is taken per round, so that a disturbance of a round cancels out.
    let own = ours.nanoseconds.iter().zip(&bare.nanoseconds);
    let own: Vec<f64> = own.map(|(ours, bare)| ours - bare).collect();
    let (rounds, launches) = (cli.rounds, cli.launches);
    println!("ns per launch, {rounds} rounds of {launches}: median (min - max)\n");
    println!("| | ns |\n|---|---|");
    let mut rows: Vec<Value> = Vec::new();
    let mut row = |name: &str, nanoseconds: &[f64]| {
        let spread = Spread::of(nanoseconds);
        println!("| {name} | {spread} |");
        rows.push(json!({"what": name, "ns": spread.json()}));
    };
    for candidate in &candidates[..3] {
        row(candidate.name, &candidate.nanoseconds);
    }
    row("own: the operation minus cuLaunchKernel", &own);
    for candidate in &candidates[3..] {
        row(&format!("own, no driver: {}", candidate.name), &candidate.nanoseconds);
    }
    let report = json!({"bench": "launch", "launches": launches, "rounds": rounds, "rows": rows});
    finish(&cli.options, report, json!({"cudarc": "0.19"}))
}
