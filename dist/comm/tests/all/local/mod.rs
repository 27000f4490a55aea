//! The conformance suite on the local transport, and what the local transport adds: deadlines,
//! meshes, the registry, and failures that name ranks and lines.

mod conformance;
mod devices;
mod failures;
mod faults;
mod groups;
mod parts;
