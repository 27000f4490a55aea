//! Errors of homes.

use meshgrad_runtime::{Error, ErrorKind};

/// A home that does not fit its parameters or their gradients.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HomeError {
    /// A mesh axis that is named twice.
    #[error(
        "axis `{axis}` is named twice by the home of unit `{unit}`; name it in `shard` or in `replicate`"
    )]
    AxisTwice {
        /// The unit.
        unit: String,
        /// The axis.
        axis: String,
    },

    /// A parameter that an axis of its home shards already.
    #[error(
        "axis `{axis}` shards `{name}` ({sharding}), so the home of unit `{unit}` cannot divide or copy its \
         rows over it; leave the axis out of the home, or out of the plan"
    )]
    AxisInUse {
        /// The unit.
        unit: String,
        /// The axis.
        axis: String,
        /// The parameter.
        name: String,
        /// Its sharding.
        sharding: String,
    },

    /// A parameter on another mesh.
    #[error("`{name}` is on mesh {actual}, and its home on mesh {expected}; use one mesh for both")]
    OtherMesh {
        /// The parameter.
        name: String,
        /// The mesh of the homes.
        expected: String,
        /// The mesh of the parameter.
        actual: String,
    },

    /// A module that several stages of a pipeline have, without stages.
    #[error(
        "a unit is tied between stages of a pipeline, but these homes have no stages; create them by \
         `Homes::of_stage`"
    )]
    NoStages,

    /// A stage that the pipeline does not have.
    #[error(
        "the unit `{unit}` is tied to stage {stage}, but there are {count} stages, from 0; name stages \
         of the pipeline"
    )]
    NoStage {
        /// The unit.
        unit: String,
        /// The stage.
        stage: usize,
        /// The number of stages.
        count: usize,
    },

    /// A unit that no parameter belongs to.
    #[error("no parameter is in a module named `{pattern}`{}", hint(.nearest))]
    NoModule {
        /// The unit's name.
        pattern: String,
        /// The most similar name of a module.
        nearest: Option<String>,
    },

    /// A pattern that is not one.
    #[error("`{pattern}` is not a pattern of module names: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },

    /// Rows that were written while they were gathered.
    #[error(
        "the unit of `{name}` is gathered, and its rows were written since; call `Param::rows_written` for \
         parameters whose rows you write, on all ranks"
    )]
    Outdated {
        /// The first parameter of the unit.
        name: String,
    },

    /// A gradient that is the same on ranks that were expected to have parts of it.
    #[error(
        "the gradient of `{name}` is {sharding}, but its home sums it over axis `{axis}`: shard the batch over \
         that axis, or leave it out of the home"
    )]
    NotPartial {
        /// The parameter.
        name: String,
        /// The gradient's sharding.
        sharding: String,
        /// The axis.
        axis: String,
    },
}

fn hint(nearest: &Option<String>) -> String {
    let nearest = nearest.as_ref();
    nearest.map_or(String::new(), |name| format!("; did you mean `{name}`?"))
}

impl From<HomeError> for Error {
    fn from(error: HomeError) -> Error {
        Error::with_details(ErrorKind::Invalid, error)
    }
}
