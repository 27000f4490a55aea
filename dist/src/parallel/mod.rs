//! Degrees of parallelism, checked, as meshes and groups of ranks.

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
pub use source::{Given, Source};
pub use state::{ParallelState, StateError};
pub use violation::{Violation, Violations};
