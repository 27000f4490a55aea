//! Errors of layouts, meshes and groups.

use crate::{Mode, text};

/// The most ranks of a mesh: larger than any cluster, and small enough that products do not
/// overflow.
pub const MAX_RANKS: usize = 1 << 24;

/// An error of a layout, a mesh or a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// A size is 0.
    #[error("a size is 0, but a layout has at least one rank")]
    NoRanks,

    /// An axis has size 0.
    #[error("axis `{axis}` has size 0: use at least 1, or leave the axis out")]
    EmptyAxis {
        /// The name.
        axis: String,
    },

    /// More ranks than [`MAX_RANKS`].
    #[error("{product} x {size} ranks exceed the limit of {MAX_RANKS}")]
    TooManyRanks {
        /// The product of the other sizes.
        product: usize,
        /// The size that exceeds the limit.
        size: usize,
    },

    /// Two modes of a layout overlap or are not aligned.
    #[error(
        "layout {layout} is not separable: the stride {} of its mode {}:{} must be a multiple of \
         {}, the span of its finer mode {}:{}",
        .coarser.stride, .coarser.size, .coarser.stride,
        .finer.size * .finer.stride, .finer.size, .finer.stride
    )]
    Overlap {
        /// The layout.
        layout: String,
        /// The mode with the wrong stride.
        coarser: Mode,
        /// The next finer mode.
        finer: Mode,
    },

    /// A layout cannot be split into these sizes.
    #[error(
        "layout {layout} of {len} ranks cannot be split into {sizes:?}: the sizes must multiply to \
         {len} and divide its modes"
    )]
    WrongSplit {
        /// The layout.
        layout: String,
        /// Its number of ranks.
        len: usize,
        /// The sizes.
        sizes: Vec<usize>,
    },

    /// A composition is not a layout.
    #[error(
        "layout {outer} cannot be composed with {inner}: an index is out of range, or a mode is split unevenly"
    )]
    WrongComposition {
        /// The layout that is indexed.
        outer: String,
        /// The indices.
        inner: String,
    },

    /// The world is not a multiple of a layout's span.
    #[error(
        "groups of layout {layout} do not fill {world} ranks: the world must be a multiple of {multiple}"
    )]
    WrongWorld {
        /// The layout.
        layout: String,
        /// The required factor.
        multiple: usize,
        /// The size of the world.
        world: usize,
    },

    /// The numbers of sizes and names differ.
    #[error("got {} sizes {sizes:?} but {} names {names:?}: each axis needs one of each", .sizes.len(), .names.len())]
    ShapeAndNames {
        /// The sizes.
        sizes: Vec<usize>,
        /// The names.
        names: Vec<String>,
    },

    /// Two axes have the same name.
    #[error("two axes are named `{axis}` (axes: {axes}): rename one of them")]
    DuplicateAxis {
        /// The name.
        axis: String,
        /// All axes.
        axes: String,
    },

    /// An axis name is empty.
    #[error("an axis of {axes} has an empty name: use at least one character")]
    UnnamedAxis {
        /// All axes.
        axes: String,
    },

    /// No axis has this name.
    #[error("axis `{axis}` is not in the mesh (axes: {axes}){}", suggestion(.nearest))]
    UnknownAxis {
        /// The name.
        axis: String,
        /// All axes.
        axes: String,
        /// A similar name.
        nearest: Option<String>,
    },

    /// A call names an axis twice.
    #[error("axis `{axis}` is named twice in {given:?}: name it once")]
    AxisTwice {
        /// Its name.
        axis: String,
        /// All names in the call.
        given: Vec<String>,
    },

    /// The number of ranks differs from the mesh's size.
    #[error("mesh {axes} needs {product} ranks, got {given}")]
    WrongRankCount {
        /// The axes.
        axes: String,
        /// Their product.
        product: usize,
        /// The number of ranks that were given.
        given: usize,
    },

    /// A rank occurs twice.
    #[error(
        "rank {rank} is at position {first} and again at position {second} of the mesh: list each \
         rank once"
    )]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// Its first position, row-major.
        first: usize,
        /// Its second position.
        second: usize,
    },

    /// A mesh does not have exactly the ranks of the world.
    #[error(
        "mesh {mesh} has {len} ranks but the world has {world}: {}; change a size so that the product \
         is {world}, or list the ranks with from_ranks",
        difference(.missing, .outside)
    )]
    NotTheWorld {
        /// The mesh.
        mesh: String,
        /// Its number of ranks.
        len: usize,
        /// The size of the world.
        world: usize,
        /// Ranks of the world that the mesh lacks.
        missing: Vec<usize>,
        /// Ranks of the mesh that the world lacks.
        outside: Vec<usize>,
    },

    /// A coordinate is out of range.
    #[error("coordinate {index} is out of range for axis `{axis}` of size {size}")]
    OutsideAxis {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The coordinate.
        index: usize,
    },

    /// The parts of an axis do not multiply to its size.
    #[error("axis `{axis}` has size {size} but its parts {parts} multiply to {product}{}", auto_hint(.size, .product))]
    WrongParts {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The parts.
        parts: String,
        /// Their product.
        product: usize,
    },

    /// More than one part is `auto`.
    #[error(
        "axis `{axis}` is split into {parts}: only one size can be `auto`; give the others a number"
    )]
    TwoAutos {
        /// The axis.
        axis: String,
        /// The parts.
        parts: String,
    },

    /// Two parts share a rank.
    #[error(
        "rank {rank} is in part {first} ({first_mesh}) and in part {second} ({second_mesh}), but \
         parts must be disjoint: slice both from one mesh with `at`, or list other ranks"
    )]
    NotDisjoint {
        /// A rank in both.
        rank: usize,
        /// The index of one part.
        first: usize,
        /// Its axes.
        first_mesh: String,
        /// The index of the other part.
        second: usize,
        /// Its axes.
        second_mesh: String,
    },

    /// A group has no ranks.
    #[error("a group has no ranks: it needs at least one")]
    EmptyGroup,

    /// A group has a rank twice.
    #[error(
        "rank {rank} is member {first} of a group and again member {second}: list each rank once"
    )]
    MemberTwice {
        /// The rank.
        rank: usize,
        /// Its first index.
        first: usize,
        /// Its second index.
        second: usize,
    },

    /// A rank is too large.
    #[error("a group has rank {rank}, but ranks are below {MAX_RANKS}")]
    MemberTooLarge {
        /// The rank.
        rank: usize,
    },

    /// A group option has an invalid value.
    #[error("group option `{option}` is {value}, expected {expected}")]
    WrongOption {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
    },

    /// Ranks have different meshes.
    #[error("ranks have different meshes: {}", .0.join("; "))]
    Disagreement(
        /// The ranks of each mesh, the most common mesh first.
        Vec<String>,
    ),
}

/// A result with a [`MeshError`].
pub type Result<T, E = MeshError> = std::result::Result<T, E>;

fn suggestion(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; did you mean `{name}`?"),
        None => String::new(),
    }
}

fn difference(missing: &[usize], outside: &[usize]) -> String {
    let missing = match missing {
        [] => None,
        _ => Some(format!("ranks {} are not in the mesh", text::ranks(missing))),
    };
    let outside = match outside {
        [] => None,
        _ => Some(format!("ranks {} of the mesh are not in the world", text::ranks(outside))),
    };
    let both: Vec<String> = [missing, outside].into_iter().flatten().collect();
    both.join(", ")
}

fn auto_hint(size: &usize, product: &usize) -> String {
    match size.is_multiple_of(*product) {
        true => format!("; a part of size {} is missing", size / product),
        false => format!("; {product} does not divide {size}"),
    }
}
