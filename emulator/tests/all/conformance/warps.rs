//! Warp-level primitives: `votes.cu`, `groups.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

/// Bits of the lanes for which `holds` is true.
fn ballot<T>(lanes: &[T], holds: impl Fn(&T) -> bool) -> u32 {
    (0..lanes.len()).filter(|lane| holds(&lanes[*lane])).map(|lane| 1 << lane).sum()
}

#[test]
fn votes_ballots_and_matches() {
    let gpu = corpus("votes");
    let values = Noise::new(1).vector(192, |noise| noise.integer(-99, 99) as i32);
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 8 * 192));
    gpu.launch("votes", [2, 1, 1], [96, 1, 1], 0, arguments![from, out]);

    let got = gpu.download::<u32>(&out);
    for (i, value) in values.iter().enumerate() {
        let lanes = &values[i / 32 * 32..][..32];
        let positive = ballot(lanes, |other| *other > 0);
        let even = ballot(lanes, |other| other % 3 == 0) & 0x5555_5555;
        let square = |value: i32| (i64::from(value) as u64).wrapping_mul(i64::from(value) as u64);
        let want = [
            positive,
            lanes.iter().any(|other| *other > 90).into(),
            lanes.iter().all(|other| *other > -100).into(),
            ballot(lanes, |other| other / 10 == value / 10),
            !0,
            ballot(lanes, |other| square(*other) == square(*value)),
        ];
        assert_eq!(got[8 * i..8 * i + 6], want, "thread {i}");
        // Which lanes of a branch execute together depends on the machine.
        let together = got[8 * i + 6];
        assert_eq!(together & !positive, 0);
        assert_eq!(together >> (i % 32) & 1 == 1, *value > 0);
        assert_eq!(got[8 * i + 7], if i % 2 == 0 { even } else { 0 });
    }
}

#[test]
fn votes_of_blocks() {
    let gpu = corpus("votes");
    let mut values = Noise::new(2).vector(400, |noise| noise.integer(-9, 49) as i32);
    values[123] = 50;
    values[345] = -20;
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 3 * 400));
    // The last warp of each block has 4 threads.
    gpu.launch("block_votes", [4, 1, 1], [100, 1, 1], 0, arguments![from, out]);
    let got = gpu.download::<[i32; 3]>(&out);
    for (block, got) in values.chunks(100).zip(got.chunks(100)) {
        let count = block.iter().filter(|value| **value > 0).count() as i32;
        let all = block.iter().all(|value| *value > -10).into();
        let any = block.contains(&50).into();
        assert_eq!(got, vec![[count, all, any]; 100]);
    }
}

#[test]
fn compaction_keeps_the_order_of_a_warp() {
    let gpu = corpus("votes");
    // All different, so that a warp's values can be identified.
    let values: Vec<i32> = (0..256).map(|i| (i * 37 % 256) - 100).collect();
    let (from, out, count) = (gpu.upload(&values), gpu.zeros(4 * 256), gpu.zeros(4));
    gpu.launch("compact", [1, 1, 1], [256, 1, 1], 0, arguments![from, out, count]);

    let kept = gpu.download::<i32>(&count)[0] as usize;
    let out = gpu.download::<i32>(&out);
    let (got, rest) = out.split_at(kept);
    assert!(rest.iter().all(|value| *value == 0));
    let mut found = 0;
    for warp in values.chunks(32) {
        let positive: Vec<i32> = warp.iter().copied().filter(|value| *value > 0).collect();
        assert!(got.windows(positive.len()).any(|run| run == positive));
        found += positive.len();
    }
    assert_eq!(found, kept);
}

#[test]
fn sums_of_equal_keys() {
    let gpu = corpus("votes");
    let mut noise = Noise::new(3);
    let keys = noise.vector(128, |noise| noise.integer(0, 6) as i32);
    let values = noise.vector(128, |noise| noise.integer(-50, 50) as i32);
    let (from, addends, sums) = (gpu.upload(&keys), gpu.upload(&values), gpu.zeros(28));
    gpu.launch("sums_by_key", [1, 1, 1], [128, 1, 1], 0, arguments![from, addends, sums]);
    let mut want = [0; 7];
    keys.iter().zip(values).for_each(|(key, value)| want[*key as usize] += value);
    assert_eq!(gpu.download::<i32>(&sums), want);
}

#[test]
fn special_registers_identify_the_thread() {
    let gpu = corpus("votes");
    let (grid, block, dynamic) = ([3u32, 2, 2], [5u32, 3, 4], 320u32);
    let threads = 60 * 12;
    let out = gpu.uninitialized(4 * 16 * threads);
    gpu.launch("places", grid, block, dynamic, arguments![out]);

    let packed = |[x, y, z]: [u32; 3]| x | y << 8 | z << 16;
    let place = |at: u32, [x, y, _]: [u32; 3]| [at % x, at / x % y, at / (x * y)];
    for (i, got) in gpu.download::<[u32; 16]>(&out).into_iter().enumerate() {
        let (cta, thread) = (i as u32 / 60, i as u32 % 60);
        let lane = thread % 32;
        let below = (1u32 << lane) - 1;
        let own = 1u32 << lane;
        let want = [
            packed(place(cta, grid)),
            packed(place(thread, block)),
            packed(grid),
            packed(block),
            lane,
            below,
            below | own,
            own,
            !below,
            !below & !own,
            dynamic,
            1,
            1,
            1,
            32,
            1,
        ];
        assert_eq!(got, want, "thread {thread} of CTA {cta}");
    }
}

#[test]
fn tiles_and_labels() {
    let gpu = corpus("groups");
    let values = Noise::new(4).vector(96, |noise| noise.integer(-50, 50) as i32);
    let from = gpu.upload(&values);
    let (sums, by_label) = (gpu.uninitialized(4 * 96), gpu.uninitialized(4 * 96));
    gpu.launch("tiles", [1, 1, 1], [96, 1, 1], 0, arguments![from, sums, by_label]);

    let tile_sum = |i: usize| values[i / 8 * 8..][..8].iter().sum::<i32>() + (i / 8) as i32;
    assert_eq!(gpu.download::<i32>(&sums), (0..96).map(tile_sum).collect::<Vec<_>>());
    let largest = |i: usize| {
        let warp = values[i / 32 * 32..][..32].iter();
        *warp.filter(|other| *other % 3 == values[i] % 3).max().unwrap()
    };
    assert_eq!(gpu.download::<i32>(&by_label), (0..96).map(largest).collect::<Vec<_>>());
}

#[test]
fn converged_lanes_share_one_atomic() {
    let gpu = corpus("groups");
    let values: Vec<i32> = (0..128).map(|i| i * 29 % 128).collect();
    let (from, taken, counter) = (gpu.upload(&values), gpu.zeros(4 * 128), gpu.zeros(4));
    gpu.launch("places_for_odd", [1, 1, 1], [128, 1, 1], 0, arguments![from, taken, counter]);
    assert_eq!(gpu.download::<i32>(&counter), [64]);
    let mut got = gpu.download::<i32>(&taken)[..64].to_vec();
    got.sort();
    assert_eq!(got, (0..64).map(|i| 2 * i + 1).collect::<Vec<_>>());
}

#[test]
fn tiles_of_a_block_synchronize_independently() {
    let gpu = corpus("groups");
    let values = Noise::new(5).whole_f32(64, 1, 60);
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 64));
    gpu.launch("pair_of_tiles", [1, 1, 1], [64, 1, 1], 0, arguments![from, out]);
    let squares: Vec<f32> =
        values.chunks(32).map(|tile| tile.iter().map(|value| value * value).sum()).collect();
    let want = (0..64).map(|i: usize| values[i ^ 1] / squares[1 - i / 32]);
    assert_eq!(gpu.download::<f32>(&out), want.collect::<Vec<_>>());
}
