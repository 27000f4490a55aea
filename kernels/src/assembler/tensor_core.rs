//! Tensor cores: matrices from shared memory into registers, and their products.
//!
//! A warp owns a matrix together: each lane has a few elements, in a layout that the instructions
//! fix. PTX ISA, "Warp-level matrix load instruction: ldmatrix" and "mma.m16n8k16".

use super::memory::list;
use super::{Pair, SharedAddress, Variable};

impl<'k> SharedAddress<'k> {
    /// Loads four matrices of 8 by 8 elements of 16 bits. The address of lane 8 i + j is that of
    /// row j of matrix i, 16 bytes; all lanes of the warp must take part.
    ///
    /// Register i of lane l then holds elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of matrix
    /// i; of column l / 4 if `transposed`.
    #[track_caller]
    pub fn load_matrices(self, transposed: bool) -> [Pair<'k>; 4] {
        let k = self.kernel();
        let (values, address) = ([(); 4].map(|()| k.register()), self.written());
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
