//! Errors of GPU devices: an unusable driver or GPU, failed driver calls, and failed kernels.

use super::{Library, OutOfMemoryReport};

/// An error of a GPU, its driver, or the emulator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No CUDA driver on this machine.
    #[error(
        "no CUDA driver: libcuda.so could not be loaded; install NVIDIA's driver, or use a CPU \
         device or the emulator (Device::emulator)"
    )]
    DriverMissing,

    /// The emulator's library was not found.
    #[error(
        "no emulator: looked for {}; run `cargo build --release -p meshgrad-emulator` in meshgrad's \
         source, then copy target/release/libmeshgrad_emulator.so next to this program, \
         or set MESHGRAD_EMULATOR to it", looked_for.join(", ")
    )]
    EmulatorMissing {
        /// The files that were looked for.
        looked_for: Vec<String>,
    },

    /// The emulator's library was found but cannot be opened.
    #[error(
        "the emulator {path} could not be opened: {reason}; rebuild it with `cargo build \
         --release -p meshgrad-emulator` in meshgrad's source"
    )]
    EmulatorBroken {
        /// Its file.
        path: String,
        /// The dynamic loader's message.
        reason: String,
    },

    /// The driver was requested while the emulator is in use, or the other way round.
    #[error(
        "this process uses the {open}, so it cannot also use the {asked}: both export the same \
         functions; start another process for the {asked}"
    )]
    OneLibrary {
        /// The library in use.
        open: Library,
        /// The requested library.
        asked: Library,
    },

    /// The library was found but does not initialize.
    #[error("cannot initialize the {library}: {reason}; {advice}")]
    NotStarted {
        /// Which library.
        library: Library,
        /// Its error.
        reason: String,
        /// What to do.
        advice: &'static str,
    },

    /// The driver is too old.
    #[error(
        "the {library} supports CUDA {}.{}, but {}.{} is needed; {}",
        version.0, version.1, needed.0, needed.1, newer(*.library)
    )]
    DriverTooOld {
        /// Which library.
        library: Library,
        /// The CUDA version that it supports.
        version: (u32, u32),
        /// The minimum version.
        needed: (u32, u32),
    },

    /// The driver does not export functions that we call.
    #[error("the {library} lacks {}; {}", some_of(functions), newer(*.library))]
    FunctionsMissing {
        /// Which library.
        library: Library,
        /// The functions.
        functions: Vec<&'static str>,
    },

    /// No GPU has this ordinal.
    #[error("{}:{ordinal} does not exist: {}", library.device_name(), available(*.library, *.count))]
    NoDevice {
        /// Which library.
        library: Library,
        /// The requested ordinal.
        ordinal: usize,
        /// The number of GPUs.
        count: usize,
    },

    /// The GPU is too old for our kernels.
    #[error(
        "{device} ({model}) has compute capability {}.{}, but the kernels need 8.0 (A100) or newer; \
         use another GPU or a CPU device", capability.0, capability.1
    )]
    UnsupportedGpu {
        /// The device.
        device: String,
        /// Its model.
        model: String,
        /// Its compute capability.
        capability: (u32, u32),
    },

    /// Out of GPU memory.
    #[error("out of memory on {device}: {report}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The request, and what uses the memory.
        report: Box<OutOfMemoryReport>,
    },

    /// Host memory could not be pinned.
    #[error(
        "{device} could not pin {bytes} bytes of host memory for copies: {reason}; free host memory, \
         or allow more locked memory (ulimit -l)"
    )]
    Pinned {
        /// The device.
        device: String,
        /// The requested bytes.
        bytes: usize,
        /// The driver's error.
        reason: String,
    },

    /// The driver's compiler rejected a kernel.
    #[error("{device} could not load kernel `{entry}` ({code}): {log}")]
    Compile {
        /// The device.
        device: String,
        /// The kernel.
        entry: String,
        /// The driver's error.
        code: String,
        /// The compiler's log.
        log: String,
    },

    /// A kernel launch failed.
    #[error(
        "{device} could not launch `{entry}` with grid {grid:?}, block {block:?} and {shared} \
         bytes of shared memory: {reason}"
    )]
    Launch {
        /// The device.
        device: String,
        /// The kernel.
        entry: String,
        /// Blocks per dimension.
        grid: [u32; 3],
        /// Threads per block and dimension.
        block: [u32; 3],
        /// Bytes of dynamic shared memory.
        shared: u32,
        /// The driver's error, and the emulator's report if there is one.
        reason: String,
    },

    /// Another driver call failed. Also reports kernels that failed earlier.
    #[error("{device}: {function} failed: {reason}")]
    Call {
        /// The device or library.
        device: String,
        /// The driver's function.
        function: &'static str,
        /// The driver's error, and the emulator's report if there is one.
        reason: String,
    },

    /// A kernel found an index out of range. The op that launched it has returned by then, so the
    /// host gets this error when it next reads values or synchronizes.
    #[error(
        "{op}: index {index} is outside of 0..{extent}. {device} detected this after the op had \
         returned; it read zeros for the index and wrote nothing. Correct the indices, or run the op \
         on a CPU device, which also reports the position"
    )]
    IndexOutOfRange {
        /// The device.
        device: String,
        /// The op.
        op: &'static str,
        /// The index. Its absolute value is clamped to 2^39 - 1. Of several out-of-range indices it
        /// is the largest, where negative ones count as larger than all others.
        index: i64,
        /// The number of rows.
        extent: usize,
    },

    /// An operation that a graph cannot contain.
    #[error("{op} during Device::capture: {problem}")]
    Capture {
        /// The operation.
        op: &'static str,
        /// Why it is not allowed, and what to do instead.
        problem: &'static str,
    },
}

/// How to update a library.
fn newer(library: Library) -> &'static str {
    match library {
        Library::Driver => "install a newer driver",
        Library::Emulator => {
            "rebuild it with `cargo build --release -p meshgrad-emulator` in meshgrad's source"
        }
    }
}

/// The first names of a list, and the number of others.
fn some_of(names: &[&str]) -> String {
    let shown = names.len().min(3);
    match names.len() - shown {
        0 => names.join(", "),
        more => format!("{} and {more} more", names[..shown].join(", ")),
    }
}

fn available(library: Library, count: usize) -> String {
    match (count, library) {
        (0, Library::Driver) => "no GPU is visible (is CUDA_VISIBLE_DEVICES set?)".into(),
        (0, Library::Emulator) => "MESHGRAD_EMULATOR_DEVICES is 0".into(),
        (1, _) => "there is one GPU, 0".into(),
        (count, _) => format!("there are {count} GPUs, 0..{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_cause_and_the_remedy() {
        let clash = CudaError::OneLibrary { open: Library::Emulator, asked: Library::Driver };
        assert_eq!(
            clash.to_string(),
            "this process uses the CUDA emulator, so it cannot also use the CUDA driver: both export \
             the same functions; start another process for the CUDA driver"
        );
        let none = CudaError::NoDevice { library: Library::Driver, ordinal: 3, count: 2 };
        assert_eq!(none.to_string(), "cuda:3 does not exist: there are 2 GPUs, 0..2");
        let lacking = CudaError::FunctionsMissing {
            library: Library::Emulator,
            functions: vec!["cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch"],
        };
        assert_eq!(
            lacking.to_string(),
            "the CUDA emulator lacks cuInit, cuMemAlloc_v2, cuLaunchKernel and 1 more; rebuild it \
             with `cargo build --release -p meshgrad-emulator` in meshgrad's source"
        );
        let pinned = CudaError::Pinned {
            device: "cuda:0".into(),
            bytes: 4 << 20,
            reason: "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".into(),
        };
        assert_eq!(
            pinned.to_string(),
            "cuda:0 could not pin 4194304 bytes of host memory for copies: CUDA_ERROR_OUT_OF_MEMORY \
             (out of memory); free host memory, or allow more locked memory (ulimit -l)"
        );
    }
}
