//! Models as plain structs, whose `forward` shows the mathematics and nothing else.
//!
//! [`Qwen3`] is built from a [`config::Qwen3Config`], materialized or loaded by [`hf`], and
//! computes logits or a loss.

pub mod attention;
mod by_document;
mod cache;
pub mod config;
pub mod ends;
pub mod folder;
pub mod hf;
mod layer;
pub mod layers;
pub mod lora;
pub mod mlp;
pub mod model;
pub mod moe;
mod parallel;
mod plan;
mod qwen3;
mod residual;
mod ring;
mod stage;

pub use by_document::by_document;
pub use cache::{Cache, LayerCache};
pub use layer::{FeedForward, Layer};
pub use meshgrad_error::{Error, Kind, Result};
pub use meshgrad_load as load;
pub use model::{Compute, Decoded, Flow, Generate, IGNORE_INDEX, Loss, Metrics, Model, TokenBatch};
pub use parallel::ModelParallelism;
pub use plan::ModelPlan;
pub use qwen3::{Balance, Balancing, Qwen3, Stream};
pub use residual::Residual;
pub use stage::Stage;
