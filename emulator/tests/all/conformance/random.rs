//! Counter-based random numbers: `philox.cu`.

use crate::conformance::corpus;
use crate::conformance::data::Noise;
use crate::conformance::gpu::arguments;

/// Philox4x32-10 (Salmon et al. 2011, section 4.3).
fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut k, mut l]) = (counter, key);
    for _ in 0..10 {
        let first = u64::from(a) * 0xd251_1f53;
        let second = u64::from(c) * 0xcd9e_8d57;
        (a, b, c, d) = (
            (second >> 32) as u32 ^ b ^ k,
            second as u32,
            (first >> 32) as u32 ^ d ^ l,
            first as u32,
        );
        k = k.wrapping_add(0x9e37_79b9);
        l = l.wrapping_add(0xbb67_ae85);
    }
    [a, b, c, d]
}

/// The first known answer is from the authors' own tests (Random123, `kat_vectors`).
#[test]
fn philox_matches_the_known_answers() {
    let gpu = corpus("philox");
    let out = gpu.uninitialized(16 * 128);
    gpu.launch("random_words", [2, 1, 1], [64, 1, 1], 0, arguments![out, 0u64, 0u32]);
    let known = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    assert_eq!(gpu.download::<[u32; 4]>(&out)[0], known);

    let seed = 0x0123_4567_89ab_cdefu64;
    gpu.launch("random_words", [2, 1, 1], [64, 1, 1], 0, arguments![out, seed, 77u32]);
    let key = [seed as u32, (seed >> 32) as u32];
    let want: Vec<[u32; 4]> = (0..128).map(|i| philox([i, 77, 0, 0], key)).collect();
    assert_eq!(gpu.download::<[u32; 4]>(&out), want);
}

#[test]
fn dropout_keeps_elements_by_their_random_word() {
    let gpu = corpus("philox");
    let values = Noise::new(1).vector(4 * 128, |noise| noise.f32(-2.0, 2.0));
    let (from, to) = (gpu.upload(&values), gpu.uninitialized(16 * 128));
    let arguments = arguments![from, to, 0.8f32, 42u64];
    gpu.launch("dropout", [2, 1, 1], [64, 1, 1], 0, arguments);

    let words: Vec<u32> = (0..128).flat_map(|i| philox([i, 0, 0, 0], [42, 0])).collect();
    let want = values.iter().zip(words).map(|(value, word)| {
        let kept = word as f32 * 2f32.powi(-32) < 0.8;
        if kept { value / 0.8 } else { 0.0 }
    });
    assert_eq!(gpu.download::<f32>(&to), want.collect::<Vec<_>>());
}

#[test]
fn monte_carlo_pi() {
    let gpu = corpus("philox");
    let (throws, threads) = (40u32, 64u32);
    let hits = gpu.uninitialized(4 * 3);
    let arguments = arguments![hits, throws as i32];
    gpu.launch("darts", [3, 1, 1], [threads, 1, 1], 0, arguments);

    let inside = |thread: u32| {
        let rounds = (0..throws).map(|round| philox([thread, round, 7, 0], [1, 2]));
        let squares = rounds.map(|[x, y, ..]| u64::from(x >> 1).pow(2) + u64::from(y >> 1).pow(2));
        squares.filter(|sum| *sum < 1 << 62).count() as u32
    };
    let block = |first: u32| (first..first + threads).map(|thread| inside(thread) & 3).sum::<u32>();
    let want = [block(0), block(threads), block(2 * threads)];
    assert_eq!(gpu.download::<u32>(&hits), want);
}
