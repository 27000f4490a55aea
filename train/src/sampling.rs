//! The distribution that the next token is sampled from. No tensors.
//!
//! Names, formulas and their order are those of transformers: the repetition penalty, then
//! temperature, top-k, top-p and min-p. Unlike in transformers, a temperature of 0 takes the most
//! likely token.

use meshgrad_error::{Result, bail};

/// Parameters of sampling. By default they leave the model's distribution as it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits. With 0, the most likely token is always chosen.
    pub temperature: f64,
    /// The number of most likely tokens to sample from; tokens as likely as the last of them are
    /// kept too. 0 means all.
    pub top_k: usize,
    /// Unlikely tokens are left out while their probabilities sum to at most `1 - top_p`; 1 means
    /// none (Holtzman et al. 2020).
    pub top_p: f64,
    /// Tokens are left out whose probability is below this fraction of the largest; 0 means none
    /// (Nguyen et al. 2024).
    pub min_p: f64,
    /// Divides positive logits of tokens that occur in prompt or text, and multiplies negative
    /// ones; 1 means no penalty (Keskar et al. 2019).
    pub repetition_penalty: f64,
    /// Equal seeds give equal text.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 1,
        }
    }
}

/// A token and its share of the probability, before the shares are divided by their sum.
#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f64,
    weight: f64,
}

impl Sampling {
    /// Checks the ranges.
    ///
    /// # Errors
    /// For the first parameter that is out of range. The message starts with its name.
    pub fn check(&self) -> Result<()> {
        const FRACTION: &str = "from 0 to 1";
        let is_fraction = |value: f64| (0.0..=1.0).contains(&value);
        let (temperature, penalty) = (self.temperature, self.repetition_penalty);
        let is_temperature = temperature.is_finite() && temperature >= 0.0;
        let is_penalty = penalty.is_finite() && penalty > 0.0;
        let checks = [
            ("temperature", temperature, is_temperature, "0 or above"),
            ("top_p", self.top_p, is_fraction(self.top_p), FRACTION),
            ("min_p", self.min_p, is_fraction(self.min_p), FRACTION),
            ("repetition_penalty", penalty, is_penalty, "above 0"),
        ];
        match checks.into_iter().find(|(_, _, is_valid, _)| !is_valid) {
            None => Ok(()),
            Some((name, value, _, range)) => {
                bail!(Invalid, "{name} is {value}; it must be {range}")
            }
        }
    }

    /// The tokens that may be sampled after the tokens `before`, and their probabilities, which sum
    /// to 1. The most likely token comes first; equally likely tokens are in the order of their
    /// ids. The list is empty only without logits. NaN counts as minus infinity.
    pub fn probabilities(&self, logits: &[f32], before: &[u32]) -> Vec<(u32, f64)> {
        let candidates = self.candidates(logits, before);
        let sum = total(&candidates);
        let share = |it: Candidate| (it.id, it.weight / sum);
        candidates.into_iter().map(share).collect()
    }

    /// The token at which the cumulative distribution exceeds `uniform`, a number in [0, 1); 0
    /// without logits.
    pub(crate) fn choose(&self, logits: &[f32], before: &[u32], uniform: f64) -> u32 {
        let candidates = self.candidates(logits, before);
        let mut left = uniform * total(&candidates);
        for candidate in &candidates {
            left -= candidate.weight;
            if left < 0.0 {
                return candidate.id;
            }
        }
        candidates.last().map_or(0, |candidate| candidate.id)
    }

    fn candidates(&self, logits: &[f32], before: &[u32]) -> Vec<Candidate> {
        let mut candidates = self.penalized(logits, before);
        // Stable: equal logits stay in the order of their ids.
        candidates.sort_by(|a, b| b.logit.total_cmp(&a.logit));
        if self.temperature <= 0.0 {
            candidates.truncate(1);
        }
        self.set_weights(&mut candidates);
        self.keep_top_k(&mut candidates);
        self.keep_top_p(&mut candidates);
        self.keep_min_p(&mut candidates);
        candidates
    }

    fn penalized(&self, logits: &[f32], before: &[u32]) -> Vec<Candidate> {
        let candidate = |(id, logit): (usize, &f32)| Candidate {
            id: id as u32,
            logit: match logit.is_nan() {
                true => f64::NEG_INFINITY,
                // -0 equals 0.
                false => f64::from(*logit) + 0.0,
            },
            weight: 1.0,
        };
        let mut all: Vec<Candidate> = logits.iter().enumerate().map(candidate).collect();
        if self.repetition_penalty != 1.0 {
            let mut seen = before.to_vec();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(Candidate { logit, .. }) = all.get_mut(id as usize) {
                    *logit = match *logit < 0.0 {
                        true => *logit * self.repetition_penalty,
                        false => *logit / self.repetition_penalty,
                    };
                }
            }
        }
        all
    }

    fn set_weights(&self, candidates: &mut [Candidate]) {
        if self.temperature <= 0.0 {
            return;
        }
        let highest = candidates.first().map_or(0.0, |first| first.logit);
        for candidate in candidates {
            // This holds for infinite logits too, whose difference is NaN.
            let is_highest = candidate.logit == highest;
            let below = if is_highest { 0.0 } else { candidate.logit - highest };
            candidate.weight = (below / self.temperature).exp();
        }
    }

    fn keep_top_k(&self, candidates: &mut Vec<Candidate>) {
        let last = self.top_k.checked_sub(1).and_then(|at| candidates.get(at));
        if let Some(last) = last.copied() {
            candidates.retain(|candidate| candidate.logit >= last.logit);
        }
    }

    /// Of equally likely tokens, those with smaller ids are left out first, as torch sorts them.
    fn keep_top_p(&self, candidates: &mut Vec<Candidate>) {
        if self.top_p >= 1.0 {
            return;
        }
        let left_out = (1.0 - self.top_p) * total(candidates);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        let of = |at: usize| (candidates[at].logit, candidates[at].id);
        order.sort_by(|&a, &b| {
            let ((a, a_id), (b, b_id)) = (of(a), of(b));
            a.total_cmp(&b).then(a_id.cmp(&b_id))
        });
        // The most likely token stays.
        order.pop();
        let mut is_kept = vec![true; candidates.len()];
        let mut sum = 0.0;
        for at in order {
            sum += candidates[at].weight;
            if sum > left_out {
                break;
            }
            is_kept[at] = false;
        }
        let mut is_kept = is_kept.into_iter();
        candidates.retain(|_| is_kept.next().unwrap_or(true));
    }

    fn keep_min_p(&self, candidates: &mut Vec<Candidate>) {
        let Some(most_likely) = candidates.first().copied() else {
            return;
        };
        let least = self.min_p * most_likely.weight;
        candidates.retain(|it| it.weight >= least || it.id == most_likely.id);
    }
}

fn total(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|candidate| candidate.weight).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOGITS: [f32; 4] = [0.0, 2.0, f32::NAN, 1.0];

    fn chosen(sampling: Sampling, uniform: f64) -> u32 {
        sampling.choose(&LOGITS, &[], uniform)
    }

    fn ids(sampling: Sampling, logits: &[f32]) -> Vec<u32> {
        let found = sampling.probabilities(logits, &[]);
        found.into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn temperature_zero_takes_the_most_likely_token() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(chosen(greedy, 0.99), 1);
        assert_eq!(ids(greedy, &[1.0, 3.0, 3.0]), [1]);
        // The penalty applies before the choice.
        let penalized = Sampling { repetition_penalty: 4.0, ..greedy };
        assert_eq!(penalized.choose(&LOGITS, &[1], 0.0), 3);
    }

    #[test]
    fn top_k_excludes_the_tail() {
        let top = |top_k| Sampling { top_k, ..Sampling::default() };
        assert_eq!(chosen(top(1), 0.999_999), 1);
        assert_eq!(chosen(top(2), 0.999_999), 3);
        assert_eq!(chosen(top(0), 0.999_999), 0);
        assert_eq!(ids(top(9), &LOGITS), [1, 3, 0, 2]);
    }

    /// The fraction of uniform numbers that select a token is its probability.
    #[test]
    fn samples_follow_softmax() {
        let sampling = Sampling { temperature: 0.5, ..Sampling::default() };
        let count = 10_000;
        let hits = (0..count).filter(|i| chosen(sampling, *i as f64 / count as f64) == 1).count();
        let expected = 4f64.exp() / (4f64.exp() + 2f64.exp() + 1.0);
        assert!((hits as f64 / count as f64 - expected).abs() < 1e-3);
    }

    /// Tokens as likely as the last of the top k stay. Top-p leaves out smaller ids first.
    #[test]
    fn ties_are_handled_as_in_transformers() {
        let ties = [1.0, 2.0, 1.0, 1.0];
        let top_k = Sampling { top_k: 2, ..Sampling::default() };
        assert_eq!(ids(top_k, &ties), [1, 0, 2, 3]);
        let top_p = Sampling { top_p: 0.5, ..Sampling::default() };
        assert_eq!(ids(top_p, &[0.0; 4]), [2, 3]);
        let min_p = Sampling { min_p: 1.0, ..Sampling::default() };
        assert_eq!(ids(min_p, &[0.0, 1.0, 1.0]), [1, 2]);
    }

    #[test]
    fn values_out_of_range_are_errors() {
        let default = Sampling::default();
        assert_eq!(default.check(), Ok(()));
        let cases = [
            (Sampling { temperature: -1.0, ..default }, "temperature is -1; it must be 0 or above"),
            (
                Sampling { temperature: f64::INFINITY, ..default },
                "temperature is inf; it must be 0 or above",
            ),
            (Sampling { top_p: 1.5, ..default }, "top_p is 1.5; it must be from 0 to 1"),
            (Sampling { min_p: f64::NAN, ..default }, "min_p is NaN; it must be from 0 to 1"),
            (
                Sampling { repetition_penalty: 0.0, ..default },
                "repetition_penalty is 0; it must be above 0",
            ),
        ];
        for (sampling, expected) in cases {
            assert_eq!(sampling.check().unwrap_err().to_string(), expected);
        }
    }

    /// Logits with ties, infinities and NaN.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            8 => -4i8..4,
            1 => Just(100),
            1 => Just(101),
        ];
        let value = |it: i8| match it {
            100 => f32::NEG_INFINITY,
            101 => f32::NAN,
            it => f32::from(it) / 2.0,
        };
        prop::collection::vec(logit.prop_map(value), 1..20)
    }

    proptest! {
        /// A top-p of 1, a min-p of 0, a penalty of 1 and a top-k of all tokens change nothing:
        /// with each of them, the distribution is softmax.
        #[test]
        fn neutral_values_change_nothing(
            logits in logits(),
            before in prop::collection::vec(0u32..25, 0..5),
        ) {
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            prop_assume!(highest > f32::NEG_INFINITY);
            let weight = |logit: &f32| match logit.is_nan() {
                true => 0.0,
                false => f64::from(logit - highest).exp(),
            };
            let sum: f64 = logits.iter().map(weight).sum();
            for top_k in [0, logits.len(), 99] {
                let neutral = Sampling { top_k, ..Sampling::default() };
                let found = neutral.probabilities(&logits, &before);
                prop_assert_eq!(found.len(), logits.len());
                for (id, probability) in found {
                    let expected = weight(&logits[id as usize]) / sum;
                    prop_assert!((probability - expected).abs() < 1e-12);
                }
            }
        }

        /// The most likely token always stays, sampled tokens are among those that stay, and
        /// stricter values keep no token that weaker values leave out.
        #[test]
        fn at_least_one_token_is_kept(
            logits in logits(),
            before in prop::collection::vec(0u32..25, 0..5),
            top_k in 0usize..4,
            top_p in 0.0f64..=1.0,
            min_p in 0.0f64..=1.0,
            repetition_penalty in 0.5f64..3.0,
            temperature in prop_oneof![Just(0.0), 1e-3f64..10.0],
            uniform in 0.0f64..1.0,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed: 0 };
            prop_assert_eq!(sampling.check(), Ok(()));
            let found = sampling.probabilities(&logits, &before);
            prop_assert!(!found.is_empty());
            let id = sampling.choose(&logits, &before, uniform);
            prop_assert!(found.iter().any(|(kept, _)| *kept == id));

            let highest = |sampling: Sampling| sampling.candidates(&logits, &before)[0].logit;
            let weaker = Sampling { top_p: 1.0, min_p: 0.0, ..sampling };
            prop_assert_eq!(highest(sampling), highest(weaker));
            let more = weaker.probabilities(&logits, &before);
            prop_assert!(found.iter().all(|(id, _)| more.iter().any(|(kept, _)| kept == id)));
        }
    }
}
