//! Exponential moving averages of weights.

use meshgrad_error::ensure;
use meshgrad_runtime::{Function, Number, Signature, Tensor, ops};

use super::assign::{assign, averaged};
use super::ranges::Ranges;
use super::slots::{Slots, zeros};
use super::{Groups, Part, State};
use crate::Result;

static AVERAGE: Signature = Signature::new("ema", "average: F[~], param: F[~] -> average: F[~]", 3);

/// Averages of the weights over the steps (Polyak & Juditsky 1992), as
/// `torch.optim.swa_utils.get_ema_multi_avg_fn` computes them:
///
/// ```text
/// average = decay * average + (1 - decay) * param
/// ```
///
/// They start at the values at construction. The state is `ema`, f32 (f64 for f64), even for bf16
/// parameters. Parts may be any range of rows.
pub struct Ema {
    decay: f64,
    slots: Slots<Tensor>,
}

impl Ema {
    /// Averages of `parts` with `decay` in [0, 1].
    ///
    /// # Errors
    /// For another decay; when memory runs out.
    pub fn new(parts: &[Part], decay: f64) -> Result<Ema> {
        let holds = (0.0..=1.0).contains(&decay);
        let ranges = Ranges::default().require("decay", decay, "in [0, 1]", holds);
        ranges.check("ema")?;
        let slots = Slots::new(parts, &Groups::default(), 0.0, |part| {
            let average = zeros(part, part.value().dtype().accumulator())?;
            copy(part.value(), &average)?;
            Ok(average)
        })?;
        Ok(Ema { decay, slots })
    }

    /// Updates the averages with the current values. Does not wait for the device.
    ///
    /// # Errors
    /// For parts that differ from those at construction.
    pub fn update(&self, parts: &[Part]) -> Result<()> {
        let average = Average { decay: self.decay };
        self.each(parts, |mean, value| assign(&AVERAGE, &average, [mean, value], mean))
    }

    /// The averages as `ema`. Writing to the tensors restores saved averages.
    pub fn state(&self) -> State {
        self.slots.state("ema", Some)
    }

    /// Writes the averages to `parts`, rounded to their dtypes, and returns the values before, to
    /// restore after an evaluation.
    ///
    /// # Errors
    /// As [`Ema::update`]; when memory runs out. The values may then be partly replaced.
    pub fn apply(&self, parts: &[Part]) -> Result<Originals> {
        self.each(parts, |_, _| Ok(()))?;
        let values = parts.iter().map(|part| ops::copy(part.value()));
        let originals = Originals(values.collect::<Result<_, _>>()?);
        self.each(parts, copy)?;
        Ok(originals)
    }

    /// Calls `f` with each average and value.
    fn each(&self, parts: &[Part], f: impl Fn(&Tensor, &Tensor) -> Result<()>) -> Result<()> {
        let expected = self.slots.len();
        check_count(expected, parts)?;
        let pairs = parts.iter().map(|part| (part, part.value()));
        let due = self.slots.due(pairs.collect())?;
        due.iter().try_for_each(|due| f(&due.slot.state, due.part.value()))
    }
}

/// The values that [`Ema::apply`] replaced.
#[must_use = "without `restore`, training continues from the averages"]
pub struct Originals(Vec<Tensor>);

impl Originals {
    /// Writes the values back to `parts`, bit for bit.
    ///
    /// # Errors
    /// For another number of parts; an error of the copy for other shapes.
    pub fn restore(self, parts: &[Part]) -> Result<()> {
        check_count(self.0.len(), parts)?;
        let mut pairs = self.0.iter().zip(parts);
        pairs.try_for_each(|(value, part)| copy(value, part.value()))
    }
}

fn check_count(expected: usize, parts: &[Part]) -> Result<()> {
    ensure!(
        parts.len() == expected,
        Invalid,
        "the averages were constructed for {expected} part(s), but now there are {}; pass the same \
         parts",
        parts.len()
    );
    Ok(())
}

/// into = x, in the dtype of `into`.
fn copy(x: &Tensor, into: &Tensor) -> Result<()> {
    ops::copy_into(&ops::cast(x, into.dtype())?, into)
}

struct Average {
    decay: f64,
}

impl Function<2> for Average {
    #[inline(always)]
    fn value<W: Number>(&self, [average, param]: [W; 2]) -> W {
        averaged(self.decay, average, param)
    }
}
