use meshgrad_kernels::Variant;
use meshgrad_kernels::gemm::{GemmBf16, Order, Output, Tile};
fn main() {
    for tile in [Tile::Wide, Tile::Warpgroups] {
        for a in Order::ALL {
            for b in Order::ALL {
                for output in Output::ALL {
                    let v = GemmBf16 {
                        a,
                        b,
                        tile,
                        output,
                        aligned: true,
                    };
                    let p = v.ptx();
                    std::fs::write(
                        format!(
                            "/tmp/wg/{}{}.ptx",
                            p.entry,
                            std::env::var("SUFFIX").unwrap_or_default()
                        ),
                        format!("{}// smem {}\n", p.text, p.dynamic_shared),
                    )
                    .unwrap();
                }
            }
        }
    }
}
