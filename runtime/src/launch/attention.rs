//! Launches of attention.

use meshgrad_kernels::attention::{
    Attention, AttentionArguments, AttentionDelta, AttentionDeltaArguments, AttentionGradKeys,
    AttentionGradKeysArguments, AttentionGradQueries, AttentionGradQueriesArguments, Extents, Form,
    Integers, Problem, Sequences, TokenWords, TokenWordsArguments, View, VisibleKeys,
    VisibleKeysArguments,
};
use meshgrad_kernels::{In, Out};

use super::copies::contiguous_copy;
use crate::core::arguments::attention::{AttentionMask, AttentionSequences, Shape};
use crate::launch::{Launcher, MAX_EXTENT, Operand, Plan, PlanError, extent, float};
use crate::{DType, Result, Tensor, UninitTensor};

/// The parameters of an attention, with its tensors on one GPU.
pub(crate) struct Called {
    shape: Shape,
    causal: bool,
    window: Option<usize>,
    scale: f64,
    /// With contiguous tensors on the GPU.
    sequences: AttentionSequences,
}

impl Called {
    /// Checks the extents, and copies the mask's tensors to the GPU. `to_gpu` returns a contiguous
    /// copy of a tensor on the operands' GPU.
    ///
    /// # Errors
    /// For extents that do not match. The values of the lists are not checked here.
    pub(crate) fn new(
        shape: Shape,
        mask: &AttentionMask,
        scale: f64,
        to_gpu: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Called> {
        shape.check_head_dim()?;
        let sequences = match &mask.sequences {
            AttentionSequences::Rows => AttentionSequences::Rows,
            AttentionSequences::Cached { q_offset, k_len } => {
                shape.check_per_row("q_offset", q_offset.elements())?;
                shape.check_per_row("k_len", k_len.elements())?;
                AttentionSequences::Cached { q_offset: to_gpu(q_offset)?, k_len: to_gpu(k_len)? }
            }
            AttentionSequences::Ranges(ranges) => AttentionSequences::Ranges(to_gpu(ranges)?),
        };
        Ok(Called { shape, causal: mask.causal, window: mask.window, scale, sequences })
    }

    /// Extents, mask and scale for a launch.
    fn problem(&self, gpu: &Launcher<'_>) -> Result<Problem> {
        let shape = &self.shape;
        let extents = Extents::new(
            [shape.batch, shape.queries, shape.keys],
            [shape.heads, shape.kv_heads],
            shape.head_dim,
        );
        let sequences = match &self.sequences {
            AttentionSequences::Rows => Sequences::Rows,
            AttentionSequences::Cached { q_offset, k_len } => Sequences::Cached {
                q_offset: integers(gpu, q_offset)?,
                k_len: integers(gpu, k_len)?,
            },
            AttentionSequences::Ranges(ranges) => Sequences::Ranges(gpu.ptr(ranges)?),
        };
        let extents = extents.and_then(|extents| extents.with_first_query(shape.first_query));
        Ok(Problem {
            extents: gpu.planned(extents.map_err(PlanError::from))?,
            causal: self.causal,
            window: self.window,
            sequences,
            scale: self.scale as f32,
        })
    }
}

fn integers(gpu: &Launcher<'_>, list: &Tensor) -> Result<Integers> {
    let wide = match list.dtype() {
        DType::I64 => Ok(true),
        DType::I32 => Ok(false),
        other => Err(PlanError::DType(other)),
    };
    Ok(Integers {
        address: gpu.ptr(list)?,
        wide: gpu.planned(wide)?,
        step: u32::from(list.elements() > 1),
    })
}

/// `x` \[B, T, H, D\], or a contiguous copy if kernels cannot read its layout or would be slow.
pub(crate) fn rows(x: &Tensor) -> Result<Tensor> {
    let operand = Operand::of(x);
    let dense = x.layout().strides().last() == Some(&1);
    let Ok(dtype) = float(x.dtype()) else {
        return Ok(x.clone()); // no kernel supports this dtype, which the launch reports
    };
    let gains = Form::benefits_from_alignment(dtype, x.shape()[3]);
    match dense && (lines_up(&operand) || !gains) {
        true => Ok(x.clone()),
        false => contiguous_copy(x),
    }
}

/// Whether all rows are 16-byte aligned.
fn lines_up(x: &Operand) -> bool {
    let strides = &x.layout.strides()[..3];
    let even = |stride: &isize| x.dtype.bytes(stride.unsigned_abs()).is_multiple_of(16);
    x.is_aligned() && strides.iter().all(even)
}

/// The kernel form for these operands, of the forward pass or of the gradients.
fn form<const N: usize>(operands: [&Tensor; N]) -> Result<Form, PlanError> {
    let (dtype, head_dim) = (float(operands[0].dtype())?, operands[0].shape()[3]);
    let aligned = operands.iter().all(|x| lines_up(&Operand::of(x)));
    let gpu = operands[0].device().properties().gpu.as_ref();
    let warpgroup_products = gpu.is_some_and(|gpu| gpu.has_warpgroup_products());
    let form = Form::new(dtype, head_dim, aligned, warpgroup_products);

    // The tiles of large heads exceed the shared memory of some GPUs.
    let fits = gpu.is_none_or(|gpu| form.shared_memory() <= gpu.shared_memory);
    Ok(if fits { form } else { Form::CudaCores(dtype) })
}

fn view<P>(address: P, x: &Operand) -> View<P> {
    let bytes = |dim: usize| x.dtype.bytes(x.layout.strides()[dim] as usize) as u64;
    View { address, strides: [0, 1, 2].map(bytes) }
}

fn read(gpu: &Launcher<'_>, x: &Tensor) -> Result<View<In>> {
    Ok(view(gpu.ptr(x)?, &Operand::of(x)))
}

fn make(gpu: &Launcher<'_>, y: &UninitTensor) -> Result<View<Out>> {
    Ok(view(gpu.uninit_ptr(y)?, &Operand::uninit(y)))
}

/// Launches the forward kernel, which writes `out` and `lse`. The operands come from [`rows`].
pub(crate) fn attention(
    gpu: &Launcher<'_>,
    called: &Called,
    [q, k, v]: [&Tensor; 3],
    [out, lse]: [&UninitTensor; 2],
) -> Result<()> {
    let problem = called.problem(gpu)?;
    let variant = Attention::new(gpu.planned(form([q, k, v]))?);
    let plan = Plan::new(variant.launch(&problem), variant);
    let [of_queries, of_keys] = problem.ranges();
    let arguments = AttentionArguments {
        faults: [gpu.fault_site(of_queries), gpu.fault_site(of_keys)],
        q: read(gpu, q)?,
        k: read(gpu, k)?,
        v: read(gpu, v)?,
        out: make(gpu, out)?,
        lse: gpu.uninit_ptr(lse)?,
        problem,
    };
    gpu.run(&plan, &arguments)
}

/// Launches the words of tokens. `limits` are exclusive upper bounds of documents and positions.
pub(crate) fn token_words(
    gpu: &Launcher<'_>,
    [documents, positions]: [&Tensor; 2],
    limits: [usize; 2],
    words: &UninitTensor,
) -> Result<()> {
    let arguments = TokenWordsArguments {
        documents: gpu.ptr(documents)?,
        positions: gpu.ptr(positions)?,
        words: gpu.uninit_ptr(words)?,
        faults: limits.map(|limit| gpu.fault_site(limit)),
        total: documents.elements() as u64,
    };
    gpu.run(&Plan::new(TokenWords.launch(arguments.total), TokenWords), &arguments)
}

/// Launches the search for the keys that each query sees. `window` is at most 2^32.
pub(crate) fn visible_keys(
    gpu: &Launcher<'_>,
    [queries, keys]: [&Tensor; 2],
    window: u64,
    ranges: &UninitTensor,
) -> Result<()> {
    let (of_queries, of_keys) = (queries.shape(), keys.shape());
    let in_row = |name, count| gpu.planned(extent("visible_keys", name, count, MAX_EXTENT));
    let arguments = VisibleKeysArguments {
        queries: gpu.ptr(queries)?,
        keys: gpu.ptr(keys)?,
        ranges: gpu.uninit_ptr(ranges)?,
        total: queries.elements() as u64,
        queries_per_row: in_row("queries", of_queries[1])?,
        keys_per_row: in_row("keys", of_keys[1])?,
        window,
    };
    gpu.run(&Plan::new(VisibleKeys.launch(arguments.total), VisibleKeys), &arguments)
}

/// The operands of [`attention_grad`]. All come from [`rows`], except `lse` and `dlse`, which are
/// contiguous.
pub(crate) struct GradOperands<'a> {
    pub(crate) q: &'a Tensor,
    pub(crate) k: &'a Tensor,
    pub(crate) v: &'a Tensor,
    pub(crate) out: &'a Tensor,
    pub(crate) lse: &'a Tensor,
    pub(crate) dout: &'a Tensor,
    /// The gradient of `lse`, if it was used.
    pub(crate) dlse: Option<&'a Tensor>,
}

/// The size of the workspace of [`attention_grad`], in f32 elements: one per query and head.
pub(crate) fn grad_workspace(shape: &Shape) -> usize {
    shape.batch * shape.heads * shape.queries
}

/// Launches three kernels. They write the row sums of dout * out, less dlse, to `workspace`, then
/// dq, then dk and dv.
pub(crate) fn attention_grad(
    gpu: &Launcher<'_>,
    called: &Called,
    operands: &GradOperands<'_>,
    workspace: &UninitTensor,
    [dq, dk, dv]: [&UninitTensor; 3],
) -> Result<()> {
    let GradOperands { q, k, v, out, lse, dout, dlse } = *operands;
    let problem = called.problem(gpu)?;
    let form = gpu.planned(form([q, k, v, dout]))?;
    let (lse, delta) = (gpu.ptr(lse)?, gpu.uninit_ptr(workspace)?);
    let [of_q, of_k, of_v, of_dout] = [q, k, v, dout].map(|x| read(gpu, x));
    let (q, k, v, of_dout) = (of_q?, of_k?, of_v?, of_dout?);

    let aligned = [out, dout].iter().all(|x| lines_up(&Operand::of(x)));
    let dtype = gpu.planned(float(out.dtype()))?;
    let variant = AttentionDelta::new(dtype, called.shape.head_dim, aligned);
    let variant = variant.with_dlse(dlse.is_some());
    let plan = Plan::new(variant.launch(&problem.extents), variant);
    let lse_and_dlse = match dlse {
        Some(dlse) => Some([lse, gpu.ptr(dlse)?]),
        None => None,
    };
    let outs = [read(gpu, out)?, of_dout];
    let arguments = AttentionDeltaArguments::new(outs, delta, lse_and_dlse, &problem.extents);
    gpu.run(&plan, &arguments)?;

    let delta = delta.written();
    let variant = AttentionGradQueries::new(form);
    let plan = Plan::new(variant.launch(&problem), variant);
    let arguments = AttentionGradQueriesArguments {
        q,
        k,
        v,
        dout: of_dout,
        lse,
        delta,
        dq: make(gpu, dq)?,
        problem,
    };
    gpu.run(&plan, &arguments)?;

    let variant = AttentionGradKeys::new(form);
    let plan = Plan::new(variant.launch(&problem), variant);
    let arguments = AttentionGradKeysArguments {
        q,
        k,
        v,
        dout: of_dout,
        lse,
        delta,
        dk: make(gpu, dk)?,
        dv: make(gpu, dv)?,
        problem,
    };
    gpu.run(&plan, &arguments)
}

#[cfg(test)]
mod tests {
    use meshgrad_kernels::attention::{Lines, Products};

    use super::*;
    use crate::{Device, GpuProperties, Layout, Properties, ops};

    fn of_warps(head_dim: u32) -> Form {
        Form::TensorCores(Lines { head_dim, products: Products::Warps })
    }

    /// Heads too large for the GPU's shared memory use the form that needs less.
    #[test]
    fn forms_fit_their_gpu() {
        let form_with = |shared_memory, head_dim| {
            let gpu = GpuProperties {
                model: "counted".into(),
                compute_capability: (8, 6),
                multiprocessors: 84,
                memory: 1 << 30,
                l2_cache: 6 << 20,
                shared_memory,
            };
            let device =
                Device::meta(&Properties { gpu: Some(gpu), ..Device::cpu().properties().clone() });
            let x = ops::full(&device, &[1, 2, 3, head_dim], DType::BF16, 1.0).unwrap();
            form([&x]).unwrap()
        };
        let large = of_warps(256);
        assert_eq!(form_with(232_448, 256), large);
        assert_eq!(form_with(101_376, 256), Form::CudaCores(meshgrad_kernels::Dtype::Bf16));
        let usual = of_warps(128);
        assert_eq!(form_with(101_376, 128), usual);
    }

    /// Heads of a fused projection are read without a copy if they are aligned.
    #[test]
    fn rows_are_aligned_if_their_start_and_strides_are() {
        let operand = |features: usize, offset| {
            let shape = crate::Shape::new(&[2, 7, 4, features]).unwrap();
            Operand { dtype: DType::BF16, layout: Layout::contiguous(shape, offset) }
        };
        assert!(lines_up(&operand(64, 8)));
        assert!(!lines_up(&operand(64, 4)), "the first element is not aligned");
        assert!(!lines_up(&operand(12, 0)), "the rows are not aligned");
    }
}
