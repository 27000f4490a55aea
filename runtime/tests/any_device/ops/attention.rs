//! Attention on every device, compared with f64 on the CPU.

use crate::devices::{
    assert_close, devices, exact, gpu, numbered, part, reference, rounding, values,
};
use crate::processes;
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::{
    DType, Device, Tensor,
    ops::{self, AttentionMask, AttentionSequences},
};

/// Operands of attention, and a mask.
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: AttentionMask,
}

fn list(device: &Device, values: &[i64]) -> Tensor {
    Tensor::from_slice(device, &[values.len()], values).unwrap()
}

/// Ranges of keys, [B, T, 2].
fn ranges(device: &Device, rows: &[Vec<[i32; 2]>]) -> AttentionSequences {
    let shape = [rows.len(), rows[0].len(), 2];
    let bounds = rows.concat();
    AttentionSequences::Ranges(Tensor::from_slice(device, &shape, bounds.as_flattened()).unwrap())
}

/// The ranges of documents of these numbers of queries and keys. The queries of a document are at its
/// last positions.
fn documents(lengths: &[[i32; 2]]) -> Vec<[i32; 2]> {
    let (mut ranges, mut first) = (Vec::new(), 0);
    for [queries, keys] in lengths {
        let end = |at: i32| (first + keys - queries + at).max(first);
        ranges.extend((1..=*queries).map(|at| [first, end(at)]));
        first += keys;
    }
    ranges
}

/// Lengths that sum to `tokens`, from 1 on.
fn lengths(tokens: i32, seed: usize) -> Vec<[i32; 2]> {
    let mut left = tokens;
    let lengths = (seed..).map(|at| {
        let length = (1 + (at * at * 7 + 3 * seed) as i32 % 40).min(left);
        left -= length;
        [length; 2]
    });
    lengths.take_while(|[length, _]| *length > 0).collect()
}

/// A copy of the mask with its tensors on the CPU.
fn on_the_cpu(mask: &AttentionMask) -> AttentionMask {
    let to_cpu = |x: &Tensor| ops::to_device(x, reference()).unwrap();
    let sequences = match &mask.sequences {
        AttentionSequences::Rows => AttentionSequences::Rows,
        AttentionSequences::Cached { q_offset, k_len } => {
            AttentionSequences::Cached { q_offset: to_cpu(q_offset), k_len: to_cpu(k_len) }
        }
        AttentionSequences::Ranges(ranges) => AttentionSequences::Ranges(to_cpu(ranges)),
    };
    AttentionMask { sequences, ..mask.clone() }
}

/// q, k and v as slices of one projection [B, T, H + 2 G, D].
fn fused(
    device: &Device,
    dtype: DType,
    [batch, tokens]: [usize; 2],
    [heads, kv_heads]: [usize; 2],
    head_dim: usize,
) -> [Tensor; 3] {
    let all = heads + 2 * kv_heads;
    let qkv = numbered(device, &[batch, tokens, all, head_dim], dtype, 1.5);
    let part = |range| qkv.slice(2, range).unwrap();
    [part(0..heads), part(heads..heads + kv_heads), part(heads + kv_heads..all)]
}

/// Every kind of mask; fused, transposed and separate operands; head dims that are multiples of the
/// tile and ones that are not; no queries; no keys; no heads.
fn cases(device: &Device, dtype: DType) -> Vec<Case> {
    let causal = AttentionMask::causal;
    let window = |window| AttentionMask { window: Some(window), ..causal() };
    let at = |sequences| AttentionMask { sequences, ..causal() };
    let cached = at(AttentionSequences::Cached {
        q_offset: list(device, &[65, 3]),
        k_len: list(device, &[70, 8]),
    });
    // Documents of random lengths, some without queries or with more queries than keys.
    let some_empty = documents(&[[3, 5], [0, 4], [20, 7], [1, 1], [46, 58]]);
    let in_rows = at(ranges(device, &[some_empty, documents(&lengths(70, 3))]));
    // The last key of a tile is seen by the first query of the next tile alone, and the first key of a
    // tile by the last query of the tile before.
    let edges = [[[64, 63], [1, 1], [65, 66]], [[63, 64], [1, 1], [66, 65]]];
    let edges = ranges(device, &edges.map(|lengths| documents(&lengths)));
    let at_edges = AttentionMask { window: Some(6), ..at(edges) };

    let mut all = Vec::new();
    let mut add = |[q, k, v]: [Tensor; 3], mask| all.push(Case { q, k, v, mask });
    let of = |shape: [usize; 4], scale| numbered(device, &shape, dtype, scale);
    let separate = |[b, t, s]: [usize; 3], [h, g]: [usize; 2], d: usize| {
        [of([b, t, h, d], 1.5), of([b, s, g, d], 1.0), of([b, s, g, d], 2.0)]
    };

    add(fused(device, dtype, [2, 70], [4, 2], 16), causal());
    add(fused(device, dtype, [1, 9], [2, 1], 10), window(3));
    add(separate([1, 5, 70], [3, 3], 64), AttentionMask::default());
    add(separate([2, 5, 75], [2, 1], 24), cached.clone());
    add(separate([2, 70, 75], [4, 2], 8), in_rows.clone());
    add(separate([1, 3, 0], [2, 1], 8), causal());
    add(separate([1, 0, 3], [2, 1], 8), causal());
    add(separate([1, 3, 3], [0, 0], 8), causal());
    add(separate([1, 2, 3], [1, 1], 1), AttentionMask::default());

    // A window that excludes all keys, one without a causal mask, and one narrower than a tile.
    let both_sides = |window| AttentionMask { window: Some(window), ..AttentionMask::default() };
    add(separate([1, 3, 9], [2, 1], 8), both_sides(0));
    add(separate([1, 3, 135], [2, 1], 16), both_sides(5));
    add(separate([1, 80, 80], [2, 1], 64), window(5));
    // One position for all rows.
    let shared =
        AttentionSequences::Cached { q_offset: list(device, &[9]), k_len: list(device, &[65]) };
    add(
        separate([1, 1, 70], [2, 1], 16),
        AttentionMask { sequences: shared, ..Default::default() },
    );

    // The masks of several tiles on warpgroups (64, 128), and on CUDA cores in bf16 (10).
    let some_without_keys = at(AttentionSequences::Cached {
        q_offset: list(device, &[60, 3]),
        k_len: list(device, &[66, 0]),
    });
    for d in [10, 64] {
        add(separate([1, 70, 100], [2, 1], d), AttentionMask::default());
        add(separate([1, 67, 67], [2, 1], d), causal());
        add(separate([2, 5, 75], [2, 1], d), cached.clone());
        add(separate([2, 6, 70], [2, 1], d), some_without_keys.clone());
        add(separate([2, 70, 75], [2, 1], d), in_rows.clone());
        add(separate([2, 130, 130], [2, 1], d), at_edges.clone());
        add(separate([1, 3, 0], [2, 1], d), causal());
        add(separate([1, 3, 9], [2, 1], d), both_sides(0));
    }
    add(separate([2, 70, 75], [2, 2], 128), in_rows);

    let transposed = of([1, 2, 6, 8], 1.5).transpose(1, 2).unwrap();
    add([transposed.clone(), transposed.clone(), transposed.clone()], causal());
    let across = transposed.transpose(2, 3).unwrap();
    add([across.clone(), across.clone(), across], causal());
    all
}

/// Eight roundings to `dtype`, and at least 2e-5, because scores up to a few tens have an error of
/// a few ulps.
fn tolerance(dtype: DType) -> f64 {
    (8.0 * rounding(dtype)).max(2e-5)
}

#[test]
fn forward_and_gradients() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for case in cases(&device, dtype) {
                eprintln!("{:?} {:?} {:?}", case.q, case.k, case.mask);
                // With 0.4, the errors of longer heads are as large as the tolerance.
                let scale = if case.q.shape()[3] > 64 { 0.1 } else { 0.4 };
                check(&case, dtype, scale);
            }
        }
    }
}

/// Tiles have different shapes, on tensor cores and without.
#[test]
fn every_head_dim() {
    check_head_dims(&[1, 5, 16, 20, 24, 32, 40, 64, 70, 80, 128, 136, 192, 256]);
}

/// GPUs without products of warpgroups have other kernels for these dims.
#[test]
fn heads_on_an_a100() {
    if gpu().is_none_or(|gpu| gpu.to_string().starts_with("cuda")) {
        return;
    }
    let a100 = ("MESHGRAD_EMULATOR_DEVICES", "a100");
    processes::assert_pass(&["ops::attention::heads_of_64_and_128"], &[a100]);
}

#[test]
#[ignore = "started by heads_on_an_a100"]
fn heads_of_64_and_128() {
    check_head_dims(&[64, 128]);
}

fn check_head_dims(head_dims: &[usize]) {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            for &head_dim in head_dims {
                let [q, k, v] = [([20, 2], 1.5), ([70, 1], 1.0), ([70, 1], 2.0)].map(
                    |([tokens, heads], scale)| {
                        numbered(&device, &[1, tokens, heads, head_dim], dtype, scale)
                    },
                );
                eprintln!("{dtype} {head_dim} on {device}");
                let case = Case { q, k, v, mask: AttentionMask::causal() };
                check(&case, dtype, 1.0 / (head_dim as f64).sqrt());
            }
        }
    }
}

fn check(case: &Case, dtype: DType, scale: f64) {
    let Case { q, k, v, mask } = case;
    let (out, lse) = ops::attention(q, k, v, mask, scale).unwrap();
    assert_eq!((out.dtype(), lse.dtype()), (dtype, DType::F32));
    let (exact_q, exact_k, exact_v) = (exact(q), exact(k), exact(v));
    let exact_mask = on_the_cpu(mask);
    let (exact_out, exact_lse) =
        ops::attention(&exact_q, &exact_k, &exact_v, &exact_mask, scale).unwrap();
    assert_close(&out, &exact_out, tolerance(dtype), 1.0);
    assert_close(&lse, &exact_lse, 1e-5, 1.0);

    let dout = ops::cos(q).unwrap();
    let gradients = ops::attention_grad(q, k, v, &out, &lse, &dout, mask, scale).unwrap();
    let exact_dout = exact(&dout);
    let exact_gradients = ops::attention_grad(
        &exact_q,
        &exact_k,
        &exact_v,
        &exact_out,
        &exact_lse,
        &exact_dout,
        &exact_mask,
        scale,
    );
    assert_gradients(gradients, exact_gradients.unwrap(), dtype);

    let dlse = numbered(q.device(), lse.shape(), DType::F32, 0.5);
    let gradients = ops::attention_lse_grad(q, k, v, &out, &lse, &dout, &dlse, mask, scale);
    let exact_gradients = ops::attention_lse_grad(
        &exact_q,
        &exact_k,
        &exact_v,
        &exact_out,
        &exact_lse,
        &exact_dout,
        &exact(&dlse),
        &exact_mask,
        scale,
    );
    assert_gradients(gradients.unwrap(), exact_gradients.unwrap(), dtype);
}

fn assert_gradients(
    (dq, dk, dv): (Tensor, Tensor, Tensor),
    (exact_dq, exact_dk, exact_dv): (Tensor, Tensor, Tensor),
    dtype: DType,
) {
    for (found, expected) in [(dq, exact_dq), (dk, exact_dk), (dv, exact_dv)] {
        assert_close(&found, &expected, tolerance(dtype), largest(&expected));
    }
}

/// The queries of each rank have the results that they have in the whole sequence.
#[test]
fn queries_can_be_sharded_along_the_sequence() {
    let mesh = Mesh::new(&[3], &["cp"]).unwrap();
    for device in devices() {
        let shape = [2, 7, 2, 8];
        let [q, k] = [0.7, 1.3].map(|scale| numbered(&device, &shape, DType::F32, scale));
        let rows = AttentionMask { window: Some(4), ..AttentionMask::causal() };
        let cached = AttentionMask {
            sequences: AttentionSequences::Cached {
                q_offset: list(&device, &[0, 2]),
                k_len: list(&device, &[7, 5]),
            },
            ..rows.clone()
        };
        let in_rows = AttentionMask {
            sequences: ranges(
                &device,
                &[documents(&[[2; 2], [5; 2]]), documents(&[[4; 2], [3; 2]])],
            ),
            ..rows.clone()
        };
        for mask in [rows, cached, in_rows] {
            let (out, lse) = ops::attention(&q, &k, &k, &mask, 0.4).unwrap();
            let dlse = numbered(&device, lse.shape(), DType::F32, 0.9);
            let (dq, dk, dv) = whole_gradients(&q, &k, &mask, &dlse);
            let mut sums = [(); 2].map(|()| ops::mul(&dk, &zero()).unwrap());
            for rank in 0..3 {
                let part = |x: &Tensor, placement: Placement| {
                    let sharding = Sharding::new(&mesh, [("cp", placement)], x.shape()).unwrap();
                    part(x, &sharding, rank)
                };
                let mut own = mask.clone();
                match &mut own.sequences {
                    AttentionSequences::Rows => (),
                    AttentionSequences::Cached { q_offset, k_len } => {
                        *q_offset = part(q_offset, Placement::Replicate);
                        *k_len = part(k_len, Placement::Replicate);
                    }
                    AttentionSequences::Ranges(ranges) => {
                        *ranges = part(ranges, Placement::shard(1))
                    }
                }
                let (own_q, own_k) =
                    (part(&q, Placement::shard(1)), part(&k, Placement::Replicate));
                let (found, of_found) = ops::attention(&own_q, &own_k, &own_k, &own, 0.4).unwrap();
                let expected = part(&out, Placement::shard(1));
                assert_close(&found.local(), &expected.local(), rounding(DType::F32), 1.0);

                let dout = ops::cos(&own_q).unwrap();
                let own_dlse = part(&dlse, Placement::shard(2));
                let gradients = ops::attention_lse_grad(
                    &own_q, &own_k, &own_k, &found, &of_found, &dout, &own_dlse, &own, 0.4,
                );
                let (own_dq, own_dk, own_dv) = gradients.unwrap();
                let expected = part(&dq, Placement::shard(1));
                assert_close(&own_dq.local(), &expected.local(), 2e-5, 1.0);
                for (sum, own) in sums.iter_mut().zip([own_dk, own_dv]) {
                    *sum = ops::add(sum, &exact(&own.local())).unwrap();
                }
            }
            for (sum, expected) in sums.iter().zip([dk, dv]) {
                assert_close(sum, &expected, 2e-5, 1.0);
            }
        }
    }
}

fn zero() -> Tensor {
    ops::full(reference(), &[], DType::F64, 0.0).unwrap()
}

/// The gradients of q, k and v = k for dout = cos(q), in f64 on the CPU.
fn whole_gradients(
    q: &Tensor,
    k: &Tensor,
    mask: &AttentionMask,
    dlse: &Tensor,
) -> (Tensor, Tensor, Tensor) {
    let ([q, k, dlse], mask) = ([q, k, dlse].map(exact), on_the_cpu(mask));
    let (out, lse) = ops::attention(&q, &k, &k, &mask, 0.4).unwrap();
    let dout = ops::cos(&q).unwrap();
    ops::attention_lse_grad(&q, &k, &k, &out, &lse, &dout, &dlse, &mask, 0.4).unwrap()
}

/// The part of `x` that rank 1 of two has. Dim `dim` is sharded unevenly.
fn second_of_two(x: &Tensor, dim: usize) -> Tensor {
    let mesh = Mesh::new(&[2], &["cp"]).unwrap();
    let placement = Placement::shard(dim);
    let sharding = Sharding::new(&mesh, [("cp", placement)], x.shape()).unwrap();
    part(x, &sharding, 1)
}

fn replicated_of_two(x: &Tensor) -> Tensor {
    let mesh = Mesh::new(&[2], &["cp"]).unwrap();
    part(x, &Sharding::replicated(&mesh, x.shape()).unwrap(), 1)
}

/// A graph can contain neither a copy from the host nor positions that are computed there.
#[test]
fn attention_of_a_part_of_the_queries_can_be_captured() {
    let Some(device) = gpu() else { return };
    let q = second_of_two(&numbered(&device, &[2, 7, 2, 8], DType::F32, 0.7), 1);
    let k = replicated_of_two(&numbered(&device, &[2, 7, 2, 8], DType::F32, 1.3));
    let mask = AttentionMask::causal();
    let work = || -> meshgrad_runtime::Result<[Tensor; 4]> {
        let (out, lse) = ops::attention(&q, &k, &k, &mask, 0.4)?;
        let (dq, dk, dv) = ops::attention_lse_grad(&q, &k, &k, &out, &lse, &out, &lse, &mask, 0.4)?;
        Ok([out, dq, dk, dv])
    };
    let expected = work().unwrap();
    let mut graph = device.capture(work).unwrap();
    graph.launch().unwrap();
    for (found, expected) in graph.results().iter().zip(&expected) {
        assert_eq!(values(&found.local()), values(&expected.local()));
    }
}

/// Also above 2^24, up to which f32 represents every integer.
#[test]
fn positions_are_exact_integers() {
    for device in devices() {
        let [q, k] = [0.7, 1.3].map(|x| numbered(&device, &[1, 7, 1, 8], DType::F32, x));
        let mask = |list: &dyn Fn(&[i64]) -> Tensor| AttentionMask {
            causal: true,
            window: Some(1 << 24),
            sequences: AttentionSequences::Cached {
                q_offset: list(&[(1 << 24) - 3]),
                k_len: list(&[7]),
            },
        };
        let whole = mask(&|x| list(&device, x));
        let (expected, _) = ops::attention(&q, &k, &k, &whole, 0.4).unwrap();
        let own = mask(&|x| replicated_of_two(&list(&device, x)));
        let (own_q, own_k) = (second_of_two(&q, 1), replicated_of_two(&k));
        let (found, _) = ops::attention(&own_q, &own_k, &own_k, &own, 0.4).unwrap();
        let expected = second_of_two(&expected, 1).local();
        assert_eq!(values(&found.local()), values(&expected));
    }
}

/// The lse of a query without keys is minus infinity, whatever the operands are. Where a caller
/// subtracts two of them, its gradient is NaN.
#[test]
fn the_gradient_of_an_infinite_lse_is_not_used() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let [q, k] = [0.7, 1.3].map(|x| numbered(&device, &[2, 5, 2, 8], dtype, x));
            // The last query of row 0 and all queries of row 1 have no keys.
            let mask = AttentionMask {
                causal: true,
                window: Some(1),
                sequences: AttentionSequences::Cached {
                    q_offset: list(&device, &[1, 0]),
                    k_len: list(&device, &[5, 0]),
                },
            };
            let (out, lse) = ops::attention(&q, &k, &k, &mask, 0.4).unwrap();
            let has_keys: Vec<bool> = values(&lse).iter().map(|lse| lse.is_finite()).collect();
            assert!(has_keys.contains(&true) && has_keys.contains(&false));

            let gradients = |without_keys: f32| {
                let dlse = has_keys.iter().map(|has| if *has { 0.5 } else { without_keys });
                let dlse: Vec<f32> = dlse.collect();
                let dlse = Tensor::from_slice(&device, lse.shape(), &dlse).unwrap();
                let (dq, dk, dv) =
                    ops::attention_lse_grad(&q, &k, &k, &out, &lse, &q, &dlse, &mask, 0.4).unwrap();
                [dq, dk, dv].map(|x| values(&x))
            };
            let expected = gradients(0.0);
            assert!(expected.iter().flatten().all(|x| x.is_finite()));
            for without_keys in [f32::NAN, f32::NEG_INFINITY] {
                assert_eq!(gradients(without_keys), expected);
            }
        }
    }
}

/// The largest magnitude of an element, at least 1. Rounding errors are relative to it.
fn largest(x: &Tensor) -> f64 {
    values(x).iter().fold(1.0, |largest, x| x.abs().max(largest))
}

/// On the CPU the op returns the error. On a GPU the next synchronization does, because lengths are
/// in device memory.
#[test]
fn invalid_lengths_are_reported() {
    for device in devices() {
        let x = numbered(&device, &[1, 3, 1, 8], DType::F32, 1.0);
        let mask = AttentionMask {
            sequences: AttentionSequences::Cached {
                q_offset: list(&device, &[0]),
                k_len: list(&device, &[4]),
            },
            ..AttentionMask::default()
        };
        let out = ops::attention(&x, &x, &x, &mask, 1.0).and_then(|(out, _)| out.to_vec::<f32>());
        let message = out.err().unwrap().to_string();
        let expected = match device.is_gpu() {
            true => "attention: index 4 is outside of 0..4",
            false => "`k_len` is 4, but there are only 3 keys",
        };
        assert!(message.contains(expected), "{message}");
    }
}

/// Ranges out of range, and decreasing ones. On a GPU, results are finite.
#[test]
fn invalid_ranges_are_reported() {
    let lists = [
        (
            [[0, 1], [0, 6]],
            "index 6 is outside of 0..6",
            "the keys 0..6; a range must be within 0..5",
        ),
        ([[-2, 1], [0, 5]], "index -2 is outside of 0..6", "the keys -2..1; a range must be"),
        ([[0, 4], [0, 3]], "index -1 is outside of 0..6", "the keys 0..3 after 0..4; ranges must"),
    ];
    for (device, (bounds, on_gpu, on_cpu)) in
        devices().iter().flat_map(|device| lists.map(|list| (device, list)))
    {
        let [q, k] = [2, 5].map(|tokens| numbered(device, &[1, tokens, 1, 8], DType::F32, 1.0));
        let sequences = ranges(device, &[bounds.to_vec()]);
        let mask = AttentionMask { sequences, ..AttentionMask::default() };
        let error = match ops::attention(&q, &k, &k, &mask, 1.0) {
            Ok((out, _)) => {
                let error = out.to_vec::<f32>().unwrap_err();
                assert!(out.to_vec::<f32>().unwrap().iter().all(|x| x.is_finite()));
                error
            }
            Err(error) => error,
        };
        let expected = if device.is_gpu() { on_gpu } else { on_cpu };
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// Masks whose shapes do not match the operands are rejected on every device.
#[test]
fn invalid_masks_are_errors() {
    for device in devices() {
        let x = numbered(&device, &[2, 3, 1, 8], DType::F32, 1.0);
        let error = |x: &Tensor, sequences| {
            let mask = AttentionMask { sequences, ..AttentionMask::default() };
            ops::attention(x, x, x, &mask, 1.0).err().unwrap().to_string()
        };
        let cached = AttentionSequences::Cached {
            q_offset: list(&device, &[0, 0, 0]),
            k_len: list(&device, &[3]),
        };
        let wrong = error(&x, cached);
        assert!(wrong.contains("`q_offset` has 3 values; pass 1 value, or one per"), "{wrong}");

        let causal = vec![[0, 1], [0, 2], [0, 3]];
        let wrong = error(&x, ranges(&device, &[causal]));
        assert!(wrong.contains("`ranges` is i32 [1, 3, 2], but 2 rows of 3 queries"), "{wrong}");
        let wide = Tensor::from_slice(&device, &[2, 3, 2], &[0i64; 12]).unwrap();
        let wrong = error(&x, AttentionSequences::Ranges(wide));
        assert!(wrong.contains("`ranges` is i64 [2, 3, 2], but 2 rows of 3 queries"), "{wrong}");
    }
}

/// A rank with the head and the tail of the sequence has the bits of the whole. Its ranges begin in
/// the middle of documents, and its keys can be gathered from all ranks.
#[test]
fn head_and_tail_have_the_bits_of_the_whole() {
    let mesh = Mesh::new(&[2], &["cp"]).unwrap();
    for device in devices() {
        for (dtype, d) in [(DType::F32, 8), (DType::BF16, 64)] {
            let [q, k] = [0.7, 1.3].map(|x| numbered(&device, &[2, 140, 2, d], dtype, x));
            let rows = [documents(&lengths(140, 2)), documents(&[[100; 2], [40; 2]])];
            let AttentionSequences::Ranges(all) = ranges(&device, &rows) else { unreachable!() };
            for window in [None, Some(9)] {
                let of = |ranges| AttentionMask {
                    window,
                    sequences: AttentionSequences::Ranges(ranges),
                    causal: false,
                };
                let (out, lse) = ops::attention(&q, &k, &k, &of(all.clone()), 0.2).unwrap();
                let grad = |q: &Tensor, k: &Tensor, out: &Tensor, lse: &Tensor, ranges: Tensor| {
                    let mask = of(ranges);
                    ops::attention_grad(q, k, k, out, lse, q, &mask, 0.2).unwrap().0
                };
                let dq = grad(&q, &k, &out, &lse, all.clone());
                for rank in 0..2 {
                    let of_rank = |x: &Tensor| {
                        let placement = [("cp", Placement::head_and_tail(1))];
                        let sharding = Sharding::new(&mesh, placement, x.shape()).unwrap();
                        let parts = head_and_tail(rank).map(|it| x.slice(1, it).unwrap());
                        let own = ops::concat(&parts.each_ref(), 1).unwrap();
                        own.with_sharding(&sharding, rank).unwrap()
                    };
                    let own_k =
                        k.with_sharding(&Sharding::replicated(&mesh, k.shape()).unwrap(), rank);
                    let (own_q, own_k) = (of_rank(&q), own_k.unwrap());
                    let mask = of(of_rank(&all));
                    let (found, of_found) =
                        ops::attention(&own_q, &own_k, &own_k, &mask, 0.2).unwrap();
                    assert_eq!(values(&found.local()), values(&of_rank(&out).local()));
                    let found = grad(&own_q, &own_k, &found, &of_found, of_rank(&all));
                    assert_eq!(values(&found.local()), values(&of_rank(&dq).local()));
                }
            }
        }
    }
}

/// The queries of a rank of two, of 140.
fn head_and_tail(rank: usize) -> [std::ops::Range<usize>; 2] {
    let start = 35 * rank;
    [start..start + 35, 105 - start..140 - start]
}

/// A document in a row of documents has the results of the document alone: the same bits on a CPU.
#[test]
fn documents_in_a_row_equal_documents_alone() {
    for device in devices() {
        let lengths = [[37; 2], [1; 2], [70; 2], [22; 2]];
        let [q, k] = [0.7, 1.3].map(|x| numbered(&device, &[1, 130, 2, 8], DType::F32, x));
        let sequences = ranges(&device, &[documents(&lengths)]);
        let mask = AttentionMask { sequences, ..AttentionMask::default() };
        let (out, _) = ops::attention(&q, &k, &k, &mask, 0.4).unwrap();
        let mut start = 0;
        for [length, _] in lengths.map(|it| it.map(|length| length as usize)) {
            let document = |x: &Tensor| x.slice(1, start..start + length).unwrap();
            let (q, k) = (document(&q), document(&k));
            let (alone, _) = ops::attention(&q, &k, &k, &AttentionMask::causal(), 0.4).unwrap();
            match device.is_gpu() {
                true => assert_close(&document(&out), &exact(&alone), 1e-6, 1.0),
                false => assert_eq!(values(&document(&out)), values(&alone)),
            }
            start += length;
        }
    }
}

/// Documents and positions decide what a query sees, wherever tokens are: also in the keys of another
/// chunk, where a document begins before the chunk or ends after it.
#[test]
fn visible_keys_are_those_of_the_document_up_to_the_query() {
    // Documents 0, 2, 3 and 7, of which 3 lacks some positions. The last tokens are padding.
    let row: Vec<[i64; 2]> = [(0, 0..9), (2, 0..1), (3, 0..6), (3, 9..12), (7, 0..20), (9, 0..3)]
        .into_iter()
        .flat_map(|(document, positions)| positions.map(move |position| [document, position]))
        .collect();
    let other: Vec<[i64; 2]> = (0..42).map(|at| [at / 30, 5 + at % 30]).collect();
    for device in devices() {
        let [documents, positions] = [0, 1].map(|at| {
            let values: Vec<i64> = row.iter().chain(&other).map(|token| token[at]).collect();
            Tensor::from_slice(&device, &[2, 42], &values).unwrap()
        });
        let words = ops::token_words(&documents, &positions).unwrap();
        let chunks = [0..42, 0..21, 21..42, 5..6, 7..7];
        for (queries, keys) in chunks.iter().flat_map(|c| chunks.iter().map(move |k| (c, k))) {
            for window in [None, Some(0), Some(1), Some(4), Some(usize::MAX)] {
                let chunk =
                    |tokens: &std::ops::Range<usize>| words.slice(1, tokens.clone()).unwrap();
                let found = ops::visible_keys(&chunk(queries), &chunk(keys), window).unwrap();
                assert_eq!((found.dtype(), found.shape()[1]), (DType::I32, queries.len()));
                let mut expected = Vec::new();
                for row in [&row, &other] {
                    for [document, position] in &row[queries.clone()] {
                        let sees = |[d, p]: &[i64; 2]| {
                            let near =
                                window.is_none_or(|w| (position - p) < w.min(1 << 40) as i64);
                            d == document && p <= position && near
                        };
                        let keys = &row[keys.clone()];
                        let end = keys.iter().filter(|key| **key <= [*document, *position]).count();
                        let count = keys.iter().filter(|key| sees(key)).count();
                        expected.extend([end - count, end].map(|bound| bound as i32));
                    }
                }
                assert_eq!(
                    found.to_vec::<i32>().unwrap(),
                    expected,
                    "{queries:?} {keys:?} {window:?}"
                );
            }
        }
    }
}

#[test]
fn words_are_exact_and_their_limits_are_checked() {
    for device in devices() {
        let of = |values: [i64; 2]| Tensor::from_slice(&device, &[2], &values).unwrap();
        let words = |documents, positions| ops::token_words(&of(documents), &of(positions));
        let read = |documents, positions| words(documents, positions)?.to_vec::<i64>();
        let most = [(1 << 31) - 1, (1 << 32) - 1];
        assert_eq!(read([3, most[0]], [7, most[1]]).unwrap(), [(3 << 32) + 7, i64::MAX]);
        let refused = |documents, positions| read(documents, positions).unwrap_err().to_string();
        let (document, position) = (refused([1 << 31, 0], [0, 0]), refused([0, 0], [0, -1]));
        assert!(document.contains("token_words: index 2147483648"), "{document}");
        assert!(document.contains("is outside of 0..2147483648"), "{document}");
        assert!(position.contains("is outside of 0..4294967296"), "{position}");
    }
}

#[test]
fn keys_with_descending_words_are_errors_on_a_cpu() {
    let words = |values: [i64; 3]| Tensor::from_slice(reference(), &[1, 3], &values).unwrap();
    let (right, wrong) = (words([1, 1, 4]), words([1, 4, 3]));
    let refused = ops::visible_keys(&right, &wrong, None).unwrap_err().to_string();
    assert!(
        refused.contains("visible_keys: key 2 of row 0 is the word 3 after 4; sort"),
        "{refused}"
    );
    assert!(ops::visible_keys(&wrong, &right, None).is_ok());
}
