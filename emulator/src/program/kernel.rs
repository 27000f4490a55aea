//! A kernel that can be run.

use std::ops::Range;

use super::op::Instruction;
use crate::machine::registers::Slot;

/// A kernel of a loaded module.
pub struct Kernel {
    /// Its name in the module.
    pub name: String,
    /// Its parameters in order.
    pub parameters: Vec<KernelParameter>,
    /// Bytes of all parameters together.
    pub parameter_bytes: usize,
    /// Bytes of shared memory that its variables take.
    pub static_shared: u32,
    /// The most threads of a CTA that it can be launched with.
    pub max_threads: u32,
    /// The threads it must be launched with, by `.reqntid`.
    pub required_threads: Option<[u32; 3]>,
    /// 32-bit registers a thread that its text declares and uses: an upper bound of what an
    /// assembler would assign.
    pub registers: u32,
    /// Bytes of local memory a thread.
    pub local_bytes: u32,
    /// Bytes of it before the stack of functions that call themselves.
    pub(crate) static_local: u32,
    pub(crate) frames: Vec<Frame>,
    pub(crate) code: Vec<Instruction>,
    /// Where in the code the end stands that every kernel has behind its last instruction: its text
    /// need not say it.
    pub(crate) end: usize,
    pub(crate) files: Vec<String>,
    pub(crate) text: std::sync::Arc<str>,
    pub(crate) planes: usize,
    pub(crate) predicates: usize,
    pub(crate) constants: Vec<(Slot, Constant, bool)>,
    pub(crate) specials: Vec<(Special, Slot)>,
    /// Whether CTAs may speak to each other: atomics, fences or volatile accesses of global memory.
    pub(crate) communicates: bool,
    /// Whether it has asynchronous copies.
    pub(crate) copies: bool,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelParameter {
    /// Its name.
    pub name: String,
    /// Where it lies among the parameters' bytes.
    pub offset: usize,
    /// How many bytes it has.
    pub bytes: usize,
}

impl Kernel {
    /// The text of line `line`.
    pub(crate) fn line(&self, line: u32) -> &str {
        let index = (line as usize).saturating_sub(1);
        self.text.lines().nth(index).unwrap_or_default().trim()
    }
}

/// What a constant register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    /// The address of a byte of shared memory, counted from where the CTA's begins.
    Shared(u32),
    /// The same behind all variables, aligned: dynamic shared memory.
    DynamicShared {
        align: u32,
        offset: u32,
    },
    /// The address of a local variable of a function that may be called while it runs: set
    /// whenever it is entered.
    Frame {
        frame: u32,
        offset: u32,
    },
}

/// What a function that may be called while it runs must save of the call before.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) function: String,
    /// Its registers, and whether wide.
    pub(crate) registers: Vec<(Slot, bool)>,
    pub(crate) predicates: Range<u32>,
    /// Its parameters, and those it passes on, in local memory.
    pub(crate) memory: Range<u32>,
    /// Bytes of its local variables, of which each call has its own.
    pub(crate) local_bytes: u32,
    /// Registers that hold addresses of local variables: where these lie, and whether wide.
    pub(crate) addresses: Vec<(Slot, u32, bool)>,
}

/// Special registers whose value a thread keeps for life (PTX ISA 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    LaneId,
    WarpId,
    Nwarpid,
    Smid,
    Nsmid,
    GridId,
    LaneMask(LaneMask),
    DynamicSharedBytes,
    TotalSharedBytes,
}

/// Which lanes, compared with one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Special {
    pub(crate) fn parse(name: &str) -> Option<Special> {
        let (name, dim) = match name.split_once('.') {
            Some((name, "x")) => (name, Some(0)),
            Some((name, "y")) => (name, Some(1)),
            Some((name, "z")) => (name, Some(2)),
            Some(_) => return None,
            None => (name, None),
        };
        Some(match (name, dim) {
            ("%tid", Some(dim)) => Special::Tid(dim),
            ("%ntid", Some(dim)) => Special::Ntid(dim),
            ("%ctaid", Some(dim)) => Special::Ctaid(dim),
            ("%nctaid", Some(dim)) => Special::Nctaid(dim),
            ("%laneid", None) => Special::LaneId,
            ("%warpid", None) => Special::WarpId,
            ("%nwarpid", None) => Special::Nwarpid,
            ("%smid", None) => Special::Smid,
            ("%nsmid", None) => Special::Nsmid,
            ("%gridid", None) => Special::GridId,
            ("%lanemask_eq", None) => Special::LaneMask(LaneMask::Equal),
            ("%lanemask_lt", None) => Special::LaneMask(LaneMask::Less),
            ("%lanemask_le", None) => Special::LaneMask(LaneMask::LessOrEqual),
            ("%lanemask_gt", None) => Special::LaneMask(LaneMask::Greater),
            ("%lanemask_ge", None) => Special::LaneMask(LaneMask::GreaterOrEqual),
            ("%dynamic_smem_size", None) => Special::DynamicSharedBytes,
            ("%total_smem_size", None) => Special::TotalSharedBytes,
            _ => return None,
        })
    }

    pub(crate) fn is_wide(self) -> bool {
        self == Special::GridId
    }
}
