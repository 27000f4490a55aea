//! The keys of a segment sum: the destination row of each element.

use super::ids::Choice;
use super::{IndexDtype, IndexedDim};
use crate::assembler::{Arguments, Integer, Kernel, Launch, Ptx, Target, Variant};
use crate::elementwise::strided::{self, Index, Strides};
use crate::elementwise::{IterationSpace, THREADS};

/// keys\[i\] = the row that element i of an index tensor selects, or the number of rows if it is
/// out of range; positions\[i\] = i.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexKeys {
    ids: IndexDtype,
    dims: u8,
    wide: bool,
}

/// Arguments of [`IndexKeys`].
#[derive(Clone, Copy, Debug)]
pub struct IndexKeysArguments<'a> {
    /// The address of the first index.
    pub index: u64,
    /// Destination of the keys, as u32.
    pub keys: u64,
    /// Destination of the positions, as u32.
    pub positions: u64,
    /// The extents of the index tensor, with the strides of keys and positions (dense), of the
    /// index tensor, and of the row numbers. The last have stride 0 in the indexed dim.
    pub space: &'a IterationSpace,
    /// The indexed dim, with its stride in row numbers.
    pub indexed: IndexedDim,
    /// Number of rows.
    pub rows: u32,
}

impl IndexKeysArguments<'_> {
    /// The bytes of the parameters of `variant`.
    pub fn arguments(&self, variant: &IndexKeys) -> Arguments {
        let mut arguments = Arguments::new();
        for address in [self.index, self.keys, self.positions] {
            arguments.push_pointer(address);
        }
        strided::push_space(&mut arguments, self.space, variant.wide);
        self.indexed.push(&mut arguments);
        arguments.push_u32(self.rows);
        arguments
    }
}

impl IndexKeys {
    /// The kernel for this iteration space.
    pub fn new(ids: IndexDtype, space: &IterationSpace) -> IndexKeys {
        IndexKeys {
            ids,
            dims: space.extents().len() as u8,
            wide: space.is_wide(),
        }
    }

    /// The launch over indices; `None` if there are no indices.
    pub fn launch(&self, indices: u64) -> Option<Launch> {
        strided::launch(indices)
    }

    fn text<I: Index<O>, O: Integer>(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let ids = k.pointer("index");
        let (keys, positions) = (k.pointer("keys"), k.pointer("positions"));
        let space = Strides::<I, O>::parameters(k, self.dims.into(), 3);
        let choice = Choice::parameters(k);
        let rows = k.u32_param("rows");

        let mut loaded = Vec::new();
        for index in strided::indices::<I, O>(k) {
            let exists = I::is_below(index, space.elements);
            let coordinates = space.coordinates(index);
            let from = space.address(1, ids, self.ids.size(), &coordinates);
            let around = space.bytes(2, 1, &coordinates);
            let position = I::bytes(I::signed(index), 1);
            loaded.push((exists, position, around, self.ids.load_if(exists, from)));
        }
        for (exists, position, around, id) in loaded {
            let (inside, offset) = choice.choose(exists, id);
            let key = inside.select((around + offset.unsigned()).low(), rows);
            keys.element_wide::<u32>(position).store_if(exists, key);
            let to = positions.element_wide::<u32>(position);
            to.store_if(exists, position.low());
        }
        k.finish()
    }
}

impl Variant for IndexKeys {
    fn ptx(&self) -> Ptx {
        match self.wide {
            false => self.text::<u32, i32>(),
            true => self.text::<u64, i64>(),
        }
    }

    fn entry(&self) -> String {
        let (ids, dims) = (self.ids.name(), self.dims);
        let wide = if self.wide { "_wide" } else { "" };
        format!("index_keys_{ids}_strided{dims}{wide}")
    }
}
