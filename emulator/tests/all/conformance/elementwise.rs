//! Kernels with one thread per result: `saxpy.cu`, `transpose.cu`, `stencil.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

#[test]
fn saxpy_fuses_product_and_sum() {
    let gpu = corpus("saxpy");
    let mut noise = Noise::new(1);
    let n = 1037;
    let x = noise.vector(n, |noise| noise.f32(-4.0, 4.0));
    let y = noise.vector(n, |noise| noise.f32(-4.0, 4.0));
    let (from, to) = (gpu.upload(&x), gpu.upload(&y));
    gpu.launch("saxpy", [2, 1, 1], [128, 1, 1], 0, arguments![n as i64, 1.7f32, from, to]);

    let once: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 1.7f32.mul_add(*x, *y)).collect();
    assert_eq!(gpu.download::<f32>(&to), once);

    let quads = (n / 4) as i32;
    gpu.launch("saxpy_vector", [5, 1, 1], [64, 1, 1], 0, arguments![quads, -0.3f32, from, to]);
    let mut twice = once.clone();
    for i in 0..n / 4 * 4 {
        twice[i] = (-0.3f32).mul_add(x[i], once[i]);
    }
    assert_eq!(gpu.download::<f32>(&to), twice);
}

#[test]
fn a_transposed_matrix_has_its_columns_as_rows() {
    let gpu = corpus("transpose");
    let (rows, columns) = (70usize, 45usize);
    let grid = [2, 3, 1];
    let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
    let words: Vec<u16> = (0..rows * columns).map(|i| i as u16).collect();

    let (from, to) = (gpu.upload(&values), gpu.uninitialized(4 * values.len()));
    let sizes = (rows as i32, columns as i32);
    gpu.launch("transpose_f32", grid, [32, 8, 1], 0, arguments![from, to, sizes.0, sizes.1]);
    assert_eq!(gpu.download::<f32>(&to), transposed(&values, rows, columns));

    let (from, to) = (gpu.upload(&words), gpu.uninitialized(2 * words.len()));
    gpu.launch("transpose_u16", grid, [32, 8, 1], 0, arguments![from, to, sizes.0, sizes.1]);
    assert_eq!(gpu.download::<u16>(&to), transposed(&words, rows, columns));
}

fn transposed<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    let places = (0..rows * columns).map(|i| i % rows * columns + i / rows);
    places.map(|at| values[at]).collect()
}

#[test]
fn heat_flows_to_the_neighbors() {
    let gpu = corpus("stencil");
    let (width, height) = (50usize, 37usize);
    // Multiples of 64, so that two steps of eighths are exact.
    let mut values: Vec<f32> = Noise::new(2).whole_f32(width * height, -9, 9);
    values.iter_mut().for_each(|value| *value *= 64.0);

    let buffers = [gpu.upload(&values), gpu.upload(&values)];
    for step in 0..2 {
        let (from, to) = (&buffers[step % 2], &buffers[(step + 1) % 2]);
        let arguments = arguments![*from, *to, width as i32, height as i32];
        gpu.launch("heat", [2, 3, 1], [32, 16, 1], 0, arguments);
        values = after_a_step(&values, width, height);
    }
    assert_eq!(gpu.download::<f32>(&buffers[0]), values);
}

fn after_a_step(values: &[f32], width: usize, height: usize) -> Vec<f32> {
    let at = |x: isize, y: isize| {
        let x = x.clamp(0, width as isize - 1) as usize;
        let y = y.clamp(0, height as isize - 1) as usize;
        values[y * width + x]
    };
    let cells = (0..width * height).map(|i| ((i % width) as isize, (i / width) as isize));
    let flow = |(x, y)| {
        let around = at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1);
        0.5 * at(x, y) + 0.125 * around
    };
    cells.map(flow).collect()
}

#[test]
fn cache_hints_do_not_change_values() {
    let gpu = corpus("stencil");
    let mut noise = Noise::new(3);
    let n = 96usize;
    let ints = noise.vector(n, |noise| noise.u32() as i32 >> 4);
    let pairs = noise.vector(2 * n, |noise| noise.f64(-1.0, 1.0));
    let shorts = noise.vector(4 * n, |noise| noise.u32() as i16);
    let (from, to) = (gpu.upload(&ints), gpu.uninitialized(5 * 4 * n));
    let (from_pairs, sums) = (gpu.upload(&pairs), gpu.uninitialized(16 * n));
    let (from_shorts, transposed) = (gpu.upload(&shorts), gpu.uninitialized(8 * n));
    let arguments = arguments![from, to, from_pairs, sums, from_shorts, transposed];
    gpu.launch("cache_hints", [3, 1, 1], [32, 1, 1], 0, arguments);

    let got = gpu.download::<i32>(&to);
    for i in 0..n {
        for hint in 0..4 {
            assert_eq!(got[hint * n + i], ints[i] + hint as i32);
        }
        assert_eq!(got[4 * n + i], ints[i] + ints[(i + 1) % n]);
    }
    let sums = gpu.download::<f64>(&sums);
    let transposed = gpu.download::<i16>(&transposed);
    for i in 0..n {
        let [a, b] = [pairs[2 * i], pairs[2 * i + 1]];
        assert_eq!(sums[2 * i..2 * i + 2], [a + b, a - b]);
        let back: Vec<i16> = shorts[4 * i..4 * i + 4].iter().rev().copied().collect();
        assert_eq!(transposed[4 * i..4 * i + 4], back);
    }
}
