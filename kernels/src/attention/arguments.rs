//! The parameters of the kernels that share a [`Problem`].

use super::problem::{Axis, Problem, View};
use crate::assembler::{In, Out};
use crate::faults::FaultSite;
use crate::params;

params! {
    /// Arguments of [`Attention`](super::Attention).
    pub struct AttentionArguments => Forward {
        /// [B, T, H, D].
        q: View<In>,
        /// [B, S, G, D].
        k: View<In>,
        /// [B, S, G, D].
        v: View<In>,
        /// [B, T, H, D].
        out: View<Out>,
        /// [B, H, T] of f32.
        lse: Out,
        /// Fault sites for out-of-range values of [`Problem::sequences`], first for queries and then
        /// for keys.
        faults: [FaultSite; 2],
        /// Extents, mask and scale.
        problem: Problem = Axis::Queries,
    }
}

params! {
    /// Arguments of [`AttentionGradKeys`](super::AttentionGradKeys).
    pub struct AttentionGradKeysArguments => GradKeys {
        /// [B, T, H, D].
        q: View<In>,
        /// [B, S, G, D].
        k: View<In>,
        /// [B, S, G, D].
        v: View<In>,
        /// [B, T, H, D].
        dout: View<In>,
        /// [B, H, T] of f32.
        lse: In,
        /// [B, H, T] of f32.
        delta: In,
        /// [B, S, G, D].
        dk: View<Out>,
        /// [B, S, G, D].
        dv: View<Out>,
        /// Extents, mask and scale.
        problem: Problem = Axis::Keys,
    }
}

params! {
    /// Arguments of [`AttentionGradQueries`](super::AttentionGradQueries).
    pub struct AttentionGradQueriesArguments => GradQueries {
        /// [B, T, H, D].
        q: View<In>,
        /// [B, S, G, D].
        k: View<In>,
        /// [B, S, G, D].
        v: View<In>,
        /// [B, T, H, D].
        dout: View<In>,
        /// [B, H, T] of f32.
        lse: In,
        /// [B, H, T] of f32.
        delta: In,
        /// [B, T, H, D].
        dq: View<Out>,
        /// Extents, mask and scale.
        problem: Problem = Axis::Queries,
    }
}
