//! The loss of a model on a text.

use meshgrad_models::{Compute, IGNORE_INDEX, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::tokenizer::Tokenizer;
use crate::trainer::{loss_and_weight, mean_of};
use crate::{Result, TrainError};

/// How a text is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct EvalOptions {
    /// Tokens per sequence. The first token of a sequence has no context but the token before it.
    pub seq_len: usize,
    /// Sequences per forward pass.
    pub batch_size: usize,
    /// The compute dtype.
    pub dtype: DType,
}

/// The result of [`eval`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Predicted tokens: all but the first.
    pub tokens: usize,
    /// Bytes of the text.
    pub text_bytes: u64,
    /// Mean loss in nats per token.
    pub nats_per_token: f64,
    /// Loss in bits per byte of text, which is comparable across tokenizers.
    pub bits_per_byte: f64,
}

impl Evaluation {
    /// The exponential of the loss.
    pub fn perplexity(&self) -> f64 {
        self.nats_per_token.exp()
    }
}

/// The loss of `model` on `texts`. As in training, each text is followed by the separator, and the
/// stream of tokens is divided into sequences of `seq_len`; here the last one may be shorter. Every
/// token but the first is predicted once.
///
/// # Errors
/// [`TrainError::NoTokens`] for fewer than two tokens; errors of tokenizer and model.
pub fn eval<M: Model<Batch = TokenBatch>>(
    model: &M,
    tokenizer: &Tokenizer,
    texts: &[&str],
    options: EvalOptions,
    device: &Device,
) -> Result<Evaluation> {
    let ids = tokenizer.encode_documents(texts)?;
    let tokens = ids.len().saturating_sub(1);
    if tokens == 0 {
        return Err(TrainError::NoTokens);
    }
    let compute = Compute {
        dtype: options.dtype,
        checkpointing: false,
    };
    let (seq_len, rows) = (options.seq_len.max(1), options.batch_size.max(1));
    let starts: Vec<usize> = (0..tokens).step_by(seq_len).collect();
    let mut sums = Vec::new();
    for starts in starts.chunks(rows) {
        let batch = gather(&ids, starts, seq_len, device)?;
        sums.push(loss_and_weight(model, &batch, compute)?);
    }
    let nats_per_token = mean_of(sums)?;
    let text_bytes = texts.iter().map(|text| text.len() as u64).sum();
    Ok(Evaluation {
        tokens,
        text_bytes,
        nats_per_token,
        // As during training, the loss counts for all tokens.
        bits_per_byte: nats_per_token / std::f64::consts::LN_2 * ids.len() as f64
            / text_bytes as f64,
    })
}

/// The sequences at `starts`. What is missing at the end has no label.
fn gather(ids: &[u32], starts: &[usize], seq_len: usize, device: &Device) -> Result<TokenBatch> {
    let longest = starts.iter().map(|start| ids.len() - 1 - start).max();
    let length = longest.unwrap_or(0).min(seq_len);
    let at = |position: usize, missing: i64| ids.get(position).map_or(missing, |id| i64::from(*id));
    let positions = || starts.iter().flat_map(|start| *start..start + length);
    let inputs: Vec<i64> = positions().map(|position| at(position, 0)).collect();
    let labels: Vec<i64> = positions()
        .map(|position| at(position + 1, IGNORE_INDEX))
        .collect();
    let shape = [starts.len(), length];
    Ok(TokenBatch::new(
        &Tensor::from_slice(device, &shape, &inputs)?,
        &Tensor::from_slice(device, &shape, &labels)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each token but the first is a label once, after the token before it.
    #[test]
    fn every_token_is_predicted_once() {
        let device = Device::cpu();
        for length in 2..40 {
            let ids: Vec<u32> = (100..100 + length).collect();
            for (seq_len, rows) in [(1, 3), (4, 2), (7, 5), (64, 1)] {
                let starts: Vec<usize> = (0..ids.len() - 1).step_by(seq_len).collect();
                let mut seen = Vec::new();
                for starts in starts.chunks(rows) {
                    let batch = gather(&ids, starts, seq_len, &device).unwrap();
                    let inputs = batch.ids.to_vec::<i64>().unwrap();
                    let labels = batch.labels.to_vec::<i64>().unwrap();
                    for (input, label) in inputs.into_iter().zip(labels) {
                        if label != IGNORE_INDEX {
                            assert_eq!(label, input + 1);
                            seen.push(label as u32);
                        }
                    }
                }
                assert_eq!(seen, ids[1..]);
            }
        }
    }
}
