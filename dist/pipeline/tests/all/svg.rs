//! The drawing of docs/pipeline.md, and what a drawing shows.
//!
//! After an intended change run `UPDATE_GOLDEN=1 cargo test -p meshgrad-pipeline --test svg` and look
//! at the file.

use std::path::Path;

use meshgrad_pipeline::{Costs, Lowering, Named, Shape};

fn draw(named: Named, costs: &Costs, microbatches: usize, title: &str) -> String {
    let shape = Shape::new(4, costs.forward.len(), microbatches).unwrap();
    let program = named.schedule(shape).unwrap().lower(&Lowering::default()).unwrap();
    program.svg(&program.simulate(costs).unwrap(), title)
}

#[test]
fn the_drawing_of_the_guide_is_current() {
    let costs = Costs::uniform(8);
    let svg = draw(Named::Zbv, &costs, 8, "zbv: 4 ranks, 8 stages, 8 microbatches");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pipeline.svg");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &svg).unwrap();
    }
    assert!(svg == std::fs::read_to_string(&path).unwrap(), "run with UPDATE_GOLDEN=1");
}

/// Every computation has a box; both of a pair too.
#[test]
fn every_computation_is_drawn() {
    let title = "a < b & c";
    let svg = draw(Named::DualPipeV, &Costs::uniform(8), 16, title);
    let shape = Shape::new(4, 8, 16).unwrap();
    let schedule = Named::DualPipeV.schedule(shape).unwrap();
    let mut count = 0;
    for compute in schedule.ranks().iter().flatten().flat_map(|it| it.computes()) {
        count += 1;
        assert!(svg.contains(&format!("<title>{compute}: ")), "{compute}");
    }
    assert_eq!(svg.matches("<title>").count(), count);
    assert!(svg.contains("a &lt; b &amp; c"));
}

/// Extreme costs give finite numbers.
#[test]
fn any_costs_can_be_drawn() {
    for duration in [0.0, 1e-300, 1e-9, 1e12, 1e300] {
        let mut costs = Costs::uniform(4);
        for list in [&mut costs.forward, &mut costs.backward] {
            list.fill(duration);
        }
        let svg = draw(Named::OneFOneB, &costs, 4, "extreme");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{duration}");
        assert!(svg.len() < 100_000, "{duration}");
    }
}
