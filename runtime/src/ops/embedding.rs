//! Embedding lookup, and its gradient.
//!
//! Legend: V rows of the table, D features.

use super::{dense_rows, summed_in};
use crate::cpu::embedding as kernels;
use crate::launch::elementwise::Target;
use crate::launch::index_sums::{self, Rows};
use crate::launch::indexing as launch;
use crate::{Accumulator, DType, Result, Shape, Signature, Tensor, for_float, ops};

static EMBEDDING: Signature =
    Signature::new("embedding", "table: F[v d], ids: I[..] -> y: F[.. d]", 0).linear_in(&["table"]);
static EMBEDDING_GRAD_INTO: Signature = Signature::new(
    "embedding_grad_into",
    "dy: F[.. d], ids: I[..], dtable: A[v d] -> dtable: A[v d]",
    0,
)
.linear_in(&["dy"]);

pub(super) static SIGNATURES: &[&Signature] = &[&EMBEDDING, &EMBEDDING_GRAD_INTO];

/// y_i = table_{ids_i}: the rows of `table` selected by `ids`.
///
/// # Shapes
/// `table` [V, D], float; `ids` [..] of an index dtype; returns [.., D].
///
/// If the rows of `table` are sharded, each rank looks up the ids in its range and has zeros for
/// the others: the result is a partial sum.
///
/// # Errors
/// For the first id outside of 0..V.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let mut call = EMBEDDING.call(&[table, ids])?;
    let range = table.sharded_shape().indices(call.name(), 0)?;
    let table = dense_rows(table)?;
    let mut y = call.output(0)?;
    if call.device().is_gpu() {
        let ids = ops::contiguous(ids)?;
        call.launch(|gpu| launch::select(gpu, &table, (0, range), &ids, &y))?;
        return Ok(y.finish());
    }
    let ids = index_list(ids)?;
    call.compute(|| {
        for_float!(table.dtype(), T => {
            kernels::embedding::<T>(call.name(), &table, &ids, range, y.slice()?)
        })
    })?;
    Ok(y.finish())
}

/// dtable_v += sum of dy_i over the i with ids_i = v: the gradient of [`embedding`] with respect to
/// its table.
///
/// One thread sums each row of the table, in the order of positions and in the accumulator dtype,
/// so the bits are the same in every run.
///
/// # Shapes
/// `dy` [.., D], `ids` [..] as given to [`embedding`], `dtable` [V, D] of any float dtype. If the
/// rows of `dtable` are sharded, each rank sums its own.
///
/// # Errors
/// As [`embedding`]; while `dtable` is in use.
pub fn embedding_grad_into(dy: &Tensor, ids: &Tensor, dtable: &mut Accumulator) -> Result<()> {
    summed_in(dy.dtype().accumulator(), dtable, |dtable| {
        let call = dtable.call(&EMBEDDING_GRAD_INTO, &[dy, ids])?;
        let call = call.with_flops(dy.elements() as u64);
        let dy = dense_rows(dy)?;
        let range = dtable.buffer().contiguous_range(call.name())?;

        let [table_rows, features] = [call.extent("v"), call.extent("d")];
        let indices = dtable.indices(call.name(), 0)?;
        if call.device().is_gpu() {
            let rows = Rows {
                numbers: Shape::new(&[table_rows])?,
                dim: 0,
                range: indices,
                outer: 1,
                inner: features,
                every: dtable.is_empty(),
            };
            let ids = ops::reshape(&ids.local(), &[ids.elements()])?;
            call.launch(|gpu| {
                let to = Target::changed(gpu, dtable.buffer())?;
                index_sums::sum_rows(gpu, &call, [&dy, &ids], &rows, &to)
            })?;
            return dtable.filled_by(&call);
        }
        let ids = index_list(ids)?;
        let mut order =
            call.workspace(kernels::position_workspace(table_rows, ids.elements()), DType::I64)?;
        call.compute(|| {
            let workspace = order.slice()?;
            let order =
                kernels::group_positions(call.name(), &ids, table_rows, indices, workspace)?;
            for_float!(dy.dtype(), T => {
                let mut to = dtable.buffer().write(call.name())?;
                kernels::embedding_grad::<T>(&dy, &order, features, &mut to[range], dtable.is_empty())
            })
        })?;
        dtable.filled_by(&call)
    })
}

/// Indices as contiguous i64.
pub(super) fn index_list(ids: &Tensor) -> Result<Tensor> {
    ops::contiguous(&ops::cast(ids, DType::I64)?)
}
