//! `--device`: the device of a command.

use std::str::FromStr;

use meshgrad::comm::Local;
use meshgrad::runtime::{Device, Error, ErrorKind};

use crate::transport::Transport;

/// The option of commands that default to the fastest device.
#[derive(clap::Args)]
pub(crate) struct OnFastest {
    /// The device: `cpu`, `cuda[:N]`, `emulator[:N]` (GPU kernels, run and checked on the CPU:
    /// slow), or `auto`: the first GPU if there is one, otherwise the CPU.
    #[arg(long = "device", value_name = "DEVICE", default_value = "auto")]
    pub(crate) name: DeviceName,
}

/// The option of commands that default to the CPU.
#[derive(clap::Args)]
pub(crate) struct OnCpu {
    /// The device: `cpu`, `cuda[:N]`, `emulator[:N]` (GPU kernels, run and checked on the CPU:
    /// slow), or `auto`: the first GPU if there is one, otherwise the CPU.
    #[arg(long = "device", value_name = "DEVICE", default_value = "cpu")]
    pub(crate) name: DeviceName,
}

/// The option of commands for GPUs.
#[derive(clap::Args)]
pub(crate) struct OnGpu {
    /// The device: `cuda[:N]`, `emulator[:N]` (the same kernels, run and checked on the CPU: its
    /// times mean nothing), `cpu` or `auto`.
    #[arg(long = "device", value_name = "DEVICE", default_value = "cuda")]
    name: DeviceName,
}

impl OnGpu {
    /// Opens the device. `cpu` is the CPU device.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.name.open(cpu)
    }

    /// The devices of ranks: [`DeviceName::of_ranks`].
    pub(crate) fn of_ranks(
        &self,
        ranks: usize,
        cpu: &Device,
    ) -> Result<Option<Vec<Device>>, Error> {
        self.name.of_ranks(ranks, cpu)
    }
}

impl OnFastest {
    /// Opens the device. `cpu` is the CPU device.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.name.open(cpu)
    }
}

/// Ranks that are threads, on `devices` or on a share of the CPU's threads.
pub(crate) fn local(ranks: usize, devices: Option<Vec<Device>>, cpu: &Device) -> Local {
    match devices {
        Some(devices) => Local::new(ranks).devices(devices),
        None => Local::new(ranks).threads((cpu.properties().threads / ranks).max(1)),
    }
}

/// A device of `rank` on one of the GPUs from `first` on.
fn shared_gpu(first: usize, rank: usize) -> Result<Device, Error> {
    let ordinal = match Device::cuda_count()?.checked_sub(first) {
        None | Some(0) => first + rank,
        Some(usable) => first + rank % usable,
    };
    Device::cuda(ordinal)
}

impl OnCpu {
    /// Opens the device. `cpu` is the CPU device.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.name.open(cpu)
    }
}

/// The name of a device.
#[derive(Clone, Copy)]
pub(crate) enum DeviceName {
    Auto,
    Cpu,
    Cuda(usize),
    Emulator(usize),
}

impl DeviceName {
    /// The GPUs of ranks that are threads, and whether tensors travel over NCCL. `None` for CPUs.
    pub(crate) fn of_threads(
        self,
        transport: Transport,
        ranks: usize,
        cpu: &Device,
    ) -> anyhow::Result<(Option<Vec<Device>>, bool)> {
        let is_nccl = transport.is_nccl_of_threads(ranks > 1 && self.has_own(ranks)?)?;
        let devices = match is_nccl {
            true => Some((0..ranks).map(|rank| self.own(rank)).collect::<anyhow::Result<_>>()?),
            false => self.of_ranks(ranks, cpu)?,
        };
        Ok((devices, is_nccl))
    }

    /// The GPU of a process, the rank with the number `rank` on this host; `None` if it is on the CPU: named, or
    /// `auto` without a GPU.
    pub(crate) fn of_process(self, rank: usize, cpu: &Device) -> anyhow::Result<Option<Device>> {
        match self {
            DeviceName::Emulator(ordinal) => Ok(Some(Device::emulator(ordinal)?)), // each process has its own
            _ if self.is_cpu(cpu)? => Ok(None),
            _ => self.own(rank).map(Some),
        }
    }

    /// Opens a GPU for each rank, from the named one on. If there are fewer GPUs, ranks share them;
    /// all share an emulated one. `None` for CPUs.
    fn of_ranks(self, ranks: usize, cpu: &Device) -> Result<Option<Vec<Device>>, Error> {
        let open = |rank: usize| match self {
            DeviceName::Emulator(ordinal) => Device::emulator(ordinal),
            DeviceName::Cuda(first) => shared_gpu(first, rank),
            DeviceName::Auto | DeviceName::Cpu => shared_gpu(0, rank),
        };
        match self.is_cpu(cpu)? {
            true => Ok(None),
            false => (0..ranks).map(open).collect::<Result<_, _>>().map(Some),
        }
    }

    /// Whether it is the CPU: named, or `auto` without a GPU.
    fn is_cpu(self, cpu: &Device) -> Result<bool, Error> {
        match self {
            DeviceName::Cpu => Ok(true),
            DeviceName::Auto => Ok(!self.open(cpu)?.is_gpu()),
            DeviceName::Cuda(_) | DeviceName::Emulator(_) => Ok(false),
        }
    }

    /// Whether each of `ranks` ranks of this host can have a GPU of its own, which is not emulated.
    fn has_own(self, ranks: usize) -> Result<bool, Error> {
        let first = match self {
            DeviceName::Cuda(first) => first,
            DeviceName::Auto => 0,
            DeviceName::Cpu | DeviceName::Emulator(_) => return Ok(false),
        };
        match Device::cuda_count() {
            Ok(count) => Ok(first + ranks <= count),
            Err(error) if error.kind() == ErrorKind::Missing => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The GPU of the rank with the number `rank` on this host, from the named one on.
    fn own(self, rank: usize) -> anyhow::Result<Device> {
        Ok(match self {
            DeviceName::Cuda(first) => Device::cuda(first + rank)?,
            DeviceName::Auto => Device::cuda(rank)?,
            DeviceName::Emulator(first) => Device::emulator(first + rank)?,
            DeviceName::Cpu => anyhow::bail!("NCCL moves tensors between GPUs; use --device cuda"),
        })
    }

    fn open(self, cpu: &Device) -> Result<Device, Error> {
        match self {
            DeviceName::Cpu => Ok(cpu.clone()),
            DeviceName::Cuda(ordinal) => Device::cuda(ordinal),
            DeviceName::Emulator(ordinal) => Device::emulator(ordinal),
            DeviceName::Auto => match Device::cuda(0) {
                Ok(gpu) => Ok(gpu),
                Err(error) if error.kind() == ErrorKind::Missing => Ok(cpu.clone()),
                // A GPU that exists but fails is an error, not a reason to train on the CPU.
                Err(error) => Err(error),
            },
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<DeviceName, String> {
        let (kind, ordinal) = match name.split_once(':') {
            Some((kind, ordinal)) => (kind, Some(number(name, ordinal)?)),
            None => (name, None),
        };
        match (kind, ordinal) {
            ("auto", None) => Ok(DeviceName::Auto),
            ("cpu", None | Some(0)) => Ok(DeviceName::Cpu),
            ("cuda", ordinal) => Ok(DeviceName::Cuda(ordinal.unwrap_or(0))),
            ("emulator", ordinal) => Ok(DeviceName::Emulator(ordinal.unwrap_or(0))),
            _ => Err(format!("unknown device `{name}`: use auto, cpu, cuda[:N] or emulator[:N]")),
        }
    }
}

fn number(name: &str, ordinal: &str) -> Result<usize, String> {
    let number = ordinal.parse();
    number.map_err(|_| format!("invalid device `{name}`: expected a number after the colon"))
}
