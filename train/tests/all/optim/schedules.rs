//! Schedules equal those of `torch.optim.lr_scheduler`.
//!
//! torch's schedulers count from 0: the factor of our step t is torch's after t steps.

use std::collections::BTreeMap;

use meshgrad_train::schedule::{Curve, Length, Phase, Phases, Schedule};

fn torch() -> BTreeMap<String, Vec<f64>> {
    serde_json::from_str(include_str!("schedules.json")).unwrap()
}

fn phases(initial: f64, list: &[(u64, f64, Curve)]) -> Phases {
    let start = Phases::starting_at(initial);
    let add = |phases: Phases, &(steps, target, curve): &(u64, f64, Curve)| {
        phases.for_steps(steps, target, curve)
    };
    list.iter().fold(start, add)
}

fn schedules() -> Vec<(&'static str, Box<dyn Schedule>)> {
    let warm_up = (10, 1.0, Curve::Linear);
    let exponential = phases(1.0, &[(40, 0.93f64.powi(40), Curve::Exponential)]);
    vec![
        ("linear", Box::new(phases(1.0, &[(40, 0.2, Curve::Linear)]))),
        ("cosine", Box::new(Phases::cosine(40, 0, 0.1).unwrap())),
        ("polynomial", Box::new(phases(1.0, &[(40, 0.0, Curve::PolyOut(2.5))]))),
        ("exponential", Box::new(exponential)),
        ("warm_up_cosine", Box::new(phases(0.1, &[warm_up, (30, 0.1, Curve::Cosine)]))),
        ("warm_up_linear", Box::new(phases(0.1, &[warm_up, (30, 0.0, Curve::Linear)]))),
    ]
}

#[test]
fn schedules_equal_torch() {
    let torch = torch();
    assert_eq!(torch.len(), schedules().len());
    for (name, schedule) in schedules() {
        for (step, expected) in torch[name].iter().enumerate() {
            let factor = schedule.factor(step as u64);
            assert!((factor - expected).abs() < 1e-12, "{name}, step {step}: {factor} {expected}");
        }
    }
}

/// Each schedule differs from every other by more than the tolerance somewhere.
#[test]
fn the_comparison_finds_another_curve() {
    let torch = torch();
    for (name, _) in schedules() {
        for (other, schedule) in schedules().into_iter().filter(|(other, _)| *other != name) {
            let mut steps = torch[name].iter().enumerate();
            let differs = steps.any(|(step, at)| (schedule.factor(step as u64) - at).abs() > 1e-3);
            assert!(differs, "{name} {other}");
        }
    }
}

/// The shorthands are the phases that their documentation states.
#[test]
fn shorthands_are_phases() {
    let equal = |a: Phases, b: Phases| (1..=130).all(|step| a.factor(step) == b.factor(step));
    let warm_up = Phase::new(Length::Steps(20), 1.0, Curve::Linear);
    let stable = Phase::new(Length::Rest, 1.0, Curve::Linear);
    for curve in [Curve::Linear, Curve::Cosine, Curve::Poly(0.5)] {
        let decay = Phase::new(Length::Percent(25.0), 0.1, curve);
        let expected = Phases::of_run(120, 0.0, &[warm_up, stable, decay]).unwrap();
        let actual = Phases::warmup_stable_decay(120, 20, 30, 0.1, curve).unwrap();
        assert!(equal(actual, expected));
    }
    let line = phases(0.0, &[(20, 1.0, Curve::Linear), (100, 0.2, Curve::Linear)]);
    assert!(equal(Phases::linear(120, 20, 0.2).unwrap(), line));
    assert!(Phases::cosine(10, 20, 0.0).is_err());
}
