//! Text generation, token by token.

use meshgrad_models::Generate;
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::config::SampleConfig;
use crate::tokenizer::Tokenizer;
use crate::{Result, TrainError};

/// Parameters of sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits. With 0, the most likely token is always chosen.
    pub temperature: f64,
    /// The number of most likely tokens to sample from; 0 means all.
    pub top_k: usize,
    /// Equal seeds give equal text.
    pub seed: u64,
}

/// Continues `prompt` by up to `tokens` tokens, and passes text to `on_text` as soon as its
/// characters are complete. Stops at the end of a document or of a ChatML message. An empty prompt starts a new document.
///
/// # Errors
/// [`TrainError::EmptyPrompt`] for an empty prompt where the tokenizer has no token that starts a
/// document; [`TrainError::Vocabulary`] when the tokenizer has more tokens than the model.
#[allow(clippy::too_many_arguments)]
pub fn generate(
    model: &impl Generate,
    tokenizer: &Tokenizer,
    prompt: &str,
    tokens: usize,
    sampling: Sampling,
    dtype: DType,
    device: &Device,
    mut on_text: impl FnMut(&str),
) -> Result<()> {
    let vocabulary = model.vocab_size();
    if tokenizer.vocab_size() > vocabulary {
        return Err(TrainError::Vocabulary {
            tokenizer: tokenizer.vocab_size(),
            model: vocabulary,
        });
    }

    let mut ids: Vec<i64> = tokenizer
        .encode(prompt)?
        .into_iter()
        .map(i64::from)
        .collect();
    if ids.is_empty() {
        ids.push(tokenizer.separator().ok_or(TrainError::EmptyPrompt)?.into());
    }

    let mut cache = model.cache(device, dtype, ids.len() + tokens)?;
    let mut text = tokenizer.stream();
    // Tokens are sampled on the host, because ops on a GPU do not support f64.
    let host = Device::cpu();
    for position in 0..tokens {
        let input = Tensor::from_slice(device, &[1, ids.len()], &ids)?;
        let logits = model.next_logits(&input, &mut cache, dtype)?;
        let logits = ops::cast(&logits, DType::F32)?.to_vec::<f32>()?;
        let key = Key::new(sampling.seed).fold(position as u64);
        let uniform = ops::uniform(&host, &[], DType::F64, key, 0.0, 1.0)?.item::<f64>()?;
        let next = sample_token(&logits[..tokenizer.vocab_size()], sampling, uniform);
        if tokenizer.ends_text(next) {
            break;
        }
        on_text(&text.push(next)?);
        ids = vec![next.into()];
    }
    on_text(&text.finish()?);
    Ok(())
}

/// As [`generate`], returning prompt and continuation.
///
/// # Errors
/// As [`generate`].
pub fn sample(
    model: &impl Generate,
    tokenizer: &Tokenizer,
    config: &SampleConfig,
    seed: u64,
    dtype: DType,
    device: &Device,
) -> Result<String> {
    let mut text = config.prompt.clone();
    let sampling = Sampling {
        temperature: config.temperature,
        top_k: config.top_k,
        seed,
    };
    let on_text = |piece: &str| text.push_str(piece);
    generate(
        model,
        tokenizer,
        &config.prompt,
        config.tokens,
        sampling,
        dtype,
        device,
        on_text,
    )?;
    Ok(text)
}

/// Samples a token by inverting the cumulative distribution at `uniform`, a number in [0, 1).
fn sample_token(logits: &[f32], sampling: Sampling, uniform: f64) -> u32 {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // Equal logits stay in the order of their ids; NaN counts as minus infinity.
    let logit = |at: usize| {
        if logits[at].is_nan() {
            f32::NEG_INFINITY
        } else {
            logits[at]
        }
    };
    order.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)));
    if sampling.temperature <= 0.0 {
        return order[0] as u32;
    }

    let kept = if sampling.top_k == 0 {
        order.len()
    } else {
        sampling.top_k.min(order.len())
    };
    let highest = f64::from(logit(order[0]));
    let weight = |at: &usize| ((f64::from(logit(*at)) - highest) / sampling.temperature).exp();
    let weights: Vec<f64> = order[..kept].iter().map(weight).collect();

    let mut left = uniform * weights.iter().sum::<f64>();
    for (at, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *at as u32;
        }
    }
    order[kept - 1] as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, f32::NAN, 1.0];

    fn sampled(temperature: f64, top_k: usize, uniform: f64) -> u32 {
        sample_token(
            &LOGITS,
            Sampling {
                temperature,
                top_k,
                seed: 0,
            },
            uniform,
        )
    }

    #[test]
    fn temperature_zero_takes_the_most_likely_token() {
        assert_eq!(sampled(0.0, 0, 0.99), 1);
    }

    #[test]
    fn top_k_excludes_the_tail() {
        assert_eq!(sampled(1.0, 1, 0.999_999), 1);
        assert_eq!(sampled(1.0, 2, 0.999_999), 3);
        assert_eq!(sampled(1.0, 0, 0.999_999), 0);
    }

    /// The fraction of uniform numbers that select a token is its probability.
    #[test]
    fn samples_follow_softmax() {
        let count = 10_000;
        let hits = (0..count)
            .filter(|i| sampled(0.5, 0, *i as f64 / count as f64) == 1)
            .count();
        let expected = 4f64.exp() / (4f64.exp() + 2f64.exp() + 1.0);
        assert!((hits as f64 / count as f64 - expected).abs() < 1e-3);
    }
}
