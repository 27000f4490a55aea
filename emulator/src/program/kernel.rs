//! A kernel of a loaded module.

use std::ops::Range;

use super::op::Instruction;
use super::touches::Touch;
use crate::machine::registers::Slot;

/// A kernel of a loaded module.
pub struct Kernel {
    /// Its name in the module.
    pub name: String,
    /// Its parameters in order.
    pub parameters: Vec<KernelParameter>,
    /// Bytes of all parameters.
    pub parameter_bytes: usize,
    /// Bytes of its static shared memory.
    pub static_shared: u32,
    /// The maximum number of threads per CTA.
    pub max_threads: u32,
    /// The required CTA extents, from `.reqntid`.
    pub required_threads: Option<[u32; 3]>,
    /// 32-bit registers per thread that its text declares and uses, at most 255. `ptxas` usually
    /// assigns fewer.
    pub registers: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    /// Bytes of local memory below the stack of recursive functions.
    pub(crate) static_local: u32,
    pub(crate) frames: Vec<Frame>,
    pub(crate) code: Vec<Instruction>,
    /// The position of the implicit exit after the last instruction.
    pub(crate) end: usize,
    pub(crate) files: Vec<String>,
    pub(crate) text: std::sync::Arc<str>,
    pub(crate) planes: usize,
    pub(crate) predicates: usize,
    pub(crate) constants: Vec<(Slot, Constant, bool)>,
    pub(crate) specials: Vec<(Special, Slot)>,
    /// Whether CTAs may communicate: through atomics, fences or volatile accesses of global memory.
    pub(crate) communicates: bool,
    /// Whether it has asynchronous copies.
    pub(crate) copies: bool,
    /// Whether it has asynchronous products (`wgmma`).
    pub(crate) products: bool,
    /// For each instruction, the registers of asynchronous products that it accesses in another way.
    /// Empty if there are no products.
    pub(crate) touches: Vec<Box<[Touch]>>,
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelParameter {
    /// Its name.
    pub name: String,
    /// Its offset in the parameter space.
    pub offset: usize,
    /// Its size in bytes.
    pub bytes: usize,
}

impl Kernel {
    /// The text of line `line`.
    pub(crate) fn line(&self, line: u32) -> &str {
        let index = (line as usize).saturating_sub(1);
        self.text.lines().nth(index).unwrap_or_default().trim()
    }
}

/// The content of a constant register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Bits(u64),
    /// The address of a byte of static shared memory, as an offset.
    Shared(u32),
    /// The same for dynamic shared memory, which starts after all variables.
    DynamicShared {
        align: u32,
        offset: u32,
    },
    /// The address of a local variable of a recursive function; set on each entry.
    Frame {
        frame: u32,
        offset: u32,
    },
}

/// The registers and memory that a recursive function saves on entry.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) function: String,
    /// Its registers, and whether they are wide.
    pub(crate) registers: Vec<(Slot, bool)>,
    pub(crate) predicates: Range<u32>,
    /// Its parameters and arguments in local memory.
    pub(crate) memory: Range<u32>,
    /// Bytes of its local variables, per call.
    pub(crate) local_bytes: u32,
    /// Registers that hold addresses of local variables: register, offset, and whether it is wide.
    pub(crate) addresses: Vec<(Slot, u32, bool)>,
}

/// Special registers that are constant during a thread's lifetime (PTX ISA 10).
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
    /// `%envreg0` to `%envreg31`, which a driver may define.
    Environment,
}

/// A set of lanes relative to the thread's own lane.
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
            (name, None) if is_environment(name) => Special::Environment,
            _ => return None,
        })
    }

    pub(crate) fn is_wide(self) -> bool {
        self == Special::GridId
    }
}

/// Whether a name is one of `%envreg0` to `%envreg31`.
fn is_environment(name: &str) -> bool {
    let number = name.strip_prefix("%envreg").and_then(|it| it.parse().ok());
    number.is_some_and(|number: u32| number < 32 && name == format!("%envreg{number}"))
}
