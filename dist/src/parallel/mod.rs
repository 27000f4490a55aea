//! Degrees of parallelism, checked, as meshes and groups of ranks.

mod declare;
mod degree;
mod settings;
mod source;
mod violation;

pub use declare::{Domain, Member, Pick, View};
pub use degree::Parallelism;
pub use settings::Settings;
pub use source::{Given, Source};
pub use violation::{Violation, Violations};
