//! A small language model in a few lines, which a `Session` trains, resumes and samples; then a
//! large model on a meta device. Run this twice: the second run resumes where the first one ended.
//!
//! `cargo run --release --example 05-write-a-model`

use meshgrad::models::families::qwen3::Qwen3Config;
use meshgrad::prelude::*;
use meshgrad::train::config::NoTables;
use meshgrad::train::session::Session;

/// Predicts a token from the one before it. Legend: b batch, t tokens, d features, v vocabulary.
#[derive(Module)]
struct Bigram {
    embedding: Param,
    norm: RmsNorm,
    inside: Linear,
    head: Linear,
}

impl Bigram {
    fn new(v: usize) -> Bigram {
        Bigram {
            embedding: Param::new("embedding", [v, 64], Init::Normal { std: 0.1 }),
            norm: RmsNorm::new("norm", 64, 1e-6),
            inside: Linear::new("inside", 64, 64),
            head: Linear::new("head", 64, v),
        }
    }

    fn hidden(&self, ids_bt: &Tensor, dtype: DType) -> Result<Var> {
        let x_btd = ops::embedding(&self.embedding.var_as(dtype)?, ids_bt)?.as_activation()?;
        let x_btd = (&x_btd + &ops::silu(&self.inside.forward(&x_btd)?)?)?;
        self.norm.forward(&x_btd)
    }
}

impl Model for Bigram {
    type Batch = TokenBatch;
    type Stream = ();

    fn loss(&self, batch: &TokenBatch, compute: Compute) -> Result<Loss> {
        let x_btd = self.hidden(&batch.ids, compute.dtype)?;
        let head = self.head.weight.var_as(compute.dtype)?;
        let (sum, weight) = ops::linear_cross_entropy(&x_btd, &head, &batch.labels, IGNORE_INDEX)?;
        Ok(Loss::new(sum, weight))
    }
}

impl Generate for Bigram {
    type Cache = ();

    fn vocab_size(&self) -> usize {
        self.embedding.shape()[0]
    }

    fn cache(&self, _: &Device, _: DType, _: usize) -> Result<()> {
        Ok(())
    }

    fn next_logits(&self, ids_bt: &Tensor, _: &mut (), dtype: DType) -> Result<Tensor> {
        let last = ids_bt.extent(-1)? - 1;
        let logits_b1v =
            self.head.forward(&self.hidden(&ids_bt.slice(1, last..last + 1)?, dtype)?)?;
        ops::reshape(logits_b1v.value(), &[ids_bt.extent(0)?, self.vocab_size()])
    }
}

const CONFIG: &str = r#"
    train = { steps = 60, batch_size = 4, micro_batch_size = 4, seq_len = 64 }
    data = { paths = ["examples"], tokenizer = "byte" }
    optimizer = { learning_rate = 0.01 }
"#;

fn main() -> anyhow::Result<()> {
    let device = Device::cpu();
    let config = Config::parse::<NoTables>(CONFIG, "the embedded configuration", &[])?;
    Session::new(&config, &device)
        .run_dir("runs/05-write-a-model")
        .train(|data, _| Ok(Bigram::new(data.tokenizer.vocab_size())))?;

    // Qwen3-30B-A3B does not fit into most machines, but a meta device predicts its memory and
    // FLOPs.
    let config = Qwen3Config::from_json(include_str!("qwen3-30b-a3b.json"))?;
    let meta = Device::meta(device.properties());
    let large = Decoder::materialized(&config, &meta, 1)?;
    let ids = Tensor::from_slice(&meta, &[1, 4096], &vec![0i64; 4096])?;
    large.logits(&ids, Compute::new(DType::BF16))?;
    let (work, memory) = (meta.work(), meta.memory_stats());
    println!(
        "Qwen3-30B-A3B, 4096 tokens forward: {:.1} TFLOP in {} ops, peak {} GB",
        work.flops as f64 / 1e12,
        work.ops,
        memory.peak >> 30
    );
    Ok(())
}
