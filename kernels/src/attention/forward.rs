//! The forward kernel: the attention output and the log-sum-exp of each query.

use super::problem::{Axis, Problem, View};
use super::{Form, cuda_cores, tensor_core};
use crate::assembler::{Arguments, Launch, Ptx, Variant};
use crate::faults::FaultSite;

/// `out = softmax(scale q k^T) v` and `lse = ln sum_k exp(scale q k^T)`, over the visible keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    form: Form,
}

impl Attention {
    /// The kernel of this form.
    pub fn new(form: Form) -> Attention {
        Attention { form }
    }

    /// The launch; `None` if there are no queries.
    pub fn launch(&self, problem: &Problem) -> Option<Launch> {
        match self.form {
            Form::TensorCores { head_dim } => problem
                .launch(Axis::Queries, 1, tensor_core::THREADS)
                .map(|launch| launch.with_dynamic_shared(tensor_core::forward_shared(head_dim))),
            Form::CudaCores(_) => {
                let blocks = cuda_cores::blocks(problem.extents.head_dim());
                problem.launch(Axis::Queries, blocks, cuda_cores::THREADS)
            }
        }
    }
}

impl Variant for Attention {
    fn ptx(&self) -> Ptx {
        match self.form {
            Form::TensorCores { head_dim } => tensor_core::forward(self.entry(), head_dim),
            Form::CudaCores(dtype) => cuda_cores::forward(self.entry(), dtype),
        }
    }

    fn entry(&self) -> String {
        format!("attention_{}", self.form.name())
    }
}

/// Arguments of [`Attention`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionArguments {
    /// [B, T, H, D], read.
    pub q: View,
    /// [B, S, G, D], read.
    pub k: View,
    /// [B, S, G, D], read.
    pub v: View,
    /// [B, T, H, D], written.
    pub out: View,
    /// [B, H, T] of f32, written.
    pub lse: u64,
    /// Fault sites for out-of-range values of [`Problem::sequences`], first for queries and then
    /// for keys.
    pub faults: [FaultSite; 2],
    /// Extents, mask and scale.
    pub problem: Problem,
}

impl AttentionArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for view in [self.q, self.k, self.v, self.out] {
            view.push(&mut arguments);
        }
        arguments.push_pointer(self.lse);
        for site in self.faults {
            site.push(&mut arguments);
        }
        self.problem.push(Axis::Queries, &mut arguments);
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FORMS, problem, view};
    use super::*;

    /// Each launch requests the shared memory that its kernel declares, and passes all parameters.
    #[test]
    fn launches_fit_their_kernels() {
        for form in FORMS {
            let (variant, problem, view) = (Attention::new(form), problem(form), view());
            let (ptx, launch) = (variant.ptx(), variant.launch(&problem).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared, "{}", ptx.entry);
            assert_eq!(launch.block, ptx.block);

            let arguments = AttentionArguments {
                q: view,
                k: view,
                v: view,
                out: view,
                lse: 0,
                faults: [FaultSite::new(0, 1); 2],
                problem,
            };
            assert_eq!(arguments.arguments().bytes().len(), ptx.parameter_bytes());
        }
    }
}
