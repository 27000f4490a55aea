//! Homes of parameters whose rows are divided over ranks. How ranks communicate is up to the
//! implementation.

use std::sync::Arc;

use meshgrad_runtime::{DType, Result, Tensor};

use crate::KeptRows;
use crate::spec::ParamId;

/// The home of a parameter: this rank keeps some rows of its part of the parameter's sharding, and
/// gathers all of them to compute.
///
/// All ranks that share the rows make the same calls in the same order.
pub trait Home: Send + Sync {
    /// The value in `dtype`: this rank's part of the parameter's sharding, with all rows.
    ///
    /// # Errors
    /// Errors of the communication; when memory runs out.
    fn gather(&self, dtype: DType) -> Result<Tensor>;

    /// The rows that this rank keeps.
    fn kept(&self) -> &KeptRows;

    /// Their value: [rows, elements of a row], contiguous, without a sharding, of
    /// [`Kind::Parameter`](meshgrad_runtime::Kind::Parameter).
    fn value(&self) -> &Tensor;

    /// The unit that the parameter belongs to.
    fn unit(&self) -> Arc<dyn HomeUnit>;
}

/// Parameters whose values are gathered together, and whose gradients are reduced together.
pub trait HomeUnit: Send + Sync {
    /// A number that no other unit of this process has.
    fn id(&self) -> u64;

    /// Empty gradients of some parameters of the unit, for one [`Grads`](crate::Grads).
    ///
    /// # Errors
    /// When memory runs out.
    fn gradients(&self, params: &[ParamId]) -> Result<Box<dyn HomeGradients>>;

    /// Frees gathered values, because rows have new ones, here or on another rank, or to save memory.
    fn free(&self);

    /// Ends a pass over the model. Values that are gathered ahead of their use are freed.
    fn end_pass(&self);

    /// The sum of the values of `x` on all ranks that share in the model's parameters.
    ///
    /// # Errors
    /// Errors of the communication.
    fn sum(&self, x: &Tensor) -> Result<Tensor>;
}

/// The gradients of parameters of one unit. Parameters are given by their positions in the list of
/// [`HomeUnit::gradients`].
pub trait HomeGradients: Send {
    /// A buffer for the gradient of all rows of parameter `at`: the local shape of its sharding, in
    /// the gradient's dtype. Its values are undefined if it was just allocated.
    ///
    /// # Errors
    /// When memory runs out.
    fn buffer(&mut self, at: usize) -> Result<Tensor>;

    /// Whether [`HomeGradients::reduce`] should be called after each backward pass, and not only
    /// after the last.
    fn reduces_each_pass(&self) -> bool;

    /// Adds the gradients of this rank to those of the others, and does not wait for them. One per
    /// parameter, in the buffers of [`HomeGradients::buffer`]; `None` where nothing was added.
    /// `is_last` states that no further pass is expected; if one follows, this is called again.
    ///
    /// # Errors
    /// For a gradient that is not a partial sum over the ranks; errors of the communication.
    fn reduce(&mut self, whole: Vec<Option<Tensor>>, is_last: bool) -> Result<()>;

    /// Ends a backward pass: none of the unit's gradients follow in it.
    fn end_pass(&mut self);

    /// Waits for the first collective of the reduction that was started last, if there is one, and
    /// starts the next.
    ///
    /// # Errors
    /// Errors of the communication.
    fn advance(&mut self) -> Result<()>;

    /// Waits for all reductions, after the last pass. Returns the gradients of the rows that this
    /// rank keeps, in the shape of [`Home::value`].
    ///
    /// # Errors
    /// Errors of the communication.
    fn finish(&mut self) -> Result<Vec<Tensor>>;

    /// Forgets all gradients.
    fn clear(&mut self);

    /// The buffers that are kept from one step to the next.
    fn buffers(&self) -> Vec<Tensor>;
}
