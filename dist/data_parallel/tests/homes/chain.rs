//! A chain of square layers.

use meshgrad_autograd::{Grads, Init, Module, Param, Tape, Track, Var, ops as tracked};
use meshgrad_mesh::Placement;
use meshgrad_runtime::{DType, Device, Result, Tensor, ops, redistribute};

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
        Chain {
            layers: (0..layers).map(layer).collect(),
        }
    }

    /// The result of the last layer. Calls `work` in the forward and in the backward pass of each.
    fn forward(&self, x: &Tensor, work: impl Fn() + Clone + Send + 'static) -> Result<Var> {
        let mut x = Var::constant(x.clone());
        for layer in &self.layers {
            let y = tracked::linear(&x, &layer.weight.var()?)?;
            work();
            let work = work.clone();
            x = y.value().clone().tracked([&y], move |dy, [dx]| {
                work();
                dx.add(|| Ok(dy.clone()))
            })?;
        }
        Ok(x)
    }

    /// A step on a batch whose rows `axis` shards; nothing is updated. Returns the bytes that the
    /// tape saved.
    pub(crate) fn step(
        &self,
        device: &Device,
        (axis, rows): (&str, usize),
        grads: &mut Grads,
        work: impl Fn() + Clone + Send + 'static,
    ) -> Result<usize> {
        let width = self.layers[0].weight.shape()[0];
        let x = ops::full(device, &[rows, width], DType::F32, 1.0)?;
        let x = redistribute(&x, [(axis, Placement::shard(0))])?;
        let (y, tape) = Tape::record(|| self.forward(&x, work))?;
        let saved = tape.saved_bytes();
        let dy = y.value().clone();
        grads.last_pass();
        tape.backward(&[(&y, dy)], grads)?;
        grads.all()?;
        grads.clear();
        Ok(saved)
    }
}
