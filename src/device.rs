//! `--device`: where a command computes.

use std::str::FromStr;

use meshgrad::runtime::{CudaError, Device, Error};

/// The option of commands that compute much: what is fastest here.
#[derive(clap::Args)]
pub(crate) struct OnFastest {
    /// Where to compute: `cpu`, `cuda[:N]`, `emulator[:N]` (the GPU's kernels, run and examined on
    /// the CPU: slow), or `auto`: the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "auto")]
    device: DeviceName,
}

/// The option of commands whose numbers are compared.
#[derive(clap::Args)]
pub(crate) struct OnCpu {
    /// Where to compute: `cpu`, `cuda[:N]`, `emulator[:N]` (the GPU's kernels, run and examined on
    /// the CPU: slow), or `auto`: the first GPU if there is one, otherwise the CPU.
    #[arg(long, default_value = "cpu")]
    device: DeviceName,
}

/// The option of commands that are about GPUs.
#[derive(clap::Args)]
pub(crate) struct OnGpu {
    /// Where to compute: `cuda[:N]`, `emulator[:N]` (the same kernels, run and examined on the CPU:
    /// how long that takes says nothing), `cpu` or `auto`.
    #[arg(long, default_value = "cuda")]
    device: DeviceName,
}

impl OnGpu {
    /// The device, which is `cpu` where the CPU is meant.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.device.open(cpu)
    }
}

impl OnFastest {
    /// The device, which is `cpu` where the CPU is meant.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.device.open(cpu)
    }
}

impl OnCpu {
    /// The device, which is `cpu` where the CPU is meant.
    pub(crate) fn open(&self, cpu: &Device) -> Result<Device, Error> {
        self.device.open(cpu)
    }
}

/// A device by its name.
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
                // There is one, and something is wrong with it: hours on the CPU are no answer.
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
                "`{name}` is not a device: auto, cpu, cuda[:N] or emulator[:N]"
            )),
        }
    }
}

fn number(name: &str, ordinal: &str) -> Result<usize, String> {
    let number = ordinal.parse();
    number.map_err(|_| format!("`{name}`: a number follows the colon"))
}
