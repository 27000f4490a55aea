//! Violations: errors in settings, with the values, their sources and the remedy.

use std::fmt;

use meshgrad_mesh::{Error, MAX_RANKS};

use super::degree::Parallelism;
use super::domains::EXPERT;
use super::order::{OrderError, Token};
use super::source::{Source, Sourced};
use super::text;

/// One error in settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A file or value cannot be read.
    #[error("{location}: {problem}")]
    Unreadable {
        /// The location.
        location: Source,
        /// What is wrong, and the remedy.
        problem: String,
    },

    /// A key is unknown.
    #[error("unknown key `{key}` ({location}){hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The location.
        location: Source,
        /// A similar key, or all keys.
        hint: String,
    },

    /// A degree is not a number.
    #[error("{name} is `{text}` ({location}): expected an integer of at least 1, or `auto`")]
    NotADegree {
        /// The degree.
        name: String,
        /// Its text.
        text: String,
        /// The location.
        location: Source,
    },

    /// A setting of another library is not supported.
    #[error("{what} ({location}) is not supported: {fix}")]
    Unsupported {
        /// The setting and its value.
        what: String,
        /// The location.
        location: Source,
        /// The remedy.
        fix: String,
    },

    /// A value is set twice, differently.
    #[error("{name} is {first} ({first_source}) and {second} ({second_source}): set it once")]
    Conflict {
        /// The setting.
        name: String,
        /// One value.
        first: String,
        /// Its source.
        first_source: Source,
        /// The other value.
        second: String,
        /// Its source.
        second_source: Source,
    },

    /// A number is 0.
    #[error("{name} is 0 ({location}): use at least 1, or leave it out")]
    Zero {
        /// The setting.
        name: String,
        /// The location.
        location: Source,
    },

    /// More than one degree is `auto`.
    #[error(
        "{first} is auto ({first_source}) and {second} is auto ({second_source}): only one degree \
         can be auto; set the other to a number"
    )]
    TwoAutos {
        /// One degree.
        first: Parallelism,
        /// Its source.
        first_source: Source,
        /// The other degree.
        second: Parallelism,
        /// Its source.
        second_source: Source,
    },

    /// An expert degree is `auto`.
    #[error(
        "{degree} is auto ({location}): it does not multiply to the world, so it cannot be \
         inferred; set it to a number"
    )]
    ExpertAuto {
        /// The degree.
        degree: Parallelism,
        /// The location.
        location: Source,
    },

    /// A degree is `auto`, but the world is not set.
    #[error(
        "{degree} is auto ({location}), but the world is not set: set the world, or set {degree} to \
         a number"
    )]
    AutoWithoutWorld {
        /// The degree.
        degree: Parallelism,
        /// The location.
        location: Source,
    },

    /// A degree is `auto`, but the world is not a multiple of the others.
    #[error(
        "{degree} is auto ({location}) and cannot be inferred: the world {world} is not a multiple \
         of {product}, the product of {degrees}; change one of them"
    )]
    AutoDoesNotDivide {
        /// The degree that is auto.
        degree: Parallelism,
        /// The location.
        location: Source,
        /// The other degrees.
        degrees: String,
        /// Their product.
        product: usize,
        /// The world.
        world: Sourced<usize>,
    },

    /// The degrees do not multiply to the world.
    #[error(
        "the world is {world} but the degrees multiply to {product}: {degrees}; {}",
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

    /// Too many ranks.
    #[error("{degrees} exceeds the limit of {MAX_RANKS} ranks")]
    TooManyRanks {
        /// The degrees, or the world.
        degrees: String,
    },

    /// ep x etp does not divide a stage.
    #[error(
        "ep {ep} x etp {etp} = {} does not divide the {stage} ranks of a pipeline stage (world \
         {world} / pp {pp}): ep x etp must be one of {}",
        .ep.value.saturating_mul(.etp.value), divisors(.stage)
    )]
    ExpertsDoNotDivide {
        /// The degree ep.
        ep: Sourced<usize>,
        /// The degree etp.
        etp: Sourced<usize>,
        /// The ranks per stage.
        stage: usize,
        /// The world.
        world: Sourced<usize>,
        /// The degree pp.
        pp: Sourced<usize>,
    },

    /// The order string is invalid.
    #[error("order `{order}` ({location}): {error}")]
    WrongOrder {
        /// The string.
        order: String,
        /// The location.
        location: Source,
        /// The error.
        error: OrderError,
    },

    /// The order lacks a token whose degree is not 1.
    #[error("{degree} is {size}, but the order ({location}) lacks `{token}`: add it")]
    NotInOrder {
        /// The missing token.
        token: Token,
        /// The degree.
        degree: Parallelism,
        /// Its size.
        size: Sourced<usize>,
        /// The location of the order.
        location: Source,
    },

    /// The order lacks `dp`, but experts have replicas.
    #[error("experts have {replicas} replicas, but the order ({location}) lacks `dp`: add it")]
    ExpertReplicasNotInOrder {
        /// The number of replicas.
        replicas: usize,
        /// The location of the order.
        location: Source,
    },

    /// An axis has different groups in two domains.
    #[error(
        "axis `{axis}` of rank 0 has ranks {} in domain {first} ({first_source}) but {} in domain \
         {second} ({second_source}); they must be equal: {}",
        text::ranks(.first_ranks), text::ranks(.second_ranks), shared_axis_fix(.second)
    )]
    SharedAxis {
        /// The axis.
        axis: String,
        /// One domain.
        first: String,
        /// The source of its declaration or order.
        first_source: Source,
        /// The group of rank 0 there.
        first_ranks: Vec<usize>,
        /// The other domain.
        second: String,
        /// The source of its declaration or order.
        second_source: Source,
        /// The group of rank 0 there.
        second_ranks: Vec<usize>,
    },

    /// A name is in use.
    #[error("`{name}` ({location}) is the name of {by}: rename it")]
    NameTaken {
        /// The name.
        name: String,
        /// The location of the declaration.
        location: Source,
        /// The owner of the name.
        by: String,
    },

    /// A declaration is invalid.
    #[error("{what} ({location}): {problem}")]
    InvalidDeclaration {
        /// What is declared.
        what: String,
        /// The location of the declaration.
        location: Source,
        /// What is wrong.
        problem: String,
    },

    /// Options are for an unknown group.
    #[error("options ({location}) are for an unknown group `{group}`{hint}")]
    UnknownOptionsGroup {
        /// The group.
        group: String,
        /// The location of the options.
        location: Source,
        /// A similar name, or all names.
        hint: String,
    },

    /// The mesh or the options are invalid.
    #[error("{what}: {error}")]
    Mesh {
        /// What is invalid.
        what: String,
        /// The error.
        error: Error,
    },
}

impl Violation {
    /// [`Violation::UnknownKey`] with a hint.
    pub(super) fn unknown_key<'a>(
        key: &str,
        location: Source,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Violation {
        let known: Vec<&str> = known.into_iter().collect();
        Violation::UnknownKey { key: key.to_owned(), location, hint: text::nearest(key, &known) }
    }
}

fn missing_factor(product: &usize, world: &usize) -> String {
    if world.is_multiple_of(*product) {
        let factor = world / product;
        return format!("a factor of {factor} is missing: set one degree to `auto`");
    }
    if product.is_multiple_of(*world) {
        return format!("that is {} times too many: lower a degree", product / world);
    }
    "change a degree so that they multiply to the world".to_owned()
}

fn divisors(stage: &usize) -> String {
    let divisors = (1..=*stage).filter(|divisor| stage.is_multiple_of(*divisor));
    let all: Vec<String> = divisors.map(|divisor| divisor.to_string()).collect();
    all.join(", ")
}

fn shared_axis_fix(second: &str) -> &'static str {
    match second {
        EXPERT => "use an order that ends with pp",
        _ => "move the axis in one domain, or rename it",
    }
}

/// All errors in settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(pub(super) Vec<Violation>);

impl Violations {
    /// The violations, at least one.
    pub fn all(&self) -> &[Violation] {
        &self.0
    }
}

impl std::error::Error for Violations {}

/// One line per violation.
impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(Violation::to_string).collect();
        match lines.as_slice() {
            [line] => f.write_str(line),
            lines => {
                write!(f, "{} errors in the settings:", lines.len())?;
                lines.iter().try_for_each(|line| write!(f, "\n  - {line}"))
            }
        }
    }
}
