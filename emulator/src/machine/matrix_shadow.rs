//! How matrix instructions carry undefined bits: an element of a product is undefined if its row of A,
//! its column of B or its element of C is.

use super::registers::{LANES, Registers, Slot, lanes_of};
use super::undefined::{Origin, Undefined, UndefinedBytes, low_bits};
use crate::numerics::fragment::{self, Accumulator, MmaKind};
use crate::numerics::matrix_move::{self, Matrix};
use crate::numerics::warp_matrix::Fragment;
use crate::program::op::{Multiply, MultiplyFragments};

/// The largest extent of a matrix.
const EXTENT: usize = 32;

/// A matrix in registers: its registers, the bits of an element, and the row and column of each
/// element, given its lane, register and index in the register.
pub(super) struct Operand<'o> {
    slots: &'o [Slot],
    bits: u32,
    position: Box<dyn Fn(usize, usize, usize) -> (usize, usize) + 'o>,
}

impl<'o> Operand<'o> {
    fn new(
        slots: &'o [Slot],
        bits: u32,
        position: impl Fn(usize, usize, usize) -> (usize, usize) + 'o,
    ) -> Operand<'o> {
        Operand { slots, bits, position: Box::new(position) }
    }

    fn of_fragment(slots: &'o [Slot], fragment: Fragment) -> Operand<'o> {
        let bits = 8 * fragment.element.bytes() as u32;
        Operand::new(slots, bits, move |lane, register, part| {
            fragment.position(lane, register, part)
        })
    }

    /// Parts of a register.
    fn parts(&self) -> usize {
        (32 / self.bits).max(1) as usize
    }

    /// Calls `f` with row, column and origin of each undefined element.
    fn each_undefined(&self, registers: &Registers, mut f: impl FnMut(usize, usize, Origin)) {
        for (register, slot) in self.slots.iter().enumerate() {
            for lane in lanes_of(!registers.defined(*slot)) {
                let (bits, origin) = registers.undefined_lane(*slot, lane);
                for part in 0..self.parts() {
                    if bits >> (part as u32 * self.bits) & low_bits(self.bits) != 0 {
                        let (row, column) = (self.position)(lane, register, part);
                        f(row, column, origin);
                    }
                }
            }
        }
    }
}

/// The operands A, B, C and D of a product.
type Operands<'o> = [Operand<'o>; 4];

/// The operands of `mma.sync`.
pub(super) fn of_multiply(multiply: &Multiply) -> Operands<'_> {
    let Multiply { kind, a, b, c, d } = multiply;
    let Some(kind) = *kind else {
        // m8n8k4 of f64: each group of lanes has a row of A.
        let row = |lane: usize, _, _| (lane / 4, 0);
        let column = |lane: usize, _, _| (0, lane / 4);
        let element = |lane: usize, register, _| fragment::accumulator_position(lane, register);
        return [
            Operand::new(a, 64, row),
            Operand::new(b, 64, column),
            Operand::new(c, 64, element),
            Operand::new(d, 64, element),
        ];
    };
    let bits = |per_register: usize| 32 / per_register as u32;
    let (of_a, of_b) = (kind.a().per_register(), kind.b().per_register());
    let accumulators = accumulators_per_register(kind);
    let element = move |lane: usize, register: usize, part: usize| {
        fragment::accumulator_position(lane, register * accumulators + part)
    };
    [
        Operand::new(a, bits(of_a), move |lane, register, _| {
            fragment::a_position(lane, register, of_a)
        }),
        Operand::new(b, bits(of_b), move |lane, register, _| {
            fragment::b_position(lane, register, of_b)
        }),
        Operand::new(c, bits(accumulators), element),
        Operand::new(d, bits(accumulators), element),
    ]
}

fn accumulators_per_register(kind: MmaKind) -> usize {
    match kind.accumulator() {
        Accumulator::F16 => 2,
        Accumulator::F32 | Accumulator::S32 | Accumulator::SaturatedS32 => 1,
    }
}

/// The operands of `wmma.mma`.
pub(super) fn of_fragments(multiply: &MultiplyFragments) -> Operands<'_> {
    let product = &multiply.product;
    [
        Operand::of_fragment(&multiply.a, product.a),
        Operand::of_fragment(&multiply.b, product.b),
        Operand::of_fragment(&multiply.c, product.c),
        Operand::of_fragment(&multiply.d, product.d),
    ]
}

/// The undefined bits of each register of D; empty if there are none.
pub(super) fn of_product(registers: &Registers, [a, b, c, d]: &Operands<'_>) -> Vec<Undefined> {
    let (mut rows, mut columns) = ([None; EXTENT], [None; EXTENT]);
    let mut elements = vec![[None; EXTENT]; EXTENT];
    a.each_undefined(registers, |row, _, origin| rows[row] = Some(origin));
    b.each_undefined(registers, |_, column, origin| columns[column] = Some(origin));
    c.each_undefined(registers, |row, column, origin| {
        elements[row][column] = Some(origin);
    });
    let mut result = vec![Undefined::default(); d.slots.len()];
    for (register, undefined) in result.iter_mut().enumerate() {
        for lane in 0..LANES {
            for part in 0..d.parts() {
                let (row, column) = (d.position)(lane, register, part);
                let origin = elements[row][column].or(rows[row]).or(columns[column]);
                if let Some(origin) = origin {
                    let bits = low_bits(d.bits) << (part as u32 * d.bits);
                    undefined.add(lane, bits, origin);
                }
            }
        }
    }
    result
}

/// The undefined bits of the register that `ldmatrix` loads matrix `index` into.
pub(super) fn of_loaded(bytes: &UndefinedBytes, index: usize, transposed: bool) -> Undefined {
    let lane_of = |row| matrix_move::address_lane(index, row);
    let word = |row: usize, word: usize| {
        let missing = bytes.bytes[lane_of(row)] >> (4 * word);
        let marked = (0..4).filter(|byte| missing >> byte & 1 != 0);
        marked.fold(0u32, |bits, byte| bits | 0xff << (8 * byte))
    };
    let rows: Matrix = std::array::from_fn(|row| std::array::from_fn(|at| word(row, at)));
    let plane = match transposed {
        true => matrix_move::distribute(&matrix_move::transpose(&rows)),
        false => matrix_move::distribute(&rows),
    };
    let first = (0..matrix_move::SIDE).find(|row| bytes.bytes[lane_of(*row)] != 0);
    let origin = bytes.origins[lane_of(first.unwrap_or(0))];
    moved(&plane, origin)
}

/// The undefined bits of the register that `movmatrix` writes.
pub(super) fn of_transposed(undefined: &Undefined) -> Undefined {
    let plane = undefined.bits.map(|bits| bits as u32);
    let lane = undefined.lanes().trailing_zeros() as usize & 31;
    moved(&matrix_move::transpose_plane(&plane), undefined.origins[lane])
}

fn moved(plane: &[u32; LANES], origin: Origin) -> Undefined {
    Undefined { bits: plane.map(u64::from), origins: [origin; LANES] }
}
