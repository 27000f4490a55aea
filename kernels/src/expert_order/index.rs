//! The integers that name experts.

use super::Share;
use crate::assembler::{GlobalAddress, Pred, U32, U64};

/// The format of an index in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexFormat {
    /// 32 bits, signed or not: what is negative is too large.
    Bits32,
    /// 64 bits, signed or not.
    Bits64,
}

impl IndexFormat {
    /// Both.
    pub const ALL: [IndexFormat; 2] = [IndexFormat::Bits32, IndexFormat::Bits64];

    /// Bytes of an index.
    pub fn size(self) -> u32 {
        match self {
            IndexFormat::Bits32 => 4,
            IndexFormat::Bits64 => 8,
        }
    }

    /// Its name, as in the names of kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            IndexFormat::Bits32 => "i32",
            IndexFormat::Bits64 => "i64",
        }
    }

    /// The index of each slot that exists, counted from the expert `first`; the largest number for
    /// what is not within 32 bits, and for slots that do not exist.
    #[track_caller]
    pub(super) fn load_groups<'k>(
        self,
        indices: GlobalAddress<'k>,
        first: U32<'k>,
        slots: &[(U32<'k>, Pred<'k>)],
    ) -> Vec<U32<'k>> {
        match self {
            IndexFormat::Bits32 => {
                let load = |&(slot, exists): &(U32<'k>, Pred<'k>)| {
                    indices.element::<u32>(slot).load_if::<u32>(exists)
                };
                let loaded: Vec<U32<'k>> = slots.iter().map(load).collect();
                let groups = loaded.into_iter().zip(slots);
                let group = |(index, (_, exists)): (U32<'k>, &(_, Pred<'k>))| {
                    exists.select(index - first, u32::MAX)
                };
                groups.map(group).collect()
            }
            IndexFormat::Bits64 => {
                let load = |&(slot, exists): &(U32<'k>, Pred<'k>)| {
                    indices.element::<u64>(slot).load_if::<u64>(exists)
                };
                let loaded: Vec<U64<'k>> = slots.iter().map(load).collect();
                let groups = loaded.into_iter().zip(slots);
                let group = |(index, (_, exists)): (U64<'k>, &(_, Pred<'k>))| {
                    let group = (index - first.wide()).min(u64::from(u32::MAX)).low();
                    exists.select(group, u32::MAX)
                };
                groups.map(group).collect()
            }
        }
    }

    /// The expert of its part of each slot, as [`Share::of_part`] says.
    #[track_caller]
    pub(super) fn load_experts<'k>(
        self,
        indices: GlobalAddress<'k>,
        first: U32<'k>,
        share: &Share<'k>,
        tile: U32<'k>,
    ) -> Vec<U32<'k>> {
        let groups = self.load_groups(indices, first, &share.slots(tile));
        groups.into_iter().map(|it| share.of_part(it)).collect()
    }
}
