//! Worlds in simulated time: the plan's checker against runs, verdicts on injected faults, links.

mod faults;
#[path = "../injection/mod.rs"]
mod injection;
mod links;
mod plan;
mod program;
mod verdicts;
