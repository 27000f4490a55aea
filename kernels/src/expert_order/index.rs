//! Expert indices: loads, and conversion to local experts.

use crate::assembler::{GlobalAddress, Pred, S64, U32};

/// The format of an index in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexFormat {
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
}

impl IndexFormat {
    /// All variants.
    pub const ALL: [IndexFormat; 3] = [IndexFormat::I32, IndexFormat::U32, IndexFormat::I64];

    /// Bytes per index.
    pub fn size(self) -> u32 {
        match self {
            IndexFormat::I32 | IndexFormat::U32 => 4,
            IndexFormat::I64 => 8,
        }
    }

    /// Its name, as in the names of kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            IndexFormat::I32 => "i32",
            IndexFormat::U32 => "u32",
            IndexFormat::I64 => "i64",
        }
    }

    /// Loads the index of each slot; 0 for slots that do not exist. All loads are in flight
    /// together.
    #[track_caller]
    pub(super) fn load<'k>(
        self,
        indices: GlobalAddress<'k>,
        slots: &[(U32<'k>, Pred<'k>)],
    ) -> Vec<S64<'k>> {
        let slots = slots.iter();
        match self {
            IndexFormat::I64 => {
                slots.map(|(slot, exists)| indices.element::<i64>(*slot).load_if(*exists)).collect()
            }
            _ => {
                let load = |(slot, exists): &(U32<'k>, Pred<'k>)| {
                    indices.element::<u32>(*slot).load_if::<u32>(*exists)
                };
                let loaded: Vec<U32<'k>> = slots.map(load).collect();
                loaded.into_iter().map(|index| self.widen(index)).collect()
            }
        }
    }

    #[track_caller]
    fn widen(self, index: U32<'_>) -> S64<'_> {
        match self {
            IndexFormat::U32 => index.wide().signed(),
            _ => index.signed().wide(),
        }
    }
}

/// The indices relative to the first local expert, `first`. The result is `u32::MAX` if it does not
/// fit in 32 bits, and for slots that do not exist.
#[track_caller]
pub(super) fn groups<'k>(
    indices: &[S64<'k>],
    first: U32<'k>,
    slots: &[(U32<'k>, Pred<'k>)],
) -> Vec<U32<'k>> {
    let first = first.wide().signed();
    let group = |(index, (_, exists)): (&S64<'k>, &(U32<'k>, Pred<'k>))| {
        let group = (*index - first).unsigned().min(u64::from(u32::MAX));
        exists.select(group.low(), u32::MAX)
    };
    indices.iter().zip(slots).map(group).collect()
}
