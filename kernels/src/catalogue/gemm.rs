//! Products of matrices.

use super::Family;
use crate::Variant;
use crate::gemm::{GemmBf16, GemmF32, Order, Output, Tile};

pub(super) fn gemm_f32() -> Family {
    let mut kernels = Vec::new();
    for a in Order::ALL {
        for b in Order::ALL {
            for tile in Tile::ALL {
                for accumulate in [false, true] {
                    let variant = GemmF32 {
                        a,
                        b,
                        tile,
                        accumulate,
                    };
                    kernels.push(Ok(variant.ptx()));
                }
            }
        }
    }
    kernels
}

pub(super) fn gemm_bf16() -> Family {
    let mut kernels = Vec::new();
    for a in Order::ALL {
        for b in Order::ALL {
            for tile in Tile::ALL {
                for output in Output::ALL {
                    for aligned in [true, false] {
                        let variant = GemmBf16 {
                            a,
                            b,
                            tile,
                            output,
                            aligned,
                        };
                        kernels.push(Ok(variant.ptx()));
                    }
                }
            }
        }
    }
    kernels
}
