//! Tracking: results of ops become variables. This is the only way to record an op.

use std::borrow::Cow;

use meshgrad_error::error;
use meshgrad_mesh::{Reduction, Sharding};
use meshgrad_runtime::{DType, Kind, Pending, Tensor, ops};

use smallvec::SmallVec;

use crate::saved::{Save, Saved};
use crate::slot::{Dep, Slot, Slots};
use crate::tape::{BackwardFn, Effects, current, is_recording, record, record_with};
use crate::var::{Node, ValueId};
use crate::{Operand, Result, Var};

impl Var {
    /// An input of the recording, whose gradient
    /// [`Tape::backward_inputs`](crate::Tape::backward_inputs) returns. A constant when no tape
    /// records.
    pub fn input(value: Tensor) -> Var {
        Var::leaf(value, Dep::Input)
    }

    /// A value that no record produces, which depends on `dep`.
    pub(crate) fn leaf(value: Tensor, dep: Dep) -> Var {
        let id = current(|recorder| recorder.leaf(dep));
        let node = id.map_or(Node::Constant, Node::Value);
        Var::new(value, node)
    }

    /// Saves the value for backward. Values that an op does not save are freed.
    pub fn save(&self) -> Saved {
        match self.node() {
            Node::Param(param) => self.value().save().named(param.name()),
            _ => self.value().save(),
        }
    }

    /// The same value, marked as depending on an input. A value computed from data and parameters
    /// only, such as a token embedding, is otherwise treated like a weight and not like an
    /// activation. A constant, such as a frozen embedding, becomes an input.
    ///
    /// # Errors
    /// When a value belongs to another tape.
    pub fn as_activation(&self) -> Result<Var> {
        if !self.is_tracked() {
            return Ok(Var::input(self.value().clone()));
        }
        let identity: BackwardFn = Box::new(|dys, slots| {
            let [dx] = slots.array();
            dys[0].as_ref().map_or(Ok(()), |dy| dx.add(|| Ok(dy.clone())))
        });
        let id = record(1, &[self], Dep::Input, identity)?;
        Ok(output(self.value().clone(), id, 0))
    }
}

/// Output `at` of a record whose first output is `first`; a constant if nothing was recorded.
pub(crate) fn output(value: Tensor, first: Option<ValueId>, at: usize) -> Var {
    let node = first.map_or(Node::Constant, |first| {
        Node::Value(ValueId { slot: first.slot + at as u32, ..first })
    });
    Var::new(value, node)
}

/// Turns the result of an op into a variable, or leaves it a tensor if the operands are tensors.
/// Ops of this crate and custom ops use the same methods.
pub trait Track: Sized {
    /// This tensor as the result of an op on `inputs`. `backward` gets the gradient of the result,
    /// in this tensor's dtype, and a [`Slot`] for the gradient of each input.
    ///
    /// [`Tape::backward`](crate::Tape::backward) calls `backward` once. A split backward calls it
    /// once for inputs and, if weights need gradients, once more for weights. The closure captures
    /// what it needs through [`Save::save`](crate::Save::save).
    ///
    /// # Errors
    /// When an input belongs to another tape; when this tensor is a partial maximum.
    fn tracked<V: Operand, const N: usize>(
        self,
        inputs: [&V; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<V>;

    /// As [`Track::tracked`], for a linear op, whose backward accepts any gradient dtype. The
    /// gradient of a value that depends only on parameters is passed in the dtype in which it was
    /// accumulated (f32 for bf16), so it is not rounded on the way to the parameters.
    ///
    /// # Errors
    /// As [`Track::tracked`].
    fn tracked_linear<V: Operand, const N: usize>(
        self,
        inputs: [&V; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<V>;

    /// This tensor as the result of an op without a gradient.
    ///
    /// # Errors
    /// When an input is tracked and a tape records.
    fn untracked<V: Operand>(self, op: &str, inputs: &[&V]) -> Result<V>;
}

impl Track for Tensor {
    fn tracked<V: Operand, const N: usize>(
        self,
        inputs: [&V; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<V> {
        // Checked first, because moving the closure costs as much as a small op.
        if !has_vars(&inputs) {
            return Ok(V::from_var(Var::constant(self)));
        }
        let dtype = self.dtype();
        self.tracked_linear(inputs, move |dy, slots| backward(in_dtype(dy, dtype)?.as_ref(), slots))
    }

    fn tracked_linear<V: Operand, const N: usize>(
        self,
        inputs: [&V; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<V> {
        if !has_vars(&inputs) {
            return Ok(V::from_var(Var::constant(self)));
        }
        let backward = move |dys: &[Option<Tensor>], slots: Slots<'_>| match &dys[0] {
            Some(dy) => backward(dy, slots.array()),
            // A pass runs a record only if an output has a gradient.
            None => Ok(()),
        };
        let first = record_operands(std::slice::from_ref(&self), &inputs, backward)?;
        Ok(V::from_var(output(self, first, 0)))
    }

    fn untracked<V: Operand>(self, op: &str, inputs: &[&V]) -> Result<V> {
        match inputs.iter().any(|input| input.is_tracked()) && is_recording() {
            true => Err(error!(
                Invalid,
                "{op} has no gradient, but an operand requires one; pass \
                 `Var::constant(x.value().clone())` to stop the gradient there"
            )),
            false => Ok(V::from_var(Var::constant(self))),
        }
    }
}

/// Whether the operands are variables and not tensors.
fn has_vars<V: Operand>(inputs: &[&V]) -> bool {
    inputs.iter().any(|input| input.as_var().is_some())
}

/// `dy`, cast to `dtype` if needed. Gradients of values that depend only on parameters are
/// accumulated in a wider dtype.
fn in_dtype(dy: &Tensor, dtype: DType) -> Result<Cow<'_, Tensor>> {
    Ok(match dy.dtype() == dtype {
        true => Cow::Borrowed(dy),
        false => Cow::Owned(ops::cast(dy, dtype)?),
    })
}

/// As [`in_dtype`] for each of several values.
pub(crate) fn in_dtypes(dys: &[Option<Tensor>], dtypes: &[DType]) -> Result<Vec<Option<Tensor>>> {
    let each = dys.iter().zip(dtypes).map(|(dy, dtype)| match dy {
        Some(dy) => Ok(Some(in_dtype(dy, *dtype)?.into_owned())),
        None => Ok(None),
    });
    each.collect()
}

/// Tracks an op with `M` results and `N` inputs.
///
/// `backward` gets the gradient of each result in its dtype, `None` if the result was not used, and
/// a [`Slot`] for each input.
///
/// # Errors
/// As [`Track::tracked`].
pub fn tracked_many<V: Operand, const M: usize, const N: usize>(
    outputs: [Tensor; M],
    inputs: [&V; N],
    backward: impl Fn([Option<&Tensor>; M], [Slot<'_>; N]) -> Result<()> + Send + 'static,
) -> Result<[V; M]> {
    let dtypes = outputs.each_ref().map(Tensor::dtype);
    let backward = move |dys: &[Option<Tensor>], slots: Slots<'_>| {
        let dys = in_dtypes(dys, &dtypes)?;
        backward(std::array::from_fn(|at| dys[at].as_ref()), slots.array())
    };
    let first = record_operands(&outputs, &inputs, backward)?;
    let mut at = 0..M;
    Ok(outputs.map(|value| {
        let at = at.next().unwrap_or_default();
        V::from_var(output(value, first, at))
    }))
}

/// Tracks a linear op (see [`Track::tracked_linear`]) whose numbers of results and inputs are known
/// only at run time. `backward` gets one gradient per result, in order, and one [`Slot`] per input.
///
/// # Errors
/// As [`tracked_many`].
pub fn tracked_list_linear<V: Operand>(
    outputs: Vec<Tensor>,
    inputs: &[&V],
    backward: impl Fn(&[Option<Tensor>], Vec<Slot<'_>>) -> Result<()> + Send + 'static,
) -> Result<Vec<V>> {
    let backward =
        move |dys: &[Option<Tensor>], slots: Slots<'_>| backward(dys, slots.iter().collect());
    let first = record_operands(&outputs, inputs, backward)?;
    let outputs = outputs.into_iter().enumerate();
    Ok(outputs.map(|(at, value)| V::from_var(output(value, first, at))).collect())
}

/// `y` as the result of a collective on `x`, both parts of a rank without a sharding, as
/// [`tracked_communicating`].
pub(crate) fn tracked_collective<V: Operand>(
    y: Tensor,
    x: &V,
    backward: impl Fn(&Tensor) -> Result<Pending<Tensor>> + Send + 'static,
) -> Result<V> {
    tracked_communicating(y, [x], move |dy, [dx]| dx.add_pending(|| backward(dy)))
}

/// `y` as the result of an op that communicates on `inputs`, all parts of a rank without a sharding.
/// `backward` gets the gradient of `y` in its dtype and communicates too. It runs on every rank: with
/// zeros where nothing depends on `y`.
///
/// # Errors
/// When an input belongs to another tape.
pub(crate) fn tracked_communicating<V: Operand, const N: usize>(
    y: Tensor,
    inputs: [&V; N],
    backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
) -> Result<V> {
    let vars: Option<SmallVec<[&Var; 6]>> = inputs.iter().map(|input| input.as_var()).collect();
    let Some(vars) = vars else {
        return Ok(V::from_var(Var::constant(y)));
    };
    let zeros = (y.device().clone(), *y.shape(), y.dtype());
    let backward: BackwardFn = Box::new(move |dys, slots| {
        let (device, shape, dtype) = &zeros;
        let dy = match &dys[0] {
            Some(dy) => in_dtype(dy, *dtype)?.into_owned(),
            None => Tensor::zeros(device, shape, *dtype, Kind::Value)?,
        };
        backward(&dy, slots.array())
    });
    let effects = Effects { communicates: true, ..Effects::default() };
    let first = record_with(1, &vars, Dep::Nothing, effects, backward)?;
    Ok(V::from_var(output(y, first, 0)))
}

/// The gradient of a partial maximum would need the maximum of all ranks.
pub(crate) fn check_no_partial_max<'a>(
    tracked: impl Iterator<Item = &'a Tensor>,
    outputs: &'a [Tensor],
) -> Result<()> {
    let mut tracked = tracked.peekable();
    if tracked.peek().is_none() || !is_recording() {
        return Ok(());
    }
    let is_max = |(_, reduction): &(&str, Reduction)| *reduction == Reduction::Max;
    let is_partial_max = |sharding: &Sharding| sharding.partials().iter().any(is_max);
    let mut all = tracked.chain(outputs);
    match all.find(|x| x.sharding().is_some_and(is_partial_max)) {
        Some(x) => Err(error!(
            Invalid,
            "the gradient of {x} depends on all ranks: compute the maximum of a whole dim, or stop \
             the gradient with Var::constant"
        )),
        None => Ok(()),
    }
}

/// Adds a record if the operands are variables, and returns its first output.
fn record_operands<V: Operand>(
    outputs: &[Tensor],
    inputs: &[&V],
    backward: impl Fn(&[Option<Tensor>], Slots<'_>) -> Result<()> + Send + 'static,
) -> Result<Option<ValueId>> {
    let vars: Option<SmallVec<[&Var; 6]>> = inputs.iter().map(|input| input.as_var()).collect();
    match vars {
        Some(vars) => {
            let tracked = vars.iter().filter(|var| var.is_tracked());
            check_no_partial_max(tracked.map(|var| var.value()), outputs)?;
            record(outputs.len(), &vars, Dep::Nothing, Box::new(backward))
        }
        None => Ok(None),
    }
}
