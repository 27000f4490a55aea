//! Decoded instructions: every name resolved, every modifier understood.

use crate::machine::lanes::{Compare, Compute, Operands};
use crate::machine::registers::Slot;
use crate::numerics::fragment::Kind;
use crate::numerics::warp_matrix::{Fragment, Product};

/// One instruction of a kernel's code.
pub(crate) struct Instruction {
    /// The predicate, and whether lanes run where it is false.
    pub(crate) guard: Option<(Slot, bool)>,
    pub(crate) op: Op,
    /// Its line in the PTX text, counted from 1.
    pub(crate) line: u32,
    /// File and line of the source, where `.loc` tells.
    pub(crate) source: Option<(u32, u32)>,
}

/// What an instruction does.
pub(crate) enum Op {
    /// Arithmetic, lane by lane.
    Compute {
        compute: Compute,
        operands: Operands,
        /// Floating-point operations a lane.
        flops: u8,
    },
    Carry(Carry),
    /// A copy of a register, which may be undefined.
    Move {
        to: Slot,
        from: Slot,
        wide: bool,
    },
    /// `mov.b64 {lo, hi}, x` and the like, each part of `bits` bits. An absent part is not wanted.
    Split {
        to: Vec<Option<Slot>>,
        from: Slot,
        bits: u32,
    },
    /// `mov.b64 x, {lo, hi}` and the like.
    Join {
        to: Slot,
        from: Vec<Slot>,
        bits: u32,
    },
    /// `setp`.
    SetPredicate(SetPredicate),
    /// `set`.
    Set(Set),
    /// `selp`: the first source where the predicate is true. What is not chosen may be undefined.
    Select {
        to: Slot,
        sources: [Slot; 2],
        predicate: Slot,
        wide: bool,
    },
    /// `isspacep`: 0 global, 1 shared, 2 local, 3 constant.
    IsSpace {
        to: Slot,
        from: Slot,
        space: u8,
    },
    /// `and.pred` and the like: a truth table of two predicates.
    Predicates {
        to: Slot,
        from: [PredicateSource; 2],
        table: u8,
    },
    Access(Access),
    Atomic(Atomic),
    Shuffle(Shuffle),
    Vote(Vote),
    Match {
        to: Slot,
        /// `match.all`, with the predicate it may set; else `match.any`.
        all: Option<Option<Slot>>,
        from: Slot,
        wide: bool,
        members: Slot,
    },
    /// `redux.sync`.
    Reduce {
        to: Slot,
        from: Slot,
        members: Slot,
        combine: fn(u32, u32) -> u32,
    },
    ActiveMask(Slot),
    Branch(u32),
    BranchIndexed {
        index: Slot,
        targets: Vec<u32>,
    },
    Call(u32),
    /// A call through a pointer: addresses of functions and where they begin.
    CallIndirect {
        target: Slot,
        functions: Vec<(u64, u32)>,
    },
    /// Begins a function that may run already: saves what it would overwrite.
    Enter(u32),
    /// Copies arguments or results of a call.
    Pass(Vec<Passed>),
    /// Back to the caller, with what [`Op::Enter`] saved for this frame.
    Return(Option<u32>),
    Exit,
    Trap,
    Barrier(Barrier),
    /// `bar.warp.sync`.
    WarpBarrier {
        members: Slot,
    },
    Fence(Scope),
    CopyAsync(CopyAsync),
    CommitCopies,
    /// Waits until at most so many groups are left; `None`: until nothing is left.
    WaitCopies(Option<u32>),
    LoadMatrix(LoadMatrix),
    /// `movmatrix`: transposes an 8 x 8 matrix of 16-bit elements.
    TransposeMatrix {
        to: Slot,
        from: Slot,
    },
    Multiply(Multiply),
    MoveFragment(MoveFragment),
    MultiplyFragments(MultiplyFragments),
    Clock {
        to: Slot,
        wide: bool,
    },
    /// Gives way to other warps.
    Sleep,
    /// Advice that changes nothing here: prefetches, cache policies.
    Nothing,
}

/// Extended-precision arithmetic.
pub(crate) struct Carry {
    pub(crate) operation: CarryOperation,
    pub(crate) to: Slot,
    pub(crate) sources: Vec<Slot>,
    pub(crate) wide: bool,
    pub(crate) signed: bool,
    /// The predicate of the carry in.
    pub(crate) reads: Option<Slot>,
    /// The predicate of the carry out.
    pub(crate) sets: Option<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarryOperation {
    Add,
    Subtract,
    /// The low half of a product, plus the third source.
    MultiplyLow,
    /// The high half of a product, plus the third source.
    MultiplyHigh,
}

/// A predicate as an operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PredicateSource {
    /// `None` is always true.
    pub(crate) index: Option<Slot>,
    pub(crate) negated: bool,
}

/// `setp` and what it combines with.
pub(crate) struct SetPredicate {
    pub(crate) compare: Compare,
    pub(crate) sources: [Slot; 2],
    pub(crate) to: Option<Slot>,
    /// Gets the combination of what `second` compares, or else of the negated comparison.
    pub(crate) second_to: Option<Slot>,
    /// The comparison of the high halves, where `compare` is that of the low ones.
    pub(crate) second: Option<Compare>,
    pub(crate) combine: Option<(Combine, PredicateSource)>,
}

/// `set`: bits for true, or 0.
pub(crate) struct Set {
    /// Each comparison and the bits that it sets: one, or one for each half.
    pub(crate) compares: Vec<(Compare, u32)>,
    pub(crate) sources: [Slot; 2],
    pub(crate) to: Slot,
    pub(crate) combine: Option<(Combine, PredicateSource)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    And,
    Or,
    Xor,
}

/// Which memory an access means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    /// The kernel's parameters.
    Param,
    Generic,
}

/// An address: a register and an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Slot,
    pub(crate) wide: bool,
    pub(crate) offset: i64,
}

/// How strongly an access is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    /// `volatile` and `relaxed`.
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

/// Among whom something is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Cta,
    Gpu,
}

/// `ld` and `st`.
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) store: bool,
    pub(crate) address: Address,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub(crate) bytes: usize,
    /// Whether a loaded element is sign-extended to `register_bits`.
    pub(crate) signed: bool,
    pub(crate) registers: Vec<Target>,
    pub(crate) strength: Strength,
    pub(crate) scope: Scope,
    /// How many whole 32-bit words a lane moves; 0 if the access does anything else or is strong.
    pub(crate) plain_words: usize,
}

/// One register of a load or store. An absent slot is not wanted (`_`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) slot: Option<Slot>,
    pub(crate) bits: u32,
}

/// `atom` and `red`.
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) address: Address,
    /// Where the old value goes; none for `red`.
    pub(crate) to: Option<Slot>,
    pub(crate) from: Slot,
    /// The value to compare with is `from`, and this the new one.
    pub(crate) swap: Option<Slot>,
    pub(crate) bytes: usize,
    /// The new value from the old one and the operand.
    pub(crate) update: fn(u64, u64) -> u64,
    /// The same in global memory, whose units round in their own way.
    pub(crate) update_in_global: fn(u64, u64) -> u64,
    pub(crate) strength: Strength,
    pub(crate) scope: Scope,
}

/// `shfl.sync`.
pub(crate) struct Shuffle {
    pub(crate) mode: ShuffleMode,
    pub(crate) to: Slot,
    pub(crate) valid: Option<Slot>,
    pub(crate) from: Slot,
    pub(crate) lane: Slot,
    pub(crate) clamp: Slot,
    pub(crate) members: Slot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `vote.sync`.
pub(crate) struct Vote {
    pub(crate) kind: VoteKind,
    pub(crate) to: Slot,
    pub(crate) from: PredicateSource,
    pub(crate) members: Slot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteKind {
    All,
    Any,
    Uniform,
    Ballot,
}

/// One value handed to or from a device function.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Passed {
    Register {
        to: Slot,
        from: Slot,
        wide: bool,
    },
    Predicate {
        to: Slot,
        from: Slot,
    },
    /// Bytes of the thread's local memory.
    Memory {
        to: u32,
        from: u32,
        bytes: u32,
    },
    /// A register into local memory, or out of it.
    Store {
        to: u32,
        from: Slot,
        bytes: u32,
    },
    Load {
        to: Slot,
        from: u32,
        bytes: u32,
    },
}

/// `bar` and `barrier`.
pub(crate) struct Barrier {
    pub(crate) action: BarrierAction,
    pub(crate) id: Slot,
    /// Threads that take part; all of the CTA if absent.
    pub(crate) threads: Option<Slot>,
    pub(crate) aligned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BarrierAction {
    Sync,
    Arrive,
    /// Combines a predicate over all threads.
    Reduce {
        kind: VoteKind,
        to: Slot,
        from: PredicateSource,
    },
    /// Counts the threads whose predicate is true.
    Count {
        to: Slot,
        from: PredicateSource,
    },
}

/// `cp.async`.
pub(crate) struct CopyAsync {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: usize,
    /// Bytes that are really read, the rest being zero.
    pub(crate) source_bytes: Option<Slot>,
    /// Where true, nothing is read.
    pub(crate) ignore: Option<PredicateSource>,
}

/// `ldmatrix`.
pub(crate) struct LoadMatrix {
    pub(crate) to: Vec<Slot>,
    pub(crate) address: Address,
    /// Whether the address is generic rather than shared.
    pub(crate) generic: bool,
    pub(crate) transposed: bool,
}

/// `mma.sync`.
pub(crate) struct Multiply {
    /// `None` for m8n8k4 of f64.
    pub(crate) kind: Option<Kind>,
    pub(crate) d: Vec<Slot>,
    pub(crate) a: Vec<Slot>,
    pub(crate) b: Vec<Slot>,
    pub(crate) c: Vec<Slot>,
}

/// `wmma.load` and `wmma.store`.
pub(crate) struct MoveFragment {
    pub(crate) store: bool,
    pub(crate) space: Space,
    pub(crate) address: Address,
    /// Elements from one row, or column, to the next one's.
    pub(crate) stride: Slot,
    /// Whether the elements of a row lie side by side in memory, rather than those of a column.
    pub(crate) row_major: bool,
    pub(crate) fragment: Fragment,
    pub(crate) registers: Vec<Slot>,
}

/// `wmma.mma`.
pub(crate) struct MultiplyFragments {
    pub(crate) product: Product,
    pub(crate) d: Vec<Slot>,
    pub(crate) a: Vec<Slot>,
    pub(crate) b: Vec<Slot>,
    pub(crate) c: Vec<Slot>,
}
