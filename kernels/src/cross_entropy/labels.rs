//! The label of a row.

use crate::assembler::{GlobalAddress, Pred, S64, U32, U64};

/// The format of labels in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Label {
    /// Signed, 64 bits.
    I64,
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
}

impl Label {
    /// All of them.
    pub const ALL: [Label; 3] = [Label::I64, Label::I32, Label::U32];

    /// Bytes of a label.
    pub fn size(self) -> u32 {
        match self {
            Label::I64 => 8,
            Label::I32 | Label::U32 => 4,
        }
    }

    /// Its name, as in the names of kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Label::I64 => "i64",
            Label::I32 => "i32",
            Label::U32 => "u32",
        }
    }

    /// The label at `index` where the predicate holds, with 64 bits; 0 elsewhere.
    #[track_caller]
    pub(super) fn load_if<'k>(
        self,
        condition: Pred<'k>,
        labels: GlobalAddress<'k>,
        index: U64<'k>,
    ) -> S64<'k> {
        let from = labels.moved(index * u64::from(self.size()));
        match self {
            Label::I64 => from.load_if(condition),
            Label::I32 => from.load_if::<i32>(condition).wide(),
            Label::U32 => from.load_if::<u32>(condition).wide().signed(),
        }
    }
}

/// Where a label stands among the classes of a tile.
pub(super) struct InTile<'k> {
    /// Whether its row counts.
    pub(super) counts: Pred<'k>,
    /// Whether it is one of them, and its row counts.
    pub(super) within: Pred<'k>,
    /// Which one, where it is.
    pub(super) at: U64<'k>,
}

impl<'k> InTile<'k> {
    /// Of `classes` classes from `first_class` on.
    #[track_caller]
    pub(super) fn new(
        label: S64<'k>,
        ignore_index: S64<'k>,
        first_class: S64<'k>,
        classes: U32<'k>,
    ) -> InTile<'k> {
        let counts = label.differs(ignore_index);
        // A label below the first class is far above the last as an unsigned number.
        let at = (label - first_class).unsigned();
        InTile {
            counts,
            within: counts & at.lt(classes.wide()),
            at,
        }
    }
}
