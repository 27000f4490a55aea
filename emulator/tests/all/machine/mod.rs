//! Kernels executed directly, without the driver.

mod calls;
mod copies;
mod copy_arrivals;
mod deadlocks;
mod factor;
mod findings;
mod fragments;
mod lanes;
mod mbarriers;
mod modules;
mod system;
mod undefined;
mod warpgroup_findings;
mod warpgroup_pipeline;
mod warpgroup_timing;
mod warpgroups;

use meshgrad_emulator::launch::{Launch, LaunchError, launch};
use meshgrad_emulator::memory::{AddressSpace, MemoryKind};
use meshgrad_emulator::program::Module;
use meshgrad_emulator::{AsyncCopies, Counters, Finding, Options};

/// A kernel `k` with this body and the parameters `out` and `in`.
pub(crate) fn kernel(body: &str) -> String {
    format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n\
         .visible .entry k(.param .u64 out, .param .u64 in)\n{{\n\
         .reg .pred %p<8>;\n.reg .b32 %r<32>;\n.reg .f32 %f<16>;\n.reg .b64 %rd<16>;\n\
         ld.param.u64 %rd0, [out];\nld.param.u64 %rd1, [in];\nmov.u32 %r0, %tid.x;\n\
         {body}\nret;\n}}\n"
    )
}

/// A kernel for sm_90 with an mbarrier at `[%r1]`.
pub(crate) fn sm_90(body: &str) -> String {
    let text = kernel(&format!(".shared .align 8 .b64 ready;\nmov.u32 %r1, ready;\n{body}"));
    text.replace(".version 7.8", ".version 8.0").replace(".target sm_80", ".target sm_90")
}

pub(crate) struct Run {
    pub(crate) out: Vec<u32>,
    pub(crate) counters: Counters,
}

/// Runs a kernel over `out` (zeros) and `input`.
pub(crate) fn run(
    text: &str,
    extents: (u32, u32),
    out: usize,
    input: &[u32],
    options: &Options,
) -> Result<Run, LaunchError> {
    let space = AddressSpace::new();
    let module = Module::load(text, &space, 0, options).unwrap_or_else(|error| panic!("{error}"));
    let kernel = module.kernel("k").expect("a kernel named k");
    let to = space.allocate(out * 4, MemoryKind::Device(0)).unwrap();
    space.fill(to, &[0], out * 4).unwrap();
    let from = space.allocate(input.len() * 4, MemoryKind::Device(0)).unwrap();
    let bytes: Vec<u8> = input.iter().flat_map(|it| it.to_le_bytes()).collect();
    space.write(from, &bytes).unwrap();
    let parameters = [to.to_le_bytes(), from.to_le_bytes()].concat();
    let (grid, block) = extents;
    let extents = Launch {
        kernel: &kernel,
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        dynamic_shared: 0,
        parameters: &parameters,
        multiprocessors: 132,
    };
    let counters = launch(&space, &extents, options)?;
    let mut back = vec![0; out * 4];
    space.read(to, &mut back).unwrap();
    let words = back.chunks_exact(4);
    let out = words.map(|it| u32::from_le_bytes(it.try_into().unwrap()));
    Ok(Run { out: out.collect(), counters })
}

/// Every kind of schedule.
pub(crate) fn schedules() -> Vec<Options> {
    let mut all = vec![Options::default()];
    for seed in 0..4 {
        for async_copies in [AsyncCopies::Eager, AsyncCopies::Lazy, AsyncCopies::Random { seed: 2 }]
        {
            all.push(Options { schedule_seed: Some(seed), async_copies, ..Options::default() });
        }
    }
    all
}

pub(crate) fn finding(result: Result<Run, LaunchError>) -> Finding {
    match result {
        Err(LaunchError::Finding(finding)) => *finding,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("expected a finding"),
    }
}

pub(crate) const OWN_ELEMENT: &str = "
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mad.lo.s32 %r3, %r1, %r2, %r0;
    mul.wide.u32 %rd2, %r3, 4;
    add.s64 %rd3, %rd1, %rd2;
    add.s64 %rd4, %rd0, %rd2;";
