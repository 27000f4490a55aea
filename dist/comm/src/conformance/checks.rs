//! Checks of every collective against plain code, for any communicator.

use meshgrad_collectives::{Collectives, Communicator, Reduction};
use meshgrad_runtime::{Kind, Pending, Tensor, ops};

use super::plain::{Bits, Plain};

/// The name of the check that a transport fails in which a message needs its receiver to start, such as NCCL.
pub(super) const OPPOSITE_NOT_FUSED: &str = "opposite messages that are not fused";
/// The names of the checks of messages between two members.
pub(super) const TRANSFERS: [&str; 3] = ["send and recv", "opposite messages", OPPOSITE_NOT_FUSED];

/// Runs a check with elements of a dtype, and their number per member. The error describes the difference.
pub(super) type Run = fn(&dyn Communicator, &dyn Plain, usize) -> Result<(), String>;

/// Checks in which each member has the same number of elements.
pub(super) fn even() -> [(&'static str, Run); 16] {
    [
        ("all_reduce", all_reduce),
        ("all_reduce_in_place", all_reduce_in_place),
        ("all_gather", all_gather),
        ("reduce_scatter", reduce_scatter),
        ("all_to_all", all_to_all),
        ("broadcast", broadcast),
        ("broadcast_in_place", broadcast_in_place),
        ("reduce", reduce),
        ("reduce_in_place", reduce_in_place),
        ("slices of a buffer", slices_of_a_buffer),
        ("gather and scatter", gather_and_scatter),
        (TRANSFERS[0], send_and_recv),
        (TRANSFERS[1], opposite_messages),
        (TRANSFERS[2], opposite_messages_not_fused),
        ("in flight", in_flight),
        ("fused", fused),
    ]
}

/// Checks in which members have different numbers of rows, some none.
pub(super) fn ragged() -> [(&'static str, Run); 4] {
    [
        ("all_gather_rows", all_gather_rows),
        ("reduce_scatter_rows", reduce_scatter_rows),
        ("all_to_all_rows", all_to_all_rows),
        ("gather_rows and scatter_rows", gather_rows_and_scatter_rows),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The tensor of `elements` in rows of `width`.
fn tensor(
    comm: &dyn Communicator,
    of: &dyn Plain,
    elements: &[Bits],
    width: usize,
) -> Result<Tensor, String> {
    let shape = [elements.len() / width, width];
    of.tensor(comm.device(), &shape, elements).map_err(text)
}

fn mutable(
    comm: &dyn Communicator,
    of: &dyn Plain,
    elements: &[Bits],
    width: usize,
) -> Result<Tensor, String> {
    let shape = [elements.len() / width, width];
    let kind = Kind::Gradient;
    let x = Tensor::zeros(comm.device(), &shape, of.dtype(), kind).map_err(text)?;
    let values = tensor(comm, of, elements, width)?;
    ops::copy_into(&values, &x).map_err(text)?;
    Ok(x)
}

/// Waits, and compares bits.
fn same(
    what: &str,
    of: &dyn Plain,
    actual: Pending<Tensor>,
    expected: &[Bits],
) -> Result<(), String> {
    let actual = of.bits(&actual.wait().map_err(text)?).map_err(text)?;
    if actual == expected {
        return Ok(());
    }
    let at = actual.iter().zip(expected).take_while(|(one, other)| one == other).count();
    let text = |elements: &[Bits]| elements.get(at).map(|bits| of.text(*bits));
    let (one, other, dtype) = (text(&actual), text(expected), of.dtype());
    Err(format!("{what} of {dtype} differs at {at}: {one:?}, expected {other:?}"))
}

fn inputs(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Vec<Vec<Bits>> {
    let ranks = comm.group().ranks().iter();
    ranks.map(|rank| of.input(*rank, count)).collect()
}

fn reductions(of: &dyn Plain) -> impl Iterator<Item = Reduction> {
    let dtype = of.dtype();
    let all = Reduction::ALL.into_iter();
    all.filter(move |reduction| reduction.allows(dtype))
}

fn all_reduce(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    for reduction in reductions(of) {
        let sum = comm.all_reduce(&x, reduction).map_err(text)?;
        same("all_reduce", of, sum, &of.reduced(&all, reduction))?;
    }
    for reduction in Reduction::ALL {
        if !reduction.allows(of.dtype()) && comm.all_reduce(&x, reduction).is_ok() {
            return Err(format!("{reduction} of {} is not refused", of.dtype()));
        }
    }

    let all = inputs(comm, of, 2 * count);
    let columns = tensor(comm, of, &all[comm.index()], 2)?.transpose(0, 1);
    let max = comm.all_reduce(&columns.map_err(text)?, Reduction::Max);
    let expected = of.reduced(&all, Reduction::Max);
    let (even, odd) = (expected.iter().step_by(2), expected[1.min(count)..].iter().step_by(2));
    let expected: Vec<Bits> = even.chain(odd).copied().collect();
    same("all_reduce of a transposed tensor", of, max.map_err(text)?, &expected)
}

fn all_reduce_in_place(
    comm: &dyn Communicator,
    of: &dyn Plain,
    count: usize,
) -> Result<(), String> {
    let all = inputs(comm, of, count);
    for reduction in reductions(of) {
        let x = mutable(comm, of, &all[comm.index()], 1)?;
        let sum = comm.all_reduce_in_place(&x, reduction).map_err(text)?;
        same("all_reduce_in_place", of, sum, &of.reduced(&all, reduction))?;
        if of.bits(&x).map_err(text)? != of.reduced(&all, reduction) {
            return Err("all_reduce_in_place differs in its operand".to_owned());
        }
    }
    Ok(())
}

fn all_gather(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, 3 * count);
    let x = tensor(comm, of, &all[comm.index()], 3)?;
    same("all_gather", of, comm.all_gather(&x).map_err(text)?, &all.concat())
}

fn reduce_scatter(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, comm.size() * count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    for reduction in reductions(of) {
        let part = comm.reduce_scatter(&x, reduction).map_err(text)?;
        let start = comm.index() * count;
        let expected = &of.reduced(&all, reduction)[start..start + count];
        same("reduce_scatter", of, part, expected)?;
    }
    Ok(())
}

fn all_to_all(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, comm.size() * count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    let start = comm.index() * count;
    let blocks = all.iter().map(|input| &input[start..start + count]);
    let expected = blocks.collect::<Vec<_>>().concat();
    same("all_to_all", of, comm.all_to_all(&x).map_err(text)?, &expected)
}

fn broadcast(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    for (root, expected) in all.iter().enumerate() {
        let copy = comm.broadcast(&x, root).map_err(text)?;
        same("broadcast", of, copy, expected)?;
    }
    Ok(())
}

fn broadcast_in_place(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    for (root, expected) in all.iter().enumerate() {
        let x = mutable(comm, of, &all[comm.index()], 1)?;
        let copy = comm.broadcast_in_place(&x, root).map_err(text)?;
        same("broadcast_in_place", of, copy, expected)?;
    }
    Ok(())
}

fn reduce(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    for (root, reduction) in [0, comm.size() - 1].into_iter().zip(reductions(of)) {
        let result = comm.reduce(&x, reduction, root).map_err(text)?;
        at_root("reduce", of, comm, root, result, &of.reduced(&all, reduction))?;
    }
    Ok(())
}

fn reduce_in_place(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    for (root, reduction) in [0, comm.size() - 1].into_iter().zip(reductions(of)) {
        let x = mutable(comm, of, &all[comm.index()], 1)?;
        let result = comm.reduce_in_place(&x, reduction, root).map_err(text)?;
        at_root("reduce_in_place", of, comm, root, result, &of.reduced(&all, reduction))?;
    }
    Ok(())
}

/// A member's part is a slice of the whole, in its place.
fn slices_of_a_buffer(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let own = comm.index() * count..(comm.index() + 1) * count;
    let all = inputs(comm, of, count);
    let mut values = vec![0; comm.size() * count];
    values[own.clone()].copy_from_slice(&all[comm.index()]);
    let whole = mutable(comm, of, &values, 1)?;
    let part = whole.slice(0, own.clone()).map_err(text)?;
    let gathered = comm.all_gather_into(&part, &whole).map_err(text)?;
    same("all_gather_into", of, gathered, &all.concat())?;

    let all = inputs(comm, of, comm.size() * count);
    for reduction in reductions(of) {
        let whole = mutable(comm, of, &all[comm.index()], 1)?;
        let part = whole.slice(0, own.clone()).map_err(text)?;
        let result = comm.reduce_scatter_into(&whole, reduction, &part);
        let expected = &of.reduced(&all, reduction)[own.clone()];
        same("reduce_scatter_into", of, result.map_err(text)?, expected)?;
    }
    Ok(())
}

fn at_root(
    what: &str,
    of: &dyn Plain,
    comm: &dyn Communicator,
    root: usize,
    result: Pending<Option<Tensor>>,
    expected: &[Bits],
) -> Result<(), String> {
    match (result.wait().map_err(text)?, comm.index() == root) {
        (Some(tensor), true) => same(what, of, Pending::by_host(|| Ok(tensor)), expected),
        (None, false) => Ok(()),
        (other, _) => Err(format!("{what} to {root} differs: got {other:?}")),
    }
}

fn gather_and_scatter(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    for root in [0, comm.size() - 1] {
        let gathered = comm.gather(&x, root).map_err(text)?;
        at_root("gather", of, comm, root, gathered, &all.concat())?;
    }

    let parts = inputs(comm, of, comm.size() * count);
    for root in [0, comm.size() - 1] {
        let whole = tensor(comm, of, &parts[root], 1)?;
        let whole = (comm.index() == root).then_some(&whole);
        let part = comm.scatter(whole, &[count, 1], of.dtype(), root);
        let start = comm.index() * count;
        let expected = &parts[root][start..start + count];
        same("scatter", of, part.map_err(text)?, expected)?;
    }
    Ok(())
}

/// Along a chain: member 0 sends first, and every other member receives first. A second message does not overtake
/// the first.
fn send_and_recv(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let (index, all) = (comm.index(), inputs(comm, of, count));
    let mut sent = Vec::new();
    if index > 0 {
        let received = comm.recv(&[count, 1], of.dtype(), index - 1).map_err(text)?;
        let empty = comm.recv(&[0, 1], of.dtype(), index - 1).map_err(text)?;
        same("second recv", of, empty, &[])?;
        same("recv", of, received, &all[index - 1])?;
    }
    if index + 1 < comm.size() {
        for elements in [&all[index][..], &[]] {
            let x = tensor(comm, of, elements, 1)?;
            sent.push(comm.send(&x, index + 1).map_err(text)?);
        }
    }
    sent.into_iter().try_for_each(Pending::wait).map_err(text)
}

/// A ring: every member sends to the next one. A second message does not overtake the first.
fn opposite_messages(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let Ring { first, second, shape, next, before, expected } = ring(comm, of, count)?;
    let all = comm.fuse(|comm| {
        let sent = [comm.send(&first, next)?, comm.send(&second, next)?];
        let received = comm.recv(&shape, of.dtype(), before)?;
        Ok((sent, received, comm.recv(&[0, 1], of.dtype(), before)?))
    });
    let (sent, received, empty) = all.map_err(text)?;
    same("second recv of a ring", of, empty, &[])?;
    same("recv of a ring", of, received, &expected)?;
    sent.into_iter().try_for_each(Pending::wait).map_err(text)
}

/// The same, one after the other, where a message needs no receiver to start.
fn opposite_messages_not_fused(
    comm: &dyn Communicator,
    of: &dyn Plain,
    count: usize,
) -> Result<(), String> {
    let Ring { first, second, shape, next, before, expected } = ring(comm, of, count)?;
    let first = comm.send(&first, next).map_err(text)?;
    let second = comm.send(&second, next).map_err(text)?;
    let received = comm.recv(&shape, of.dtype(), before).map_err(text)?;
    let empty = comm.recv(&[0, 1], of.dtype(), before).map_err(text)?;
    same("second recv of a ring that is not fused", of, empty, &[])?;
    same("recv of a ring that is not fused", of, received, &expected)?;
    first.wait().and(second.wait()).map_err(text)
}

/// What a member of a ring sends to the next one, and what comes from the one before.
struct Ring {
    first: Tensor,
    second: Tensor,
    shape: [usize; 2],
    next: usize,
    before: usize,
    expected: Vec<Bits>,
}

fn ring(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<Ring, String> {
    let (index, size) = (comm.index(), comm.size());
    let (next, before) = ((index + 1) % size, (index + size - 1) % size);
    let mut all = inputs(comm, of, count);
    let (first, second) = (tensor(comm, of, &all[index], 1)?, tensor(comm, of, &[], 1)?);
    let expected = all.swap_remove(before);
    Ok(Ring { first, second, shape: [count, 1], next, before, expected })
}

/// Several collectives at once, waited for in another order; one is dropped.
fn in_flight(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    let max = comm.all_reduce(&x, Reduction::Max).map_err(text)?;
    drop(comm.all_reduce(&x, Reduction::Min).map_err(text)?);
    let gathered = comm.all_gather(&x).map_err(text)?;
    let barrier = comm.barrier().map_err(text)?;
    drop(x);
    barrier.wait().map_err(text)?;
    same("gather in flight", of, gathered, &all.concat())?;
    same("max in flight", of, max, &of.reduced(&all, Reduction::Max))
}

fn fused(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let all = inputs(comm, of, count);
    let x = tensor(comm, of, &all[comm.index()], 1)?;
    let fused = comm.fuse(|comm| Ok((comm.all_reduce(&x, Reduction::Max)?, comm.all_gather(&x)?)));
    let (max, gathered) = fused.map_err(text)?;
    same("fused all_gather", of, gathered, &all.concat())?;
    same("fused all_reduce", of, max, &of.reduced(&all, Reduction::Max))
}

fn rows(comm: &dyn Communicator, count: usize) -> Vec<usize> {
    (0..comm.size()).map(|index| (2 * index + count) % 4).collect()
}

fn all_gather_rows(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let rows = rows(comm, count);
    let ranks = comm.group().ranks().iter().zip(&rows);
    let all: Vec<Vec<Bits>> = ranks.map(|(rank, rows)| of.input(*rank, 3 * rows)).collect();
    let x = tensor(comm, of, &all[comm.index()], 3)?;
    let gathered = comm.all_gather_rows(&x, &rows).map_err(text)?;
    same("all_gather_rows", of, gathered, &all.concat())?;

    let into = mutable(comm, of, &vec![0; all.concat().len()], 3)?;
    let gathered = comm.all_gather_rows_into(&x, &rows, &into).map_err(text)?;
    same("all_gather_rows_into", of, gathered, &all.concat())
}

fn reduce_scatter_rows(
    comm: &dyn Communicator,
    of: &dyn Plain,
    count: usize,
) -> Result<(), String> {
    let rows = rows(comm, count);
    let all = inputs(comm, of, 3 * rows.iter().sum::<usize>());
    let x = tensor(comm, of, &all[comm.index()], 3)?;
    let (start, own) = (3 * rows[..comm.index()].iter().sum::<usize>(), 3 * rows[comm.index()]);
    for reduction in reductions(of) {
        let part = comm.reduce_scatter_rows(&x, &rows, reduction);
        let expected = &of.reduced(&all, reduction)[start..start + own];
        same("reduce_scatter_rows", of, part.map_err(text)?, expected)?;

        let into = mutable(comm, of, &vec![0; own], 3)?;
        let part = comm.reduce_scatter_rows_into(&x, &rows, reduction, &into);
        same("reduce_scatter_rows_into", of, part.map_err(text)?, expected)?;
    }
    Ok(())
}

fn all_to_all_rows(comm: &dyn Communicator, of: &dyn Plain, count: usize) -> Result<(), String> {
    let (size, me) = (comm.size(), comm.index());
    let between = |from: usize, to: usize| (from + 2 * to + count) % 3;
    let send: Vec<usize> = (0..size).map(|to| between(me, to)).collect();
    let recv: Vec<usize> = (0..size).map(|from| between(from, me)).collect();

    let of_rank = |from: usize| -> Vec<Bits> {
        let rows: usize = (0..size).map(|to| between(from, to)).sum();
        of.input(comm.group().ranks()[from], 2 * rows)
    };
    let block = |from: usize| {
        let start: usize = (0..me).map(|to| between(from, to)).sum();
        of_rank(from)[2 * start..2 * (start + between(from, me))].to_vec()
    };
    let expected: Vec<Bits> = (0..size).flat_map(block).collect();

    let x = tensor(comm, of, &of_rank(me), 2)?;
    let received = comm.all_to_all_rows(&x, &send, &recv).map_err(text)?;
    same("all_to_all_rows", of, received, &expected)
}

fn gather_rows_and_scatter_rows(
    comm: &dyn Communicator,
    of: &dyn Plain,
    count: usize,
) -> Result<(), String> {
    let rows = rows(comm, count);
    let ranks = comm.group().ranks().iter().zip(&rows);
    let all: Vec<Vec<Bits>> = ranks.map(|(rank, rows)| of.input(*rank, 2 * rows)).collect();
    let x = tensor(comm, of, &all[comm.index()], 2)?;
    for root in [0, comm.size() - 1] {
        let gathered = comm.gather_rows(&x, &rows, root).map_err(text)?;
        at_root("gather_rows", of, comm, root, gathered, &all.concat())?;

        let whole = tensor(comm, of, &all.concat(), 2)?;
        let whole = (comm.index() == root).then_some(&whole);
        let part = comm.scatter_rows(whole, &rows, &[2], of.dtype(), root);
        same("scatter_rows", of, part.map_err(text)?, &all[comm.index()])?;
    }
    Ok(())
}
