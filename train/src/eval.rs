//! The loss of a model on a text.

use meshgrad_error::ensure;
use meshgrad_models::{Compute, IGNORE_INDEX, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::Result;
use crate::config::SumOrder;
use crate::corpus::Document;
use crate::encoded::{Encoded, Piece};
use crate::tokenizer::Tokenizer;
use crate::trainer::{mean_of, sums_of};

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
    /// Predicted tokens: all but the first; in conversations, only those of answers.
    pub tokens: usize,
    /// Bytes of the text that is predicted.
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

/// The loss of `model` on `documents`. As in training, each text is followed by the separator, only
/// the answers of conversations count, and the stream of tokens is divided into sequences of
/// `seq_len`; here the last one may be shorter. Every token but the first is predicted once.
///
/// # Errors
/// For fewer than two tokens; errors of tokenizer and model.
pub fn eval<M: Model<Batch = TokenBatch>>(
    model: &M,
    tokenizer: &Tokenizer,
    documents: &[Document],
    options: EvalOptions,
    device: &Device,
) -> Result<Evaluation> {
    let pieces: Vec<Piece<'_>> = documents.iter().map(Piece::whole).collect();
    let encoded = Encoded::new(tokenizer, &pieces)?;
    let length = encoded.ids.len();
    let trained = (0..length).filter(|at| encoded.is_trained(*at)).count();
    let tokens = trained - usize::from(length > 0 && encoded.is_trained(0));
    ensure!(
        tokens > 0,
        Invalid,
        "the text has fewer than two tokens, so there is nothing to predict; use a longer text"
    );
    let compute = Compute { dtype: options.dtype, checkpointing: false };
    let (seq_len, rows) = (options.seq_len.max(1), options.batch_size.max(1));
    let starts: Vec<usize> = (0..length - 1).step_by(seq_len).collect();
    let mut sums = Vec::new();
    for starts in starts.chunks(rows) {
        let batch = gather(&encoded, starts, seq_len, device)?;
        sums.push(sums_of(model, &batch, compute)?);
    }
    let nats_per_token = mean_of(sums, SumOrder::Sum)?;
    let text_bytes = encoded.trained_bytes();
    Ok(Evaluation {
        tokens,
        text_bytes,
        nats_per_token,
        // As during training, the loss counts for all tokens.
        bits_per_byte: nats_per_token / std::f64::consts::LN_2 * trained as f64 / text_bytes as f64,
    })
}

/// The sequences at `starts`. Positions past the end, and tokens that the loss does not count, have
/// no label.
fn gather(
    encoded: &Encoded,
    starts: &[usize],
    seq_len: usize,
    device: &Device,
) -> Result<TokenBatch> {
    let ids = &encoded.ids;
    let longest = starts.iter().map(|start| ids.len() - 1 - start).max();
    let length = longest.unwrap_or(0).min(seq_len);
    let at = |position: usize| ids.get(position).map(|id| i64::from(*id));
    let label = |position: usize| at(position).filter(|_| encoded.is_trained(position));
    let positions = || starts.iter().flat_map(|start| *start..start + length);
    let inputs: Vec<i64> = positions().map(|position| at(position).unwrap_or(0)).collect();
    let labels: Vec<i64> =
        positions().map(|position| label(position + 1).unwrap_or(IGNORE_INDEX)).collect();
    let shape = [starts.len(), length];
    Ok(TokenBatch::new(
        &Tensor::from_slice(device, &shape, &inputs)?,
        &Tensor::from_slice(device, &shape, &labels)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Consecutive ids. If `is_masked`, every third one is not trained.
    fn encoded(length: u32, is_masked: bool) -> Encoded {
        let ids: Vec<u32> = (100..100 + length).collect();
        let trained = is_masked.then(|| (ids.iter().map(|id| id % 3 > 0).collect(), 1));
        Encoded::of_ids(ids, trained)
    }

    /// Each trained token but the first is a label once, at the position of the token before it.
    #[test]
    fn every_token_is_predicted_once() {
        let device = Device::cpu();
        for (length, is_masked) in (2..40).flat_map(|length| [(length, false), (length, true)]) {
            let encoded = encoded(length, is_masked);
            let ids = &encoded.ids;
            for (seq_len, rows) in [(1, 3), (4, 2), (7, 5), (64, 1)] {
                let starts: Vec<usize> = (0..ids.len() - 1).step_by(seq_len).collect();
                let mut seen = Vec::new();
                for starts in starts.chunks(rows) {
                    let batch = gather(&encoded, starts, seq_len, &device).unwrap();
                    let inputs = batch.ids.to_vec::<i64>().unwrap();
                    let labels = batch.labels.to_vec::<i64>().unwrap();
                    for (input, label) in inputs.into_iter().zip(labels) {
                        if label != IGNORE_INDEX {
                            assert_eq!(label, input + 1);
                            seen.push(label as u32);
                        }
                    }
                }
                let mut expected = ids[1..].to_vec();
                expected.retain(|id| !is_masked || id % 3 > 0);
                assert_eq!(seen, expected);
            }
        }
    }
}
