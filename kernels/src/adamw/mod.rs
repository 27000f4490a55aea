//! One AdamW step for many parameters in a single launch.
//!
//! A table in device memory describes the parameters. Each CTA updates one chunk of one parameter.
//! The learning rate, the step and the gradient scale are also read from device memory, so the host
//! never waits and a CUDA graph can replay a launch.
//!
//! Per element, the kernel reads and writes the parameter, exp_avg and exp_avg_sq once and reads
//! the gradient once: 28 bytes for an f32 parameter, 24 for bf16. A thread moves four elements per
//! access (16 bytes of f32, 8 of bf16), so a warp always touches whole cache lines. Results match
//! the CPU kernels bit for bit, because both do the same operations in the same order.

mod step;
mod table;

pub use table::{AdamWConstants, AdamWEntry, GlobalIndices, Rounding, chunk_words};

use crate::assembler::{In, Kernel, Launch, Ptx, Target, Variant};
use crate::params;

/// Threads per CTA.
const THREADS: u32 = 256;

/// Elements that a thread moves per access.
const GROUP: u32 = 4;

/// Accesses per thread and array that are in flight together.
const GROUPS: u32 = 2;

/// Elements that a CTA processes together.
const TILE: u32 = THREADS * GROUP * GROUPS;

/// Elements per CTA. The CTA computes the factors of its parameter once for all of them.
pub const CHUNK: u32 = 8 * TILE;

/// An AdamW step for the given kinds of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AdamW {
    /// Whether there are f32 parameters.
    pub f32: bool,
    /// Whether there are bf16 parameters that are rounded to nearest.
    pub bf16: bool,
    /// Whether there are bf16 parameters with stochastic rounding.
    pub bf16_stochastic: bool,
}

impl AdamW {
    /// The launch over `chunks` chunks; `None` if there are none.
    pub fn launch(&self, chunks: u32) -> Option<Launch> {
        Launch::new([chunks, 1, 1], THREADS)
    }

    /// The kinds of parameters, in the order of their codes.
    fn kinds(self) -> impl Iterator<Item = Kind> {
        let there = [self.f32, self.bf16, self.bf16_stochastic];
        let kinds = Kind::ALL.into_iter().zip(there);
        kinds.filter_map(|(kind, there)| there.then_some(kind))
    }
}

/// How a parameter is stored and rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    Bf16,
    Bf16Stochastic,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::F32, Kind::Bf16, Kind::Bf16Stochastic];

    fn name(self) -> &'static str {
        match self {
            Kind::F32 => "f32",
            Kind::Bf16 => "bf16",
            Kind::Bf16Stochastic => "bf16_stochastic",
        }
    }

    /// The code of the kind in the table.
    fn code(self) -> u32 {
        self as u32
    }
}

params! {
    /// Arguments of [`AdamW`].
    pub struct AdamWArguments => Call {
        /// The entries, laid out by [`AdamWEntry::words`].
        table: In,
        /// One word per CTA, laid out by [`chunk_words`].
        chunks: In,
        /// The learning rate, an f32.
        learning_rate: In,
        /// The step, an f32. If it is less than 1, nothing is updated.
        step: In,
        /// The factor for the gradients, an f32. If it is not finite, nothing is updated.
        scale: In,
    }
}

impl Variant for AdamW {
    type Arguments = AdamWArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        step::write(k, *self, &self.parameters(k));
        k.finish()
    }

    fn entry(&self) -> String {
        let kinds: String = self.kinds().map(|kind| format!("_{}", kind.name())).collect();
        format!("adamw{kinds}")
    }
}
