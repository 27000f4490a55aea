//! What attention and its gradients read and write, which of their bits do not depend on other
//! queries, and lengths that are out of range.

use std::ops::Range;

use meshgrad_emulator::Counters;
use meshgrad_kernel_catalogue::ON_TENSOR_CORES;
use meshgrad_kernels::attention::{
    Attention, AttentionArguments, AttentionDelta, AttentionDeltaArguments, AttentionGradKeys,
    AttentionGradKeysArguments, AttentionGradQueries, AttentionGradQueriesArguments, Extents, Form,
    Integers, Lines, Problem, Products, Sequences, TokenWords, TokenWordsArguments, View,
    VisibleKeys, VisibleKeysArguments,
};
use meshgrad_kernels::faults::{Fault, FaultSite};
use meshgrad_kernels::{Dtype, In, Out};

use crate::device::{Device, encoded, values};
use crate::traffic::assert_no_conflicts;

/// How queries and keys are arranged in sequences.
#[derive(Clone, Debug)]
enum Standing {
    Rows,
    /// Position of the first query and number of valid keys, per batch row or for all rows.
    Cached(Vec<i64>, Vec<i64>),
    /// The first key and the end of the keys of each query, per batch row.
    Ranges(Vec<Vec<[i32; 2]>>),
}

/// One attention problem.
#[derive(Clone, Debug)]
struct Case {
    form: Form,
    batch: usize,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    causal: bool,
    window: Option<usize>,
    standing: Standing,
    /// The operands hold the queries from this one on.
    first_query: usize,
    /// Whether the log-sum-exp has a gradient.
    has_dlse: bool,
}

impl Case {
    /// Two query heads that share one key head.
    fn new(form: Form, [batch, queries, keys]: [usize; 3], head_dim: usize) -> Case {
        Case {
            form,
            batch,
            queries,
            keys,
            heads: 2,
            kv_heads: 1,
            head_dim,
            causal: false,
            window: None,
            standing: Standing::Rows,
            first_query: 0,
            has_dlse: false,
        }
    }

    fn with_dlse(self) -> Case {
        Case { has_dlse: true, ..self }
    }

    /// Only these of the queries.
    fn part(self, queries: Range<usize>) -> Case {
        Case { first_query: queries.start, queries: queries.len(), ..self }
    }

    fn causal(self) -> Case {
        Case { causal: true, ..self }
    }

    fn window(self, window: usize) -> Case {
        Case { window: Some(window), ..self }
    }

    fn at(self, standing: Standing) -> Case {
        Case { standing, ..self }
    }

    fn dtype(&self) -> Dtype {
        match self.form {
            Form::TensorCores(_) => Dtype::Bf16,
            Form::CudaCores(dtype) => dtype,
        }
    }

    fn scale(&self) -> f64 {
        1.5 / (self.head_dim as f64).sqrt()
    }

    /// Whether a query of a batch row attends to a key.
    fn sees(&self, batch: usize, query: usize, key: usize) -> bool {
        let of = |list: &[i64]| list[if list.len() == 1 { 0 } else { batch }];
        let of_sequence = (self.first_query + query) as i64;
        let key = key as i64;
        let position = match &self.standing {
            Standing::Rows => of_sequence,
            Standing::Cached(offsets, lengths) => {
                if key >= of(lengths) {
                    return false;
                }
                of(offsets) + of_sequence
            }
            Standing::Ranges(rows) => {
                let [first, end] = rows[batch][self.first_query + query].map(i64::from);
                if !(first..end).contains(&key) {
                    return false;
                }
                end - 1
            }
        };
        let late = self.causal && key > position;
        let early = self.window.is_some_and(|window| key <= position - window as i64);
        !late && !early
    }

    /// The gradient of a query's log-sum-exp; NaN for a query without keys, where it is not used.
    fn dlse(&self, [b, i, head]: [usize; 3]) -> f32 {
        if !(0..self.keys).any(|key| self.sees(b, i, key)) {
            return f32::NAN;
        }
        ((7 * b + 3 * head + self.first_query + i) as f32).sin()
    }
}

/// Allocates a [B, T, H, D] operand with padding after each token.
fn operand(device: &Device, case: &Case, [tokens, heads]: [usize; 2], seed: u64) -> View<In> {
    let dtype = case.dtype();
    let room = match case.form {
        Form::TensorCores(_) => 8,
        Form::CudaCores(_) => 3,
    };
    let token = heads * case.head_dim + room;
    let strides = [tokens * token, token, case.head_dim];
    let values = values(dtype, case.batch * tokens * token, seed);
    View {
        address: In(device.put_floats(dtype, &values)),
        strides: strides.map(|stride| stride as u64 * u64::from(dtype.size())),
    }
}

fn keys(device: &Device, case: &Case, seed: u64) -> View<In> {
    operand(device, case, [case.keys, case.kv_heads], seed)
}

/// The queries of `case`, in the memory of all queries up to them.
fn queries(device: &Device, case: &Case, seed: u64) -> View<In> {
    let first = case.first_query;
    let mut all = operand(device, case, [first + case.queries, case.heads], seed);
    all.address.0 += first as u64 * all.strides[1];
    all
}

/// The operands of one case.
struct Run<'a> {
    device: &'a Device,
    case: Case,
    q: View<In>,
    k: View<In>,
    v: View<In>,
    dout: View<In>,
    problem: Problem,
    faults: u64,
}

/// Results of the forward pass.
struct Forward {
    out: Vec<f32>,
    lse: Vec<f32>,
    on_device: (View<Out>, Out),
    counters: Counters,
}

impl<'a> Run<'a> {
    fn new(device: &'a Device, case: &Case) -> Run<'a> {
        let extents = Extents::new(
            [case.batch, case.queries, case.keys],
            [case.heads, case.kv_heads],
            case.head_dim,
        );
        let extents = extents.and_then(|extents| extents.with_first_query(case.first_query));
        let wide = |list: &[i64]| Integers {
            address: {
                let bytes = list.iter().flat_map(|x| x.to_le_bytes());
                In(device.put(&bytes.collect::<Vec<_>>()))
            },
            wide: true,
            step: u32::from(list.len() > 1),
        };
        let sequences = match &case.standing {
            Standing::Rows => Sequences::Rows,
            Standing::Cached(offsets, lengths) => {
                Sequences::Cached { q_offset: wide(offsets), k_len: wide(lengths) }
            }
            Standing::Ranges(rows) => {
                let own = case.first_query..case.first_query + case.queries;
                let own = rows.iter().flat_map(|row| &row[own.clone()]).flatten();
                let bytes: Vec<u8> = own.flat_map(|bound| bound.to_le_bytes()).collect();
                Sequences::Ranges(In(device.put(&bytes)))
            }
        };
        Run {
            device,
            q: queries(device, case, 1),
            k: keys(device, case, 2),
            v: keys(device, case, 3),
            dout: queries(device, case, 4),
            problem: Problem {
                extents: extents.unwrap(),
                causal: case.causal,
                window: case.window,
                sequences,
                scale: case.scale() as f32,
            },
            faults: device.put(&[0; 8]),
            case: case.clone(),
        }
    }

    /// The fault that was reported for positions, lengths or offsets.
    fn fault(&self) -> Option<Fault> {
        let word = self.device.bytes(self.faults, 8);
        Fault::from_word(u64::from_le_bytes(word.try_into().unwrap()))
    }

    /// Allocates a dense [B, T, H, D] result; also returns its number of elements.
    fn result(&self, tokens: usize, heads: usize) -> (View<Out>, usize) {
        let (case, size) = (&self.case, u64::from(self.case.dtype().size()));
        let count = case.batch * tokens * heads * case.head_dim;
        let strides = [tokens * heads, heads, 1].map(|rows| (rows * case.head_dim) as u64 * size);
        let address = Out(self.device.room(count * size as usize));
        (View { address, strides }, count)
    }

    fn forward(&self) -> Forward {
        let case = &self.case;
        let (out, count) = self.result(case.queries, case.heads);
        let rows = case.batch * case.heads * case.queries;
        let lse = Out(self.device.room(4 * rows));
        let variant = Attention::new(case.form);
        let arguments = AttentionArguments {
            q: self.q,
            k: self.k,
            v: self.v,
            out,
            lse,
            faults: [1, 2].map(|site| FaultSite::new(self.faults, site)),
            problem: self.problem,
        };
        let launch = variant.launch(&self.problem).unwrap();
        let counters = self.device.run(&variant, launch, &arguments);
        Forward {
            out: self.device.floats(case.dtype(), out.address.0, count),
            lse: self.device.floats(Dtype::F32, lse.0, rows),
            on_device: (out, lse),
            counters,
        }
    }

    /// dq, dk and dv, from the results of the forward pass.
    fn backward(&self, (out, lse): (View<Out>, Out)) -> ([Vec<f32>; 3], Vec<Counters>) {
        let (case, problem) = (&self.case, self.problem);
        let aligned = matches!(case.form, Form::TensorCores(_));
        let delta = Out(self.device.room(4 * case.batch * case.heads * case.queries));
        let variant = AttentionDelta::new(case.dtype(), case.head_dim, aligned);
        let variant = variant.with_dlse(case.has_dlse);
        let lse_and_dlse = case.has_dlse.then(|| [lse.written(), In(self.dlse())]);
        let arguments = AttentionDeltaArguments::new(
            [out.written(), self.dout],
            delta,
            lse_and_dlse,
            &problem.extents,
        );
        let launch = variant.launch(&problem.extents).unwrap();
        self.device.run(&variant, launch, &arguments);

        let (dq, of_queries) = self.result(case.queries, case.heads);
        let [q, k, v, dout] = [self.q, self.k, self.v, self.dout];
        let variant = AttentionGradQueries::new(case.form);
        let arguments = AttentionGradQueriesArguments {
            q,
            k,
            v,
            dout,
            lse: lse.written(),
            delta: delta.written(),
            dq,
            problem,
        };
        let launch = variant.launch(&problem).unwrap();
        let queries = self.device.run(&variant, launch, &arguments);

        let [(dk, of_keys), (dv, _)] = [(); 2].map(|()| self.result(case.keys, case.kv_heads));
        let variant = AttentionGradKeys::new(case.form);
        let arguments = AttentionGradKeysArguments {
            q,
            k,
            v,
            dout,
            lse: lse.written(),
            delta: delta.written(),
            dk,
            dv,
            problem,
        };
        let mut counters = vec![queries];
        if let Some(launch) = variant.launch(&problem) {
            counters.push(self.device.run(&variant, launch, &arguments));
        }
        let results = [(dq, of_queries), (dk, of_keys), (dv, of_keys)];
        let floats = |(view, count): (View<Out>, usize)| {
            self.device.floats(case.dtype(), view.address.0, count)
        };
        (results.map(floats), counters)
    }

    /// The address of the gradients of the log-sum-exp.
    fn dlse(&self) -> u64 {
        let (case, mut dlse) = (&self.case, Vec::new());
        for b in 0..case.batch {
            for head in 0..case.heads {
                dlse.extend((0..case.queries).map(|i| case.dlse([b, i, head])));
            }
        }
        self.device.put_floats(Dtype::F32, &dlse)
    }
}

/// Runs all kernels of a case; returns the bytes of their results.
fn results(device: &Device, case: &Case) -> Vec<u8> {
    let run = Run::new(device, case);
    let forward = run.forward();
    assert_eq!(run.fault(), None, "{case:?}");
    let ([dq, dk, dv], of_gradients) = run.backward(forward.on_device);
    for counters in of_gradients.iter().chain([&forward.counters]) {
        assert_no_conflicts(counters);
    }

    let mut bytes = encoded(Dtype::F32, &forward.lse);
    for result in [forward.out, dq, dk, dv] {
        bytes.extend(encoded(case.dtype(), &result));
    }
    bytes
}

const FORMS: [(Form, usize); 5] = [
    (on_tensor_cores(64, Products::Warps), 64),
    (on_tensor_cores(40, Products::Warps), 40),
    (on_tensor_cores(64, Products::Warpgroups), 64),
    (Form::CudaCores(Dtype::F32), 20),
    (Form::CudaCores(Dtype::Bf16), 5),
];

const fn on_tensor_cores(head_dim: u32, products: Products) -> Form {
    Form::TensorCores(Lines { head_dim, products })
}

/// A tile of queries reads each key that it attends to once. A tile of keys reads each query that
/// attends to it once. Each result is written once.
#[test]
fn operands_are_read_once_per_tile() {
    let device = Device::plain();
    let form = on_tensor_cores(64, Products::Warps);
    let (row, number) = (128, 4); // bytes of 64 features, and of lse or delta
    let assert_bytes = |counters: &Counters, read: u64, written: u64| {
        let moved = [counters.total.bytes_read, counters.total.bytes_written];
        assert_eq!(moved, [read, written], "{}", counters.kernel);
        assert_no_conflicts(counters);
    };

    // Two tiles of queries and of keys; the first queries attend only to the first keys.
    let run = Run::new(&device, &Case::new(form, [1, 128, 128], 64).causal());
    let forward = run.forward();
    let (_, gradients) = run.backward(forward.on_device);
    let (queries, heads) = (2 * 128, 2);
    let seen = heads * (64 + 128);
    assert_bytes(&forward.counters, row * (queries + 2 * seen), queries * (row + number));
    // Four lanes share a query, and each reads its numbers.
    let read = queries * (2 * row + 4 * 2 * number) + 2 * row * seen;
    assert_bytes(&gradients[0], read, row * queries);
    let read = 2 * row * 128 + seen * (2 * row + 2 * number);
    assert_bytes(&gradients[1], read, 2 * row * 128);
}

/// The result of a query has the same bits with its range of keys given, and with fewer other
/// queries.
#[test]
fn bits_of_a_query_do_not_depend_on_other_queries() {
    let device = Device::plain();
    for (form, head_dim) in FORMS {
        let one = |case: Case| Run::new(&device, &case).forward().out;
        let whole = Case::new(form, [1, 100, 100], head_dim).causal();
        let all = one(whole.clone());
        let ranges = Standing::Ranges(vec![(1..=100).map(|end| [0, end]).collect()]);
        assert!(all == one(whole.clone().at(ranges)), "{form:?}");

        // The same operands, with only the first 30 queries.
        let few = one(Case { queries: 30, ..whole });
        assert!(all[..few.len()] == few, "{form:?}");
    }
}

/// A part of the queries has the bits that it has among all of them. The gradients of keys and
/// values are sums over the parts.
#[test]
fn parts_of_the_queries_equal_the_whole() {
    let device = Device::plain();
    for (form, head_dim) in FORMS {
        let rows = Case::new(form, [1, 130, 135], head_dim).causal().with_dlse();
        // The last queries have no keys.
        let cached = Standing::Cached(vec![20], vec![30]);
        let ranges = Standing::Ranges(vec![documents(&[3, 0, 60, 1, 66])]);
        let masks = [
            rows.clone(),
            rows.clone().window(9),
            rows.clone().window(9).at(cached),
            rows.clone().at(ranges.clone()),
            rows.window(9).at(ranges),
        ];
        for whole in masks {
            let (all, of_keys) = gradients(&device, &whole);
            let mut sums = of_keys.each_ref().map(|of_key| vec![0.0; of_key.len()]);
            for part in [0..37, 37..101, 101..130] {
                let row = whole.heads * head_dim;
                let of_part = part.start * row..part.end * row;
                let case = whole.clone().part(part);
                let (own, of_part_keys) = gradients(&device, &case);
                for (own, all) in own.iter().zip(&all) {
                    assert!(own == &all[of_part.clone()], "{case:?}");
                }
                for (sum, own) in sums.iter_mut().zip(&of_part_keys) {
                    sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += f64::from(*own));
                }
            }
            let bound = if whole.dtype() == Dtype::F32 { 2e-6 } else { 8e-3 };
            for (all, sum) in of_keys.concat().into_iter().zip(sums.concat()) {
                let error = (f64::from(all) - sum).abs();
                assert!(error <= bound * (1.0 + sum.abs()), "{all}, not {sum}, in {whole:?}");
            }
        }
    }
}

/// The ranges of documents of these lengths, with a query per key. There are five more keys before
/// the second document.
fn documents(lengths: &[i32]) -> Vec<[i32; 2]> {
    let mut first = 0;
    let mut ranges = Vec::new();
    for (at, length) in lengths.iter().enumerate() {
        ranges.extend((1..=*length).map(|count| [first, first + count]));
        first += length + if at == 0 { 5 } else { 0 };
    }
    ranges
}

/// The results that have a row per query: out and dq. Those that have a row per key: dk and dv.
fn gradients(device: &Device, case: &Case) -> ([Vec<f32>; 2], [Vec<f32>; 2]) {
    let run = Run::new(device, case);
    let forward = run.forward();
    let ([dq, dk, dv], _) = run.backward(forward.on_device);
    ([forward.out, dq], [dk, dv])
}

/// Checks that out-of-range positions, lengths and ranges are reported and clamped, and that
/// decreasing ranges are reported.
fn check_faults(device: &Device, case: &Case) {
    let ranges = |first: [i32; 2], second: [i32; 2]| Standing::Ranges(vec![vec![first, second]]);
    let cached = |q: i64, k: i64| Standing::Cached(vec![q], vec![k]);
    let keys = case.keys as i32;
    let whole = ranges([0, keys], [0, keys]);
    let pairs = [
        (cached(-7, 1 << 35), cached(0, case.keys as i64), (2, 1 << 35)),
        (ranges([-2, keys], [0, keys]), whole.clone(), (2, -2)),
        (ranges([0, keys], [0, keys + 9]), whole, (2, i64::from(keys) + 9)),
    ];
    for (wrong, right, (site, index)) in pairs {
        let [wrong, right] = [wrong, right].map(|standing| {
            let run = Run::new(device, &case.clone().at(standing));
            (run.forward().out, run.fault())
        });
        assert_eq!(wrong.1, Some(Fault { site, index }));
        assert_eq!(right.1, None);
        assert!(wrong.0 == right.0, "{case:?}");
    }
    let farthest = i64::from(i32::MIN);
    let wrong = [
        ([2, 1], [2, 4], -1),
        ([3, 4], [1, 4], -2),
        ([0, 4], [0, 1], -3),
        ([0, 4], [i32::MIN, i32::MAX], farthest),
    ];
    for (first, second, index) in wrong {
        let run = Run::new(device, &case.clone().at(ranges(first, second)));
        assert!(run.forward().out.iter().all(|x| x.is_finite()));
        assert_eq!(run.fault(), Some(Fault { site: 2, index }));
    }
}

pub(crate) fn exercise(device: &Device) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (form, head_dim) in exercised() {
        let case = |extents: [usize; 3]| Case::new(form, extents, head_dim);
        let ranges =
            vec![vec![[0, 2], [0, 3], [3, 3], [3, 8]], vec![[0, 8], [8, 8], [8, 8], [8, 8]]];
        let cached = Standing::Cached(vec![60, 3], vec![66, 0]);
        bytes.extend(results(device, &case([1, 4, 70]).causal()));
        bytes.extend(results(device, &case([2, 2, 66]).at(cached).with_dlse()));
        bytes.extend(results(device, &case([2, 4, 8]).at(Standing::Ranges(ranges))));
        check_faults(device, &case([1, 2, 6]));
    }
    bytes.extend(token_words(device));
    bytes.extend(visible_keys(device));
    bytes
}

/// Words of tokens. Documents and positions out of range are reported and read as 0.
fn token_words(device: &Device) -> Vec<u8> {
    let run = |tokens: [[i64; 2]; 2], fault| {
        let put = |at: usize| {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| token[at].to_le_bytes()).collect();
            In(device.put(&bytes))
        };
        let (words, word) = (Out(device.room(16)), device.put(&[0; 8]));
        let arguments = TokenWordsArguments {
            documents: put(0),
            positions: put(1),
            words,
            faults: [1, 2].map(|site| FaultSite::new(word, site)),
            total: 2,
        };
        device.run(&TokenWords, TokenWords.launch(2).unwrap(), &arguments);
        let found = u64::from_le_bytes(device.bytes(word, 8).try_into().unwrap());
        assert_eq!(Fault::from_word(found), fault);
        device.bytes(words.0, 16)
    };
    let most = [(1 << 31) - 1, (1 << 32) - 1];
    let bytes = run([[3, 7], most], None);
    assert_eq!(bytes, [(3i64 << 32) + 7, i64::MAX].map(i64::to_le_bytes).concat());
    let document = run([[1 << 31, 7], most], Some(Fault { site: 1, index: 1 << 31 }));
    assert_eq!(document, [7, i64::MAX].map(i64::to_le_bytes).concat());
    let position = run([[3, 7], [0, -1]], Some(Fault { site: 2, index: -1 }));
    assert_eq!(position, [(3i64 << 32) + 7, 0].map(i64::to_le_bytes).concat());
    bytes
}

/// The ranges of keys that queries of two rows see, which are those of a loop.
fn visible_keys(device: &Device) -> Vec<u8> {
    let word = |(document, position): (i64, i64)| (document << 32) + position;
    let rows = [
        (vec![(-1, 7), (0, 0), (0, 2), (3, 4)], vec![(0, 0), (0, 1), (0, 2), (3, 3), (3, 4)]),
        (vec![(0, 5); 4], vec![(0, 2), (0, 3), (0, 9), (1, 0), (1, 1)]),
    ];
    let words = |tokens: &[(i64, i64)]| tokens.iter().map(|it| word(*it)).collect::<Vec<i64>>();
    let put = |words: Vec<i64>| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        In(device.put(&bytes))
    };
    let queries = put(rows.iter().flat_map(|(queries, _)| words(queries)).collect());
    let keys = put(rows.iter().flat_map(|(_, keys)| words(keys)).collect());
    let mut all = Vec::new();
    for window in [0, 1, 3, 1 << 32] {
        let ranges = Out(device.room(4 * 2 * 8));
        let arguments = VisibleKeysArguments {
            queries,
            keys,
            ranges,
            total: 8,
            queries_per_row: 4,
            keys_per_row: 5,
            window,
        };
        device.run(&VisibleKeys, VisibleKeys.launch(8).unwrap(), &arguments);
        let bytes = device.bytes(ranges.0, 4 * 2 * 8);
        let mut found = bytes.chunks(4).map(|it| i32::from_le_bytes(it.try_into().unwrap()));
        for (queries, keys) in &rows {
            for (document, position) in queries {
                let sees = |key: &(i64, i64)| {
                    let oldest = position - window as i64;
                    key.0 == *document && key.1 <= *position && key.1 > oldest
                };
                let before = |key: &&(i64, i64)| word(**key) <= word((*document, *position));
                let end = keys.iter().filter(before).count();
                let count = keys.iter().filter(|key| sees(key)).count();
                let bounds = [found.next(), found.next()].map(Option::unwrap);
                assert_eq!(bounds, [end - count, end].map(|bound| bound as i32));
            }
        }
        all.extend(bytes);
    }
    all
}

/// The kernels of the catalogue, with their head dims.
fn exercised() -> impl Iterator<Item = (Form, usize)> {
    let of = |lines: Lines| (Form::TensorCores(lines), lines.head_dim as usize);
    let on_cuda_cores = [(Form::CudaCores(Dtype::F32), 20), (Form::CudaCores(Dtype::Bf16), 5)];
    ON_TENSOR_CORES.into_iter().map(of).chain(on_cuda_cores)
}
