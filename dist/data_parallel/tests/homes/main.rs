//! Data parallelism of a chain of layers: what is gathered, kept and sent, and when.

mod chain;
mod errors;
mod resources;
mod stages;
mod tied;
