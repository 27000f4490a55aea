//! Matrix products of ragged groups.

use super::Family;
use meshgrad_kernels::gemm::{GroupedK, GroupedM, Order, Tile};
use meshgrad_kernels::{Dtype, Variant};

pub(super) fn grouped() -> Family {
    let mut kernels = Vec::new();
    for (dtype, aligned) in [(Dtype::F32, true), (Dtype::Bf16, true), (Dtype::Bf16, false)] {
        for tile in Tile::grouped(aligned && dtype == Dtype::Bf16) {
            for order in Order::ALL {
                kernels.push(Ok(GroupedM::new(dtype, order, *tile, aligned).ptx()));
            }
            for adds in [false, true] {
                kernels.push(Ok(GroupedK::new(dtype, *tile, adds, aligned).ptx()));
            }
        }
    }
    kernels
}
