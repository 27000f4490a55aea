//! Gather: elements selected by an index tensor along one dim.

use super::{IndexDtype, IndexedDim};
use crate::assembler::{In, Integer, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::copies::Unit;
use crate::elementwise::strided::{self, Index, Space, SpaceForm, Strides};
use crate::elementwise::{IterationSpace, THREADS};
use crate::params;

/// y\[c\] = x\[c'\], where c' is c with the coordinate in one dim replaced by index\[c\].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gather {
    unit: Unit,
    ids: IndexDtype,
    dims: u8,
    wide: bool,
}

impl Gather {
    /// The kernel for elements of up to 8 bytes.
    pub fn new(unit: Unit, ids: IndexDtype, space: &IterationSpace) -> Gather {
        Gather { unit, ids, dims: space.extents().len() as u8, wide: space.is_wide() }
    }

    /// The launch over elements; `None` if there are no elements.
    pub fn launch(&self, elements: u64) -> Option<Launch> {
        strided::launch(elements)
    }

    fn write<'k, I: Index<O>, O: Integer>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        space: &Strides<'k, I, O>,
    ) {
        let size = self.unit.bytes();
        let index = |index| {
            let exists = I::is_below(index, space.elements);
            let coordinates = space.coordinates(index);
            let from = space.address(1, call.index, self.ids.size(), &coordinates);
            let to = space.address(0, call.y, size, &coordinates);
            let around = space.address(2, call.x, size, &coordinates);
            (exists, self.ids.load_if(exists, from), around, to)
        };
        let indices: Vec<_> = strided::indices::<I, O>(k).into_iter().map(index).collect();
        let mut loaded = Vec::with_capacity(indices.len());
        for (exists, index, around, to) in indices {
            let (inside, offset) = call.indexed.choose(exists, index);
            let from = around.byte_add((offset * i64::from(size)).unsigned());
            loaded.push((exists, to, self.unit.load_if(inside, from)));
        }
        for (exists, to, raw) in loaded {
            self.unit.store_if(exists, to, raw);
        }
    }
}

params! {
    /// Arguments of [`Gather`].
    pub struct GatherArguments => Call for variant: Gather {
        /// The address of the first element of x.
        x: In,
        /// The address of the first index.
        index: In,
        /// The address of the first element of y.
        y: Out,
        /// The extents of the index tensor, with the strides of y, the index tensor and x. x has stride
        /// 0 in the indexed dim.
        space: IterationSpace = SpaceForm { dims: variant.dims, wide: variant.wide, tensors: 3 },
        /// The indexed dim of x.
        indexed: IndexedDim,
    }
}

impl Variant for Gather {
    type Arguments = GatherArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let call = self.parameters(k);
        match &call.space {
            Space::Narrow(space) => self.write(k, &call, space),
            Space::Wide(space) => self.write(k, &call, space),
        }
        k.finish()
    }

    fn entry(&self) -> String {
        let (unit, ids, dims) = (self.unit.bytes(), self.ids.name(), self.dims);
        let wide = if self.wide { "_wide" } else { "" };
        format!("gather_b{unit}_{ids}_strided{dims}{wide}")
    }
}
