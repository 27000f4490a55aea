//! Text generation, token by token.

use meshgrad_error::{bail, ensure};
use meshgrad_models::Generate;
use meshgrad_runtime::{DType, Device, Key, Tensor, ops};

use crate::Result;
use crate::config::SampleConfig;
use crate::prompt::Prompt;
pub use crate::sampling::Sampling;
use crate::stop::StopStrings;
use crate::tokenizer::Tokenizer;

/// A text to generate.
#[derive(Debug, Clone)]
pub struct GenerationRequest {
    /// The prompt, which the text continues.
    pub prompt: Prompt,
    /// The maximum number of tokens.
    pub tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Ids that end the text, in addition to those of [`Tokenizer::ends_text`].
    pub ends: Vec<u32>,
    /// Strings that end the text, in addition to [`Prompt::stop`]. They are not part of the text,
    /// and are not searched for in the prompt.
    pub stop: Vec<String>,
}

/// Checks that a model has all tokens of its tokenizer.
pub(crate) fn check_vocabulary(tokenizer: usize, model: usize) -> Result<()> {
    ensure!(
        tokenizer <= model,
        Invalid,
        "the tokenizer has {tokenizer} tokens but model.vocab_size is {model}: leave model.vocab_size \
         out, or raise it to {tokenizer}"
    );
    Ok(())
}

/// Generates a text, and passes it to `on_text` as soon as its characters are complete and cannot
/// be part of a stop string. The text ends at the end of a document or of a ChatML message, at an
/// id of [`GenerationRequest::ends`], or before a stop string.
///
/// # Errors
/// For an invalid request; when the prompt is empty and the tokenizer has no token that starts a
/// document; when the tokenizer has more tokens than the model.
pub fn generate(
    model: &impl Generate,
    tokenizer: &Tokenizer,
    request: &GenerationRequest,
    dtype: DType,
    device: &Device,
    mut on_text: impl FnMut(&str),
) -> Result<()> {
    let GenerationRequest { prompt, tokens, sampling, ends, stop } = request;
    sampling.check()?;
    let mut stops = StopStrings::new(stop.iter().chain(&prompt.stop).cloned())?;
    let vocabulary = model.vocab_size();
    check_vocabulary(tokenizer.vocab_size(), vocabulary)?;

    let mut ids = prompt.ids.clone();
    if ids.is_empty() {
        let Some(separator) = tokenizer.separator() else {
            bail!(
                Invalid,
                "the prompt is empty and the tokenizer has no token that starts a document; give a \
                 prompt"
            );
        };
        ids.push(separator);
    }
    let mut cache = model.cache(device, dtype, ids.len() + tokens)?;
    let mut text = tokenizer.stream();
    // Tokens are sampled on the host, because ops on a GPU do not support f64.
    let host = Device::cpu();
    let mut computed = 0;
    for position in 0..*tokens {
        let new: Vec<i64> = ids[computed..].iter().map(|id| i64::from(*id)).collect();
        computed = ids.len();
        let input = Tensor::from_slice(device, &[1, new.len()], &new)?.as_replicated()?;
        let logits = model.next_logits(&input, &mut cache, dtype)?;
        let logits = ops::cast(&logits, DType::F32)?.to_vec::<f32>()?;
        let key = Key::new(sampling.seed).fold(position as u64);
        let uniform = ops::uniform(&host, &[], DType::F64, key, 0.0, 1.0)?.item::<f64>()?;
        let next = sampling.choose(&logits[..tokenizer.vocab_size()], &ids, uniform);
        if tokenizer.ends_text(next) || ends.contains(&next) {
            break;
        }
        on_text(&stops.push(&text.push(next)?));
        if stops.is_stopped() {
            return Ok(());
        }
        ids.push(next);
    }
    on_text(&stops.push(&text.finish()?));
    on_text(&stops.finish());
    Ok(())
}

/// Continues `config.prompt` as `config` says, and returns prompt and continuation.
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
    let prompt = Prompt::new(tokenizer, &config.prompt)?;
    sample_from(model, tokenizer, prompt, config, seed, dtype, device)
}

/// As [`sample`], but continues `prompt` in place of `config.prompt`.
pub(crate) fn sample_from(
    model: &impl Generate,
    tokenizer: &Tokenizer,
    prompt: Prompt,
    config: &SampleConfig,
    seed: u64,
    dtype: DType,
    device: &Device,
) -> Result<String> {
    let mut text = prompt.text.clone();
    let request = GenerationRequest {
        prompt,
        tokens: config.tokens,
        sampling: Sampling {
            temperature: config.temperature,
            top_k: config.top_k,
            seed,
            ..Sampling::default()
        },
        ends: Vec::new(),
        stop: Vec::new(),
    };
    generate(model, tokenizer, &request, dtype, device, |piece| {
        text.push_str(piece);
    })?;
    Ok(text)
}
