//! Checkpoints on disk: bytes and names, no tensors.
