//! Stub while building.

/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct PlotError;
