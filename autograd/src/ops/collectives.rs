//! Collectives with gradients, for bodies of [`local`](crate::local): operands and results are a
//! rank's parts, without a sharding.
//!
//! Every member of the group calls the same ops in the same order, also a member without rows, and
//! its backward pass communicates likewise: where nothing depends on a result, its gradient counts
//! as zero. So `x` must depend on a tracked operand on all members or on none.
//!
//! Legend: n members, "rows" are the extent of dim 0 and `..` all other dims. Members are named by
//! their indices in the group.

use meshgrad_collectives::{Collectives, Communicator, Reduction};
use meshgrad_error::ensure;
use meshgrad_runtime::{Pending, Tensor};

use crate::track::tracked_collective;
use crate::{Operand, Result, beside};

/// Concatenates the tensors of all members along dim 0; member i has `rows[i]` rows. The gradient is
/// [`reduce_scatter_rows`].
///
/// # Shapes
/// `x` [rows\[i\], ..] on member i; returns [sum of rows, ..].
///
/// # Errors
/// When `x` has a sharding; as [`Collectives::all_gather_rows`].
#[track_caller]
pub fn all_gather_rows<V: Operand>(
    x: &V,
    rows: &[usize],
    group: &(impl Communicator + Clone + 'static),
) -> Result<V> {
    let [y] = all_gather_rows_of([x], rows, group)?;
    Ok(y)
}

/// [`all_gather_rows`] of several tensors, which are under way together.
///
/// # Errors
/// As [`all_gather_rows`].
#[track_caller]
pub fn all_gather_rows_of<V: Operand, const N: usize>(
    xs: [&V; N],
    rows: &[usize],
    group: &(impl Communicator + Clone + 'static),
) -> Result<[V; N]> {
    let mut started = Vec::with_capacity(N);
    for x in xs {
        started.push(group.all_gather_rows(part(x, "all_gather_rows")?, rows)?);
    }
    let all = || started.into_iter().map(Pending::wait).collect::<Result<Vec<Tensor>>>();
    let mut gathered = Vec::with_capacity(N);
    for (x, y) in xs.into_iter().zip(beside::wait(Pending::by_host(all))?) {
        let (group, rows) = (group.clone(), rows.to_vec());
        let back = move |dy: &Tensor| group.reduce_scatter_rows(dy, &rows, Reduction::Sum);
        gathered.push(tracked_collective(y, x, back)?);
    }
    Ok(gathered.try_into().unwrap_or_else(|_| unreachable!("the number is the same")))
}

/// Sums the tensors of all members; member i gets `rows[i]` rows, after those of the members before
/// it. The gradient is [`all_gather_rows`].
///
/// # Shapes
/// `x` [sum of rows, ..]; returns [rows\[i\], ..] on member i.
///
/// # Errors
/// When `x` has a sharding; as [`Collectives::reduce_scatter_rows`].
#[track_caller]
pub fn reduce_scatter_rows<V: Operand>(
    x: &V,
    rows: &[usize],
    group: &(impl Communicator + Clone + 'static),
) -> Result<V> {
    let x_part = part(x, "reduce_scatter_rows")?;
    let y = beside::wait(group.reduce_scatter_rows(x_part, rows, Reduction::Sum)?)?;
    let (group, rows) = (group.clone(), rows.to_vec());
    tracked_collective(y, x, move |dy| group.all_gather_rows(dy, &rows))
}

/// Sends `send[j]` rows of `x` to member j and receives `recv[j]` rows from it, both in the order of
/// members. The gradient goes back the same way.
///
/// # Shapes
/// `x` [sum of send, ..]; returns [sum of recv, ..].
///
/// # Errors
/// When `x` has a sharding; as [`Collectives::all_to_all_rows`].
#[track_caller]
pub fn all_to_all_rows<V: Operand>(
    x: &V,
    send: &[usize],
    recv: &[usize],
    group: &(impl Communicator + Clone + 'static),
) -> Result<V> {
    let y = beside::wait(group.all_to_all_rows(part(x, "all_to_all_rows")?, send, recv)?)?;
    let (group, send, recv) = (group.clone(), send.to_vec(), recv.to_vec());
    tracked_collective(y, x, move |dy| group.all_to_all_rows(dy, &recv, &send))
}

/// As [`all_to_all_rows`], with counts on the device: slot j of `x` has room for C rows, of which the
/// first `counts[j]` go to member j. Returns the slots from all members and their counts. What is
/// sent and allocated does not depend on the counts, so that no member reads its device. Rows beyond
/// a count have no meaning, and neither have their gradients.
///
/// # Shapes
/// `x` [n, C, ..], `counts` i64 \[n\]; returns the same.
///
/// # Errors
/// When `x` has a sharding, or another number of slots or counts than members; as
/// [`Collectives::all_to_all`].
#[track_caller]
pub fn all_to_all_slots<V: Operand>(
    x: &V,
    counts: &Tensor,
    group: &(impl Communicator + Clone + 'static),
) -> Result<(V, Tensor)> {
    let (slots, members) = (part(x, "all_to_all_slots")?, group.size());
    ensure!(
        slots.shape().first() == Some(&members) && counts.shape()[..] == [members],
        Invalid,
        "all_to_all_slots: {slots} and counts {counts} for {members} members; pass one slot and one \
         count for each"
    );
    let slots = group.all_to_all(slots)?;
    let counts = group.all_to_all(counts)?.wait()?;
    let y = beside::wait(slots)?;
    let group = group.clone();
    Ok((tracked_collective(y, x, move |dy| group.all_to_all(dy))?, counts))
}

/// Sends `x` to member `to` and returns the tensor that member `from` sends, such as to and from the
/// neighbours in a ring. The gradient goes back the same way. In a group of one it is the identity.
///
/// # Shapes
/// `x` of any shape; returns a tensor of `shape`, which is that of member `from`'s `x`.
///
/// # Errors
/// When `x` has a sharding, or in a group of one another shape than `shape`; as [`Collectives::send`]
/// and [`Collectives::recv`].
#[track_caller]
pub fn send_recv<V: Operand>(
    x: &V,
    [to, from]: [usize; 2],
    shape: &[usize],
    group: &(impl Communicator + Clone + 'static),
) -> Result<V> {
    let sent = part(x, "send_recv")?;
    let back = sent.shape().to_vec();
    let y = beside::wait(exchange(sent, [to, from], shape, group)?)?;
    let group = group.clone();
    tracked_collective(y, x, move |dy| exchange(dy, [from, to], &back, &group))
}

#[track_caller]
pub(super) fn exchange(
    x: &Tensor,
    [to, from]: [usize; 2],
    shape: &[usize],
    group: &impl Communicator,
) -> Result<Pending<Tensor>> {
    if group.size() == 1 {
        ensure!(x.shape()[..] == *shape, Invalid, "send_recv: {x} is not of shape {shape:?}");
        let x = x.clone();
        return Ok(Pending::by_host(move || Ok(x)));
    }
    let both = group.fuse(|group| Ok((group.send(x, to)?, group.recv(shape, x.dtype(), from)?)));
    let (sent, received) = both?;
    Ok(Pending::by_host(move || {
        let received = received.wait()?;
        sent.wait()?;
        Ok(received)
    }))
}

/// The value of `x`, which must be a part without a sharding.
pub(super) fn part<'x, V: Operand>(x: &'x V, op: &str) -> Result<&'x Tensor> {
    let value = x.value();
    ensure!(
        value.sharding().is_none(),
        Invalid,
        "{op}: {value} is sharded, but collectives take a rank's part; call it in the body of `local`"
    );
    Ok(value)
}
