//! The shapes of `benches/shapes.toml`.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::prelude::DType;
use serde::Deserialize;

/// The shapes at which ops and models are timed.
#[derive(Deserialize)]
pub(crate) struct Shapes {
    /// The dtypes of everything but the copy and AdamW.
    pub(crate) floats: Vec<Float>,
    /// Rows and features.
    pub(crate) rows: Vec<[usize; 2]>,
    /// Elements of the copy that measures the device's bandwidth.
    pub(crate) copy: usize,
    pub(crate) gemm: Vec<Gemm>,
    pub(crate) attention: Vec<Attention>,
    pub(crate) moe: Vec<Moe>,
    pub(crate) vocabulary: Vec<Vocabulary>,
    pub(crate) adamw: Vec<AdamW>,
    #[serde(default)]
    pub(crate) train: Vec<Train>,
}

/// A section of `benches/shapes.toml`.
#[derive(Clone, Copy)]
pub(crate) enum Section {
    Gpu,
    Cpu,
    Smoke,
}

#[derive(Deserialize)]
struct File {
    gpu: Shapes,
    cpu: Shapes,
    smoke: Shapes,
}

/// A compute dtype.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Float {
    F32,
    Bf16,
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

/// Causal attention.
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

/// Embedding and loss.
#[derive(Clone, Deserialize)]
pub(crate) struct Vocabulary {
    pub(crate) tokens: usize,
    pub(crate) hidden: usize,
    pub(crate) vocabulary: usize,
    pub(crate) what: String,
}

/// Parameters of an optimizer step.
#[derive(Clone, Deserialize)]
pub(crate) struct AdamW {
    /// Number of tensors.
    pub(crate) tensors: usize,
    /// Elements per tensor.
    pub(crate) elements: usize,
    pub(crate) what: String,
}

/// A model in training.
#[derive(Clone, Deserialize)]
pub(crate) struct Train {
    pub(crate) what: String,
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    /// Whether two instances do not fit into a GPU's memory.
    #[serde(default)]
    pub(crate) alone: bool,
    /// Keys of config.json.
    pub(crate) model: toml::Table,
}

impl Shapes {
    pub(crate) fn floats(&self) -> impl Iterator<Item = DType> + use<> {
        let floats = self.floats.clone().into_iter();
        floats.map(|float| match float {
            Float::F32 => DType::F32,
            Float::Bf16 => DType::BF16,
        })
    }

    /// Reads `file`, otherwise a section of `benches/shapes.toml`.
    pub(crate) fn read(file: Option<&Path>, section: Section) -> anyhow::Result<Shapes> {
        if let Some(path) = file {
            let text = fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let shapes: Shapes =
                toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
            shapes.check().with_context(|| format!("in {}", path.display()))?;
            return Ok(shapes);
        }
        let file: File = toml::from_str(include_str!("../../benches/shapes.toml"))?;
        Ok(match section {
            Section::Gpu => file.gpu,
            Section::Cpu => file.cpu,
            Section::Smoke => file.smoke,
        })
    }

    /// Checks that no extent is 0 and that `transposes` are valid. The ops check whether extents
    /// match.
    fn check(&self) -> anyhow::Result<()> {
        let is_empty = self.copy == 0
            || self.rows.iter().any(|it| it.contains(&0))
            || self.gemm.iter().any(|it| [it.m, it.n, it.k].contains(&0))
            || self.attention.iter().any(Attention::is_empty)
            || self.moe.iter().any(Moe::is_empty)
            || (self.vocabulary.iter())
                .any(|it| [it.tokens, it.hidden, it.vocabulary].contains(&0))
            || (self.adamw.iter()).any(|it| [it.tensors, it.elements].contains(&0))
            || (self.train.iter()).any(|it| [it.batch, it.tokens].contains(&0));
        ensure!(!is_empty, "an extent is 0; all must be at least 1");
        for gemm in &self.gemm {
            let known = ["nn", "nt", "tn", "tt"].contains(&gemm.transposes.as_str());
            let transposes = &gemm.transposes;
            ensure!(known, "transposes = \"{transposes}\"; must be nn, nt, tn or tt");
        }
        Ok(())
    }
}

impl Train {
    pub(crate) fn config(&self) -> anyhow::Result<Qwen3Config> {
        let text = serde_json::to_string(&self.model)?;
        Qwen3Config::from_json(&text).with_context(|| format!("the model of `{}`", self.what))
    }
}

impl Attention {
    fn is_empty(&self) -> bool {
        let extents = [self.batch, self.tokens, self.heads, self.kv_heads];
        extents.contains(&0) || self.head_dim == 0
    }
}

impl Moe {
    fn is_empty(&self) -> bool {
        let extents = [self.tokens, self.hidden, self.inner, self.experts];
        extents.contains(&0) || self.chosen == 0
    }
}
