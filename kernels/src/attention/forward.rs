//! The forward kernel: the attention output and the log-sum-exp of each query.

use super::arguments::AttentionArguments;
use super::problem::{Axis, Problem};
use super::{Form, cuda_cores, tensor_core};
use crate::assembler::{Launch, Ptx, Variant};

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
            Form::TensorCores(lines) => problem
                .launch(Axis::Queries, 1, tensor_core::THREADS)
                .map(|launch| launch.with_dynamic_shared(tensor_core::forward_shared(lines))),
            Form::CudaCores(_) => {
                let blocks = cuda_cores::blocks(problem.extents.head_dim());
                problem.launch(Axis::Queries, blocks, cuda_cores::THREADS)
            }
        }
    }
}

impl Variant for Attention {
    type Arguments = AttentionArguments;

    fn ptx(&self) -> Ptx {
        match self.form {
            Form::TensorCores(lines) => tensor_core::forward(self.entry(), lines),
            Form::CudaCores(dtype) => cuda_cores::forward(self.entry(), dtype),
        }
    }

    fn entry(&self) -> String {
        format!("attention_{}", self.form.name())
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
            let (variant, problem) = (Attention::new(form), problem(form));
            let (ptx, launch) = (variant.ptx(), variant.launch(&problem).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared, "{}", ptx.entry);
            assert_eq!(launch.block, ptx.block);
        }
    }
}
