//! Matrix products.

use super::Family;
use meshgrad_kernels::Variant;
use meshgrad_kernels::gemm::{GemmBf16, GemmF32, Order, Output, SplitKReduce, Tile};

pub(super) fn gemm_f32() -> Family {
    let mut kernels = Vec::new();
    for a in Order::ALL {
        for b in Order::ALL {
            for tile in Tile::OF_F32 {
                for accumulate in [false, true] {
                    let variant = GemmF32 { a, b, tile, accumulate };
                    kernels.push(Ok(variant.ptx()));
                }
            }
        }
    }
    kernels
}

/// Has unaligned operands with two tiles only, because the other tiles share their code.
pub(super) fn gemm_bf16() -> Family {
    let mut kernels = Vec::new();
    for a in Order::ALL {
        for b in Order::ALL {
            for tile in Tile::ALL {
                for output in Output::ALL {
                    let forms: &[bool] = match tile {
                        Tile::Large | Tile::Small => &[true, false],
                        Tile::Flat | Tile::Wide | Tile::Warpgroups => &[true],
                    };
                    for aligned in forms {
                        let variant = GemmBf16 { a, b, tile, output, aligned: *aligned };
                        kernels.push(Ok(variant.ptx()));
                    }
                }
            }
        }
    }
    kernels
}

pub(super) fn gemm_parts() -> Family {
    let mut kernels = Vec::new();
    for output in Output::ALL {
        for vectors in [true, false] {
            kernels.push(Ok(SplitKReduce { output, vectors }.ptx()));
        }
    }
    kernels
}
