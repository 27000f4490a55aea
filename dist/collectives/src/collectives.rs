//! Collectives on tensors.
//!
//! Legend: n members, "rows" are the extent of dim 0 and `..` all other dims.

use meshgrad_runtime::{DType, Pending, Result, Shape, Tensor};

use crate::call::{Call, Rows};
use crate::communicator::Communicator;
use crate::fuse::{Fused, fuse};
use crate::ticket::{Collective, Counts, Peer, Reduction};

/// Collectives of a [`Communicator`], and of `dyn Communicator`.
///
/// Every member of the group calls the same collectives in the same order. Each call returns
/// immediately, and [`Pending::wait`] waits for the other members. Operands need not be contiguous
/// unless they are written. Until the `Pending` is waited for or dropped and the collective has
/// run, an op that writes a mutable operand, or uses one that the collective writes, fails as
/// [busy](meshgrad_runtime::ErrorKind::Busy). Roots and peers are indices in the group. All
/// dtypes are supported; [`Reduction`] lists the exceptions.
///
/// Methods that end in `into` write a contiguous mutable tensor and return it. A member's part and
/// the whole (the result of `all_gather`, the operand of `reduce_scatter`) may be slices of one
/// buffer if the part is this member's rows of the whole or does not overlap it.
///
/// # Errors
/// All calls fail for invalid arguments, for a tensor on another device, and after the communicator
/// has failed. If the collective fails, its `Pending` returns the error, whose details are a
/// [`CommError`](crate::CommError) or a [`FailedRank`](crate::FailedRank). A tensor that is written
/// must be mutable.
pub trait Collectives: Communicator {
    /// Reduces the tensors of all members, which have equal shape. Returns that shape.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_reduce(&self, x: &Tensor, reduction: Reduction) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllReduce)
            .reduction(reduction)
            .counts(Counts::Even(x.elements()))
            .output(*x.shape(), x.dtype(), None)?
            .input(x)?
            .start_one()
    }

    /// [`Collectives::all_reduce`] that overwrites a contiguous mutable tensor and returns it.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_reduce_in_place(&self, x: &Tensor, reduction: Reduction) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllReduce)
            .reduction(reduction)
            .counts(Counts::Even(x.elements()))
            .in_place(x)?
            .start_one()
    }

    /// Concatenates the [r, ..] tensors of all members along dim 0: [n r, ..].
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_gather(&self, x: &Tensor) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllGather).gathered(x, Rows::Equal, None)?.start_one()
    }

    /// [`Collectives::all_gather`] into a tensor.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_gather_into(&self, x: &Tensor, into: &Tensor) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllGather).gathered(x, Rows::Equal, Some(into))?.start_one()
    }

    /// [`Collectives::all_gather`] where member i has `rows[i]` rows.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_gather_rows(&self, x: &Tensor, rows: &[usize]) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllGather).gathered(x, Rows::Of(rows), None)?.start_one()
    }

    /// [`Collectives::all_gather_rows`] into a tensor.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_gather_rows_into(
        &self,
        x: &Tensor,
        rows: &[usize],
        into: &Tensor,
    ) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllGather).gathered(x, Rows::Of(rows), Some(into))?.start_one()
    }

    /// Reduces the [n r, ..] tensors of all members. Member i gets rows i r .. (i + 1) r: [r, ..].
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce_scatter(&self, x: &Tensor, reduction: Reduction) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::ReduceScatter)
            .reduction(reduction)
            .reduce_scattered(x, Rows::Equal, None)?
            .start_one()
    }

    /// [`Collectives::reduce_scatter`] into a tensor.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce_scatter_into(
        &self,
        x: &Tensor,
        reduction: Reduction,
        into: &Tensor,
    ) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::ReduceScatter)
            .reduction(reduction)
            .reduce_scattered(x, Rows::Equal, Some(into))?
            .start_one()
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
        Call::of(self, Collective::ReduceScatter)
            .reduction(reduction)
            .reduce_scattered(x, Rows::Of(rows), None)?
            .start_one()
    }

    /// [`Collectives::reduce_scatter_rows`] into a tensor.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce_scatter_rows_into(
        &self,
        x: &Tensor,
        rows: &[usize],
        reduction: Reduction,
        into: &Tensor,
    ) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::ReduceScatter)
            .reduction(reduction)
            .reduce_scattered(x, Rows::Of(rows), Some(into))?
            .start_one()
    }

    /// Sends block j of the n equal blocks of rows of `x` to member j. Returns the blocks from all
    /// members, in their order, in the shape of `x`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn all_to_all(&self, x: &Tensor) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::AllToAll);
        let block = x.shape().with(0, call.rows_per_member(x)?);
        call.counts(Counts::Even(block.elements()))
            .output(*x.shape(), x.dtype(), None)?
            .input(x)?
            .start_one()
    }

    /// Sends `send[j]` rows of `x` to member j and receives `recv[j]` rows from it. Both are in the
    /// order of members: [sum of send, ..] to [sum of recv, ..].
    ///
    /// # Errors
    /// See [`Collectives`]; [`CommError::PairCounts`](crate::CommError::PairCounts) from the
    /// `Pending`, if `send[j]` differs from the number of rows that member j expects from this one.
    #[track_caller]
    fn all_to_all_rows(
        &self,
        x: &Tensor,
        send: &[usize],
        recv: &[usize],
    ) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::AllToAll).exchanged(x, send, recv)?.start_one()
    }

    /// Returns the root's tensor. The other members pass any tensor of the same shape and dtype.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Pending<Tensor>> {
        let call = Call::of(self, Collective::Broadcast)
            .root(root)?
            .counts(Counts::Even(x.elements()))
            .on_device(x)?
            .output(*x.shape(), x.dtype(), None)?;
        match call.is_root() {
            true => call.input(x)?.start_one(),
            false => call.start_one(),
        }
    }

    /// Overwrites contiguous mutable tensors with the root's, and returns them.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn broadcast_in_place(&self, x: &Tensor, root: usize) -> Result<Pending<Tensor>> {
        Call::of(self, Collective::Broadcast)
            .root(root)?
            .counts(Counts::Even(x.elements()))
            .in_place(x)?
            .start_one()
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
        let call = Call::of(self, Collective::Reduce)
            .root(root)?
            .reduction(reduction)
            .counts(Counts::Even(x.elements()))
            .input(x)?;
        match call.is_root() {
            true => call.output(*x.shape(), x.dtype(), None)?.start(),
            false => call.start(),
        }
    }

    /// [`Collectives::reduce`] that overwrites the root's tensor, which must be contiguous and
    /// mutable. The tensors of other members are only read.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn reduce_in_place(
        &self,
        x: &Tensor,
        reduction: Reduction,
        root: usize,
    ) -> Result<Pending<Option<Tensor>>> {
        let call = Call::of(self, Collective::Reduce)
            .root(root)?
            .reduction(reduction)
            .counts(Counts::Even(x.elements()));
        match call.is_root() {
            true => call.in_place(x)?.start(),
            false => call.input(x)?.start(),
        }
    }

    /// Concatenates the [r, ..] tensors of all members along dim 0. The root gets [n r, ..], the
    /// others `None`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn gather(&self, x: &Tensor, root: usize) -> Result<Pending<Option<Tensor>>> {
        Call::of(self, Collective::Gather).root(root)?.gathered(x, Rows::Equal, None)?.start()
    }

    /// [`Collectives::gather`] where member i has `rows[i]` rows.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn gather_rows(
        &self,
        x: &Tensor,
        rows: &[usize],
        root: usize,
    ) -> Result<Pending<Option<Tensor>>> {
        Call::of(self, Collective::Gather).root(root)?.gathered(x, Rows::Of(rows), None)?.start()
    }

    /// Returns rows i r .. (i + 1) r of the root's [n r, ..] tensor to member i. `shape` is the
    /// shape of a member's part: [r, ..]. Only the root passes `x`.
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
        Call::of(self, Collective::Scatter)
            .root(root)?
            .scattered(x, Rows::Equal, Shape::new(shape)?, dtype)?
            .start_one()
    }

    /// [`Collectives::scatter`] where member i gets `rows[i]` rows of shape `row`, after those of
    /// the members before it.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn scatter_rows(
        &self,
        x: Option<&Tensor>,
        rows: &[usize],
        row: &[usize],
        dtype: DType,
        root: usize,
    ) -> Result<Pending<Tensor>> {
        let own = rows.get(self.index()).copied().unwrap_or(0);
        let part = Shape::new(&[&[own], row].concat())?;
        Call::of(self, Collective::Scatter)
            .root(root)?
            .scattered(x, Rows::Of(rows), part, dtype)?
            .start_one()
    }

    /// Sends a tensor to member `to`, which receives it. The n-th send to a member matches its n-th
    /// receive from this one.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn send(&self, x: &Tensor, to: usize) -> Result<Pending<()>> {
        Call::of(self, Collective::Send)
            .peer(Peer::To(to))?
            .counts(Counts::Even(x.elements()))
            .input(x)?
            .start_none()
    }

    /// Receives a tensor of `shape` and `dtype` from member `from`.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn recv(&self, shape: &[usize], dtype: DType, from: usize) -> Result<Pending<Tensor>> {
        let shape = Shape::new(shape)?;
        Call::of(self, Collective::Recv)
            .peer(Peer::From(from))?
            .counts(Counts::Even(shape.elements()))
            .output(shape, dtype, None)?
            .start_one()
    }

    /// Completes when every member has started it.
    ///
    /// # Errors
    /// See [`Collectives`].
    #[track_caller]
    fn barrier(&self) -> Result<Pending<()>> {
        Call::of(self, Collective::Barrier).start_none()
    }

    /// Starts the collectives that `scope` calls on its communicator together, with one message per
    /// peer if the transport can. Wait for them after the scope. All members must fuse the same
    /// collectives. Messages that ranks send to each other at the same time start together in one scope:
    /// a transport in which a message takes place when both of its ranks are there, such as NCCL, would
    /// otherwise wait without end.
    ///
    /// # Errors
    /// The error of `scope`; nothing is started then. See [`Collectives`].
    fn fuse<T>(&self, scope: impl FnOnce(&Fused<'_, Self>) -> Result<T>) -> Result<T> {
        fuse(self, scope)
    }
}

impl<C: Communicator + ?Sized> Collectives for C {}
