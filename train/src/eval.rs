//! The loss of a model on a text.

use meshgrad_error::ensure;
use meshgrad_models::{Compute, Model, TokenBatch};
use meshgrad_runtime::{DType, Device, Tensor};

use crate::Result;
use crate::config::SumOrder;
use crate::corpus::Document;
use crate::encoded::{Encoded, Piece};
use crate::packing::Pieces;
use crate::rows::{Batch, Row, RowFormat, TokenStream};
use crate::tokenizer::Tokenizer;
use crate::trainer::{mean_of, sums_of};

/// How a text is evaluated.
#[derive(Debug, Clone, Copy)]
pub struct EvalOptions {
    /// Tokens per sequence. The first token of a sequence has no context.
    pub seq_len: usize,
    /// Sequences per forward pass.
    pub batch_size: usize,
    /// The compute dtype.
    pub dtype: DType,
}

/// The result of [`eval`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Predicted tokens: all but the first of each document; in conversations, only those of answers.
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
/// the answers of conversations count, a token sees its own document only, and the stream of tokens is
/// divided into sequences of `seq_len`; here the last one may be shorter. With conversations, sequences
/// have whole documents; one that is longer than a sequence is cut. Every token but the first of each
/// document is predicted once.
///
/// # Errors
/// When no document has two tokens; errors of tokenizer and model.
pub fn eval<M: Model<Batch = TokenBatch>>(
    model: &M,
    tokenizer: &Tokenizer,
    documents: &[Document],
    options: EvalOptions,
    device: &Device,
) -> Result<Evaluation> {
    let pieces: Vec<Piece<'_>> = documents.iter().map(Piece::whole).collect();
    let encoded = Encoded::new(tokenizer, &pieces)?;
    let tokens = (0..encoded.ids.len()).filter(|at| encoded.label(*at).is_some()).count();
    ensure!(
        tokens > 0,
        Invalid,
        "no document has two tokens, so there is nothing to predict; use a longer text"
    );
    let compute = Compute::new(options.dtype);
    let (seq_len, at_a_time) = (options.seq_len.max(1), options.batch_size.max(1));
    let (rows, has_documents) = (rows(&encoded, seq_len), encoded.has_documents());
    let mut sums = Vec::new();
    for rows in rows.chunks(at_a_time) {
        let seq_len = rows.iter().map(Row::len).max().unwrap_or(seq_len);
        let padding = tokenizer.separator().unwrap_or(0);
        let format = RowFormat { seq_len, has_documents, padding };
        sums.push(sums_of(model, &gather(&encoded, rows, format, device)?, compute)?);
    }
    let nats_per_token = mean_of(sums, SumOrder::Sum)?;
    let text_bytes = encoded.trained_bytes();
    let ids_per_byte = encoded.trained_ids() as f64 / text_bytes as f64;
    Ok(Evaluation {
        tokens,
        text_bytes,
        nats_per_token,
        // As during training, the first token of a document has the mean loss.
        bits_per_byte: nats_per_token / std::f64::consts::LN_2 * ids_per_byte,
    })
}

/// The sequences of a text.
fn rows(encoded: &Encoded, seq_len: usize) -> Vec<Row> {
    let length = encoded.ids.len();
    if encoded.has_conversations() {
        let pieces = Pieces::of(encoded, 0..length, seq_len);
        let plan = pieces.in_order();
        return (0..plan.rows()).map(|row| pieces.row(&plan, row)).collect();
    }
    // Nothing follows the last token.
    let last = length.saturating_sub(1);
    let starts = (0..last).step_by(seq_len);
    starts.map(|start| Row::of(start..(start + seq_len).min(last))).collect()
}

fn gather(
    encoded: &Encoded,
    rows: &[Row],
    format: RowFormat,
    device: &Device,
) -> Result<TokenBatch> {
    let batch = Batch::gather(format, rows, encoded)?;
    let shape = [rows.len(), format.seq_len];
    batch.tensors(format, |values| Tensor::from_slice(device, &shape, values))
}

#[cfg(test)]
mod tests {
    use meshgrad_models::IGNORE_INDEX;

    use super::*;

    /// Consecutive ids in two documents. If `is_masked`, every third one is not trained.
    fn encoded(length: u32, is_masked: bool) -> Encoded {
        let ids: Vec<u32> = (100..100 + length).collect();
        let trained = is_masked.then(|| (ids.iter().map(|id| id % 3 > 0).collect(), 1));
        Encoded::of_ids(ids, vec![0, length as usize / 3], trained)
    }

    /// Each trained token but the first of each document is a label once, at the token before it.
    #[test]
    fn every_token_is_predicted_once() {
        let device = Device::cpu();
        for (length, is_masked) in (6..40).flat_map(|length| [(length, false), (length, true)]) {
            let encoded = encoded(length, is_masked);
            for (seq_len, at_a_time) in [(1, 3), (4, 2), (7, 5), (64, 1)] {
                let mut seen = Vec::new();
                for rows in rows(&encoded, seq_len).chunks(at_a_time) {
                    let format = RowFormat { seq_len, has_documents: true, padding: 0 };
                    let batch = gather(&encoded, rows, format, &device).unwrap();
                    let inputs = batch.ids.to_vec::<i64>().unwrap();
                    let labels = batch.labels.to_vec::<i64>().unwrap();
                    for (input, label) in inputs.into_iter().zip(labels) {
                        if label != IGNORE_INDEX {
                            assert_eq!(label, input + 1);
                            seen.push(label as u32);
                        }
                    }
                }
                seen.sort_unstable();
                let mut expected = encoded.ids.clone();
                expected.retain(|id| ![100, 100 + length / 3].contains(id));
                expected.retain(|id| !is_masked || id % 3 > 0);
                assert_eq!(seen, expected);
            }
        }
    }
}
