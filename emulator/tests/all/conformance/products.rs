//! Matrix products: `gemm.cu`, `tensor_cores.cu`, `wmma.cu`, `pipeline.cu`.
//!
//! Operands are small integers, so that sums are exact in any order.

use half::{bf16, f16};

use crate::conformance::corpus;
use crate::conformance::data::{Noise, assert_near};
use crate::conformance::gpu::arguments;
use crate::conformance::rounding::{Rounding, TF32};

/// C of M x N: `a` is M x K and `b` is N x K, both row-major.
pub(crate) fn product(a: &[f64], b: &[f64], k: usize) -> Vec<f64> {
    let dot = |row: &[f64], column: &[f64]| row.iter().zip(column).map(|(x, y)| x * y).sum();
    let rows = a.chunks(k).flat_map(|row| b.chunks(k).map(move |column| dot(row, column)));
    rows.collect()
}

pub(crate) fn transposed(values: &[f64], columns: usize) -> Vec<f64> {
    let rows = values.len() / columns;
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}

pub(crate) fn whole(noise: &mut Noise, count: usize, largest: i64) -> Vec<f64> {
    noise.vector(count, |noise| noise.integer(-largest, largest) as f64)
}

pub(crate) fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

fn to_f16(values: &[f64]) -> Vec<f16> {
    values.iter().map(|value| f16::from_f32(*value as f32)).collect()
}

pub(crate) fn to_bf16(values: &[f64]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f32(*value as f32)).collect()
}

#[test]
fn gemm_with_partial_tiles() {
    let gpu = corpus("gemm");
    let (m, n, k) = (70usize, 130usize, 37usize);
    let mut noise = Noise::new(1);
    let (a, b) = (whole(&mut noise, m * k, 50), whole(&mut noise, k * n, 50));
    let (left, right) = (gpu.upload(&to_f32(&a)), gpu.upload(&to_f32(&b)));
    let c = gpu.uninitialized(4 * m * n);
    let arguments = arguments![left, right, c, m as i32, n as i32, k as i32];
    gpu.launch("gemm_f32", [3, 2, 1], [16, 16, 1], 0, arguments);
    assert_eq!(gpu.download::<f32>(&c), to_f32(&product(&a, &transposed(&b, n), k)));
}

#[test]
fn mma_bf16_of_many_warps() {
    let gpu = corpus("tensor_cores");
    let mut noise = Noise::new(2);
    let warps = 6usize;
    let a = whole(&mut noise, warps * 256, 100);
    let b = whole(&mut noise, warps * 128, 100);
    let c = whole(&mut noise, warps * 128, 1000);
    let (left, right) = (gpu.upload(&to_bf16(&a)), gpu.upload(&to_bf16(&b)));
    let (sums, to) = (gpu.upload(&to_f32(&c)), gpu.uninitialized(4 * c.len()));
    gpu.launch("mma_bf16", [3, 1, 1], [64, 1, 1], 0, arguments![left, right, sums, to]);

    let tiles = a.chunks(256).zip(b.chunks(128));
    let products: Vec<f64> = tiles.flat_map(|(a, b)| product(a, b, 16)).collect();
    let want: Vec<f64> = products.iter().zip(&c).map(|(ab, c)| ab + c).collect();
    assert_eq!(gpu.download::<f32>(&to), to_f32(&want));
}

#[test]
fn mma_f16_with_both_accumulators() {
    let gpu = corpus("tensor_cores");
    let mut noise = Noise::new(3);
    let (a, b) = (whole(&mut noise, 256, 10), whole(&mut noise, 128, 10));
    let c = whole(&mut noise, 128, 100);
    let (left, right) = (gpu.upload(&to_f16(&a)), gpu.upload(&to_f16(&b)));
    let sums = gpu.upload(&to_f32(&c));
    let (d, d16) = (gpu.uninitialized(4 * 128), gpu.uninitialized(2 * 128));
    gpu.launch("mma_f16", [1, 1, 1], [32, 1, 1], 0, arguments![left, right, sums, d, d16]);

    let ab = product(&a, &b, 16);
    let want: Vec<f64> = ab.iter().zip(&c).map(|(ab, c)| ab + c).collect();
    assert_eq!(gpu.download::<f32>(&d), to_f32(&want));
    assert_eq!(gpu.download::<f16>(&d16), to_f16(&ab));
}

#[test]
fn mma_bf16_with_short_k() {
    let gpu = corpus("tensor_cores");
    let mut noise = Noise::new(4);
    let (a, b) = (whole(&mut noise, 16 * 8, 100), whole(&mut noise, 8 * 8, 100));
    let (left, right) = (gpu.upload(&to_bf16(&a)), gpu.upload(&to_bf16(&b)));
    let d = gpu.uninitialized(4 * 128);
    gpu.launch("mma_bf16_short", [1, 1, 1], [32, 1, 1], 0, arguments![left, right, d]);
    assert_eq!(gpu.download::<f32>(&d), to_f32(&product(&a, &b, 8)));
}

/// The operands have more bits than tf32 keeps; `cvt.rna` rounds ties away from zero.
#[test]
fn mma_tf32_of_rounded_factors() {
    let gpu = corpus("tensor_cores");
    let mut noise = Noise::new(5);
    let mut draw = |count| noise.vector(count, |noise| f64::from(noise.f32(-4.0, 4.0)));
    let (mut a, b) = (draw(16 * 8), draw(8 * 8));
    a[3] = 1.0 + 2f64.powi(-11);
    a[4] = -1.0 - 2f64.powi(-11);
    let (left, right) = (gpu.upload(&to_f32(&a)), gpu.upload(&to_f32(&b)));
    let d = gpu.uninitialized(4 * 128);
    gpu.launch("mma_tf32", [1, 1, 1], [32, 1, 1], 0, arguments![left, right, d]);

    let round = |values: &[f64]| -> Vec<f64> {
        values.iter().map(|value| TF32.round(*value, Rounding::NearestAway)).collect()
    };
    let want = product(&round(&a), &round(&b), 8);
    for (got, want) in gpu.download::<f32>(&d).into_iter().zip(want) {
        // Eight sums of numbers below 128, each truncated or rounded to f32.
        assert_near(got.into(), want, 8.0 * 2f64.powi(-17), "tf32");
    }
}

#[test]
fn mma_of_bytes() {
    let gpu = corpus("tensor_cores");
    let mut noise = Noise::new(6);
    let a = noise.vector(16 * 32, |noise| noise.u32() as i8);
    let b = noise.vector(8 * 32, |noise| noise.u32() as i8);
    let (left, right) = (gpu.upload(&a), gpu.upload(&b));
    let (d, d_unsigned) = (gpu.uninitialized(4 * 128), gpu.uninitialized(4 * 128));
    gpu.launch("mma_s8", [1, 1, 1], [32, 1, 1], 0, arguments![left, right, d, d_unsigned]);

    let a: Vec<f64> = a.iter().map(|byte| f64::from(*byte)).collect();
    let signed: Vec<f64> = b.iter().map(|byte| f64::from(*byte)).collect();
    let unsigned: Vec<f64> = b.iter().map(|byte| f64::from(*byte as u8)).collect();
    // Lanes start with 1 2 in their upper row and 3 4 in their lower row.
    let start = |at: usize| (1 + at % 2 + 2 * (at / 64)) as i32;
    let want = product(&a, &signed, 32).into_iter().enumerate();
    let want: Vec<i32> = want.map(|(at, ab)| ab as i32 + start(at)).collect();
    assert_eq!(gpu.download::<i32>(&d), want);
    let want: Vec<i32> = product(&a, &unsigned, 32).iter().map(|ab| *ab as i32).collect();
    assert_eq!(gpu.download::<i32>(&d_unsigned), want);
}

#[test]
fn wmma_with_opaque_fragments() {
    let gpu = corpus("wmma");
    let mut noise = Noise::new(7);
    let (m, n, k) = (32usize, 48usize, 64usize);
    let (a, b) = (whole(&mut noise, m * k, 30), whole(&mut noise, k * n, 30));
    let (left, right) = (gpu.upload(&to_f16(&a)), gpu.upload(&to_f16(&b)));
    let c = gpu.uninitialized(4 * m * n);
    let arguments = arguments![left, right, c, n as i32, k as i32];
    gpu.launch("wmma_f16", [3, 2, 1], [32, 1, 1], 0, arguments);
    let halved: Vec<f64> = product(&a, &transposed(&b, n), k).iter().map(|c| c / 2.0).collect();
    assert_eq!(gpu.download::<f32>(&c), to_f32(&halved));

    let (a, b) = (whole(&mut noise, 256, 100), whole(&mut noise, 256, 100));
    let start = whole(&mut noise, 256, 100);
    let (left, right) = (gpu.upload(&to_bf16(&a)), gpu.upload(&to_bf16(&b)));
    let c = gpu.upload(&to_f32(&start));
    gpu.launch("wmma_bf16", [1, 1, 1], [32, 1, 1], 0, arguments![left, right, c]);
    let products = product(&a, &b, 16);
    let want: Vec<f64> = products.iter().zip(&start).map(|(ab, c)| ab + c).collect();
    assert_eq!(gpu.download::<f32>(&c), to_f32(&want));
}

#[test]
fn gemm_through_a_ring_of_asynchronous_copies() {
    let gpu = corpus("pipeline");
    let (m, n) = (128usize, 192usize);
    let mut noise = Noise::new(8);
    // Fewer steps than stages, as many as stages, and more.
    for k in [32usize, 64, 96, 224] {
        let (a, b) = (whole(&mut noise, m * k, 50), whole(&mut noise, n * k, 50));
        let (left, right) = (gpu.upload(&to_bf16(&a)), gpu.upload(&to_bf16(&b)));
        let c = gpu.uninitialized(4 * m * n);
        let arguments = arguments![left, right, c, n as i32, k as i32];
        gpu.launch("gemm_bf16", [3, 2, 1], [128, 1, 1], 3 * 2 * 64 * 32 * 2, arguments);
        assert_eq!(gpu.download::<f32>(&c), to_f32(&product(&a, &b, k)), "K = {k}");
    }
}

#[test]
fn copies_of_all_sizes_and_zeros_beyond_the_end() {
    let gpu = corpus("pipeline");
    let values = Noise::new(9).whole_f32(128 + 256 + 512, -1000, 1000);
    let (from, to) = (gpu.upload(&values), gpu.uninitialized(4 * 256));
    let valid = 77usize;
    gpu.launch("staged_copy", [1, 1, 1], [128, 1, 1], 0, arguments![from, to, valid as i32]);

    let got = gpu.download::<f32>(&to);
    for t in 0..128 {
        let other = 127 - t;
        let four = &values[384 + 4 * other..];
        assert_eq!(got[t], values[other] + values[128 + 255 - t] + four[1]);
        assert_eq!(got[128 + t], if other < valid { four[3] } else { 0.0 });
    }
}

#[test]
fn ldmatrix_in_all_shapes() {
    let gpu = corpus("pipeline");
    let elements: Vec<u16> = Noise::new(10).vector(256, |noise| noise.u32() as u16);
    let (from, to) = (gpu.upload(&elements), gpu.uninitialized(4 * 320));
    gpu.launch("load_matrix_shapes", [1, 1, 1], [32, 1, 1], 0, arguments![from, to]);

    // Matrix 0 plain and transposed, 0 and 1 plain, 0 and 1 transposed, 0 to 3 transposed.
    let loaded = [
        (0, false),
        (0, true),
        (0, false),
        (1, false),
        (0, true),
        (1, true),
        (0, true),
        (1, true),
        (2, true),
        (3, true),
    ];
    let got = gpu.download::<u16>(&to);
    for (register, (matrix, is_transposed)) in loaded.into_iter().enumerate() {
        for lane in 0..32 {
            for half in 0..2 {
                let (row, column) = (lane / 4, lane % 4 * 2 + half);
                let (row, column) = if is_transposed { (column, row) } else { (row, column) };
                let want = elements[matrix * 64 + row * 8 + column];
                assert_eq!(got[(register * 32 + lane) * 2 + half], want, "{register} {lane}");
            }
        }
    }
}
