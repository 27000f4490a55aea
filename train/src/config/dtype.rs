//! The dtypes that a configuration can name.

use serde::{Deserialize, Serialize};

/// A dtype of activations, optimizer state or products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDType {
    /// 32-bit floats.
    F32,
    /// bfloat16 with f32 accumulation.
    Bf16,
}

impl ComputeDType {
    /// The name in configurations: `f32` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}
