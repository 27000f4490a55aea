//! `auto` is never slower than the best schedule of the literature, keeps within its memory cap, and
//! names the least cap that works.

use meshgrad_pipeline::{Auto, Costs, Kind, Lowering, MemoryCap, Named, Program, Shape};
use proptest::prelude::*;

const ROUNDING: f64 = 1e-6;

/// The shortest run of a schedule of the literature within a memory cap.
fn best_named(shape: Shape, costs: &Costs, cap: f64) -> Option<f64> {
    let training = Named::ALL.into_iter().filter(|&it| it != Named::Inference);
    let schedules = training.filter_map(|it| it.schedule(shape).ok());
    let runs = schedules.map(|it| it.lower(&Lowering::default()).unwrap().simulate(costs).unwrap());
    let fitting = runs.filter(|it| it.peak_memory() <= cap);
    fitting.map(|it| it.makespan()).min_by(f64::total_cmp)
}

fn least_cap(shape: Shape, costs: &Costs) -> f64 {
    let error = Auto::search(shape, costs, Some(0.0)).unwrap_err();
    error.details::<MemoryCap>().unwrap_or_else(|| panic!("{error}")).least
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn never_slower_than_the_literature_and_within_the_cap(
        (shape, costs) in crate::random::shape_and_costs(),
        factor in 1.0..6.0f64,
    ) {
        let cap = factor * least_cap(shape, &costs);
        let auto = Auto::search(shape, &costs, Some(cap)).unwrap();
        prop_assert!(auto.simulation.peak_memory() <= cap * (1.0 + ROUNDING));
        if let Some(best) = best_named(shape, &costs, cap) {
            prop_assert!(auto.simulation.makespan() <= best * (1.0 + ROUNDING));
        }

        // What was simulated is what is returned, and it passes the check.
        let program = auto.schedule.lower(&Lowering::default()).unwrap();
        prop_assert_eq!(&program.simulate(&costs).unwrap(), &auto.simulation);
        let ranks = program.ranks().to_vec();
        prop_assert!(Program::new(program.placement().clone(), shape.microbatches(), ranks).is_ok());
    }

    /// The least cap of the error works, and anything less does not.
    #[test]
    fn the_least_cap_works((shape, costs) in crate::random::shape_and_costs()) {
        let least = least_cap(shape, &costs);
        let auto = Auto::search(shape, &costs, Some(least)).unwrap();
        prop_assert!(auto.simulation.peak_memory() <= least * (1.0 + ROUNDING));
        let refused = Auto::search(shape, &costs, Some(least * (1.0 - ROUNDING))).unwrap_err();
        prop_assert_eq!(refused.kind(), Kind::OutOfMemory);
        prop_assert!(refused.details::<MemoryCap>().is_some());
    }
}

/// With a slow first and last stage, as with a large vocabulary, the search beats the literature.
#[test]
fn faster_than_the_literature_for_an_uneven_model() {
    let shape = Shape::new(4, 8, 16).unwrap();
    let mut costs = Costs::uniform(8);
    costs.forward[0] = 1.5;
    costs.forward[7] = 2.0;
    costs.input[7] = 2.0;
    costs.backward[7] = 3.0;
    for cap in [8.0, 12.0, 16.0] {
        let auto = Auto::search(shape, &costs, Some(cap)).unwrap();
        let best = best_named(shape, &costs, cap).unwrap();
        assert_eq!(auto.named, None);
        assert!(auto.simulation.makespan() < best, "cap {cap}: {best}");
    }
}

/// Half the memory of the least schedule of the literature.
#[test]
fn a_cap_below_the_literature_works() {
    let shape = Shape::new(4, 8, 16).unwrap();
    let costs = Costs::uniform(8);
    assert_eq!(best_named(shape, &costs, 4.0), None);
    let auto = Auto::search(shape, &costs, Some(4.0)).unwrap();
    assert!(auto.simulation.idle_share() < 0.3);
    let error = Auto::search(shape, &costs, Some(1.5)).unwrap_err().to_string();
    assert_eq!(error, "no schedule fits in a memory cap of 1.5: the least cap that works is 2");
}

/// Stages need not divide evenly among ranks.
#[test]
fn any_number_of_stages_works() {
    let shape = Shape::new(4, 6, 8).unwrap();
    assert!(Named::ALL.iter().all(|it| it.schedule(shape).is_err()));
    let auto = Auto::search(shape, &Costs::uniform(6), None).unwrap();
    assert_eq!(auto.schedule.placement().stages(), 6);
}
