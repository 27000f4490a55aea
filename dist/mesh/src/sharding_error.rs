//! What can be wrong about places and transitions, and the way out.

use crate::{MeshError, Placement, Reduction};

/// What can be wrong with the place of a tensor, or with the way from one to another.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardingError {
    /// What is wrong with the mesh, as an axis that it does not have.
    #[error(transparent)]
    Mesh(#[from] MeshError),

    /// An axis with two placements.
    #[error(
        "axis `{axis}` is placed twice, as {first} and as {second}: a tensor lies in one way along \
         an axis"
    )]
    DuplicatePlacement {
        /// The axis.
        axis: String,
        /// Its placement.
        first: Placement,
        /// Its other placement.
        second: Placement,
    },

    /// A dim that the tensor does not have.
    #[error("axis `{axis}` shards dim {dim} and the tensor {shape:?} has {}", dims(.shape))]
    NoSuchDim {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The tensor's shape.
        shape: Vec<usize>,
    },

    /// Not as many sizes as ranks.
    #[error(
        "axis `{axis}` has {ranks} ranks and shards dim {dim} into {} sizes {sizes:?}: give each \
         rank one, 0 for none", .sizes.len()
    )]
    RaggedCount {
        /// The axis.
        axis: String,
        /// Its ranks.
        ranks: usize,
        /// The dim.
        dim: usize,
        /// The sizes.
        sizes: Vec<usize>,
    },

    /// Sizes that do not add up.
    #[error(
        "the sizes {sizes:?} that axis `{axis}` shards dim {dim} into add up to {} and there are \
         {extent} to divide{}", sum(.sizes), inside(.outer)
    )]
    RaggedSum {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The sizes.
        sizes: Vec<usize>,
        /// What there is to divide.
        extent: usize,
        /// The axes that shard the dim before.
        outer: Vec<String>,
    },

    /// Sizes for shards that are not equal.
    #[error(
        "axis `{axis}` shards dim {dim} into {sizes:?}{}, whose shards have {extents:?}: one list of \
         sizes divides equal shards only; name `{axis}` before them, or shard evenly", inside(.outer)
    )]
    RaggedUnequal {
        /// The axis.
        axis: String,
        /// The dim.
        dim: usize,
        /// The sizes.
        sizes: Vec<usize>,
        /// The axes that shard the dim before.
        outer: Vec<String>,
        /// The extents of their shards.
        extents: Vec<usize>,
    },

    /// Reductions that do not commute.
    #[error(
        "axis `{first_axis}` holds a partial {first} and axis `{second_axis}` a partial {second}: \
         these do not commute, so the value would depend on their order; reduce one of them first"
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

    /// More elements than can be.
    #[error("a tensor {shape:?} has more elements than 2^56, which is more than can be addressed")]
    TooManyElements {
        /// Its shape.
        shape: Vec<usize>,
    },

    /// Places on two meshes.
    #[error(
        "the tensor is on the mesh {from} and is wanted on the mesh {to}: a transition stays on \
         one mesh; give both places on the mesh whose axes these are made of \
         (select, split, flatten)"
    )]
    MeshMismatch {
        /// The axes of one, and its ranks.
        from: String,
        /// The axes of the other, and its ranks.
        to: String,
    },

    /// Places of two shapes.
    #[error(
        "the tensor is {from:?} and is wanted as {to:?}: a transition moves, it does not reshape"
    )]
    ShapeMismatch {
        /// One shape.
        from: Vec<usize>,
        /// The other.
        to: Vec<usize>,
    },

    /// A reduction that is to become another.
    #[error(
        "axis `{axis}` holds a partial {from} and a partial {to} is wanted: none becomes the \
         other; reduce it (to replicate or shard), and make it a partial {to} from there if that \
         is meant"
    )]
    ReductionMismatch {
        /// The axis.
        axis: String,
        /// What it holds.
        from: Reduction,
        /// What is wanted.
        to: Reduction,
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
        _ => format!(" inside of what {} shard", names(outer)),
    }
}

fn names(axes: &[String]) -> String {
    let quoted: Vec<String> = axes.iter().map(|axis| format!("`{axis}`")).collect();
    quoted.join(", ")
}
