//! Cumulative sums.

use super::Family;
use meshgrad_kernels::cumsum::Cumsum;
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn cumsum() -> Family {
    let of = |dtype| [false, true].map(|reverse| Ok(Cumsum::new(dtype, reverse).ptx()));
    Dtype::ALL.into_iter().flat_map(of).collect()
}
