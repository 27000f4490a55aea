//! The configuration *tiny* and its training tokens, those of benches/torch/tiny.py.

use meshgrad::models::TokenBatch;
use meshgrad::prelude::*;

pub(crate) const TOKENS: usize = 256;
const VOCAB: u64 = 4096;

pub(crate) const CONFIG: &str = r#"{
    "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "intermediate_size": 256, "moe_intermediate_size": 256,
    "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true,
    "vocab_size": 4096, "tie_word_embeddings": false, "rope_theta": 10000.0,
    "max_position_embeddings": 256
}"#;

/// The token stream.
pub(crate) struct Stream {
    state: u64,
    token: u64,
    /// The first token of the next window: the last label of the previous one.
    next: i64,
}

impl Stream {
    pub(crate) fn new() -> Stream {
        let mut stream = Stream { state: 42, token: 0, next: 0 };
        stream.next = stream.draw();
        stream
    }

    fn draw(&mut self) -> i64 {
        let state = self.state.wrapping_mul(6364136223846793005);
        self.state = state.wrapping_add(1442695040888963407);
        let random = self.state >> 33;
        self.token = match random % 8 < 6 {
            true => (5 * self.token + 7 + (random >> 3) % 4) % VOCAB,
            false => (random >> 3) % VOCAB,
        };
        self.token as i64
    }

    /// The next windows, one per row; on a mesh, all ranks have all of them.
    pub(crate) fn batch(&mut self, device: &Device, rows: usize) -> Result<TokenBatch> {
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for _ in 0..rows * TOKENS {
            ids.push(self.next);
            self.next = self.draw();
            labels.push(self.next);
        }
        let whole =
            |values: &[i64]| Tensor::from_slice(device, &[rows, TOKENS], values)?.as_replicated();
        Ok(TokenBatch::new(&whole(&ids)?, &whole(&labels)?))
    }
}
