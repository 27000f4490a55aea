//! What can go wrong on the tape.

use meshgrad_runtime::{DType, Error as RuntimeError, Shape, Tensor};

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the tape.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An op failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),

    /// A tracked value went into an op that cannot be differentiated.
    #[error(
        "{op} has no backward, but its operand is tracked: pass `x.value()` wrapped by \
         `Var::constant` if its gradient shall stop here"
    )]
    NoBackward {
        /// The op.
        op: String,
    },

    /// A value of one tape was used where another tape, or none, records.
    #[error(
        "a value of shape {shape} belongs to tape {theirs}, but {ours}: inside `checkpoint` pass it \
         as an input; after recording use `x.value()`"
    )]
    OtherTape {
        /// The value's shape.
        shape: Shape,
        /// The tape that made the value.
        theirs: u64,
        /// What records now.
        ours: String,
    },

    /// Something kept for backward was overwritten before backward.
    #[error(
        "`{name}` was overwritten between forward and backward (version {saved} then, {now} now): \
         run backward before the optimizer step, or keep a copy"
    )]
    Overwritten {
        /// The parameter's name, or the tensor's dtype and shape.
        name: String,
        /// The version that was kept.
        saved: u64,
        /// The version found.
        now: u64,
    },

    /// A root of backward that depends on no parameter and no input.
    #[error("backward from a value of shape {shape} that no tracked value went into")]
    NotTracked {
        /// The root's shape.
        shape: Shape,
    },

    /// A gradient of another shape or dtype than its value.
    #[error("the gradient of {wanted} was given as {given}")]
    GradientShape {
        /// The value's dtype and shape.
        wanted: String,
        /// The gradient's dtype and shape.
        given: String,
    },

    /// Parameters that no op touched.
    #[error(
        "no op used {}: remove the parameter, freeze it by leaving it out of `Grads`, or declare it \
         optional",
        list(names)
    )]
    Untouched {
        /// Their names.
        names: Vec<String>,
    },

    /// A parameter whose value is not there yet.
    #[error("parameter `{name}` has no value: call `materialize` or load a checkpoint first")]
    NotMaterialized {
        /// The parameter.
        name: String,
    },

    /// A parameter that [`Grads`](crate::Grads) does not hold.
    #[error("`{name}` is not among the parameters that these gradients were made for")]
    NoGradient {
        /// The parameter.
        name: String,
    },

    /// A value of another shape or dtype than its parameter.
    #[error("`{name}` is {wanted} but was given {given}")]
    ParamValue {
        /// The parameter.
        name: String,
        /// Its dtype and shape.
        wanted: String,
        /// The dtype and shape given.
        given: String,
    },

    /// A flat buffer that does not fit its parameters.
    #[error(
        "a flat gradient buffer for these parameters needs {wanted} elements of {dtype} but has {given}"
    )]
    FlatBuffer {
        /// Elements of all parameters together.
        wanted: usize,
        /// Their gradients' dtype.
        dtype: DType,
        /// Elements that the buffer has.
        given: usize,
    },

    /// A gradient that does not agree with finite differences.
    #[error(
        "gradient {index} of input {input} is {backward:e} but finite differences say \
         {difference:e} (allowed: {tolerance:e})"
    )]
    GradientCheck {
        /// Which input.
        input: usize,
        /// Which element of it, in row-major order.
        index: usize,
        /// What backward computed.
        backward: f64,
        /// What the central difference is.
        difference: f64,
        /// How far they may lie apart.
        tolerance: f64,
    },
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

pub(crate) fn gradient_shape(wanted: &Shape, wanted_dtype: DType, given: &Tensor) -> Error {
    Error::GradientShape {
        wanted: format!("{wanted_dtype}{wanted}"),
        given: format!("{}{}", given.dtype(), given.shape()),
    }
}
