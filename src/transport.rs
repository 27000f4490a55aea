//! `--transport`: what carries tensors between ranks.

use anyhow::ensure;
use meshgrad::comm::{NcclRank, launch};
use meshgrad::runtime::Device;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Transport {
    Auto,
    Local,
    Tcp,
    Mpi,
    Nccl,
}

impl Transport {
    /// Whether threads with these GPUs use NCCL. `has_own`: whether each has one of its own, which is not emulated.
    pub(crate) fn is_nccl_of_threads(self, has_own: bool) -> anyhow::Result<bool> {
        ensure!(
            !matches!(self, Transport::Tcp | Transport::Mpi),
            "--transport tcp and mpi are for processes; start them with `meshgrad launch -n N -- meshgrad ..`"
        );
        Ok(match self {
            Transport::Nccl => true,
            _ => self == Transport::Auto && has_own && NcclRank::is_installed(),
        })
    }

    /// What processes on CPUs use, and those over NCCL for what is not on a GPU.
    pub(crate) fn between_processes(self) -> launch::Transport {
        match self {
            Transport::Tcp => launch::Transport::Tcp,
            Transport::Mpi => launch::Transport::Mpi,
            Transport::Auto | Transport::Local | Transport::Nccl => launch::Transport::Auto,
        }
    }

    /// Checks that processes with this device can use it.
    pub(crate) fn check_of_processes(self, gpu: Option<&Device>) -> anyhow::Result<()> {
        match gpu {
            None => ensure!(
                !matches!(self, Transport::Nccl | Transport::Local),
                "processes that compute on CPUs use TCP or MPI; use --transport auto, or --device cuda"
            ),
            Some(gpu) => ensure!(
                matches!(self, Transport::Nccl | Transport::Auto),
                "processes on {gpu} use NCCL; use --transport auto, or --ranks N for threads of this process"
            ),
        }
        Ok(())
    }
}
