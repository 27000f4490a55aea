//! The conformance suite on the local transport, and what the local transport adds: failures that
//! name ranks and lines, deadlines, meshes and the registry.

mod conformance;
mod devices;
mod failures;
mod faults;
mod groups;
mod parts;
