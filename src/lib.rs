//! meshgrad: a training runtime in Rust. No libtorch, no BLAS library, no Python.
//!
//! This crate is the facade of the others:
//!
//! - [`mesh`]: layouts of ranks, device meshes, shardings. Pure values, no communication.
//! - [`dist`]: parallel configurations, and the meshes and groups that they need.
//! - [`collectives`]: collectives on tensors between the ranks of a group, and redistribution of
//!   sharded tensors.
//! - [`comm`]: the transports of ranks: threads, or processes over TCP or MPI.
//! - [`pipeline`]: pipeline schedules, proven free of deadlocks, simulated and drawn. Pure values.
//! - [`kernels`]: a PTX macro-assembler, for kernels of your own.
//! - [`runtime`]: devices, memory, dtypes, tensors and the ops on them.
//! - [`autograd`]: the tape, parameters, and differentiable ops.
//! - [`opcheck`]: cases of every differentiable op, checked on your device.
//! - [`ckpt`]: safetensors folders, read strictly and written atomically.
//! - [`load`]: loads regions of a checkpoint into tensors on the CPU and on GPUs.
//! - [`models`]: Qwen3, Llama, Mistral, Mixtral and Qwen2, as plain structs.
//! - [`train`]: data, optimizer, schedule, and the parts of the training loop.
//!
//! | feature | adds |
//! |---|---|
//! | `cli` (default) | the program `meshgrad`, and the three below |
//! | `plots` | `loss.svg` of a run |
//! | `progress` | progress that is redrawn on a terminal |
//! | `tokenizers` | BPE and `tokenizer.json`; without it, text is trained on as bytes |
//! | `emulator` | builds the emulator's library, which [`runtime::Device::emulator`] opens |
//!
//! ```
//! use meshgrad::prelude::*;
//!
//! # fn main() -> Result<()> {
//! let device = Device::cpu();
//! let w = Param::new("w", [1, 2], Init::Zeros);
//! w.materialize(&device, 0)?;
//!
//! let x = Var::constant(Tensor::from_slice(&device, &[1, 2], &[3.0f32, 4.0])?);
//! let (y, tape) = Tape::record(|| ops::linear(&x, &w.var()?))?;
//! let mut grads = Grads::new(&[w.clone()])?;
//! tape.backward(&y, &mut grads)?;
//! assert_eq!(grads.get(&w)?.to_vec::<f32>()?, [3.0, 4.0]);
//! # Ok(())
//! # }
//! ```

pub use meshgrad_autograd as autograd;
pub use meshgrad_ckpt as ckpt;
pub use meshgrad_collectives as collectives;
pub use meshgrad_comm as comm;
pub use meshgrad_data_parallel as data_parallel;
pub use meshgrad_dist as dist;
pub use meshgrad_kernels as kernels;
pub use meshgrad_load as load;
pub use meshgrad_mesh as mesh;
pub use meshgrad_models as models;
pub use meshgrad_opcheck as opcheck;
pub use meshgrad_pipeline as pipeline;
pub use meshgrad_runtime as runtime;
pub use meshgrad_train as train;

mod transfer;

pub use meshgrad_comm::ranks;
pub use meshgrad_train::ranks::checkpoint_ranks;
pub use transfer::{ShardedModule, transfer_module};

/// The items that most programs use.
///
/// `Result` is that of the standard library, with [`Error`](crate::runtime::Error) as the default of its second
/// parameter: `Result<T>` and `Result<T, E>` both work.
pub mod prelude {
    pub use crate::autograd::{
        Buffer, Grads, Init, Module, ModulePath, Param, Result, Save, Seam, Tape, Track, Var,
        checkpoint, ops,
    };
    pub use crate::comm::{Rank, Redistributor};
    pub use crate::data_parallel::{DataParallel, Strategy};
    pub use crate::mesh::{Mesh, Placement};
    pub use crate::models::layers::Linear;
    pub use crate::models::norms::RmsNorm;
    pub use crate::models::{
        Compute, Decoder, Generate, IGNORE_INDEX, Loss, Model, ModelParallelism, ModelPlan,
        TokenBatch,
    };
    pub use crate::ranks;
    pub use crate::runtime::ops::{AttentionMask, RopeStyle};
    pub use crate::runtime::{DType, Device, Error, Tensor};
    pub use crate::train::config::{Config, OptimizerConfig};
    pub use crate::train::optimizer::Optimizer;
    pub use crate::train::trainer::Trainer;
}

/// Compiles and runs the examples of the guides.
#[cfg(doctest)]
#[doc = include_str!("../docs/from-torchrun.md")]
#[doc = include_str!("../docs/from-deepspeed.md")]
struct FromOthers;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../docs/from-d9d.md")]
struct FromD9d;

/// Compiles and runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
