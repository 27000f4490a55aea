use meshgrad_kernels::attention::*;
use meshgrad_kernels::gemm::{GemmBf16, Order, Output, Tile};
use meshgrad_kernels::{Ptx, Variant};
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let suffix = std::env::var("SUFFIX").unwrap_or_default();
    let put = |p: Ptx| {
        std::fs::write(
            format!("{dir}/{}{suffix}.ptx", p.entry),
            format!("{}// smem {}\n", p.text, p.dynamic_shared),
        )
        .unwrap()
    };
    if std::env::args().nth(2).as_deref() == Some("gemm") {
        for tile in [Tile::Warpgroups] {
            for a in Order::ALL {
                for b in Order::ALL {
                    for output in [Output::Bf16] {
                        put(GemmBf16 {
                            a,
                            b,
                            tile,
                            output,
                            aligned: true,
                        }
                        .ptx());
                    }
                }
            }
        }
        return;
    }
    for head_dim in [64, 128] {
        for products in [Products::Warps, Products::Warpgroups] {
            let form = Form::TensorCores(Lines { head_dim, products });
            put(Attention::new(form).ptx());
            put(AttentionGradQueries::new(form).ptx());
            put(AttentionGradKeys::new(form).ptx());
        }
        put(AttentionDelta::new(meshgrad_kernels::Dtype::Bf16, head_dim as usize, true).ptx());
    }
}
