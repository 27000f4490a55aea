//! Making results of ops variables: the only way onto a tape.

use std::borrow::Cow;

use meshgrad_runtime::{DType, Tensor, ops};

use crate::saved::{Save, Saved};
use crate::slot::{Dep, Slot};
use crate::tape::{BackwardFn, current, is_recording, record};
use crate::var::{Node, ValueId};
use crate::{Error, Result, Var};

impl Var {
    /// An input of what is being recorded: the one who gave it wants its gradient (see
    /// [`Tape::backward_inputs`](crate::Tape::backward_inputs)). A constant when no tape records.
    pub fn input(value: Tensor) -> Var {
        let place = current(|recorder| recorder.leaf());
        let node = place.map_or(Node::Constant, Node::Value);
        Var::new(value, node)
    }

    /// Keeps the value for backward. What an op does not save, it does not keep alive.
    pub fn save(&self) -> Saved {
        match self.node() {
            Node::Param(param) => self.value().save().named(param.name()),
            _ => self.value().save(),
        }
    }

    /// The same value, from here on counted as depending on the input of what is recorded: what is
    /// computed from data and parameters alone, as a token embedding is, is an activation and not a
    /// weight.
    ///
    /// # Errors
    /// [`Error::OtherTape`](crate::Error::OtherTape).
    pub fn as_activation(&self) -> Result<Var> {
        let pass_on: BackwardFn = Box::new(|dys, slots, _| {
            let [dx] = slots.array();
            dys[0]
                .as_ref()
                .map_or(Ok(()), |dy| dx.add(|| Ok(dy.clone())))
        });
        let place = record(1, &[self], Dep::Input, pass_on)?;
        Ok(output(self.value().clone(), place, 0))
    }
}

/// Output `at` of a record whose first is at `first`; a constant where nothing was recorded.
pub(crate) fn output(value: Tensor, first: Option<ValueId>, at: usize) -> Var {
    let node = first.map_or(Node::Constant, |first| {
        Node::Value(ValueId {
            slot: first.slot + at as u32,
            ..first
        })
    });
    Var::new(value, node)
}

/// Making the result of an op a variable. The only way onto the tape, for ops of this crate and of
/// users alike.
pub trait Track: Sized {
    /// This tensor as the result of an op on `inputs`. `backward` gets the gradient of the result,
    /// and a [`Slot`] for each input to put that input's gradient into.
    ///
    /// That gradient is of this tensor's dtype, whatever it was summed in.
    ///
    /// `backward` is called once by [`Tape::backward`](crate::Tape::backward); by a split backward
    /// once for inputs and, if a weight was waiting, once more for weights. It captures what it
    /// needs through [`Var::save`].
    ///
    /// # Errors
    /// [`Error::OtherTape`] when an input belongs to another tape.
    fn tracked<const N: usize>(
        self,
        inputs: [&Var; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<Var>;

    /// As [`Track::tracked`], for an op that is linear: its backward keeps nothing that the gradient
    /// would have to agree with in dtype. The gradient of what depends on parameters alone comes as
    /// it was summed, f32 for bf16, and reaches the parameters without being rounded.
    ///
    /// # Errors
    /// As [`Track::tracked`].
    fn tracked_linear<const N: usize>(
        self,
        inputs: [&Var; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<Var>;

    /// This tensor as the result of an op that cannot be differentiated.
    ///
    /// # Errors
    /// [`Error::NoBackward`] when an input is tracked.
    fn untracked(self, op: &str, inputs: &[&Var]) -> Result<Var>;
}

impl Track for Tensor {
    fn tracked<const N: usize>(
        self,
        inputs: [&Var; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<Var> {
        let dtype = self.dtype();
        self.tracked_linear(inputs, move |dy, slots| {
            backward(in_dtype(dy, dtype)?.as_ref(), slots)
        })
    }

    fn tracked_linear<const N: usize>(
        self,
        inputs: [&Var; N],
        backward: impl Fn(&Tensor, [Slot<'_>; N]) -> Result<()> + Send + 'static,
    ) -> Result<Var> {
        let backward: BackwardFn = Box::new(move |dys, slots, _| match &dys[0] {
            Some(dy) => backward(dy, slots.array()),
            // A pass calls a record only with a gradient.
            None => Ok(()),
        });
        let place = record(1, &inputs, Dep::Nothing, backward)?;
        Ok(output(self, place, 0))
    }

    fn untracked(self, op: &str, inputs: &[&Var]) -> Result<Var> {
        match inputs.iter().any(|var| var.is_tracked()) && is_recording() {
            true => Err(Error::NoBackward { op: op.into() }),
            false => Ok(Var::constant(self)),
        }
    }
}

/// The gradient of a value of `dtype`. One that depends on weights alone is summed in its
/// accumulator's dtype.
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

/// The results of an op with several of them, or with a number of inputs known only at run time.
///
/// `backward` gets the gradient of each result, of its dtype, `None` for those that nothing used,
/// and a [`Slot`] for each input.
///
/// # Errors
/// [`Error::OtherTape`] when an input belongs to another tape.
pub fn tracked_many(
    outputs: Vec<Tensor>,
    inputs: &[&Var],
    backward: impl Fn(&[Option<Tensor>], Vec<Slot<'_>>) -> Result<()> + Send + 'static,
) -> Result<Vec<Var>> {
    let dtypes: Vec<DType> = outputs.iter().map(Tensor::dtype).collect();
    tracked_many_linear(outputs, inputs, move |dys, slots| {
        backward(&in_dtypes(dys, &dtypes)?, slots)
    })
}

/// As [`tracked_many`], for an op that is linear (see [`Track::tracked_linear`]).
///
/// # Errors
/// As [`tracked_many`].
pub fn tracked_many_linear(
    outputs: Vec<Tensor>,
    inputs: &[&Var],
    backward: impl Fn(&[Option<Tensor>], Vec<Slot<'_>>) -> Result<()> + Send + 'static,
) -> Result<Vec<Var>> {
    let backward: BackwardFn = Box::new(move |dys, slots, _| backward(dys, slots.iter().collect()));
    let first = record(outputs.len(), inputs, Dep::Nothing, backward)?;
    let outputs = outputs.into_iter().enumerate();
    Ok(outputs
        .map(|(at, value)| output(value, first, at))
        .collect())
}
