//! Devices, memory, dtypes, tensors and the ops on them. No gradients.
