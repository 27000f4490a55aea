//! Errors of the tape. They are defined here so that tensors, tape and models share one error type;
//! nothing in this crate returns them.

/// An error of the tape.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TapeError {
    /// A tracked operand of an op that is not differentiable.
    #[error(
        "{op} has no gradient, but an operand requires one; pass `Var::constant(x.value().clone())` \
         to stop the gradient there"
    )]
    NoBackward {
        /// The op.
        op: String,
    },

    /// A value of one tape was used while another tape, or none, is recording.
    #[error(
        "a value of shape {shape} belongs to tape {tape}, but {current}: inside `checkpoint` or \
         `local` pass it as an input; after recording use `x.value()`"
    )]
    OtherTape {
        /// The value's shape.
        shape: String,
        /// The tape of the value.
        tape: u64,
        /// What is recording.
        current: String,
    },

    /// A parameter that the body of `local` captured.
    #[error("the body of `local` uses parameter `{name}`; pass it as an operand")]
    Captured {
        /// The parameter.
        name: String,
    },

    /// A tensor saved for backward was overwritten before backward.
    #[error(
        "`{name}` was overwritten between forward and backward (version {saved} when saved, {now} now): \
         run backward before the optimizer step, or save a copy"
    )]
    Overwritten {
        /// The parameter's name, or the tensor's dtype and shape.
        name: String,
        /// The version when saved.
        saved: u64,
        /// The current version.
        now: u64,
    },

    /// A result of an op whose gradient depends on which rank has the maximum.
    #[error(
        "the gradient of {value} depends on all ranks: compute the maximum of a whole dim, or stop the \
         gradient with Var::constant"
    )]
    PartialMax {
        /// The value's dtype, shape and sharding.
        value: String,
    },

    /// A root of backward that depends on no parameter and no input.
    #[error("backward root of shape {shape} does not require a gradient")]
    NotTracked {
        /// The root's shape.
        shape: String,
    },

    /// A gradient whose shape or dtype differs from its value's.
    #[error(
        "the gradient is {actual}, but its value is {expected}; both must have the same dtype and \
         shape"
    )]
    GradientShape {
        /// The value's dtype and shape.
        expected: String,
        /// The gradient's dtype and shape.
        actual: String,
    },

    /// Parameters that no op used.
    #[error(
        "no op used {}: remove the parameter, freeze it by leaving it out of `Grads`, or declare it \
         optional",
        list(names)
    )]
    Untouched {
        /// Their names.
        names: Vec<String>,
    },

    /// Two parameters or buffers of a module with one name.
    #[error(
        "{first} and {second} are two parameters or buffers named `{name}`, of which a checkpoint would \
         store one: give each the path of its field (`ModulePath`), or put one `Param` in both to tie \
         them"
    )]
    SameName {
        /// The name.
        name: String,
        /// The first field.
        first: String,
        /// The second field.
        second: String,
    },

    /// A parameter without a value.
    #[error("parameter `{name}` has no value: call `materialize` or load a checkpoint first")]
    NotMaterialized {
        /// The parameter.
        name: String,
    },

    /// The value of a parameter of which each rank keeps some rows.
    #[error(
        "no rank has the value of `{name}`, whose rows are divided over ranks: use `Param::var`, which \
         gathers it on all of them, or `Param::home` for the rows of this rank"
    )]
    Divided {
        /// The parameter.
        name: String,
    },

    /// A parameter that gets a second home.
    #[error("`{name}` has a home already: give homes to a model once")]
    SecondHome {
        /// The parameter.
        name: String,
    },

    /// A backward pass after the gradients were reduced.
    #[error(
        "the gradients of these `Grads` are reduced: call `clear` before the next backward pass, and \
         `last_pass` only for the last one of a step"
    )]
    Reduced,

    /// A sharding that a parameter cannot have.
    #[error("`{name}` of shape {shape} cannot be sharded as {sharding}: {problem}")]
    ParamSharding {
        /// The parameter.
        name: String,
        /// Its shape.
        shape: String,
        /// The sharding and its shape.
        sharding: String,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// A parameter that these `Grads` do not hold.
    #[error(
        "there is no gradient of `{name}`: add the parameter to the list that these `Grads` were \
         created with"
    )]
    NoGradient {
        /// The parameter.
        name: String,
    },

    /// A value whose shape or dtype differs from its parameter's.
    #[error(
        "parameter `{name}` is {expected}, but the new value is {actual}; cast or reshape it first"
    )]
    ParamValue {
        /// The parameter.
        name: String,
        /// Its dtype and shape.
        expected: String,
        /// The dtype and shape of the value.
        actual: String,
    },

    /// A flat buffer that does not fit its parameters.
    #[error(
        "the flat buffer has {actual} elements, but the gradients of these parameters need {expected} \
         of {dtype}"
    )]
    FlatBuffer {
        /// Elements of all parameters together.
        expected: usize,
        /// Their gradients' dtype.
        dtype: String,
        /// Elements of the buffer.
        actual: usize,
    },

    /// A gradient that disagrees with finite differences.
    #[error(
        "the gradient of element {index} of input {input} is {backward:e}, but finite differences give \
         {difference:e} (tolerance {tolerance:e})"
    )]
    GradientCheck {
        /// The input's position.
        input: usize,
        /// The element, in row-major order.
        index: usize,
        /// The result of backward.
        backward: f64,
        /// The central difference.
        difference: f64,
        /// The allowed distance.
        tolerance: f64,
    },
}

fn list(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
