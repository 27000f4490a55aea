//! Laws of attention. The f64 reference evaluates the mask for each pair of query and key.

mod reference;

use std::panic::{AssertUnwindSafe, catch_unwind};

use approx::{assert_relative_eq, relative_eq};
use half::bf16;

use super::*;
use crate::threads::with_threads;
use reference::*;

/// Lengths around the sizes of strips and blocks.
const LENGTHS: [usize; 7] = [1, 2, 7, 63, 64, 65, 130];

const HEAD_DIMS: [usize; 7] = [1, 8, 20, 32, 64, 80, 128];

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Asserts that the norm of each result's error, relative to the result's norm, is at most
/// `tolerance`.
fn assert_near<E: Number>(case: &Case, tolerance: f64) {
    let x = Operands::<E>::random(case);
    let actual = attend(case, &x);
    let expected = reference(case, &x.values());

    for ((name, actual), (_, expected)) in actual.elements().into_iter().zip(expected.elements()) {
        let difference: Vec<_> = actual
            .iter()
            .zip(expected)
            .map(|(actual, expected)| actual.value() - expected)
            .collect();
        let error = norm(&difference);
        assert!(
            error <= tolerance * norm(expected) + 1e-30,
            "{name} has error {error} in {case:?}"
        );
    }
    for (actual, expected) in actual.lse().into_iter().zip(&expected.lse) {
        let tolerance = 1e-5_f64.max(tolerance * 1e-2);
        let near = relative_eq!(actual, *expected, epsilon = tolerance, max_relative = tolerance);
        assert!(near, "lse {actual}, not {expected}, in {case:?}");
    }
}

fn assert_same_bits<E: Number>(name: &str, a: &[E], b: &[E], what: &impl std::fmt::Debug) {
    let same = a.iter().map(|x| x.bits()).eq(b.iter().map(|x| x.bits()));
    assert!(same, "{name} differs in {what:?}");
}

#[test]
fn every_shape_equals_the_definition() {
    let mut count = 0;
    for queries in LENGTHS {
        for keys in LENGTHS {
            for head_dim in HEAD_DIMS {
                let case = Case::new(queries, keys, [1, 2, 4][count % 3], head_dim);
                assert_near::<f32>(&case.masked(count / 3 + count), 1e-5);
                count += 1;
            }
        }
    }
}

#[test]
fn every_mask_equals_the_definition() {
    for group in [1, 2, 3, 4, 40] {
        for kind in 0..6 {
            let case = Case::new(65, 130, group, 20).masked(kind);
            assert_near::<f64>(&case, 1e-13);
            assert_near::<f32>(&case, 3e-6);
        }

        let lengths = [(7, 7), (0, 3), (64, 64), (5, 70), (0, 0), (9, 2), (1, 65)];
        let documents = Case::documents(&lengths, group, 20);
        assert_near::<f64>(&documents, 1e-13);
        assert_near::<f32>(&documents.window(6), 3e-6);
    }
}

/// Ranges of two rows that begin where they want, as long as they do not decrease: empty ones, gaps,
/// and ranges that overlap.
#[test]
fn any_ranges_equal_the_definition() {
    for (seed, (queries, keys)) in (1..).zip([(1, 5), (70, 64), (65, 200), (130, 0), (33, 7)]) {
        let steps = random(4 * queries, seed);
        let bounds = steps.chunks(2).enumerate().map(|(at, step)| {
            let (row, t) = (at / queries, at % queries);
            let start = t * keys / queries / (1 + row);
            [start, start + (step[0].abs() * 3.0) as usize]
        });
        // Each bound is raised to the one before it.
        let mut ranges: Vec<[usize; 2]> = bounds.collect();
        for row in ranges.chunks_mut(queries) {
            for at in 1..row.len() {
                let [first, end] = row[at - 1];
                row[at] = [row[at][0].max(first), row[at][1].max(end)];
            }
        }
        let ranges = ranges.as_flattened().iter().map(|key| (*key).min(keys) as i32);
        let mut case = Case::new(queries, keys, 1 + seed as usize % 2, 20);
        case.set_ranges(ranges.collect());
        assert_near::<f64>(&case, 1e-13);
        assert_near::<f64>(&case.window(5), 1e-13);
    }
}

/// The sequences are so long that the queries of a head are split into slabs.
#[test]
fn long_sequences_equal_the_definition() {
    let mut case = Case::new(2100, 2100, 1, 8).causal();
    case.shape = Shape { batch: 1, heads: 1, kv_heads: 1, ..case.shape };
    assert!(backward_workspace(&case.shape) > 2 * 2 * 2100 * 16);
    assert_near::<f32>(&case, 3e-6);

    let mut documents = Case::documents(&[(900, 900), (1130, 1130), (70, 70)], 1, 8);
    documents.shape = Shape { heads: 1, kv_heads: 1, ..documents.shape };
    assert_near::<f32>(&documents, 3e-6);
}

/// Scores of several hundred must neither overflow nor underflow to an empty row.
#[test]
fn large_scores_do_not_overflow() {
    let case = Case::new(65, 65, 2, 32).causal();
    let mut x = Operands::<f32>::random(&case);
    x.q.iter_mut().for_each(|q| *q *= 300.0);

    let (actual, expected) = (attend(&case, &x), reference(&case, &x.values()));
    for (actual, expected) in actual.out.iter().zip(&expected.out) {
        assert!((f64::from(*actual) - expected).abs() < 1e-3);
    }
}

/// The gradients of sum(out * dout) + sum(lse * dlse) equal central differences.
#[test]
fn gradients_equal_central_differences() {
    let loss = |case: &Case, x: &Operands<f64>| {
        let r = attend(case, x);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(&r.out, &x.dout) + dot(&r.lse, &x.dlse)
    };
    const STEP: f64 = 1e-5;

    let documents = Case::documents(&[(3, 3), (2, 4)], 2, 3);
    for case in [Case::new(4, 5, 2, 3), Case::new(5, 5, 1, 3).causal().window(2), documents] {
        let mut x = Operands::<f64>::random(&case);
        let actual = attend(&case, &x);

        type Field = fn(&mut Operands<f64>) -> &mut Vec<f64>;
        let fields: [(&[f64], Field); 3] =
            [(&actual.dq, |x| &mut x.q), (&actual.dk, |x| &mut x.k), (&actual.dv, |x| &mut x.v)];
        for (gradient, field) in fields {
            for (index, gradient) in gradient.iter().enumerate() {
                let mut shifted = |by: f64| {
                    field(&mut x)[index] += by;
                    let loss = loss(&case, &x);
                    field(&mut x)[index] -= by;
                    loss
                };
                let difference = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
                assert!((difference - gradient).abs() < 1e-8, "{difference} {gradient} {case:?}");
            }
        }
    }
}

/// bf16 has 8 bits of precision, so results are compared by direction and norm.
#[test]
fn bf16_keeps_angle_and_norm() {
    for case in [Case::new(130, 130, 2, 64).causal(), Case::new(65, 130, 4, 20).masked(2)] {
        let x = Operands::<bf16>::random(&case);
        let (actual, expected) = (attend(&case, &x), reference(&case, &x.values()));

        for ((name, actual), (_, expected)) in
            actual.elements().into_iter().zip(expected.elements())
        {
            let actual: Vec<_> = actual.iter().map(|x| x.value()).collect();
            let dot: f64 = actual.iter().zip(expected).map(|(a, b)| a * b).sum();
            let cosine = dot / (norm(&actual) * norm(expected));
            assert!(cosine > 1.0 - 1e-5, "{name}: cosine {cosine}");
            assert_relative_eq!(norm(&actual), norm(expected), max_relative = 1e-3);
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    fn check<E: Number>(case: &Case) {
        let x = Operands::<E>::random(case);
        let run = |threads| with_threads(threads, || attend(case, &x));

        let one = run(1);
        for threads in [2, 3, 8] {
            let many = run(threads);
            for ((name, one), (_, many)) in one.elements().into_iter().zip(many.elements()) {
                assert_same_bits(name, one, many, case);
            }
            assert!(one.lse() == many.lse());
        }
    }

    let case = Case::new(130, 200, 2, 20).masked(4);
    check::<f32>(&case);
    check::<bf16>(&case);
    check::<f64>(&case);
    check::<f32>(&Case::documents(&[(1100, 1100), (900, 900)], 1, 8));
}

/// Decoding with a cache gives the bits of the full forward pass, for any number of queries per
/// step. The keys of invalid cache entries are NaN here: reading one would change the result.
#[test]
fn cached_decoding_equals_full_forward() {
    fn check<E: Number>(full: &Case, step: usize) {
        let x = Operands::<E>::random(full);
        let expected = attend(full, &x);
        let Shape { batch, queries, heads, head_dim, .. } = full.shape;

        for start in (0..queries).step_by(step) {
            let (count, valid) = (step.min(queries - start), (start + step).min(queries));
            let mut case = full.clone().at(&[start], &[valid]);
            case.shape.queries = count;

            let mut cache = x.values();
            for (key, row) in cache.k.chunks_exact_mut(head_dim).enumerate() {
                if key / full.shape.kv_heads % full.shape.keys >= valid {
                    row.fill(f64::NAN);
                }
            }
            let of_k = full.shape.of_keys();
            let [k, v] =
                [&cache.k, &cache.v].map(|x| x.iter().map(|x| E::of(*x)).collect::<Vec<_>>());

            let mut out = vec![E::of(f64::NAN); case.query_len()];
            let mut lse = vec![E::of(f64::NAN).to_real(); case.rows()];
            let mut q = dense(&x.q, full.shape.of_queries());
            q.offset = start * heads * head_dim;
            let (k, v) = (dense(&k, of_k), dense(&v, of_k));
            let attention =
                Attention { shape: case.shape, q, k, v, mask: case.mask(), scale: full.scale() };
            attention.forward(&mut out, &mut lse).unwrap();

            for b in 0..batch {
                let len = count * heads * head_dim;
                let from = (b * queries + start) * heads * head_dim;
                assert_same_bits(
                    "out",
                    &out[b * len..][..len],
                    &expected.out[from..][..len],
                    &case,
                );

                for h in 0..heads {
                    let actual = &lse[(b * heads + h) * count..][..count];
                    let expected = &expected.lse[(b * heads + h) * queries + start..][..count];
                    assert!(actual == expected, "lse differs in {case:?}");
                }
            }
        }
    }

    for head_dim in [20, 64] {
        let full = Case::new(140, 140, 2, head_dim).causal();
        check::<f32>(&full, 1);
        check::<f32>(&full, 37);
        check::<bf16>(&full, 1);
        check::<f32>(&full.clone().window(70), 1);
    }
    check::<f64>(&Case::new(70, 70, 1, 8).causal(), 1);
    check::<f32>(&Case::new(70, 70, 3, 8).causal().window(9), 5);
}

/// Rows of documents have the bits of the documents alone, with and without a window.
#[test]
fn documents_in_a_row_equal_documents_alone() {
    for window in [48, usize::MAX] {
        documents_equal_documents_alone(window);
    }
}

fn documents_equal_documents_alone(window: usize) {
    let lengths = [(7, 7), (64, 64), (1, 1), (130, 130), (20, 50)];
    let row = Case::documents(&lengths, 2, 20).window(window);
    let x = Operands::<f32>::random(&row);
    let all = attend(&row, &x);

    let (mut query, mut key) = (0, 0);
    let Shape { heads, kv_heads, head_dim, queries: total, .. } = row.shape;
    for (queries, keys) in lengths {
        let mut one = Case::new(queries, keys, 2, head_dim).causal().window(window);
        one = one.at(&[keys - queries], &[keys]);
        one.shape.batch = 1;

        let of_q = query * heads * head_dim..(query + queries) * heads * head_dim;
        let of_k = key * kv_heads * head_dim..(key + keys) * kv_heads * head_dim;
        let of_lse = |h: usize| h * total + query..h * total + query + queries;
        let alone = attend(
            &one,
            &Operands {
                q: x.q[of_q.clone()].to_vec(),
                k: x.k[of_k.clone()].to_vec(),
                v: x.v[of_k.clone()].to_vec(),
                dout: x.dout[of_q.clone()].to_vec(),
                dlse: (0..heads).flat_map(|h| x.dlse[of_lse(h)].to_vec()).collect(),
            },
        );

        assert_same_bits("out", &all.out[of_q.clone()], &alone.out, &one);
        assert_same_bits("dq", &all.dq[of_q], &alone.dq, &one);
        assert_same_bits("dk", &all.dk[of_k.clone()], &alone.dk, &one);
        assert_same_bits("dv", &all.dv[of_k], &alone.dv, &one);
        let lse: Vec<_> = (0..heads).flat_map(|h| all.lse[of_lse(h)].to_vec()).collect();
        assert_same_bits("lse", &lse, &alone.lse, &one);

        (query, key) = (query + queries, key + keys);
    }
}

/// Operands can be views of one fused q, k and v projection.
#[test]
fn fused_views_equal_contiguous_operands() {
    let case = Case::new(67, 67, 2, 20).causal();
    let Shape { batch, queries, heads, kv_heads, head_dim, .. } = case.shape;
    let x = Operands::<f32>::random(&case);
    let expected = attend(&case, &x);

    let mut qkv = Vec::new();
    for token in 0..batch * queries {
        qkv.extend_from_slice(&x.q[token * heads * head_dim..][..heads * head_dim]);
        qkv.extend_from_slice(&x.k[token * kv_heads * head_dim..][..kv_heads * head_dim]);
        qkv.extend_from_slice(&x.v[token * kv_heads * head_dim..][..kv_heads * head_dim]);
    }
    let row = (heads + 2 * kv_heads) * head_dim;
    let view = |head: usize| Rows {
        data: &qkv,
        offset: head * head_dim,
        strides: [queries * row, row, head_dim],
    };

    let (q, k, v) = (view(0), view(heads), view(heads + kv_heads));
    let attention =
        Attention { shape: case.shape, q, k, v, mask: case.mask(), scale: case.scale() };
    let mut out = vec![f32::NAN; case.query_len()];
    let mut lse = vec![f32::NAN; case.rows()];
    attention.forward(&mut out, &mut lse).unwrap();

    assert_same_bits("out", &out, &expected.out, &case);
    assert_same_bits("lse", &lse, &expected.lse, &case);
}

#[test]
fn a_query_without_keys_gives_zero() {
    let empty = [
        Case::new(70, 0, 2, 8),
        Case::new(70, 70, 2, 8).at(&[0], &[0]),
        Case::new(3, 70, 2, 8).causal().window(4).at(&[500], &[70]),
        Case::new(5, 70, 2, 8).window(0).causal(),
        Case::documents(&[(70, 0)], 2, 8),
    ];
    for case in empty {
        let actual = attend(&case, &Operands::<f32>::random(&case));
        for (name, x) in actual.elements() {
            assert!(x.iter().all(|x| *x == 0.0), "{name} in {case:?}");
        }
        assert!(actual.lse.iter().all(|lse| *lse == f32::NEG_INFINITY));
    }
}

#[test]
fn wrong_arguments_are_errors() {
    let case = Case::new(4, 6, 2, 8);
    let x = Operands::<f32>::random(&case);
    let shape = case.shape;
    let good = Attention {
        shape,
        q: dense(&x.q, shape.of_queries()),
        k: dense(&x.k, shape.of_keys()),
        v: dense(&x.v, shape.of_keys()),
        mask: case.mask(),
        scale: 1.0,
    };
    let run = |attention: &Attention<f32>| {
        let mut out = vec![0.0; case.query_len()];
        attention.forward(&mut out, &mut vec![0.0; case.rows()])
    };
    let error = |attention: &Attention<f32>| run(attention).unwrap_err().to_string();
    let panic = |attention: &Attention<f32>| {
        let panic = catch_unwind(AssertUnwindSafe(|| run(attention))).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };

    let heads = Attention { shape: Shape { heads: 3, ..shape }, ..good };
    assert!(panic(&heads).contains("3 query heads are not a multiple of 2"));

    let long = Attention { shape: Shape { keys: 7, ..shape }, ..good };
    assert!(panic(&long).contains("`k`"));

    let far = Attention { q: Rows { strides: [usize::MAX, 1, 1], ..good.q }, ..good };
    assert!(panic(&far).contains("`q`"));

    let masked = |sequences| Attention { mask: Mask { sequences, ..good.mask }, ..good };
    let rows = |q_offset, k_len| masked(Sequences::Rows { q_offset, k_len });
    assert!(error(&rows(&[0], &[7])).contains("`k_len` is 7, but there are only 6 keys"));
    assert!(error(&rows(&[0, 0, 0], &[6])).contains("`q_offset` has 3 values"));

    let one = Shape { batch: 1, ..shape };
    let refused = |ranges: &[i32]| KeyRanges::new(ranges, &one).unwrap_err().to_string();
    let outside = refused(&[0, 1, 0, 2, 0, 7, 0, 7]);
    assert!(outside.contains("query 2 of row 0 has the keys 0..7; a range must be within 0..6"));
    assert!(refused(&[-1, 1, 0, 2, 0, 3, 0, 4]).contains("has the keys -1..1; a range"));
    assert!(refused(&[3, 2, 3, 3, 3, 3, 3, 3]).contains("has the keys 3..2; a range"));
    let first = refused(&[0, 1, 1, 2, 0, 3, 0, 4]);
    assert!(first.contains("query 2 of row 0 has the keys 0..3 after 1..2; ranges must not"));
    assert!(refused(&[0, 3, 0, 2, 0, 3, 0, 4]).contains("has the keys 0..2 after 0..3"));
}

/// A part of the queries has the bits of all of them, wherever it begins in a document.
#[test]
fn parts_of_the_queries_have_the_bits_of_the_whole() {
    let lengths = [(7, 7), (100, 100), (0, 9), (33, 33), (20, 5)];
    for window in [20, usize::MAX] {
        let whole = Case::documents(&lengths, 2, 20).window(window);
        let Owned::Ranges(ranges, _) = &whole.sequences else { unreachable!() };
        let x = Operands::<f32>::random(&whole);
        let all = attend(&whole, &x);
        let row = whole.shape.heads * whole.shape.head_dim;
        for part in [0..30, 30..31, 31..130, 130..160] {
            let mut case =
                Case { shape: Shape { queries: part.len(), ..whole.shape }, ..whole.clone() };
            case.set_ranges(ranges[2 * part.start..2 * part.end].to_vec());
            let of_q = part.start * row..part.end * row;
            let x = Operands {
                q: x.q[of_q.clone()].to_vec(),
                k: x.k.clone(),
                v: x.v.clone(),
                dout: x.dout[of_q.clone()].to_vec(),
                dlse: vec![0.5; case.rows()],
            };
            assert_same_bits("out", &attend(&case, &x).out, &all.out[of_q], &part);
        }
    }
}
