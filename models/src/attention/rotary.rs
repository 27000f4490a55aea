//! The angles of rotary positions.

use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_autograd::{Result, ops};
use meshgrad_runtime::{Device, Tensor};

use crate::config::Rope;

/// The frequencies of the rotary embedding. Clones share the copy on the device.
#[derive(Clone)]
pub struct Rotary {
    /// Radians per position, for each pair of features.
    frequencies: Vec<f32>,
    attention_factor: f64,
    /// The frequencies on the device that was used last, copied once.
    on_device: Arc<Mutex<Option<Tensor>>>,
}

impl Rotary {
    /// The frequencies of heads of `head_dim` features.
    pub fn new(rope: &Rope, head_dim: usize) -> Rotary {
        let frequencies = rope.inverse_frequencies(head_dim).into_iter();
        Rotary {
            frequencies: frequencies.map(|radians| radians as f32).collect(),
            attention_factor: rope.attention_factor(),
            on_device: Arc::default(),
        }
    }

    /// Cosines and sines for `positions`, i64 [b, t]: each [b, t, c/2], f32.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn tables(&self, positions: &Tensor) -> Result<(Tensor, Tensor)> {
        let frequencies = self.frequencies_on(positions.device())?;
        ops::rope_tables(positions, &frequencies, self.attention_factor)
    }

    fn frequencies_on(&self, device: &Device) -> Result<Tensor> {
        let mut cached = self.on_device.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = &*cached
            && cached.device() == device
        {
            return cached.as_replicated();
        }
        let shape = [self.frequencies.len()];
        let frequencies = Tensor::from_slice(device, &shape, &self.frequencies)?;
        *cached = Some(frequencies.clone());
        frequencies.as_replicated()
    }
}
