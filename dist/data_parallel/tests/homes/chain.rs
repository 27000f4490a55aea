//! A chain of square layers.

use meshgrad_autograd::{Grads, Init, Module, Param, Tape, Var, ops as tracked};
use meshgrad_collectives::redistribute;
use meshgrad_mesh::Placement;
use meshgrad_runtime::{DType, Device, Result, Tensor, ops};

#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub(crate) struct Chain {
    pub(crate) layers: Vec<Layer>,
}

#[derive(Clone, Module)]
#[module(crate = meshgrad_autograd)]
pub(crate) struct Layer {
    pub(crate) weight: Param,
}

impl Chain {
    pub(crate) fn new(layers: usize, width: usize) -> Chain {
        let layer = |at: usize| {
            let name = format!("layers.{at}.weight");
            let weight = Param::new(name, [width, width], Init::Normal { std: 0.1 });
            Layer { weight }
        };
        Chain { layers: (0..layers).map(layer).collect() }
    }

    /// The result of the last layer.
    fn forward(&self, x: &Tensor) -> Result<Var> {
        let x = Var::constant(x.clone());
        let mut layers = self.layers.iter();
        layers.try_fold(x, |x, layer| tracked::linear(&x, &layer.weight.var()?))
    }

    /// A step on a batch whose rows `axis` shards; nothing is updated. Returns the bytes that the
    /// tape saved.
    pub(crate) fn step(
        &self,
        device: &Device,
        (axis, rows): (&str, usize),
        grads: &mut Grads,
    ) -> Result<usize> {
        let width = self.layers[0].weight.shape()[0];
        let x = ops::full(device, &[rows, width], DType::F32, 1.0)?;
        let x = redistribute(&x, [(axis, Placement::shard(0))])?;
        let (y, tape) = Tape::record(|| self.forward(&x))?;
        let saved = tape.saved_bytes();
        let dy = y.value().clone();
        tape.backward_from(&[(&y, dy)], grads)?;
        grads.all()?;
        grads.clear();
        Ok(saved)
    }
}
