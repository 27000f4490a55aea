//! What a training keeps on its device between steps, and can move to the host.

use meshgrad_autograd::Module;
use meshgrad_runtime::{Device, Tensor};

use crate::Result;
use crate::optimizer::Optimizer;

/// Memory that a [`Trainer`](crate::trainer::Trainer) keeps from one step to the next, and that can
/// [sleep](crate::trainer::Trainer::sleep).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The buffers of gradients. They hold nothing between steps, so their values are not moved.
    Gradients,
    /// The state of the optimizer, and the averages of the weights.
    Optimizer,
    /// The parameters and buffers of the model, frozen ones included.
    Model,
}

impl Kept {
    /// Everything.
    pub const ALL: [Kept; 3] = [Kept::Gradients, Kept::Optimizer, Kept::Model];
}

/// The tensors of a training that are kept between steps.
pub(crate) struct KeptTensors<'a, M> {
    pub(crate) model: &'a M,
    pub(crate) optimizer: &'a Optimizer,
}

impl<M: Module> KeptTensors<'_, M> {
    /// Moves `kept` to the host, and returns the memory that becomes free to the driver.
    pub(crate) fn sleep(&self, kept: &[Kept], device: &Device) -> Result<()> {
        if kept.contains(&Kept::Model) {
            let params = self.model.params();
            params.iter().for_each(|param| param.free_copies());
        }
        for kept in kept {
            for tensor in self.of(*kept)? {
                match kept {
                    Kept::Gradients => tensor.sleep_without_values()?,
                    Kept::Optimizer | Kept::Model => tensor.sleep()?,
                }
            }
        }
        device.empty_cache();
        Ok(())
    }

    pub(crate) fn wake(&self, kept: &[Kept]) -> Result<()> {
        for kept in kept.iter().rev() {
            self.of(*kept)?.iter().try_for_each(Tensor::wake)?;
        }
        Ok(())
    }

    fn of(&self, kept: Kept) -> Result<Vec<Tensor>> {
        match kept {
            Kept::Gradients => Ok(self.optimizer.gradient_buffers()),
            Kept::Optimizer => {
                let state = self.optimizer.state().into_iter();
                let tensors = state.flat_map(|state| state.tensors);
                Ok(tensors.map(|(_, tensor)| tensor).collect())
            }
            Kept::Model => {
                let params = self.model.params();
                let params = params.iter().map(|param| param.kept_value());
                let buffers = self.model.buffers();
                let buffers = buffers.iter().map(|buffer| buffer.value());
                Ok(params.chain(buffers).collect::<Result<_, _>>()?)
            }
        }
    }
}
