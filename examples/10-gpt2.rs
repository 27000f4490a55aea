//! GPT-2 (Radford et al. 2019), built from ops alone and loaded from a folder that transformers
//! wrote. A test compares its logits, loss and every gradient with those of transformers.
//!
//! `cargo run --example 10-gpt2 [FOLDER]`

use std::path::{Path, PathBuf};

use meshgrad::models::folder;
use meshgrad::prelude::*;
use meshgrad::runtime::ops::AttentionMask;
use serde::Deserialize;

/// The fields of config.json that the model uses.
#[derive(Deserialize)]
pub(crate) struct Config {
    vocab_size: usize,
    n_positions: usize,
    n_embd: usize,
    n_layer: usize,
    n_head: usize,
    layer_norm_epsilon: f64,
}

// Legend: b batch, t tokens, d features, v vocabulary, h heads, c features per head.

#[derive(Module)]
pub(crate) struct Gpt2 {
    wte: Param,
    wpe: Param,
    blocks: Vec<Block>,
    ln_f: LayerNorm,
}

#[derive(Module)]
struct Block {
    ln_1: LayerNorm,
    c_attn: Conv1d,
    attn_proj: Conv1d,
    ln_2: LayerNorm,
    c_fc: Conv1d,
    mlp_proj: Conv1d,
    heads: usize,
}

#[derive(Module)]
struct LayerNorm {
    weight: Param,
    bias: Param,
    eps: f64,
}

/// x w + b, with w [in, out].
#[derive(Module)]
struct Conv1d {
    weight: Param,
    bias: Param,
}

impl Gpt2 {
    pub(crate) fn new(config: &Config) -> Gpt2 {
        let (d, init) = (config.n_embd, Init::Normal { std: 0.02 });
        let at = ModulePath::from("transformer");
        let block = |layer| Block::new(&at.sub("h").index(layer), config);
        Gpt2 {
            wte: Param::new(at.sub("wte.weight"), [config.vocab_size, d], init),
            wpe: Param::new(at.sub("wpe.weight"), [config.n_positions, d], init),
            blocks: (0..config.n_layer).map(block).collect(),
            ln_f: LayerNorm::new(at.sub("ln_f"), config),
        }
    }

    fn hidden(&self, ids_bt: &Tensor) -> Result<Var> {
        let tokens_btd = ops::embedding(&self.wte.var()?, ids_bt)?;
        let positions_td = ops::slice(&self.wpe.var()?, 0, 0..ids_bt.extent(-1)?)?;
        let mut x_btd = (&tokens_btd + &positions_td)?.as_activation()?;
        for block in &self.blocks {
            x_btd = (&x_btd + &block.attention(&block.ln_1.forward(&x_btd)?)?)?;
            x_btd = (&x_btd + &block.mlp(&block.ln_2.forward(&x_btd)?)?)?;
        }
        self.ln_f.forward(&x_btd)
    }

    pub(crate) fn logits(&self, ids_bt: &Tensor) -> Result<Var> {
        ops::linear(&self.hidden(ids_bt)?, &self.wte.var()?)
    }
}

impl Model for Gpt2 {
    type Batch = TokenBatch;
    type Stream = ();

    fn loss(&self, batch: &TokenBatch, _: Compute) -> Result<Loss> {
        let x_btd = self.hidden(&batch.ids)?;
        let (sum, weight) =
            ops::linear_cross_entropy(&x_btd, &self.wte.var()?, &batch.labels, IGNORE_INDEX)?;
        Ok(Loss::new(sum, weight))
    }
}

impl Block {
    fn new(at: &ModulePath, config: &Config) -> Block {
        let d = config.n_embd;
        Block {
            ln_1: LayerNorm::new(at.sub("ln_1"), config),
            c_attn: Conv1d::new(at.sub("attn.c_attn"), d, 3 * d),
            attn_proj: Conv1d::new(at.sub("attn.c_proj"), d, d),
            ln_2: LayerNorm::new(at.sub("ln_2"), config),
            c_fc: Conv1d::new(at.sub("mlp.c_fc"), d, 4 * d),
            mlp_proj: Conv1d::new(at.sub("mlp.c_proj"), 4 * d, d),
            heads: config.n_head,
        }
    }

    fn attention(&self, x_btd: &Var) -> Result<Var> {
        let c = x_btd.shape()[2] / self.heads;
        let qkv_bt3hc = ops::split_last(&self.c_attn.forward(x_btd)?, c)?;
        let qkv = ops::split(&qkv_bt3hc, &[self.heads; 3], 2)?;
        let scale = (c as f64).sqrt().recip();
        let y_bthc = ops::attention(&qkv[0], &qkv[1], &qkv[2], &AttentionMask::causal(), scale)?;
        self.attn_proj.forward(&ops::merge_last(&y_bthc)?)
    }

    fn mlp(&self, x_btd: &Var) -> Result<Var> {
        self.mlp_proj.forward(&gelu(&self.c_fc.forward(x_btd)?)?)
    }
}

/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks & Gimpel 2016).
fn gelu(x: &Var) -> Result<Var> {
    let cube = (&ops::square(x)? * x)?;
    let inside = (x + &ops::affine(&cube, 0.044715, 0.0)?)?;
    let tanh = ops::tanh(&ops::affine(&inside, (2.0 / std::f64::consts::PI).sqrt(), 0.0)?)?;
    &ops::affine(&tanh, 0.5, 0.5)? * x
}

impl LayerNorm {
    fn new(at: ModulePath, config: &Config) -> LayerNorm {
        LayerNorm {
            weight: Param::new(at.sub("weight"), [config.n_embd], Init::Ones),
            bias: Param::new(at.sub("bias"), [config.n_embd], Init::Zeros),
            eps: config.layer_norm_epsilon,
        }
    }

    fn forward(&self, x_btd: &Var) -> Result<Var> {
        let (b, t) = (x_btd.shape()[0], x_btd.shape()[1]);
        let mean = |x: &Var| ops::reshape(&ops::mean(x, &[-1])?, &[b, t, 1]);
        let x = (x_btd - &mean(x_btd)?)?;
        let variance = mean(&ops::square(&x)?)?;
        let x = (&x * &ops::rsqrt(&ops::affine(&variance, 1.0, self.eps)?)?)?;
        &(&x * &self.weight.var()?)? + &self.bias.var()?
    }
}

impl Conv1d {
    fn new(at: ModulePath, inputs: usize, outputs: usize) -> Conv1d {
        let init = Init::Normal { std: 0.02 };
        Conv1d {
            weight: Param::new(at.sub("weight"), [inputs, outputs], init),
            bias: Param::new(at.sub("bias"), [outputs], Init::Zeros),
        }
    }

    fn forward(&self, x: &Var) -> Result<Var> {
        let w = ops::transpose(&self.weight.var()?, 0, 1)?;
        &ops::linear(x, &w)? + &self.bias.var()?
    }
}

/// Loads the model from a folder with config.json and the weights.
pub(crate) fn load(dir: &Path, device: &Device) -> anyhow::Result<Gpt2> {
    let config = std::fs::read_to_string(dir.join("config.json"))?;
    let model = Gpt2::new(&serde_json::from_str(&config)?);
    folder::load(&model, dir, device)?;
    Ok(model)
}

fn main() -> anyhow::Result<()> {
    let device = Device::cpu();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parity/gpt2");
    let model = load(&std::env::args().nth(1).map_or(fixture, PathBuf::from), &device)?;

    let ids = ops::reshape(&ops::arange(&device, 8, DType::I64)?, &[1, 8])?;
    let logits = model.logits(&ids)?;
    println!("logits {:?}", logits.value());
    println!("next   {:?}", ops::argmax(logits.value(), -1)?);
    Ok(())
}
