//! Units of copies: the bytes moved per access.

use crate::assembler::{GlobalAddress, Pred, U32, U64};
use crate::elementwise::IterationSpace;

/// The bytes moved per access: one element, or several contiguous ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
    /// Sixteen bytes, the most.
    B16,
}

/// A loaded unit, in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw<'k> {
    /// Up to four bytes, zero-extended.
    Word(U32<'k>),
    Wide(U64<'k>),
    Vector([U32<'k>; 4]),
}

impl Unit {
    /// All units, the smallest first.
    pub const ALL: [Unit; 5] = [Unit::B1, Unit::B2, Unit::B4, Unit::B8, Unit::B16];

    /// Bytes per unit.
    pub fn bytes(self) -> u32 {
        1 << (self as u32)
    }

    /// The unit of `bytes` bytes; `None` if that is not 1, 2, 4, 8 or 16.
    pub fn of(bytes: u32) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.bytes() == bytes)
    }

    /// Returns the largest unit that divides the contiguous runs of `space`, and the space in such
    /// units. `self` is the size of an element. `starts` is the bitwise or of all byte offsets that
    /// must be multiples of the unit.
    pub fn largest(self, space: &IterationSpace, starts: u64) -> (Unit, IterationSpace) {
        let larger = Unit::ALL.into_iter().rev().filter(|unit| *unit > self);
        let mut fitting = larger.filter_map(|unit| {
            let aligned = starts.is_multiple_of(u64::from(unit.bytes()));
            let space = space.grouped(u64::from(unit.bytes() / self.bytes()))?;
            aligned.then_some((unit, space))
        });
        fitting.next().unwrap_or((self, *space))
    }

    /// Loads a unit if the predicate is true; otherwise returns zeros.
    #[track_caller]
    pub(crate) fn load_if<'k>(self, condition: Pred<'k>, from: GlobalAddress<'k>) -> Raw<'k> {
        match self {
            Unit::B1 => Raw::Word(from.load_byte_if(condition)),
            Unit::B2 => Raw::Word(from.load_half_if(condition)),
            Unit::B4 => Raw::Word(from.load_if::<u32>(condition)),
            Unit::B8 => Raw::Wide(from.load_if::<u64>(condition)),
            Unit::B16 => Raw::Vector(from.load_vector_if(condition)),
        }
    }

    /// Stores a unit if the predicate is true.
    #[track_caller]
    pub(crate) fn store_if<'k>(self, condition: Pred<'k>, to: GlobalAddress<'k>, raw: Raw<'k>) {
        match (raw, self) {
            (Raw::Word(word), Unit::B1) => to.store_byte_if(condition, word),
            (Raw::Word(word), Unit::B2) => to.store_half_if(condition, word),
            (Raw::Word(word), _) => to.store_if(condition, word),
            (Raw::Wide(wide), _) => to.store_if(condition, wide),
            (Raw::Vector(words), _) => to.store_vector_if(condition, words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn largest(extents: &[usize], x: &[isize], starts: u64) -> (Unit, u64) {
        let y: Vec<isize> = (0..extents.len())
            .map(|dim| extents[dim + 1..].iter().product::<usize>() as isize)
            .collect();
        let space = IterationSpace::new(extents, &y, &[x]).unwrap();
        let (unit, space) = Unit::B2.largest(&space, starts);
        (unit, space.elements())
    }

    /// Consecutive elements are grouped as far as extents, strides and alignment allow.
    #[test]
    fn contiguous_elements_are_grouped() {
        assert_eq!(largest(&[6, 8], &[8, 1], 0), (Unit::B16, 6));
        assert_eq!(largest(&[6, 8], &[8, 1], 4), (Unit::B4, 24));
        assert_eq!(largest(&[6, 8], &[12, 1], 0), (Unit::B8, 12));
        assert_eq!(largest(&[6, 8], &[9, 1], 0), (Unit::B2, 48));
        assert_eq!(largest(&[6, 8], &[1, 6], 0), (Unit::B2, 48));
        assert_eq!(largest(&[1, 1], &[1, 1], 0), (Unit::B2, 1));
        assert_eq!(largest(&[3, 5, 8], &[0, 16, 1], 16), (Unit::B16, 15));
    }
}
