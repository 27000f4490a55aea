//! The virtual devices and their attributes.

use super::error::{Code, Result};
use super::{Driver, State};

/// An emulated GPU model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// H200 SXM, compute capability 9.0.
    H200,
    /// A100 SXM 80 GB, compute capability 8.0.
    A100,
    /// V100 SXM2 32 GB, compute capability 7.0. Programs can test that they reject it.
    V100,
}

/// The attributes in which the models differ (NVIDIA's H200, A100 and V100 data sheets; CUDA C++
/// Programming Guide, "Technical Specifications per Compute Capability").
pub(crate) struct DataSheet {
    pub(crate) name: &'static str,
    pub(crate) memory: usize,
    pub(crate) major: i32,
    pub(crate) minor: i32,
    pub(crate) multiprocessors: i32,
    /// Shared memory per multiprocessor, in bytes.
    pub(crate) shared: i32,
    l2: i32,
    clock_khz: i32,
    memory_clock_khz: i32,
    memory_bus_bits: i32,
}

/// Static and dynamic shared memory that a block may use without setting a function attribute.
pub(crate) const DEFAULT_SHARED: i32 = 48 * 1024;
pub(crate) const MAX_THREADS: i32 = 1024;
pub(crate) const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
pub(crate) const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
pub(crate) const WARP: i32 = 32;
pub(crate) const REGISTERS: i32 = 65536;
pub(crate) const THREADS_PER_MULTIPROCESSOR: i32 = 2048;
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: i32 = 32;

impl Model {
    /// The model with this name.
    pub(crate) fn named(name: &str) -> Option<Model> {
        match name.to_ascii_lowercase().as_str() {
            "h200" => Some(Model::H200),
            "a100" => Some(Model::A100),
            "v100" => Some(Model::V100),
            _ => None,
        }
    }

    pub(crate) fn data_sheet(self) -> DataSheet {
        match self {
            Model::H200 => DataSheet {
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
            Model::A100 => DataSheet {
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
            Model::V100 => DataSheet {
                name: "NVIDIA V100-SXM2-32GB (meshgrad emulator)",
                memory: 32_768 << 20,
                major: 7,
                minor: 0,
                multiprocessors: 80,
                shared: 96 * 1024,
                l2: 6 << 20,
                clock_khz: 1_530_000,
                memory_clock_khz: 877_000,
                memory_bus_bits: 4096,
            },
        }
    }

    /// Shared memory per block that a kernel may opt in to.
    pub(crate) fn shared_opt_in(self) -> i32 {
        self.data_sheet().shared - self.reserved_shared()
    }

    /// Shared memory per block that the system reserves.
    pub(crate) fn reserved_shared(self) -> i32 {
        match self.data_sheet().major {
            ..8 => 0,
            _ => 1024,
        }
    }

    /// `CU_DEVICE_ATTRIBUTE_*` by number; `None` if the API does not define it.
    fn attribute(self, number: i32, ordinal: u32) -> Option<i32> {
        let data_sheet = self.data_sheet();
        let hopper = i32::from(data_sheet.major >= 9);
        let of_model = match number {
            13 => data_sheet.clock_khz,
            16 => data_sheet.multiprocessors,
            33 => ordinal as i32 + 1, // PCI_BUS_ID
            36 => data_sheet.memory_clock_khz,
            37 => data_sheet.memory_bus_bits,
            38 => data_sheet.l2,
            75 => data_sheet.major,
            76 => data_sheet.minor,
            81 => data_sheet.shared,
            97 => self.shared_opt_in(),
            111 => self.reserved_shared(),
            108 if data_sheet.major < 8 => 0,
            108 => data_sheet.l2 / 4 * 3, // MAX_PERSISTING_L2_CACHE_SIZE
            120 => hopper,                // CLUSTER_LAUNCH
            127 => hopper,                // TENSOR_MAP_ACCESS_SUPPORTED
            _ => {
                let of_all = COMMON_ATTRIBUTES.iter().find(|(known, _)| *known == number);
                let otherwise = (1..LAST_ATTRIBUTE).contains(&number).then_some(0);
                return of_all.map(|(_, value)| *value).or(otherwise);
            }
        };
        Some(of_model)
    }
}

/// `CU_DEVICE_ATTRIBUTE_MAX`.
const LAST_ATTRIBUTE: i32 = 144;

/// Attributes with the same value in all models. Attributes that are not listed are 0.
const COMMON_ATTRIBUTES: &[(i32, i32)] = &[
    (1, MAX_THREADS),
    (2, MAX_BLOCK[0] as i32),
    (3, MAX_BLOCK[1] as i32),
    (4, MAX_BLOCK[2] as i32),
    (5, MAX_GRID[0] as i32),
    (6, MAX_GRID[1] as i32),
    (7, MAX_GRID[2] as i32),
    (8, DEFAULT_SHARED),
    (9, 64 * 1024), // TOTAL_CONSTANT_MEMORY
    (10, WARP),
    (11, i32::MAX), // MAX_PITCH
    (12, REGISTERS),
    (14, 512), // TEXTURE_ALIGNMENT
    (15, 1),   // GPU_OVERLAP
    (19, 1),   // CAN_MAP_HOST_MEMORY
    (31, 1),   // CONCURRENT_KERNELS
    (32, 1),   // ECC_ENABLED
    (39, THREADS_PER_MULTIPROCESSOR),
    (40, 3),  // ASYNC_ENGINE_COUNT
    (41, 1),  // UNIFIED_ADDRESSING
    (51, 32), // TEXTURE_PITCH_ALIGNMENT
    (78, 1),  // STREAM_PRIORITIES_SUPPORTED
    (79, 1),  // GLOBAL_L1_CACHE_SUPPORTED
    (80, 1),  // LOCAL_L1_CACHE_SUPPORTED
    (82, REGISTERS),
    (83, 1), // MANAGED_MEMORY
    (87, 2), // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    (89, 1), // CONCURRENT_MANAGED_ACCESS
    (90, 1), // COMPUTE_PREEMPTION_SUPPORTED
    (95, 1), // COOPERATIVE_LAUNCH
    (99, 1), // HOST_REGISTER_SUPPORTED
    (106, BLOCKS_PER_MULTIPROCESSOR),
    (109, 128 << 20), // MAX_ACCESS_POLICY_WINDOW_SIZE
    (115, 1),         // MEMORY_POOLS_SUPPORTED
    (122, 1),         // CAN_USE_64_BIT_STREAM_MEM_OPS
    (123, 1),         // CAN_USE_STREAM_WAIT_VALUE_NOR
    (131, -1),        // NUMA_ID
    (134, -1),        // HOST_NUMA_ID
];

/// A virtual device.
pub(crate) struct Device {
    pub(crate) model: Model,
    /// Bytes of device memory.
    pub(crate) memory: usize,
}

impl Driver {
    /// `cuDriverGetVersion`.
    pub(crate) fn version(&self) -> i32 {
        self.configuration.version
    }

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
        self.with(|state| Ok(state.device(device)?.model.data_sheet().name))
    }

    /// `cuDeviceGetUuid`: different for each device.
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
                Code::InvalidValue.because(format!("{attribute} is not a device attribute"))
            })
        })
    }

    /// `cuDeviceCanAccessPeer`: true for any other device.
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
        let found = usize::try_from(device).ok().and_then(|at| self.devices.get(at));
        found.ok_or_else(|| {
            let count = self.devices.len();
            Code::InvalidDevice.because(format!(
                "device {device} does not exist (devices: {count}); set MESHGRAD_EMULATOR_DEVICES"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_attributes_match_the_data_sheets() {
        let h200 = |number| Model::H200.attribute(number, 0);
        let a100 = |number| Model::A100.attribute(number, 0);
        assert_eq!((h200(75), h200(76), h200(16)), (Some(9), Some(0), Some(132)));
        assert_eq!((a100(75), a100(76), a100(16)), (Some(8), Some(0), Some(108)));
        assert_eq!((h200(97), a100(97)), (Some(232_448), Some(166_912)));
        assert_eq!((h200(120), a100(120)), (Some(1), Some(0)));
        let v100 = |number| Model::V100.attribute(number, 0);
        assert_eq!((v100(75), v100(97), v100(111)), (Some(7), Some(98_304), Some(0)));
        assert_eq!((h200(0), h200(144)), (None, None));
        assert_eq!((h200(1), h200(17)), (Some(1024), Some(0)));
        assert!(Model::H200.data_sheet().memory > 140_000_000_000);
    }
}
