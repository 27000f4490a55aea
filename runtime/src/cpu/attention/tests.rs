//! Laws of attention, checked against a plain f64 reference that evaluates masks as a predicate.

use half::bf16;

use super::real::Real;
use super::*;
use crate::threads::with_threads;

/// Lengths around the sizes of strips and blocks.
const LENGTHS: [usize; 7] = [1, 2, 7, 63, 64, 65, 130];

const HEAD_DIMS: [usize; 7] = [1, 8, 20, 32, 64, 80, 128];

#[derive(Clone, Debug)]
enum Owned {
    Rows {
        q_offset: Vec<usize>,
        k_len: Vec<usize>,
    },
    Packed {
        q: Vec<i64>,
        k: Vec<i64>,
    },
}

/// A shape and a mask.
#[derive(Clone, Debug)]
struct Case {
    shape: Shape,
    causal: bool,
    window: Option<usize>,
    sequences: Owned,
}

impl Case {
    /// Batch 2, two key-value heads, all keys valid, no mask.
    fn new(queries: usize, keys: usize, group: usize, head_dim: usize) -> Self {
        let shape = Shape {
            batch: 2,
            queries,
            keys,
            heads: 2 * group,
            kv_heads: 2,
            head_dim,
        };
        let sequences = Owned::Rows {
            q_offset: vec![0],
            k_len: vec![keys],
        };
        Self {
            shape,
            causal: false,
            window: None,
            sequences,
        }
    }

    fn packed(lengths: &[(usize, usize)], group: usize, head_dim: usize) -> Self {
        let (mut q, mut k) = (vec![0], vec![0]);
        for (queries, keys) in lengths {
            q.push(q[q.len() - 1] + *queries as i64);
            k.push(k[k.len() - 1] + *keys as i64);
        }

        let (queries, keys) = (q[lengths.len()] as usize, k[lengths.len()] as usize);
        let mut case = Self::new(queries, keys, group, head_dim);
        case.shape.batch = 1;
        case.sequences = Owned::Packed { q, k };
        case
    }

    fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    fn window(mut self, window: usize) -> Self {
        self.window = Some(window);
        self
    }

    fn at(mut self, q_offset: &[usize], k_len: &[usize]) -> Self {
        self.sequences = Owned::Rows {
            q_offset: q_offset.to_vec(),
            k_len: k_len.to_vec(),
        };
        self
    }

    /// One of several masks, so that a sweep over shapes covers them all.
    fn masked(self, kind: usize) -> Self {
        let Shape { queries, keys, .. } = self.shape;
        match kind % 6 {
            0 => self,
            1 => self.causal(),
            2 => self.causal().window(1 + keys / 3),
            3 => self.window(5),
            4 => self
                .causal()
                .at(&[keys.saturating_sub(queries)], &[keys, keys.div_ceil(2)]),
            _ => self.at(&[0, 3], &[keys.div_ceil(3), 0]),
        }
    }

    fn mask(&self) -> Mask<'_> {
        let sequences = match &self.sequences {
            Owned::Rows { q_offset, k_len } => Sequences::Rows { q_offset, k_len },
            Owned::Packed { q, k } => Sequences::Packed {
                cu_seqlens_q: Offsets(q),
                cu_seqlens_k: Offsets(k),
            },
        };
        Mask {
            causal: self.causal,
            window: self.window,
            sequences,
        }
    }

    /// Whether query i attends to key j, by definition.
    fn attends(&self, b: usize, i: usize, j: usize) -> bool {
        let (position, key, valid) = match &self.sequences {
            Owned::Rows { q_offset, k_len } => {
                let position = q_offset[b.min(q_offset.len() - 1)] + i;
                (position as i64, j as i64, j < k_len[b.min(k_len.len() - 1)])
            }
            Owned::Packed { q, k } => {
                let of_query = q.iter().filter(|start| **start as usize <= i).count() - 1;
                let of_key = k.iter().filter(|start| **start as usize <= j).count() - 1;
                let queries = q[of_query + 1] - q[of_query];
                let keys = k[of_query + 1] - k[of_query];

                let position = i as i64 - q[of_query] + keys - queries;
                (position, j as i64 - k[of_key], of_query == of_key)
            }
        };

        let causal = !self.causal || key <= position;
        let window = self
            .window
            .is_none_or(|window| key > position - window as i64);
        valid && causal && window
    }

    fn scale(&self) -> f64 {
        1.0 / (self.shape.head_dim as f64).sqrt()
    }

    fn query_len(&self) -> usize {
        self.shape.of_queries().iter().product()
    }

    fn key_len(&self) -> usize {
        self.shape.of_keys().iter().product()
    }

    fn rows(&self) -> usize {
        self.shape.batch * self.shape.queries * self.shape.heads
    }
}

fn strides([_, t, h, d]: [usize; 4]) -> [usize; 3] {
    [t * h * d, h * d, d]
}

fn dense<T>(data: &[T], extents: [usize; 4]) -> Rows<'_, T> {
    Rows {
        data,
        offset: 0,
        strides: strides(extents),
    }
}

/// Numbers in [-1, 1) whose magnitudes are distributed like those of activations.
fn random(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..len)
        .map(|_| 2.0 * (next() + next() + next()) - 3.0)
        .collect()
}

/// Elements of any dtype, for generic tests.
trait Number: Element + PartialEq + std::fmt::Debug {
    fn of(x: f64) -> Self;
    fn value(self) -> f64;
    fn bits(self) -> u64;
    fn real_value(real: Self::Real) -> f64;
}

macro_rules! number {
    ($type:ty, $of:expr) => {
        impl Number for $type {
            fn of(x: f64) -> Self {
                $of(x)
            }
            fn value(self) -> f64 {
                f64::from(self)
            }
            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
            fn real_value(real: Self::Real) -> f64 {
                f64::from(real)
            }
        }
    };
}

number!(f64, |x| x);
number!(f32, |x| x as f32);
number!(bf16, bf16::from_f64);

/// Operands and gradients of outputs.
struct Operands<E> {
    q: Vec<E>,
    k: Vec<E>,
    v: Vec<E>,
    dout: Vec<E>,
    dlse: Vec<f64>,
}

impl<E: Number> Operands<E> {
    fn random(case: &Case) -> Self {
        let elements = |len, seed| random(len, seed).into_iter().map(E::of).collect();
        Self {
            q: elements(case.query_len(), 1),
            k: elements(case.key_len(), 2),
            v: elements(case.key_len(), 3),
            dout: elements(case.query_len(), 4),
            dlse: random(case.rows(), 5),
        }
    }

    fn values(&self) -> Operands<f64> {
        let values = |x: &[E]| x.iter().map(|x| x.value()).collect();
        Operands {
            q: values(&self.q),
            k: values(&self.k),
            v: values(&self.v),
            dout: values(&self.dout),
            dlse: self.dlse.clone(),
        }
    }
}

/// All results of attention.
struct Results<E: Element> {
    out: Vec<E>,
    lse: Vec<E::Real>,
    dq: Vec<E>,
    dk: Vec<E>,
    dv: Vec<E>,
}

impl<E: Number> Results<E> {
    fn elements(&self) -> [(&'static str, &[E]); 4] {
        [
            ("out", &self.out),
            ("dq", &self.dq),
            ("dk", &self.dk),
            ("dv", &self.dv),
        ]
    }

    fn lse(&self) -> Vec<f64> {
        self.lse.iter().map(|x| E::real_value(*x)).collect()
    }
}

/// Forward and backward. Outputs are initialized to NaN to detect elements that are not written.
fn attend<E: Number>(case: &Case, x: &Operands<E>) -> Results<E> {
    let shape = case.shape;
    let attention = Attention {
        shape,
        q: dense(&x.q, shape.of_queries()),
        k: dense(&x.k, shape.of_keys()),
        v: dense(&x.v, shape.of_keys()),
        mask: case.mask(),
        scale: case.scale(),
    };

    let nan = E::of(f64::NAN);
    let [mut out, mut dq] = [(); 2].map(|()| vec![nan; case.query_len()]);
    let [mut dk, mut dv] = [(); 2].map(|()| vec![nan; case.key_len()]);
    let mut lse = vec![nan.to_real(); case.rows()];
    attention.forward(&mut out, &mut lse).unwrap();

    let dlse: Vec<_> = x.dlse.iter().map(|x| E::Real::from_f64(*x)).collect();
    let saved = Saved {
        out: dense(&out, shape.of_queries()),
        lse: &lse,
        dout: dense(&x.dout, shape.of_queries()),
        dlse: Some(&dlse),
    };
    let mut workspace = vec![nan.to_real(); backward_workspace(&shape)];
    let gradients = Gradients {
        dq: &mut dq,
        dk: &mut dk,
        dv: &mut dv,
    };
    attention
        .backward(&saved, gradients, &mut workspace)
        .unwrap();

    Results {
        out,
        lse,
        dq,
        dk,
        dv,
    }
}

/// The definition, one row at a time.
fn reference(case: &Case, x: &Operands<f64>) -> Results<f64> {
    let Shape {
        batch,
        queries,
        keys,
        heads,
        head_dim,
        ..
    } = case.shape;
    let [of_q, of_k] = [case.shape.of_queries(), case.shape.of_keys()];
    let at = |extents, [b, t, h]: [usize; 3]| {
        let [by_b, by_t, by_h] = strides(extents);
        b * by_b + t * by_t + h * by_h..b * by_b + t * by_t + h * by_h + head_dim
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let add = |to: &mut [f64], factor: f64, x: &[f64]| {
        to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
    };

    let mut r = Results {
        out: vec![0.0; case.query_len()],
        lse: vec![f64::NEG_INFINITY; case.rows()],
        dq: vec![0.0; case.query_len()],
        dk: vec![0.0; case.key_len()],
        dv: vec![0.0; case.key_len()],
    };
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for i in 0..queries {
            let row = at(of_q, [b, i, h]);
            let seen: Vec<_> = (0..keys)
                .filter(|j| case.attends(b, i, *j))
                .map(|j| at(of_k, [b, j, h / case.shape.group()]))
                .collect();
            if seen.is_empty() {
                continue;
            }

            let q = &x.q[row.clone()];
            let scores: Vec<_> = seen
                .iter()
                .map(|key| case.scale() * dot(q, &x.k[key.clone()]))
                .collect();
            let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - maximum).exp()).sum();
            let lse = maximum + sum.ln();
            let weights: Vec<_> = scores.iter().map(|score| (score - lse).exp()).collect();

            let index = (b * heads + h) * queries + i;
            r.lse[index] = lse;
            for (key, weight) in seen.iter().zip(&weights) {
                add(&mut r.out[row.clone()], *weight, &x.v[key.clone()]);
            }

            let dout = &x.dout[row.clone()];
            let delta = dot(&r.out[row.clone()], dout) - x.dlse[index];
            for (key, weight) in seen.iter().zip(&weights) {
                let dscore = weight * (dot(dout, &x.v[key.clone()]) - delta) * case.scale();
                add(&mut r.dv[key.clone()], *weight, dout);
                add(&mut r.dk[key.clone()], dscore, q);
                add(&mut r.dq[row.clone()], dscore, &x.k[key.clone()]);
            }
        }
    }
    r
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Asserts that |actual - expected| / |expected| of each result is at most `tolerance`.
fn assert_near<E: Number>(case: &Case, tolerance: f64) {
    let x = Operands::<E>::random(case);
    let got = attend(case, &x);
    let want = reference(case, &x.values());

    for ((name, got), (_, want)) in got.elements().into_iter().zip(want.elements()) {
        let difference: Vec<_> = got
            .iter()
            .zip(want)
            .map(|(got, want)| got.value() - want)
            .collect();
        let error = norm(&difference);
        assert!(
            error <= tolerance * norm(want) + 1e-30,
            "{name} has error {error} in {case:?}"
        );
    }
    for (got, want) in got.lse().into_iter().zip(&want.lse) {
        let near = (got - want).abs() <= 1e-5_f64.max(tolerance * 1e-2) * want.abs().max(1.0);
        assert!(got == *want || near, "lse {got}, not {want}, in {case:?}");
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
        let packed = Case::packed(&lengths, group, 20);
        assert_near::<f64>(&packed, 1e-13);
        assert_near::<f32>(&packed.clone().causal(), 3e-6);
        assert_near::<f32>(&packed.causal().window(6), 3e-6);
    }
}

/// Long enough that the queries of a head are split into slabs.
#[test]
fn long_sequences_equal_the_definition() {
    let mut case = Case::new(2100, 2100, 1, 8).causal();
    case.shape = Shape {
        batch: 1,
        heads: 1,
        kv_heads: 1,
        ..case.shape
    };
    assert!(backward_workspace(&case.shape) > 2 * 2 * 2100 * 16);
    assert_near::<f32>(&case, 3e-6);

    let mut packed = Case::packed(&[(900, 900), (1130, 1130), (70, 70)], 1, 8).causal();
    packed.shape = Shape {
        heads: 1,
        kv_heads: 1,
        ..packed.shape
    };
    assert_near::<f32>(&packed, 3e-6);
}

/// Scores of several hundred must neither overflow nor underflow to an empty row.
#[test]
fn large_scores_do_not_overflow() {
    let case = Case::new(65, 65, 2, 32).causal();
    let mut x = Operands::<f32>::random(&case);
    x.q.iter_mut().for_each(|q| *q *= 300.0);

    let (got, want) = (attend(&case, &x), reference(&case, &x.values()));
    for (got, want) in got.out.iter().zip(&want.out) {
        assert!((f64::from(*got) - want).abs() < 1e-3);
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

    let packed = Case::packed(&[(3, 3), (2, 4)], 2, 3).causal();
    for case in [
        Case::new(4, 5, 2, 3),
        Case::new(5, 5, 1, 3).causal().window(2),
        packed,
    ] {
        let mut x = Operands::<f64>::random(&case);
        let got = attend(&case, &x);

        type Field = fn(&mut Operands<f64>) -> &mut Vec<f64>;
        let fields: [(&[f64], Field); 3] = [
            (&got.dq, |x| &mut x.q),
            (&got.dk, |x| &mut x.k),
            (&got.dv, |x| &mut x.v),
        ];
        for (gradient, field) in fields {
            for (index, gradient) in gradient.iter().enumerate() {
                let mut shifted = |by: f64| {
                    field(&mut x)[index] += by;
                    let loss = loss(&case, &x);
                    field(&mut x)[index] -= by;
                    loss
                };
                let difference = (shifted(STEP) - shifted(-STEP)) / (2.0 * STEP);
                assert!(
                    (difference - gradient).abs() < 1e-8,
                    "{difference} {gradient} {case:?}"
                );
            }
        }
    }
}

/// bf16 has 8 bits: results match the exact ones in direction and norm.
#[test]
fn bf16_keeps_angle_and_norm() {
    for case in [
        Case::new(130, 130, 2, 64).causal(),
        Case::new(65, 130, 4, 20).masked(2),
    ] {
        let x = Operands::<bf16>::random(&case);
        let (got, want) = (attend(&case, &x), reference(&case, &x.values()));

        for ((name, got), (_, want)) in got.elements().into_iter().zip(want.elements()) {
            let got: Vec<_> = got.iter().map(|x| x.value()).collect();
            let dot: f64 = got.iter().zip(want).map(|(a, b)| a * b).sum();
            let cosine = dot / (norm(&got) * norm(want));
            assert!(cosine > 1.0 - 1e-5, "{name}: cosine {cosine}");
            assert!((norm(&got) / norm(want) - 1.0).abs() < 1e-3, "{name}");
        }
    }
}

/// The number of threads does not change any bit.
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
    check::<f32>(&Case::packed(&[(1100, 1100), (900, 900)], 1, 8).causal());
}

/// Decoding with a cache gives the bits of the full forward pass, for any division of the queries.
/// Invalid cache entries are never read.
#[test]
fn cached_decoding_equals_full_forward() {
    fn check<E: Number>(full: &Case, step: usize) {
        let x = Operands::<E>::random(full);
        let want = attend(full, &x);
        let Shape {
            batch,
            queries,
            heads,
            head_dim,
            ..
        } = full.shape;

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
            let attention = Attention {
                shape: case.shape,
                q,
                k,
                v,
                mask: case.mask(),
                scale: full.scale(),
            };
            attention.forward(&mut out, &mut lse).unwrap();

            for b in 0..batch {
                let len = count * heads * head_dim;
                let from = (b * queries + start) * heads * head_dim;
                assert_same_bits(
                    "out",
                    &out[b * len..][..len],
                    &want.out[from..][..len],
                    &case,
                );

                for h in 0..heads {
                    let got = &lse[(b * heads + h) * count..][..count];
                    let want = &want.lse[(b * heads + h) * queries + start..][..count];
                    assert!(got == want, "lse differs in {case:?}");
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

/// Packing sequences does not change any bit of their results.
#[test]
fn packed_equals_separate() {
    let lengths = [(7, 7), (64, 64), (1, 1), (130, 130), (20, 50)];
    let packed = Case::packed(&lengths, 2, 20).causal().window(48);
    let x = Operands::<f32>::random(&packed);
    let all = attend(&packed, &x);

    let (mut query, mut key) = (0, 0);
    let Shape {
        heads,
        kv_heads,
        head_dim,
        queries: total,
        ..
    } = packed.shape;
    for (queries, keys) in lengths {
        let mut one = Case::new(queries, keys, 2, head_dim).causal().window(48);
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
                dlse: (0..heads)
                    .flat_map(|h| x.dlse[of_lse(h)].to_vec())
                    .collect(),
            },
        );

        assert_same_bits("out", &all.out[of_q.clone()], &alone.out, &one);
        assert_same_bits("dq", &all.dq[of_q], &alone.dq, &one);
        assert_same_bits("dk", &all.dk[of_k.clone()], &alone.dk, &one);
        assert_same_bits("dv", &all.dv[of_k], &alone.dv, &one);
        let lse: Vec<_> = (0..heads)
            .flat_map(|h| all.lse[of_lse(h)].to_vec())
            .collect();
        assert_same_bits("lse", &lse, &alone.lse, &one);

        (query, key) = (query + queries, key + keys);
    }
}

/// Operands can be views of one fused projection.
#[test]
fn fused_views_equal_contiguous_operands() {
    let case = Case::new(67, 67, 2, 20).causal();
    let Shape {
        batch,
        queries,
        heads,
        kv_heads,
        head_dim,
        ..
    } = case.shape;
    let x = Operands::<f32>::random(&case);
    let want = attend(&case, &x);

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
    let attention = Attention {
        shape: case.shape,
        q,
        k,
        v,
        mask: case.mask(),
        scale: case.scale(),
    };
    let mut out = vec![f32::NAN; case.query_len()];
    let mut lse = vec![f32::NAN; case.rows()];
    attention.forward(&mut out, &mut lse).unwrap();

    assert_same_bits("out", &out, &want.out, &case);
    assert_same_bits("lse", &lse, &want.lse, &case);
}

#[test]
fn a_query_without_keys_gives_zero() {
    let empty = [
        Case::new(70, 0, 2, 8),
        Case::new(70, 70, 2, 8).at(&[0], &[0]),
        Case::new(3, 70, 2, 8).causal().window(4).at(&[500], &[70]),
        Case::new(5, 70, 2, 8).window(0).causal(),
        Case::packed(&[(70, 0)], 2, 8),
    ];
    for case in empty {
        let got = attend(&case, &Operands::<f32>::random(&case));
        for (name, x) in got.elements() {
            assert!(x.iter().all(|x| *x == 0.0), "{name} in {case:?}");
        }
        assert!(got.lse.iter().all(|lse| *lse == f32::NEG_INFINITY));
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
    let error = |attention: &Attention<f32>| {
        let mut out = vec![0.0; case.query_len()];
        attention
            .forward(&mut out, &mut vec![0.0; case.rows()])
            .unwrap_err()
            .to_string()
    };

    let heads = Attention {
        shape: Shape { heads: 3, ..shape },
        ..good
    };
    assert!(error(&heads).contains("3 query heads are not a multiple of 2"));

    let long = Attention {
        shape: Shape { keys: 7, ..shape },
        ..good
    };
    assert!(error(&long).contains("`k`"));

    let far = Attention {
        q: Rows {
            strides: [usize::MAX, 1, 1],
            ..good.q
        },
        ..good
    };
    assert!(error(&far).contains("`q`"));

    let masked = |sequences| Attention {
        mask: Mask {
            sequences,
            ..good.mask
        },
        ..good
    };
    let rows = |q_offset, k_len| masked(Sequences::Rows { q_offset, k_len });
    assert!(error(&rows(&[0], &[7])).contains("`k_len` is 7, but there are only 6 keys"));
    assert!(error(&rows(&[0, 0, 0], &[6])).contains("`q_offset` has 3 values"));

    let offsets = Offsets(&[0, 4]);
    let packed = masked(Sequences::Packed {
        cu_seqlens_q: offsets,
        cu_seqlens_k: offsets,
    });
    assert!(error(&packed).contains("batch of 1, not 2"));

    let one = Shape { batch: 1, ..shape };
    assert!(
        error(&Attention {
            shape: one,
            ..packed
        })
        .contains("`cu_seqlens_k` must be non-decreasing")
    );
}
