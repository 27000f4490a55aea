//! The distribution of the next token, compared with that of transformers 5.
//! `tests/all/sampling/make_fixtures.py` wrote the expected probabilities.

use meshgrad_train::sampling::Sampling;
use serde_json::Value;

/// The largest relative difference of a probability: the fixture has ten digits.
const ROUNDING: f64 = 1e-9;

fn sampling(options: &Value) -> Sampling {
    let default = Sampling::default();
    let of = |name: &str, default: f64| options[name].as_f64().unwrap_or(default);
    Sampling {
        temperature: of("temperature", default.temperature),
        top_k: of("top_k", 0.0) as usize,
        top_p: of("top_p", default.top_p),
        min_p: of("min_p", default.min_p),
        repetition_penalty: of("repetition_penalty", default.repetition_penalty),
        seed: 0,
    }
}

/// The number of cases in which `probabilities` differs from the fixture, and the number of all
/// cases.
fn differing(
    probabilities: impl Fn(Sampling, &[f32], &[u32]) -> Vec<(u32, f64)>,
) -> (usize, usize) {
    let fixture = include_str!("sampling/probabilities.json");
    let texts: Vec<Value> = serde_json::from_str(fixture).unwrap();
    let (mut differing, mut all) = (0, 0);
    for text in &texts {
        let list = |name: &str| text[name].as_array().unwrap();
        let logit = |it: &Value| it.as_f64().map_or(f32::NEG_INFINITY, |it| it as f32);
        let logits: Vec<f32> = list("logits").iter().map(logit).collect();
        let before = list("before").iter().map(|id| id.as_u64().unwrap() as u32);
        let before: Vec<u32> = before.collect();
        for case in list("cases") {
            let mut found = vec![0.0; logits.len()];
            for (id, probability) in probabilities(sampling(&case["options"]), &logits, &before) {
                found[id as usize] = probability;
            }
            let expected = case["probabilities"].as_array().unwrap().iter();
            let mut pairs = expected.map(|it| it.as_f64().unwrap()).zip(found);
            let is_same =
                pairs.all(|(expected, found)| (expected - found).abs() <= ROUNDING * expected);
            differing += usize::from(!is_same);
            all += 1;
        }
    }
    (differing, all)
}

#[test]
fn probabilities_equal_those_of_transformers() {
    let found = differing(|sampling, logits, before| sampling.probabilities(logits, before));
    assert_eq!(found, (0, 105));
}

/// The comparison detects an ignored option, and processors in another order.
#[test]
fn the_comparison_detects_mistakes() {
    type Mistake = fn(Sampling, &[f32], &[u32]) -> Vec<(u32, f64)>;
    let mistakes: [(&str, Mistake); 7] = [
        ("no temperature", |it, logits, before| {
            Sampling { temperature: 1.0, ..it }.probabilities(logits, before)
        }),
        ("no top-k", |it, logits, before| {
            Sampling { top_k: 0, ..it }.probabilities(logits, before)
        }),
        ("no top-p", |it, logits, before| {
            Sampling { top_p: 1.0, ..it }.probabilities(logits, before)
        }),
        ("no min-p", |it, logits, before| {
            Sampling { min_p: 0.0, ..it }.probabilities(logits, before)
        }),
        ("no penalty", |it, logits, _| it.probabilities(logits, &[])),
        ("the penalty of the last token only", |it, logits, before| {
            it.probabilities(logits, &before[before.len() - 1..])
        }),
        ("the temperature after the rest", |it, logits, before| {
            let kept = Sampling { temperature: 1.0, ..it }.probabilities(logits, before);
            let power = |(id, p): &(u32, f64)| (*id, p.powf(1.0 / it.temperature));
            let powers: Vec<(u32, f64)> = kept.iter().map(power).collect();
            let sum: f64 = powers.iter().map(|(_, power)| power).sum();
            powers.into_iter().map(|(id, power)| (id, power / sum)).collect()
        }),
    ];
    for (name, mistake) in mistakes {
        let (differing, _) = differing(mistake);
        assert!(differing > 0, "{name} is not seen");
    }
}
