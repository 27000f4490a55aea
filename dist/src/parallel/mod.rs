//! Degrees of parallelism, checked, as meshes and groups of ranks.
