//! Constants, globals and shared memory: `constants.cu`, `dynamic_shared.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

#[test]
fn constants_have_their_initial_values() {
    let gpu = corpus("constants");
    let table = [1.0f32, -0.5, 0.25, -0.125, 3.5, 1e-3];
    let x = Noise::new(1).vector(64, |noise| noise.f32(-2.0, 2.0));
    let (from, out) = (gpu.upload(&x), gpu.uninitialized(4 * 64));
    gpu.launch("polynomial", [1, 1, 1], [64, 1, 1], 0, arguments![from, out]);
    let value = |(i, x): (usize, &f32)| {
        let sum = table.iter().rev().fold(0f32, |sum, c| sum.mul_add(*x, *c));
        sum + table[i % 6]
    };
    assert_eq!(gpu.download::<f32>(&out), x.iter().enumerate().map(value).collect::<Vec<_>>());
}

#[test]
fn globals_have_their_initial_values() {
    let gpu = corpus("constants");
    let out = gpu.uninitialized(8 * 64);
    gpu.launch("read_globals", [1, 1, 1], [64, 1, 1], 0, arguments![out]);
    let entries = [-7.0 * 0.5, -300.0 * 1e10, 12.0 * -3.25];
    let raw = [1u8, 2, 3, 250, 251, 252, 253];
    let value = |i: usize| {
        let sum = entries[i % 3] + [0.1, 0.2, 0.3, 0.4][i % 4];
        sum + f64::from(b"emulated"[i % 8]) + f64::from(raw[i % 7])
    };
    assert_eq!(gpu.download::<f64>(&out), (0..64).map(value).collect::<Vec<_>>());
}

#[test]
fn globals_live_as_long_as_their_module() {
    for _ in 0..2 {
        let gpu = corpus("constants");
        let out = gpu.uninitialized(8);
        for launch in 1..=3 {
            gpu.launch("count_up", [1, 1, 1], [32, 1, 1], 0, arguments![out]);
            assert_eq!(gpu.download::<u32>(&out), [41 + launch, 5 + 2 * launch]);
        }
    }
}

#[test]
fn arrays_in_dynamic_shared_memory() {
    let gpu = corpus("dynamic_shared");
    let count = 150usize;
    let mut noise = Noise::new(2);
    let weights = noise.whole_f32(count, -500, 500);
    let bins = noise.vector(count, |noise| noise.integer(0, count as i64 - 1) as i32);
    let doubles = noise.vector(count, |noise| noise.f64(-1.0, 1.0));
    let [weights_, bins_, doubles_] =
        [gpu.upload(&weights), gpu.upload(&bins), gpu.upload(&doubles)];
    let out = gpu.uninitialized(4 * count);
    let arguments = arguments![weights_, bins_, doubles_, out, count as i32];
    gpu.launch("carved", [1, 1, 1], [64, 1, 1], (count * (8 + 4 + 2)) as u32, arguments);
    let want = bins.iter().map(|bin| {
        let bin = *bin as usize;
        weights[count - 1 - bin] + doubles[(bin + 1) % count] as f32
    });
    assert_eq!(gpu.download::<f32>(&out), want.collect::<Vec<_>>());
}

#[test]
fn a_bitonic_sort_carries_its_payload() {
    let gpu = corpus("dynamic_shared");
    // Odd multiples of a large odd number, so all are different.
    let keys: Vec<u32> = (0..256u32).map(|i| (2 * i + 1).wrapping_mul(0x9e37_79b1)).collect();
    let payload: Vec<u32> = (0..256).collect();
    let (k, p) = (gpu.upload(&keys), gpu.upload(&payload));
    gpu.launch("bitonic_sort", [1, 1, 1], [256, 1, 1], 8 * 256, arguments![k, p]);
    let mut pairs: Vec<(u32, u32)> = keys.into_iter().zip(payload).collect();
    pairs.sort();
    let got = gpu.download::<u32>(&k).into_iter().zip(gpu.download::<u32>(&p));
    assert_eq!(got.collect::<Vec<_>>(), pairs);
}

#[test]
fn generic_pointers_resolve_to_their_window() {
    let gpu = corpus("dynamic_shared");
    let values = Noise::new(3).whole_f32(32, -100, 100);
    let (from, out) = (gpu.upload(&values), gpu.uninitialized(4 * 32));
    gpu.launch("generic_pointers", [1, 1, 1], [32, 1, 1], 0, arguments![from, out]);
    let want = (0..32usize).map(|i| match i % 3 {
        0 => 2.0 * (values[1] + values[2] + values[3]) + 1000.0,
        1 => (1..4).map(|j| values[(i + j) % 32]).sum::<f32>() + 2000.0,
        _ => values[1] + values[2] + values[3] + 3000.0,
    });
    assert_eq!(gpu.download::<f32>(&out), want.collect::<Vec<_>>());
}
