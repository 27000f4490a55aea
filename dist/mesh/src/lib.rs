//! Rank layouts, device meshes, shardings and the redistributions between them, as pure values.
//!
//! Nothing here communicates, allocates tensors or knows which rank it runs on. The view of every
//! rank of a mesh of 100,000 ranks can be computed, tested and compared in one process.
//!
//! - [`RankLayout`]: ordered sets of ranks as sizes and strides, and their algebra.
//! - [`Mesh`]: named axes over ranks; [`Group`]: the ranks that communicate with each other.
//! - [`Sharding`]: a mesh, a placement per axis and a global shape; [`Redistribution`]: the
//!   collectives that convert one sharding into another.
//! - [`Chunks`]: parts of a tensor that are redistributed one after another.
//! - [`Transfer`]: the messages that bring tensors from one mesh to another.
//! - [`ShardingRule`]: the shardings of an op's results, derived from its [`ParsedSignature`].
//! - [`check_agreement`]: whether all ranks have the same mesh.

mod agreement;
mod chunks;
mod division;
mod group;
mod hosts;
mod layout;
mod mesh;
mod mesh_set;
mod options;
mod placement;
mod placements;
mod rank_map;
mod redistribution;
mod region;
mod relation;
mod rule;
mod sharding;
mod signature;
mod size;
mod text;
mod transfer;

pub use agreement::{Fingerprint, check_agreement};
pub use chunks::Chunks;
pub use division::Division;
pub use group::{Channel, Group};
pub use hosts::Hosts;
pub use layout::{MAX_RANKS, Mode, RankLayout};
pub use mesh::{Axis, Mesh};
pub use mesh_set::MeshSet;
pub use meshgrad_error::{Error, Kind, Result};
pub use options::{CtaPolicy, GroupOptions};
pub use placement::{Placement, Reduction};
pub use redistribution::{Action, Link, LinkCosts, Redistribution, ReduceOp, Step, Traffic};
pub use region::{IndexSet, Region, RowBox};
pub use relation::Relation;
pub use rule::{Change, DerivedSharding, Incompatible, Problem, Remedy, ShardingRule};
pub use sharding::Sharding;
pub use signature::{DimSpec, NamedDim, ParsedSignature, TensorSpec};
pub use size::Size;
pub use text::nearest_name;
pub use transfer::{Transfer, TransferMessage, TransferPart, TransferTensor};

/// Compiles and runs the examples of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/mesh.md")]
struct Guide;
