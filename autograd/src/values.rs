//! The values of a module, set aside while it has others.

use meshgrad_runtime::Tensor;

use crate::{Buffer, Module, Param};

/// The values of parameters and buffers, set aside for a run on a meta device.
#[must_use = "without `restore`, the values are lost"]
pub struct Values {
    params: Vec<(Param, Option<Tensor>)>,
    buffers: Vec<(Buffer, Option<Tensor>)>,
}

impl Values {
    /// Takes the values of `module`, except those of parameters with a [`Home`](crate::Home).
    pub fn take(module: &impl Module) -> Values {
        let params = module.params().into_iter();
        let buffers = module.buffers().into_iter();
        Values {
            params: params.map(|it| (it.clone(), it.take())).collect(),
            buffers: buffers.map(|it| (it.clone(), it.take())).collect(),
        }
    }

    /// Puts them back in place of the current ones.
    pub fn restore(self) {
        // Setting cannot fail: each value came from the same parameter.
        for (param, value) in self.params {
            param.take();
            let _ = value.map(|value| param.set(&value));
        }
        for (buffer, value) in self.buffers {
            buffer.take();
            let _ = value.map(|value| buffer.set(&value));
        }
    }
}
