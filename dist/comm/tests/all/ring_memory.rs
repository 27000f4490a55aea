//! The memory of a ring of ranks: linear in the tokens of a rank, whatever the number of ranks.

use std::sync::Arc;

use meshgrad_autograd::{Grads, Tape, Var, ops};
use meshgrad_comm::{Local, Plan, Rank, Result};
use meshgrad_mesh::Placement;
use meshgrad_runtime::{DType, Kind, Tensor};

use crate::ring::{ring, tokens};

/// Heads, key-value heads and features.
type Heads = [usize; 3];

/// Bytes of a forward and a backward pass on a rank with `own` tokens in two chunks, f32: the queries,
/// their gradients and the result, twice, and a chunk; keys and values with their stacked copy, those
/// that have arrived and those that arrive, and as many gradients; the log-sum-exp, and a chunk.
///
/// For chunks of at most 1,024 tokens, or at least 32 key-value heads: otherwise the backward pass of a
/// CPU sums the gradients of a head's keys in several parts.
fn formula(own: usize, [heads, kv_heads, features]: Heads) -> usize {
    let (queries, keys) = (heads * features, 2 * kv_heads * features);
    4 * own * (9 * queries + 16 * keys + 3 * heads) / 2
}

/// The bytes of a rank's keys and values.
fn keys_and_values(own: usize, [_, kv_heads, features]: Heads) -> usize {
    4 * own * 2 * kv_heads * features
}

/// The largest number of bytes that a rank has allocated in a forward and a backward pass over `count`
/// tokens of all ranks.
fn peak(rank: &dyn Rank, count: usize, [heads, kv_heads, features]: Heads) -> Result<usize> {
    let all = tokens(rank.world_size(), count, &Placement::head_and_tail(0));
    let (ring, group) = (Arc::new(ring(&all, rank.rank())), rank.world()?);
    let own = ring.keys[rank.rank()];
    let of = |heads: usize| {
        let shape = [1, own, heads, features];
        Tensor::zeros(rank.device(), &shape, DType::F32, Kind::Value)
    };
    let (qkv, dout) = ([of(heads)?, of(kv_heads)?, of(kv_heads)?], of(heads)?);
    let ((inputs, out), tape) = Tape::record(|| {
        let inputs = qkv.map(Var::input);
        let [q, k, v] = &inputs;
        let out = ops::ring_attention([q, k, v], &ring, 1.0, &group)?;
        Ok((inputs, out))
    })?;
    tape.backward_with(&[(&out, dout)], &inputs.each_ref(), &mut Grads::new(&[])?)?;
    Ok(rank.device().memory_stats().peak)
}

/// The peaks of all ranks.
fn on_meta(ranks: usize, count: usize, heads: Heads) -> Vec<usize> {
    let plan = Plan::new(ranks).unwrap();
    let peak_of = |rank| {
        let mut found = 0;
        let traced = plan.trace(rank, |rank| -> Result<()> {
            found = peak(rank, count, heads)?;
            Ok(())
        });
        traced.map(|_| found).unwrap()
    };
    (0..ranks).map(peak_of).collect()
}

/// Nothing grows with the square of the sequence, and no rank has all keys.
#[test]
fn memory_is_that_of_the_own_tokens() {
    for heads in [[64, 32, 16], [32, 32, 128]] {
        for (ranks, count) in [(4, 32_768), (8, 65_536), (8, 8192)] {
            let (expected, peaks) = (formula(count / ranks, heads), on_meta(ranks, count, heads));
            // The first and the last rank exchange gradients for fewer of their chunks.
            assert!(peaks.iter().all(|peak| *peak <= expected), "{peaks:?}");
            assert!(peaks[1..ranks - 2].iter().all(|peak| *peak == expected), "{peaks:?}");
        }
    }
}

/// What arrives is copied, so that keys and values stand once more. Ranks 1 to 5 have chunks of at most
/// 1,024 tokens.
#[test]
fn ranks_measure_the_growth_of_the_formula() {
    const HEADS: Heads = [2, 1, 16];
    let peaks = [4096, 8192, 16_384].map(|count| {
        let peaks = Local::new(8).threads(1).launch(|rank| peak(rank, count, HEADS)).unwrap();
        let (expected, copy) = (formula(count / 8, HEADS), keys_and_values(count / 8, HEADS));
        println!("{count} tokens: {peaks:?}, formula {expected}");
        assert!(
            peaks[1..6].iter().all(|it| (expected..=expected + copy).contains(it)),
            "{peaks:?}"
        );
        peaks[1] as f64 / expected as f64
    });
    assert!(peaks[2] / peaks[0] < 1.01 && peaks[0] / peaks[2] < 1.01, "{peaks:?}");
}
