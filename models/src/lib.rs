//! Models as plain structs, whose `forward` shows the mathematics and nothing else.
//!
//! [`Qwen3`] is built from a [`config::Qwen3Config`], materialized or loaded by [`hf`], and
//! computes logits or a loss.

pub mod attention;
pub mod balance;
mod cache;
pub mod config;
mod error;
pub mod hf;
pub mod layers;
pub mod mlp;
pub mod moe;
mod qwen3;

pub use cache::{Cache, LayerCache};
pub use error::{Error, Result};
pub use meshgrad_load as load;
pub use qwen3::{Balancing, Compute, FeedForward, IGNORE_INDEX, Layer, Loss, Qwen3};
