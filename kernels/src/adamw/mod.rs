//! A step of AdamW for many parameters in one launch.
//!
//! A table in device memory tells what the parameters are; each CTA has one chunk of one of them.
//! What changes from step to step is read from device memory too, so that the host waits for
//! nothing and a launch can be replayed.
//!
//! For each element parameter, mean and square are read and written once, its gradient is read
//! once: 28 bytes of an f32 parameter, 24 of a bf16 one. Four elements a thread and access: 16
//! bytes of f32, 8 of bf16, so that the accesses of a warp are whole lines of either. Bits are those
//! of the runtime's CPU, which does the same operations.

mod step;
mod table;

pub use table::{AdamWConstants, AdamWEntry, GlobalIndices, Rounding, chunk_words};

use crate::assembler::{Arguments, Kernel, Launch, Ptx, Target, Variant};

/// Threads of a CTA.
const THREADS: u32 = 256;

/// Elements that a thread moves at once.
const GROUP: u32 = 4;

/// Accesses of a thread to each array, all in flight together.
const GROUPS: u32 = 2;

/// Elements of a CTA at once.
const TILE: u32 = THREADS * GROUP * GROUPS;

/// Elements of a CTA in all. The numbers of its parameter are computed once for them.
pub const CHUNK: u32 = 8 * TILE;

/// A step of AdamW for parameters of some kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AdamW {
    /// Whether there are f32 parameters.
    pub f32: bool,
    /// Whether there are bf16 parameters that are rounded to nearest.
    pub bf16: bool,
    /// Whether there are bf16 parameters that are rounded up or down at random.
    pub bf16_stochastic: bool,
}

impl AdamW {
    /// How to launch it over so many chunks; `None` for none.
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

    /// As the table says it.
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

/// What an [`AdamW`] kernel is called with: addresses.
#[derive(Clone, Copy, Debug)]
pub struct AdamWArguments {
    /// The entries, as [`AdamWEntry::words`] has them.
    pub table: u64,
    /// A word for each CTA, as [`chunk_words`] has them.
    pub chunks: u64,
    /// The learning rate, an f32.
    pub learning_rate: u64,
    /// The step, an f32; below 1 nothing changes.
    pub step: u64,
    /// What gradients are multiplied by, an f32; where it is not finite nothing changes.
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
