//! All tests of the crate, in one process.

mod errors;
mod groups;
mod layouts;
mod meshes;
mod redistributions;
mod rules;
mod shardings;
mod transfers;
