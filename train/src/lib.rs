//! Data, optimizers, schedules and the loop.
