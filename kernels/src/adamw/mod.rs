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

use crate::assembler::{Arguments, Kernel, Launch, Ptx, Target, Variant};

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

impl Variant for AdamW {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        step::write(k, *self);
        k.finish()
    }

    fn entry(&self) -> String {
        let kinds: String = self
            .kinds()
            .map(|kind| format!("_{}", kind.name()))
            .collect();
        format!("adamw{kinds}")
    }
}

/// Arguments of [`AdamW`], which are device addresses.
#[derive(Clone, Copy, Debug)]
pub struct AdamWArguments {
    /// The entries, laid out by [`AdamWEntry::words`].
    pub table: u64,
    /// One word per CTA, laid out by [`chunk_words`].
    pub chunks: u64,
    /// The learning rate, an f32.
    pub learning_rate: u64,
    /// The step, an f32. If it is less than 1, nothing is updated.
    pub step: u64,
    /// The factor for the gradients, an f32. If it is not finite, nothing is updated.
    pub scale: u64,
}

impl AdamWArguments {
    /// The bytes of the parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        arguments
            .push_pointer(self.table)
            .push_pointer(self.chunks)
            .push_pointer(self.learning_rate)
            .push_pointer(self.step)
            .push_pointer(self.scale);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_fill_the_parameter_space() {
        let arguments = AdamWArguments {
            table: 256,
            chunks: 512,
            learning_rate: 4,
            step: 8,
            scale: 12,
        };
        let variant = AdamW {
            f32: true,
            ..AdamW::default()
        };
        let parameters = variant.ptx().parameter_bytes();
        assert_eq!(arguments.arguments().bytes().len(), parameters);
        assert_eq!(variant.launch(0), None);
    }
}
