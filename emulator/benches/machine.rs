//! How many lane-instructions a second one core executes, with and without sanitizers.
//!
//! ```text
//! cargo bench -p meshgrad-emulator --bench machine            # full rounds
//! cargo test -p meshgrad-emulator --bench machine -- --smoke  # one short round
//! ```
//!
//! Each kernel runs in turns with the others, five rounds; median, least and most are shown.

use std::time::Instant;

use meshgrad_emulator::Options;
use meshgrad_emulator::launch::{Launch, launch};
use meshgrad_emulator::memory::{AddressSpace, Place};
use meshgrad_emulator::program::Module;

/// A loop around instructions that are repeated in it.
struct Workload {
    name: &'static str,
    body: &'static str,
    repeats: usize,
}

const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "f32 fma",
        body: "fma.rn.f32 %f2, %f0, %f1, %f2; fma.rn.f32 %f3, %f0, %f1, %f3;",
        repeats: 8,
    },
    Workload {
        name: "integer",
        body: "add.s32 %r6, %r5, %r0; shl.b32 %r7, %r6, 2; xor.b32 %r5, %r7, %r0;",
        repeats: 5,
    },
    Workload {
        name: "ld.global",
        body: "ld.global.f32 %f2, [%rd2]; ld.global.f32 %f3, [%rd2+4096];",
        repeats: 8,
    },
    Workload {
        name: "ld.shared",
        body: "ld.shared.f32 %f2, [%r3]; ld.shared.f32 %f3, [%r3+512];",
        repeats: 8,
    },
    Workload {
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

impl Workload {
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

/// Lane-instructions a second.
fn measure(workload: &Workload, iterations: u32, sanitize: bool) -> f64 {
    let space = AddressSpace::new();
    let module = Module::load(&workload.text(iterations), &space, 0, &Options::default())
        .expect("a valid module");
    let kernel = module.kernel("k").expect("a kernel named k");
    let bytes = 1 << 20;
    let data = space.allocate(bytes, Place::Device(0)).expect("memory");
    space
        .fill(data, &1f32.to_le_bytes(), bytes / 4)
        .expect("memory");
    let parameters = data.to_le_bytes();
    let extents = Launch {
        kernel: &kernel,
        grid: [4, 1, 1],
        block: [128, 1, 1],
        dynamic_shared: 0,
        parameters: &parameters,
        multiprocessors: 132,
    };
    let options = |counters| Options {
        sanitize,
        threads: 1,
        counters,
        ..Options::default()
    };
    let start = Instant::now();
    if let Err(error) = launch(&space, &extents, &options(false)) {
        panic!("{}: {error}", workload.name);
    }
    let seconds = start.elapsed().as_secs_f64();
    let per_iteration = workload.body.matches(';').count() * workload.repeats + 3;
    let lanes = 4.0 * 128.0;
    f64::from(iterations) * per_iteration as f64 * lanes / seconds
}

fn main() {
    let smoke = std::env::args().any(|argument| argument == "--smoke");
    let (rounds, iterations) = if smoke { (1, 200) } else { (5, 20_000) };
    println!("one core; G lane-instructions/s: median (least - most) of {rounds} rounds");
    println!("{:<12} {:>24} {:>24}", "kernel", "sanitizers on", "off");
    let mut rates = vec![[Vec::new(), Vec::new()]; WORKLOADS.len()];
    for _ in 0..rounds {
        for (workload, rates) in WORKLOADS.iter().zip(&mut rates) {
            for (rates, sanitize) in rates.iter_mut().zip([true, false]) {
                rates.push(measure(workload, iterations, sanitize) / 1e9);
            }
        }
    }
    for (workload, rates) in WORKLOADS.iter().zip(&mut rates) {
        let [on, off] = rates.each_mut().map(|rates| {
            rates.sort_by(f64::total_cmp);
            let (least, most) = (rates[0], rates[rates.len() - 1]);
            format!("{:.2} ({least:.2} - {most:.2})", rates[rates.len() / 2])
        });
        println!("{:<12} {on:>24} {off:>24}", workload.name);
    }
}
