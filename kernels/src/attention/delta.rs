//! The row sums that both gradient kernels subtract.

use super::View;
use super::problem::Extents;
use crate::assembler::{In, Kernel, Launch, Out, Ptx, Target, Variant, group_sum};
use crate::dtype::Dtype;
use crate::params;

/// Threads per CTA.
const THREADS: u32 = 128;

/// Threads per row.
const LANES: u32 = 8;

/// `delta = sum_d out * dout - dlse` for each query and head, where dlse is the gradient of the
/// log-sum-exp, if there is one. For a query without keys, dlse is not used: it can be NaN. Both
/// gradient kernels subtract delta from dout v^T.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionDelta {
    dtype: Dtype,
    /// Whether rows are whole, aligned vectors of 16 bytes.
    vectors: bool,
    has_dlse: bool,
}

impl AttentionDelta {
    /// The kernel for rows of `head_dim` elements. `aligned`: whether all rows are 16-byte aligned.
    pub fn new(dtype: Dtype, head_dim: usize, aligned: bool) -> AttentionDelta {
        let whole = head_dim.is_multiple_of(dtype.per_vector() as usize);
        AttentionDelta { dtype, vectors: whole && aligned, has_dlse: false }
    }

    /// The same kernel, which subtracts the gradient of the log-sum-exp if `has_dlse`.
    pub fn with_dlse(self, has_dlse: bool) -> AttentionDelta {
        AttentionDelta { has_dlse, ..self }
    }

    /// The launch; `None` if there are no queries.
    pub fn launch(&self, extents: &Extents) -> Option<Launch> {
        let ctas = extents.rows().div_ceil(u64::from(THREADS / LANES));
        let ctas = u32::try_from(ctas).unwrap_or(u32::MAX);
        Launch::new([ctas, 1, 1], THREADS)
    }
}

params! {
    /// Arguments of [`AttentionDelta`].
    pub struct AttentionDeltaArguments => Call for variant: AttentionDelta {
        /// [B, T, H, D].
        out: View<In>,
        /// [B, T, H, D].
        dout: View<In>,
        /// [B, H, T] of f32.
        delta: Out,
        /// lse and its gradient, both [B, H, T] of f32; with [`AttentionDelta::with_dlse`].
        lse_and_dlse: Option<[In; 2]> = variant.has_dlse,
        /// B T H.
        rows: u64,
        /// T.
        queries: u32,
        /// H.
        heads: u32,
        /// D.
        head_dim: u32,
    }
}

impl AttentionDeltaArguments {
    /// The arguments for these extents.
    pub fn new(
        [out, dout]: [View<In>; 2],
        delta: Out,
        lse_and_dlse: Option<[In; 2]>,
        extents: &Extents,
    ) -> AttentionDeltaArguments {
        AttentionDeltaArguments {
            out,
            dout,
            delta,
            lse_and_dlse,
            rows: extents.rows(),
            queries: extents.queries(),
            heads: extents.heads(),
            head_dim: extents.head_dim(),
        }
    }
}

impl Variant for AttentionDelta {
    type Arguments = AttentionDeltaArguments;

    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let Call { out, dout, delta, lse_and_dlse, rows, queries, heads, head_dim } =
            self.parameters(k);

        let lane = k.thread() & (LANES - 1);
        let row = k.cta().mul_wide(THREADS / LANES) + (k.thread() / LANES).wide();
        let exists = row.lt(rows);
        // Consecutive rows are consecutive heads of a query, which are usually contiguous.
        let token = row / heads.wide();
        let head = (row % heads.wide()).low();
        let (batch, query) = ((token / queries.wide()).low(), (token % queries.wide()).low());
        let [out, dout] = [out, dout].map(|view| view.row(batch, query, head));

        let (sum, size) = (k.var(0.0_f32), self.dtype.size());
        let each = if self.vectors { self.dtype.per_vector() } else { 1 };
        let end = exists.select(head_dim, 0u32);
        k.for_range(lane * each, end, LANES * each, |feature| {
            let [out, dout] = [out, dout].map(|row| {
                let from = row.byte_add(feature.mul_wide(size));
                match self.vectors {
                    true => self.dtype.load_vector(from).widen(),
                    false => vec![self.dtype.load(from)],
                }
            });
            for (a, b) in out.into_iter().zip(dout) {
                sum.add_product(a, b);
            }
        });

        let total = group_sum(k, *sum, LANES);
        let line = batch * heads + head;
        let at = line.mul_wide(queries) + query.wide();
        let writes = exists & lane.equals(0);
        let total = match lse_and_dlse {
            Some(of_lse) => {
                let values = of_lse.map(|base| base.element_wide::<f32>(at).load_if::<f32>(writes));
                let [lse, dlse] = values;
                let has_no_keys = lse.equals(f32::NEG_INFINITY);
                has_no_keys.select(0.0, total - dlse)
            }
            None => total,
        };
        delta.element_wide::<f32>(at).store_if(writes, total);
        k.finish()
    }

    fn entry(&self) -> String {
        let form = if self.vectors { "" } else { "_scalar" };
        let dlse = if self.has_dlse { "_dlse" } else { "" };
        format!("attention_delta_{}{form}{dlse}", self.dtype.name())
    }
}
