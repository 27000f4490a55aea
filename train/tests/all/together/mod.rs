//! Any combination of degrees and options trains as one rank.

mod captured;
mod cost;
mod draw;
mod nccl;
mod planted;
mod run;

use std::env;

use crate::small::{distance, norm};
use crate::together::draw::{Combination, Kind};
use crate::together::planted::Planted;
use crate::together::run::{Choices, Trained, on_one_rank, on_ranks, refusal};

/// The largest differences from one rank in f32: of a loss or norm, relative; of weights, relative to the
/// largest one.
const STEP: f64 = 1e-5;
const WEIGHT: f32 = 1e-4;

/// In bf16: of a loss or norm, relative, beside three times the difference of one rank in bf16 from f32;
/// the smallest cosine of the updates of all weights, and the largest relative difference of their norms.
const STEP_BF16: f64 = 1e-2;
const COSINE_BF16: f64 = 0.99;
const NORM_BF16: f64 = 3e-2;

/// The largest relative difference of a loss or norm, `which`, in any step.
fn difference(a: &Trained, b: &Trained, which: usize) -> f64 {
    let steps = a.steps.iter().zip(&b.steps).map(|(a, b)| [a[which], b[which]]);
    let relative = steps.map(|[a, b]| if a == b { 0.0 } else { (a - b).abs() / a.abs() });
    relative.fold(0.0, |most, it| if it > most || it.is_nan() { it } else { most })
}

/// What differs from one rank, and by how much.
fn differences(of: &Combination, one: &One, ranks: &Trained) -> Vec<String> {
    let mut found = Vec::new();
    let One { trained: one, exact, .. } = one;
    for (which, name) in ["loss", "norm"].into_iter().enumerate() {
        let allowed = match exact {
            Some(exact) => STEP_BF16 + 3.0 * difference(exact, one, which),
            None => STEP,
        };
        let difference = difference(one, ranks, which);
        if difference.is_nan() || difference > allowed {
            found.push(format!("{name}: differs by {difference:.1e}, allowed are {allowed:.1e}"));
        }
    }
    match one.weights.keys().eq(ranks.weights.keys()) {
        true if of.bf16 => found.extend(differing_updates(one, ranks)),
        true => found.extend(differing_weights(one, ranks)),
        false => found.push("other weights".to_owned()),
    }
    found
}

fn differing_weights(one: &Trained, ranks: &Trained) -> Vec<String> {
    let mut found = Vec::new();
    for (name, one) in &one.weights {
        let ranks = &ranks.weights[name];
        let allowed = WEIGHT * one.iter().fold(0.0f32, |largest, it| largest.max(it.abs()));
        if !one.iter().zip(ranks).all(|(a, b)| (a - b).abs() <= allowed) {
            found.push(format!("{name}: {:.1e} of {:.1e}", distance(ranks, one), norm(one)));
        }
    }
    found
}

fn differing_updates(one: &Trained, ranks: &Trained) -> Option<String> {
    let update = |of: &Trained| -> Vec<f32> {
        let pairs = of.weights.values().zip(one.initial.values());
        pairs
            .flat_map(|(weights, initial)| weights.iter().zip(initial))
            .map(|(a, b)| a - b)
            .collect()
    };
    let (one, ranks) = (update(one), update(ranks));
    let product: f64 = one.iter().zip(&ranks).map(|(a, b)| f64::from(a * b)).sum();
    let (cosine, ratio) = (product / (norm(&one) * norm(&ranks)), norm(&ranks) / norm(&one));
    let is_near = cosine >= COSINE_BF16 && (ratio - 1.0).abs() <= NORM_BF16;
    (!is_near).then(|| format!("updates: cosine {cosine:.4}, norms {ratio:.4}"))
}

/// What one rank does.
struct One {
    trained: Trained,
    choices: Choices,
    /// In f32, of a combination in bf16.
    exact: Option<Trained>,
}

impl One {
    fn of(of: &Combination) -> One {
        let (trained, choices) = on_one_rank(of, &Choices::new());
        let exact = Combination { bf16: false, ..of.clone() };
        let exact = of.bf16.then(|| on_one_rank(&exact, &choices).0);
        One { trained, choices, exact }
    }
}

/// Trains a combination.
fn check(of: &Combination) -> One {
    let one = One::of(of);
    let ranks = on_ranks(of, &one.choices, Planted::Nothing);
    let ranks = ranks.unwrap_or_else(|error| panic!("{of}: {error}"));
    assert_eq!(differences(of, &one, &ranks), [""; 0], "{of}");
    assert!(ranks.repeats > 0 || !of.overflows, "{of}: no step overflowed");
    println!("{of}:\nstep    loss on one rank and on all    norm on one rank and on all");
    for (at, (one, all)) in one.trained.steps.iter().zip(&ranks.steps).enumerate() {
        let [[loss, norm], [loss_all, norm_all]] = [one, all];
        println!("{:4}    {loss:.6}  {loss_all:.6}    {norm:.6}  {norm_all:.6}", at + 1);
    }
    one
}

fn is_exhaustive() -> bool {
    env::var_os("MESHGRAD_EXHAUSTIVE").is_some()
}

/// All six dimensions, on 64 ranks.
fn all_dimensions(model: Kind) -> Combination {
    along(&["pp", "dp_replicate", "dp_shard", "cp_shard", "sp", "tp"], model)
}

/// Two ranks along each of these axes.
fn along(axes: &[&'static str], model: Kind) -> Combination {
    let all = axes.iter().fold(Combination::default(), |it, axis| it.with(axis, 2));
    Combination {
        model,
        schedule: Some("1f1b"),
        ring: true,
        sequence_parallel: all.degree("tp") > 1,
        documents: true,
        all_to_all: true,
        ..all
    }
}

/// 64 ranks train as one, with experts over 2, 4 and 8 of the 32 ranks of a stage. Each fault is found.
/// By default, 16 ranks.
#[test]
fn all_dimensions_train_as_one_rank() {
    let of: fn(Kind) -> Combination = match is_exhaustive() {
        true => all_dimensions,
        false => |model| along(&["pp", "dp_replicate", "cp_shard", "tp"], model),
    };
    if is_exhaustive() {
        check(&of(Kind::Experts).with("ep", 2));
        check(&of(Kind::Experts).with("ep", 8));
    }
    let experts = of(Kind::Experts).with("ep", 4);
    let one = check(&experts);
    for fault in Planted::FAULTS.into_iter().filter(|it| *it != Planted::TiedTwice) {
        finds(fault, &experts, &one);
    }
    let tied = of(Kind::Tied);
    finds(Planted::TiedTwice, &tied, &check(&tied));
}

fn finds(fault: Planted, of: &Combination, one: &One) {
    match on_ranks(of, &one.choices, fault) {
        Ok(ranks) => assert_ne!(differences(of, one, &ranks), [""; 0], "{fault:?}"),
        Err(error) => println!("{fault:?}: {error}"),
    }
}

/// Without replayed choices, rounding may change the experts of a token, and no more.
#[test]
fn few_tokens_choose_other_experts() {
    let of = along(&["pp", "dp_shard", "sp", "tp"], Kind::Experts).with("ep", 4);
    let (one, _) = on_one_rank(&of, &Choices::new());
    let ranks = on_ranks(&of, &Choices::new(), Planted::Nothing).unwrap();
    let tokens = (of.replicas() * of.tokens() * of.microbatches()) as f64;
    let mut flips = 0.0;
    for (one, ranks) in one.experts.iter().zip(&ranks.experts) {
        let moved: f64 = one.iter().zip(ranks).map(|(a, b)| (a - b).abs()).sum();
        flips += moved / 2.0 * tokens;
    }
    println!("at least {flips:.1} of {tokens} tokens a step have another expert, in five steps");
    assert!(flips < 0.01 * tokens);
}

/// What a combination has, whether it does, and how many of sixty must.
type Wanted = (&'static str, fn(&Combination) -> bool, usize);

const WANTED: [Wanted; 5] = [
    ("four or more degrees above one", |of| of.dimensions() >= 4, 20),
    ("pp and ep", |of| of.degree("pp") > 1 && of.degree("ep") > 1, 15),
    ("cp and documents", |of| of.context() > 1 && of.documents, 10),
    ("overflow", |of| of.overflows, 10),
    ("odd degrees", |of| of.degrees.iter().any(|(_, degree)| degree % 2 == 1), 10),
];

#[test]
fn drawn_combinations_train_as_one_rank() {
    let (wanted, most) = if is_exhaustive() { (60, 64) } else { (12, 16) };
    let seed: u64 = env::var("MESHGRAD_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("MESHGRAD_TEST_SEED={seed}");
    let mut checked: Vec<Combination> = Vec::new();
    let lacks = |checked: &[Combination]| {
        let has = |(_, is, least): &Wanted| {
            60 * checked.iter().filter(|of| is(of)).count() >= least * wanted
        };
        checked.len() < wanted || !WANTED.iter().all(has)
    };
    for number in seed * 1000.. {
        if !lacks(&checked) {
            break;
        }
        let drawn = Combination::drawn(number, most);
        match refusal(&drawn) {
            // Any other error is a fault.
            Some(reason) => {
                println!("refused: {drawn}: {reason}");
                assert!(reason.contains("divide") && reason.contains(" must be "), "{reason}");
            }
            None => {
                println!("{drawn}");
                check(&drawn);
                checked.push(drawn);
            }
        }
    }
    for (name, is, _) in WANTED {
        println!("{name}: {} of {}", checked.iter().filter(|of| is(of)).count(), checked.len());
    }
}

/// Four key-value heads over three ranks: one has none, and other FLOPs than the others. Groups of experts
/// cut those of tensor parallelism.
#[test]
fn ranks_with_uneven_heads_agree_on_the_stages() {
    let names = [("pp", 2), ("tp", 3), ("dp_replicate", 2), ("ep", 2)];
    let of = names.iter().fold(Combination::default(), |it, (name, degree)| it.with(name, *degree));
    check(&Combination { schedule: Some("zbv"), zero1: true, ..of });
}
