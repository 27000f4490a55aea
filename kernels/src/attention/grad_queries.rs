//! The gradient of queries.

use super::arguments::AttentionGradQueriesArguments;
use super::problem::{Axis, Problem};
use super::{Form, cuda_cores, tensor_core};
use crate::assembler::{Launch, Ptx, Variant};

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
            Form::TensorCores(lines) => {
                let shared = tensor_core::grad_queries_shared(lines);
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
    type Arguments = AttentionGradQueriesArguments;

    fn ptx(&self) -> Ptx {
        match self.form {
            Form::TensorCores(lines) => tensor_core::grad_queries(self.entry(), lines),
            Form::CudaCores(dtype) => cuda_cores::grad_queries(self.entry(), dtype),
        }
    }

    fn entry(&self) -> String {
        format!("attention_grad_queries_{}", self.form.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FORMS, problem};
    use super::*;

    /// Each launch requests the shared memory that its kernel declares.
    #[test]
    fn launches_fit_their_kernels() {
        for form in FORMS {
            let (variant, problem) = (AttentionGradQueries::new(form), problem(form));
            let (ptx, launch) = (variant.ptx(), variant.launch(&problem).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared, "{}", ptx.entry);
            assert_eq!(launch.block, ptx.block);
        }
    }
}
