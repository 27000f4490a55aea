//! Blocks of experts with what torch computes of them.

use std::collections::BTreeMap;
use std::path::Path;

use meshgrad_runtime::{Device, Tensor};
use serde_json::Value;

use super::Parts;
use crate::small::{distance, norm};
use crate::stored::{Values, names_of, read};

/// Options, weights and tokens of a block, and its results and gradients in torch.
#[derive(Clone)]
pub(super) struct Fixture {
    pub(super) options: Value,
    pub(super) tensors: BTreeMap<String, Values<f32>>,
}

impl Fixture {
    /// Reads a folder of `tests/fixtures`.
    pub(super) fn open(folder: &str) -> Fixture {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
        let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
        Fixture {
            options: serde_json::from_str(&text).unwrap(),
            tensors: read(&folder.join("tensors.safetensors"), f32::from_le_bytes),
        }
    }

    pub(super) fn size(&self, name: &str) -> usize {
        self.options[name].as_u64().unwrap() as usize
    }

    /// The stored tensors `names`, one after the other.
    pub(super) fn tensor(&self, device: &Device, names: &[String], shape: &[usize]) -> Tensor {
        let stored = names.iter().flat_map(|name| &self.tensors[name].1);
        let values: Vec<f32> = stored.copied().collect();
        Tensor::from_slice(device, shape, &values).unwrap()
    }

    pub(super) fn x(&self, device: &Device) -> Tensor {
        self.tensor(device, &["x".to_owned()], &self.tensors["x"].0)
    }

    /// The parts that differ from torch's by more than `tolerance`, relative to the norm of torch's.
    pub(super) fn differing(&self, parts: &Parts, tolerance: f64) -> Vec<String> {
        let differs = |(name, actual): &(String, Vec<f32>)| {
            let stored = match name.as_str() {
                "y" | "counts" => vec![name.clone()],
                "dx" => vec!["grad.x".to_owned()],
                _ => names_of(name).iter().map(|name| format!("grad.{name}")).collect(),
            };
            let expected = stored.iter().flat_map(|name| self.tensors[name].1.iter().copied());
            let expected: Vec<f32> = expected.collect();
            assert_eq!(actual.len(), expected.len(), "{name}");
            let is_near = distance(actual, &expected) <= tolerance * norm(&expected);
            (!is_near).then(|| name.clone())
        };
        parts.iter().filter_map(differs).collect()
    }
}
