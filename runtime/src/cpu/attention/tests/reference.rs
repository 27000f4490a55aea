//! Cases of attention, their random operands, and the f64 reference.

use half::bf16;

use super::super::real::Real;
use super::super::*;

#[derive(Clone, Debug)]
pub(super) enum Owned {
    Rows {
        q_offset: Vec<usize>,
        k_len: Vec<usize>,
    },
    /// The first key and the end of each query, [B, T, 2], and their runs.
    Ranges(Vec<i32>, KeyRanges),
}

/// A shape and a mask.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) shape: Shape,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
    pub(super) sequences: Owned,
}

impl Case {
    /// Batch 2, two key-value heads, all keys valid, no mask.
    pub(super) fn new(queries: usize, keys: usize, group: usize, head_dim: usize) -> Self {
        let shape = Shape {
            batch: 2,
            queries,
            keys,
            heads: 2 * group,
            kv_heads: 2,
            head_dim,
            first_query: 0,
        };
        let sequences = Owned::Rows { q_offset: vec![0], k_len: vec![keys] };
        Self { shape, causal: false, window: None, sequences }
    }

    /// Documents in one row, of these numbers of queries and keys. The queries of a document are at
    /// its last positions.
    pub(super) fn documents(lengths: &[(usize, usize)], group: usize, head_dim: usize) -> Self {
        let (mut ranges, mut first) = (Vec::new(), 0);
        for (queries, keys) in lengths {
            let ends = (1..=*queries).map(|at| (first + at + keys).saturating_sub(*queries));
            ranges.extend(ends.flat_map(|end| [first, end.max(first)].map(|key| key as i32)));
            first += keys;
        }
        let mut case = Self::new(ranges.len() / 2, first, group, head_dim);
        case.shape.batch = 1;
        case.set_ranges(ranges);
        case
    }

    /// The keys of each query are in these ranges, [B, T, 2].
    pub(super) fn set_ranges(&mut self, ranges: Vec<i32>) {
        let runs = KeyRanges::new(&ranges, &self.shape).unwrap();
        self.sequences = Owned::Ranges(ranges, runs);
    }

    pub(super) fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    pub(super) fn window(mut self, window: usize) -> Self {
        self.window = Some(window);
        self
    }

    pub(super) fn at(mut self, q_offset: &[usize], k_len: &[usize]) -> Self {
        self.sequences = Owned::Rows { q_offset: q_offset.to_vec(), k_len: k_len.to_vec() };
        self
    }

    /// One of six masks, selected by `kind`, so that a sweep over shapes covers them all.
    pub(super) fn masked(self, kind: usize) -> Self {
        let Shape { queries, keys, .. } = self.shape;
        match kind % 6 {
            0 => self,
            1 => self.causal(),
            2 => self.causal().window(1 + keys / 3),
            3 => self.window(5),
            4 => self.causal().at(&[keys.saturating_sub(queries)], &[keys, keys.div_ceil(2)]),
            _ => self.at(&[0, 3], &[keys.div_ceil(3), 0]),
        }
    }

    pub(super) fn mask(&self) -> Mask<'_> {
        let sequences = match &self.sequences {
            Owned::Rows { q_offset, k_len } => Sequences::Rows { q_offset, k_len },
            Owned::Ranges(_, ranges) => Sequences::Ranges(ranges),
        };
        Mask { causal: self.causal, window: self.window, sequences }
    }

    /// Whether query i attends to key j, by the definition of the mask.
    pub(super) fn attends(&self, b: usize, i: usize, j: usize) -> bool {
        let (position, key, valid) = match &self.sequences {
            Owned::Rows { q_offset, k_len } => {
                let position = q_offset[b.min(q_offset.len() - 1)] + i;
                (position as i64, j as i64, j < k_len[b.min(k_len.len() - 1)])
            }
            Owned::Ranges(ranges, _) => {
                let at = 2 * (b * self.shape.queries + i);
                let [first, end] = [ranges[at], ranges[at + 1]].map(i64::from);
                (end - 1, j as i64, (first..end).contains(&(j as i64)))
            }
        };

        let causal = !self.causal || key <= position;
        let window = self.window.is_none_or(|window| key > position - window as i64);
        valid && causal && window
    }

    pub(super) fn scale(&self) -> f64 {
        1.0 / (self.shape.head_dim as f64).sqrt()
    }

    pub(super) fn query_len(&self) -> usize {
        self.shape.of_queries().iter().product()
    }

    pub(super) fn key_len(&self) -> usize {
        self.shape.of_keys().iter().product()
    }

    pub(super) fn rows(&self) -> usize {
        self.shape.batch * self.shape.queries * self.shape.heads
    }
}

pub(super) fn strides([_, t, h, d]: [usize; 4]) -> [usize; 3] {
    [t * h * d, h * d, d]
}

pub(super) fn dense<T>(data: &[T], extents: [usize; 4]) -> Rows<'_, T> {
    Rows { data, offset: 0, strides: strides(extents) }
}

/// Sums of three uniform numbers, in [-3, 3), which are distributed similarly to activations.
pub(super) fn random(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..len).map(|_| 2.0 * (next() + next() + next()) - 3.0).collect()
}

/// Elements of any dtype, for generic tests.
pub(super) trait Number: Element + PartialEq + std::fmt::Debug {
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

/// Operands, and the gradients of the outputs.
pub(super) struct Operands<E> {
    pub(super) q: Vec<E>,
    pub(super) k: Vec<E>,
    pub(super) v: Vec<E>,
    pub(super) dout: Vec<E>,
    pub(super) dlse: Vec<f64>,
}

impl<E: Number> Operands<E> {
    pub(super) fn random(case: &Case) -> Self {
        let elements = |len, seed| random(len, seed).into_iter().map(E::of).collect();
        Self {
            q: elements(case.query_len(), 1),
            k: elements(case.key_len(), 2),
            v: elements(case.key_len(), 3),
            dout: elements(case.query_len(), 4),
            dlse: random(case.rows(), 5),
        }
    }

    pub(super) fn values(&self) -> Operands<f64> {
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
pub(super) struct Results<E: Element> {
    pub(super) out: Vec<E>,
    pub(super) lse: Vec<E::Real>,
    pub(super) dq: Vec<E>,
    pub(super) dk: Vec<E>,
    pub(super) dv: Vec<E>,
}

impl<E: Number> Results<E> {
    pub(super) fn elements(&self) -> [(&'static str, &[E]); 4] {
        [("out", &self.out), ("dq", &self.dq), ("dk", &self.dk), ("dv", &self.dv)]
    }

    pub(super) fn lse(&self) -> Vec<f64> {
        self.lse.iter().map(|x| E::real_value(*x)).collect()
    }
}

/// Runs forward and backward. Outputs start as NaN, so that unwritten elements are detected.
pub(super) fn attend<E: Number>(case: &Case, x: &Operands<E>) -> Results<E> {
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
    let gradients = Gradients { dq: &mut dq, dk: &mut dk, dv: &mut dv };
    attention.backward(&saved, gradients, &mut workspace).unwrap();

    Results { out, lse, dq, dk, dv }
}

/// Attention and its gradients by definition, one row at a time.
pub(super) fn reference(case: &Case, x: &Operands<f64>) -> Results<f64> {
    let Shape { batch, queries, keys, heads, head_dim, .. } = case.shape;
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
            let scores: Vec<_> =
                seen.iter().map(|key| case.scale() * dot(q, &x.k[key.clone()])).collect();
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
