//! Collectives on tensors: checks of arguments, results, requests.
//!
//! Legend: n members, "rows" are the extent of dim 0 and `..` all other dims.

use std::panic::Location;
use std::sync::Arc;

use meshgrad_runtime::{DType, Pending, Result, Shape, Tensor, UninitTensor, ops};

use crate::communicator::{Communicator, Operands, Output};
use crate::error::CommError;
use crate::ticket::{Collective, Counts, Fingerprint, Peer, Reduction, Request};

/// Collectives of a [`Communicator`], and of `dyn Communicator`.
///
/// Every member of the group calls the same collectives in the same order. Each call returns
/// immediately, and [`Pending::wait`] waits for the other members. Operands need not be contiguous
/// unless they are written. A mutable operand cannot be written, and one that the collective
/// writes cannot be used, until the `Pending` is waited for or dropped and the collective has run:
/// such ops return [`Error::Busy`](meshgrad_runtime::Error::Busy). Roots and peers are indices in
/// the group. All dtypes are supported; [`Reduction`] lists the exceptions.
///
/// # Errors
/// All calls return a [`CommError`] for invalid arguments, for a tensor on another device, and
/// after the communicator has failed; the `Pending` fails with a [`CommError`] if the collective
/// does.
pub trait Collectives: Communicator {
    /// Reduces the tensors of all members, which have equal shape. Returns that shape.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_reduce(&self, x: &Tensor, reduction: Reduction) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllReduce);
        let output = call.new_output(*x.shape(), x.dtype())?;
        let operands = call.operands(x, output)?;
        let counts = Counts::Even(x.elements());
        call.reduced(x.dtype(), counts, reduction, operands)
    }

    /// [`Collectives::all_reduce`] that overwrites a contiguous mutable tensor and returns it.
    ///
    /// # Errors
    /// See [`Collectives`]; [`Error::Immutable`](meshgrad_runtime::Error::Immutable).
    #[track_caller]
    fn all_reduce_in_place(&self, x: &Tensor, reduction: Reduction) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllReduce);
        let operands = call.in_place(x)?;
        let counts = Counts::Even(x.elements());
        call.reduced(x.dtype(), counts, reduction, operands)
    }

    /// Concatenates the [r, ..] tensors of all members along dim 0: [n r, ..].
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_gather(&self, x: &Tensor) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllGather);
        let rows = call.rows_of(x)?;
        let shape = x.shape().with(0, rows.saturating_mul(self.size()));
        let output = call.new_output(shape, x.dtype())?;
        let counts = Counts::Even(x.elements());
        let operands = call.operands(x, output)?;
        Ok(some(call.start(x.dtype(), counts, None, operands)?))
    }

    /// [`Collectives::all_gather`] where member i has `rows[i]` rows.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_gather_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllGather);
        let (counts, shape) = call.gathered(x, rows)?;
        let output = call.new_output(shape, x.dtype())?;
        let operands = call.operands(x, output)?;
        Ok(some(call.start(x.dtype(), counts, None, operands)?))
    }

    /// [`Collectives::all_gather_rows`] into a contiguous mutable tensor, which it returns.
    ///
    /// # Errors
    /// See [`Collectives`]; [`Error::Immutable`](meshgrad_runtime::Error::Immutable).
    #[track_caller]
    fn all_gather_rows_into(
        &self,
        x: &Tensor,
        rows: &[usize],
        into: &Tensor,
    ) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllGather);
        let (counts, shape) = call.gathered(x, rows)?;
        let output = call.existing_output(into, shape, x.dtype())?;
        let operands = call.operands(x, output)?;
        Ok(some(call.start(x.dtype(), counts, None, operands)?))
    }

    /// Reduces the [n r, ..] tensors of all members. Member i gets rows i r .. (i + 1) r: [r, ..].
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce_scatter(&self, x: &Tensor, reduction: Reduction) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::ReduceScatter);
        let shape = x.shape().with(0, call.rows_per_member(x)?);
        let counts = Counts::Even(shape.elements());
        let output = call.new_output(shape, x.dtype())?;
        let operands = call.operands(x, output)?;
        call.reduced(x.dtype(), counts, reduction, operands)
    }

    /// [`Collectives::reduce_scatter`] where member i gets `rows[i]` rows, after those of the
    /// members before it.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce_scatter_rows(
        &self,
        x: &Tensor,
        rows: &[usize],
        reduction: Reduction,
    ) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::ReduceScatter);
        let (counts, shape) = call.scattered(x, rows)?;
        let output = call.new_output(shape, x.dtype())?;
        let operands = call.operands(x, output)?;
        call.reduced(x.dtype(), counts, reduction, operands)
    }

    /// [`Collectives::reduce_scatter_rows`] into a contiguous mutable tensor, which it returns.
    ///
    /// # Errors
    /// See [`Collectives`]; [`Error::Immutable`](meshgrad_runtime::Error::Immutable).
    #[track_caller]
    fn reduce_scatter_rows_into(
        &self,
        x: &Tensor,
        rows: &[usize],
        reduction: Reduction,
        into: &Tensor,
    ) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::ReduceScatter);
        let (counts, shape) = call.scattered(x, rows)?;
        let output = call.existing_output(into, shape, x.dtype())?;
        let operands = call.operands(x, output)?;
        call.reduced(x.dtype(), counts, reduction, operands)
    }

    /// Sends block j of the n equal blocks of rows of `x` to member j. Returns the blocks from all
    /// members, in their order, in the shape of `x`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_to_all(&self, x: &Tensor) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllToAll);
        let block = call.rows_per_member(x)?;
        let output = call.new_output(*x.shape(), x.dtype())?;
        let operands = call.operands(x, output)?;
        let counts = Counts::Even(x.shape().with(0, block).elements());
        Ok(some(call.start(x.dtype(), counts, None, operands)?))
    }

    /// Sends `send[j]` rows of `x` to member j and receives `recv[j]` rows from it. Both are in the
    /// order of members: [sum of send, ..] to [sum of recv, ..].
    ///
    /// # Errors
    /// See [`Collectives`]; [`CommError::PairCounts`] from the `Pending`, if `send[j]` differs from
    /// what member j passes as `recv` for this one.
    #[track_caller]
    fn all_to_all_rows(
        &self,
        x: &Tensor,
        send: &[usize],
        recv: &[usize],
    ) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllToAll);
        call.check_sum(x, "send", send)?;
        let shape = x.shape().with(0, call.sum("recv", recv)?);
        let counts = Counts::Pairwise {
            send: elements(x, send),
            recv: elements(x, recv),
        };
        let output = call.new_output(shape, x.dtype())?;
        let operands = call.operands(x, output)?;
        Ok(some(call.start(x.dtype(), counts, None, operands)?))
    }

    /// Returns the root's tensor. The other members pass any tensor of the same shape and dtype.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::Broadcast);
        call.check_index("root", root)?;
        let output = call.new_output(*x.shape(), x.dtype())?;
        let mut operands = call.operands(x, output)?;
        operands.input = operands.input.filter(|_| self.index() == root);
        let counts = Counts::Even(x.elements());
        Ok(some(call.start(x.dtype(), counts, Some(root), operands)?))
    }

    /// Overwrites contiguous mutable tensors with the root's, and returns them.
    ///
    /// # Errors
    /// See [`Collectives`]; [`Error::Immutable`](meshgrad_runtime::Error::Immutable).
    #[track_caller]
    fn broadcast_in_place(&self, x: &Tensor, root: usize) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::Broadcast);
        call.check_index("root", root)?;
        let operands = call.in_place(x)?;
        let counts = Counts::Even(x.elements());
        Ok(some(call.start(x.dtype(), counts, Some(root), operands)?))
    }

    /// Reduces the tensors of all members, which have equal shape. The root gets the result, the
    /// others `None`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce(
        &self,
        x: &Tensor,
        reduction: Reduction,
        root: usize,
    ) -> Result<Pending<Option<Tensor>>> {
        let call = Call::of(self, Collective::Reduce);
        call.check_index("root", root)?;
        let output = match self.index() == root {
            true => call.new_output(*x.shape(), x.dtype())?,
            false => Output::None,
        };
        let operands = call.operands(x, output)?;
        let counts = Counts::Even(x.elements());
        call.reduce(x.dtype(), counts, reduction, Some(root), operands)
    }

    /// Concatenates the [r, ..] tensors of all members along dim 0. The root gets [n r, ..], the
    /// others `None`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn gather(&self, x: &Tensor, root: usize) -> Result<Pending<Option<Tensor>>> {
        let call = Call::of(self, Collective::Gather);
        call.check_index("root", root)?;
        let rows = call.rows_of(x)?.saturating_mul(self.size());
        let output = match self.index() == root {
            true => call.new_output(x.shape().with(0, rows), x.dtype())?,
            false => Output::None,
        };
        let operands = call.operands(x, output)?;
        let counts = Counts::Even(x.elements());
        call.start(x.dtype(), counts, Some(root), operands)
    }

    /// Returns rows i r .. (i + 1) r of the root's [n r, ..] tensor to member i. `shape` is that of
    /// a member's part: [r, ..]. Only the root passes `x`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn scatter(
        &self,
        x: Option<&Tensor>,
        shape: &[usize],
        dtype: DType,
        root: usize,
    ) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::Scatter);
        call.check_index("root", root)?;
        let shape = Shape::new(shape)?;
        let counts = Counts::Even(shape.elements());
        let output = call.new_output(shape, dtype)?;
        let operands = match (x, self.index() == root) {
            (Some(x), true) => {
                let part = x.shape().with(0, call.rows_per_member(x)?);
                if part != shape || x.dtype() != dtype {
                    return call.invalid(format!(
                        "the root has {x:?}, which is {n} parts of {}{part}, but each member \
                         expects {dtype}{shape}; pass the shape and dtype of a part",
                        x.dtype(),
                        n = self.size()
                    ));
                }
                call.operands(x, output)?
            }
            (None, false) => Operands {
                input: None,
                output,
            },
            (Some(_), false) => {
                return call.invalid(format!(
                    "member {} passes a tensor, but the root is {root}; pass None",
                    self.index()
                ));
            }
            (None, true) => {
                return call.invalid(format!("the root ({root}) passes no tensor; pass Some"));
            }
        };
        Ok(some(call.start(dtype, counts, Some(root), operands)?))
    }

    /// Sends a tensor to member `to`, which receives it. The n-th send to a member matches its n-th
    /// receive from this one.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn send(&self, x: &Tensor, to: usize) -> Result<Pending<()>> {
        let call = Call::of(self, Collective::Send);
        call.check_index("peer", to)?;
        let operands = call.operands(x, Output::None)?;
        let counts = Counts::Even(x.elements());
        Ok(call
            .transfer(x.dtype(), counts, Peer::To(to), operands)?
            .map(|_| ()))
    }

    /// Receives a tensor of `shape` and `dtype` from member `from`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn recv(&self, shape: &[usize], dtype: DType, from: usize) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::Recv);
        call.check_index("peer", from)?;
        let shape = Shape::new(shape)?;
        let operands = Operands {
            input: None,
            output: call.new_output(shape, dtype)?,
        };
        let counts = Counts::Even(shape.elements());
        Ok(some(call.transfer(
            dtype,
            counts,
            Peer::From(from),
            operands,
        )?))
    }

    /// Completes when every member has started it.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn barrier(&self) -> Result<Pending<()>> {
        let call = Call::of(self, Collective::Barrier);
        let operands = Operands {
            input: None,
            output: Output::None,
        };
        let fingerprint = Fingerprint {
            collective: Collective::Barrier,
            dtype: None,
            counts: Counts::Even(0),
            reduction: None,
            root: None,
        };
        Ok(call.submit(fingerprint, None, operands)?.map(|_| ()))
    }
}

impl<C: Communicator + ?Sized> Collectives for C {}

/// The result of a collective in which every member gets a tensor.
fn some(pending: Pending<Option<Tensor>>) -> Pending<Tensor> {
    pending.map(|tensor| tensor.expect("a transport returns the output that it was given"))
}

/// The elements of these numbers of rows of `x`.
fn elements(x: &Tensor, rows: &[usize]) -> Arc<[usize]> {
    let per_row: usize = x.shape()[1..].iter().product();
    rows.iter()
        .map(|rows| rows.saturating_mul(per_row))
        .collect()
}

/// One call of a collective.
struct Call<'a, C: Communicator + ?Sized> {
    communicator: &'a C,
    collective: Collective,
    caller: &'static Location<'static>,
}

impl<'a, C: Communicator + ?Sized> Call<'a, C> {
    #[track_caller]
    fn of(communicator: &'a C, collective: Collective) -> Call<'a, C> {
        Call {
            communicator,
            collective,
            caller: Location::caller(),
        }
    }

    fn size(&self) -> usize {
        self.communicator.size()
    }

    fn start(
        &self,
        dtype: DType,
        counts: Counts,
        root: Option<usize>,
        operands: Operands,
    ) -> Result<Pending<Option<Tensor>>> {
        self.submit(self.fingerprint(dtype, counts, root), None, operands)
    }

    fn transfer(
        &self,
        dtype: DType,
        counts: Counts,
        peer: Peer,
        operands: Operands,
    ) -> Result<Pending<Option<Tensor>>> {
        self.submit(self.fingerprint(dtype, counts, None), Some(peer), operands)
    }

    /// [`Call::reduce`] without a root: every member gets a tensor.
    fn reduced(
        &self,
        dtype: DType,
        counts: Counts,
        reduction: Reduction,
        operands: Operands,
    ) -> Result<Pending<Tensor>> {
        Ok(some(self.reduce(dtype, counts, reduction, None, operands)?))
    }

    fn reduce(
        &self,
        dtype: DType,
        counts: Counts,
        reduction: Reduction,
        root: Option<usize>,
        operands: Operands,
    ) -> Result<Pending<Option<Tensor>>> {
        if !reduction.allows(dtype) {
            let collective = self.collective;
            return Err(CommError::Reduction {
                collective,
                reduction,
                dtype,
            }
            .into());
        }
        let fingerprint = Fingerprint {
            reduction: Some(reduction),
            ..self.fingerprint(dtype, counts, root)
        };
        self.submit(fingerprint, None, operands)
    }

    fn fingerprint(&self, dtype: DType, counts: Counts, root: Option<usize>) -> Fingerprint {
        Fingerprint {
            collective: self.collective,
            dtype: Some(dtype),
            counts,
            reduction: None,
            root,
        }
    }

    fn submit(
        &self,
        fingerprint: Fingerprint,
        peer: Option<Peer>,
        operands: Operands,
    ) -> Result<Pending<Option<Tensor>>> {
        let request = Request {
            fingerprint,
            peer,
            caller: self.caller,
        };
        self.communicator.start(request, operands)
    }

    fn operands(&self, x: &Tensor, output: Output) -> Result<Operands> {
        self.check_device(x)?;
        Ok(Operands {
            input: Some(ops::contiguous(x)?),
            output,
        })
    }

    fn in_place(&self, x: &Tensor) -> Result<Operands> {
        Ok(Operands {
            input: None,
            output: self.existing_output(x, *x.shape(), x.dtype())?,
        })
    }

    fn new_output(&self, shape: Shape, dtype: DType) -> Result<Output> {
        let tensor = UninitTensor::new(self.communicator.device(), shape, dtype)?;
        Ok(Output::New(tensor))
    }

    fn existing_output(&self, into: &Tensor, shape: Shape, dtype: DType) -> Result<Output> {
        self.check_device(into)?;
        if *into.shape() != shape || into.dtype() != dtype {
            return self.invalid(format!(
                "the result is {dtype}{shape}, but is written to {into:?}; pass a tensor of that \
                 shape and dtype"
            ));
        }
        if !into.is_contiguous() {
            return self.invalid(format!(
                "{into:?} is written, but is not contiguous; pass a contiguous tensor"
            ));
        }
        Ok(Output::Into(into.clone()))
    }

    fn check_device(&self, x: &Tensor) -> Result<()> {
        let expected = self.communicator.device();
        match x.device() == expected {
            true => Ok(()),
            false => Err(CommError::Device {
                collective: self.collective,
                actual: x.device().to_string(),
                expected: expected.to_string(),
            }
            .into()),
        }
    }

    fn check_index(&self, role: &'static str, index: usize) -> Result<()> {
        let size = self.size();
        match index < size {
            true => Ok(()),
            false => Err(CommError::Index {
                collective: self.collective,
                role,
                index,
                size,
            }
            .into()),
        }
    }

    fn rows_of(&self, x: &Tensor) -> Result<usize> {
        match x.shape().first() {
            Some(rows) => Ok(*rows),
            None => self.invalid(format!("{x:?} has no dim 0; reshape it to [1]")),
        }
    }

    fn rows_per_member(&self, x: &Tensor) -> Result<usize> {
        let (rows, size) = (self.rows_of(x)?, self.size());
        match rows % size {
            0 => Ok(rows / size),
            _ => self.invalid(format!(
                "{x:?} has {rows} rows, which is not divisible by {size} members; {}",
                match self.collective {
                    Collective::Scatter => "pad it",
                    Collective::ReduceScatter => "use reduce_scatter_rows",
                    _ => "use all_to_all_rows",
                }
            )),
        }
    }

    /// The counts and the result's shape of an all_gather.
    fn gathered(&self, x: &Tensor, rows: &[usize]) -> Result<(Counts, Shape)> {
        let total = self.sum("rows", rows)?;
        let (own, index) = (self.rows_of(x)?, self.communicator.index());
        if own != rows[index] {
            return self.invalid(format!(
                "{x:?} has {own} rows, but rows[{index}] of this member is {}; pass the rows of \
                 every member",
                rows[index]
            ));
        }
        Ok((Counts::Ragged(elements(x, rows)), x.shape().with(0, total)))
    }

    /// The counts and the result's shape of a reduce_scatter.
    fn scattered(&self, x: &Tensor, rows: &[usize]) -> Result<(Counts, Shape)> {
        self.check_sum(x, "rows", rows)?;
        let own = rows[self.communicator.index()];
        Ok((Counts::Ragged(elements(x, rows)), x.shape().with(0, own)))
    }

    fn check_sum(&self, x: &Tensor, name: &str, rows: &[usize]) -> Result<()> {
        let (all, sum) = (self.rows_of(x)?, self.sum(name, rows)?);
        match all == sum {
            true => Ok(()),
            false => self.invalid(format!(
                "{x:?} has {all} rows, but {name} {rows:?} add up to {sum}; they must be equal"
            )),
        }
    }

    fn sum(&self, name: &str, rows: &[usize]) -> Result<usize> {
        if rows.len() != self.size() {
            return self.invalid(format!(
                "{name} has {} numbers for {} members; pass one for each",
                rows.len(),
                self.size()
            ));
        }
        let total = rows
            .iter()
            .try_fold(0usize, |sum, rows| sum.checked_add(*rows));
        match total {
            Some(total) => Ok(total),
            None => self.invalid(format!(
                "{name} {rows:?} add up to more than fits in memory"
            )),
        }
    }

    fn invalid<T>(&self, problem: String) -> Result<T> {
        let collective = self.collective;
        Err(CommError::Argument {
            collective,
            problem,
        }
        .into())
    }
}
