//! Homes of parameters whose rows are divided over ranks. How ranks communicate is up to the
//! implementation.

use std::ops::Range;
use std::sync::Arc;

use meshgrad_runtime::{DType, Result, Shape, Tensor, ops};

use crate::spec::ParamId;

/// The home of a parameter: this rank keeps some rows of its part of the parameter's sharding, and
/// gathers all of them to compute. A row has one index of every dim but the last; a parameter with
/// fewer than two dims is one row.
///
/// All ranks that share the rows make the same calls in the same order.
pub trait Home: Send + Sync {
    /// The value in `dtype`: this rank's part of the parameter's sharding, with all rows.
    ///
    /// # Errors
    /// Errors of the communication; when memory runs out.
    fn gather(&self, dtype: DType) -> Result<Tensor>;

    /// The rows that this rank keeps.
    fn rows(&self) -> Range<usize>;

    /// Their value: [rows, elements of a row], contiguous, without a sharding, of
    /// [`Kind::Parameter`](meshgrad_runtime::Kind::Parameter).
    fn value(&self) -> &Tensor;

    /// Whether this rank is the first of those that keep the same rows. Over all ranks, the rows of
    /// the first copies are the parameter.
    fn is_first_copy(&self) -> bool;

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
    /// `is_last` states that no further pass follows.
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

/// The number of rows of a tensor of this shape.
pub fn row_count(shape: &[usize]) -> usize {
    let outer = shape.split_last().map(|(_, outer)| outer);
    outer.map_or(1, |outer| outer.iter().product())
}

/// The number of elements of a row of a tensor of this shape.
pub fn row_elements(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// The rows `rows` of the part `x` of a parameter, as [rows, elements of a row], without a copy if
/// `x` is contiguous.
pub(crate) fn rows_of(x: &Tensor, rows: Range<usize>) -> Result<Tensor> {
    let local = x.local();
    let shape: Shape = *local.shape();
    let flat = ops::reshape(&local, &[row_count(&shape), row_elements(&shape)])?;
    flat.slice(0, rows)
}
