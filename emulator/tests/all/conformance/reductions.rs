//! Reductions and scans: `reduction.cu`, `scan.cu`, `softmax.cu`, `layer_norm.cu`, `dot.cu`.

use std::iter;

use crate::conformance::corpus;
use crate::conformance::data::{Noise, assert_near, ulp_f64};
use crate::conformance::gpu::arguments;

#[test]
fn blocks_sum_their_elements() {
    let gpu = corpus("reduction");
    let mut noise = Noise::new(1);
    let (blocks, threads, n) = (3usize, 96usize, 1000usize);
    let values = noise.whole_f32(n, -100, 100);
    let mut sums = vec![0f32; blocks];
    for (i, value) in values.iter().enumerate() {
        sums[i % (blocks * threads) / threads] += value;
    }

    let (from, to) = (gpu.upload(&values), gpu.uninitialized(4 * blocks));
    gpu.launch("sum_f32", [3, 1, 1], [96, 1, 1], 0, arguments![from, to, n as i32]);
    assert_eq!(gpu.download::<f32>(&to), sums);

    let wide: Vec<f64> = values.iter().map(|value| f64::from(*value) * 0.125).collect();
    let (from, to) = (gpu.upload(&wide), gpu.uninitialized(8 * blocks));
    gpu.launch("sum_f64", [3, 1, 1], [96, 1, 1], 0, arguments![from, to, n as i32]);
    let sums: Vec<f64> = sums.iter().map(|sum| f64::from(*sum) * 0.125).collect();
    assert_eq!(gpu.download::<f64>(&to), sums);
}

#[test]
fn the_first_of_the_largest_is_found() {
    let gpu = corpus("reduction");
    let (rows, n) = (4usize, 333usize);
    // Few different values, so that the maximum occurs often.
    let values = Noise::new(2).whole_f32(rows * n, -5, 40);
    let from = gpu.upload(&values);
    let (value, index) = (gpu.uninitialized(4 * rows), gpu.uninitialized(4 * rows));
    let arguments = arguments![from, value, index, n as i32];
    gpu.launch("argmax", [rows as u32, 1, 1], [128, 1, 1], 0, arguments);

    let (value, index) = (gpu.download::<f32>(&value), gpu.download::<i32>(&index));
    for (r, row) in values.chunks(n).enumerate() {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = row.iter().position(|value| *value == largest);
        assert_eq!((value[r], Some(index[r] as usize)), (largest, first));
    }
}

#[test]
fn warps_reduce_in_one_instruction() {
    let gpu = corpus("reduction");
    let values = Noise::new(3).vector(256, Noise::u32);
    let (from, to) = (gpu.upload(&values), gpu.uninitialized(4 * 8 * 8));
    gpu.launch("warp_reduce", [2, 1, 1], [128, 1, 1], 0, arguments![from, to]);

    let got = gpu.download::<u32>(&to);
    for (warp, lanes) in values.chunks(32).enumerate() {
        let sum = lanes.iter().fold(0u32, |sum, value| sum.wrapping_add(*value));
        let or = lanes.iter().fold(0, |or, value| or | value);
        let xor = lanes.iter().fold(0, |xor, value| xor ^ value);
        let signed = lanes.iter().map(|value| *value as i32);
        let want = [
            sum,
            sum,
            *lanes.iter().min().unwrap(),
            signed.clone().min().unwrap() as u32,
            *lanes.iter().max().unwrap(),
            signed.max().unwrap() as u32,
            lanes.iter().fold(!0, |and, value| and & value),
            or ^ xor,
        ];
        assert_eq!(got[8 * warp..8 * warp + 8], want);
    }
}

/// Inclusive prefix sums.
fn inclusive<T: Copy + std::ops::Add<Output = T>>(values: &[T]) -> Vec<T> {
    let mut sums: Vec<T> = Vec::new();
    for value in values {
        sums.push(sums.last().map_or(*value, |sum| *sum + *value));
    }
    sums
}

#[test]
fn prefix_sums_by_warp_block_and_tree() {
    let gpu = corpus("scan");
    let mut noise = Noise::new(4);
    let values = noise.vector(512, |noise| noise.integer(-50, 50) as i32);
    let from = gpu.upload(&values);

    let to = gpu.uninitialized(4 * 512);
    gpu.launch("warp_scan", [4, 1, 1], [128, 1, 1], 0, arguments![from, to]);
    let by_warp: Vec<i32> = values.chunks(32).flat_map(inclusive).collect();
    assert_eq!(gpu.download::<i32>(&to), by_warp);

    let exclusive = gpu.uninitialized(4 * 512);
    gpu.launch("block_scan", [2, 1, 1], [256, 1, 1], 0, arguments![from, to, exclusive]);
    let by_block: Vec<i32> = values.chunks(256).flat_map(inclusive).collect();
    assert_eq!(gpu.download::<i32>(&to), by_block);
    let before: Vec<i32> = by_block.iter().zip(&values).map(|(sum, value)| sum - value).collect();
    assert_eq!(gpu.download::<i32>(&exclusive), before);

    let doubles: Vec<f64> = values.iter().map(|value| f64::from(*value) / 4.0).collect();
    let (from, to) = (gpu.upload(&doubles), gpu.uninitialized(8 * 512));
    gpu.launch("tree_scan", [1, 1, 1], [256, 1, 1], 8 * 512, arguments![from, to]);
    let sums = iter::once(0.0).chain(inclusive(&doubles)).take(512);
    assert_eq!(gpu.download::<f64>(&to), sums.collect::<Vec<_>>());
}

#[test]
fn segments_narrower_than_a_warp() {
    let gpu = corpus("scan");
    let values = Noise::new(5).whole_f32(128, 1, 90);
    let (from, to) = (gpu.upload(&values), gpu.uninitialized(4 * 128));
    gpu.launch("segment_scan", [2, 1, 1], [64, 1, 1], 0, arguments![from, to]);
    let shares = values.chunks(8).flat_map(|segment| {
        let sums = inclusive(segment);
        sums.iter().map(|sum| sum / sums[7]).collect::<Vec<f32>>()
    });
    assert_eq!(gpu.download::<f32>(&to), shares.collect::<Vec<_>>());
}

#[test]
fn softmax_is_a_distribution() {
    let gpu = corpus("softmax");
    let (rows, columns) = (3usize, 301usize);
    let values = Noise::new(6).vector(rows * columns, |noise| noise.f32(-12.0, 12.0));
    let (from, to) = (gpu.upload(&values), gpu.uninitialized(4 * values.len()));
    let arguments = arguments![from, to, columns as i32];
    gpu.launch("softmax", [rows as u32, 1, 1], [128, 1, 1], 0, arguments);

    let got = gpu.download::<f32>(&to);
    for (row, got) in values.chunks(columns).zip(got.chunks(columns)) {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // The difference is computed in f32, as in the kernel.
        let powers: Vec<f64> = row.iter().map(|x| f64::from(x - largest).exp()).collect();
        let sum: f64 = powers.iter().sum();
        for (got, power) in got.iter().zip(powers) {
            assert_near((*got).into(), power / sum, 1e-6 * power / sum, "softmax");
        }
    }
}

#[test]
fn layer_norm_of_values_far_from_zero() {
    let gpu = corpus("layer_norm");
    let (rows, columns) = (5usize, 75usize);
    let mut noise = Noise::new(7);
    let x = noise.vector(rows * columns, |noise| noise.f32(99.0, 103.0));
    let weight = noise.vector(columns, |noise| noise.f32(0.5, 2.0));
    let bias = noise.vector(columns, |noise| noise.f32(-1.0, 1.0));
    let [x_, weight_, bias_] = [&x, &weight, &bias].map(|values| gpu.upload(values));
    let (y, means) = (gpu.uninitialized(4 * x.len()), gpu.uninitialized(4 * rows));
    let sizes = (rows as i32, columns as i32);
    let arguments = arguments![x_, weight_, bias_, y, means, sizes.0, sizes.1, 1e-5f32];
    gpu.launch("layer_norm", [2, 1, 1], [32, 4, 1], 0, arguments);

    let (y, means) = (gpu.download::<f32>(&y), gpu.download::<f32>(&means));
    for (r, row) in x.chunks(columns).enumerate() {
        let count = columns as f64;
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let squares = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>();
        let scale = 1.0 / (squares / count + 1e-5).sqrt();
        // Two ulps of a mean near 100.
        assert_near(means[r].into(), mean, 2e-5, "mean");
        for (d, x) in row.iter().enumerate() {
            let normal = (f64::from(*x) - mean) * scale;
            let want = normal * f64::from(weight[d]) + f64::from(bias[d]);
            assert_near(y[r * columns + d].into(), want, 1e-4, "y");
        }
    }
}

/// Terms cancel to 2^-50 of their magnitude: plain f64 sums would lose all digits.
#[test]
fn a_compensated_dot_product_survives_cancellation() {
    let gpu = corpus("dot");
    let mut noise = Noise::new(8);
    let draw = |noise: &mut Noise| noise.integer(-(1 << 40), 1 << 40);
    let mut pairs: Vec<(i64, i64)> = noise.vector(1000, |noise| (draw(noise), draw(noise)));
    let negated: Vec<(i64, i64)> = pairs.iter().map(|(x, y)| (-x + 1, *y)).collect();
    pairs.extend(negated);
    let exact: i128 = pairs.iter().map(|(x, y)| i128::from(*x) * i128::from(*y)).sum();

    let x: Vec<f64> = pairs.iter().map(|(x, _)| *x as f64).collect();
    let y: Vec<f64> = pairs.iter().map(|(_, y)| *y as f64).collect();
    let (x, y, out) = (gpu.upload(&x), gpu.upload(&y), gpu.uninitialized(8));
    gpu.launch("dot", [1, 1, 1], [256, 1, 1], 0, arguments![x, y, out, pairs.len() as i32]);

    let got = gpu.download::<f64>(&out)[0];
    // (n u)^2 times the sum of magnitudes, u = 2^-53 (Ogita, Rump and Oishi 2005).
    let (terms, size) = (pairs.len() as f64, pairs.len() as f64 * 2f64.powi(80));
    let bound = (terms * 2f64.powi(-53)).powi(2) * size + ulp_f64(exact as f64);
    assert_near(got, exact as f64, bound, "dot");
}
