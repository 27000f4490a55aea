//! The functions of the library, and the types that they take.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library as Dynamic;
use meshgrad_error::{Error, Result, error};

use crate::status::Status;
use crate::version::Version;

/// A communicator of the library, `ncclComm_t`.
pub type Handle = *mut c_void;
/// A stream of the CUDA driver, `CUstream`.
pub(crate) type Stream = *mut c_void;

/// What the ranks of a communicator have in common when they create it, `ncclUniqueId`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// Declares the table. Newer functions are missing in some supported versions, and needed for one feature each.
macro_rules! functions {
    (
        all { $($name:ident = $symbol:literal($($arg:ty),*) $(-> $result:ty)?;)* }
        newer {
            $($newer:ident = $newer_symbol:literal($($newer_arg:ty),*), since $first:literal, $feature:literal;)*
        }
    ) => {
        /// The functions, by their names in `nccl.h` without `nccl`. Those that can be missing are `Option`s.
        #[allow(missing_docs)] // The user guide of NCCL describes them.
        #[derive(Debug)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) -> functions!(@result $($result)?),)*
            $(pub $newer: Option<unsafe extern "C" fn($($newer_arg),*) -> Status>,)*
        }

        impl Functions {
            /// The name of each function and the types of its arguments, and the feature that it is for if some
            /// supported versions lack it.
            pub const SIGNATURES: &[(&str, &[&str], Option<&str>)] = &[
                $(($symbol, &[$(stringify!($arg)),*], None),)*
                $(($newer_symbol, &[$(stringify!($newer_arg)),*], Some($feature)),)*
            ];

            /// The features whose functions are missing.
            pub fn missing(&self) -> Vec<&'static str> {
                [$(self.$newer.is_none().then_some($feature)),*].into_iter().flatten().collect()
            }

            /// Removes what is newer than the library says it is: one that acts as several versions exports all.
            pub(crate) fn without_newer_than(mut self, version: Version) -> Functions {
                $(self.$newer = self.$newer.filter(|_| version >= Version::of_code($first));)*
                self
            }

            /// The functions of `library`.
            ///
            /// # Errors
            /// When one is missing that every supported version has.
            ///
            /// # Safety
            /// `library` is NCCL: its functions have the types of this table.
            pub(crate) unsafe fn of(library: &Dynamic) -> Result<Functions> {
                let missing = |symbol: &str| -> Error {
                    error!(Unsupported, "it has no function `{symbol}`; use NCCL 2.19 or newer")
                };
                Ok(Functions {
                    $(
                        // SAFETY: as the caller promises.
                        $name: *unsafe { library.get($symbol.as_bytes()) }
                            .map_err(|_| missing($symbol))?,
                    )*
                    $(
                        // SAFETY: as the caller promises.
                        $newer: unsafe { library.get($newer_symbol.as_bytes()) }.ok().map(|it| *it),
                    )*
                })
            }
        }
    };
    (@result) => { Status };
    (@result $result:ty) => { $result };
}

functions! {
    all {
        get_version = "ncclGetVersion"(*mut c_int);
        get_unique_id = "ncclGetUniqueId"(*mut UniqueId);
        get_error_string = "ncclGetErrorString"(Status) -> *const c_char;
        get_last_error = "ncclGetLastError"(Handle) -> *const c_char;
        comm_init_rank_config = "ncclCommInitRankConfig"(*mut Handle, c_int, UniqueId, c_int, *mut c_void);
        comm_finalize = "ncclCommFinalize"(Handle);
        comm_destroy = "ncclCommDestroy"(Handle);
        comm_abort = "ncclCommAbort"(Handle);
        comm_get_async_error = "ncclCommGetAsyncError"(Handle, *mut Status);
        all_reduce = "ncclAllReduce"(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream);
        reduce = "ncclReduce"(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Handle, Stream);
        broadcast = "ncclBroadcast"(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream);
        all_gather = "ncclAllGather"(*const c_void, *mut c_void, usize, c_int, Handle, Stream);
        reduce_scatter = "ncclReduceScatter"(*const c_void, *mut c_void, usize, c_int, c_int, Handle, Stream);
        send = "ncclSend"(*const c_void, usize, c_int, c_int, Handle, Stream);
        recv = "ncclRecv"(*mut c_void, usize, c_int, c_int, Handle, Stream);
        group_start = "ncclGroupStart"();
        group_end = "ncclGroupEnd"();
    }
    newer {
        comm_init_rank_scalable = "ncclCommInitRankScalable"(
            *mut Handle, c_int, c_int, c_int, *mut UniqueId, *mut c_void
        ), since 22300, "several unique ids per world";
        all_to_all = "ncclAlltoAll"(*const c_void, *mut c_void, usize, c_int, Handle, Stream),
            since 22803, "all_to_all in one call";
        comm_mem_stats = "ncclCommMemStats"(Handle, c_int, *mut u64),
            since 22907, "memory of a communicator";
    }
}
