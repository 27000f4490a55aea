//! The checkpoints that are measured.

use std::path::{Path, PathBuf};

use meshgrad::ckpt::{Dtype, Error, FileWriter, Folder};

/// Tensors per block, which `stack` and `concat` join.
pub(super) const PARTS: usize = 10;

/// Tensors of the checkpoint that is only opened and planned.
pub(super) const MANY: usize = 92_000;

/// The sizes of the checkpoints.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Number of blocks of [`PARTS`] bf16 tensors.
    pub(super) blocks: usize,
    /// Extents of each tensor of a block.
    pub(super) tensor: [usize; 2],
    /// Extents of the bf16 tensor of which ranks load shards.
    pub(super) shared: [usize; 2],
    /// Number of experts, features and hidden size; bf16.
    pub(super) experts: [usize; 3],
    /// Tensors of the checkpoint that is opened and planned.
    pub(super) many: usize,
}

impl Sizes {
    /// A model of about `bytes` in tensors of 4 MB, and 16 experts of the size of Qwen3-30B-A3B's.
    pub(super) fn of(bytes: usize) -> Sizes {
        let tensor = [1000, 2000];
        Sizes {
            blocks: (bytes / (PARTS * tensor[0] * tensor[1] * 2)).max(1),
            tensor,
            shared: [20_000, 10_000],
            experts: [16, 768, 2048],
            many: MANY,
        }
    }

    /// Checkpoints of a few MB.
    pub(super) fn smoke() -> Sizes {
        Sizes {
            blocks: 2,
            tensor: [100, 2000],
            shared: [2_000, 3_000],
            experts: [8, 512, 1024],
            many: MANY / 46,
        }
    }

    /// Bytes of a tensor of the blocks.
    pub(super) fn tensor_bytes(&self) -> usize {
        self.tensor[0] * self.tensor[1] * 2
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> u64 {
        (self.blocks * PARTS * self.tensor_bytes()) as u64
    }
}

/// The folders of the checkpoints.
pub(super) struct Files {
    pub(super) blocks: PathBuf,
    pub(super) shared: PathBuf,
    pub(super) experts: PathBuf,
    pub(super) many: PathBuf,
}

impl Files {
    pub(super) fn make(root: &Path, sizes: &Sizes) -> anyhow::Result<Files> {
        let mut blocks = FileWriter::new();
        for block in 0..sizes.blocks {
            for part in 0..PARTS {
                let name = format!("blocks.{block}.parts.{part}.weight");
                blocks.add(&name, Dtype::BF16, &sizes.tensor)?;
            }
        }
        let mut shared = FileWriter::new();
        shared.add("weight", Dtype::BF16, &sizes.shared)?;

        let mut experts = FileWriter::new();
        let [count, features, hidden] = sizes.experts;
        for expert in 0..count {
            for (name, shape) in [
                ("gate", [features, hidden]),
                ("up", [features, hidden]),
                ("down", [hidden, features]),
            ] {
                experts.add(&format!("experts.{expert}.{name}"), Dtype::BF16, &shape)?;
            }
        }
        let mut many = FileWriter::new();
        for tensor in 0..sizes.many {
            many.add(&name_of(tensor), Dtype::BF16, &[8, 8])?;
        }
        Ok(Files {
            blocks: write(root.join("blocks"), blocks)?,
            shared: write(root.join("shared"), shared)?,
            experts: write(root.join("experts"), experts)?,
            many: write(root.join("many"), many)?,
        })
    }
}

/// The names of a model with 245 experts per layer.
fn name_of(tensor: usize) -> String {
    const LAYER: usize = 245 * 3 + 1;

    let (layer, place) = (tensor / LAYER, tensor % LAYER);
    match (place / 3, ["gate", "up", "down"][place % 3]) {
        (245, _) => format!("model.layers.{layer}.input_layernorm.weight"),
        (expert, proj) => format!("model.layers.{layer}.mlp.experts.{expert}.{proj}_proj.weight"),
    }
}

/// Writes incompressible bytes. Returns the folder.
fn write(folder: PathBuf, file: FileWriter) -> anyhow::Result<PathBuf> {
    std::fs::create_dir(&folder)?;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut buffer = Vec::new();
    file.save::<Error>(folder.join("model.safetensors"), |tensor, data| {
        buffer.clear();
        while buffer.len() < tensor.byte_len() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Small exponents, so that there is no NaN.
            let bits = state & 0xbfff_bfff_bfff_bfff;
            buffer.extend_from_slice(&bits.to_le_bytes());
        }
        data.append(&buffer[..tensor.byte_len()])
    })?;
    Folder::open(&folder)?;
    Ok(folder)
}
