//! The row sums that both gradient kernels subtract.

use super::problem::Extents;
use super::{View, cta_tile};
use crate::assembler::{Arguments, Kernel, Launch, Ptx, Target, Variant, group_sum};
use crate::dtype::Dtype;

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
        AttentionDelta {
            dtype,
            vectors: whole && aligned,
            has_dlse: false,
        }
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

impl Variant for AttentionDelta {
    fn ptx(&self) -> Ptx {
        let k = &Kernel::new(self.entry(), Target::Sm80, THREADS);
        let [out, dout] = ["out", "dout"].map(|name| cta_tile::View::parameter(k, name));
        let delta = k.pointer("delta");
        let of_lse = self.has_dlse.then(|| ["lse", "dlse"].map(|x| k.pointer(x)));
        let rows = k.u64_param("rows");
        let [queries, heads, head_dim] = ["queries", "heads", "head_dim"].map(|x| k.u32_param(x));

        let lane = k.thread() & (LANES - 1);
        let row = k.cta().mul_wide(THREADS / LANES) + (k.thread() / LANES).wide();
        let exists = row.lt(rows);
        // Consecutive rows are consecutive heads of a query, which are usually contiguous.
        let token = row / heads.wide();
        let head = (row % heads.wide()).low();
        let (batch, query) = (
            (token / queries.wide()).low(),
            (token % queries.wide()).low(),
        );
        let [out, dout] = [out, dout].map(|view| view.row(batch, query, head));

        let (sum, size) = (k.var(0.0_f32), self.dtype.size());
        let each = if self.vectors {
            self.dtype.per_vector()
        } else {
            1
        };
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
        let total = match of_lse {
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

/// Arguments of [`AttentionDelta`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionDeltaArguments {
    /// [B, T, H, D], read.
    pub out: View,
    /// [B, T, H, D], read.
    pub dout: View,
    /// [B, H, T] of f32, written.
    pub delta: u64,
    /// lse and its gradient, both [B, H, T] of f32, read; with [`AttentionDelta::with_dlse`].
    pub lse_and_dlse: Option<[u64; 2]>,
    /// Extents of q, k and v.
    pub extents: Extents,
}

impl AttentionDeltaArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for view in [self.out, self.dout] {
            view.push(&mut arguments);
        }
        arguments.push_pointer(self.delta);
        for pointer in self.lse_and_dlse.into_iter().flatten() {
            arguments.push_pointer(pointer);
        }
        self.extents.push_rows(&mut arguments);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FORMS, problem, view};
    use super::*;

    #[test]
    fn arguments_fill_the_parameters() {
        let problem = problem(FORMS[0]);
        for lse_and_dlse in [None, Some([0; 2])] {
            let delta = AttentionDelta::new(Dtype::Bf16, 64, true);
            let delta = delta.with_dlse(lse_and_dlse.is_some());
            let arguments = AttentionDeltaArguments {
                out: view(),
                dout: view(),
                delta: 0,
                lse_and_dlse,
                extents: problem.extents,
            };
            let bytes = arguments.arguments().bytes().len();
            assert_eq!(bytes, delta.ptx().parameter_bytes());
        }
    }
}
