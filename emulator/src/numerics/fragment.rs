//! The layout of matrix fragments in the registers of a warp.
//!
//! Implements PTX ISA, "Matrix Fragments for mma.m16n8k4 .. k32", as one rule. All these shapes
//! divide the warp into eight groups of four lanes. A group holds a row of A, a column of B and a
//! row of the accumulator. The four lanes of a group hold adjacent registers along the other
//! dimension.
//!
//! ```text
//! A (16 x k)      lane 4g + t, register r: row g + 8 (r mod 2), e columns from e (t + 4 (r / 2))
//! B (k x 8)       lane 4g + t, register r: the e rows from e (t + 4 r), column g
//! C, D (16 x 8)   lane 4g + t: rows g and g + 8, columns 2t and 2t + 1
//! ```
//!
//! A register packs e = 32 / bits elements, the first one in the lowest bits. One instruction
//! differs: m8n8k4 of f64, whose A has one row per group ([`super::tensor_core::multiply_f64`]).

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// A 32-bit register of all lanes.
pub(crate) type Plane = [u32; LANES];

/// Rows of A and of the accumulator.
pub(crate) const ROWS: usize = 16;

/// Columns of B and of the accumulator.
pub(crate) const COLUMNS: usize = 8;

/// The type of an operand's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// `.f16`.
    F16,
    /// `.bf16`.
    Bf16,
    /// `.tf32`: an f32 whose low 13 bits are ignored.
    Tf32,
    /// `.s8`.
    S8,
    /// `.u8`.
    U8,
}

impl Operand {
    /// Elements per register.
    pub(crate) const fn per_register(self) -> usize {
        match self {
            Operand::F16 | Operand::Bf16 => 2,
            Operand::Tf32 => 1,
            Operand::S8 | Operand::U8 => 4,
        }
    }
}

/// The type of the accumulators C and D.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulator {
    /// `.f32`.
    F32,
    /// `.f16`, two per register.
    F16,
    /// `.s32`, wrapping around.
    S32,
    /// `.s32` with `.satfinite`: clamped to the range.
    SaturatedS32,
}

/// An `mma.sync.aligned.m16n8k{k}.row.col` instruction by its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MmaKind {
    a: Operand,
    b: Operand,
    accumulator: Accumulator,
    k: usize,
}

impl MmaKind {
    /// The instruction with these types and this k; `None` if the emulator has none.
    pub(crate) fn new(
        a: Operand,
        b: Operand,
        accumulator: Accumulator,
        k: usize,
    ) -> Option<MmaKind> {
        use Accumulator as Acc;
        let exists = match (a, b, accumulator) {
            (Operand::F16, Operand::F16, Acc::F32 | Acc::F16) => k == 8 || k == 16,
            (Operand::Bf16, Operand::Bf16, Acc::F32) => k == 8 || k == 16,
            (Operand::Tf32, Operand::Tf32, Acc::F32) => k == 4 || k == 8,
            (Operand::S8 | Operand::U8, Operand::S8 | Operand::U8, acc) => {
                matches!(acc, Acc::S32 | Acc::SaturatedS32) && (k == 16 || k == 32)
            }
            _ => false,
        };
        exists.then_some(MmaKind { a, b, accumulator, k })
    }

    pub(crate) const fn a(self) -> Operand {
        self.a
    }

    pub(crate) const fn b(self) -> Operand {
        self.b
    }

    pub(crate) const fn accumulator(self) -> Accumulator {
        self.accumulator
    }

    /// The extent of the reduction.
    pub(crate) const fn k(self) -> usize {
        self.k
    }

    /// Registers of A per lane.
    pub(crate) const fn a_registers(self) -> usize {
        ROWS * self.k / LANES / self.a.per_register()
    }

    /// Registers of B per lane.
    pub(crate) const fn b_registers(self) -> usize {
        COLUMNS * self.k / LANES / self.b.per_register()
    }

    /// Registers of C, and of D, per lane.
    pub(crate) const fn accumulator_registers(self) -> usize {
        match self.accumulator {
            Accumulator::F16 => 2,
            _ => 4,
        }
    }

    /// Floating-point (or integer) operations; a multiply-add counts as two.
    pub(crate) const fn operations(self) -> usize {
        2 * ROWS * COLUMNS * self.k
    }
}

/// Row and column in A of the first of `per_register` elements along the row.
#[inline(always)]
pub(crate) const fn a_position(
    lane: usize,
    register: usize,
    per_register: usize,
) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    (group + 8 * (register % 2), per_register * (thread + 4 * (register / 2)))
}

/// Row and column in B of the first of `per_register` elements along the column.
#[inline(always)]
pub(crate) const fn b_position(
    lane: usize,
    register: usize,
    per_register: usize,
) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    (per_register * (thread + 4 * register), group)
}

/// Row and column in C and D of element `index` of a lane, counted across its registers.
#[inline(always)]
pub(crate) const fn accumulator_position(lane: usize, index: usize) -> (usize, usize) {
    let (group, thread) = (lane / 4, lane % 4);
    (group + 8 * (index / 2), 2 * thread + index % 2)
}
