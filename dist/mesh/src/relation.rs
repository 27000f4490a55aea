//! How two layouts stand to each other.

use crate::{Mode, RankLayout};

/// What the groups of one layout and those of another have in common, seen from the first. The
/// first of these that holds:
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The same ranks in the same order.
    Same,
    /// The same ranks in another order.
    Reordered,
    /// Each group lies within one of the other's. (Rank 0 alone lies within everything.)
    Sub,
    /// Each group holds whole groups of the other.
    Super,
    /// A group shares at most one rank with any of the other's: together they make a mesh.
    Orthogonal,
    /// They share some digits and not all, or their sizes do not line up: no mesh has both.
    Overlapping,
}

impl RankLayout {
    /// How this layout stands to another, in the same world. Takes no longer for more ranks.
    ///
    /// Sizes line up when the places where modes begin and end, sorted, divide each other: then both
    /// layouts are sets of digits of one mixed radix, and comparing them is comparing sets.
    pub fn relation(&self, other: &RankLayout) -> Relation {
        if self == other {
            return Relation::Same;
        }
        let Some(digits) = common_digits(self, other) else {
            return Relation::Overlapping;
        };

        let (mut mine, mut theirs, mut shared) = (false, false, false);
        for digit in digits {
            match (self.counts(digit), other.counts(digit)) {
                (true, true) => shared = true,
                (true, false) => mine = true,
                (false, true) => theirs = true,
                (false, false) => {}
            }
        }
        match (mine, theirs, shared) {
            (false, false, _) => Relation::Reordered,
            (false, true, _) => Relation::Sub,
            (true, false, _) => Relation::Super,
            (true, true, false) => Relation::Orthogonal,
            (true, true, true) => Relation::Overlapping,
        }
    }

    /// Whether it counts a digit, which must not straddle a border of its modes.
    pub(crate) fn counts(&self, digit: Mode) -> bool {
        self.modes()
            .iter()
            .any(|mode| mode.stride <= digit.stride && digit.end() <= mode.end())
    }
}

/// The digits of the coarsest mixed radix in which both layouts are sets of digits, if there is one;
/// the finest first.
pub(crate) fn common_digits(one: &RankLayout, other: &RankLayout) -> Option<Vec<Mode>> {
    let modes = one.modes().iter().chain(other.modes());
    let mut borders: Vec<usize> = modes.flat_map(|mode| [mode.stride, mode.end()]).collect();
    borders.push(1);
    borders.sort_unstable();
    borders.dedup();

    borders
        .windows(2)
        .map(|pair| {
            let (stride, end) = (pair[0], pair[1]);
            end.is_multiple_of(stride).then(|| Mode {
                size: end / stride,
                stride,
            })
        })
        .collect()
}
