//! What can be wrong about meshes, and the way out.

use crate::{Mode, text};

/// Most ranks of a mesh: a bound that no cluster reaches, so that products cannot overflow.
pub const MAX_RANKS: usize = 1 << 24;

/// What can be wrong with a layout, a mesh, a placement or a transition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// A size of 0.
    #[error("a size is 0: a layout has at least one rank")]
    NoRanks,

    /// An axis of size 0.
    #[error("axis `{axis}` has size 0: give it at least 1 rank, or leave it out")]
    EmptyAxis {
        /// Its name.
        axis: String,
    },

    /// More ranks than can be.
    #[error("{product} x {size} ranks are more than {MAX_RANKS}, the most that a mesh can have")]
    TooManyRanks {
        /// The ranks so far.
        product: usize,
        /// The size that is too much.
        size: usize,
    },

    /// Two modes of a layout reach the same ranks, or do not line up.
    #[error(
        "the layout {layout} reaches ranks twice or leaves gaps that no layout fills: the stride \
         {} of its mode {}:{} must be a multiple of {}, which the finer mode {}:{} spans",
        .coarser.stride, .coarser.size, .coarser.stride,
        .finer.size * .finer.stride, .finer.size, .finer.stride
    )]
    Overlap {
        /// All of it.
        layout: String,
        /// The mode whose stride is wrong.
        coarser: Mode,
        /// The mode below it.
        finer: Mode,
    },

    /// Sizes that are not the factors of a layout.
    #[error(
        "the {len} ranks of {layout} cannot be split into {sizes:?}: the sizes must multiply to {len} \
         and cut where its modes do"
    )]
    WrongSplit {
        /// The layout.
        layout: String,
        /// Its ranks.
        len: usize,
        /// What it was to be split into.
        sizes: Vec<usize>,
    },

    /// A choice of indices that a layout does not have.
    #[error("{inner} chooses indices that {outer} does not have, or cuts a mode of it unevenly")]
    WrongComposition {
        /// What was to be chosen from.
        outer: String,
        /// What was chosen.
        inner: String,
    },

    /// A world that groups of a layout do not fill.
    #[error("groups of {layout} do not fill {world} ranks: it must be a multiple of {multiple}")]
    WrongWorld {
        /// The layout.
        layout: String,
        /// What the world must be a multiple of.
        multiple: usize,
        /// The world.
        world: usize,
    },

    /// As many names as sizes are needed.
    #[error("{} sizes {sizes:?} and {} names {names:?}: an axis has one of each", .sizes.len(), .names.len())]
    ShapeAndNames {
        /// The sizes.
        sizes: Vec<usize>,
        /// The names.
        names: Vec<String>,
    },

    /// A name that two axes would have.
    #[error("two axes would be called `{axis}` (axes: {axes}): give one of them another name")]
    DuplicateAxis {
        /// The name.
        axis: String,
        /// All axes.
        axes: String,
    },

    /// A name that is empty.
    #[error("an axis of {axes} has no name: a name is at least one character")]
    UnnamedAxis {
        /// All axes.
        axes: String,
    },

    /// A name that no axis has.
    #[error("axis `{axis}` is not in the mesh (axes: {axes}){}", suggestion(.nearest))]
    UnknownAxis {
        /// The name.
        axis: String,
        /// What there is.
        axes: String,
        /// A name that is near.
        nearest: Option<String>,
    },

    /// An axis that was named twice in one call.
    #[error("axis `{axis}` is named twice in {given:?}: name it once")]
    AxisTwice {
        /// Its name.
        axis: String,
        /// All that were named.
        given: Vec<String>,
    },

    /// As many ranks as places are needed.
    #[error("{axes} has {product} places and {given} ranks were given: give each place one rank")]
    WrongRankCount {
        /// The axes.
        axes: String,
        /// Their product.
        product: usize,
        /// How many ranks were given.
        given: usize,
    },

    /// A rank at two places.
    #[error(
        "rank {rank} stands at place {first} and again at place {second} of the mesh: each rank \
         has one place"
    )]
    DuplicateRank {
        /// The rank.
        rank: usize,
        /// Where it stands first, counted row-major.
        first: usize,
        /// Where again.
        second: usize,
    },

    /// A mesh that does not have all ranks of a world, or has others.
    #[error(
        "the mesh {mesh} has {len} ranks and the world {world}: {}; change a size so that they multiply \
         to {world}, or make the mesh of a part on purpose",
        difference(.missing, .outside)
    )]
    NotTheWorld {
        /// The mesh.
        mesh: String,
        /// Its ranks.
        len: usize,
        /// The world's ranks.
        world: usize,
        /// Those that the mesh lacks.
        missing: Vec<usize>,
        /// Those that the world lacks.
        outside: Vec<usize>,
    },

    /// A coordinate outside of its axis.
    #[error(
        "axis `{axis}` has size {size}, so its coordinates are below it, and {index} was asked for"
    )]
    OutsideAxis {
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
        /// The coordinate.
        index: usize,
    },

    /// Parts of an axis that do not multiply to its size.
    #[error("axis `{axis}` has size {size} and its parts {parts} multiply to {product}{}", auto_hint(.size, .product))]
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

    /// More than one size that is to be found out.
    #[error("{parts} of axis `{axis}`: only one size can be `auto`; give the other a number")]
    TwoAutos {
        /// The axis.
        axis: String,
        /// The parts.
        parts: String,
    },

    /// Two parts with a rank in common.
    #[error(
        "rank {rank} is in part {first} ({first_mesh}) and in part {second} ({second_mesh}): parts \
         share no rank; cut both out of one mesh with `at`, or list other ranks"
    )]
    NotDisjoint {
        /// A rank in both.
        rank: usize,
        /// The number of one.
        first: usize,
        /// Its axes.
        first_mesh: String,
        /// The number of the other.
        second: usize,
        /// Its axes.
        second_mesh: String,
    },

    /// A group of nobody.
    #[error("a group has no ranks: name at least one")]
    EmptyGroup,

    /// A rank that a group has twice.
    #[error(
        "rank {rank} is member {first} of a group and again member {second}: a rank is in a group once"
    )]
    MemberTwice {
        /// The rank.
        rank: usize,
        /// Where it stands first.
        first: usize,
        /// Where again.
        second: usize,
    },

    /// A rank that no mesh can have.
    #[error("a group has rank {rank}, and ranks are below {MAX_RANKS}: is it a rank?")]
    MemberTooLarge {
        /// The rank.
        rank: usize,
    },

    /// An option of a group with a value that no transport takes.
    #[error("the group's option `{option}` is {value} and has to be {expected}")]
    WrongOption {
        /// Its name.
        option: &'static str,
        /// What it is.
        value: String,
        /// What it can be.
        expected: String,
    },

    /// Ranks that do not have the same mesh.
    #[error("ranks do not agree on their mesh: {}", .0.join("; "))]
    Disagreement(
        /// Who has what, the most ranks first.
        Vec<String>,
    ),
}

/// The result of what can be wrong about meshes.
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
        _ => Some(format!(
            "ranks {} have no place in the mesh",
            text::ranks(missing)
        )),
    };
    let outside = match outside {
        [] => None,
        _ => Some(format!(
            "ranks {} of the mesh are not in the world",
            text::ranks(outside)
        )),
    };
    let both: Vec<String> = [missing, outside].into_iter().flatten().collect();
    both.join(", ")
}

fn auto_hint(size: &usize, product: &usize) -> String {
    match size.is_multiple_of(*product) {
        true => format!("; a part of {} is missing", size / product),
        false => format!("; {product} does not divide {size}"),
    }
}
