//! Models as plain structs, whose `forward` shows the mathematics and nothing else.
//!
//! A [`Decoder`] is built from the configuration of a [family](families), such as
//! [`Qwen3Config`](families::qwen3::Qwen3Config), materialized or loaded by [`hf`], and computes logits or a loss.

pub mod attention;
mod by_document;
mod cache;
pub mod config;
mod decoder;
pub mod ends;
pub mod families;
mod family;
pub mod folder;
pub mod hf;
mod layer;
pub mod layers;
pub mod lora;
pub mod mlp;
pub mod model;
pub mod moe;
pub mod norms;
mod parallel;
mod parts;
mod plan;
mod residual;
mod ring;
mod stage;

pub use by_document::by_document;
pub use cache::{Cache, LayerCache};
pub use decoder::{Balance, Balancing, Decoder, ParameterCount, Stream};
pub use layer::{FeedForward, Layer};
pub use meshgrad_error::{Error, Kind, Result};
pub use meshgrad_load as load;
pub use model::{Compute, Decoded, Flow, Generate, IGNORE_INDEX, Loss, Metrics, Model, TokenBatch};
pub use parallel::ModelParallelism;
pub use parts::{Ends, Parts};
pub use plan::ModelPlan;

pub use residual::Residual;
pub use stage::Stage;
