//! What argmax, argmin and top-k read and write.

use meshgrad_kernel_catalogue as catalogue;
use meshgrad_kernels::arg_reduce::{
    ArgReduce, ArgReduceArguments, ArgReduceChunks, ArgReduceChunksArguments, Extreme,
    chunks_per_row,
};
use meshgrad_kernels::top_k::{
    MergeRuns, MergeRunsArguments, Runs, SortTiles, SortTilesArguments, SortedKeys,
};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::{
    assert_moved, assert_no_conflicts, assert_once, assert_whole_sectors, assert_whole_sectors_of,
};

/// Rows with many equal elements, both zeros, infinities, and a few NaN.
fn rows(dtype: Dtype, rows: usize, features: usize) -> Vec<f32> {
    let coarse = values(dtype, rows * features, 7);
    let mut x: Vec<f32> = coarse.iter().map(|x| (x * 40.0).trunc()).collect();
    for (at, x) in x.iter_mut().enumerate() {
        match at % 509 {
            77 => *x = f32::INFINITY,
            78 => *x = f32::NEG_INFINITY,
            399 => *x = f32::NAN,
            _ => {}
        }
    }
    x
}

/// The indices of the best element of each row, by one kernel or by two. Asserts that x is read
/// once. Returns the address of the indices.
fn best(device: &Device, extreme: Extreme, dtype: Dtype, x: &[f32], extents: [u64; 2]) -> u64 {
    let [rows, features] = extents;
    let chunks = chunks_per_row(rows, features);
    let indices = device.room(8 * rows as usize);
    let keys = device.room(8 * (rows * chunks) as usize);
    let variant = ArgReduce::new(extreme, dtype, rows, features, true);
    let arguments = ArgReduceArguments::new(
        In(device.put_floats(dtype, x)),
        Out(if chunks > 1 { keys } else { indices }),
        extents,
    );
    let Some(launch) = variant.launch(rows, features) else {
        return indices;
    };
    let counters = device.run(&variant, launch, &arguments);
    let of_row = features as usize * dtype.size() as usize;
    let of_keys = 8 * (rows * chunks) as usize;
    assert_once(&counters, [rows as usize * of_row, of_keys]);
    if of_row.is_multiple_of(32) && chunks == 1 {
        assert_whole_sectors(&counters);
    }

    if chunks > 1 {
        let arguments = ArgReduceChunksArguments {
            keys: In(keys),
            indices: Out(indices),
            chunks: chunks as u32,
        };
        let launch = ArgReduceChunks.launch(rows).unwrap();
        let counters = device.run(&ArgReduceChunks, launch, &arguments);
        assert_once(&counters, [of_keys, 8 * rows as usize]);
    }
    indices
}

#[test]
fn rows_are_read_once() {
    let extents = [[0, 3], [1, 1], [300, 5], [3, 64], [2, 1100], [1, 9001]];
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for extreme in [Extreme::Max, Extreme::Min] {
            for [count, features] in extents {
                let x = rows(dtype, count as usize, features as usize);
                best(&device, extreme, dtype, &x, [count, features]);
            }
        }
    }
}

/// The addresses of the values and indices of the `k` largest elements of each row.
fn top(device: &Device, dtype: Dtype, x: &[f32], features: u64, k: u64) -> [u64; 2] {
    let rows = x.len() as u64 / features;
    let x = In(device.put_floats(dtype, x));
    let values = device.room((rows * k) as usize * dtype.size() as usize);
    let indices = device.room((rows * k) as usize * 8);

    let sort = SortTiles::new(dtype, features, true);
    let (tiles, len) = (sort.tiles(features), sort.tile().min(k));
    let mut to = SortedKeys {
        keys: Out(device.room((rows * tiles * len * 8) as usize)),
        x,
        values: Out(values),
        indices: Out(indices),
        features: features as u32,
    };
    let arguments = SortTilesArguments { to, kept: len as u32, tiles: tiles as u32 };
    let launch = sort.launch(rows, features).unwrap();
    let counters = device.run(&sort, launch, &arguments);
    // Several tiles write keys. One tile reads the chosen elements again and writes them and their
    // indices.
    let (size, chosen) = (u64::from(dtype.size()), rows * k);
    let x_bytes = rows * features * size;
    let rest = (features - (tiles - 1) * sort.tile()).min(len);
    let all = match tiles {
        1 => [x_bytes + chosen * size, chosen * (size + 8)],
        _ => [x_bytes, 8 * rows * ((tiles - 1) * len + rest)],
    };
    let bytes = |[read, written]: [u64; 2]| [read as usize, written as usize];
    assert_moved(&counters, bytes(all), bytes([x_bytes, all[1]]));
    if (features * size).is_multiple_of(32) {
        assert_whole_sectors_of(&counters, "ld.global.v4");
    }

    let last = (features - (tiles - 1) * sort.tile()).min(len);
    let mut runs = Runs { count: tiles as u32, len: len as u32, last: last as u32 };
    while runs.count > 1 {
        let merge = MergeRuns::new(runs, dtype);
        let merged = runs.merged(k as u32);
        let from = to.keys.written();
        to.keys = Out(device.room((rows * u64::from(merged.count * merged.len) * 8) as usize));
        let arguments = MergeRunsArguments::new(from, to, runs, merged.len);
        let launch = merge.launch(rows, runs).unwrap();
        let counters = device.run(&merge, launch, &arguments);
        // Binary searches in the other runs read from caches. Nothing is written twice.
        let of_keys = 8 * rows * u64::from(runs.count) * u64::from(runs.len);
        let of_chosen = if merged.count == 1 { chosen * size } else { 0 };
        assert!(counters.unique_bytes_read <= of_keys + of_chosen);
        let written = [counters.total.bytes_written, counters.unique_bytes_written];
        assert_eq!(written[0], written[1]);
        assert_no_conflicts(&counters);
        runs = merged;
    }
    [values, indices]
}

/// Covers one tile and many, one merge and two, a few elements and all, and rows that are whole
/// vectors or not.
#[test]
fn tiles_are_read_once() {
    let extents = [
        [1, 1, 1],
        [3, 17, 17],
        [2, 300, 5],
        [1, 1024, 1024],
        [2, 1030, 7],
        [1, 2100, 1500],
        [1, 9001, 3],
        [1, 8300, 8300],
    ];
    let device = Device::plain();
    for dtype in Dtype::ALL {
        for [count, features, k] in extents {
            let x = rows(dtype, count, features);
            top(&device, dtype, &x, features as u64, k as u64);
        }
    }
}

/// Runs every kernel of the catalogue.
pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bits = Vec::new();
    for (extreme, dtype, extents) in catalogue::ARG_REDUCED {
        let [count, features] = extents.map(|extent| extent as usize);
        let x = rows(dtype, count, features);
        let indices = best(device, extreme, dtype, &x, extents);
        bits.extend(device.bytes(indices, 8 * count));
    }
    for (dtype, features) in catalogue::SORTED {
        let x = rows(dtype, 1, features as usize);
        let [values, indices] = top(device, dtype, &x, features, 9);
        bits.extend(encoded(dtype, &device.floats(dtype, values, 9)));
        bits.extend(device.bytes(indices, 8 * 9));
    }
    bits
}
