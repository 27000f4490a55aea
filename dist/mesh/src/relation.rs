//! The relation between two layouts.

use crate::{Mode, RankLayout};

/// How the groups of one layout relate to those of another: the first variant that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// The same ranks in the same order.
    Same,
    /// The same ranks in another order.
    Reordered,
    /// Each group is a subset of one of the other's. A single rank is a subset of every group.
    Sub,
    /// Each group is a union of the other's.
    Super,
    /// Groups of the two share at most one rank: together they form a mesh.
    Orthogonal,
    /// They share some ranks in another way: no mesh has both as axes.
    Overlapping,
}

impl RankLayout {
    /// The relation to another layout of the same world. The cost does not depend on the number of
    /// ranks.
    ///
    /// Two layouts have a common radix if, after sorting 1 and the strides and ends of all their
    /// modes, each number divides the next. Then both are sets of digits of one mixed radix, and
    /// are compared as sets.
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

    /// Whether one of the modes contains a digit, which must not straddle modes.
    pub(crate) fn counts(&self, digit: Mode) -> bool {
        self.modes().iter().any(|mode| mode.stride <= digit.stride && digit.end() <= mode.end())
    }
}

/// The digits, finest first, of the coarsest mixed radix in which both layouts are sets of digits;
/// `None` if there is no such radix.
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
            end.is_multiple_of(stride).then(|| Mode { size: end / stride, stride })
        })
        .collect()
}
