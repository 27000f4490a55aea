//! Checks of every collective against plain code, for any communicator.

use meshgrad_runtime::{Kind, Pending, Tensor, ops};

use super::plain::{Plain, input, reduced};
use crate::collectives::Collectives;
use crate::communicator::Communicator;
use crate::ticket::Reduction;

/// Runs a check with a number of elements per member. The error describes the difference.
pub(super) type Run = fn(&dyn Communicator, usize) -> Result<(), String>;

/// Checks in which each member has the same number of elements.
pub(super) fn even<T: Plain>() -> [(&'static str, Run); 14] {
    [
        ("all_reduce", all_reduce::<T>),
        ("all_reduce_in_place", all_reduce_in_place::<T>),
        ("all_gather", all_gather::<T>),
        ("reduce_scatter", reduce_scatter::<T>),
        ("all_to_all", all_to_all::<T>),
        ("broadcast", broadcast::<T>),
        ("broadcast_in_place", broadcast_in_place::<T>),
        ("reduce", reduce::<T>),
        ("reduce_in_place", reduce_in_place::<T>),
        ("slices of a buffer", slices_of_a_buffer::<T>),
        ("gather and scatter", gather_and_scatter::<T>),
        ("send and recv", send_and_recv::<T>),
        ("in flight", in_flight::<T>),
        ("fused", fused::<T>),
    ]
}

/// Checks in which members have different numbers of rows, some none.
pub(super) fn ragged<T: Plain>() -> [(&'static str, Run); 4] {
    [
        ("all_gather_rows", all_gather_rows::<T>),
        ("reduce_scatter_rows", reduce_scatter_rows::<T>),
        ("all_to_all_rows", all_to_all_rows::<T>),
        ("gather_rows and scatter_rows", gather_rows_and_scatter_rows::<T>),
    ]
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The tensor of `elements` in rows of `width`.
fn tensor<T: Plain>(
    comm: &dyn Communicator,
    elements: &[T],
    width: usize,
) -> Result<Tensor, String> {
    let shape = [elements.len() / width, width];
    Tensor::from_slice(comm.device(), &shape, elements).map_err(text)
}

fn mutable<T: Plain>(
    comm: &dyn Communicator,
    elements: &[T],
    width: usize,
) -> Result<Tensor, String> {
    let shape = [elements.len() / width, width];
    let kind = Kind::Gradient;
    let x = Tensor::zeros(comm.device(), &shape, T::DTYPE, kind).map_err(text)?;
    let values = tensor(comm, elements, width)?;
    ops::copy_into(&values, &x).map_err(text)?;
    Ok(x)
}

/// Waits, and compares bits.
fn same<T: Plain>(what: &str, actual: Pending<Tensor>, expected: &[T]) -> Result<(), String> {
    let actual = actual.wait().map_err(text)?.to_vec::<T>().map_err(text)?;
    let bytes = |elements: &[T]| bytemuck::cast_slice::<T, u8>(elements).to_vec();
    match bytes(&actual) == bytes(expected) {
        true => Ok(()),
        false => {
            let pairs = actual.iter().zip(expected);
            let at = pairs.take_while(|(a, b)| bytes(&[**a]) == bytes(&[**b]));
            let at = at.count();
            let (one, other) = (actual.get(at), expected.get(at));
            let dtype = T::DTYPE;
            Err(format!("{what} of {dtype} differs at {at}: {one:?}, expected {other:?}"))
        }
    }
}

fn inputs<T: Plain>(comm: &dyn Communicator, count: usize) -> Vec<Vec<T>> {
    let ranks = comm.group().ranks().iter();
    ranks.map(|rank| input(*rank, count)).collect()
}

fn reductions<T: Plain>() -> impl Iterator<Item = Reduction> {
    let all = Reduction::ALL.into_iter();
    all.filter(|reduction| reduction.allows(T::DTYPE))
}

fn all_reduce<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    for reduction in reductions::<T>() {
        let sum = comm.all_reduce(&x, reduction).map_err(text)?;
        same("all_reduce", sum, &reduced(&all, reduction))?;
    }
    for reduction in Reduction::ALL {
        if !reduction.allows(T::DTYPE) && comm.all_reduce(&x, reduction).is_ok() {
            return Err(format!("{reduction} of {} is not refused", T::DTYPE));
        }
    }

    let all = inputs::<T>(comm, 2 * count);
    let columns = tensor(comm, &all[comm.index()], 2)?.transpose(0, 1);
    let max = comm.all_reduce(&columns.map_err(text)?, Reduction::Max);
    let expected = reduced(&all, Reduction::Max);
    let (even, odd) = (expected.iter().step_by(2), expected[1.min(count)..].iter().step_by(2));
    let expected: Vec<T> = even.chain(odd).copied().collect();
    same("all_reduce of a transposed tensor", max.map_err(text)?, &expected)
}

fn all_reduce_in_place<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    for reduction in reductions::<T>() {
        let x = mutable(comm, &all[comm.index()], 1)?;
        let sum = comm.all_reduce_in_place(&x, reduction).map_err(text)?;
        same("all_reduce_in_place", sum, &reduced(&all, reduction))?;
        if x.to_vec::<T>().map_err(text)? != reduced(&all, reduction) {
            return Err("all_reduce_in_place differs in its operand".to_owned());
        }
    }
    Ok(())
}

fn all_gather<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, 3 * count);
    let x = tensor(comm, &all[comm.index()], 3)?;
    same("all_gather", comm.all_gather(&x).map_err(text)?, &all.concat())
}

fn reduce_scatter<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, comm.size() * count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    for reduction in reductions::<T>() {
        let part = comm.reduce_scatter(&x, reduction).map_err(text)?;
        let start = comm.index() * count;
        let expected = &reduced(&all, reduction)[start..start + count];
        same("reduce_scatter", part, expected)?;
    }
    Ok(())
}

fn all_to_all<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, comm.size() * count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    let start = comm.index() * count;
    let blocks = all.iter().map(|input| &input[start..start + count]);
    let expected = blocks.collect::<Vec<_>>().concat();
    same("all_to_all", comm.all_to_all(&x).map_err(text)?, &expected)
}

fn broadcast<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    for (root, expected) in all.iter().enumerate() {
        let copy = comm.broadcast(&x, root).map_err(text)?;
        same("broadcast", copy, expected)?;
    }
    Ok(())
}

fn broadcast_in_place<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    for (root, expected) in all.iter().enumerate() {
        let x = mutable(comm, &all[comm.index()], 1)?;
        let copy = comm.broadcast_in_place(&x, root).map_err(text)?;
        same("broadcast_in_place", copy, expected)?;
    }
    Ok(())
}

fn reduce<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    for (root, reduction) in [0, comm.size() - 1].into_iter().zip(reductions::<T>()) {
        let result = comm.reduce(&x, reduction, root).map_err(text)?;
        at_root("reduce", comm, root, result, &reduced(&all, reduction))?;
    }
    Ok(())
}

fn reduce_in_place<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    for (root, reduction) in [0, comm.size() - 1].into_iter().zip(reductions::<T>()) {
        let x = mutable(comm, &all[comm.index()], 1)?;
        let result = comm.reduce_in_place(&x, reduction, root).map_err(text)?;
        at_root("reduce_in_place", comm, root, result, &reduced(&all, reduction))?;
    }
    Ok(())
}

/// A member's part is a slice of the whole, in its place.
fn slices_of_a_buffer<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let own = comm.index() * count..(comm.index() + 1) * count;
    let all = inputs::<T>(comm, count);
    let mut values = vec![T::of(0); comm.size() * count];
    values[own.clone()].copy_from_slice(&all[comm.index()]);
    let whole = mutable(comm, &values, 1)?;
    let part = whole.slice(0, own.clone()).map_err(text)?;
    let gathered = comm.all_gather_into(&part, &whole).map_err(text)?;
    same("all_gather_into", gathered, &all.concat())?;

    let all = inputs::<T>(comm, comm.size() * count);
    for reduction in reductions::<T>() {
        let whole = mutable(comm, &all[comm.index()], 1)?;
        let part = whole.slice(0, own.clone()).map_err(text)?;
        let result = comm.reduce_scatter_into(&whole, reduction, &part);
        let expected = &reduced(&all, reduction)[own.clone()];
        same("reduce_scatter_into", result.map_err(text)?, expected)?;
    }
    Ok(())
}

fn at_root<T: Plain>(
    what: &str,
    comm: &dyn Communicator,
    root: usize,
    result: Pending<Option<Tensor>>,
    expected: &[T],
) -> Result<(), String> {
    match (result.wait().map_err(text)?, comm.index() == root) {
        (Some(tensor), true) => same(what, Pending::by_host(|| Ok(tensor)), expected),
        (None, false) => Ok(()),
        (other, _) => Err(format!("{what} to {root} differs: got {other:?}")),
    }
}

fn gather_and_scatter<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    for root in [0, comm.size() - 1] {
        let gathered = comm.gather(&x, root).map_err(text)?;
        at_root("gather", comm, root, gathered, &all.concat())?;
    }

    let parts = inputs::<T>(comm, comm.size() * count);
    for root in [0, comm.size() - 1] {
        let whole = tensor(comm, &parts[root], 1)?;
        let whole = (comm.index() == root).then_some(&whole);
        let part = comm.scatter(whole, &[count, 1], T::DTYPE, root);
        let start = comm.index() * count;
        let expected = &parts[root][start..start + count];
        same("scatter", part.map_err(text)?, expected)?;
    }
    Ok(())
}

/// A ring: every member sends to the next one. A second message does not overtake the first.
fn send_and_recv<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let (index, size) = (comm.index(), comm.size());
    let (next, before) = ((index + 1) % size, (index + size - 1) % size);
    let x = tensor(comm, &all[index], 1)?;
    let first = comm.send(&x, next).map_err(text)?;
    let second = comm.send(&tensor::<T>(comm, &[], 1)?, next).map_err(text)?;
    let received = comm.recv(&[count, 1], T::DTYPE, before).map_err(text)?;
    let empty = comm.recv(&[0, 1], T::DTYPE, before).map_err(text)?;
    same("second recv", empty, &[] as &[T])?;
    same("recv", received, &all[before])?;
    first.wait().and(second.wait()).map_err(text)
}

/// Several collectives at once, waited for in another order; one is dropped.
fn in_flight<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    let max = comm.all_reduce(&x, Reduction::Max).map_err(text)?;
    drop(comm.all_reduce(&x, Reduction::Min).map_err(text)?);
    let gathered = comm.all_gather(&x).map_err(text)?;
    let barrier = comm.barrier().map_err(text)?;
    drop(x);
    barrier.wait().map_err(text)?;
    same("gather in flight", gathered, &all.concat())?;
    same("max in flight", max, &reduced(&all, Reduction::Max))
}

fn fused<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let all = inputs::<T>(comm, count);
    let x = tensor(comm, &all[comm.index()], 1)?;
    let fused = comm.fuse(|comm| Ok((comm.all_reduce(&x, Reduction::Max)?, comm.all_gather(&x)?)));
    let (max, gathered) = fused.map_err(text)?;
    same("fused all_gather", gathered, &all.concat())?;
    same("fused all_reduce", max, &reduced(&all, Reduction::Max))
}

fn rows(comm: &dyn Communicator, count: usize) -> Vec<usize> {
    (0..comm.size()).map(|index| (2 * index + count) % 4).collect()
}

fn all_gather_rows<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let rows = rows(comm, count);
    let ranks = comm.group().ranks().iter().zip(&rows);
    let all: Vec<Vec<T>> = ranks.map(|(rank, rows)| input(*rank, 3 * rows)).collect();
    let x = tensor(comm, &all[comm.index()], 3)?;
    let gathered = comm.all_gather_rows(&x, &rows).map_err(text)?;
    same("all_gather_rows", gathered, &all.concat())?;

    let into = mutable(comm, &vec![T::of(0); all.concat().len()], 3)?;
    let gathered = comm.all_gather_rows_into(&x, &rows, &into).map_err(text)?;
    same("all_gather_rows_into", gathered, &all.concat())
}

fn reduce_scatter_rows<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let rows = rows(comm, count);
    let all = inputs::<T>(comm, 3 * rows.iter().sum::<usize>());
    let x = tensor(comm, &all[comm.index()], 3)?;
    let (start, own) = (3 * rows[..comm.index()].iter().sum::<usize>(), 3 * rows[comm.index()]);
    for reduction in reductions::<T>() {
        let part = comm.reduce_scatter_rows(&x, &rows, reduction);
        let expected = &reduced(&all, reduction)[start..start + own];
        same("reduce_scatter_rows", part.map_err(text)?, expected)?;

        let into = mutable(comm, &vec![T::of(0); own], 3)?;
        let part = comm.reduce_scatter_rows_into(&x, &rows, reduction, &into);
        same("reduce_scatter_rows_into", part.map_err(text)?, expected)?;
    }
    Ok(())
}

fn all_to_all_rows<T: Plain>(comm: &dyn Communicator, count: usize) -> Result<(), String> {
    let (size, me) = (comm.size(), comm.index());
    let between = |from: usize, to: usize| (from + 2 * to + count) % 3;
    let send: Vec<usize> = (0..size).map(|to| between(me, to)).collect();
    let recv: Vec<usize> = (0..size).map(|from| between(from, me)).collect();

    let of_rank = |from: usize| -> Vec<T> {
        let rows: usize = (0..size).map(|to| between(from, to)).sum();
        input(comm.group().ranks()[from], 2 * rows)
    };
    let block = |from: usize| {
        let start: usize = (0..me).map(|to| between(from, to)).sum();
        of_rank(from)[2 * start..2 * (start + between(from, me))].to_vec()
    };
    let expected: Vec<T> = (0..size).flat_map(block).collect();

    let x = tensor(comm, &of_rank(me), 2)?;
    let received = comm.all_to_all_rows(&x, &send, &recv).map_err(text)?;
    same("all_to_all_rows", received, &expected)
}

fn gather_rows_and_scatter_rows<T: Plain>(
    comm: &dyn Communicator,
    count: usize,
) -> Result<(), String> {
    let rows = rows(comm, count);
    let ranks = comm.group().ranks().iter().zip(&rows);
    let all: Vec<Vec<T>> = ranks.map(|(rank, rows)| input(*rank, 2 * rows)).collect();
    let x = tensor(comm, &all[comm.index()], 2)?;
    for root in [0, comm.size() - 1] {
        let gathered = comm.gather_rows(&x, &rows, root).map_err(text)?;
        at_root("gather_rows", comm, root, gathered, &all.concat())?;

        let whole = tensor(comm, &all.concat(), 2)?;
        let whole = (comm.index() == root).then_some(&whole);
        let part = comm.scatter_rows(whole, &rows, &[2], T::DTYPE, root);
        same("scatter_rows", part.map_err(text)?, &all[comm.index()])?;
    }
    Ok(())
}
