//! Lane-instructions per second that one core executes on the emulator, with and without
//! sanitizers: in loops of a few instructions, and in four of our kernels.
//!
//! ```text
//! cargo bench --bench emulator [-- --json FILE]
//! ```
//!
//! The workloads are interleaved. The number of lane-instructions comes from the emulator's
//! counters for the same launch.

use anyhow::Context;
use clap::Parser;
use meshgrad_emulator::Options as Emulation;
use meshgrad_emulator::launch::{Launch, launch};
use meshgrad_emulator::memory::{AddressSpace, MemoryKind};
use meshgrad_emulator::program::{Kernel, Module};
use meshgrad_harness::{Options, Spread, finish, timed};
use meshgrad_kernels::assembler::List;
use meshgrad_kernels::elementwise::{
    Element, Elementwise, ElementwiseArguments, IterationSpace, Layout,
};
use meshgrad_kernels::expression::Expression;
use meshgrad_kernels::gemm::{
    GemmArguments, GemmBf16, GemmF32, Order, Output, SplitKArguments, Tile,
};
use meshgrad_kernels::row_map::{RowMap, RowMapArguments, RowNumber};
use meshgrad_kernels::{Dtype, In, Launch as Extents, Out, Variant};
use serde_json::{Value, json};

/// Times the emulator.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
    /// Rounds of measurement.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Run only workloads whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// A loop of repeated instructions.
struct Loop {
    name: &'static str,
    body: &'static str,
    repeats: usize,
}

const LOOPS: [Loop; 5] = [
    Loop {
        name: "f32 fma",
        body: "fma.rn.f32 %f2, %f0, %f1, %f2; fma.rn.f32 %f3, %f0, %f1, %f3;",
        repeats: 8,
    },
    Loop {
        name: "integer",
        body: "add.s32 %r6, %r5, %r0; shl.b32 %r7, %r6, 2; xor.b32 %r5, %r7, %r0;",
        repeats: 5,
    },
    Loop {
        name: "ld.global",
        body: "ld.global.f32 %f2, [%rd2]; ld.global.f32 %f3, [%rd2+4096];",
        repeats: 8,
    },
    Loop {
        name: "ld.shared",
        body: "ld.shared.f32 %f2, [%r3]; ld.shared.f32 %f3, [%r3+512];",
        repeats: 8,
    },
    Loop {
        name: "mixed",
        body: "ld.global.v4.f32 {%f4, %f5, %f6, %f7}, [%rd3+524288];
            fma.rn.f32 %f2, %f4, %f0, %f2; fma.rn.f32 %f2, %f5, %f0, %f2;
            fma.rn.f32 %f2, %f6, %f0, %f2; fma.rn.f32 %f2, %f7, %f0, %f2;
            shfl.sync.bfly.b32 %f3, %f2, 1, 31, -1; add.f32 %f2, %f2, %f3;
            st.shared.f32 [%r3], %f2; ld.shared.f32 %f3, [%r3]; add.f32 %f2, %f2, %f3;
            st.global.f32 [%rd2], %f3;",
        repeats: 1,
    },
];

impl Loop {
    fn text(&self, iterations: u32) -> String {
        let body = self.body.repeat(self.repeats);
        format!(
            ".version 7.8\n.target sm_80\n.address_size 64\n
            .visible .entry k(.param .u64 data)\n{{
            .reg .pred %p; .reg .b32 %r<16>; .reg .f32 %f<16>; .reg .b64 %rd<16>;
            .shared .align 16 .b8 tile[8192];
            ld.param.u64 %rd0, [data]; mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x;
            mad.lo.u32 %r2, %r1, 4096, %r0; mul.wide.u32 %rd1, %r2, 4; add.u64 %rd2, %rd0, %rd1;
            and.b32 %r8, %r0, 255; mul.wide.u32 %rd3, %r8, 16; add.u64 %rd3, %rd0, %rd3;
            mov.u32 %r3, tile; shl.b32 %r4, %r0, 2; add.u32 %r3, %r3, %r4;
            st.shared.f32 [%r3], 0f3F800000; st.shared.f32 [%r3+512], 0f3F800000; bar.sync 0;
            mov.f32 %f0, 0f3F000000; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f00000000;
            mov.f32 %f3, %f2; mov.u32 %r5, 1; mov.u32 %r9, 0;
        LOOP: {body}
            add.u32 %r9, %r9, 1; setp.lt.u32 %p, %r9, {iterations}; @%p bra LOOP;
            ret;\n}}\n"
        )
    }
}

/// A timed launch.
struct Workload {
    name: String,
    space: AddressSpace,
    kernel: std::sync::Arc<Kernel>,
    extents: Extents,
    parameters: Vec<u8>,
    /// Lane-instructions per launch, set by `count`.
    work: f64,
    /// G lane-instructions per second, with and without sanitizers.
    rates: [Vec<f64>; 2],
}

/// Bytes per operand, all filled with the f32 value 1.
const BYTES: usize = 1 << 20;

impl Workload {
    /// `make` allocates the operands and returns the arguments.
    fn new(
        name: &str,
        (text, entry): (&str, &str),
        extents: Extents,
        make: impl FnOnce(&mut dyn FnMut() -> anyhow::Result<u64>) -> anyhow::Result<Vec<u8>>,
    ) -> anyhow::Result<Workload> {
        let space = AddressSpace::new();
        let module = Module::load(text, &space, 0, &Emulation::default())?;
        let kernel = module.kernel(entry).context("the module has no such kernel")?;
        let mut operand = || {
            let at = space.allocate(BYTES, MemoryKind::Device(0))?;
            space.fill(at, &1f32.to_le_bytes(), BYTES / 4)?;
            anyhow::Ok(at)
        };
        let parameters = make(&mut operand)?;
        Ok(Workload {
            name: name.to_owned(),
            space,
            kernel,
            extents,
            parameters,
            work: 0.0,
            rates: Default::default(),
        })
    }

    fn of<V: Variant>(
        name: &str,
        variant: &V,
        extents: Extents,
        make: impl FnOnce(&mut dyn FnMut() -> anyhow::Result<u64>) -> anyhow::Result<V::Arguments>,
    ) -> anyhow::Result<Workload> {
        let code = (variant.ptx().text, variant.entry());
        Workload::new(name, (&code.0, &code.1), extents, |operand| {
            Ok(variant.pack(&make(operand)?).bytes().to_vec())
        })
    }

    fn launch(&self, options: &Emulation) -> anyhow::Result<meshgrad_emulator::Counters> {
        let call = Launch {
            kernel: &self.kernel,
            grid: self.extents.grid,
            block: self.extents.block,
            dynamic_shared: self.extents.dynamic_shared,
            parameters: &self.parameters,
            multiprocessors: 132,
        };
        let counters = launch(&self.space, &call, options);
        counters.with_context(|| self.name.clone())
    }

    fn count(&mut self) -> anyhow::Result<()> {
        let counters = self.launch(&Emulation { counters: true, ..Emulation::default() })?;
        self.work = counters.total.lanes as f64;
        Ok(())
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        for (at, sanitize) in [true, false].into_iter().enumerate() {
            let options = Emulation { sanitize, threads: 1, ..Emulation::default() };
            let time = timed(|| self.launch(&options))?;
            self.rates[at].push(self.work / time / 1e9);
        }
        Ok(())
    }
}

fn loops(iterations: u32) -> anyhow::Result<Vec<Workload>> {
    let one = |it: &Loop| {
        let extents = Extents { grid: [4, 1, 1], block: [128, 1, 1], dynamic_shared: 0 };
        Workload::new(it.name, (&it.text(iterations), "k"), extents, |operand| {
            Ok(operand()?.to_le_bytes().to_vec())
        })
    };
    LOOPS.iter().map(one).collect()
}

/// RMS norm as a function of rows; the scalars are the number of features and epsilon.
fn rms_norm_kernel(features: usize) -> anyhow::Result<RowMap> {
    let [x, w, inv_rms] = [0, 1, 2].map(Expression::operand);
    let mean = Expression::operand(0) / Expression::scalar(0);
    let number = RowNumber {
        summand: &x * &x,
        number: Expression::constant(1.0) / (mean + Expression::scalar(1)).sqrt(),
    };
    let value = &x * &inv_rms * &w;
    let form = (Dtype::F32, features, true);
    Ok(RowMap::new(form, [true, false], 0, vec![number], value, true)?)
}

/// Four of our kernels, with operands of at most 1 MiB.
fn kernels(size: usize) -> anyhow::Result<Vec<Workload>> {
    let count = size * size;
    let (x, y) = (Expression::operand(0), Expression::operand(1));
    let element = Element::Float(Dtype::F32);
    let product = Elementwise::new(x * y, &[element; 2], element, Layout::Contiguous)?;
    let space = IterationSpace::new(&[count], &[1], &[&[1], &[1]])?;
    let launch = product.launch(count as u64).context("elements")?;
    let elementwise = Workload::of("elementwise x y, f32", &product, launch, |operand| {
        Ok(ElementwiseArguments {
            operands: List::new(&[In(operand()?), In(operand()?)]),
            result: Out(operand()?),
            scalars: List::new(&[]),
            space,
        })
    })?;

    let norm = rms_norm_kernel(size)?;
    let rms_norm = Workload::of(
        "RMSNorm, f32",
        &norm,
        norm.launch(size as u64).context("rows")?,
        |operand| {
            Ok(RowMapArguments {
                operands: List::new(&[In(operand()?), In(operand()?)]),
                given: List::new(&[]),
                y: Out(operand()?),
                numbers: List::new(&[Out(operand()?)]),
                scalars: List::new(&[size as f32, 1e-6]),
                rows: size as u64,
                features: size as u32,
            })
        },
    )?;

    let (m, tile, order) = (size as u32, Tile::ALL[0], Order::RowMajor);
    let gemm = |operand: &mut dyn FnMut() -> anyhow::Result<u64>| {
        let arguments = GemmArguments {
            a: In(operand()?),
            b: In(operand()?),
            c: Out(operand()?),
            m,
            n: m,
            k: m,
            lda: u64::from(m),
            ldb: u64::from(m),
            ldc: u64::from(m),
            batch_a: 0,
            batch_b: 0,
            batch_c: 0,
        };
        Ok(SplitKArguments::whole(arguments, 1))
    };
    let f32 = GemmF32 { a: order, b: order, tile, accumulate: false };
    let bf16 = GemmBf16 { a: order, b: order, tile, output: Output::ALL[0], aligned: true };
    Ok(vec![
        elementwise,
        rms_norm,
        Workload::of("matrix product, f32", &f32, f32.launch(m, m, 1).context("elements")?, gemm)?,
        Workload::of(
            "matrix product, bf16",
            &bf16,
            bf16.launch(m, m, 1).context("elements")?,
            gemm,
        )?,
    ])
}

fn main() -> anyhow::Result<()> {
    let mut cli = Cli::parse();
    let (mut iterations, mut size) = (20_000, 512);
    if cli.options.smoke {
        (cli.rounds, iterations, size) = (1, 200, 64);
    }
    let mut workloads = loops(iterations)?;
    workloads.extend(kernels(size)?);
    workloads.retain(|workload| workload.name.contains(&cli.only));
    workloads.iter_mut().try_for_each(Workload::count)?;
    for _ in 0..cli.rounds {
        workloads.iter_mut().try_for_each(Workload::turn)?;
    }

    let rounds = cli.rounds;
    println!("G lane-instructions per second of one core, {rounds} rounds: median (min - max)\n");
    println!("| | sanitizers on | off |\n|---|---|---|");
    let rows = workloads.iter().map(|workload| -> Value {
        let [on, off] = workload.rates.each_ref().map(|rates| Spread::of(rates));
        println!("| {} | {on} | {off} |", workload.name);
        json!({"what": workload.name, "sanitizers_on": on.json(), "off": off.json()})
    });
    let rows: Vec<Value> = rows.collect();
    let report = json!({"bench": "emulator", "unit": "G lane-instructions/s/core", "rows": rows});
    finish(&cli.options, report, json!({}))
}
