//! `--device`: the device of a command.

use std::str::FromStr;

use meshgrad::runtime::{CudaError, Device, Error};

/// The option of commands that default to the fastest device.
#[derive(clap::Args)]
pub(crate) struct OnFastest {
    /// The device: `cpu`, `cuda[:N]`, `emulator[:N]` (GPU kernels, run and checked on the CPU:
    /// slow), or `auto`: the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
}

/// The option of commands that default to the CPU.
#[derive(clap::Args)]
pub(crate) struct OnCpu {
    /// The device: `cpu`, `cuda[:N]`, `emulator[:N]` (GPU kernels, run and checked on the CPU:
    /// slow), or `auto`: the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
}

/// The option of commands for GPUs.
#[derive(clap::Args)]
pub(crate) struct OnGpu {
    /// The device: `cuda[:N]`, `emulator[:N]` (the same kernels, run and checked on the CPU: its
    /// times mean nothing), `cpu` or `auto`.
    #[arg(long, default_value = "cuda")]
    device: DeviceName,
}

impl OnGpu {
    /// Opens the device. `cpu` is the CPU device.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.device.open(cpu)
    }
}

impl OnFastest {
    /// Opens the device. `cpu` is the CPU device.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.device.open(cpu)
    }

    /// Opens one GPU per rank: the first ones, or an emulated one that all share; `None` for CPUs.
    pub(crate) fn of_ranks(
        &self,
        ranks: usize,
        cpu: &Device,
    ) -> Result<Option<Vec<Device>>, Error> {
        let first = self.device.open(cpu)?;
        if !first.is_gpu() {
            return Ok(None);
        }
        let open = |rank: usize| match self.device {
            DeviceName::Emulator(ordinal) => Device::emulator(ordinal),
            _ => Device::cuda(rank),
        };
        (0..ranks).map(open).collect::<Result<_, _>>().map(Some)
    }

    /// Whether a CPU device may be used.
    pub(crate) fn allows_cpu(&self) -> bool {
        matches!(self.device, DeviceName::Auto | DeviceName::Cpu)
    }
}

impl OnCpu {
    /// Opens the device. `cpu` is the CPU device.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.device.open(cpu)
    }
}

/// The name of a device.
#[derive(Clone, Copy)]
enum DeviceName {
    Auto,
    Cpu,
    Cuda(usize),
    Emulator(usize),
}

impl DeviceName {
    fn open(self, cpu: &Device) -> Result<Device, Error> {
        match self {
            DeviceName::Cpu => Ok(cpu.clone()),
            DeviceName::Cuda(ordinal) => Device::cuda(ordinal),
            DeviceName::Emulator(ordinal) => Device::emulator(ordinal),
            DeviceName::Auto => match Device::cuda(0) {
                Ok(gpu) => Ok(gpu),
                Err(Error::Cuda(CudaError::DriverMissing | CudaError::NoDevice { .. })) => {
                    Ok(cpu.clone())
                }
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
            _ => Err(format!(
                "unknown device `{name}`: use auto, cpu, cuda[:N] or emulator[:N]"
            )),
        }
    }
}

fn number(name: &str, ordinal: &str) -> Result<usize, String> {
    let number = ordinal.parse();
    number.map_err(|_| format!("invalid device `{name}`: expected a number after the colon"))
}
