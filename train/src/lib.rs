//! Training: data, optimizer, schedule and the training loop.
//!
//! Modules that use no tensors:
//!
//! - [`config`]: the whole configuration of a run, strict, with every default.
//! - [`corpus`]: text; [`split`]: the held-out part; [`tokenizer`]: text to ids and back; [`chat`]:
//!   conversations as ids; [`tokens`]: the memory-mapped token cache; [`sampler`]: the rows of each
//!   batch.
//! - [`schedule`]: the learning rate of each step.
//! - [`sampling`]: the distribution of the next token; [`stop`]: strings that end a text.
//!
//! Modules that use tensors:
//!
//! - [`trainer`]: one step and one validation pass; [`optimizer`]: gradient norm, clipping and a
//!   step of any update rule; [`checkpoint`]: saving and resuming; [`generate`]: text generation.
//! - [`events`]: what happens in a run, for subscribers.
//! - [`sleep`]: what a training keeps between steps and can move to the host.
//! - [`optim`]: AdamW, SGD, Lion, Muon, and averages of weights; [`configured`]: a configuration's
//!   optimizer and dtype.
//! - [`memory`]: the predicted memory of a run.
//! - [`eval`]: the loss of a model on a text.
//! - [`intact`]: the newest checkpoint that is not damaged.
//! - [`ranks`]: the ranks of a run, and how its model and batches are divided.
//! - [`session`]: all parts together, as `meshgrad train` runs them, for any language model.
//! - [`decoder`]: a session with the model of `[model]`.
//! - [`run_folder`], [`metrics`], [`tensorboard`], [`plot`], [`report`]: files and output of a run;
//!   [`prompt`]: the prompts of samples.

pub mod batches;
pub mod chat;
pub mod checkpoint;
pub mod config;
pub mod configured;
pub mod corpus;
pub mod data;
pub mod decoder;
mod encoded;
pub mod eval;
pub mod events;
pub mod generate;
pub mod intact;
pub mod memory;
pub mod metrics;
pub mod optim;
pub mod optimizer;
mod packing;
mod permutation;
pub mod pipeline;
#[cfg(feature = "plots")]
pub mod plot;
pub mod prompt;
pub mod ranks;
pub mod report;
mod rows;
pub mod run_folder;
pub mod sampler;
pub mod sampling;
pub mod schedule;
pub mod session;
pub mod sleep;
pub mod split;
pub mod stop;
mod sums;
pub mod tensorboard;
mod texts;
pub mod tokenizer;
pub mod tokens;
pub mod trainer;
mod tree;

pub use meshgrad_error::{Error, Kind, Result};
