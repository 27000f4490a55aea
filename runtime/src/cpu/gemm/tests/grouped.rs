//! Batched and grouped products equal loops of single products, bit for bit.

use super::super::{gemm, grouped_gemm, grouped_gemm_weight};
use super::*;

#[test]
fn a_batch_equals_a_loop() {
    let (heads, m, n, k) = (6, 40, 33, 70);
    let mut numbers = Numbers::new(5);
    let (a, b) = (numbers.vec::<f32>(2 * heads * m * k), numbers.vec::<f32>(3 * k * n));

    // a is [2, m, heads, k]; pairs of heads share b: [1, 3, 1, k, n] with zero strides.
    let batch = [2, 3, 2];
    let a_strides = [(m * heads * k) as isize, 2 * k as isize, k as isize];
    let b_strides = [0, (k * n) as isize, 0];
    let c_strides = [(heads * m * n) as isize, (2 * m * n) as isize, (m * n) as isize];
    let (a_row, b_row) = ((heads * k) as isize, n as isize);

    let mut together = vec![0f32; 2 * heads * m * n];
    gemm(
        MatrixRef::batched(&a, 0, [m, k], [a_row, 1], &batch, &a_strides),
        MatrixRef::batched(&b, 0, [k, n], [b_row, 1], &batch, &b_strides),
        MatrixMut::batched(&mut together, 0, [m, n], [b_row, 1], &batch, &c_strides),
        Update::Replace,
    );

    for (index, expected) in together.chunks(m * n).enumerate() {
        let (outer, head) = (index / heads, index % heads);
        let mut alone = vec![0f32; m * n];
        let a_start = outer * m * heads * k + head * k;
        gemm(
            MatrixRef::strided(&a, a_start, [m, k], [a_row, 1]),
            MatrixRef::strided(&b, head / 2 * k * n, [k, n], [b_row, 1]),
            MatrixMut::new(&mut alone, [m, n]),
            Update::Replace,
        );
        assert_eq!(bits(&alone), bits(expected), "matrix {index}");
    }
}

/// Empty groups at the start, in the middle and at the end; groups of one row; rows outside of all
/// groups.
const OFFSETS: [i32; 9] = [2, 2, 3, 40, 40, 41, 170, 300, 300];
const ROWS: usize = 310;
const GROUPS: usize = OFFSETS.len() - 1;

fn group(g: usize) -> (usize, usize) {
    (OFFSETS[g] as usize, (OFFSETS[g + 1] - OFFSETS[g]) as usize)
}

fn grouped_equals_a_loop<T, C>(update: Update, transposed: bool)
where
    T: Element + Number,
    C: Output<T::Sum> + Number,
{
    let (k, n) = (70, 50);
    let mut numbers = Numbers::new(9);
    let (x, w) = (numbers.vec::<T>(ROWS * k), numbers.vec::<T>(GROUPS * k * n));
    let old = numbers.vec::<C>(ROWS * n);
    let weight_strides = if transposed { [1, k as isize] } else { [n as isize, 1] };

    let x = MatrixRef::new(&x, [ROWS, k]);
    let (batch, batch_strides) = ([GROUPS], [(k * n) as isize]);
    let weights = MatrixRef::batched(&w, 0, [k, n], weight_strides, &batch, &batch_strides);

    let mut together = old.clone();
    let y = MatrixMut::new(&mut together, [ROWS, n]);
    with_threads(3, || grouped_gemm(x, weights, y, &OFFSETS, update));

    let mut one_by_one = old;
    for g in 0..GROUPS {
        let (start, len) = group(g);
        let w = MatrixRef::strided(&w, g * k * n, [k, n], weight_strides);
        let y = &mut one_by_one[start * n..][..len * n];
        let y = MatrixMut::new(y, [len, n]);
        gemm(x.part([start, 0], [len, k]), w, y, update);
    }
    assert_eq!(bits(&together), bits(&one_by_one));
}

#[test]
fn groups_equal_a_loop() {
    for update in [Update::Replace, Update::Add] {
        for transposed in [false, true] {
            grouped_equals_a_loop::<f32, f32>(update, transposed);
            grouped_equals_a_loop::<f64, f64>(update, transposed);
            grouped_equals_a_loop::<bf16, bf16>(update, transposed);
            grouped_equals_a_loop::<bf16, f32>(update, transposed);
        }
    }
}

/// Also checks that the gradient of an empty group is zero, or unchanged with [`Update::Add`].
fn grouped_weights_equal_a_loop<T, C>(update: Update)
where
    T: Element + Number,
    C: Output<T::Sum> + Number,
{
    let (m, n) = (50, 35);
    let mut numbers = Numbers::new(11);
    let (x, dy) = (numbers.vec::<T>(ROWS * m), numbers.vec::<T>(ROWS * n));
    let old = numbers.vec::<C>(GROUPS * m * n);
    let x = MatrixRef::new(&x, [ROWS, m]);
    let dy = MatrixRef::new(&dy, [ROWS, n]);

    let mut together = old.clone();
    let (batch, batch_strides) = ([GROUPS], [(m * n) as isize]);
    let strides = [n as isize, 1];
    let dw = MatrixMut::batched(&mut together, 0, [m, n], strides, &batch, &batch_strides);
    with_threads(3, || grouped_gemm_weight(x, dy, dw, &OFFSETS, update));

    let mut one_by_one = old.clone();
    for (g, dw) in one_by_one.chunks_mut(m * n).enumerate() {
        let (start, len) = group(g);
        let (x, dy) = (x.part([start, 0], [len, m]), dy.part([start, 0], [len, n]));
        gemm(x.transposed(), dy, MatrixMut::new(dw, [m, n]), update);
    }
    assert_eq!(bits(&together), bits(&one_by_one));

    let empty = &together[..m * n];
    match update {
        Update::Replace => assert!(empty.iter().all(|x| x.to_f64() == 0.0)),
        Update::Add => assert_eq!(bits(empty), bits(&old[..m * n])),
    }
}

#[test]
fn grouped_weight_gradients_equal_a_loop() {
    for update in [Update::Replace, Update::Add] {
        grouped_weights_equal_a_loop::<f32, f32>(update);
        grouped_weights_equal_a_loop::<f64, f64>(update);
        grouped_weights_equal_a_loop::<bf16, f32>(update);
        grouped_weights_equal_a_loop::<bf16, bf16>(update);
    }
}

#[test]
fn offsets_must_be_non_decreasing_and_in_bounds() {
    let (x, w) = ([0f32; 12], [0f32; 8]);
    let x = MatrixRef::new(&x, [3, 4]);
    let w = MatrixRef::batched(&w, 0, [4, 1], [1, 1], &[2], &[4]);

    let run = |offsets: &[i64]| {
        let mut y = [0f32; 3];
        let y = MatrixMut::new(&mut y, [3, 1]);
        grouped_gemm(x, w, y, offsets, Update::Replace)
    };

    run(&[0, 2, 3]);
    for (bad, index) in [([0, 2, 4], 2), ([0, 3, 2], 2), ([-1, 0, 3], 0)] {
        let expected = format!("grouped_gemm: offset {index} decreases or exceeds 3 rows");
        assert_eq!(panic_message(|| run(&bad)), expected);
    }
    let message = panic_message(|| run(&[0, 3]));
    assert!(message.contains("groups in the offsets and batch extents must be equal"), "{message}");
}
