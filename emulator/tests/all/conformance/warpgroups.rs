//! Products of warpgroups: `warpgroups.cu`. Operands are small integers, so sums are exact.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;
use crate::conformance::products::{product, to_bf16, to_f32, transposed, whole};

/// Bytes of three stages of two tiles.
const SHARED: u32 = 3 * 2 * 64 * 64 * 2;

#[test]
fn gemm_through_a_ring_with_products_in_flight() {
    let gpu = corpus("warpgroups");
    let (m, n) = (128usize, 192usize);
    let mut noise = Noise::new(12);
    // Fewer steps than stages, as many as stages, and more.
    for k in [64usize, 128, 192, 448] {
        let (a, b) = (whole(&mut noise, m * k, 50), whole(&mut noise, n * k, 50));
        let want = to_f32(&product(&a, &b, k));
        for (kernel, b) in [
            ("gemm_by_warpgroups", b.clone()),
            ("gemm_by_warpgroups_transposed", transposed(&b, k)),
        ] {
            let (left, right) = (gpu.upload(&to_bf16(&a)), gpu.upload(&to_bf16(&b)));
            let c = gpu.uninitialized(4 * m * n);
            let arguments = arguments![left, right, c, n as i32, k as i32];
            gpu.launch(kernel, [3, 2, 1], [128, 1, 1], SHARED, arguments);
            assert_eq!(gpu.download::<f32>(&c), want, "{kernel}, K = {k}");
        }
    }
}
