//! The gradients of keys and values.

use super::problem::{Axis, Problem, View};
use super::{Form, cuda_cores, tensor_core};
use crate::assembler::{Arguments, Launch, Ptx, Variant};

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
            Form::TensorCores { head_dim } => {
                let shared = tensor_core::grad_keys_shared(head_dim);
                let blocks = tensor_core::key_blocks(head_dim);
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
    fn ptx(&self) -> Ptx {
        match self.form {
            Form::TensorCores { head_dim } => tensor_core::grad_keys(self.entry(), head_dim),
            Form::CudaCores(dtype) => cuda_cores::grad_keys(self.entry(), dtype),
        }
    }

    fn entry(&self) -> String {
        format!("attention_grad_keys_{}", self.form.name())
    }
}

/// Arguments of [`AttentionGradKeys`].
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradKeysArguments {
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
    /// [B, S, G, D], written.
    pub dk: View,
    /// [B, S, G, D], written.
    pub dv: View,
    /// Extents, mask and scale.
    pub problem: Problem,
}

impl AttentionGradKeysArguments {
    /// The bytes of the kernel's parameters.
    pub fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::new();
        for view in [self.q, self.k, self.v, self.dout] {
            view.push(&mut arguments);
        }
        arguments.push_pointer(self.lse).push_pointer(self.delta);
        for view in [self.dk, self.dv] {
            view.push(&mut arguments);
        }
        self.problem.push(Axis::Keys, &mut arguments);
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
            let (variant, problem, view) = (AttentionGradKeys::new(form), problem(form), view());
            let (ptx, launch) = (variant.ptx(), variant.launch(&problem).unwrap());
            assert_eq!(launch.dynamic_shared, ptx.dynamic_shared, "{}", ptx.entry);
            assert_eq!(launch.block, ptx.block);

            let arguments = AttentionGradKeysArguments {
                q: view,
                k: view,
                v: view,
                dout: view,
                lse: 0,
                delta: 0,
                dk: view,
                dv: view,
                problem,
            };
            assert_eq!(arguments.arguments().bytes().len(), ptx.parameter_bytes());
        }
    }
}
