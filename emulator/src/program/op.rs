//! Decoded instructions, with all names and modifiers resolved.

use crate::machine::lanes::{Compare, Compute, Operands};
use crate::machine::registers::Slot;
use crate::machine::shadow::Shadow;
use crate::numerics::fragment::{MmaKind, Operand as Element};
use crate::numerics::warp_matrix::{Fragment, Product};

/// One instruction of a kernel's code.
pub(crate) struct Instruction {
    /// A predicate, and the value that it must have in a lane for the lane to execute.
    pub(crate) guard: Option<(Slot, bool)>,
    pub(crate) op: Op,
    /// Its line in the PTX text, counted from 1.
    pub(crate) line: u32,
    /// Source file and line, from `.loc`.
    pub(crate) source: Option<(u32, u32)>,
}

/// The operation of an instruction.
pub(crate) enum Op {
    /// Lane-wise arithmetic.
    Compute {
        compute: Compute,
        operands: Operands,
        shadow: Shadow,
        /// Floating-point operations per lane.
        flops: u8,
    },
    Carry(Carry),
    /// Copies a register, which may be undefined.
    Move {
        to: Slot,
        from: Slot,
        wide: bool,
    },
    /// `mov.b64 {lo, hi}, x` and similar, with parts of `bits` bits. A missing part is discarded.
    Split {
        to: Vec<Option<Slot>>,
        from: Slot,
        bits: u32,
    },
    /// `mov.b64 x, {lo, hi}` and similar.
    Join {
        to: Slot,
        from: Vec<Slot>,
        bits: u32,
    },
    /// `setp`.
    SetPredicate(SetPredicate),
    /// `set`.
    Set(Set),
    /// `selp`: the first source where the predicate is true. The source that is not selected may be
    /// undefined.
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
    /// `and.pred` and similar: a truth table of two predicates.
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
        /// `None` for `match.any`. For `match.all`, the predicate that it may set.
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
    /// An indirect call: function addresses and positions.
    CallIndirect {
        target: Slot,
        functions: Vec<(u64, u32)>,
    },
    /// Enters a recursive function: saves what it overwrites.
    Enter(u32),
    /// Copies arguments or results of a call.
    Pass(Vec<Passed>),
    /// Returns to the caller and restores what [`Op::Enter`] saved for this frame.
    Return(Option<u32>),
    Exit,
    Trap,
    Barrier(Barrier),
    Mbarrier(Mbarrier),
    System(SystemCall),
    /// `bar.warp.sync`.
    WarpBarrier {
        members: Slot,
    },
    Fence(Scope),
    CopyAsync(CopyAsync),
    ArriveForCopies(ArriveForCopies),
    CommitCopies,
    /// Waits until at most this many groups are pending; `None` waits for all copies.
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
    WarpgroupMultiply(WarpgroupMultiply),
    /// `wgmma.fence`.
    WarpgroupFence,
    CommitProducts,
    /// Waits until at most this many groups of products are pending.
    WaitProducts(u32),
    /// `fence.proxy.async`.
    ProxyFence,
    Clock {
        to: Slot,
        wide: bool,
    },
    /// Yields to other warps.
    Sleep,
    /// Hints without effect here, such as prefetches and cache policies.
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
    /// `None` means always true.
    pub(crate) index: Option<Slot>,
    pub(crate) negated: bool,
}

/// `setp` with its optional combination.
pub(crate) struct SetPredicate {
    pub(crate) compare: Compare,
    pub(crate) sources: [Slot; 2],
    pub(crate) to: Option<Slot>,
    /// The second result: the combination with `second` if present, else with the negated
    /// comparison.
    pub(crate) second_to: Option<Slot>,
    /// The comparison of the high halves, if `compare` compares the low halves.
    pub(crate) second: Option<Compare>,
    pub(crate) combine: Option<(Combine, PredicateSource)>,
}

/// `set`: writes some bits for true, and 0 for false.
pub(crate) struct Set {
    /// Each comparison and the bits that it sets: one, or one per half.
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

/// The state space of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    /// The kernel's parameters.
    Param,
    Generic,
}

/// A register and an offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) base: Slot,
    pub(crate) wide: bool,
    pub(crate) offset: i64,
}

/// The memory ordering of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strength {
    Weak,
    /// `volatile` and `relaxed`.
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}

/// The scope of an ordering.
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
    /// Bytes per element: 1, 2, 4 or 8.
    pub(crate) bytes: usize,
    /// Whether a loaded element is sign-extended to `register_bits`.
    pub(crate) signed: bool,
    pub(crate) registers: Vec<Target>,
    pub(crate) strength: Strength,
    pub(crate) scope: Scope,
    /// Whole 32-bit words per lane; 0 for strong accesses and other sizes.
    pub(crate) plain_words: usize,
}

/// One register of a load or store; `None` for the sink `_`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) slot: Option<Slot>,
    pub(crate) bits: u32,
}

/// `atom` and `red`.
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) address: Address,
    /// The register for the old value; `None` for `red`.
    pub(crate) to: Option<Slot>,
    pub(crate) from: Slot,
    /// The new value of a compare-and-swap, which compares with `from`.
    pub(crate) swap: Option<Slot>,
    pub(crate) bytes: usize,
    /// The new value, from the old value and the operand.
    pub(crate) update: fn(u64, u64) -> u64,
    /// The same in global memory, where f32 addition flushes subnormals.
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

/// One value passed to or from a device function.
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
    /// Bytes in local memory.
    Memory {
        to: u32,
        from: u32,
        bytes: u32,
    },
    /// Copies a register to local memory.
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
    /// Participating threads; `None` for the whole CTA.
    pub(crate) threads: Option<Slot>,
    pub(crate) aligned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum BarrierAction {
    Sync,
    Arrive,
    /// Reduces a predicate over all threads.
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

/// `mbarrier`.
pub(crate) struct Mbarrier {
    pub(crate) action: MbarrierAction,
    pub(crate) address: Address,
    pub(crate) space: Space,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum MbarrierAction {
    Init {
        count: Slot,
    },
    Invalidate,
    /// `expect_tx` and `complete_tx`.
    Transfer {
        bytes: Slot,
        expected: bool,
    },
    Arrive {
        /// The register for the state; `None` for the sink `_`.
        to: Option<Slot>,
        /// Arrivals; `None` for one.
        count: Option<Slot>,
        /// Bytes that the phase also waits for.
        bytes: Option<Slot>,
        /// Whether later phases expect these arrivals no more.
        drops: bool,
        /// Whether it may complete the phase.
        completes: bool,
        releases: bool,
    },
    Test {
        to: Slot,
        phase: Phase,
        /// Whether other warps run first if the phase is incomplete.
        suspends: bool,
        acquires: bool,
    },
}

/// The phase that a test is about: that of a state, or the latest one of a parity.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Phase {
    State(Slot),
    Parity(Slot),
}

/// A call of a driver function, with the offsets of its arguments and result in local memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SystemCall {
    /// `vprintf`.
    Print { format: u32, values: u32, result: u32 },
    /// `__assertfail`.
    Fail { message: u32, file: u32, line: u32, function: u32 },
}

/// `cp.async`.
pub(crate) struct CopyAsync {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: usize,
    /// Bytes read; the rest is zeroed.
    pub(crate) source_bytes: Option<Slot>,
    /// In lanes where this is true, nothing is read and the destination is zeroed.
    pub(crate) ignore: Option<PredicateSource>,
}

/// `cp.async.mbarrier.arrive`.
pub(crate) struct ArriveForCopies {
    pub(crate) address: Address,
    pub(crate) space: Space,
    /// Whether the current phase expects one more arrival, this one.
    pub(crate) increments: bool,
}

/// `ldmatrix`.
pub(crate) struct LoadMatrix {
    pub(crate) to: Vec<Slot>,
    pub(crate) address: Address,
    /// Whether the address is generic.
    pub(crate) generic: bool,
    pub(crate) transposed: bool,
}

/// `mma.sync`.
pub(crate) struct Multiply {
    /// `None` for m8n8k4 of f64.
    pub(crate) kind: Option<MmaKind>,
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
    /// The distance between rows, or columns, in elements.
    pub(crate) stride: Slot,
    /// Whether memory is in row-major order.
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

/// `wgmma.mma_async` of shape m64nNk16, with f32 accumulators.
pub(crate) struct WarpgroupMultiply {
    /// The type of A and B.
    pub(crate) element: Element,
    /// N / 2 registers.
    pub(crate) d: Vec<Slot>,
    pub(crate) a: FactorA,
    pub(crate) b: SharedFactor,
    /// Whether D is added to the product.
    pub(crate) accumulates: PredicateSource,
    /// Whether the product is subtracted.
    pub(crate) negates: bool,
}

impl WarpgroupMultiply {
    /// The columns of B and D.
    pub(crate) fn columns(&self) -> usize {
        2 * self.d.len()
    }
}

/// The factor A of a `wgmma.mma_async`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FactorA {
    /// Each warp has its 16 rows as a fragment of `mma.m16n8k16`.
    Registers([Slot; 4]),
    Shared(SharedFactor),
}

/// A factor in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedFactor {
    /// The register of its matrix descriptor.
    pub(crate) descriptor: Slot,
    /// Whether adjacent elements differ in M or N instead of K.
    pub(crate) transposed: bool,
}
