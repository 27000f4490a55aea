//! The gradient of queries.

use super::problem::{Axis, Problem, View};
use super::{Form, cuda_cores, tensor_core};
use crate::assembler::{Arguments, Launch, Ptx, Variant};

/// `dq = scale dS k`, where `P = exp(scale q k^T - lse)` and `dS = P * (dout v^T - delta)`. The
/// kernel recomputes the weights P.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradQueries {
    form: Form,
}

impl AttentionGradQueries {
    /// The kernel of this form.
    pub fn new(form: Form) -> AttentionGradQueries {
        AttentionGradQueries { form }
    }

    /// The launch; `None` if there are no queries.
    pub fn launch(&self, problem: &Problem) -> Option<Launch> {
        match self.form {
            Form::TensorCores { head_dim } => {
                let shared = tensor_core::grad_queries_shared(head_dim);
                let launch = problem.launch(Axis::Queries, 1, tensor_core::THREADS);
                launch.map(|launch| launch.with_dynamic_shared(shared))
            }
            Form::CudaCores(_) => {
                let blocks = cuda_cores::blocks(problem.extents.head_dim());
                problem.launch(Axis::Queries, blocks, cuda_cores::THREADS)
            }
        }
    }
}

impl Variant for AttentionGradQueries {
    fn ptx(&self) -> Ptx {
        match self.form {
            Form::TensorCores { head_dim } => tensor_core::grad_queries(self.entry(), head_dim),
            Form::CudaCores(dtype) => cuda_cores::grad_queries(self.entry(), dtype),
        }
    }

    fn entry(&self) -> String {
        format!("attention_grad_queries_{}", self.form.name())
    }
}

/// Arguments of [`AttentionGradQueries`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradQueriesArguments {
    /// [B, T, H, D], read.
    pub q: View,
    /// [B, S, G, D], read.
    pub k: View,
    /// [B, S, G, D], read.
    pub v: View,
    /// [B, T, H, D], read.
    pub dout: View,
    /// [B, H, T] of f32, read.
    pub lse: u64,
    /// [B, H, T] of f32, read.
    pub delta: u64,
    /// [B, T, H, D], written.
    pub dq: View,
    /// Extents, mask and scale.
    pub problem: Problem,
}

impl AttentionGradQueriesArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for view in [self.q, self.k, self.v, self.dout] {
            view.push(&mut arguments);
        }
        arguments.push_pointer(self.lse).push_pointer(self.delta);
        self.dq.push(&mut arguments);
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
            let (variant, problem, view) = (AttentionGradQueries::new(form), problem(form), view());
            let (ptx, launch) = (variant.ptx(), variant.launch(&problem).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared, "{}", ptx.entry);
            assert_eq!(launch.block, ptx.block);

            let arguments = AttentionGradQueriesArguments {
                q: view,
                k: view,
                v: view,
                dout: view,
                lse: 0,
                delta: 0,
                dq: view,
                problem,
            };
            assert_eq!(arguments.arguments().bytes().len(), ptx.parameter_bytes());
        }
    }
}
