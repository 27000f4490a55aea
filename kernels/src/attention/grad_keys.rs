//! The gradients of keys and values.

use super::arguments::AttentionGradKeysArguments;
use super::problem::{Axis, Problem};
use super::{Form, cuda_cores, tensor_core};
use crate::assembler::{Launch, Ptx, Variant};

/// `dv = P^T dout` and `dk = scale dS^T q`, summed over the query heads of a key-value head. P and
/// dS are defined at [`AttentionGradQueries`](super::AttentionGradQueries).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionGradKeys {
    form: Form,
}

impl AttentionGradKeys {
    /// The kernel of this form.
    pub fn new(form: Form) -> AttentionGradKeys {
        AttentionGradKeys { form }
    }

    /// The launch; `None` if there are no keys.
    pub fn launch(&self, problem: &Problem) -> Option<Launch> {
        match self.form {
            Form::TensorCores(lines) => {
                let shared = tensor_core::grad_keys_shared(lines);
                let blocks = tensor_core::key_blocks(lines);
                let launch = problem.launch(Axis::Keys, blocks, tensor_core::THREADS);
                launch.map(|launch| launch.with_dynamic_shared(shared))
            }
            Form::CudaCores(_) => {
                let blocks = cuda_cores::blocks(problem.extents.head_dim());
                problem.launch(Axis::Keys, blocks, cuda_cores::THREADS)
            }
        }
    }
}

impl Variant for AttentionGradKeys {
    type Arguments = AttentionGradKeysArguments;

    fn ptx(&self) -> Ptx {
        match self.form {
            Form::TensorCores(lines) => tensor_core::grad_keys(self.entry(), lines),
            Form::CudaCores(dtype) => cuda_cores::grad_keys(self.entry(), dtype),
        }
    }

    fn entry(&self) -> String {
        format!("attention_grad_keys_{}", self.form.name())
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
            let (variant, problem) = (AttentionGradKeys::new(form), problem(form));
            let (ptx, launch) = (variant.ptx(), variant.launch(&problem).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared, "{}", ptx.entry);
            assert_eq!(launch.block, ptx.block);
        }
    }
}
