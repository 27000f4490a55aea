//! The kernels that tests assemble, execute and check: one of each function, dtype, layout and
//! tile.
//!
//! One file per family of `meshgrad-kernels`. The public constants are the shapes for which a
//! family is built, so that a test can launch each kernel.

mod adamw;
mod add_rms_norm;
mod argsort;
mod attention;
mod column_sums;
mod copies;
mod cross_entropy;
mod cumsum;
mod elementwise;
mod expert_order;
mod gemm;
mod global_norm;
mod grouped;
mod indexing;
mod norm_rope;
mod random;
mod reduce;
mod rope;
mod router;
mod row_map;
mod softmax;
mod swiglu;
mod token_permute;
mod top_k;
mod tree_reduce;

pub use attention::ON_TENSOR_CORES;
pub use column_sums::weight_gradient;
pub use copies::CASTS;
pub use elementwise::elementwise_variants;
pub use expert_order::HELD_EXPERTS;
pub use global_norm::SQUARED;
pub use reduce::REDUCTIONS;
pub use rope::{HEADS, heads};
pub use router::ROUTED_EXPERTS;
pub use row_map::{scaled_center, standardize};
pub use softmax::SOFTMAX_ROWS;
pub use token_permute::TOKEN_FEATURES;
pub use top_k::{ARG_REDUCED, SORTED};
pub use tree_reduce::TREES;

use meshgrad_kernels::{Ptx, Result};

/// One kernel of every kind: each function, dtype, layout and tile.
pub fn catalogue() -> Vec<Ptx> {
    let families = families().into_iter();
    families.flat_map(|(_, kernels)| kernels).collect()
}

/// The kernels of [`catalogue`], by family.
pub fn families() -> Vec<(&'static str, Vec<Ptx>)> {
    // All constructors get valid extents; a test checks that none fails.
    let built = |(name, kernels): &NamedFamily| (*name, kernels().into_iter().flatten().collect());
    FAMILIES.iter().map(built).collect()
}

const FAMILIES: &[NamedFamily] = &[
    ("elementwise", elementwise::elementwise),
    ("copies", copies::copies),
    ("indexing", indexing::indexing),
    ("gemm_f32", gemm::gemm_f32),
    ("gemm_bf16", gemm::gemm_bf16),
    ("gemm_parts", gemm::gemm_parts),
    ("cross_entropy", cross_entropy::cross_entropy),
    ("swiglu", swiglu::swiglu),
    ("grouped", grouped::grouped),
    ("expert_order", expert_order::expert_order),
    ("token_permute", token_permute::token_permute),
    ("rope", rope::rope),
    ("random", random::random),
    ("norm_rope", norm_rope::norm_rope),
    ("router", router::router),
    ("adamw", adamw::adamw),
    ("softmax", softmax::softmax),
    ("reduce", reduce::reduce),
    ("add_rms_norm", add_rms_norm::add_rms_norm),
    ("attention", attention::attention),
    ("top_k", top_k::top_k),
    ("global_norm", global_norm::global_norm),
    ("tree_reduce", tree_reduce::tree_reduce),
    ("row_map", row_map::row_map),
    ("column_sums", column_sums::column_sums),
    ("cumsum", cumsum::cumsum),
    ("argsort", argsort::argsort),
];

type NamedFamily = (&'static str, fn() -> Family);

/// The kernels of one family, or the errors of their constructors.
type Family = Vec<Result<Ptx>>;

/// Features per row: from a few lanes to a whole CTA, with and without a ragged end.
pub const ROW_FEATURES: [usize; 9] = [8, 64, 128, 136, 1024, 2000, 4096, 8192, 1025];

/// Features of column sums: few, many, and not whole vectors.
pub const COLUMN_FEATURES: [usize; 4] = [8, 128, 4096, 1025];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kernel_can_be_built() {
        let kernels = FAMILIES.iter().flat_map(|(_, kernels)| kernels());
        let errors: Vec<_> = kernels.filter_map(Result::err).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn names_and_texts_are_distinct() {
        let kernels = catalogue();
        let names: HashSet<_> = kernels.iter().map(|ptx| &ptx.entry).collect();
        let texts: HashSet<_> = kernels.iter().map(|ptx| &ptx.text).collect();
        assert_eq!(names.len(), kernels.len());
        assert_eq!(texts.len(), kernels.len());
    }
}
