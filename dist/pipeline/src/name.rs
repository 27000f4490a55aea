//! The names of schedules.

use std::fmt;

/// A schedule of the literature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Named {
    /// All forward passes, then all backward passes (Huang et al. 2019).
    Gpipe,
    /// GPipe with several stages per rank, stage by stage (Lamy-Poirier 2023).
    LoopedBfs,
    /// One forward, one backward pass in turn (Narayanan et al. 2019).
    OneFOneB,
    /// 1F1B with several stages per rank (Narayanan et al. 2021).
    Interleaved,
    /// 1F1B with a split backward pass: ZB-H1 of Qi et al. 2023.
    Zb1p,
    /// ZB1P with several stages per rank.
    InterleavedZb,
    /// Two stages per rank in a V, split backward passes (Qi et al. 2024).
    Zbv,
    /// Two stages per rank in a V, overlapped pairs (DeepSeek's DualPipe, halved).
    DualPipeV,
    /// Forward passes only, stage by stage.
    Inference,
}

impl Named {
    /// All of them.
    pub const ALL: [Named; 9] = [
        Named::Gpipe,
        Named::LoopedBfs,
        Named::OneFOneB,
        Named::Interleaved,
        Named::Zb1p,
        Named::InterleavedZb,
        Named::Zbv,
        Named::DualPipeV,
        Named::Inference,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Named::Gpipe => "gpipe",
            Named::LoopedBfs => "looped_bfs",
            Named::OneFOneB => "1f1b",
            Named::Interleaved => "interleaved",
            Named::Zb1p => "zb1p",
            Named::InterleavedZb => "interleaved_zb",
            Named::Zbv => "zbv",
            Named::DualPipeV => "dual_pipe_v",
            Named::Inference => "inference",
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
