//! Problems of configurations.

use std::fmt;

use meshgrad_error::{Error, Kind};

/// All problems of a configuration, each a sentence: details of an [`Error`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<String>);

impl Problems {
    /// # Errors
    /// If there are any.
    pub(crate) fn check(self, kind: Kind) -> Result<(), Error> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Error::with_details(kind, self)),
        }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid model configuration:")?;
        self.0.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

/// The problem of a size that must not be zero.
pub(crate) fn zero(key: &str) -> String {
    format!("{key} is 0, but must be at least 1")
}

/// The problem of a number out of range.
pub(crate) fn range(key: &str, value: f64, expected: &str) -> String {
    format!("{key} = {value} must be {expected}")
}

/// How to dequantize weights of this method.
pub(crate) fn way_out_of(method: &str) -> &'static str {
    match method {
        "fp8" => {
            "run `meshgrad ckpt convert DIR NEW --map qwen3-fp8.map` (docs/checkpoint-tool.md, \
             \"convert\") and load NEW"
        }
        _ => {
            "load it with the library that quantized it (in transformers: `model.dequantize()`), save \
             it with `save_pretrained`, and load that folder"
        }
    }
}
