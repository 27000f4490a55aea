//! Contestants in turns: whatever disturbs a round disturbs all of it, and ratios are taken within
//! rounds.

use meshgrad_harness::{Spread, interleave};
use serde::Serialize;

use super::interrupt::Interrupt;

/// What takes turns.
pub(super) struct Contestant<'a> {
    pub(super) name: String,
    /// Bytes of one turn; none where it is not about bytes.
    pub(super) bytes: u64,
    /// What its speed is compared with: the place of another.
    pub(super) beside: Option<usize>,
    /// How a turn is taken, which gives seconds; or why it cannot be.
    pub(super) turn: Result<Turn<'a>, String>,
}

/// Takes a turn; gives its seconds.
pub(super) type Turn<'a> = Box<dyn Fn() -> anyhow::Result<f64> + 'a>;

/// What came of the turns of one contestant.
#[derive(Serialize)]
pub(super) struct Standing {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Why there are no samples.
    pub(super) left_out: Option<String>,
    pub(super) seconds: Option<Spread>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) samples: Vec<f64>,
    pub(super) beside: Option<Beside>,
}

/// The speed beside that of another, which has the same turns: 2 is twice as fast.
#[derive(Serialize)]
pub(super) struct Beside {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) speed: Spread,
}

/// Lets them take turns, `samples` times each and once before, which does not count. Each round
/// begins with another one: nobody follows the same predecessor always. `before` is called before
/// each turn.
pub(super) fn hold(
    contestants: &[Contestant<'_>],
    samples: u32,
    before: &dyn Fn() -> anyhow::Result<()>,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<Standing>> {
    let mut all = vec![Vec::new(); contestants.len()];
    interleave(contestants.len(), samples as usize, |round, at| {
        let Ok(turn) = &contestants[at].turn else {
            return Ok(());
        };
        interrupt.check()?;
        before()?;
        let seconds = turn()?;
        if round > 0 {
            all[at].push(seconds);
        }
        anyhow::Ok(())
    })?;
    let standing = |(contestant, own): (&Contestant<'_>, &Vec<f64>)| {
        let other = contestant
            .beside
            .map(|at| (&contestants[at].name, &all[at]));
        standing(contestant, own, other)
    };
    Ok(contestants.iter().zip(&all).map(standing).collect())
}

fn standing(
    contestant: &Contestant<'_>,
    own: &[f64],
    other: Option<(&String, &Vec<f64>)>,
) -> Standing {
    let seconds = Spread::try_of(own);
    let rate = |it: Spread| contestant.bytes as f64 / it.median;
    let beside = other.and_then(|(name, other)| {
        let ratios: Vec<f64> = other.iter().zip(own).map(|(b, a)| b / a).collect();
        let (name, speed) = (name.clone(), Spread::try_of(&ratios)?);
        Some(Beside { name, speed })
    });
    Standing {
        name: contestant.name.clone(),
        bytes: contestant.bytes,
        left_out: contestant.turn.as_ref().err().cloned(),
        seconds,
        bytes_per_second: seconds.filter(|_| contestant.bytes > 0).map(rate),
        samples: own.to_vec(),
        beside,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Turns alternate, the first round is not counted, ratios are of one round each.
    #[test]
    fn rounds_are_interleaved() {
        let order = RefCell::new(String::new());
        let contestant = |name: &str, seconds: [f64; 3], beside| {
            let (shown, turns, order) = (name.to_owned(), RefCell::new(seconds.to_vec()), &order);
            Contestant {
                name: name.to_owned(),
                bytes: 12,
                beside,
                turn: Ok(Box::new(move || {
                    order.borrow_mut().push_str(&shown);
                    Ok(turns.borrow_mut().remove(0))
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
            beside: Some(0),
            turn: Err("not here".to_owned()),
        });
        let standings = hold(&all, 2, &|| Ok(()), &Interrupt::default()).unwrap();
        assert_eq!(*order.borrow(), "abbaab");

        let [_, b, c] = &standings[..] else {
            panic!("three took part")
        };
        assert_eq!(b.samples, [2.0, 4.0]);
        assert_eq!(b.bytes_per_second, Some(4.0));
        let beside = b.beside.as_ref().unwrap();
        assert_eq!((&*beside.name, beside.speed.median), ("a", 1.25));
        assert_eq!((beside.speed.min, beside.speed.max), (0.5, 2.0));
        assert_eq!(c.left_out.as_deref(), Some("not here"));
        assert!(c.seconds.is_none() && c.beside.is_none());
    }
}
