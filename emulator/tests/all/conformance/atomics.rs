//! Atomics: `atomics.cu`, `histogram.cu`, `last_block.cu`.

use half::{bf16, f16};

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

#[test]
fn histograms_count_every_byte_once() {
    let gpu = corpus("histogram");
    let mut noise = Noise::new(1);
    // The bitwise AND of two random bytes has few set bits, so some values are much more frequent.
    let bytes = noise.vector(4000, |noise| (noise.u32() & noise.u32()) as u8);
    let mut counts = vec![0u32; 256];
    bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);

    let (from, to) = (gpu.upload(&bytes), gpu.zeros(4 * 256));
    gpu.launch("histogram_shared", [4, 1, 1], [128, 1, 1], 0, arguments![from, to, 4000i32]);
    assert_eq!(gpu.download::<u32>(&to), counts);

    let to = gpu.zeros(8 * 256);
    gpu.launch("histogram_global", [3, 1, 1], [64, 1, 1], 0, arguments![from, to, 1000i32]);
    let counts: Vec<u64> = counts.iter().map(|count| u64::from(*count)).collect();
    assert_eq!(gpu.download::<u64>(&to), counts);
}

#[test]
fn floats_are_added_and_compared() {
    let gpu = corpus("atomics");
    let values = Noise::new(2).whole_f32(300, -1000, 1000);
    let from = gpu.upload(&values);
    let (sum, sum64) = (gpu.upload(&[0.5f32]), gpu.upload(&[0.25f64]));
    let largest = gpu.upload(&[f64::NEG_INFINITY]);
    let arguments = arguments![from, sum, sum64, largest, 300i32];
    gpu.launch("float_atomics", [3, 1, 1], [128, 1, 1], 0, arguments);

    let want: f32 = values.iter().sum();
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert_eq!(gpu.download::<f32>(&sum), [want + 0.5]);
    assert_eq!(gpu.download::<f64>(&sum64), [f64::from(want) + 0.25]);
    assert_eq!(gpu.download::<f64>(&largest), [f64::from(max)]);
}

#[test]
fn integer_atomics_match_a_sequential_loop() {
    let gpu = corpus("atomics");
    let values = Noise::new(3).vector(256, Noise::u32);
    let start: [u32; 11] = [1, 2, 3, 4, 5, 6, !0, 0, 9, 0, 0];
    let (from, to) = (gpu.upload(&values), gpu.upload(&start));
    gpu.launch("integer_atomics", [2, 1, 1], [128, 1, 1], 0, arguments![from, to]);

    let mut want = start;
    for value in values {
        want[0] = want[0].wrapping_add(value);
        want[1] = want[1].wrapping_sub(value);
        want[2] = (want[2] as i32).min(value as i32) as u32;
        want[3] = (want[3] as i32).max(value as i32) as u32;
        want[4] = want[4].min(value);
        want[5] = want[5].max(value);
        want[6] &= value;
        want[7] |= value;
        want[8] ^= value;
        want[9] = if want[9] >= 100 { 0 } else { want[9] + 1 };
        want[10] = if want[10] == 0 || want[10] > 100 { 100 } else { want[10] - 1 };
    }
    assert_eq!(gpu.download::<u32>(&to), want);
}

#[test]
fn long_integer_atomics_match_a_sequential_loop() {
    let gpu = corpus("atomics");
    let values = Noise::new(4).vector(128, |noise| noise.u64());
    let start: [u64; 7] = [0, 0, !0, 0, !0, 0, 7];
    let (from, to) = (gpu.upload(&values), gpu.upload(&start));
    gpu.launch("long_atomics", [2, 1, 1], [64, 1, 1], 0, arguments![from, to]);

    let mut want = start;
    for value in values {
        want[0] = (want[0] as i64).min(value as i64) as u64;
        want[1] = (want[1] as i64).max(value as i64) as u64;
        want[2] = want[2].min(value);
        want[3] = want[3].max(value);
        want[4] &= value;
        want[5] |= value;
        want[6] ^= value;
    }
    assert_eq!(gpu.download::<u64>(&to), want);
}

#[test]
fn each_old_value_is_returned_to_one_thread() {
    let gpu = corpus("atomics");
    let threads = 560usize; // a multiple of 10 and of 7
    let counters = gpu.zeros(12);
    let (taken, wrapped, unwound) = (gpu.zeros(4 * threads), gpu.zeros(40), gpu.zeros(28));
    let arguments = arguments![counters, taken, wrapped, unwound];
    gpu.launch("tickets", [5, 1, 1], [112, 1, 1], 0, arguments);
    assert_eq!(gpu.download::<u32>(&taken), vec![1; threads]);
    assert_eq!(gpu.download::<u32>(&wrapped), [56; 10]);
    assert_eq!(gpu.download::<u32>(&unwound), [80; 7]);
    assert_eq!(gpu.download::<u32>(&counters), [560, 0, 0]);
}

#[test]
fn exchanges_form_one_chain() {
    let gpu = corpus("atomics");
    let end = u32::MAX;
    let (head, before) = (gpu.upload(&[end]), gpu.uninitialized(4 * 128));
    gpu.launch("exchange_chain", [2, 1, 1], [64, 1, 1], 0, arguments![head, before]);

    let before = gpu.download::<u32>(&before);
    let mut at = gpu.download::<u32>(&head)[0];
    let mut visited = Vec::new();
    while at != end && visited.len() <= 128 {
        visited.push(at);
        at = before[at as usize];
    }
    visited.sort();
    assert_eq!(visited, (0..128).collect::<Vec<u32>>());
}

#[test]
fn a_key_is_claimed_by_one_of_its_threads() {
    let gpu = corpus("atomics");
    let keys = Noise::new(5).vector(128, |noise| noise.integer(0, 19) as u32);
    let (from, owner) = (gpu.upload(&keys), gpu.upload(&[-1i32; 20]));
    gpu.launch("claim", [2, 1, 1], [64, 1, 1], 0, arguments![from, owner]);
    for (key, owner) in gpu.download::<i32>(&owner).into_iter().enumerate() {
        let has_key = keys.contains(&(key as u32));
        assert_eq!(owner >= 0, has_key);
        assert!(owner < 0 || keys[owner as usize] == key as u32);
    }
}

#[test]
fn halves_are_added_in_pairs() {
    let gpu = corpus("atomics");
    let values = Noise::new(6).whole_f32(96, 0, 1);
    let from = gpu.upload(&values);
    let (halves, bfloats, sum) = (gpu.zeros(4), gpu.zeros(4), gpu.zeros(4));
    gpu.launch("packed_atomics", [3, 1, 1], [32, 1, 1], 0, arguments![from, halves, sum]);
    gpu.launch("bfloat_atomics", [1, 1, 1], [1, 1, 1], 0, arguments![from, bfloats, 96i32]);

    let want: f32 = values.iter().sum();
    assert_eq!(gpu.download::<f32>(&sum), [want]);
    assert_eq!(gpu.download::<f16>(&halves), [want, 2.0 * want].map(f16::from_f32));
    assert_eq!(gpu.download::<bf16>(&bfloats), [want, 2.0 * want].map(bf16::from_f32));
}

/// The counter returns to zero, so that the kernel can be launched again.
#[test]
fn the_last_block_adds_the_sums_of_all() {
    let gpu = corpus("last_block");
    let n = 3000usize;
    let mut noise = Noise::new(7);
    let (partial, out) = (gpu.uninitialized(4 * 7), gpu.uninitialized(4));
    for _ in 0..3 {
        let values = noise.whole_f32(n, -100, 100);
        let from = gpu.upload(&values);
        let arguments = arguments![from, partial, out, n as i32];
        gpu.launch("sum_in_one_launch", [7, 1, 1], [128, 1, 1], 0, arguments);
        assert_eq!(gpu.download::<f32>(&out), [values.iter().sum::<f32>()]);
    }
}

#[test]
fn a_flag_carries_a_message() {
    let gpu = corpus("last_block");
    let (data, flag) = (gpu.uninitialized(4 * 64), gpu.zeros(4));
    let out = gpu.uninitialized(4 * 64 * 3);
    gpu.launch("message", [4, 1, 1], [64, 1, 1], 0, arguments![data, flag, out]);
    let message: Vec<i32> = (0..64).rev().map(|i| 3 * i + 1).collect();
    assert_eq!(gpu.download::<i32>(&out), message.repeat(3));
}

#[test]
fn a_lock_admits_one_block() {
    let gpu = corpus("last_block");
    let (lock, sum) = (gpu.zeros(4), gpu.zeros(8));
    gpu.launch("locked_sum", [40, 1, 1], [32, 1, 1], 0, arguments![lock, sum]);
    let want = (0..40).fold(0i64, |sum, _| sum * 2 % 1_000_003 + 1);
    assert_eq!(gpu.download::<i64>(&sum), [want]);
    assert_eq!(gpu.download::<i32>(&lock), [0]);
}

#[test]
fn atomics_of_the_standard_library() {
    let gpu = corpus("last_block");
    let cells = gpu.zeros(4 * 6);
    gpu.launch("ordered_atomics", [1, 1, 1], [96, 1, 1], 0, arguments![cells]);
    let xor = (0..96).fold(0, |xor, i| xor ^ i);
    assert_eq!(gpu.download::<i32>(&cells), [96, 192, 95, -1, 288, xor]);
}
