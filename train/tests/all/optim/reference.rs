//! Parameters and state after twenty steps equal those of the references: torch, and numpy for
//! Lion.

use meshgrad_runtime::Device;

use crate::optim::cases::{Case, Fault, cases, cases_with};
use crate::optim::training::{SCALE, STEPS, Training, distance, fixture, whole};

/// The tensors that are further from the fixture than tolerated, after all steps with gradients
/// multiplied by `scale`.
fn differences(case: &Case, scale: f32) -> Vec<String> {
    let mut training = Training::new(&Device::cpu(), whole(case.params), &*case.make);
    (1..=STEPS).for_each(|step| training.step_with(step, scale));
    let [of_state, of_params] = case.tolerances;
    let further = |(name, values): (String, Vec<f32>)| {
        let name = format!("{}/{name}", case.name);
        let tolerance = if name.contains("/param/") { of_params } else { of_state };
        let distance = distance(&values, &fixture(&name).values);
        (distance > tolerance).then(|| format!("{name} differs by {distance:e}"))
    };
    training.values().into_iter().filter_map(further).collect()
}

/// Parameters and state after twenty steps with changing learning rates equal the reference's:
/// torch's, and for Lion numpy's.
#[test]
fn optimizers_equal_their_references() {
    for case in cases() {
        assert_eq!(differences(&case, SCALE), [""; 0]);
    }
}

/// A mistake in a factor, decay or constant is larger than the tolerance.
#[test]
fn the_comparison_finds_faults() {
    for case in cases() {
        assert!(!differences(&case, 1.001 * SCALE).is_empty(), "{}", case.name);
    }
    for case in cases_with(Fault::Decay) {
        assert!(!differences(&case, SCALE).is_empty(), "{}", case.name);
    }
    let has_betas = |case: &Case| ["adamw", "lion"].contains(&case.name);
    for case in cases_with(Fault::Betas).into_iter().filter(has_betas) {
        assert!(!differences(&case, SCALE).is_empty(), "{}", case.name);
    }
}
