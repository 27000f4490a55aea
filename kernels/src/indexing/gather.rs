//! Gather: elements selected by an index tensor along one dim.

use super::ids::Choice;
use super::{IndexDtype, IndexedDim};
use crate::assembler::{Arguments, Integer, Kernel, Launch, Ptx, Target, Variant};
use crate::copies::Unit;
use crate::elementwise::strided::{self, Index, Strides};
use crate::elementwise::{IterationSpace, THREADS};

/// y\[c\] = x\[c'\], where c' is c with the coordinate in one dim replaced by index\[c\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    unit: Unit,
    ids: IndexDtype,
    dims: u8,
    wide: bool,
}

/// Arguments of [`Gather`].
#[derive(Clone, Copy, Debug)]
pub struct GatherArguments<'a> {
    /// The address of the first element of x.
    pub x: u64,
    /// The address of the first index.
    pub index: u64,
    /// The address of the first element of y.
    pub y: u64,
    /// The extents of the index tensor, with the strides of y, the index tensor and x. x has stride
    /// 0 in the indexed dim.
    pub space: &'a IterationSpace,
    /// The indexed dim of x.
    pub indexed: IndexedDim,
}

impl GatherArguments<'_> {
    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &Gather) -> Arguments {
        let mut arguments = Arguments::new();
        for address in [self.x, self.index, self.y] {
            arguments.push_pointer(address);
        }
        strided::push_space(&mut arguments, self.space, variant.wide);
        self.indexed.push(&mut arguments);
        arguments
    }
}

impl Gather {
    /// The kernel for elements of up to 8 bytes.
    pub fn new(unit: Unit, ids: IndexDtype, space: &IterationSpace) -> Gather {
        Gather {
            unit,
            ids,
            dims: space.extents().len() as u8,
            wide: space.is_wide(),
        }
    }

    /// The launch over elements; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        strided::launch(elements)
    }

    fn text<I: Index<O>, O: Integer>(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let (x, ids, y) = (k.pointer("x"), k.pointer("index"), k.pointer("y"));
        let space = Strides::<I, O>::parameters(k, self.dims.into(), 3);
        let choice = Choice::parameters(k);

        let size = self.unit.bytes();
        let index = |index| {
            let exists = I::is_below(index, space.elements);
            let coordinates = space.coordinates(index);
            let from = space.address(1, ids, self.ids.size(), &coordinates);
            let to = space.address(0, y, size, &coordinates);
            let around = space.address(2, x, size, &coordinates);
            (exists, self.ids.load_if(exists, from), around, to)
        };
        let indices: Vec<_> = strided::indices::<I, O>(k).into_iter().map(index).collect();
        let mut loaded = Vec::with_capacity(indices.len());
        for (exists, index, around, to) in indices {
            let (inside, offset) = choice.choose(exists, index);
            let from = around.byte_add((offset * i64::from(size)).unsigned());
            loaded.push((exists, to, self.unit.load_if(inside, from)));
        }
        for (exists, to, raw) in loaded {
            self.unit.store_if(exists, to, raw);
        }
        k.finish()
    }
}

impl Variant for Gather {
    fn ptx(&self) -> Ptx {
        match self.wide {
            false => self.text::<u32, i32>(),
            true => self.text::<u64, i64>(),
        }
    }

    fn entry(&self) -> String {
        let (unit, ids, dims) = (self.unit.bytes(), self.ids.name(), self.dims);
        let wide = if self.wide { "_wide" } else { "" };
        format!("gather_b{unit}_{ids}_strided{dims}{wide}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultSite;

    #[test]
    fn arguments_fill_the_parameter_space() {
        for far in [3, 1 << 40] {
            let space = IterationSpace::new(&[3, 4], &[4, 1], &[&[1, 3], &[far, 0]]).unwrap();
            let variant = Gather::new(Unit::B2, IndexDtype::I32, &space);
            let arguments = GatherArguments {
                x: 256,
                index: 512,
                y: 1024,
                space: &space,
                indexed: IndexedDim {
                    extent: 3,
                    first: 0,
                    total: 3,
                    stride: 1,
                    faults: FaultSite::new(64, 1),
                },
            };
            let bytes = arguments.arguments(&variant);
            assert_eq!(bytes.bytes().len(), variant.ptx().parameter_bytes());
        }
    }
}
