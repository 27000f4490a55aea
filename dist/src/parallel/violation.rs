//! What can be wrong with settings: each names the values, where they came from, and the way out.

use std::fmt;

use meshgrad_mesh::{MAX_RANKS, MeshError};

use super::degree::Parallelism;
use super::domains::EXPERT;
use super::order::{OrderError, Token};
use super::source::{Source, Sourced};
use super::text;

/// One thing that is wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A file or text that cannot be read at all.
    #[error("{location}: {problem}")]
    Unreadable {
        /// Where it is.
        location: Source,
        /// What is wrong, and the way out.
        problem: String,
    },

    /// A key that means nothing.
    #[error("`{key}` ({location}) is no setting{hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it is.
        location: Source,
        /// A key that is near, or all.
        hint: String,
    },

    /// A degree that is no number.
    #[error("{name} is `{text}` ({location}): a degree is a whole number of at least 1, or `auto`")]
    NotADegree {
        /// The degree.
        name: String,
        /// What was given for it.
        text: String,
        /// Where it is.
        location: Source,
    },

    /// A setting of another library that means nothing here.
    #[error("{what} ({location}) is not supported: {fix}")]
    Unsupported {
        /// The setting and its value.
        what: String,
        /// Where it is.
        location: Source,
        /// The way out.
        fix: String,
    },

    /// A value that was set twice, differently.
    #[error("{name} is {first} ({first_source}) and {second} ({second_source}): set it once")]
    Conflict {
        /// What was set.
        name: String,
        /// One value.
        first: String,
        /// Where it came from.
        first_source: Source,
        /// The other value.
        second: String,
        /// Where that came from.
        second_source: Source,
    },

    /// A number that is 0.
    #[error("{name} is 0 ({location}): it is at least 1; leave it out where it does not matter")]
    Zero {
        /// What was set.
        name: String,
        /// Where.
        location: Source,
    },

    /// More than one degree that is to be found out.
    #[error(
        "{first} is auto ({first_source}) and {second} is auto ({second_source}): only one degree \
         can be; give the other a number"
    )]
    TwoAutos {
        /// One degree.
        first: Parallelism,
        /// Where it was set.
        first_source: Source,
        /// The other.
        second: Parallelism,
        /// Where that was set.
        second_source: Source,
    },

    /// A degree of experts that is to be found out.
    #[error(
        "{degree} is auto ({location}): {degree} does not multiply to the world but regroups its \
         ranks, so it needs a number"
    )]
    ExpertAuto {
        /// The degree.
        degree: Parallelism,
        /// Where it was set.
        location: Source,
    },

    /// A degree that is to be found out from a world that is not known.
    #[error(
        "{degree} is auto ({location}): it follows from the world, which is not set; set the world, \
         or give {degree} a number"
    )]
    AutoWithoutWorld {
        /// The degree.
        degree: Parallelism,
        /// Where it was set.
        location: Source,
    },

    /// A world that is no multiple of the degrees.
    #[error(
        "{degree} is auto ({location}) and cannot be found out: the world {world} is no multiple of \
         {product}, the product of {degrees}; change one of them"
    )]
    AutoDoesNotDivide {
        /// The degree that is auto.
        degree: Parallelism,
        /// Where it was set.
        location: Source,
        /// The others.
        degrees: String,
        /// Their product.
        product: usize,
        /// The world.
        world: Sourced<usize>,
    },

    /// Degrees that do not multiply to the world.
    #[error(
        "the world is {world} and the degrees multiply to {product}: {degrees}; {}",
        missing_factor(.product, &.world.value)
    )]
    WrongWorld {
        /// The degrees.
        degrees: String,
        /// Their product.
        product: usize,
        /// The world.
        world: Sourced<usize>,
    },

    /// More ranks than can be.
    #[error("{degrees}: more than {MAX_RANKS} ranks, the most that a mesh can have")]
    TooManyRanks {
        /// The degrees, or the world.
        degrees: String,
    },

    /// Experts that do not fill a stage.
    #[error(
        "ep {ep} x etp {etp} = {} does not divide the {stage} ranks of a pipeline stage (world \
         {world} / pp {pp}): ep x etp must be one of {}",
        .ep.value.saturating_mul(.etp.value), divisors(.stage)
    )]
    ExpertsDoNotDivide {
        /// Experts apart.
        ep: Sourced<usize>,
        /// Shards of an expert.
        etp: Sourced<usize>,
        /// Ranks of a stage.
        stage: usize,
        /// The world.
        world: Sourced<usize>,
        /// Stages.
        pp: Sourced<usize>,
    },

    /// An order string that means nothing.
    #[error("order `{order}` ({location}): {error}")]
    WrongOrder {
        /// The string.
        order: String,
        /// Where it is.
        location: Source,
        /// What is wrong with it.
        error: OrderError,
    },

    /// A degree whose place among the others is not said.
    #[error(
        "{degree} is {size} and the order ({location}) lacks `{token}`: add it where it belongs"
    )]
    NotInOrder {
        /// What the order lacks.
        token: Token,
        /// The degree.
        degree: Parallelism,
        /// Its size.
        size: Sourced<usize>,
        /// Where the order is.
        location: Source,
    },

    /// Replicas of experts whose place among the others is not said.
    #[error("experts have {replicas} replicas and the order ({location}) lacks `dp`: add it")]
    ExpertReplicasNotInOrder {
        /// How many.
        replicas: usize,
        /// Where the order is.
        location: Source,
    },

    /// An axis that is not the same ranks in two domains.
    #[error(
        "axis `{axis}` of rank 0 is {} in domain {first} ({first_source}) and {} in domain \
         {second} ({second_source}): an axis is the same ranks in every domain that has it; {}",
        text::ranks(.first_ranks), text::ranks(.second_ranks), same_place(.second)
    )]
    SharedAxis {
        /// The axis.
        axis: String,
        /// One domain.
        first: String,
        /// Who declared it, or its order.
        first_source: Source,
        /// The group of rank 0 there.
        first_ranks: Vec<usize>,
        /// The other domain.
        second: String,
        /// Who declared it, or its order.
        second_source: Source,
        /// The group of rank 0 there.
        second_ranks: Vec<usize>,
    },

    /// A name that something has already.
    #[error("`{name}` ({location}) is {by} already: give it another name")]
    NameTaken {
        /// The name.
        name: String,
        /// Where it was to be declared.
        location: Source,
        /// What has it.
        by: String,
    },

    /// A view or pick that means nothing.
    #[error("{what} ({location}): {problem}")]
    InvalidDeclaration {
        /// Which.
        what: String,
        /// Where it was declared.
        location: Source,
        /// What is wrong with it.
        problem: String,
    },

    /// Options of a group that there is not.
    #[error("options ({location}) are for group `{group}`, which there is not{hint}")]
    UnknownOptionsGroup {
        /// The group.
        group: String,
        /// Where its options are.
        location: Source,
        /// Near names, or all.
        hint: String,
    },

    /// Axes that make no mesh.
    #[error("{what}: {error}")]
    Mesh {
        /// Whose axes.
        what: String,
        /// What is wrong with them.
        error: MeshError,
    },
}

impl Violation {
    /// [`Violation::UnknownKey`], with a hint at the keys that there are.
    pub(super) fn unknown_key<'a>(
        key: &str,
        location: Source,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Violation {
        let known: Vec<&str> = known.into_iter().collect();
        Violation::UnknownKey {
            key: key.to_owned(),
            location,
            hint: text::nearest(key, &known),
        }
    }
}

fn missing_factor(product: &usize, world: &usize) -> String {
    if world.is_multiple_of(*product) {
        let factor = world / product;
        return format!("a factor of {factor} is missing: set one degree to `auto`");
    }
    if product.is_multiple_of(*world) {
        return format!(
            "that is {} times too many: lower one degree",
            product / world
        );
    }
    "change degrees so that they multiply to the world".to_owned()
}

fn divisors(stage: &usize) -> String {
    let divisors = (1..=*stage).filter(|divisor| stage.is_multiple_of(*divisor));
    let all: Vec<String> = divisors.map(|divisor| divisor.to_string()).collect();
    all.join(", ")
}

fn same_place(second: &str) -> &'static str {
    match second {
        EXPERT => "let the order end with pp",
        _ => "declare it at the same location, or call it something else",
    }
}

/// All that is wrong with settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(pub(super) Vec<Violation>);

impl Violations {
    /// Each of them; there is at least one.
    pub fn all(&self) -> &[Violation] {
        &self.0
    }
}

impl std::error::Error for Violations {}

/// One line each.
impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Violation::to_string).collect();
        match lines.as_slice() {
            [line] => f.write_str(line),
            lines => {
                write!(f, "{} things are wrong:", lines.len())?;
                lines.iter().try_for_each(|line| write!(f, "\n  - {line}"))
            }
        }
    }
}
