//! Which rank has which stage.

use crate::error::{Error, MAX_PAIRS, MAX_STAGES, Result};

/// The numbers of ranks, stages and microbatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    ranks: usize,
    stages: usize,
    microbatches: usize,
}

impl Shape {
    /// A shape. `stages` is the number of stages of all ranks together.
    ///
    /// # Errors
    /// [`Error::Zero`] when a number is 0, [`Error::FewStages`] when a rank would have no stage, and
    /// [`Error::TooLarge`] above [`MAX_STAGES`] or [`MAX_PAIRS`].
    pub fn new(ranks: usize, stages: usize, microbatches: usize) -> Result<Shape> {
        for (what, number) in [("ranks", ranks), ("stages", stages), ("microbatches", microbatches)]
        {
            if number == 0 {
                return Err(Error::Zero { what });
            }
        }
        if stages < ranks {
            return Err(Error::FewStages { stages, ranks });
        }
        let pairs = stages.checked_mul(microbatches);
        if stages > MAX_STAGES || pairs.is_none_or(|it| it > MAX_PAIRS) {
            return Err(Error::TooLarge { stages, microbatches });
        }
        Ok(Shape { ranks, stages, microbatches })
    }

    /// The number of ranks.
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// The number of stages of all ranks together.
    pub fn stages(self) -> usize {
        self.stages
    }

    /// The number of microbatches of a step.
    pub fn microbatches(self) -> usize {
        self.microbatches
    }
}

/// The rank of every stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    rank_of: Vec<usize>,
    stages_of: Vec<Vec<usize>>,
}

impl Placement {
    /// Stages in a loop: 0, 1, 2, 0, 1, 2 for 3 ranks and 6 stages.
    pub fn looped(shape: Shape) -> Placement {
        let rank_of = (0..shape.stages).map(|stage| stage % shape.ranks);
        Placement::of_ranks(shape.ranks, rank_of.collect())
    }

    /// Stages back and forth: 0, 1, 2, 2, 1, 0 for 3 ranks and 6 stages.
    pub fn v(shape: Shape) -> Placement {
        let rank_of = (0..shape.stages).map(|stage| {
            let (leg, position) = (stage / shape.ranks, stage % shape.ranks);
            match leg % 2 {
                0 => position,
                _ => shape.ranks - 1 - position,
            }
        });
        Placement::of_ranks(shape.ranks, rank_of.collect())
    }

    /// A placement of your own: the rank of every stage, below `ranks`.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`] names the stage.
    pub fn new(ranks: usize, rank_of: Vec<usize>) -> Result<Placement> {
        match rank_of.iter().position(|&rank| rank >= ranks) {
            Some(stage) => Err(Error::NoSuchRank { stage, rank: rank_of[stage], ranks }),
            None => Ok(Placement::of_ranks(ranks, rank_of)),
        }
    }

    fn of_ranks(ranks: usize, rank_of: Vec<usize>) -> Placement {
        let mut stages_of = vec![Vec::new(); ranks];
        for (stage, &rank) in rank_of.iter().enumerate() {
            stages_of[rank].push(stage);
        }
        Placement { rank_of, stages_of }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.stages_of.len()
    }

    /// The number of stages.
    pub fn stages(&self) -> usize {
        self.rank_of.len()
    }

    /// The rank that has a stage.
    ///
    /// # Panics
    /// When there is no such stage.
    pub fn rank_of(&self, stage: usize) -> usize {
        self.rank_of[stage]
    }

    /// The stages of a rank, in ascending order.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn stages_of(&self, rank: usize) -> &[usize] {
        &self.stages_of[rank]
    }
}
