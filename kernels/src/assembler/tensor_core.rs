//! Tensor cores: loading matrices from shared memory into registers, and multiplying them.
//!
//! A matrix is held as a fragment in the registers of a warp's lanes, in a layout fixed by the
//! instructions. PTX ISA, "Warp-level matrix load instruction: ldmatrix" and "mma.m16n8k16".

use super::memory::list;
use super::{Operand, Pair, SharedAddress, Variable};

/// Bytes per matrix row; also its alignment.
const ROW: u32 = 16;

/// The shared-memory address of the matrix row that a lane passes to `ldmatrix`: 16 bytes, 16-byte
/// aligned.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRow<'k>(SharedAddress<'k>);

impl<'k> SharedAddress<'k> {
    /// The 16 bytes at this address as a matrix row. The address is a register plus a constant; the
    /// caller must ensure that the register is a multiple of 16.
    ///
    /// # Panics
    /// If the constant offset is not a multiple of 16.
    #[track_caller]
    pub fn matrix_row(self) -> MatrixRow<'k> {
        let bytes = self.constant();
        assert!(
            bytes.is_multiple_of(ROW),
            "matrix row at offset {bytes}: the offset must be a multiple of {ROW}"
        );
        MatrixRow(self)
    }
}

impl<'k> MatrixRow<'k> {
    /// Adds a constant byte offset. No instruction.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 16.
    #[track_caller]
    pub fn offset(self, bytes: u32) -> Self {
        self.0.offset(bytes).matrix_row()
    }

    /// Adds a byte offset, which must be a multiple of 16.
    #[track_caller]
    pub fn byte_add(self, bytes: impl Operand<u32>) -> Self {
        MatrixRow(self.0.byte_add(bytes))
    }

    /// Loads four matrices of 8 by 8 elements of 16 bits. Lane 8 i + j passes the address of row j
    /// of matrix i. All lanes of the warp must call it.
    ///
    /// Register i of lane l then holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix
    /// i, or of column l / 4 if `transposed`.
    #[track_caller]
    pub fn load_matrices(self, transposed: bool) -> [Pair<'k>; 4] {
        let k = self.0.kernel();
        let (values, address) = ([(); 4].map(|()| k.register()), self.0.written());
        let (trans, list) = (if transposed { ".trans" } else { "" }, list(&values));
        k.emit(format_args!("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {list}, {address}"));
        values
    }
}

/// `sums += a b` with bf16 `a` \[16, 16\], bf16 `b` \[16, 8\] and f32 `sums` \[16, 8\]. All lanes
/// of the warp must call it.
///
/// Let g = lane / 4 and t = lane % 4. Each register of `a` and `b` holds two consecutive k:
///
/// - `a[0]`: row g, k = 2 t; `a[1]`: row g + 8, k = 2 t;
/// - `a[2]`: row g, k = 2 t + 8; `a[3]`: row g + 8, k = 2 t + 8;
/// - `b[0]`: column g, k = 2 t; `b[1]`: column g, k = 2 t + 8;
/// - `sums[0]`, `sums[1]`: row g, columns 2 t and 2 t + 1;
/// - `sums[2]`, `sums[3]`: row g + 8, the same columns.
#[track_caller]
pub fn mma_bf16(sums: &[Variable<'_, f32>; 4], a: [Pair<'_>; 4], b: [Pair<'_>; 2]) {
    let registers = sums.map(|sum| *sum);
    let (sums, a, b) = (list(&registers), list(&a), list(&b));
    registers[0].kernel().emit(format_args!(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {sums}, {a}, {b}, {sums}"
    ));
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, Target};

    #[test]
    #[should_panic(expected = "matrix row at offset 24")]
    fn rows_are_aligned() {
        let k = &Kernel::new("rows", Target::Sm80, 32);
        k.shared::<f32>(32).matrix_row().offset(24);
    }
}
