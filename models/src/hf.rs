//! Hugging Face folders: config.json and safetensors, read and written under the names that
//! transformers uses.
//!
//! One parameter may be several tensors of the folder: gate and up are one matrix, and so are all
//! experts of a layer. A [mapping](crate::families::FamilyConfig::mapping) relates them; reading and
//! writing apply it in opposite directions. An adapter is read and written as PEFT does. Parameters
//! may be on any device except a meta device ([`load`](meshgrad_load)).

pub(crate) mod adapters;
mod companions;
mod foreign;
mod loader;
pub(crate) mod map;
mod save;

use std::path::Path;

use meshgrad_error::Result;

use crate::folder::unreadable;

pub use adapters::{
    ADAPTER_CONFIG, ADAPTER_FILE, add_adapter, all_files, base_folder, fill_adapter, read_adapter,
    stored_parts,
};
pub use companions::companions;
pub use loader::{Filled, Loaded, Loader, ignored_note, load, read_config};
pub use map::Experts;
pub use save::{add_model, add_shards};

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|cause| unreadable(path, cause))
}
