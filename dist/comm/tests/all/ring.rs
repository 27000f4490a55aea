//! Attention over a ring of ranks is that of plain loops over the whole sequence, and that of torch's ring,
//! with its gradients. `scripts/prove/ring-golden` describes and writes the fixtures.

use std::fs;
use std::ops::Range;
use std::sync::Arc;

use meshgrad_autograd::ops::{Ring, RingPart};
use meshgrad_autograd::{Grads, Tape, Var, checkpoint, ops};
use meshgrad_comm::conformance::{Fault, RewiredRank};
use meshgrad_comm::{Local, Rank, Result, TracedRank};
use meshgrad_mesh::{Mesh, Placement, Sharding};
use meshgrad_runtime::ops::AttentionMask;
use meshgrad_runtime::{Device, Tensor};

use serde_json::Value;

use crate::random::Random;

const BATCH: usize = 2;
const TOKENS: usize = 13;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const FEATURES: usize = 3;
const SCALE: f64 = 0.7;

/// [batch, tokens, heads, features] in f64.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    tokens: usize,
    heads: usize,
    values: Vec<f64>,
}

/// q, k, v and the gradient of the result.
fn operands(seed: u64) -> [Plain; 4] {
    let mut random = Random(seed);
    [HEADS, KV_HEADS, KV_HEADS, HEADS].map(|heads| {
        let count = BATCH * TOKENS * heads * FEATURES;
        let values = (0..count).map(|_| random.below(4001) as f64 / 1000.0 - 2.0).collect();
        Plain { tokens: TOKENS, heads, values }
    })
}

impl Plain {
    fn zeros(heads: usize) -> Plain {
        Plain { tokens: TOKENS, heads, values: vec![0.0; BATCH * TOKENS * heads * FEATURES] }
    }

    fn row(&self, batch: usize, token: usize, head: usize) -> Range<usize> {
        let start = ((batch * self.tokens + token) * self.heads + head) * FEATURES;
        start..start + FEATURES
    }

    /// The tokens of a rank, as a tensor.
    fn part(&self, device: &Device, tokens: &[Range<usize>]) -> Result<Tensor> {
        let all = tokens.iter().cloned().flatten();
        let all: Vec<usize> = all.collect();
        let rows = (0..BATCH).flat_map(|batch| all.iter().map(move |token| (batch, *token)));
        let of_token = |(batch, token)| {
            let start = self.row(batch, token, 0).start;
            self.values[start..start + self.heads * FEATURES].to_vec()
        };
        let values: Vec<f64> = rows.flat_map(of_token).collect();
        Tensor::from_slice(device, &[BATCH, all.len(), self.heads, FEATURES], &values)
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The weights of the keys that a query sees.
fn weights([q, k]: [&Plain; 2], batch: usize, token: usize, head: usize) -> Vec<f64> {
    let kv_head = head / (HEADS / KV_HEADS);
    let own = &q.values[q.row(batch, token, head)];
    let scores = (0..=token).map(|key| SCALE * dot(own, &k.values[k.row(batch, key, kv_head)]));
    let exponentials: Vec<f64> = scores.map(f64::exp).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.iter().map(|it| it / sum).collect()
}

/// The result and the gradients of q, k and v, by plain loops.
fn expected([q, k, v, dout]: &[Plain; 4]) -> [Plain; 4] {
    let [mut out, mut dq] = [(); 2].map(|()| Plain::zeros(HEADS));
    let [mut dk, mut dv] = [(); 2].map(|()| Plain::zeros(KV_HEADS));
    for batch in 0..BATCH {
        for token in 0..TOKENS {
            for head in 0..HEADS {
                let kv_head = head / (HEADS / KV_HEADS);
                let (own, weights) =
                    (q.row(batch, token, head), weights([q, k], batch, token, head));
                let slopes = weights.iter().enumerate().map(|(key, _)| {
                    dot(&dout.values[own.clone()], &v.values[v.row(batch, key, kv_head)])
                });
                let slopes: Vec<f64> = slopes.collect();
                let mean = dot(&weights, &slopes);
                for (key, (weight, slope)) in weights.iter().zip(&slopes).enumerate() {
                    let at = k.row(batch, key, kv_head);
                    let of_score = SCALE * weight * (slope - mean);
                    for (i, j) in own.clone().zip(at) {
                        out.values[i] += weight * v.values[j];
                        dq.values[i] += of_score * k.values[j];
                        dk.values[j] += of_score * q.values[i];
                        dv.values[j] += weight * dout.values[i];
                    }
                }
            }
        }
    }
    [out, dq, dk, dv]
}

/// Those of `count` tokens that each rank has.
pub(crate) fn tokens(ranks: usize, count: usize, placement: &Placement) -> Vec<Vec<Range<usize>>> {
    let mesh = Mesh::new(&[ranks], &["cp"]).unwrap();
    let sharding = Sharding::new(&mesh, [("cp", placement.clone())], &[count]).unwrap();
    let of_rank = |rank| {
        let region = sharding.region(rank).unwrap();
        let ranges = region.dims()[0].ranges().iter();
        ranges.filter(|range| !range.is_empty()).cloned().collect()
    };
    (0..ranks).map(of_rank).collect()
}

/// The ring of a rank under a causal mask.
pub(crate) fn ring(tokens: &[Vec<Range<usize>>], own: usize) -> Ring {
    let ranks = tokens.len();
    let length = |ranges: &[Range<usize>]| ranges.iter().map(Range::len).sum::<usize>();
    let hop = |distance: usize| {
        let (queries, keys) = (&tokens[own], &tokens[(own + ranks - distance) % ranks]);
        let mut parts = Vec::new();
        for (i, of_query) in queries.iter().enumerate() {
            for (j, of_key) in keys.iter().enumerate().filter(|(_, it)| it.start <= of_query.start)
            {
                let (q, k) = (length(&queries[..i]), length(&keys[..j]));
                parts.push(RingPart {
                    queries: q..q + of_query.len(),
                    keys: k..k + of_key.len(),
                    mask: AttentionMask { causal: of_query == of_key, ..AttentionMask::default() },
                });
            }
        }
        (distance, parts)
    };
    Ring { keys: tokens.iter().map(|it| length(it)).collect(), hops: (0..ranks).map(hop).collect() }
}

/// A planted fault.
type Change = fn(&mut Ring);

/// What each rank has of the results, and how many collectives it took.
type Outcome = (Vec<Vec<f64>>, u64);

fn on_ranks(
    operands: &[Plain; 4],
    tokens: &[Vec<Range<usize>>],
    (checkpointed, fault): (bool, Fault),
    change: impl Fn(&mut Ring) + Sync,
) -> std::result::Result<Vec<Outcome>, String> {
    let local = Local::new(tokens.len()).deadline(std::time::Duration::from_secs(1));
    let outcomes = local.launch(|rank| {
        let rank = RewiredRank::faulty(rank, fault);
        let rank = TracedRank::new(&rank);
        let (own, group) = (rank.rank(), rank.world()?);
        let mut ring = ring(tokens, own);
        change(&mut ring);
        let ring = Arc::new(ring);
        let parts = operands.each_ref().map(|it| it.part(rank.device(), &tokens[own]));
        let [q, k, v, dout] = parts;
        let (operands, dout) = ([q?, k?, v?], dout?);
        let ((inputs, out), tape) = Tape::record(|| {
            let inputs = operands.map(Var::input);
            let body =
                move |[q, k, v]: [Var; 3]| ops::ring_attention([&q, &k, &v], &ring, SCALE, &group);
            let out = match checkpointed {
                true => checkpoint(inputs.each_ref(), body)?,
                false => body(inputs.clone())?,
            };
            Ok((inputs, out))
        })?;
        let gradients =
            tape.backward_with(&[(&out, dout)], &inputs.each_ref(), &mut Grads::new(&[])?)?;
        let all = [out.value().clone()].into_iter().chain(gradients);
        let all = all.map(|x| x.to_vec::<f64>()).collect::<Result<Vec<_>>>()?;
        Ok::<_, meshgrad_comm::Error>((all, rank.stats().collectives))
    });
    outcomes.map_err(|error| error.to_string())
}

/// Whether all ranks have their parts of the expected results.
fn holds(
    expected: &[Plain; 4],
    tokens: &[Vec<Range<usize>>],
    outcomes: &[Outcome],
    tolerance: f64,
) -> bool {
    outcomes.iter().zip(tokens).all(|((actual, _), tokens)| {
        actual.iter().zip(expected).all(|(actual, expected)| {
            let part = expected.part(&Device::cpu(), tokens).unwrap().to_vec::<f64>().unwrap();
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < tolerance;
            actual.len() == part.len() && actual.iter().zip(&part).all(near)
        })
    })
}

/// The rounding of f64.
const EXACT: f64 = 1e-12;

const SHAPES: [fn() -> Placement; 2] = [|| Placement::head_and_tail(0), || Placement::shard(0)];

#[test]
fn a_ring_has_the_attention_of_the_whole_sequence() {
    for (seed, of_tokens) in (0..).zip(SHAPES) {
        let operands = operands(seed);
        let expected = expected(&operands);
        for ranks in 1..=5 {
            let tokens = tokens(ranks, TOKENS, &of_tokens());
            let [plain, checkpointed] = [false, true].map(|checkpointed| {
                let how = (checkpointed, Fault::None);
                on_ranks(&operands, &tokens, how, |_| ()).unwrap()
            });
            assert!(holds(&expected, &tokens, &plain, EXACT), "{ranks} ranks of {tokens:?}");
            // Recomputing runs no second ring.
            assert_eq!(plain, checkpointed);
        }
    }
}

#[test]
fn planted_faults_are_found() {
    let tokens = tokens(4, TOKENS, &Placement::head_and_tail(0));
    let operands = operands(1);
    let expected = expected(&operands);
    let finds = |fault, change: Change| match on_ranks(&operands, &tokens, (false, fault), change) {
        Ok(outcomes) => !holds(&expected, &tokens, &outcomes, EXACT),
        Err(_) => true,
    };
    for fault in Fault::ALL {
        assert!(finds(fault, |_| ()), "{fault:?}");
    }
    let changes: [Change; 3] = [
        // The keys of the first exchange are used again in the second.
        |ring| ring.hops[2].0 = 1,
        // A hop is skipped.
        |ring| drop(ring.hops.remove(2)),
        // Ranks that are first see all of their keys.
        |ring| ring.hops[0].1[0].mask = AttentionMask::default(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert!(finds(Fault::None, change), "change {number}");
    }
}

#[test]
fn a_ring_that_does_not_fit_is_an_error() {
    let tokens = tokens(2, TOKENS, &Placement::head_and_tail(0));
    let changes: [(Change, &str); 4] = [
        (|ring| ring.keys.reverse(), "are not those of 2 members"),
        (|ring| ring.hops[1].0 = 2, "in a group of 2; the first must be 0"),
        (|ring| ring.hops[0].0 = 1, "in a group of 2; the first must be 0"),
        (
            |ring| ring.hops.iter_mut().for_each(|hop| hop.1.retain(|it| it.queries.start == 0)),
            "queries",
        ),
    ];
    for (change, problem) in changes {
        let error = on_ranks(&operands(1), &tokens, (false, Fault::None), change).unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

/// Results and gradients of torch's ring, which merges in f32.
#[test]
fn a_ring_has_the_attention_of_torch() {
    for ranks in [3, 4] {
        let path = format!("{}/tests/fixtures/ring-{ranks}.json", env!("CARGO_MANIFEST_DIR"));
        let fixture: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let size = |name: &str| fixture[name].as_u64().unwrap() as usize;
        assert_eq!((size("features"), fixture["scale"].as_f64()), (FEATURES, Some(SCALE)));
        let of = |name: &str| {
            let values = fixture[name].as_array().unwrap().iter();
            let values = values.map(|value| value.as_f64().unwrap()).collect();
            Plain { tokens: size("tokens"), heads: size("heads"), values }
        };
        let operands = ["q", "k", "v", "dout"].map(of);
        let expected = ["out", "dq", "dk", "dv"].map(of);
        let tokens = tokens(ranks, size("tokens"), &Placement::head_and_tail(0));
        let of_change = |change: Change| {
            let outcomes = on_ranks(&operands, &tokens, (false, Fault::None), change).unwrap();
            holds(&expected, &tokens, &outcomes, 2e-6)
        };
        assert!(of_change(|_| ()), "{ranks} ranks");
        assert!(!of_change(|ring| ring.hops[0].1[0].mask = AttentionMask::default()));
    }
}
