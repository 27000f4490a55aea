//! Combinations of degrees and options, drawn by a number.

use std::fmt;

use meshgrad_train::config::{Config, NoTables};

/// What a run combines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Combination {
    pub(crate) model: Kind,
    /// Names of `[parallel]` and their values, without those of 1.
    pub(crate) degrees: Vec<(&'static str, usize)>,
    pub(crate) zero1: bool,
    pub(crate) schedule: Option<&'static str>,
    pub(crate) ring: bool,
    pub(crate) sequence_parallel: bool,
    pub(crate) loss_parallel: bool,
    pub(crate) all_to_all: bool,
    pub(crate) bf16: bool,
    pub(crate) checkpointing: bool,
    pub(crate) documents: bool,
    /// Whether the slots of experts are too few in each step, at first.
    pub(crate) overflows: bool,
    /// Whether it trains two steps instead of five.
    pub(crate) short: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Experts,
    Dense,
    Tied,
}

/// Degrees that multiply.
const MULTIPLYING: [&str; 7] =
    ["pp", "dp_replicate", "dp_shard", "cp_shard", "cp_replicate", "sp", "tp"];

impl Combination {
    pub(crate) fn degree(&self, name: &str) -> usize {
        let degree = self.degrees.iter().find(|(other, _)| *other == name);
        degree.map_or(1, |(_, degree)| *degree)
    }

    pub(crate) fn with(mut self, name: &'static str, degree: usize) -> Combination {
        self.degrees.push((name, degree));
        self
    }

    pub(crate) fn ranks(&self) -> usize {
        MULTIPLYING.iter().map(|name| self.degree(name)).product()
    }

    /// The ranks that divide each sequence by head and tail.
    pub(crate) fn context(&self) -> usize {
        self.degree("cp_shard") * self.degree("cp_replicate")
    }

    /// The ranks with different sequences.
    pub(crate) fn replicas(&self) -> usize {
        self.degree("dp_replicate") * self.degree("dp_shard")
    }

    /// The smallest number of tokens, at least 12, that the ranks of a sequence divide.
    pub(crate) fn tokens(&self) -> usize {
        let halves = if self.context() > 1 { 2 } else { 1 };
        let parts = halves * self.context() * self.degree("sp") * self.degree("tp");
        12usize.next_multiple_of(parts)
    }

    pub(crate) fn steps(&self) -> u64 {
        if self.short { 2 } else { 5 }
    }

    /// How many of the degrees are above one.
    pub(crate) fn dimensions(&self) -> usize {
        MULTIPLYING.iter().filter(|name| self.degree(name) > 1).count()
            + usize::from(self.degree("ep") > 1)
    }

    pub(crate) fn microbatches(&self) -> usize {
        match self.degree("pp") {
            1 => 2,
            ranks => 2 * ranks,
        }
    }

    pub(crate) fn config(&self) -> Config {
        let mut sets: Vec<String> =
            self.degrees.iter().map(|(name, degree)| format!("parallel.{name}={degree}")).collect();
        let rows = self.replicas();
        sets.extend([
            format!("train.batch_size={}", rows * self.microbatches()),
            format!("train.micro_batch_size={rows}"),
            format!("train.seq_len={}", self.tokens()),
            format!("train.activation_checkpointing={}", self.checkpointing),
            format!("train.dtype={}", if self.bf16 { "bf16" } else { "f32" }),
            format!("parallel.home={}", if self.zero1 { "zero1" } else { "fsdp" }),
            format!("parallel.attention={}", if self.ring { "ring" } else { "gather" }),
            format!("parallel.sequence_parallel={}", self.sequence_parallel),
            format!("parallel.loss_parallel={}", self.loss_parallel),
            // A large eps, so that tiny gradients do not become large updates.
            "optimizer.eps=1e-3".to_owned(),
            "optimizer.learning_rate=1e-2".to_owned(),
            "optimizer.skip_nonfinite=true".to_owned(),
        ]);
        if let Some(schedule) = self.schedule {
            sets.push(format!("pipeline.schedule={schedule}"));
        }
        let sets: Vec<_> = sets.iter().map(|set| set.parse().unwrap()).collect();
        Config::parse::<NoTables>("", "the test", &sets).unwrap()
    }

    /// The combination with the number `number`, on at most `most` ranks. It may be one that is refused.
    pub(crate) fn drawn(number: u64, most: usize) -> Combination {
        let mut random = Random(number);
        let mut drawn = Combination {
            model: random.of(&[Kind::Experts, Kind::Experts, Kind::Dense, Kind::Tied]),
            ..Combination::default()
        };
        let mut names = MULTIPLYING.to_vec();
        while !names.is_empty() {
            let name = names.swap_remove(random.below(names.len()));
            let degree = random.of(&[1, 2, 2, 2, 3, 4]);
            if degree > 1 && drawn.ranks() * degree <= most {
                drawn = drawn.with(name, degree);
            }
        }
        if drawn.model == Kind::Experts {
            let degree = random.of(&[1, 2, 3, 4, 6, 8]);
            drawn = if degree > 1 { drawn.with("ep", degree) } else { drawn };
            let degree = random.of(&[1, 1, 1, 2]);
            drawn = if degree > 1 { drawn.with("etp", degree) } else { drawn };
        }
        if drawn.degree("pp") > 1 {
            let named = ["gpipe", "1f1b", "zb1p", "interleaved", "zbv", "dual_pipe_v"];
            drawn.schedule = Some(random.of(&named));
        }
        let has_experts = drawn.degree("ep") > 1;
        Combination {
            zero1: random.chance(3),
            ring: random.chance(2),
            sequence_parallel: random.chance(2),
            loss_parallel: random.chance(2),
            all_to_all: random.chance(2),
            bf16: random.chance(5),
            checkpointing: random.chance(2),
            documents: random.chance(2),
            overflows: has_experts && random.chance(3),
            ..drawn
        }
        .consistent()
    }

    /// Without what has no meaning in it.
    fn consistent(mut self) -> Combination {
        self.ring &= self.context() > 1;
        self.sequence_parallel &= self.degree("tp") > 1;
        self.loss_parallel &= self.degree("tp") > 1;
        self.all_to_all |= self.overflows;
        self
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {} ranks:", self.model, self.ranks())?;
        for (name, degree) in &self.degrees {
            write!(f, " {name} {degree}")?;
        }
        if let Some(schedule) = self.schedule {
            write!(f, ", {schedule}")?;
        }
        let options = [
            (self.zero1, "zero1"),
            (self.ring, "ring"),
            (self.sequence_parallel, "sequence_parallel"),
            (self.loss_parallel, "loss_parallel"),
            (self.all_to_all, "all_to_all"),
            (self.bf16, "bf16"),
            (self.checkpointing, "checkpointing"),
            (self.documents, "documents"),
            (self.overflows, "overflows"),
        ];
        for (_, option) in options.iter().filter(|(is_set, _)| *is_set) {
            write!(f, ", {option}")?;
        }
        Ok(())
    }
}

/// SplitMix64 (Steele, Lea & Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 33) as usize % bound
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// One in `many`.
    fn chance(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}
