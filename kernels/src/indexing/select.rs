//! Index select: rows selected by a list of indices.

use super::ids::Choice;
use super::{IndexDtype, IndexedDim};
use crate::assembler::{Arguments, Integer, Kernel, Launch, Ptx, Register, Target, U64, Variant};
use crate::copies::Unit;
use crate::elementwise::THREADS;
use crate::elementwise::strided::{self, Index};

/// y\[o, j, ..\] = x\[o, ids\[j\], ..\] for dense tensors, in units of up to 16 bytes. With a
/// single o, it selects rows of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexSelect {
    unit: Unit,
    ids: IndexDtype,
    wide: bool,
}

/// Arguments of [`IndexSelect`].
#[derive(Clone, Copy, Debug)]
pub struct IndexSelectArguments {
    /// The address of the first element of x.
    pub x: u64,
    /// The address of the first index; indices are contiguous.
    pub ids: u64,
    /// The address of the first element of y.
    pub y: u64,
    /// Product of the extents before the indexed dim.
    pub outer: u64,
    /// Number of indices.
    pub chosen: u64,
    /// Units per row, which is also the stride of the indexed dim.
    pub inner: u64,
    /// The indexed dim, and the fault site for out-of-range indices.
    pub indexed: IndexedDim,
}

impl IndexSelectArguments {
    /// Number of units of y.
    pub fn units(&self) -> u64 {
        [self.chosen, self.inner]
            .iter()
            .fold(self.outer, |units, extent| units.saturating_mul(*extent))
    }

    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &IndexSelect) -> Arguments {
        let mut arguments = Arguments::new();
        for address in [self.x, self.ids, self.y] {
            arguments.push_pointer(address);
        }
        arguments.push_u64(self.units());
        for extent in [self.chosen, self.inner] {
            match variant.wide {
                true => arguments.push_u64(extent),
                false => arguments.push_u32(extent as u32),
            };
        }
        self.indexed.push(&mut arguments);
        arguments
    }
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

    /// The launch over units; `None` if there are no units.
    pub fn launch(&self, units: u64) -> Option<Launch> {
        strided::launch(units)
    }

    fn text<I: Index<O>, O: Integer>(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (x, ids, y) = (k.pointer("x"), k.pointer("ids"), k.pointer("y"));
        let units = k.u64_param("units");
        let (chosen, inner) = (I::extent(k, "chosen"), I::extent(k, "inner"));
        let choice = Choice::parameters(k);
        let table = choice.whole();

        let size = u64::from(self.unit.bytes());
        let mut chosen_rows = Vec::new();
        for index in strided::indices::<I, O>(k) {
            let exists = I::is_below(index, units);
            let row = index / inner;
            let column = index - row * inner;
            let outer = row / chosen;
            let at = wide::<I, O>(row - outer * chosen) * u64::from(self.ids.size());
            let id = self.ids.load_if(exists, ids.byte_add(at));
            let start = x.byte_add((wide::<I, O>(outer) * table + wide::<I, O>(column)) * size);
            chosen_rows.push((exists, id, start, y.byte_add(wide::<I, O>(index) * size)));
        }

        let mut loaded = Vec::with_capacity(chosen_rows.len());
        for (exists, id, start, to) in chosen_rows {
            let (inside, offset) = choice.choose(exists, id);
            let from = start.byte_add(offset.unsigned() * size);
            loaded.push((exists, to, self.unit.load_if(inside, from)));
        }
        for (exists, to, raw) in loaded {
            self.unit.store_if(exists, to, raw);
        }
        k.finish()
    }
}

/// Widens an index to 64 bits.
#[track_caller]
fn wide<I: Index<O>, O: Integer>(index: Register<'_, I>) -> U64<'_> {
    I::bytes(I::signed(index), 1)
}

impl Variant for IndexSelect {
    fn ptx(&self) -> Ptx {
        match self.wide {
            false => self.text::<u32, i32>(),
            true => self.text::<u64, i64>(),
        }
    }

    fn entry(&self) -> String {
        let (unit, ids) = (self.unit.bytes(), self.ids.name());
        let wide = if self.wide { "_wide" } else { "" };
        format!("index_select_b{unit}_{ids}{wide}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultSite;

    #[test]
    fn arguments_fill_the_parameter_space() {
        for elements in [100, 1 << 40] {
            let (variant, unit) = IndexSelect::new(Unit::B2, IndexDtype::U32, 40, 0, elements);
            assert_eq!(unit, Unit::B8);
            let arguments = IndexSelectArguments {
                x: 256,
                ids: 512,
                y: 1024,
                outer: 1,
                chosen: 5,
                inner: 5,
                indexed: IndexedDim {
                    extent: 3,
                    first: 0,
                    total: 3,
                    stride: 5,
                    faults: FaultSite::new(64, 1),
                },
            };
            let bytes = arguments.arguments(&variant);
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
