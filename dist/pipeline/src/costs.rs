//! Durations and sizes, by stage.

use meshgrad_error::{Result, bail, ensure};

use crate::{Action, Compute, Op};

/// The durations of all actions and the memory of activations. Every list has one entry per stage.
/// The unit of time and that of memory are yours.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// Durations of F.
    pub forward: Vec<f64>,
    /// Durations of B.
    pub backward: Vec<f64>,
    /// Durations of I.
    pub input: Vec<f64>,
    /// Durations of W.
    pub weight: Vec<f64>,
    /// Durations of sends, by the stage that sends.
    pub send: Vec<f64>,
    /// Durations of gathering a stage's parameters.
    pub gather: Vec<f64>,
    /// Durations of reducing a stage's gradients.
    pub reduce: Vec<f64>,
    /// How much of the shorter one of an overlapped pair is hidden: 0, the pair takes as long as both
    /// in turn; 1, as long as the longer one.
    pub overlap: f64,
    /// Memory of the activations of one microbatch, from F until B or I.
    pub activation: Vec<f64>,
    /// Memory that W still needs, from I until W.
    pub pending: Vec<f64>,
}

impl Costs {
    /// F = I = W = 1, B = 2, free communication, no gain from overlap, and activations of size 1 that
    /// are kept until the weight gradient is computed.
    pub fn uniform(stages: usize) -> Costs {
        let all = |value| vec![value; stages];
        Costs {
            forward: all(1.0),
            backward: all(2.0),
            input: all(1.0),
            weight: all(1.0),
            send: all(0.0),
            gather: all(0.0),
            reduce: all(0.0),
            overlap: 0.0,
            activation: all(1.0),
            pending: all(1.0),
        }
    }

    /// Checks all fields for a number of stages.
    ///
    /// # Errors
    /// When a field has a wrong length, or a value that is not a finite number of at least 0.
    pub fn check(&self, stages: usize) -> Result<()> {
        for (what, list) in [
            ("forward", &self.forward),
            ("backward", &self.backward),
            ("input", &self.input),
            ("weight", &self.weight),
            ("send", &self.send),
            ("gather", &self.gather),
            ("reduce", &self.reduce),
            ("activation", &self.activation),
            ("pending", &self.pending),
        ] {
            let len = list.len();
            ensure!(
                len == stages,
                Invalid,
                "{what}: {len} values for {stages} stages; give one each"
            );
            let is_wrong = |value: &f64| !value.is_finite() || *value < 0.0;
            if let Some(value) = list.iter().copied().find(is_wrong) {
                bail!(Invalid, "{what}: {value} is not a finite number of at least 0");
            }
        }
        let overlap = self.overlap;
        ensure!(
            (0.0..=1.0).contains(&overlap),
            Invalid,
            "overlap: {overlap} is not between 0 and 1"
        );
        Ok(())
    }

    /// The duration of an action.
    pub(crate) fn duration(&self, action: Action) -> f64 {
        match action {
            Action::Compute(compute) => self.compute(compute),
            Action::Overlapped(forward, backward) => {
                let (forward, backward) = (self.compute(forward), self.compute(backward));
                forward + backward - self.overlap * forward.min(backward)
            }
            Action::Send(message) => self.send[message.from()],
            Action::Gather(stage) => self.gather[stage],
            Action::Reduce(stage) => self.reduce[stage],
            Action::Receive(_) | Action::Release(_) => 0.0,
        }
    }

    pub(crate) fn compute(&self, compute: Compute) -> f64 {
        let list = match compute.op {
            Op::Forward => &self.forward,
            Op::Backward => &self.backward,
            Op::BackwardInput => &self.input,
            Op::BackwardWeight => &self.weight,
        };
        list[compute.stage]
    }
}
