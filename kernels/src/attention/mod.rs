//! Scaled dot-product attention without a [T, S] score matrix in memory (FlashAttention, Dao et al.
//! 2022).
//!
//! Legend: B batch rows, T queries, S keys, H query heads, G key-value heads, D head dimension.
//!
//! A CTA owns 64 queries of one head (or 64 keys, for the gradients of keys and values). It loops
//! over the keys that any of its queries attends to, tile by tile. A sum over keys runs in key
//! order within one thread, so every run gives the same bits. Tiles start at multiples of their size
//! in the row and masked keys contribute nothing, so the bits of a query do not depend on other
//! queries.
//!
//! There are two forms. bf16 rows of whole 16-byte chunks use tensor cores ([`Form::TensorCores`]).
//! All other rows use CUDA cores, in f32 ([`Form::CudaCores`]). The mask is passed as arguments, so
//! one kernel serves all masks, cached keys and ranges of keys.

mod arguments;
mod cta_tile;
mod cuda_cores;
mod delta;
mod forward;
mod grad_keys;
mod grad_queries;
mod problem;
mod softmax;
mod tensor_core;
mod visible_keys;

pub use arguments::{
    AttentionArguments, AttentionGradKeysArguments, AttentionGradQueriesArguments,
};
pub use delta::{AttentionDelta, AttentionDeltaArguments};
pub use forward::Attention;
pub use grad_keys::AttentionGradKeys;
pub use grad_queries::AttentionGradQueries;
pub use problem::{Extents, Integers, Problem, Sequences, View};
pub use tensor_core::Lines;
pub use visible_keys::{TokenWords, TokenWordsArguments, VisibleKeys, VisibleKeysArguments};

use crate::assembler::Target;
use crate::dtype::Dtype;

/// Rows (queries or keys) per CTA.
const ROWS_PER_CTA: u32 = 64;

/// The arithmetic of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// bf16 on tensor cores. D is a multiple of 8 up to 256, and rows are 16-byte aligned.
    TensorCores(Lines),
    /// f32 arithmetic on CUDA cores, for rows of any length and alignment.
    CudaCores(Dtype),
}

/// The instructions of the products of a tensor-core kernel. They determine the layout of tiles in
/// shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Products {
    /// Of warps (`mma.sync`).
    Warps,
    /// Of warpgroups (`wgmma`), on compute capability 9.0. D is 64 or 128.
    Warpgroups,
}

impl Products {
    /// The fastest for this D.
    fn new(head_dim: u32, warpgroup_products: bool) -> Products {
        match warpgroup_products && [64, 128].contains(&head_dim) {
            true => Products::Warpgroups,
            false => Products::Warps,
        }
    }

    /// The target of their kernels.
    fn target(self) -> Target {
        match self {
            Products::Warps => Target::Sm80,
            Products::Warpgroups => Target::Sm90a,
        }
    }
}

impl Form {
    /// The form for rows of `head_dim` elements. `aligned`: whether all rows are 16-byte aligned.
    /// `warpgroup_products`: whether the GPU runs kernels for [`Target::Sm90a`].
    pub fn new(dtype: Dtype, head_dim: usize, aligned: bool, warpgroup_products: bool) -> Form {
        let chunks = head_dim > 0 && head_dim.is_multiple_of(8);
        let fits = head_dim <= tensor_core::MAX_FEATURES as usize;
        let head_dim = head_dim as u32;
        match dtype == Dtype::Bf16 && chunks && fits && aligned {
            true => Form::TensorCores(Lines {
                head_dim,
                products: Products::new(head_dim, warpgroup_products),
            }),
            false => Form::CudaCores(dtype),
        }
    }

    /// Whether rows of `head_dim` elements would be faster if 16-byte aligned.
    pub fn benefits_from_alignment(dtype: Dtype, head_dim: usize) -> bool {
        let form = |aligned| Form::new(dtype, head_dim, aligned, false);
        form(true) != form(false)
    }

    /// Bytes of dynamic shared memory per CTA, for the kernel that needs the most; 0 if static
    /// memory (48 KiB) suffices.
    pub fn shared_memory(self) -> u32 {
        match self {
            Form::TensorCores(lines) => tensor_core::forward_shared(lines)
                .max(tensor_core::grad_queries_shared(lines))
                .max(tensor_core::grad_keys_shared(lines)),
            Form::CudaCores(_) => 0,
        }
    }

    fn name(self) -> String {
        match self {
            Form::TensorCores(Lines { head_dim, products }) => {
                let how = match products {
                    Products::Warps => "",
                    Products::Warpgroups => "_wg",
                };
                format!("bf16_d{head_dim}{how}")
            }
            Form::CudaCores(dtype) => format!("{}_plain", dtype.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const FORMS: [Form; 8] = [
        of_warps(16),
        of_warps(64),
        of_warps(128),
        of_warps(256),
        Form::CudaCores(Dtype::F32),
        Form::CudaCores(Dtype::Bf16),
        of_warpgroups(64),
        of_warpgroups(128),
    ];

    const fn of_warps(head_dim: u32) -> Form {
        let products = Products::Warps;
        Form::TensorCores(Lines { head_dim, products })
    }

    const fn of_warpgroups(head_dim: u32) -> Form {
        let products = Products::Warpgroups;
        Form::TensorCores(Lines { head_dim, products })
    }

    pub(super) fn problem(form: Form) -> Problem {
        let head_dim = match form {
            Form::TensorCores(lines) => lines.head_dim as usize,
            Form::CudaCores(_) => 70,
        };
        Problem {
            extents: Extents::new([2, 100, 130], [6, 2], head_dim).unwrap(),
            causal: true,
            window: None,
            sequences: Sequences::Rows,
            scale: 1.0,
        }
    }

    /// Two batch rows with two tiles of queries and three of keys. On CUDA cores there are two
    /// blocks of columns.
    #[test]
    fn every_tile_has_its_cta() {
        let grids = |form: Form| {
            let problem = problem(form);
            let launches = [
                Attention::new(form).launch(&problem),
                AttentionGradQueries::new(form).launch(&problem),
                AttentionGradKeys::new(form).launch(&problem),
            ];
            launches.map(|launch| launch.unwrap().grid[0])
        };
        assert_eq!(grids(FORMS[1]), [2 * 2 * 6, 2 * 2 * 6, 2 * 3 * 2]);
        assert_eq!(grids(FORMS[3])[2], 2 * 2 * 3 * 2, "two blocks of columns");
        assert_eq!(grids(FORMS[4]), [2 * 2 * 6 * 2, 2 * 2 * 6 * 2, 2 * 3 * 2 * 2]);
    }

    #[test]
    fn forms() {
        let on_tensor_cores = |head_dim| Form::new(Dtype::Bf16, head_dim, true, true);
        assert_eq!(on_tensor_cores(72), of_warps(72));
        assert_eq!(on_tensor_cores(64), of_warpgroups(64));
        assert_eq!(on_tensor_cores(128), of_warpgroups(128));
        assert_eq!(Form::new(Dtype::Bf16, 64, true, false), of_warps(64));
        for head_dim in [0, 4, 65, 264] {
            assert_eq!(on_tensor_cores(head_dim), Form::CudaCores(Dtype::Bf16));
        }
        assert!(Form::benefits_from_alignment(Dtype::Bf16, 64));
        assert!(!Form::benefits_from_alignment(Dtype::Bf16, 65));
        assert!(!Form::benefits_from_alignment(Dtype::F32, 64));
    }

    #[test]
    fn extents_are_limited() {
        let keys = |keys| Extents::new([1, 1, keys], [1, 1], 64);
        assert!(keys(1 << 24).is_ok());
        assert!(keys((1 << 24) + 1).is_err());
        assert!(Extents::new([1 << 20, 1 << 20, 1], [64, 64], 64).is_err(), "too many tiles");
    }
}
