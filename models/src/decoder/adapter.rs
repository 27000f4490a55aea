//! The adapter of a decoder.

use std::sync::Arc;

use meshgrad_autograd::{Module, Result};
use meshgrad_error::ensure;
use meshgrad_runtime::DType;

use super::Decoder;
use crate::layer::Layer;
use crate::lora::{Lora, LoraConfig, LoraSlot, fill_targets};

impl Decoder {
    /// Freezes the model, and adds a [`Lora`] to each projection that `config` names. Their
    /// parameters have no values yet. Clones made before have none.
    ///
    /// # Errors
    /// When the model has an adapter, the configuration is invalid or a target matches no projection.
    pub fn add_adapter(&mut self, config: &LoraConfig) -> Result<()> {
        ensure!(self.adapter.is_none(), Invalid, "the model has an adapter; merge it first");
        self.freeze();
        let targets = fill_targets(self.lora_slots(), config)?;
        self.set_adapter(config, targets);
        Ok(())
    }

    /// Stores the frozen parameters in `dtype` before they have values, except routers, which compute in f32.
    /// Training in `dtype` then needs no other copy of them.
    ///
    /// # Errors
    /// As [`Param::store_as`](meshgrad_autograd::Param::store_as).
    pub fn store_frozen_as(&self, dtype: DType) -> Result<()> {
        let routers: Vec<&str> = self.sparse_blocks().map(|moe| moe.router.gate.name()).collect();
        let params = self.params().into_iter().filter(|param| param.is_frozen());
        let mut params = params.filter(|param| !routers.contains(&param.name()));
        params.try_for_each(|param| param.store_as(dtype))
    }

    /// States that updates of the projections `targets` have been added.
    pub(crate) fn set_adapter(&mut self, config: &LoraConfig, targets: Vec<String>) {
        self.adapter = Some(Arc::new(LoraConfig { targets, ..config.clone() }));
    }

    /// Adds the updates of its adapter to the weights, and removes them. Clones made before keep theirs and share
    /// the weights, so they would count the updates twice. Parameters stay frozen.
    ///
    /// # Errors
    /// When a parameter has no value.
    pub fn merge_adapter(&mut self) -> Result<()> {
        self.adapter = None;
        for layer in &mut self.layers {
            layer.merge_loras()?;
        }
        Ok(())
    }

    /// Removes its adapter without merging it.
    #[must_use]
    pub fn without_adapter(mut self) -> Decoder {
        self.adapter = None;
        self.lora_slots().into_iter().for_each(|slot| *slot.lora = None);
        self
    }

    /// Its places for low-rank updates.
    pub(crate) fn lora_slots(&mut self) -> Vec<LoraSlot<'_>> {
        self.layers.iter_mut().flat_map(Layer::lora_slots).collect()
    }

    /// The low-rank updates of its adapter.
    pub fn loras_mut(&mut self) -> impl Iterator<Item = &mut Lora> {
        self.lora_slots().into_iter().filter_map(|slot| slot.lora.as_mut())
    }
}
