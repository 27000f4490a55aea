//! The virtual devices: what they say about themselves.

use super::error::{Code, Result};
use super::{Driver, State};

/// A GPU that is emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// H200 SXM, compute capability 9.0.
    H200,
    /// A100 SXM 80 GB, compute capability 8.0.
    A100,
}

/// The facts in which the models differ (NVIDIA's H200 and A100 data sheets; CUDA C++ Programming
/// Guide, "Technical Specifications per Compute Capability").
pub(crate) struct Facts {
    pub(crate) name: &'static str,
    pub(crate) memory: usize,
    pub(crate) major: i32,
    pub(crate) minor: i32,
    pub(crate) multiprocessors: i32,
    /// Shared memory of a multiprocessor, in bytes.
    pub(crate) shared: i32,
    l2: i32,
    clock_khz: i32,
    memory_clock_khz: i32,
    memory_bus_bits: i32,
}

/// Shared memory of a block of which the system keeps a part.
pub(crate) const RESERVED_SHARED: i32 = 1024;
/// Dynamic and static shared memory of a block for which no attribute need be set.
pub(crate) const DEFAULT_SHARED: i32 = 48 * 1024;
pub(crate) const MAX_THREADS: i32 = 1024;
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub(crate) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
pub(crate) const WARP: i32 = 32;
pub(crate) const REGISTERS: i32 = 65536;
pub(crate) const THREADS_PER_MULTIPROCESSOR: i32 = 2048;
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: i32 = 32;

impl Model {
    /// The model called `name`.
    pub(crate) fn named(name: &str) -> Option<Model> {
        match name.to_ascii_lowercase().as_str() {
            "h200" => Some(Model::H200),
            "a100" => Some(Model::A100),
            _ => None,
        }
    }

    pub(crate) fn facts(self) -> Facts {
        match self {
            Model::H200 => Facts {
                name: "NVIDIA H200 (meshgrad emulator)",
                memory: 143_771 << 20,
                major: 9,
                minor: 0,
                multiprocessors: 132,
                shared: 228 * 1024,
                l2: 60 << 20,
                clock_khz: 1_980_000,
                memory_clock_khz: 3_201_000,
                memory_bus_bits: 6144,
            },
            Model::A100 => Facts {
                name: "NVIDIA A100-SXM4-80GB (meshgrad emulator)",
                memory: 81_920 << 20,
                major: 8,
                minor: 0,
                multiprocessors: 108,
                shared: 164 * 1024,
                l2: 40 << 20,
                clock_khz: 1_410_000,
                memory_clock_khz: 1_593_000,
                memory_bus_bits: 5120,
            },
        }
    }

    /// Shared memory that a block may have once its kernel's attribute allows it.
    pub(crate) fn shared_opt_in(self) -> i32 {
        self.facts().shared - RESERVED_SHARED
    }

    /// `CU_DEVICE_ATTRIBUTE_*` by number; `None` where the API defines none.
    fn attribute(self, number: i32, ordinal: u32) -> Option<i32> {
        let facts = self.facts();
        let [block_x, block_y, block_z] = MAX_BLOCK.map(|it| it as i32);
        let [grid_x, grid_y, grid_z] = MAX_GRID.map(|it| it as i32);
        let hopper = i32::from(facts.major >= 9);
        Some(match number {
            1 => MAX_THREADS,
            2 => block_x,
            3 => block_y,
            4 => block_z,
            5 => grid_x,
            6 => grid_y,
            7 => grid_z,
            8 => DEFAULT_SHARED,
            9 => 64 * 1024, // constant memory
            10 => WARP,
            11 => i32::MAX, // pitch of a copy
            12 | 82 => REGISTERS,
            13 => facts.clock_khz,
            14 => 512, // alignment of textures
            15 => 1,   // overlap of copies and kernels
            16 => facts.multiprocessors,
            19 => 1,                  // mapping of host memory
            31 => 1,                  // concurrent kernels
            32 => 1,                  // ECC
            33 => ordinal as i32 + 1, // PCI bus
            36 => facts.memory_clock_khz,
            37 => facts.memory_bus_bits,
            38 => facts.l2,
            39 => THREADS_PER_MULTIPROCESSOR,
            40 => 3,  // copy engines
            41 => 1,  // unified addressing
            51 => 32, // pitch alignment of textures
            75 => facts.major,
            76 => facts.minor,
            78 => 1,      // priorities of streams
            79 | 80 => 1, // L1 caches of global and local memory
            81 => facts.shared,
            83 => 1, // managed memory
            87 => 2, // throughput of f32 to f64
            89 => 1, // concurrent access to managed memory
            90 => 1, // preemption
            95 => 1, // cooperative launches
            97 => self.shared_opt_in(),
            99 => 1, // registration of host memory
            106 => BLOCKS_PER_MULTIPROCESSOR,
            108 => facts.l2 / 4 * 3, // persisting part of L2
            109 => 128 << 20,        // window of an access policy
            111 => RESERVED_SHARED,
            115 => 1,       // memory pools
            120 => hopper,  // clusters
            122 | 123 => 1, // 64-bit and NOR memory operations of streams
            127 => hopper,  // tensor maps
            131 => -1,      // NUMA node
            134 => -1,
            1..=144 => 0,
            _ => return None,
        })
    }
}

/// One virtual device.
pub(crate) struct Device {
    pub(crate) model: Model,
    /// Bytes of its memory.
    pub(crate) memory: usize,
}

impl Driver {
    /// `cuDeviceGet`.
    pub(crate) fn device(&self, ordinal: i32) -> Result<i32> {
        self.with(|state| state.device(ordinal).map(|_| ordinal))
    }

    /// `cuDeviceGetCount`.
    pub(crate) fn device_count(&self) -> Result<i32> {
        self.with(|state| Ok(state.devices.len() as i32))
    }

    /// `cuDeviceGetName`.
    pub(crate) fn device_name(&self, device: i32) -> Result<&'static str> {
        self.with(|state| Ok(state.device(device)?.model.facts().name))
    }

    /// `cuDeviceGetUuid`: bytes that differ from device to device.
    pub(crate) fn device_uuid(&self, device: i32) -> Result<[u8; 16]> {
        self.with(|state| {
            state.device(device)?;
            let mut uuid = *b"meshgrad-device\0";
            uuid[15] = device as u8;
            Ok(uuid)
        })
    }

    /// `cuDeviceTotalMem`.
    pub(crate) fn device_memory(&self, device: i32) -> Result<usize> {
        self.with(|state| Ok(state.device(device)?.memory))
    }

    /// `cuDeviceGetAttribute`.
    pub(crate) fn device_attribute(&self, device: i32, attribute: i32) -> Result<i32> {
        self.with(|state| {
            let model = state.device(device)?.model;
            model.attribute(attribute, device as u32).ok_or_else(|| {
                Code::InvalidValue.because(format!("{attribute} is no attribute of devices"))
            })
        })
    }

    /// `cuDeviceCanAccessPeer`: any other device.
    pub(crate) fn can_access_peer(&self, device: i32, peer: i32) -> Result<bool> {
        self.with(|state| {
            state.device(device)?;
            state.device(peer)?;
            Ok(device != peer)
        })
    }
}

impl State {
    pub(crate) fn device(&self, device: i32) -> Result<&Device> {
        let found = usize::try_from(device)
            .ok()
            .and_then(|at| self.devices.get(at));
        found.ok_or_else(|| {
            let count = self.devices.len();
            Code::InvalidDevice.because(format!(
                "device {device} of {count}; MESHGRAD_EMULATOR_DEVICES sets how many there are"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_say_what_their_data_sheets_say() {
        let h200 = |number| Model::H200.attribute(number, 0);
        let a100 = |number| Model::A100.attribute(number, 0);
        assert_eq!(
            (h200(75), h200(76), h200(16)),
            (Some(9), Some(0), Some(132))
        );
        assert_eq!(
            (a100(75), a100(76), a100(16)),
            (Some(8), Some(0), Some(108))
        );
        assert_eq!((h200(97), a100(97)), (Some(232_448), Some(166_912)));
        assert_eq!((h200(120), a100(120)), (Some(1), Some(0)));
        assert_eq!((h200(0), h200(145)), (None, None));
        assert!(Model::H200.facts().memory > 140_000_000_000);
    }
}
