//! Data, optimizers, schedules and the loop.
//!
//! The parts that need no tensor:
//!
//! - [`config`]: the whole configuration of a run, strict, every default written out.
//! - [`corpus`]: where text comes from; [`split`]: what is held out; [`tokenizer`]: text to ids and
//!   back; [`tokens`]: the memory-mapped token cache; [`sampler`]: which windows make the batch of
//!   a step.
//! - [`schedule`]: the learning rate of a step.
//! - [`run_folder`], [`metrics`], [`plot`], [`report`]: what a run leaves behind and what it says.

pub mod config;
pub mod corpus;
pub mod data;
mod error;
pub mod metrics;
pub mod plot;
pub mod report;
pub mod run_folder;
pub mod sampler;
pub mod schedule;
pub mod split;
pub mod tokenizer;
pub mod tokens;

pub use error::{Result, TrainError};
