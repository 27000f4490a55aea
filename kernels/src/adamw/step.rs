//! The AdamW kernel. It has the operations of the CPU kernel in the same order, none of them fused.

use super::table::{Entry, GlobalIndicesOnGpu};
use super::{AdamW, CHUNK, Call, GROUP, GROUPS, Kind, THREADS, TILE};
use crate::assembler::{Bf16x2, F32, F64, GlobalAddress, Kernel, Pair, Pred, U32, U64};
use crate::dtype::Dtype;
use crate::philox::Key;

pub(super) fn write<'k>(k: &'k Kernel, variant: AdamW, call: &Call<'k>) {
    let now = Now {
        learning_rate: call.learning_rate.load(),
        step: call.step.load(),
        scale: call.scale.load(),
    };

    let [index, chunk] = call.chunks.element::<u64>(k.cta()).load_vector();
    let entry = Entry::new(call.table, index);
    let factors = Factors::of_cta(k, entry, &now);
    let goes = now.scale.abs().lt(f32::INFINITY) & now.step.ge(1.0);
    k.if_(goes, || {
        let [code, groups] = entry.kind();
        let kinds: Vec<Kind> = variant.kinds().collect();
        for kind in &kinds {
            let update = || update(k, *kind, (entry, chunk, groups), &now, &factors);
            match kinds.len() {
                1 => update(),
                _ => k.if_(code.equals(kind.code()), update),
            }
        }
    });
}

/// The scalars of the current step.
struct Now<'k> {
    learning_rate: F32<'k>,
    step: F32<'k>,
    scale: F32<'k>,
}

/// The factors of an update.
struct Factors<'k> {
    /// 1 - learning rate * weight decay.
    decay: F32<'k>,
    /// Learning rate / (1 - beta1^step).
    rate: F32<'k>,
    /// 1 / sqrt(1 - beta2^step).
    bias_correction: F32<'k>,
    /// 1 - beta1.
    one_minus_beta1: F32<'k>,
    /// beta2, and 1 - beta2 in the next field.
    beta2: F32<'k>,
    one_minus_beta2: F32<'k>,
    eps: F32<'k>,
}

impl<'k> Factors<'k> {
    /// One thread computes the factors in f64, rounds them once and shares them with the CTA.
    #[track_caller]
    fn of_cta(k: &'k Kernel, entry: Entry<'k>, now: &Now<'k>) -> Factors<'k> {
        let shared = k.shared::<f32>(4);
        k.if_(k.thread().equals(0), || {
            let [beta1, beta2, decay] = entry.betas_and_decay();
            let [power1, power2] = powers(k, [beta1, beta2], now.step.to_u32());
            let (one, rate) = (k.constant(1.0f64), now.learning_rate.to_f64());
            shared.store((one - rate * decay).to_f32());
            shared.offset(4).store((rate / (one - power1)).to_f32());
            let unbias = one / (one - power2).sqrt();
            shared.offset(8).store(unbias.to_f32());
        });
        k.barrier();

        let [one_minus_beta1, beta2, one_minus_beta2, eps] = entry.gains();
        Factors {
            decay: shared.load(),
            rate: shared.offset(4).load(),
            bias_correction: shared.offset(8).load(),
            one_minus_beta1,
            beta2,
            one_minus_beta2,
            eps,
        }
    }

    /// Returns the parameter, exp_avg and exp_avg_sq after the step. The arguments are the
    /// parameter, its gradient, exp_avg and exp_avg_sq.
    #[track_caller]
    fn step(&self, scale: F32<'k>, [p, g, m, v]: [F32<'k>; 4]) -> [F32<'k>; 3] {
        let g = g * scale;
        let m = m + self.one_minus_beta1 * (g - m);
        let v = self.beta2 * v + self.one_minus_beta2 * g * g;

        let root = v.sqrt() * self.bias_correction + self.eps;
        [p * self.decay - self.rate * m / root, m, v]
    }
}

/// Raises each base to an integer exponent by repeated squaring.
#[track_caller]
fn powers<'k, const N: usize>(
    k: &'k Kernel,
    bases: [F64<'k>; N],
    exponent: U32<'k>,
) -> [F64<'k>; N] {
    let (bases, exponent) = (bases.map(|base| k.var(base)), k.var(exponent));
    let products = bases.map(|_| k.var(1.0f64));
    k.while_(
        || exponent.differs(0),
        || {
            let odd = (*exponent & 1).differs(0);
            for (product, base) in products.iter().zip(&bases) {
                product.set(odd.select(**product * **base, **product));
                base.set(**base * **base);
            }
            exponent.set(*exponent >> 1);
        },
    );
    products.map(|product| product.get())
}

/// Updates a chunk in groups of four elements. The loads of two groups are issued before the first
/// use. Remaining elements are updated one by one.
fn update<'k>(
    k: &'k Kernel,
    kind: Kind,
    (entry, chunk, groups): (Entry<'k>, U32<'k>, U32<'k>),
    now: &Now<'k>,
    factors: &Factors<'k>,
) {
    let start = chunk.mul_wide(CHUNK);
    let left = (entry.elements() - start).min(u64::from(CHUNK)).low();
    let arrays = Arrays::new(k, kind, entry, start, now);
    let whole = groups.differs(0).select(left & !(GROUP - 1), 0);

    k.for_range(0u32, whole, TILE, |first| {
        let first = k.thread().mad(GROUP, first);
        let loaded = [0, 1].map(|group| {
            let at = first + group * (THREADS * GROUP);
            arrays.load_group(at, at.lt(whole))
        });
        const { assert!(GROUPS == 2, "the loop loads two groups") };
        for group in loaded {
            arrays.step_group(group, now.scale, factors);
        }
    });
    k.for_range(whole + k.thread(), left, THREADS, |at| {
        arrays.step_one(at, now.scale, factors);
    });
}

/// The arrays of a parameter, beginning at the first element of a chunk.
struct Arrays<'k> {
    k: &'k Kernel,
    kind: Kind,
    param: GlobalAddress<'k>,
    /// Gradient, exp_avg and exp_avg_sq.
    others: [GlobalAddress<'k>; 3],
    start: U64<'k>,
    noise: Option<Noise<'k>>,
}

/// Four elements of each array, loaded.
struct Group<'k> {
    at: U32<'k>,
    exists: Pred<'k>,
    param: Four<'k>,
    others: [[F32<'k>; 4]; 3],
}

/// Four elements of a parameter, in their format in memory.
enum Four<'k> {
    F32([F32<'k>; 4]),
    Bf16([Pair<'k>; 2]),
}

impl<'k> Four<'k> {
    #[track_caller]
    fn widen(&self) -> [F32<'k>; 4] {
        match self {
            Four::F32(values) => *values,
            Four::Bf16([low, high]) => {
                let ([a, b], [c, d]) = (low.unpack(), high.unpack());
                [a, b, c, d]
            }
        }
    }
}

impl<'k> Arrays<'k> {
    #[track_caller]
    fn new(k: &'k Kernel, kind: Kind, entry: Entry<'k>, start: U64<'k>, now: &Now<'k>) -> Self {
        let from = |at: usize, size: u32| entry.array(at).byte_add(start * u64::from(size));
        let random = kind == Kind::Bf16Stochastic;
        Arrays {
            k,
            kind,
            param: from(0, dtype(kind).size()),
            others: [1, 2, 3].map(|at| from(at, 4)),
            start,
            noise: random.then(|| Noise::new(entry, now)),
        }
    }

    #[track_caller]
    fn load_group(&self, at: U32<'k>, exists: Pred<'k>) -> Group<'k> {
        let param = match dtype(self.kind) {
            Dtype::F32 => {
                let from = self.param.element::<f32>(at);
                Four::F32(from.load_vector_if(exists))
            }
            Dtype::Bf16 => {
                let from = self.param.byte_add(at.mul_wide(2));
                Four::Bf16(from.load_vector_if::<Bf16x2, 2>(exists))
            }
        };
        let others = self.others.map(|array| {
            let from = array.element::<f32>(at);
            from.load_vector_if::<f32, 4>(exists)
        });
        Group { at, exists, param, others }
    }

    #[track_caller]
    fn step_group(&self, group: Group<'k>, scale: F32<'k>, factors: &Factors<'k>) {
        let (p, [g, m, v]) = (group.param.widen(), group.others);
        let stepped = [0, 1, 2, 3].map(|i: usize| factors.step(scale, [p[i], g[i], m[i], v[i]]));
        let words = self.noise.as_ref().map(|noise| {
            let element = self.start + group.at.wide();
            noise.group(self.k, element)
        });
        let param = [0, 1, 2, 3].map(|i: usize| match &words {
            Some(words) => noisy(stepped[i][0], words[i]),
            None => stepped[i][0],
        });

        let (at, exists) = (group.at, group.exists);
        match dtype(self.kind) {
            Dtype::F32 => {
                let to = self.param.element::<f32>(at);
                to.store_vector_if(exists, param);
            }
            Dtype::Bf16 => {
                let to = self.param.byte_add(at.mul_wide(2));
                let pairs = [param[0].pack(param[1]), param[2].pack(param[3])];
                to.store_vector_if(exists, pairs);
            }
        }
        let [_, mean, square] = self.others;
        for (array, which) in [(mean, 1), (square, 2)] {
            let to = array.element::<f32>(at);
            to.store_vector_if(exists, stepped.map(|values| values[which]));
        }
    }

    #[track_caller]
    fn step_one(&self, at: U32<'k>, scale: F32<'k>, factors: &Factors<'k>) {
        let dtype = dtype(self.kind);
        let param = self.param.byte_add(at.mul_wide(dtype.size()));
        let others = self.others.map(|array| array.element::<f32>(at));
        let [g, m, v] = others.map(|array| array.load::<f32>());
        let [p, m, v] = factors.step(scale, [dtype.load(param), g, m, v]);

        let p = match &self.noise {
            Some(noise) => noisy(p, noise.one(self.k, self.start + at.wide())),
            None => p,
        };
        dtype.store(param, p);
        others[1].store(m);
        others[2].store(v);
    }
}

fn dtype(kind: Kind) -> Dtype {
    match kind {
        Kind::F32 => Dtype::F32,
        Kind::Bf16 | Kind::Bf16Stochastic => Dtype::Bf16,
    }
}

/// The random words of a parameter at the current step.
struct Noise<'k> {
    key: Key<'k>,
    indices: GlobalIndicesOnGpu<'k>,
}

impl<'k> Noise<'k> {
    #[track_caller]
    fn new(entry: Entry<'k>, now: &Now<'k>) -> Noise<'k> {
        let step = now.step.to_u32().wide();
        Noise { key: entry.key().fold(step), indices: entry.indices() }
    }

    /// The words of four elements, which share one Philox block.
    #[track_caller]
    fn group(&self, k: &'k Kernel, element: U64<'k>) -> [U32<'k>; 4] {
        self.key.block(self.indices.of(k, element) >> 2)
    }

    #[track_caller]
    fn one(&self, k: &'k Kernel, element: U64<'k>) -> U32<'k> {
        self.key.word(self.indices.of(k, element))
    }
}

/// Stochastic rounding to bf16. Adds the upper half of the random word to the lower 16 bits, then
/// clears them, so the expected result is `value`. NaN and infinities are unchanged.
#[track_caller]
fn noisy<'k>(value: F32<'k>, word: U32<'k>) -> F32<'k> {
    let bits = value.to_bits();
    let moved = (bits + (word >> 16)) & 0xffff_0000;
    let finite = value.abs().lt(f32::INFINITY);
    finite.select(moved, bits).to_f32_bits()
}
