//! Errors of driver functions: a `CUresult` of the public API and a message.

use std::ffi::CStr;
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

/// The error of a driver function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub(crate) struct Error {
    pub(crate) code: Code,
    /// What failed, the values involved, and the way out.
    pub(crate) message: String,
}

/// The result of a driver function.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Code {
    /// This code with a message.
    pub(crate) fn because(self, message: impl Into<String>) -> Error {
        Error { code: self, message: message.into() }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name().to_string_lossy())
    }
}

macro_rules! codes {
    ($($variant:ident = $number:literal, $name:literal, $description:literal;)+) => {
        /// `CUresult`, as in the CUDA driver API.
        #[repr(i32)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code)]
        pub(crate) enum Code {
            $($variant = $number,)+
        }

        impl Code {
            const ALL: &[Code] = &[$(Code::$variant),+];

            /// Its name in `cuda.h`.
            pub(crate) fn name(self) -> &'static CStr {
                match self {
                    $(Code::$variant => $name,)+
                }
            }

            /// Its description, as `cuGetErrorString` returns it.
            pub(crate) fn description(self) -> &'static CStr {
                match self {
                    $(Code::$variant => $description,)+
                }
            }
        }
    };
}

impl Code {
    /// The code with this number.
    pub(crate) fn from_number(number: i32) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| *code as i32 == number)
    }
}

codes! {
    Success = 0, c"CUDA_SUCCESS", c"no error";
    InvalidValue = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OutOfMemory = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NotInitialized = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    Deinitialized = 4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down";
    ProfilerDisabled = 5, c"CUDA_ERROR_PROFILER_DISABLED",
        c"profiler disabled while using external profiling tool";
    ProfilerNotInitialized = 6, c"CUDA_ERROR_PROFILER_NOT_INITIALIZED",
        c"profiler not initialized: call cudaProfilerInitialize()";
    ProfilerAlreadyStarted = 7, c"CUDA_ERROR_PROFILER_ALREADY_STARTED", c"profiler already started";
    ProfilerAlreadyStopped = 8, c"CUDA_ERROR_PROFILER_ALREADY_STOPPED", c"profiler already stopped";
    StubLibrary = 34, c"CUDA_ERROR_STUB_LIBRARY", c"CUDA driver is a stub library";
    DeviceUnavailable = 46, c"CUDA_ERROR_DEVICE_UNAVAILABLE",
        c"CUDA-capable device(s) is/are busy or unavailable";
    NoDevice = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    InvalidDevice = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    DeviceNotLicensed = 102, c"CUDA_ERROR_DEVICE_NOT_LICENSED",
        c"device doesn't have valid Grid license";
    InvalidImage = 200, c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid";
    InvalidContext = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    ContextAlreadyCurrent = 202, c"CUDA_ERROR_CONTEXT_ALREADY_CURRENT", c"context already current";
    MapFailed = 205, c"CUDA_ERROR_MAP_FAILED", c"mapping of buffer object failed";
    UnmapFailed = 206, c"CUDA_ERROR_UNMAP_FAILED", c"unmapping of buffer object failed";
    ArrayIsMapped = 207, c"CUDA_ERROR_ARRAY_IS_MAPPED", c"array is mapped";
    AlreadyMapped = 208, c"CUDA_ERROR_ALREADY_MAPPED", c"resource already mapped";
    NoBinaryForGpu = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU",
        c"no kernel image is available for execution on the device";
    AlreadyAcquired = 210, c"CUDA_ERROR_ALREADY_ACQUIRED", c"resource already acquired";
    NotMapped = 211, c"CUDA_ERROR_NOT_MAPPED", c"resource not mapped";
    NotMappedAsArray = 212, c"CUDA_ERROR_NOT_MAPPED_AS_ARRAY", c"resource not mapped as array";
    NotMappedAsPointer = 213, c"CUDA_ERROR_NOT_MAPPED_AS_POINTER",
        c"resource not mapped as pointer";
    EccUncorrectable = 214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered";
    UnsupportedLimit = 215, c"CUDA_ERROR_UNSUPPORTED_LIMIT",
        c"limit is not supported on this architecture";
    ContextAlreadyInUse = 216, c"CUDA_ERROR_CONTEXT_ALREADY_IN_USE",
        c"exclusive-thread device already in use by a different thread";
    PeerAccessUnsupported = 217, c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        c"peer access is not supported between these two devices";
    InvalidPtx = 218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    InvalidGraphicsContext = 219, c"CUDA_ERROR_INVALID_GRAPHICS_CONTEXT",
        c"invalid OpenGL or DirectX context";
    NvlinkUncorrectable = 220, c"CUDA_ERROR_NVLINK_UNCORRECTABLE",
        c"uncorrectable NVLink error detected during the execution";
    JitCompilerNotFound = 221, c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
        c"PTX JIT compiler library not found";
    UnsupportedPtxVersion = 222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the provided PTX was compiled with an unsupported toolchain.";
    JitCompilationDisabled = 223, c"CUDA_ERROR_JIT_COMPILATION_DISABLED",
        c"PTX JIT compilation was disabled";
    UnsupportedExecAffinity = 224, c"CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY",
        c"the provided execution affinity is not supported";
    UnsupportedDevsideSync = 225, c"CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        c"the provided PTX contains unsupported call to cudaDeviceSynchronize";
    Contained = 226, c"CUDA_ERROR_CONTAINED",
        c"Invalid access of peer GPU memory over nvlink or a hardware error";
    InvalidSource = 300, c"CUDA_ERROR_INVALID_SOURCE", c"device kernel image is invalid";
    FileNotFound = 301, c"CUDA_ERROR_FILE_NOT_FOUND", c"file not found";
    SharedObjectSymbolNotFound = 302, c"CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
        c"shared object symbol not found";
    SharedObjectInitFailed = 303, c"CUDA_ERROR_SHARED_OBJECT_INIT_FAILED",
        c"shared object initialization failed";
    OperatingSystem = 304, c"CUDA_ERROR_OPERATING_SYSTEM",
        c"OS call failed or operation not supported on this OS";
    InvalidHandle = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    IllegalState = 401, c"CUDA_ERROR_ILLEGAL_STATE",
        c"the operation cannot be performed in the present state";
    LossyQuery = 402, c"CUDA_ERROR_LOSSY_QUERY",
        c"attempted introspection would be semantically lossy";
    NotFound = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NotReady = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    IllegalAddress = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered";
    LaunchOutOfResources = 701, c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"too many resources requested for launch";
    LaunchTimeout = 702, c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated";
    LaunchIncompatibleTexturing = 703, c"CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING",
        c"launch uses incompatible texturing mode";
    PeerAccessAlreadyEnabled = 704, c"CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED",
        c"peer access is already enabled";
    PeerAccessNotEnabled = 705, c"CUDA_ERROR_PEER_ACCESS_NOT_ENABLED",
        c"peer access has not been enabled";
    PrimaryContextActive = 708, c"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
        c"cannot set while device is active in this process";
    ContextIsDestroyed = 709, c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed";
    Assert = 710, c"CUDA_ERROR_ASSERT", c"device-side assert triggered";
    TooManyPeers = 711, c"CUDA_ERROR_TOO_MANY_PEERS", c"peer mapping resources exhausted";
    HostMemoryAlreadyRegistered = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped";
    HostMemoryNotRegistered = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region";
    HardwareStackError = 714, c"CUDA_ERROR_HARDWARE_STACK_ERROR", c"hardware stack error";
    IllegalInstruction = 715, c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        c"an illegal instruction was encountered";
    MisalignedAddress = 716, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address";
    InvalidAddressSpace = 717, c"CUDA_ERROR_INVALID_ADDRESS_SPACE",
        c"operation not supported on global/shared address space";
    InvalidPc = 718, c"CUDA_ERROR_INVALID_PC", c"invalid program counter";
    LaunchFailed = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    CooperativeLaunchTooLarge = 720, c"CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
        c"too many blocks in cooperative launch";
    TensorMemoryLeak = 721, c"CUDA_ERROR_TENSOR_MEMORY_LEAK", c"tensor memory not completely freed";
    NotPermitted = 800, c"CUDA_ERROR_NOT_PERMITTED", c"operation not permitted";
    NotSupported = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    SystemNotReady = 802, c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized";
    SystemDriverMismatch = 803, c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        c"system has unsupported display driver / cuda driver combination";
    CompatNotSupportedOnDevice = 804, c"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
        c"forward compatibility was attempted on non supported HW";
    MpsConnectionFailed = 805, c"CUDA_ERROR_MPS_CONNECTION_FAILED",
        c"MPS client failed to connect to the MPS control daemon or the MPS server";
    MpsRpcFailure = 806, c"CUDA_ERROR_MPS_RPC_FAILURE",
        c"the remote procedural call between the MPS server and the MPS client failed";
    MpsServerNotReady = 807, c"CUDA_ERROR_MPS_SERVER_NOT_READY",
        c"MPS server is not ready to accept new MPS client requests";
    MpsMaxClientsReached = 808, c"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        c"the hardware resources required to create MPS client have been exhausted";
    MpsMaxConnectionsReached = 809, c"CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        c"the hardware resources required to support device connections have been exhausted";
    MpsClientTerminated = 810, c"CUDA_ERROR_MPS_CLIENT_TERMINATED",
        c"the MPS client has been terminated by the server";
    CdpNotSupported = 811, c"CUDA_ERROR_CDP_NOT_SUPPORTED",
        c"current device does not support CUDA dynamic parallelism";
    CdpVersionMismatch = 812, c"CUDA_ERROR_CDP_VERSION_MISMATCH",
        c"mismatch of CUDA dynamic parallelism versions";
    StreamCaptureUnsupported = 900, c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        c"operation not permitted when stream is capturing";
    StreamCaptureInvalidated = 901, c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        c"operation failed due to a previous error during capture";
    StreamCaptureMerge = 902, c"CUDA_ERROR_STREAM_CAPTURE_MERGE",
        c"operation would result in a merge of separate capture sequences";
    StreamCaptureUnmatched = 903, c"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
        c"capture was not ended in the same stream as it began";
    StreamCaptureUnjoined = 904, c"CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
        c"capturing stream has unjoined work";
    StreamCaptureIsolation = 905, c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        c"dependency created on uncaptured work in another stream";
    StreamCaptureImplicit = 906, c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        c"operation would make the legacy stream depend on a capturing blocking stream";
    CapturedEvent = 907, c"CUDA_ERROR_CAPTURED_EVENT",
        c"operation not permitted on an event last recorded in a capturing stream";
    StreamCaptureWrongThread = 908, c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        c"attempt to terminate a thread-local capture sequence from another thread";
    Timeout = 909, c"CUDA_ERROR_TIMEOUT", c"wait operation timed out";
    GraphExecUpdateFailure = 910, c"CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        c"the graph update was not performed because it violated constraints";
    ExternalDevice = 911, c"CUDA_ERROR_EXTERNAL_DEVICE",
        c"an async error has occurred in external entity outside of CUDA";
    InvalidClusterSize = 912, c"CUDA_ERROR_INVALID_CLUSTER_SIZE",
        c"a kernel launch error has occurred due to cluster misconfiguration";
    FunctionNotLoaded = 913, c"CUDA_ERROR_FUNCTION_NOT_LOADED",
        c"the function handle is not loaded";
    InvalidResourceType = 914, c"CUDA_ERROR_INVALID_RESOURCE_TYPE",
        c"the resource type is not valid for the operation";
    InvalidResourceConfiguration = 915, c"CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
        c"the resource configuration is not valid for the operation";
    KeyRotation = 916, c"CUDA_ERROR_KEY_ROTATION", c"an error happened in key rotation sequence";
    Unknown = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

/// Runs `act` and turns a panic into an error: a panic must not unwind into C, and waiters must not
/// hang.
pub(crate) fn catch_panic<T>(act: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        let message = message.unwrap_or("no message");
        Err(Code::Unknown.because(format!("internal error in the emulator: {message}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = catch_panic::<()>(|| panic!("offset {} is outside", 7)).unwrap_err();
        assert_eq!(error.code, Code::Unknown);
        assert!(error.message.contains("offset 7 is outside"), "{error}");
    }

    #[test]
    fn codes_are_found_by_number() {
        for code in Code::ALL {
            assert_eq!(Code::from_number(*code as i32), Some(*code));
            assert!(code.name().to_bytes().starts_with(b"CUDA_"));
            assert!(!code.description().is_empty());
        }
        assert_eq!(Code::from_number(203), None);
        let error = Code::InvalidValue.because("no 5th parameter");
        assert_eq!(error.to_string(), "CUDA_ERROR_INVALID_VALUE: no 5th parameter");
    }
}
