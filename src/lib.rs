//! meshgrad: a distributed training runtime.
