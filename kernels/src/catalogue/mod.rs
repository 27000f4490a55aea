//! A representative list of kernels: what checks and goldens are made of. A file is a family.

mod copies;
mod elementwise;
mod gemm;
mod indexing;
mod rms_norm;

pub use copies::CASTS;
pub use elementwise::elementwise_variants;

use crate::{Ptx, Result};

/// One kernel of every kind that matters: each function, format, layout and tile.
pub fn catalogue() -> Vec<Ptx> {
    let families = families().into_iter();
    families.flat_map(|(_, kernels)| kernels).collect()
}

/// The same, family by family.
pub fn families() -> Vec<(&'static str, Vec<Ptx>)> {
    // All constructors are called with extents that they take; a test holds that none is left out.
    let built = |(name, kernels): &NamedFamily| (*name, kernels().into_iter().flatten().collect());
    FAMILIES.iter().map(built).collect()
}

const FAMILIES: &[NamedFamily] = &[
    ("elementwise", elementwise::elementwise),
    ("rms_norm", rms_norm::rms_norm),
    ("copies", copies::copies),
    ("indexing", indexing::indexing),
    ("gemm_f32", gemm::gemm_f32),
    ("gemm_bf16", gemm::gemm_bf16),
];

type NamedFamily = (&'static str, fn() -> Family);

/// The kernels of one family, or why there is no such kernel.
type Family = Vec<Result<Ptx>>;

/// Features of rows: from a few lanes to a whole CTA a row, with and without a ragged end; any
/// length.
pub const ROW_FEATURES: [usize; 9] = [8, 64, 128, 136, 1024, 2000, 4096, 8192, 1025];

/// Features of what is summed down columns: of few, many, and any.
pub const COLUMN_FEATURES: [usize; 4] = [8, 128, 4096, 1025];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_kernel_of_the_list_can_be_built() {
        let kernels = FAMILIES.iter().flat_map(|(_, kernels)| kernels());
        let errors: Vec<_> = kernels.filter_map(Result::err).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn names_tell_variants_apart() {
        let kernels = catalogue();
        let names: HashSet<_> = kernels.iter().map(|ptx| &ptx.entry).collect();
        let texts: HashSet<_> = kernels.iter().map(|ptx| &ptx.text).collect();
        assert_eq!(names.len(), kernels.len());
        assert_eq!(texts.len(), kernels.len());
    }
}
