//! Optimizers, averages of weights and schedules: compared with torch, and their laws.

mod averages;
mod cases;
mod devices;
mod errors;
mod laws;
mod reference;
mod schedules;
mod training;
