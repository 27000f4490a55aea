//! Times contestants in interleaved rounds and compares them by the ratios within each round.

use meshgrad_harness::{Spread, interleave};
use serde::Serialize;

use crate::ckpt::interrupt::Interrupt;

/// One of the compared methods.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    /// Bytes per sample; 0 if it moves no data.
    pub(super) bytes: u64,
    /// The index of the contestant that its speed is compared with.
    pub(super) baseline: Option<usize>,
    /// Takes a sample; an error is the reason why this is impossible.
    pub(super) sample: Result<Sample<'a>, String>,
}

/// Takes a sample and returns its seconds.
pub(super) type Sample<'a> = Box<dyn Fn() -> anyhow::Result<f64> + 'a>;

/// The measurements of one contestant.
#[derive(Serialize)]
pub(super) struct Measurement {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Why the contestant was skipped.
    pub(super) left_out: Option<String>,
    pub(super) seconds: Option<Spread>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) samples: Vec<f64>,
    #[serde(rename = "beside")]
    pub(super) relative: Option<Relative>,
}

/// The speed relative to a baseline: 2 is twice as fast.
#[derive(Serialize)]
pub(super) struct Relative {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) speed: Spread,
}

/// Takes `samples` samples of each contestant in interleaved rounds, after a warm-up round. Calls
/// `before` before each sample.
pub(super) fn measure(
    contestants: &[Contestant<'_>],
    samples: u32,
    before: &dyn Fn() -> anyhow::Result<()>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Measurement>> {
    let mut all = vec![Vec::new(); contestants.len()];
    interleave(contestants.len(), samples as usize, |round, at| {
        let Ok(sample) = &contestants[at].sample else {
            return Ok(());
        };
        interrupt.check()?;
        before()?;
        let seconds = sample()?;
        if round > 0 {
            all[at].push(seconds);
        }
        anyhow::Ok(())
    })?;
    let measurement = |(contestant, own): (&Contestant<'_>, &Vec<f64>)| {
        let baseline = contestant.baseline;
        let baseline = baseline.map(|at| (&contestants[at].name, &all[at]));
        measurement(contestant, own, baseline)
    };
    Ok(contestants.iter().zip(&all).map(measurement).collect())
}

fn measurement(
    contestant: &Contestant<'_>,
    own: &[f64],
    baseline: Option<(&String, &Vec<f64>)>,
) -> Measurement {
    let seconds = Spread::try_of(own);
    let rate = |it: Spread| contestant.bytes as f64 / it.median;
    let relative = baseline.and_then(|(name, baseline)| {
        let ratios: Vec<f64> = baseline.iter().zip(own).map(|(b, a)| b / a).collect();
        let (name, speed) = (name.clone(), Spread::try_of(&ratios)?);
        Some(Relative { name, speed })
    });
    Measurement {
        name: contestant.name.clone(),
        bytes: contestant.bytes,
        left_out: contestant.sample.as_ref().err().cloned(),
        seconds,
        bytes_per_second: seconds.filter(|_| contestant.bytes > 0).map(rate),
        samples: own.to_vec(),
        relative,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Contestants alternate, the first round is not counted, and ratios are taken within rounds.
    #[test]
    fn rounds_are_interleaved() {
        let order = RefCell::new(String::new());
        let contestant = |name: &str, seconds: [f64; 3], baseline| {
            let (shown, samples, order) = (name.to_owned(), RefCell::new(seconds.to_vec()), &order);
            Contestant {
                name: name.to_owned(),
                bytes: 12,
                baseline,
                sample: Ok(Box::new(move || {
                    order.borrow_mut().push_str(&shown);
                    Ok(samples.borrow_mut().remove(0))
                })),
            }
        };
        let mut all = vec![
            contestant("a", [100.0, 1.0, 8.0], None),
            contestant("b", [100.0, 2.0, 4.0], Some(0)),
        ];
        all.push(Contestant {
            name: "c".to_owned(),
            bytes: 12,
            baseline: Some(0),
            sample: Err("not here".to_owned()),
        });
        let measurements = measure(&all, 2, &|| Ok(()), &Interrupt::default()).unwrap();
        assert_eq!(*order.borrow(), "abbaab");

        let [_, b, c] = &measurements[..] else { panic!("expected three measurements") };
        assert_eq!(b.samples, [2.0, 4.0]);
        assert_eq!(b.bytes_per_second, Some(4.0));
        let relative = b.relative.as_ref().unwrap();
        assert_eq!((&*relative.name, relative.speed.median), ("a", 1.25));
        assert_eq!((relative.speed.min, relative.speed.max), (0.5, 2.0));
        assert_eq!(c.left_out.as_deref(), Some("not here"));
        assert!(c.seconds.is_none() && c.relative.is_none());
    }
}
