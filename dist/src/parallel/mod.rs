//! Degrees of parallelism, checked, as meshes and groups of ranks.
//!
//! What is asked for is collected as [`Settings`], each value with its [`Source`]. Checking them
//! gives a [`ParallelConfig`], or all [`Violations`] at once. A [`ParallelState`] puts a
//! configuration on ranks and answers with meshes and groups; any number of them live in one
//! process. All are values: nothing here communicates, and nothing depends on which rank asks.
//!
//! ```
//! use meshgrad_dist::parallel::{ParallelConfig, ParallelState, Parallelism, Settings, Source};
//!
//! let mut settings = Settings::new();
//! settings.world(16, Source::environment("WORLD_SIZE"));
//! settings.set(Parallelism::Tp, 2, Source::flag("--tp"));
//! settings.set(Parallelism::Pp, 2, Source::flag("--pp"));
//! settings.set(Parallelism::Ep, 4, Source::flag("--ep"));
//!
//! let state = ParallelState::new(ParallelConfig::new(&settings)?);
//! assert_eq!(state.mesh("dense")?.size("dp_cp_shard")?, 4);
//! assert_eq!(state.group("ep", 5)?.unwrap().ranks(), [4, 5, 6, 7]);
//! assert_eq!(state.group("dp", 5)?.unwrap().ranks(), [1, 3, 5, 7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Ops and models see none of this: they ask for an axis of a mesh, or a group.

mod by_host;
mod check;
mod config;
mod declare;
mod degree;
mod domains;
pub mod import;
mod megatron;
mod members;
mod mpu;
mod order;
mod rank_generator;
mod settings;
mod source;
mod state;
mod text;
mod violation;

pub use config::ParallelConfig;
pub use declare::{Domain, Member, Pick, View};
pub use degree::Parallelism;
pub use megatron::{MegatronError, MegatronExtras, MegatronGroups};
pub use mpu::Mpu;
pub use order::{Order, OrderError, Token};
pub use rank_generator::RankGenerator;
pub use settings::Settings;
pub use source::{Source, Sourced};
pub use state::{ParallelState, StateError};
pub use violation::{Violation, Violations};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/parallel-state.md")]
struct Guide;
