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

fn narrow(device: &Device, values: &[i32]) -> Tensor {
    Tensor::from_slice(device, &[values.len()], values).unwrap()
}

/// A copy of the mask with its tensors on the CPU.
fn on_the_cpu(mask: &AttentionMask) -> AttentionMask {
    let to_cpu = |x: &Tensor| ops::to_device(x, reference()).unwrap();
    let sequences = match &mask.sequences {
        AttentionSequences::Rows => AttentionSequences::Rows,
        AttentionSequences::Cached { q_offset, k_len } => {
            AttentionSequences::Cached { q_offset: to_cpu(q_offset), k_len: to_cpu(k_len) }
        }
        AttentionSequences::Packed { cu_seqlens_q, cu_seqlens_k } => AttentionSequences::Packed {
            cu_seqlens_q: to_cpu(cu_seqlens_q),
            cu_seqlens_k: to_cpu(cu_seqlens_k),
        },
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
    let packed = at(AttentionSequences::Packed {
        cu_seqlens_q: narrow(device, &[0, 3, 3, 70]),
        cu_seqlens_k: list(device, &[0, 5, 9, 75]),
    });

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
    add(separate([1, 70, 75], [2, 2], 8), packed.clone());
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
        add(separate([1, 70, 75], [2, 2], d), packed.clone());
        add(separate([1, 3, 0], [2, 1], d), causal());
        add(separate([1, 3, 9], [2, 1], d), both_sides(0));
    }
    add(separate([1, 70, 75], [2, 2], 128), packed);

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
        for mask in [rows, cached] {
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
                if let AttentionSequences::Cached { q_offset, k_len } = &mut own.sequences {
                    *q_offset = part(q_offset, Placement::Replicate);
                    *k_len = part(k_len, Placement::Replicate);
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

/// Offsets that do not cover all tokens are reported. On a GPU, results are finite and tokens after
/// the last offset are zero.
#[test]
fn invalid_offsets_are_reported() {
    let lists: [&[i64]; 3] = [&[0, 3], &[1, 5], &[0, 6]];
    for (device, offsets) in devices().iter().flat_map(|it| lists.map(|list| (it, list))) {
        let x = numbered(device, &[1, 5, 1, 8], DType::F32, 1.0);
        let mask = AttentionMask {
            sequences: AttentionSequences::Packed {
                cu_seqlens_q: list(device, offsets),
                cu_seqlens_k: list(device, offsets),
            },
            ..AttentionMask::default()
        };
        let out = ops::attention(&x, &x, &x, &mask, 1.0);
        let read = |out: Tensor| (out.to_vec::<f32>(), out);
        match out.map(|(out, _)| read(out)) {
            Ok((values, out)) => {
                assert!(values.is_err() && device.is_gpu(), "{offsets:?}");
                let out = out.to_vec::<f32>().unwrap();
                assert!(out.iter().all(|x| x.is_finite()));
                assert!(offsets != [0, 3] || out[24..].iter().all(|x| *x == 0.0));
            }
            Err(_) => assert!(!device.is_gpu(), "{offsets:?}"),
        }
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

        let packed = |of_queries: &[i64]| AttentionSequences::Packed {
            cu_seqlens_q: list(&device, of_queries),
            cu_seqlens_k: list(&device, &[0, 3]),
        };
        let wrong = error(&x, packed(&[0, 3]));
        assert!(wrong.contains("packed sequences require a batch of 1, not 2"), "{wrong}");
        let one = x.slice(0, 0..1).unwrap();
        let wrong = error(&one, packed(&[0, 1, 3]));
        let expected = "`cu_seqlens_q` has 2 sequences, but `cu_seqlens_k` has 1";
        assert!(wrong.contains(expected), "{wrong}");
    }
}
