//! Data parallelism: where parameters live, and how their gradients are reduced.
//!
//! A [`Strategy`] says over which mesh axes the rows of parameters are divided, over which they are
//! copied, and how long gathered values stay: [`Strategy::replicate`], [`Strategy::zero1`],
//! [`Strategy::fsdp`], [`Strategy::hsdp`]. [`DataParallel`] gives one to each unit of a model,
//! which is any module that a caller names, such as a layer: its parameters then have a
//! [`Home`](meshgrad_autograd::Home). The parameters of a unit share one flat buffer, so one
//! collective gathers them and one reduces their gradients, without copies.
//!
//! On a stage of a pipeline, [`DataParallel::of_stage`]; [`DataParallel::tied`] for a module that
//! several stages have copies of. [`DataParallel::mesh`] for parameters on another mesh.
//!
//! The model's code stays as it is. [`Param::var`](meshgrad_autograd::Param::var) gathers a unit
//! when an op uses the first of its parameters; an op saves "gather again" for backward; a backward
//! pass reduces a unit's gradients when the last of them is complete.
//!
//! - `strategy.rs`: what a caller chooses.
//! - `data_parallel.rs`: the units of a model.
//! - `unit_ranks.rs`: how a unit is divided over ranks.
//! - `layout.rs`: the rows of a unit in its flat buffer, and which rank keeps which.
//! - `unit.rs`: the values of a unit, gathered or not.
//! - `partials.rs`: along which axes gradients are partial sums, learnt from a pass without data.
//! - `order.rs`: the order in which units are used, for prefetching.
//! - `gradients.rs`: the gradients of a unit.
//! - `meshes.rs`: the meshes of the parameters.
//! - `groups.rs`: the ranks along mesh axes.
//!
//! ```
//! use meshgrad_autograd::{Grads, Init, Module, Param, Tape, ops};
//! use meshgrad_collectives::redistribute;
//! use meshgrad_comm::{Local, Rank, Redistributor};
//! use meshgrad_data_parallel::{Strategy, DataParallel};
//! use meshgrad_mesh::{Mesh, Placement};
//! use meshgrad_runtime::{DType, Tensor};
//!
//! let mesh = Mesh::new(&[2], &["dp"])?;
//! let losses = Local::new(2).launch(|rank| {
//!     Redistributor::new(rank).run_on(&mesh, || {
//!         let w = Param::new("w", [3, 4], Init::Ones);
//!         DataParallel::new(rank, &mesh, Strategy::fsdp(["dp"])).apply(&w)?;
//!         w.materialize(rank.device(), 0)?;
//!         // Three rows: rank 0 keeps one or two of them.
//!         assert!(w.kept().rows().len() < 3);
//!
//!         let x = Tensor::from_slice(rank.device(), &[2, 4], &[1.0f32; 8])?.as_replicated()?;
//!         let x = redistribute(&x, [("dp", Placement::shard(0))])?;
//!         let x = meshgrad_autograd::Var::constant(x);
//!         let (loss, tape) = Tape::record(|| ops::sum(&ops::linear(&x, &w.var()?)?, &[0, 1]))?;
//!         let mut grads = Grads::new(&[w.clone()])?;
//!         tape.backward(&loss, &mut grads)?;
//!         // The gradient of this rank's rows: summed over all samples.
//!         let gradient = grads.get(&w)?;
//!         assert!(gradient.to_vec::<f32>()?.iter().all(|dw| *dw == 2.0));
//!         Ok::<(), meshgrad_runtime::Error>(())
//!     })
//! });
//! losses?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod data_parallel;
mod gradients;
mod groups;
mod layout;
mod meshes;
mod order;
mod partials;
mod strategy;
mod unit;
mod unit_ranks;

pub use data_parallel::DataParallel;
pub use meshgrad_error::{Error, Kind, Result};
pub use strategy::{Reshard, Strategy};

/// Compiles and runs the example of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/data-parallel.md")]
struct Guide;
