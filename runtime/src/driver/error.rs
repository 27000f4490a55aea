//! What can go wrong on a GPU: of the machine, of the driver, of a kernel.

use super::{Library, OutOfMemoryReport};

/// An error of a GPU, of its driver or of the emulator in its place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// There is no driver on this machine.
    #[error(
        "no CUDA driver: libcuda.so could not be loaded; install NVIDIA's driver, or use a CPU \
         device or the emulator (Device::emulator)"
    )]
    DriverMissing,

    /// The emulator's library is nowhere.
    #[error(
        "no emulator: looked for {}; build it by `cargo build -p meshgrad-emulator`, or name its \
         file in MESHGRAD_EMULATOR", looked_for.join(", ")
    )]
    EmulatorMissing {
        /// The files that were looked for.
        looked_for: Vec<String>,
    },

    /// The emulator's library is there but cannot be opened.
    #[error(
        "the emulator {path} could not be opened: {reason}; build it anew by `cargo build -p \
         meshgrad-emulator`"
    )]
    EmulatorBroken {
        /// Its file.
        path: String,
        /// What the dynamic loader said.
        reason: String,
    },

    /// The other of driver and emulator is in use already.
    #[error(
        "this process uses the {open}, so it cannot use the {asked} too: their functions have the \
         same names; start another process for the {asked}"
    )]
    OneLibrary {
        /// What was opened first.
        open: Library,
        /// What was asked for.
        asked: Library,
    },

    /// The library is there and cannot be used.
    #[error("the {library} does not start: {reason}; {way_out}")]
    NotStarted {
        /// Which library.
        library: Library,
        /// Its error.
        reason: String,
        /// What to do.
        way_out: &'static str,
    },

    /// The driver is older than what we call.
    #[error(
        "the {library} speaks CUDA {}.{}, but {}.{} is needed: {}",
        version.0, version.1, needed.0, needed.1, newer(*.library)
    )]
    DriverTooOld {
        /// Which library.
        library: Library,
        /// The CUDA version that it supports.
        version: (u32, u32),
        /// The oldest that is enough.
        needed: (u32, u32),
    },

    /// The driver lacks functions that we call.
    #[error("the {library} lacks {}: {}", some_of(functions), newer(*.library))]
    FunctionsMissing {
        /// Which library.
        library: Library,
        /// The functions.
        functions: Vec<&'static str>,
    },

    /// There are fewer GPUs.
    #[error("{}:{ordinal} does not exist: {}", library.device_name(), there_are(*.library, *.count))]
    NoDevice {
        /// Which library.
        library: Library,
        /// The ordinal asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },

    /// A GPU that is too old for our kernels.
    #[error(
        "{device} ({model}) has compute capability {}.{}, but our kernels need 8.0 (A100) or \
         newer: use another GPU or a CPU device", capability.0, capability.1
    )]
    UnsupportedGpu {
        /// The device.
        device: String,
        /// Its model.
        model: String,
        /// Its compute capability.
        capability: (u32, u32),
    },

    /// No memory is left.
    #[error("out of memory on {device}: {held}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was asked for and what is held.
        held: Box<OutOfMemoryReport>,
    },

    /// The host has no memory that a GPU could copy from.
    #[error(
        "{device} could not pin {bytes} bytes of the host's memory, which copies to and from it go \
         through: {reason}; free memory of the host, or allow more locked memory (ulimit -l)"
    )]
    Pinned {
        /// The device.
        device: String,
        /// How much was asked for.
        bytes: usize,
        /// The driver's error.
        reason: String,
    },

    /// A kernel that the driver's compiler refused.
    #[error("{device} could not load kernel `{entry}` ({code}): {log}")]
    Compile {
        /// The device.
        device: String,
        /// The kernel.
        entry: String,
        /// The driver's error.
        code: String,
        /// What the compiler said.
        log: String,
    },

    /// A kernel that could not be started.
    #[error(
        "{device} could not launch `{entry}` with grid {grid:?}, block {block:?} and {shared} \
         bytes of shared memory: {reason}"
    )]
    Launch {
        /// The device.
        device: String,
        /// The kernel.
        entry: String,
        /// Blocks in each direction.
        grid: [u32; 3],
        /// Threads of a block in each direction.
        block: [u32; 3],
        /// Dynamic shared memory.
        shared: u32,
        /// The driver's error, and the emulator's report where there is one.
        reason: String,
    },

    /// Any other call that failed; also how a kernel that failed earlier is found.
    #[error("{device}: {function} failed: {reason}")]
    Call {
        /// The device or library.
        device: String,
        /// The driver's function.
        function: &'static str,
        /// The driver's error, and the emulator's report where there is one.
        reason: String,
    },

    /// An index outside of the rows it selects from, which a kernel met. The host learns of it when
    /// it next waits for values: the call that launched the kernel has returned by then.
    #[error(
        "{op}: index {index} is outside of 0..{extent}; {device} met it after the op had returned, \
         and read zeros there and wrote nothing: give indices inside, or run the op on a CPU \
         device, which names the position too"
    )]
    IndexOutOfRange {
        /// The device.
        device: String,
        /// The op.
        op: &'static str,
        /// The index. Of several the largest, where negative ones count as larger than all others;
        /// beyond 2^39 in either direction, that.
        index: i64,
        /// How many rows there are.
        extent: usize,
    },

    /// Something that a graph cannot contain.
    #[error("{op} during Device::capture: {problem}")]
    Capture {
        /// What was done.
        op: &'static str,
        /// Why it cannot be, and the way out.
        problem: &'static str,
    },
}

/// How to get a newer library.
fn newer(library: Library) -> &'static str {
    match library {
        Library::Driver => "install a newer driver",
        Library::Emulator => "build it anew by `cargo build -p meshgrad-emulator`",
    }
}

/// The first names of a list, and how many follow.
fn some_of(names: &[&str]) -> String {
    let shown = names.len().min(3);
    match names.len() - shown {
        0 => names.join(", "),
        more => format!("{} and {more} others", names[..shown].join(", ")),
    }
}

fn there_are(library: Library, count: usize) -> String {
    match (count, library) {
        (0, Library::Driver) => {
            "there is no GPU that may be used (is CUDA_VISIBLE_DEVICES set?)".into()
        }
        (0, Library::Emulator) => "MESHGRAD_EMULATOR_DEVICES asks for none".into(),
        (1, _) => "there is one, 0".into(),
        (count, _) => format!("there are {count}, 0..{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_thing_and_the_way_out() {
        let clash = CudaError::OneLibrary {
            open: Library::Emulator,
            asked: Library::Driver,
        };
        assert_eq!(
            clash.to_string(),
            "this process uses the CUDA emulator, so it cannot use the CUDA driver too: their \
             functions have the same names; start another process for the CUDA driver"
        );
        let none = CudaError::NoDevice {
            library: Library::Driver,
            ordinal: 3,
            count: 2,
        };
        assert_eq!(none.to_string(), "cuda:3 does not exist: there are 2, 0..2");
        let lacking = CudaError::FunctionsMissing {
            library: Library::Emulator,
            functions: vec!["cuInit", "cuMemAlloc_v2", "cuLaunchKernel", "cuGraphLaunch"],
        };
        assert_eq!(
            lacking.to_string(),
            "the CUDA emulator lacks cuInit, cuMemAlloc_v2, cuLaunchKernel and 1 others: build it \
             anew by `cargo build -p meshgrad-emulator`"
        );
        let pinned = CudaError::Pinned {
            device: "cuda:0".into(),
            bytes: 4 << 20,
            reason: "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".into(),
        };
        assert_eq!(
            pinned.to_string(),
            "cuda:0 could not pin 4194304 bytes of the host's memory, which copies to and from it \
             go through: CUDA_ERROR_OUT_OF_MEMORY (out of memory); free memory of the host, or \
             allow more locked memory (ulimit -l)"
        );
    }
}
