//! The shapes of `benches/shapes.toml`.

use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

/// What is timed at which extents.
#[derive(Deserialize)]
pub(crate) struct Shapes {
    /// Rows and features.
    pub(crate) rows: Vec<[usize; 2]>,
    /// Elements of the copy that shows the device's bandwidth.
    pub(crate) copy: usize,
    pub(crate) gemm: Vec<Gemm>,
    pub(crate) attention: Vec<Attention>,
    pub(crate) moe: Vec<Moe>,
    pub(crate) vocabulary: Vec<Vocabulary>,
    pub(crate) adamw: Vec<AdamW>,
    pub(crate) train: Vec<Train>,
}

/// A matrix product.
#[derive(Clone, Deserialize)]
pub(crate) struct Gemm {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) transposes: String,
    pub(crate) what: String,
}

/// Causal attention of whole rows.
#[derive(Clone, Deserialize)]
pub(crate) struct Attention {
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) what: String,
}

/// A layer of experts.
#[derive(Clone, Deserialize)]
pub(crate) struct Moe {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) experts: usize,
    pub(crate) chosen: usize,
    pub(crate) what: String,
}

/// The end of a model.
#[derive(Clone, Deserialize)]
pub(crate) struct Vocabulary {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) vocabulary: usize,
    pub(crate) what: String,
}

/// Parameters that one step changes.
#[derive(Clone, Deserialize)]
pub(crate) struct AdamW {
    /// So many tensors
    pub(crate) tensors: usize,
    /// of so many elements.
    pub(crate) elements: usize,
    pub(crate) what: String,
}

/// A model in training.
#[derive(Clone, Deserialize)]
pub(crate) struct Train {
    pub(crate) what: String,
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    /// As in a config.json.
    pub(crate) model: toml::Table,
}

impl Shapes {
    /// Those of `file`, otherwise of `benches/shapes.toml`.
    pub(crate) fn read(file: Option<&Path>, smoke: bool) -> anyhow::Result<Shapes> {
        #[derive(Deserialize)]
        struct File {
            #[serde(flatten)]
            full: Shapes,
            smoke: Shapes,
        }

        if let Some(path) = file {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            return toml::from_str(&text).with_context(|| format!("in {}", path.display()));
        }
        let file: File = toml::from_str(include_str!("../shapes.toml"))?;
        Ok(if smoke { file.smoke } else { file.full })
    }
}
