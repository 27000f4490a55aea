//! Asynchronous copies that arrive at mbarriers: `copy_arrivals.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::{Gpu, arguments};

const TILE: usize = 128;

/// The `sums` results of a kernel over random tiles, and the tiles.
fn sums_of_tiles(
    gpu: &Gpu,
    (kernel, threads): (&str, u32),
    sums: usize,
    tiles: usize,
) -> (Vec<i32>, Vec<i32>) {
    let words: Vec<i32> = Noise::new(11).vector(TILE * tiles, |noise| noise.u32() as i32 >> 8);
    let (from, to) = (gpu.upload(&words), gpu.uninitialized(4 * sums));
    let arguments = arguments![from, to, tiles as i32];
    gpu.launch(kernel, [1, 1, 1], [threads, 1, 1], 0, arguments);
    (gpu.download::<i32>(&to), words)
}

/// The sum over all tiles of the words at these places.
fn sum_of(words: &[i32], places: &[usize]) -> i32 {
    let tiles = words.chunks_exact(TILE);
    tiles.flat_map(|tile| places.iter().map(|at| tile[*at])).sum()
}

/// `cuda::memcpy_async` with a `cuda::barrier`, one phase per tile.
#[test]
fn a_barrier_waits_for_the_copies_of_a_block() {
    let gpu = corpus("copy_arrivals");
    for tiles in [1, 2, 5] {
        let (sums, words) = sums_of_tiles(&gpu, ("tiles_by_memcpy_async", 128), 128, tiles);
        let expected: Vec<i32> = (0..128).map(|i| sum_of(&words, &[127 - i])).collect();
        assert_eq!(sums, expected, "{tiles} tiles");
    }
}

/// Fewer tiles than stages, as many, and more, so that both barriers of a stage change parity.
#[test]
fn a_warp_fills_a_ring_by_arrivals_of_its_copies_alone() {
    let gpu = corpus("copy_arrivals");
    for tiles in [1, 3, 4, 14] {
        let (sums, words) = sums_of_tiles(&gpu, ("ring", 96), 64, tiles);
        let expected: Vec<i32> = (0..64).map(|i| sum_of(&words, &[i, 64 + i])).collect();
        assert_eq!(sums, expected, "{tiles} tiles");
    }
}

#[test]
fn each_arrival_follows_the_copies_before_it() {
    let gpu = corpus("copy_arrivals");
    let words: Vec<i32> = Noise::new(12).vector(256, |noise| noise.u32() as i32);
    let (from, to) = (gpu.upload(&words), gpu.uninitialized(4 * 256));
    gpu.launch("two_arrivals", [1, 1, 1], [128, 1, 1], 0, arguments![from, to]);
    let mut reversed = words.clone();
    reversed[..128].reverse();
    reversed[128..].reverse();
    assert_eq!(gpu.download::<i32>(&to), reversed);
}
