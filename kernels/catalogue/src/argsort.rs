//! Kernels around the sorts of rows.

use super::Family;
use meshgrad_kernels::argsort::Argsort;
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn argsort() -> Family {
    let mut kernels = vec![Argsort::Rows, Argsort::Columns];
    for dtype in Dtype::ALL {
        let values = |descending| Argsort::Values { dtype, descending };
        kernels.extend([false, true].map(values));
    }
    kernels.into_iter().map(|kernel| Ok(kernel.ptx())).collect()
}
