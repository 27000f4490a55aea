//! Rank layouts, device meshes, placements and the transitions between them, as pure values.
//!
//! Nothing here communicates, allocates tensors or knows which rank it runs on: what a mesh of a
//! hundred thousand ranks looks like from each of them can be computed, tested and compared in one
//! process.
//!
//! - [`RankLayout`]: which ranks, in which order, and the algebra of that.
//! - [`Mesh`]: named axes over ranks; [`Group`]: who communicates with whom.
//! - [`Place`]: where a tensor is, and the box of each rank; [`Transition`]: from one place to another.
//! - [`Rule`]: what an op does with placements: what the results of its operands are, or the transition
//!   that is missing.
//! - [`agree`]: whether ranks have the same mesh.

mod agreement;
mod arrangement;
mod error;
mod group;
mod hosts;
mod layout;
mod mesh;
mod mesh_set;
mod options;
mod place;
mod place_error;
mod placement;
mod rank_map;
mod relation;
mod rule;
mod size;
mod text;
mod transition;

pub use agreement::{Fingerprint, agree};
pub use error::{MAX_RANKS, MeshError, Result};
pub use group::{Group, Lane};
pub use hosts::Hosts;
pub use layout::{Mode, RankLayout};
pub use mesh::{Axis, Mesh};
pub use mesh_set::MeshSet;
pub use options::{CtaPolicy, GroupOptions};
pub use place::Place;
pub use place_error::PlaceError;
pub use placement::{Division, Placement, Reduction};
pub use relation::Relation;
pub use rule::{Change, Misplaced, Problem, Remedy, Rule, RuleError};
pub use size::Size;
pub use transition::{Action, Combine, Link, LinkCosts, Step, Traffic, Transition};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/mesh.md")]
struct Guide;
