//! Worlds in simulated time: the plan's checker against runs, verdicts on injected faults, links.

mod faults;
mod links;
mod plan;
mod program;
mod verdicts;
