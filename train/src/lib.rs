//! Data, optimizers, schedules and the loop.
//!
//! The parts that need no tensor:
//!
//! - [`config`]: the whole configuration of a run, strict, every default written out.
//! - [`corpus`]: where text comes from; [`split`]: what is held out; [`tokenizer`]: text to ids and
//!   back; [`tokens`]: the memory-mapped token cache; [`sampler`]: which windows make the batch of
//!   a step.
//! - [`schedule`]: the learning rate of a step.
//!
//! The parts that train:
//!
//! - [`trainer`]: one step and one validation; [`optimizer`]: AdamW and its state;
//!   [`checkpoint`]: what a run saves; [`generate`]: writing text.
//! - [`session`]: all parts together, as `meshgrad train` runs them.
//! - [`run_folder`], [`metrics`], [`plot`], [`report`]: what a run leaves behind and what it says.

pub mod checkpoint;
pub mod config;
pub mod corpus;
pub mod data;
mod error;
pub mod generate;
pub mod metrics;
pub mod optimizer;
pub mod plot;
pub mod report;
pub mod run_folder;
pub mod sampler;
pub mod schedule;
pub mod session;
pub mod split;
pub mod tokenizer;
pub mod tokens;
pub mod trainer;

pub use error::{Result, TrainError};
