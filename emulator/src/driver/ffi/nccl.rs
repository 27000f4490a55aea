//! Exported functions of NCCL, named as in `nccl.h`. A process opens the emulator's library for both.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

use super::arguments::{In, Out, Pointer};
use super::{configuration, driver};
use crate::driver::error::catch_panic;
use crate::driver::nccl::call::{Action, Buffers, Call, Kind};
use crate::driver::nccl::element::Element;
use crate::driver::nccl::group::Issued;
use crate::driver::nccl::id::UniqueId;
use crate::driver::nccl::refusal::{
    IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, Refusal, Result, SUCCESS, refused,
};
use crate::driver::nccl::sums::Reduction;
use crate::driver::nccl::world::CommunicatorHandle;

/// `NCCL_CONFIG_INITIALIZER` sets it.
const CONFIG_MAGIC: c_int = 0xcafe_beef_u32 as c_int;
/// `NCCL_CONFIG_UNDEF_INT`.
const UNSET: c_int = c_int::MIN;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawUniqueId([u8; 128]);

thread_local! {
    /// What `ncclGetLastError` returns.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the body of an exported function.
fn call(body: impl FnOnce() -> Result<c_int>) -> c_int {
    let outcome = catch_panic(|| Ok(body()));
    match outcome.map_err(Refusal::from).and_then(|done| done) {
        Ok(code) => code,
        Err(refusal) => {
            let message = CString::new(refusal.message).unwrap_or_default();
            LAST.with_borrow_mut(|last| *last = message);
            refusal.code
        }
    }
}

macro_rules! exports {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$meta])*
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                call(|| $body)
            }
        )*
    };
}

exports! {
    fn ncclGetVersion(version: Out<c_int>) {
        version.set(configuration()?.nccl)?;
        Ok(SUCCESS)
    }

    fn ncclGetUniqueId(id: Out<RawUniqueId>) {
        id.set(RawUniqueId(UniqueId::new(&configuration()?)?.to_bytes()))?;
        Ok(SUCCESS)
    }

    fn ncclCommInitRankConfig(
        communicator: Out<u64>,
        size: c_int,
        id: RawUniqueId,
        rank: c_int,
        config: In<c_int>,
    ) {
        create(communicator, size, id, rank, config)
    }

    fn ncclCommInitRankScalable(
        communicator: Out<u64>,
        size: c_int,
        rank: c_int,
        ids: c_int,
        id: In<RawUniqueId>,
        config: In<c_int>,
    ) {
        check_version(22300, "ncclCommInitRankScalable")?;
        match ids > 0 {
            true => create(communicator, size, id.get()?, rank, config),
            false => refused(INVALID_ARGUMENT, format!("{ids} unique ids are too few")),
        }
    }

    fn ncclCommFinalize(communicator: u64) {
        driver()?.finalize_communicator(CommunicatorHandle::from_raw(communicator))?;
        Ok(SUCCESS)
    }

    fn ncclCommDestroy(communicator: u64) {
        driver()?.destroy_communicator(CommunicatorHandle::from_raw(communicator))?;
        Ok(SUCCESS)
    }

    fn ncclCommAbort(communicator: u64) {
        driver()?.abort_communicator(CommunicatorHandle::from_raw(communicator))?;
        Ok(SUCCESS)
    }

    fn ncclCommGetAsyncError(communicator: u64, status: Out<c_int>) {
        status.set(driver()?.poll_communicator(CommunicatorHandle::from_raw(communicator))?)?;
        Ok(SUCCESS)
    }

    fn ncclGroupStart() {
        driver()?.start_group();
        Ok(SUCCESS)
    }

    fn ncclGroupEnd() {
        driver()?.end_group()?;
        Ok(SUCCESS)
    }

    fn ncclAllReduce(
        send: Pointer, receive: Pointer, count: usize, element: c_int, by: c_int, communicator: u64, stream: u64,
    ) {
        let kind = Kind::AllReduce(reduction(by, element)?);
        collective(kind, [send, receive], count, element, (communicator, stream))
    }

    fn ncclReduce(
        send: Pointer, receive: Pointer, count: usize, element: c_int, by: c_int, root: c_int,
        communicator: u64, stream: u64,
    ) {
        let kind = Kind::Reduce(reduction(by, element)?, index(root)?);
        collective(kind, [send, receive], count, element, (communicator, stream))
    }

    fn ncclBroadcast(
        send: Pointer, receive: Pointer, count: usize, element: c_int, root: c_int, communicator: u64, stream: u64,
    ) {
        let kind = Kind::Broadcast(index(root)?);
        collective(kind, [send, receive], count, element, (communicator, stream))
    }

    fn ncclAllGather(
        send: Pointer, receive: Pointer, count: usize, element: c_int, communicator: u64, stream: u64,
    ) {
        collective(Kind::AllGather, [send, receive], count, element, (communicator, stream))
    }

    fn ncclReduceScatter(
        send: Pointer, receive: Pointer, count: usize, element: c_int, by: c_int, communicator: u64, stream: u64,
    ) {
        let kind = Kind::ReduceScatter(reduction(by, element)?);
        collective(kind, [send, receive], count, element, (communicator, stream))
    }

    fn ncclAlltoAll(
        send: Pointer, receive: Pointer, count: usize, element: c_int, communicator: u64, stream: u64,
    ) {
        check_version(22803, "ncclAlltoAll")?;
        collective(Kind::AllToAll, [send, receive], count, element, (communicator, stream))
    }

    fn ncclSend(from: Pointer, count: usize, element: c_int, to: c_int, communicator: u64, stream: u64) {
        let (to, from, element) = (index(to)?, from.address(), element_of(element)?);
        issue(Action::Send { to, from, count, element }, communicator, stream)
    }

    fn ncclRecv(to: Pointer, count: usize, element: c_int, from: c_int, communicator: u64, stream: u64) {
        let (from, to, element) = (index(from)?, to.address(), element_of(element)?);
        issue(Action::Receive { from, to, count, element }, communicator, stream)
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        0 => c"no error",
        1 => c"unhandled cuda error",
        2 => c"unhandled system error",
        3 => c"internal error",
        4 => c"invalid argument",
        5 => c"invalid usage",
        6 => c"remote process exited or there was a network error",
        7 => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn ncclGetLastError(_communicator: u64) -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

fn create(
    communicator: Out<u64>,
    size: c_int,
    id: RawUniqueId,
    rank: c_int,
    config: In<c_int>,
) -> Result<c_int> {
    let is_blocking = is_blocking(config)?;
    let (size, rank) = (index(size)?, index(rank)?);
    let handle = driver()?.create_communicator(size, &id.0, rank, is_blocking)?;
    communicator.set(handle.raw())?;
    Ok(if is_blocking { SUCCESS } else { IN_PROGRESS })
}

/// Checks an `ncclConfig_t`, and returns `blocking` of it. The library reads the fields that are within its size.
fn is_blocking(config: In<c_int>) -> Result<bool> {
    if config.is_null() {
        return Ok(true);
    }
    let bytes = config.at(0).get()? as usize;
    let field = |at: usize| -> Result<c_int> {
        let is_there = bytes >= at + size_of::<c_int>();
        Ok(if is_there { config.at(at / size_of::<c_int>()).get()? } else { UNSET })
    };
    if field(8)? != CONFIG_MAGIC {
        return refused(INVALID_ARGUMENT, "the ncclConfig_t was not initialized");
    }
    let (blocking, min_ctas, max_ctas) = (field(16)?, field(24)?, field(28)?);
    if min_ctas > max_ctas {
        let message = format!("minCTAs {min_ctas} is above maxCTAs {max_ctas}; set both");
        return refused(INVALID_ARGUMENT, message);
    }
    Ok(blocking != 0)
}

/// Checks that the emulated version of NCCL has a function that is new in `first`.
fn check_version(first: c_int, function: &str) -> Result<()> {
    let own = configuration()?.nccl;
    if own >= first {
        return Ok(());
    }
    let (minor, patch) = (own / 100 % 100, own % 100);
    refused(INVALID_USAGE, format!("{function} is not in NCCL {}.{minor}.{patch}", own / 10_000))
}

fn collective(
    kind: Kind,
    [send, receive]: [Pointer; 2],
    count: usize,
    element: c_int,
    (communicator, stream): (u64, u64),
) -> Result<c_int> {
    let call = Call { kind, count, element: element_of(element)?, is_captured: false };
    let buffers = Buffers { send: send.address(), receive: receive.address() };
    issue(Action::Collective(call, buffers), communicator, stream)
}

fn issue(action: Action, communicator: u64, stream: u64) -> Result<c_int> {
    let communicator = CommunicatorHandle::from_raw(communicator);
    driver()?.issue(Issued { communicator, stream, action })?;
    Ok(SUCCESS)
}

fn index(number: c_int) -> Result<usize> {
    usize::try_from(number)
        .or_else(|_| refused(INVALID_ARGUMENT, format!("{number} is not a rank or a size")))
}

fn element_of(code: c_int) -> Result<Element> {
    Element::of_code(code)
        .map_or_else(|| refused(INVALID_ARGUMENT, format!("{code} is not an ncclDataType_t")), Ok)
}

fn reduction(code: c_int, element: c_int) -> Result<Reduction> {
    if matches!(element_of(element)?, Element::F8E4m3 | Element::F8E5m2) {
        return refused(INVALID_ARGUMENT, "sums of fp8 are not emulated");
    }
    Reduction::of_code(code)
        .map_or_else(|| refused(INVALID_ARGUMENT, format!("{code} is not an ncclRedOp_t")), Ok)
}
