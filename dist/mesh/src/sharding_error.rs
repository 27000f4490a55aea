//! Errors of shardings and redistributions.

use crate::{Division, MeshError, Placement, Reduction};

/// An error of a sharding or a redistribution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingError {
    /// An error of the mesh, such as an unknown axis.
    #[error(transparent)]
    Mesh(#[from] MeshError),

    /// An axis has two placements.
    #[error("axis `{axis}` has two placements, {first} and {second}: state one")]
    DuplicatePlacement {
        /// The axis.
        axis: String,
        /// One placement.
        first: Placement,
        /// The other placement.
        second: Placement,
    },

    /// The tensor does not have this dim.
    #[error("axis `{axis}` shards dim {dim}, but the tensor {shape:?} has {}", dims(.shape))]
    NoSuchDim {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The tensor's shape.
        shape: Vec<usize>,
    },

    /// The number of ragged sizes differs from the axis size.
    #[error(
        "axis `{axis}` has {ranks} ranks but shards dim {dim} into {} sizes {sizes:?}: give one \
         size per rank, 0 for an empty shard", .sizes.len()
    )]
    RaggedCount {
        /// The axis.
        axis: String,
        /// Its number of ranks.
        ranks: usize,
        /// The dim.
        dim: usize,
        /// The sizes.
        sizes: Vec<usize>,
    },

    /// Ragged sizes do not add up to the extent.
    #[error(
        "axis `{axis}` shards dim {dim} into sizes {sizes:?}, which add up to {}, but the extent is \
         {extent}{}", sum(.sizes), inside(.outer)
    )]
    RaggedSum {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The sizes.
        sizes: Vec<usize>,
        /// The extent.
        extent: usize,
        /// The outer axes that shard the dim.
        outer: Vec<String>,
    },

    /// Ragged sizes for shards of different extents.
    #[error(
        "axis `{axis}` shards dim {dim} into sizes {sizes:?}{}, which have different extents \
         {extents:?}: place `{axis}` before {}, or shard evenly", inside(.outer), names(.outer)
    )]
    RaggedUnequal {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The sizes.
        sizes: Vec<usize>,
        /// The outer axes that shard the dim.
        outer: Vec<String>,
        /// The extents of their shards.
        extents: Vec<usize>,
    },

    /// The blocks of a division do not fit its dim.
    #[error(
        "axis `{axis}` shards dim {dim} {division}{}, but the extent is {}: the length of a block must \
         be at least 1 and divide it into at most 2^20 blocks", inside(.outer), either(.extents)
    )]
    BlockLength {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The division.
        division: Division,
        /// The outer axes that shard the dim.
        outer: Vec<String>,
        /// The extents of the shards to divide.
        extents: Vec<usize>,
    },

    /// Partial reductions that do not commute.
    #[error(
        "axis `{first_axis}` is partial({first}) and axis `{second_axis}` is partial({second}), which \
         do not commute: reduce one of them first"
    )]
    MixedReductions {
        /// An axis.
        first_axis: String,
        /// Its reduction.
        first: Reduction,
        /// Another axis.
        second_axis: String,
        /// Its reduction.
        second: Reduction,
    },

    /// The tensor has too many elements.
    #[error("tensor {shape:?} has more than 2^56 elements")]
    TooManyElements {
        /// The shape.
        shape: Vec<usize>,
    },

    /// The meshes differ.
    #[error(
        "cannot redistribute from mesh {from} to mesh {to}: transfer it between the meshes, or state \
         both shardings on one mesh, from which these can be derived by select, split and flatten"
    )]
    MeshMismatch {
        /// The axes and ranks of the source.
        from: String,
        /// The axes and ranks of the target.
        to: String,
    },

    /// The shapes differ.
    #[error("cannot redistribute from shape {from:?} to {to:?}: reshape first")]
    ShapeMismatch {
        /// The shape of the source.
        from: Vec<usize>,
        /// The shape of the target.
        to: Vec<usize>,
    },

    /// The partial reductions differ.
    #[error(
        "cannot redistribute axis `{axis}` from partial({from}) to partial({to}): redistribute to \
         replicate or shard first"
    )]
    ReductionMismatch {
        /// The axis.
        axis: String,
        /// The reduction of the source.
        from: Reduction,
        /// The reduction of the target.
        to: Reduction,
    },

    /// A transfer between meshes from or to partial values.
    #[error(
        "cannot transfer {end} partial values ({sharding}): {}", whole(.end, .axis)
    )]
    TransferPartial {
        /// `from` or `to`.
        end: &'static str,
        /// An axis with partial values.
        axis: String,
        /// The sharding.
        sharding: String,
    },

    /// A transfer from or to a mesh with parallel instances.
    #[error(
        "cannot transfer from or to the {instances} parallel instances of {mesh}, whose values may \
         differ: state the sharding on a mesh with all axes"
    )]
    TransferInstances {
        /// The mesh.
        mesh: String,
        /// Its number of instances.
        instances: usize,
    },
}

fn sum(sizes: &[usize]) -> u128 {
    sizes.iter().map(|size| *size as u128).sum()
}

fn dims(shape: &[usize]) -> String {
    match shape.len() {
        0 => "no dims: replicate it".to_owned(),
        1 => "only dim 0".to_owned(),
        dims => format!("dims 0 to {}", dims - 1),
    }
}

fn inside(outer: &[String]) -> String {
    match outer {
        [] => String::new(),
        _ => format!(" inside the shards of {}", names(outer)),
    }
}

fn either(extents: &[usize]) -> String {
    let extents: Vec<String> = extents.iter().map(usize::to_string).collect();
    extents.join(" or ")
}

fn names(axes: &[String]) -> String {
    let quoted: Vec<String> = axes.iter().map(|axis| format!("`{axis}`")).collect();
    quoted.join(", ")
}

fn whole(end: &str, axis: &str) -> String {
    match end {
        "from" => format!("redistribute it to replicate or shard on axis `{axis}` first"),
        _ => format!("transfer to replicate or shard on axis `{axis}`, and redistribute it there"),
    }
}
