//! Tensor cores: matrices from shared memory into registers, and their products.
//!
//! A matrix is a fragment spread over the lanes of a warp, in a layout fixed by the instructions.
//! PTX ISA, "Warp-level matrix load instruction: ldmatrix" and "mma.m16n8k16".

use super::memory::list;
use super::{Operand, Pair, SharedAddress, Variable};

/// Bytes per row of a matrix, and what its address is a multiple of.
const ROW: u32 = 16;

/// The shared-memory address of the matrix row that a lane passes to `ldmatrix`: 16 bytes, 16-byte
/// aligned.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRow<'k>(SharedAddress<'k>);

impl<'k> SharedAddress<'k> {
    /// The 16 bytes at this address as a matrix row. The register part must be a multiple of 16.
    ///
    /// # Panics
    /// If the constant offset is not a multiple of 16.
    #[track_caller]
    pub fn matrix_row(self) -> MatrixRow<'k> {
        let bytes = self.constant();
        assert!(
            bytes.is_multiple_of(ROW),
            "a matrix row at offset {bytes}: rows lie at multiples of {ROW} bytes"
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

    /// Adds a byte offset, a multiple of 16.
    #[track_caller]
    pub fn byte_add(self, bytes: impl Operand<u32>) -> Self {
        MatrixRow(self.0.byte_add(bytes))
    }

    /// Loads four matrices of 8 by 8 elements of 16 bits. The row of lane 8 i + j is row j of
    /// matrix i; all lanes of the warp must take part.
    ///
    /// Register i of lane l then holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix
    /// i; of column l / 4 if `transposed`.
    #[track_caller]
    pub fn load_matrices(self, transposed: bool) -> [Pair<'k>; 4] {
        let k = self.0.kernel();
        let (values, address) = ([(); 4].map(|()| k.register()), self.0.written());
        let (trans, list) = (if transposed { ".trans" } else { "" }, list(&values));
        k.emit(format_args!(
            "ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {list}, {address}"
        ));
        values
    }
}

/// sums += a b with a 16 by 16, b 16 by 8 and f32 sums 16 by 8, all lanes of the warp together.
///
/// With g = lane / 4 and t = lane % 4: `a` holds rows g, g + 8, g, g + 8 at k = 2 t, of the first
/// eight k twice and then of the last; `b` column g at k = 2 t of the first and the last eight;
/// `sums` row g at columns 2 t and 2 t + 1, then row g + 8.
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
    #[should_panic(expected = "a matrix row at offset 24")]
    fn rows_are_aligned() {
        let k = &Kernel::new("rows", Target::Sm80, 32);
        k.shared::<f32>(32).matrix_row().offset(24);
    }
}
