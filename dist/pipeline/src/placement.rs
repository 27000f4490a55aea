//! Which rank has which stage.

use meshgrad_error::{Result, bail, ensure};

/// The most pairs of a stage and a microbatch: far more than any run has, and small enough that a
/// typing error does not exhaust the memory.
pub const MAX_PAIRS: usize = 1 << 20;

/// The most stages, of all ranks together.
pub const MAX_STAGES: usize = 1 << 12;

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
    /// When a number is 0 or a rank would have no stage, and above [`MAX_STAGES`] or [`MAX_PAIRS`].
    pub fn new(ranks: usize, stages: usize, microbatches: usize) -> Result<Shape> {
        for (what, number) in [("ranks", ranks), ("stages", stages), ("microbatches", microbatches)]
        {
            ensure!(number > 0, Invalid, "the number of {what} is 0: use at least 1");
        }
        ensure!(
            stages >= ranks,
            Invalid,
            "{stages} stages do not fill {ranks} ranks: every rank needs at least one stage"
        );
        let pairs = stages.checked_mul(microbatches);
        ensure!(
            stages <= MAX_STAGES && pairs.is_some_and(|it| it <= MAX_PAIRS),
            Invalid,
            "{stages} stages x {microbatches} microbatches exceed the limit of {MAX_STAGES} stages \
             and {MAX_PAIRS} pairs of a stage and a microbatch"
        );
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
    /// When a stage is on a rank that does not exist.
    pub fn new(ranks: usize, rank_of: Vec<usize>) -> Result<Placement> {
        if let Some(stage) = rank_of.iter().position(|&rank| rank >= ranks) {
            bail!(
                Invalid,
                "stage {stage} is on rank {}, but the ranks are 0 to {}",
                rank_of[stage],
                ranks.saturating_sub(1)
            );
        }
        Ok(Placement::of_ranks(ranks, rank_of))
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
