//! Rotary position embedding: its settings in all spellings, and its frequencies.
//!
//! Formulas: Su et al. 2021 (RoPE), Chen et al. 2023 (linear scaling), Peng et al. 2023 (YaRN),
//! with the details of transformers' `modeling_rope_utils.py`.

use serde::{Deserialize, Serialize};

use super::problems::{range, zero};

const DEFAULT_THETA: f64 = 10_000.0;
const DEFAULT_BETA_FAST: f64 = 32.0;
const DEFAULT_BETA_SLOW: f64 = 1.0;

/// How the rotary frequencies are changed for longer contexts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RopeType {
    /// Frequencies are unchanged.
    #[default]
    Default,
    /// All frequencies are divided by `factor`.
    Linear,
    /// Low frequencies are divided by `factor`, high ones kept, with a ramp between.
    Yarn,
    /// As `Yarn`, with a ramp over wavelengths, as in Llama 3.1.
    Llama3,
}

/// The table `rope_scaling` (old) or `rope_parameters` (transformers 5), as written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RopeKeys {
    /// Kind of scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_type: Option<RopeType>,
    /// The name of `rope_type` before transformers 4.43.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub old_type: Option<RopeType>,
    /// Base of the frequencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// The extension factor of the context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// YaRN: the original context length. Default `max_position_embeddings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_max_position_embeddings: Option<usize>,
    /// YaRN: the factor on cosine and sine. Default from `factor`, or from both mscales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_factor: Option<f64>,
    /// YaRN: frequencies with at least this many rotations over the original context are kept.
    /// Default 32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_fast: Option<f64>,
    /// YaRN: frequencies with fewer rotations are divided by `factor`. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beta_slow: Option<f64>,
    /// YaRN: numerator of the default `attention_factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mscale: Option<f64>,
    /// YaRN: denominator of the default `attention_factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mscale_all_dim: Option<f64>,
    /// YaRN: whether the ends of the ramp are rounded to integers. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub truncate: Option<bool>,
    /// Llama 3: wavelengths above the original context over this are divided by `factor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_freq_factor: Option<f64>,
    /// Llama 3: wavelengths below the original context over this are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high_freq_factor: Option<f64>,
    /// Fraction of a head that is rotated; only 1 is supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial_rotary_factor: Option<f64>,
}

/// Base and scaling of the rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling for a longer context.
    pub scaling: RopeScaling,
}

/// Scaling of the rotary frequencies for a longer context.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// The extension factor of the context.
        factor: f64,
    },
    /// See [`Yarn`].
    Yarn(Yarn),
    /// See [`Llama3`].
    Llama3(Llama3),
}

/// The scaling of Llama 3.1 (Grattafiori et al. 2024; the ramp as in transformers).
#[derive(Debug, Clone, PartialEq)]
pub struct Llama3 {
    /// The extension factor of the context.
    pub factor: f64,
    /// The original context length, in tokens.
    pub original_max_position_embeddings: usize,
    /// Frequencies with fewer rotations over the original context are divided by `factor`.
    pub low_freq_factor: f64,
    /// Frequencies with more rotations over the original context are kept.
    pub high_freq_factor: f64,
}

/// The settings of YaRN (Peng et al. 2023), with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// The extension factor of the context.
    pub factor: f64,
    /// The original context length, in tokens.
    pub original_max_position_embeddings: usize,
    /// Frequencies with at least this many rotations over the original context are kept.
    pub beta_fast: f64,
    /// Frequencies with fewer rotations are divided by `factor`.
    pub beta_slow: f64,
    /// The factor on cosine and sine.
    pub attention_factor: f64,
    /// Whether the ends of the ramp are rounded outwards to integers.
    pub truncate: bool,
}

impl Rope {
    /// Radians per position for each of the `head_dim / 2` pairs (feature `i` pairs with `i +
    /// head_dim / 2`).
    ///
    /// transformers rounds them to f32 and multiplies them by the position in f32.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f64> {
        let plain = |pair: usize| self.theta.powf(-2.0 * pair as f64 / head_dim as f64);
        let pairs = 0..head_dim / 2;

        match &self.scaling {
            RopeScaling::None => pairs.map(plain).collect(),
            RopeScaling::Linear { factor } => pairs.map(|pair| plain(pair) / factor).collect(),
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.ramp(head_dim, self.theta);
                let blend = |pair: usize| {
                    let interpolated = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                    plain(pair) * (interpolated / yarn.factor + (1.0 - interpolated))
                };
                pairs.map(blend).collect()
            }
            RopeScaling::Llama3(scaling) => {
                pairs.map(plain).map(|radians| scaling.scale(radians)).collect()
            }
        }
    }

    /// The factor on cosine and sine, 1 without YaRN. Attention scores are scaled by its square.
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention_factor,
            _ => 1.0,
        }
    }

    /// The settings as a `rope_scaling` table with every default; `None` without scaling.
    pub(crate) fn scaling_keys(&self) -> Option<RopeKeys> {
        match &self.scaling {
            RopeScaling::None => None,
            RopeScaling::Linear { factor } => Some(RopeKeys {
                rope_type: Some(RopeType::Linear),
                factor: Some(*factor),
                ..RopeKeys::default()
            }),
            RopeScaling::Yarn(yarn) => Some(RopeKeys {
                rope_type: Some(RopeType::Yarn),
                factor: Some(yarn.factor),
                original_max_position_embeddings: Some(yarn.original_max_position_embeddings),
                attention_factor: Some(yarn.attention_factor),
                beta_fast: Some(yarn.beta_fast),
                beta_slow: Some(yarn.beta_slow),
                truncate: Some(yarn.truncate),
                ..RopeKeys::default()
            }),
            RopeScaling::Llama3(llama) => Some(RopeKeys {
                rope_type: Some(RopeType::Llama3),
                factor: Some(llama.factor),
                original_max_position_embeddings: Some(llama.original_max_position_embeddings),
                low_freq_factor: Some(llama.low_freq_factor),
                high_freq_factor: Some(llama.high_freq_factor),
                ..RopeKeys::default()
            }),
        }
    }
}

impl Llama3 {
    /// The frequency for one of `radians` per position.
    fn scale(&self, radians: f64) -> f64 {
        let rotations =
            self.original_max_position_embeddings as f64 * radians / (2.0 * std::f64::consts::PI);
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
        radians * (kept + (1.0 - kept) / self.factor)
    }
}

impl Yarn {
    /// The range of pairs over which frequencies change from kept to divided.
    fn ramp(&self, head_dim: usize, theta: f64) -> (f64, f64) {
        let original = self.original_max_position_embeddings as f64;
        let pair_with = |rotations: f64| {
            let ratio = original / (rotations * 2.0 * std::f64::consts::PI);
            head_dim as f64 * ratio.ln() / (2.0 * theta.ln())
        };

        let (mut low, mut high) = (pair_with(self.beta_fast), pair_with(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));

        // Avoids a division by zero, as transformers does.
        if low == high {
            high += 0.001;
        }
        (low, high)
    }
}

/// The keys of a configuration that say how positions rotate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeSettings<'a> {
    /// `rope_theta`.
    pub(crate) theta: Option<f64>,
    /// `rope_scaling`.
    pub(crate) scaling: Option<&'a RopeKeys>,
    /// `rope_parameters`.
    pub(crate) parameters: Option<&'a RopeKeys>,
    /// `max_position_embeddings`.
    pub(crate) max_position_embeddings: usize,
}

/// Reads the settings from whichever keys `config` has, or returns every problem.
pub(crate) fn resolve(config: &RopeSettings<'_>) -> Result<Rope, Vec<String>> {
    let mut problems = Vec::new();
    let keys = single_table(config, &mut problems);
    let theta = single_theta(config, &keys, &mut problems);
    let rope_type = single_type(&keys, &mut problems);

    check_range("rope_theta", theta, &mut problems);
    if let Some(part) = keys.partial_rotary_factor.filter(|part| *part != 1.0) {
        problems.push(range("partial_rotary_factor", part, "1: only whole heads can be rotated"));
    }

    let scaling = match rope_type {
        RopeType::Default => RopeScaling::None,
        RopeType::Linear => {
            RopeScaling::Linear { factor: factor_of(&keys, "linear", None, &mut problems) }
        }
        RopeType::Yarn => RopeScaling::Yarn(resolve_yarn(config, &keys, theta, &mut problems)),
        RopeType::Llama3 => RopeScaling::Llama3(resolve_llama3(config, &keys, &mut problems)),
    };

    if problems.is_empty() { Ok(Rope { theta, scaling }) } else { Err(problems) }
}

fn single_table(config: &RopeSettings<'_>, problems: &mut Vec<String>) -> RopeKeys {
    let empty = RopeKeys::default();
    let old = config.scaling.filter(|keys| **keys != empty);
    let new = config.parameters.filter(|keys| **keys != empty);

    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        let places = [("rope_scaling", as_json(old)), ("rope_parameters", as_json(new))];
        problems.push(conflict(places));
    }
    old.or(new).cloned().unwrap_or_default()
}

fn single_theta(config: &RopeSettings<'_>, keys: &RopeKeys, problems: &mut Vec<String>) -> f64 {
    if let (Some(top), Some(inner)) = (config.theta, keys.rope_theta)
        && top != inner
    {
        let inner = ("rope_parameters.rope_theta", inner.to_string());
        problems.push(conflict([("rope_theta", top.to_string()), inner]));
    }
    keys.rope_theta.or(config.theta).unwrap_or(DEFAULT_THETA)
}

fn single_type(keys: &RopeKeys, problems: &mut Vec<String>) -> RopeType {
    if let (Some(new), Some(old)) = (keys.rope_type, keys.old_type)
        && new != old
    {
        problems.push(conflict([("rope_type", as_json(&new)), ("type", as_json(&old))]));
    }
    keys.rope_type.or(keys.old_type).unwrap_or_default()
}

fn resolve_llama3(
    config: &RopeSettings<'_>,
    keys: &RopeKeys,
    problems: &mut Vec<String>,
) -> Llama3 {
    let mut needed = |key: &str, value: Option<f64>| {
        if value.is_none() {
            problems.push(format!("rope_type = llama3 needs {key}; add it next to rope_type"));
        }
        value.unwrap_or(1.0)
    };
    let factor = needed("factor", keys.factor);
    let low_freq_factor = needed("low_freq_factor", keys.low_freq_factor);
    let high_freq_factor = needed("high_freq_factor", keys.high_freq_factor);
    for (key, value) in [("factor", factor), ("low_freq_factor", low_freq_factor)] {
        check_range(key, value, problems);
    }
    if problems.is_empty() && !(high_freq_factor.is_finite() && high_freq_factor > low_freq_factor)
    {
        let expected = format!("more than low_freq_factor = {low_freq_factor}");
        problems.push(range("high_freq_factor", high_freq_factor, &expected));
    }
    let original = keys.original_max_position_embeddings;
    let original = original.unwrap_or(config.max_position_embeddings);
    if original == 0 {
        problems.push(zero("original_max_position_embeddings"));
    }
    Llama3 { factor, original_max_position_embeddings: original, low_freq_factor, high_freq_factor }
}

fn resolve_yarn(
    config: &RopeSettings<'_>,
    keys: &RopeKeys,
    theta: f64,
    problems: &mut Vec<String>,
) -> Yarn {
    let original = keys.original_max_position_embeddings;
    let ratio = original.map(|len| config.max_position_embeddings as f64 / len as f64);
    let factor = factor_of(keys, "yarn", ratio, problems);
    let original = original.unwrap_or(config.max_position_embeddings);

    // transformers treats zero as missing here.
    let given = |value: Option<f64>| value.filter(|value| *value != 0.0);
    let beta_fast = given(keys.beta_fast).unwrap_or(DEFAULT_BETA_FAST);
    let beta_slow = given(keys.beta_slow).unwrap_or(DEFAULT_BETA_SLOW);

    let attention_factor = match (given(keys.mscale), given(keys.mscale_all_dim)) {
        _ if keys.attention_factor.is_some() => keys.attention_factor.unwrap_or(1.0),
        (Some(over), Some(under)) => magnitude(factor, over) / magnitude(factor, under),
        _ => magnitude(factor, 1.0),
    };

    check_range("beta_fast", beta_fast, problems);
    check_range("beta_slow", beta_slow, problems);
    check_range("attention_factor", attention_factor, problems);
    if original == 0 {
        problems.push(zero("original_max_position_embeddings"));
    }
    if theta == 1.0 {
        let expected = "different from 1: YaRN divides by its logarithm";
        problems.push(range("rope_theta", theta, expected));
    }

    Yarn {
        factor,
        original_max_position_embeddings: original,
        beta_fast,
        beta_slow,
        attention_factor,
        truncate: keys.truncate.unwrap_or(true),
    }
}

/// YaRN's correction of the attention scores: `0.1 mscale ln(factor) + 1`, 1 without extension.
pub(crate) fn magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

fn factor_of(
    keys: &RopeKeys,
    rope_type: &str,
    fallback: Option<f64>,
    problems: &mut Vec<String>,
) -> f64 {
    let Some(factor) = keys.factor.or(fallback) else {
        problems.push(format!("rope_type = {rope_type} needs factor; add it next to rope_type"));
        return 1.0;
    };
    check_range("factor", factor, problems);
    factor
}

fn check_range(key: &str, value: f64, problems: &mut Vec<String>) {
    if !(value.is_finite() && value > 0.0) {
        problems.push(range(key, value, "a positive number"));
    }
}

/// The problem of two settings that disagree.
fn conflict([(place, value), (other_place, other)]: [(&str, String); 2]) -> String {
    format!("{place} = {value} but {other_place} = {other}; keep one of them")
}

fn as_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| error.to_string())
}
