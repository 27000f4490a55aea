//! The keys of a segment sum: the destination row of each element.

use super::{IndexDtype, IndexedDim};
use crate::assembler::{In, Integer, Kernel, Launch, Out, Ptx, Target, Variant};
use crate::elementwise::strided::{self, Index, Space, SpaceForm, Strides};
use crate::elementwise::{IterationSpace, THREADS};
use crate::params;

/// keys\[i\] = the row that element i of an index tensor selects, or the number of rows if it is
/// out of range; positions\[i\] = i.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexKeys {
    ids: IndexDtype,
    dims: u8,
    wide: bool,
}

impl IndexKeys {
    /// The kernel for this iteration space.
    pub fn new(ids: IndexDtype, space: &IterationSpace) -> IndexKeys {
        IndexKeys { ids, dims: space.extents().len() as u8, wide: space.is_wide() }
    }

    /// The launch over indices; `None` if there are no indices.
    pub fn launch(&self, indices: u64) -> Option<Launch> {
        strided::launch(indices)
    }

    fn write<'k, I: Index<O>, O: Integer>(
        &self,
        k: &'k Kernel,
        call: &Call<'k>,
        space: &Strides<'k, I, O>,
    ) {
        let mut loaded = Vec::new();
        for index in strided::indices::<I, O>(k) {
            let exists = I::is_below(index, space.elements);
            let coordinates = space.coordinates(index);
            let from = space.address(1, call.index, self.ids.size(), &coordinates);
            let around = space.bytes(2, 1, &coordinates);
            let position = I::bytes(I::signed(index), 1);
            loaded.push((exists, position, around, self.ids.load_if(exists, from)));
        }
        for (exists, position, around, id) in loaded {
            let (inside, offset) = call.indexed.choose(exists, id);
            let key = inside.select((around + offset.unsigned()).low(), call.rows);
            call.keys.element_wide::<u32>(position).store_if(exists, key);
            let to = call.positions.element_wide::<u32>(position);
            to.store_if(exists, position.low());
        }
    }
}

params! {
    /// Arguments of [`IndexKeys`].
    pub struct IndexKeysArguments => Call for variant: IndexKeys {
        /// The address of the first index.
        index: In,
        /// The keys, as u32.
        keys: Out,
        /// Destination of the positions, as u32.
        positions: Out,
        /// The extents of the index tensor, with the strides of keys and positions (dense), of the
        /// index tensor, and of the row numbers. The last have stride 0 in the indexed dim.
        space: IterationSpace = SpaceForm { dims: variant.dims, wide: variant.wide, tensors: 3 },
        /// The indexed dim, with its stride in row numbers.
        indexed: IndexedDim,
        /// Number of rows.
        rows: u32,
    }
}

impl Variant for IndexKeys {
    type Arguments = IndexKeysArguments;

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
        let (ids, dims) = (self.ids.name(), self.dims);
        let wide = if self.wide { "_wide" } else { "" };
        format!("index_keys_{ids}_strided{dims}{wide}")
    }
}
