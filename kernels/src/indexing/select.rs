//! Index select: rows selected by a list of indices.

use super::{IndexDtype, IndexedDim};
use crate::assembler::{In, Integer, Kernel, Launch, Out, Ptx, Register, Target, U64, Variant};
use crate::copies::Unit;
use crate::elementwise::THREADS;
use crate::elementwise::strided::{self, Index};
use crate::params;

/// y\[o, j, ..\] = x\[o, ids\[j\], ..\] for dense tensors, in units of up to 16 bytes. With a
/// single o, it selects rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexSelect {
    unit: Unit,
    ids: IndexDtype,
    wide: bool,
}

impl IndexSelect {
    /// The kernel for rows of `inner` bytes, and the unit that it copies. `aligned`: the bitwise or
    /// of the byte offsets at which x and y start. `elements`: the number of elements of the larger
    /// of the two.
    pub fn new(
        element: Unit,
        ids: IndexDtype,
        inner: u64,
        aligned: u64,
        elements: u64,
    ) -> (IndexSelect, Unit) {
        let fits = |unit: &Unit| (inner | aligned).is_multiple_of(unit.bytes().into());
        let unit = Unit::ALL.into_iter().rev().find(fits).unwrap_or(element);
        let wide = elements >= 1 << 30;
        (IndexSelect { unit, ids, wide }, unit)
    }

    /// The units of y: the product of the extents before the indexed dim, the number of indices,
    /// and the units per row.
    pub fn units(extents: [u64; 3]) -> u64 {
        extents.into_iter().fold(1, u64::saturating_mul)
    }

    /// The launch over units; `None` if there are no units.
    pub fn launch(&self, units: u64) -> Option<Launch> {
        strided::launch(units)
    }

    fn write<'k, I: Index<O>, O: Integer>(&self, k: &'k Kernel, call: &Call<'k>) {
        let [chosen, inner] = [call.chosen, call.inner].map(I::narrowed);
        let table = call.indexed.whole();

        let size = u64::from(self.unit.bytes());
        let mut chosen_rows = Vec::new();
        for index in strided::indices::<I, O>(k) {
            let exists = I::is_below(index, call.units);
            let row = index / inner;
            let column = index - row * inner;
            let outer = row / chosen;
            let at = wide::<I, O>(row - outer * chosen) * u64::from(self.ids.size());
            let id = self.ids.load_if(exists, call.ids.byte_add(at));
            let start =
                call.x.byte_add((wide::<I, O>(outer) * table + wide::<I, O>(column)) * size);
            chosen_rows.push((exists, id, start, call.y.byte_add(wide::<I, O>(index) * size)));
        }

        let mut loaded = Vec::with_capacity(chosen_rows.len());
        for (exists, id, start, to) in chosen_rows {
            let (inside, offset) = call.indexed.choose(exists, id);
            let from = start.byte_add(offset.unsigned() * size);
            loaded.push((exists, to, self.unit.load_if(inside, from)));
        }
        for (exists, to, raw) in loaded {
            self.unit.store_if(exists, to, raw);
        }
    }
}

/// Widens an index to 64 bits.
#[track_caller]
fn wide<I: Index<O>, O: Integer>(index: Register<'_, I>) -> U64<'_> {
    I::bytes(I::signed(index), 1)
}

params! {
    /// Arguments of [`IndexSelect`].
    pub struct IndexSelectArguments => Call {
        /// The address of the first element of x.
        x: In,
        /// The address of the first index; indices are contiguous.
        ids: In,
        /// The address of the first element of y.
        y: Out,
        /// Units of y, from [`IndexSelect::units`].
        units: u64,
        /// Number of indices.
        chosen: u64,
        /// Units per row, which is also the stride of the indexed dim.
        inner: u64,
        /// The indexed dim, and the fault site for out-of-range indices.
        indexed: IndexedDim,
    }
}

impl Variant for IndexSelect {
    type Arguments = IndexSelectArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);
        match self.wide {
            false => self.write::<u32, i32>(k, &call),
            true => self.write::<u64, i64>(k, &call),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let (unit, ids) = (self.unit.bytes(), self.ids.name());
        let wide = if self.wide { "_wide" } else { "" };
        format!("index_select_b{unit}_{ids}{wide}")
    }
}
