//! The tape: parameters, variables, backward.
