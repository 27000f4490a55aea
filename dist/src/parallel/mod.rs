//! Parallel configurations: degrees of parallelism, checked and turned into meshes and groups.
//!
//! [`Settings`] collect values with their [`Source`]s. Checking them returns a [`ParallelConfig`],
//! or all [`Violations`] together. A [`ParallelState`] maps a configuration to ranks and provides
//! meshes and groups; a process can have any number of them. All are values: nothing here
//! communicates or depends on the current rank.
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
//! Ops and models do not use this module: they take an axis of a mesh, or a group.

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
pub use declare::{Domain, Member, Subgroup, View};
pub use degree::Parallelism;
pub use megatron::{MegatronExtras, MegatronGroups};
pub use mpu::Mpu;
pub use order::{Order, Token};
pub use rank_generator::RankGenerator;
pub use settings::Settings;
pub use source::{Source, Sourced};
pub use state::ParallelState;
pub use violation::Violations;

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/parallel-state.md")]
struct Guide;
