//! The label of a row.

use crate::assembler::{GlobalAddress, Pred, S64, U32, U64};
use crate::faults::FaultSite;
use crate::params;

/// The dtype of labels.
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
    /// All variants.
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

    /// The label at `index` if the predicate is true, extended to 64 bits; otherwise 0.
    #[track_caller]
    pub(super) fn load_if<'k>(
        self,
        condition: Pred<'k>,
        labels: GlobalAddress<'k>,
        index: U64<'k>,
    ) -> S64<'k> {
        let from = labels.byte_add(index * u64::from(self.size()));
        match self {
            Label::I64 => from.load_if(condition),
            Label::I32 => from.load_if::<i32>(condition).wide(),
            Label::U32 => from.load_if::<u32>(condition).wide().signed(),
        }
    }
}

params! {
    /// The classes of a tile and the vocabulary.
    pub struct Classes => Vocabulary {
        /// The class of the tile's first column.
        first: i64,
        /// The number of classes of the whole vocabulary.
        total: u64,
        /// The label of ignored rows.
        ignore_index: i64,
        /// The fault site for labels that are outside the vocabulary and not ignored.
        faults: FaultSite,
    }
}

impl<'k> Vocabulary<'k> {
    /// The position of a label among the `classes` classes of a tile.
    #[track_caller]
    pub(super) fn position(&self, label: S64<'k>, classes: U32<'k>) -> InTile<'k> {
        let counts = label.differs(self.ignore_index);
        // A label below the first class wraps to a large unsigned number.
        let at = (label - self.first).unsigned();
        InTile { counts, within: counts & at.lt(classes.wide()), at }
    }

    /// Reports a label that is neither a class nor ignored, if `condition` is true.
    #[track_caller]
    pub(super) fn report(&self, condition: Pred<'k>, label: S64<'k>) {
        let counts = label.differs(self.ignore_index);
        let outside = label.unsigned().ge(self.total);
        self.faults.report(condition & counts & outside, label);
    }
}

/// The position of a label among the classes of a tile.
pub(super) struct InTile<'k> {
    /// Whether the row is not ignored.
    pub(super) counts: Pred<'k>,
    /// Whether the row is not ignored and the label is in the tile.
    pub(super) within: Pred<'k>,
    /// The position, valid if `within`.
    pub(super) at: U64<'k>,
}
