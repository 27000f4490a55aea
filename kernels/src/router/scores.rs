//! The scores of one token's experts, and the best of them.

use crate::assembler::{F32, GlobalAddress, Kernel, Pred, U32, Variable};
use crate::dtype::Loaded;
use crate::lane_group::Group;

/// The scores of a token: its probabilities, and the bias that is added for ranking.
pub(super) struct Scores<'a, 'k> {
    pub(super) group: &'a Group<'k>,
    pub(super) probabilities: GlobalAddress<'k>,
    pub(super) bias: Option<GlobalAddress<'k>>,
    pub(super) experts: U32<'k>,
}

/// An expert and its key, an integer that sorts like the score; 0 means no expert.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'k> {
    pub(super) key: U32<'k>,
    pub(super) expert: U32<'k>,
}

/// The best candidate of a lane so far.
pub(super) struct ArgReduce<'k> {
    key: Variable<'k, u32>,
    expert: Variable<'k, u32>,
}

impl<'k> ArgReduce<'k> {
    #[track_caller]
    pub(super) fn new(k: &'k Kernel) -> ArgReduce<'k> {
        ArgReduce { key: k.var(0u32), expert: k.var(0u32) }
    }

    /// Replaces the best candidate by a better one if `condition` is true. Among equal candidates
    /// the first is kept.
    #[track_caller]
    pub(super) fn offer(&self, candidate: Candidate<'k>, condition: Option<Pred<'k>>) {
        let better = candidate.key.gt(*self.key);
        let better = condition.map_or(better, |condition| better & condition);
        self.key.set(better.select(candidate.key, *self.key));
        self.expert.set(better.select(candidate.expert, *self.expert));
    }

    /// The best candidate of all lanes of the group, in each of them. Among equal candidates, the
    /// lowest index wins. All lanes of the warp must call it.
    #[track_caller]
    pub(super) fn of_group(&self, lanes: u32) -> Candidate<'k> {
        let own = Candidate { key: self.key.get(), expert: self.expert.get() };
        let distances = (0..lanes.trailing_zeros()).map(|bit| 1 << bit);
        distances.fold(own, |best, distance| {
            let key = best.key.shuffle_xor(distance);
            let expert = best.expert.shuffle_xor(distance);
            let lower = key.equals(best.key) & expert.lt(best.expert);
            let better = key.gt(best.key) | lower;
            Candidate {
                key: better.select(key, best.key),
                expert: better.select(expert, best.expert),
            }
        })
    }
}

impl<'k> Scores<'_, 'k> {
    /// Loads consecutive experts from expert `first` in one access.
    #[track_caller]
    pub(super) fn load(&self, first: U32<'k>, inside: Pred<'k>) -> Access<'k> {
        let exists = self.group.exists & inside;
        let from = self.group.at(self.probabilities, first);
        Access {
            first,
            exists,
            probabilities: self.group.load_if(exists, from),
            bias: self.bias.map(|bias| self.load_bias(bias, first, exists)),
        }
    }

    /// The probability of an expert; 0 if the token or the expert does not exist.
    #[track_caller]
    pub(super) fn probability(&self, expert: U32<'k>) -> F32<'k> {
        let known = self.group.exists & expert.lt(self.experts);
        let from = self.group.at(self.probabilities, expert);
        self.group.tile.dtype.load_if(known, from)
    }

    #[track_caller]
    fn load_bias(&self, bias: GlobalAddress<'k>, first: U32<'k>, exists: Pred<'k>) -> Vec<F32<'k>> {
        let from = bias.element::<f32>(first);
        match self.group.tile.width {
            1 => vec![from.load_if(exists)],
            width => {
                let fours = (0..i64::from(width / 4)).map(|i| from.offset(16 * i));
                let fours = fours.map(|from| from.load_vector_if::<f32, 4>(exists));
                fours.flatten().collect()
            }
        }
    }
}

/// Consecutive experts loaded in one access.
pub(super) struct Access<'k> {
    first: U32<'k>,
    exists: Pred<'k>,
    probabilities: Loaded<'k>,
    bias: Option<Vec<F32<'k>>>,
}

impl<'k> Access<'k> {
    #[track_caller]
    pub(super) fn candidates(&self) -> Vec<Candidate<'k>> {
        let probabilities = self.probabilities.widen().into_iter().zip(0..);
        let candidate = |(probability, i): (F32<'k>, u32)| {
            let score = match &self.bias {
                None => probability,
                Some(bias) => probability + bias[i as usize],
            };
            Candidate { key: self.exists.select(key_of(score), 0), expert: self.first + i }
        };
        probabilities.map(candidate).collect()
    }
}

/// An integer above 0 that sorts like the score. NaN gives the largest; both zeros give the same.
#[track_caller]
fn key_of(score: F32<'_>) -> U32<'_> {
    // The bits of positive floats sort like the floats; those of negative floats in reverse.
    let bits = score.equals(0.0).select(0.0, score).to_bits();
    let all_or_sign = (bits.signed() >> 31).unsigned() | 0x8000_0000;
    let nan = score.differs(score);
    nan.select(u32::MAX, bits ^ all_or_sign)
}
