//! Index dtypes, and the dim that indices select from.

use crate::assembler::{GlobalAddress, Pred, S32, S64, U32, U64};
use crate::faults::FaultSite;
use crate::params;

/// The dtype of indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexDtype {
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
}

params! {
    /// The dim that indices select from, or a shard of it. Indices of other shards select nothing.
    pub struct IndexedDim => Choice {
        /// The extent of the shard.
        extent: u64,
        /// The index of the shard's first element.
        first: u64,
        /// The extent of the whole dim. Indices outside of it are out of range.
        total: u64,
        /// The stride of the dim, in units.
        stride: i64,
        /// The fault site for out-of-range indices.
        faults: FaultSite,
    }
}

impl IndexDtype {
    /// All variants.
    pub const ALL: [IndexDtype; 3] = [IndexDtype::I64, IndexDtype::I32, IndexDtype::U32];

    /// Bytes of an index.
    pub fn size(self) -> u32 {
        match self {
            IndexDtype::I64 => 8,
            IndexDtype::I32 | IndexDtype::U32 => 4,
        }
    }

    /// Its name in kernel names.
    pub fn name(self) -> &'static str {
        match self {
            IndexDtype::I64 => "i64",
            IndexDtype::I32 => "i32",
            IndexDtype::U32 => "u32",
        }
    }

    /// Loads an index if `condition` is true, otherwise returns 0.
    #[track_caller]
    pub(super) fn load_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> Id<'k> {
        match self {
            IndexDtype::I64 => Id::I64(from.load_if(condition)),
            IndexDtype::I32 => Id::I32(from.load_if(condition)),
            IndexDtype::U32 => Id::U32(from.load_if(condition)),
        }
    }
}

/// An index as loaded. Widening it waits for the load.
#[derive(Clone, Copy)]
pub(super) enum Id<'k> {
    I64(S64<'k>),
    I32(S32<'k>),
    U32(U32<'k>),
}

impl<'k> Id<'k> {
    #[track_caller]
    fn wide(self) -> S64<'k> {
        match self {
            Id::I64(index) => index,
            Id::I32(index) => index.wide(),
            Id::U32(index) => index.wide().signed(),
        }
    }
}

impl<'k> Choice<'k> {
    /// Units in the dim of this shard, if the dim is contiguous.
    #[track_caller]
    pub(super) fn whole(self) -> U64<'k> {
        self.extent * self.stride.unsigned()
    }

    /// Whether the element `exists` and its index is in this shard; and the offset that the index
    /// selects. Reports an out-of-range index.
    #[track_caller]
    pub(super) fn choose(self, exists: Pred<'k>, index: Id<'k>) -> (Pred<'k>, S64<'k>) {
        let index = index.wide();
        let is_in_range = index.unsigned().lt(self.total);
        self.faults.report(exists & !is_in_range, index);
        let own = index.unsigned() - self.first;
        (exists & own.lt(self.extent), own.signed() * self.stride)
    }
}
