//! Asynchronous copies as objects: started by one instruction, waited for by another, and carried
//! out at once, as late as is allowed, or at any moment in between.

/// A copy of one lane from global to shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) lane: usize,
    pub(crate) to: u64,
    pub(crate) from: u64,
    pub(crate) bytes: usize,
    /// Bytes that are read; the rest become zero.
    pub(crate) source_bytes: usize,
    /// The group of its lane that it belongs to, counted from 1.
    pub(crate) group: u32,
    /// The instruction that started it.
    pub(crate) pc: u32,
}

/// The copies that a warp has under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    /// Not carried out yet, oldest first.
    pub(crate) pending: Vec<Copy>,
    /// Groups that each lane has committed.
    committed: [u32; 32],
}

impl Copies {
    /// The group that a lane's next copy belongs to.
    pub(crate) fn open_group(&self, lane: usize) -> u32 {
        self.committed[lane] + 1
    }

    pub(crate) fn commit(&mut self, lane: usize) {
        self.committed[lane] += 1;
    }

    /// The last group that is complete when at most `left` groups may be under way; all copies,
    /// committed or not, for `None`.
    pub(crate) fn complete(&self, lane: usize, left: Option<u32>) -> u32 {
        match left {
            Some(left) => self.committed[lane].saturating_sub(left),
            None => self.committed[lane] + 1,
        }
    }

    /// Takes out the copies of `lane` up to a group.
    pub(crate) fn take(&mut self, lane: usize, group: u32) -> Vec<Copy> {
        let due = |copy: &Copy| copy.lane == lane && copy.group <= group;
        let taken = self.pending.iter().copied().filter(due).collect();
        self.pending.retain(|copy| !due(copy));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_complete_in_order() {
        let mut copies = Copies::default();
        for group in 1..=3 {
            let copy = Copy {
                lane: 4,
                to: 0,
                from: 0,
                bytes: 16,
                source_bytes: 16,
                group: copies.open_group(4),
                pc: 0,
            };
            assert_eq!(copy.group, group);
            copies.pending.push(copy);
            copies.commit(4);
        }
        assert_eq!(copies.complete(4, Some(1)), 2);
        assert_eq!(copies.take(4, 2).len(), 2);
        assert_eq!(copies.take(5, 9).len(), 0);
        assert_eq!(copies.complete(4, Some(5)), 0);
        assert_eq!(copies.take(4, copies.complete(4, None)).len(), 1);
    }
}
