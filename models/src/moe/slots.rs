//! How many slots a rank keeps for the tokens that it sends to another.

use std::sync::{Arc, Mutex, PoisonError};

use meshgrad_autograd::Result;
use meshgrad_runtime::{DType, Device, Tensor, ops};

/// Slots come in powers of two, up to 2^31, so that their number changes rarely.
const SIZES: usize = 32;

/// The elements of [`Slots::needs`].
pub(super) const COUNTED: usize = 1 + SIZES;

/// Slots are enough if this fraction of them is.
const FILLED: f64 = 0.8;

/// The steps after which unused slots are given up.
const PATIENCE: usize = 16;

/// The slots of a layer. Clones share them.
///
/// At first there are as many as can be needed. With [`Slots::adapt`], those of a training pass follow
/// what the last steps needed. A dispatch that needs more drops rows, so its step must be repeated.
#[derive(Clone, Default)]
pub(super) struct Slots(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    adapts: bool,
    /// The power of two; `None` for as many as can be needed.
    exponent: Option<usize>,
    /// Steps that needed fewer, and the most of them.
    fewer: (usize, usize),
    /// Of what there is, how much may be filled in each size, f32 [32].
    sizes: Option<Tensor>,
}

impl Slots {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets the slots follow what is needed, or not.
    pub(super) fn adapt(&self, adapts: bool) {
        self.with(|state| *state = State { adapts, ..State::default() });
    }

    pub(super) fn adapts(&self) -> bool {
        self.with(|state| state.adapts)
    }

    /// Uses the next power of two of `slots` until the next step has been followed.
    pub(super) fn set(&self, slots: usize) {
        let power = slots.max(1).checked_next_power_of_two();
        self.with(|state| {
            if state.adapts {
                state.exponent = power.map(|power| power.trailing_zeros() as usize);
                state.fewer = (0, 0);
            }
        });
    }

    /// The slots for each token of a rank in most steps, if tokens choose `top_k` experts evenly, of which
    /// each of `ranks` ranks has `held`.
    pub(super) fn per_token(&self, top_k: usize, ranks: usize, held: usize) -> f64 {
        match self.adapts() {
            true => top_k as f64 / ranks as f64 / FILLED,
            false => top_k.min(held) as f64,
        }
    }

    /// The slots of a training pass, at most `worst`.
    pub(super) fn in_training(&self, worst: usize) -> usize {
        let exponent = self.with(|state| state.exponent);
        exponent.map_or(worst, |exponent| worst.min(1 << exponent))
    }

    /// What a step must know of a dispatch: whether a rank gets more than `slots` of the rows for each
    /// rank, f32 [ranks], then for each power of two whether so many slots would be too few. All are 0
    /// or 1, f32 [33].
    pub(super) fn needs(&self, rows_by_rank: &Tensor, slots: usize) -> Result<Tensor> {
        let largest = ops::max(rows_by_rank, &[0])?;
        let limits = self.limits(largest.device(), slots)?;
        let largest = ops::reshape(&largest, &[1])?.broadcast_to(&[COUNTED])?;
        ops::clamp(&ops::sub(&largest, &limits)?, 0.0, 1.0) // of integers
    }

    /// The rows that `slots` have room for, then those that each size should have.
    fn limits(&self, device: &Device, slots: usize) -> Result<Tensor> {
        let kept = self.with(|state| state.sizes.clone());
        let sizes = match kept.filter(|sizes| sizes.device() == device) {
            Some(sizes) => sizes,
            None => {
                let filled = |exponent: usize| (FILLED * (1u64 << exponent) as f64).floor() as f32;
                let sizes: Vec<f32> = (0..SIZES).map(filled).collect();
                let sizes = Tensor::from_slice(device, &[SIZES], &sizes)?;
                self.with(|state| state.sizes.insert(sizes).clone())
            }
        };
        ops::concat(&[&ops::full(device, &[1], DType::F32, slots as f64)?, &sizes], 0)
    }

    /// Follows the sums of [`Slots::needs`] over a step and all ranks.
    pub(super) fn follow(&self, needs: &[f32]) {
        let Some(needed) = needs.iter().skip(1).position(|too_few| *too_few == 0.0) else {
            return self.with(|state| state.exponent = None);
        };
        self.with(|state| {
            let (steps, most) = state.fewer;
            state.fewer = (steps + 1, most.max(needed));
            if state.exponent.is_none_or(|own| own <= needed) || state.fewer.0 == PATIENCE {
                state.exponent = Some(state.fewer.1);
                state.fewer = (0, 0);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(slots: &Slots, rows: &[f32]) -> Vec<f32> {
        let rows = Tensor::from_slice(&Device::cpu(), &[rows.len()], rows).unwrap();
        let needs = slots.needs(&rows, slots.in_training(1000)).unwrap().to_vec().unwrap();
        slots.follow(&needs);
        needs
    }

    /// Slots grow at once, to a power of two of which a fifth is free, and shrink after some steps.
    #[test]
    fn slots_follow_the_largest_count() {
        let slots = Slots::default();
        slots.adapt(true);
        assert_eq!(slots.in_training(1000), 1000);
        for (rows, then, overflows) in [(25.0, 32, false), (33.0, 64, true), (52.0, 128, false)] {
            assert_eq!(follow(&slots, &[3.0, rows])[0] > 0.0, overflows);
            assert_eq!(slots.in_training(1000), then);
        }
        for step in 1..=PATIENCE {
            assert_eq!(slots.in_training(1000), 128, "step {step}");
            follow(&slots, &[if step == 5 { 30.0 } else { 3.0 }, 0.0]);
        }
        assert_eq!(slots.in_training(1000), 64);
        assert_eq!(slots.in_training(20), 20);
        slots.set(usize::MAX);
        assert_eq!(slots.in_training(1000), 1000);
    }
}
