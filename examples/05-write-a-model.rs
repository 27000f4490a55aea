//! A small language model in a few lines, and a large one on a meta device.
//!
//! `cargo run --release --example 05-write-a-model`

use meshgrad::autograd::Result as TapeResult;
use meshgrad::models::layers::{Linear, RmsNorm};
use meshgrad::models::{Compute, IGNORE_INDEX, config::Qwen3Config};
use meshgrad::prelude::*;

/// Predicts a byte from the previous byte, with one hidden layer.
struct Bigram {
    embedding: Param,
    norm: RmsNorm,
    inside: Linear,
    head: Param,
}

impl Bigram {
    fn new() -> TapeResult<Bigram> {
        let init = Init::Normal { std: 0.1 };
        Ok(Bigram {
            embedding: Param::new("embedding", &[256, 64], init)?,
            norm: RmsNorm::new("norm", 64, 1e-6)?,
            inside: Linear::new("inside", 64, 64, false, 0.1)?,
            head: Param::new("head", &[256, 64], init)?,
        })
    }

    /// Cross-entropy summed over the tokens, and the number of tokens.
    fn loss(&self, ids_t: &Tensor, labels_t: &Tensor) -> TapeResult<(Var, Tensor)> {
        let x_td = ops::embedding(&self.embedding.var()?, ids_t)?;
        let x_td = ops::add(&x_td, &ops::silu(&self.inside.forward(&x_td)?)?)?;
        let x_td = self.norm.forward(&x_td)?;
        ops::linear_cross_entropy(&x_td, &self.head.var()?, labels_t, IGNORE_INDEX)
    }
}

impl Module for Bigram {
    fn visit(&self, visitor: &mut dyn FnMut(&Param)) {
        visitor(&self.embedding);
        self.norm.visit(visitor);
        self.inside.visit(visitor);
        visitor(&self.head);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu();
    let model = Bigram::new()?; // allocates nothing
    model.materialize(&device, 1)?;

    let text = include_bytes!("05-write-a-model.rs").map(i64::from);
    let ids = Tensor::from_slice(&device, &[text.len() - 1], &text[..text.len() - 1])?;
    let labels = Tensor::from_slice(&device, &[text.len() - 1], &text[1..])?;
    let (loss, count) = model.loss(&ids, &labels)?;
    let mean = loss.value().item::<f32>()? / count.item::<f32>()?;
    println!(
        "before training: {mean:.3} nats per byte; ln 256 is {:.3}",
        256f32.ln()
    );

    // Qwen3-30B-A3B does not fit into this machine, but a meta device predicts its memory and
    // FLOPs.
    let config = Qwen3Config::from_json(include_str!("qwen3-30b-a3b.json"))?;
    let meta = Device::meta(device.properties());
    let large = Qwen3::materialized(&config, &meta, 1)?;
    let ids = Tensor::from_slice(&meta, &[1, 4096], &vec![0i64; 4096])?;
    large.logits(
        &ids,
        Compute {
            dtype: DType::BF16,
            checkpointing: false,
        },
    )?;
    let (work, memory) = (meta.work(), meta.memory_stats());
    println!(
        "Qwen3-30B-A3B, 4096 tokens forward: {:.1} TFLOP in {} ops, peak {} GB",
        work.flops as f64 / 1e12,
        work.ops,
        memory.peak >> 30
    );
    Ok(())
}
