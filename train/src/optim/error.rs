//! Errors of optimizers.

use std::ops::Range;

use meshgrad_runtime::{DType, Shape};

/// An invalid configuration of an optimizer, or parts that do not match it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OptimError {
    /// A constant outside of its range.
    #[error("{optimizer}: {name} is {value}, but must be {allowed}")]
    Constant {
        /// The optimizer.
        optimizer: &'static str,
        /// The constant.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The allowed values.
        allowed: &'static str,
    },

    /// An optimizer's state has a name that is taken, or that a folder cannot have.
    #[error(
        "the optimizer `{optimizer}` cannot have a state named `{name}`: give each state a name of \
         its own, of letters, digits, `_` and `-`, other than `ema` and `buffers`"
    )]
    StateName {
        /// The optimizer.
        optimizer: String,
        /// The name.
        name: String,
    },

    /// Rows whose elements are several boxes of the whole parameter, in another order.
    #[error(
        "{optimizer} cannot round `{name}` stochastically, because its sharding divides a dim into several \
         ranges per rank; shard the dim in one range, or round to nearest"
    )]
    ScatteredRows {
        /// The optimizer.
        optimizer: &'static str,
        /// The parameter.
        name: String,
    },

    /// A name pattern that cannot be parsed.
    #[error("pattern `{pattern}` is invalid: {message}; use `*` and `?`, as in `*.norm*`")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        message: String,
    },

    /// A name pattern that matches no parameter.
    #[error("pattern `{pattern}` matches no parameter; the most similar name is `{example}`")]
    Unmatched {
        /// The pattern.
        pattern: String,
        /// The parameter with the most similar name.
        example: String,
    },

    /// A name pattern that never applies, because an earlier one matches the same parameters.
    #[error(
        "pattern `{pattern}` never applies: earlier patterns match all of its parameters, such as \
         `{example}`; move it before them"
    )]
    Shadowed {
        /// The pattern.
        pattern: String,
        /// A parameter that it matches.
        example: String,
    },

    /// A part whose value does not match its rows.
    #[error(
        "part of `{name}`: rows {}..{} of a parameter of shape {global} need {expected} elements \
         in a contiguous tensor, but the value has shape {actual}", rows.start, rows.end
    )]
    Rows {
        /// The parameter.
        name: String,
        /// The requested rows.
        rows: Range<usize>,
        /// The shape of the parameter.
        global: Shape,
        /// The elements of these rows.
        expected: usize,
        /// The shape of the value.
        actual: Shape,
    },

    /// Rows that a parameter does not have.
    #[error(
        "part of `{name}`: rows {}..{} are outside of the {count} rows of shape {global}",
        rows.start, rows.end
    )]
    NoRows {
        /// The parameter.
        name: String,
        /// The requested rows.
        rows: Range<usize>,
        /// The rows of the parameter.
        count: usize,
        /// The shape of the parameter.
        global: Shape,
    },

    /// A part of a matrix, for an optimizer that needs whole matrices.
    #[error(
        "`{name}`: rows {}..{} split a matrix of {matrix} rows, but {optimizer} needs whole \
         matrices", rows.start, rows.end
    )]
    SplitMatrix {
        /// The optimizer.
        optimizer: &'static str,
        /// The parameter.
        name: String,
        /// Its rows.
        rows: Range<usize>,
        /// Rows of one matrix.
        matrix: usize,
    },

    /// A dtype that the state cannot have.
    #[error(
        "{optimizer}: state of `{name}` ({param}) cannot be {state}; use f32 or bf16 state with \
             f32 or bf16 parameters"
    )]
    StateDType {
        /// The optimizer.
        optimizer: &'static str,
        /// The parameter.
        name: String,
        /// Its dtype.
        param: DType,
        /// The requested dtype.
        state: DType,
    },

    /// Stochastic rounding without a bf16 parameter to round.
    #[error(
        "stochastic rounding has no effect, because AdamW updates no bf16 parameter: `{name}` is \
         {param}; use rounding nearest, or parameters in bf16"
    )]
    Rounding {
        /// A parameter that AdamW updates.
        name: String,
        /// Its dtype.
        param: DType,
    },

    /// The number of parts differs from that at construction.
    #[error(
        "the averages were constructed for {expected} part(s), but now there are {actual}; pass the \
         same parts"
    )]
    Count {
        /// Parts at construction.
        expected: usize,
        /// Parts now.
        actual: usize,
    },

    /// A dtype that Muon cannot multiply in.
    #[error("muon: products cannot be {dtype}; use bf16 or f32")]
    ProductDType {
        /// The dtype.
        dtype: DType,
    },

    /// The number of parts or gradients of a step differs from that at construction.
    #[error(
        "the optimizer was constructed with {expected} part(s), but the step has {parts} part(s) and \
         {gradients} gradient(s)"
    )]
    Parts {
        /// Parts at construction.
        expected: usize,
        /// Parts of the step.
        parts: usize,
        /// Gradients of the step.
        gradients: usize,
    },

    /// A gradient of a different shape than its part.
    #[error("the gradient of `{name}` has shape {gradient}, but the value has shape {value}")]
    Gradient {
        /// The parameter.
        name: String,
        /// The shape of the gradient.
        gradient: Shape,
        /// The shape of the part's value.
        value: Shape,
    },

    /// A step whose parts differ from those at construction.
    #[error(
        "a part was {expected} at construction, but is now {actual}; construct a new optimizer"
    )]
    Changed {
        /// Name, dtype, shape and rows at construction.
        expected: String,
        /// Name, dtype, shape and rows of the step.
        actual: String,
    },
}
