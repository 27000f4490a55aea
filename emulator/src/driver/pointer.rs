//! Pointer queries: which allocation a pointer is in, and which host memory is registered as
//! page-locked.

use crate::memory::{HOST_ALIGNMENT, MemoryKind};

use super::Driver;
use super::error::{Code, Result};
use super::ffi::host::HostRange;
use super::memory::AllocationKind;

/// The value of a pointer attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerAttribute {
    Word(u32),
    Wide(u64),
}

impl Driver {
    /// `cuMemHostRegister`: kernels access the memory at its host address.
    pub(crate) fn register(&self, range: HostRange, flags: u32) -> Result<()> {
        let (address, bytes) = (range.address(), range.bytes());
        let end = address.checked_add(bytes as u64);
        if address == 0 || bytes == 0 || end.is_none() || flags & !0xf != 0 {
            let message =
                format!("cannot register {bytes} bytes at {address:#x} with flags {flags:#x}");
            return Err(Code::InvalidValue.because(message));
        }
        let Some(block) = range.block() else {
            let message = format!(
                "the emulator registers memory only at multiples of {HOST_ALIGNMENT} bytes; \
                 {address:#x} is not one"
            );
            return Err(Code::NotSupported.because(message));
        };
        self.with(|state| {
            let context = state.current()?;
            if !state.space.register(block) {
                let message = format!("{address:#x} is already page-locked");
                return Err(Code::HostMemoryAlreadyRegistered.because(message));
            }
            state.own(context, address, bytes, AllocationKind::Registered)
        })
    }

    /// `cuMemHostUnregister`: waits for running operations.
    pub(crate) fn unregister(&self, address: u64) -> Result<()> {
        let mut state = self.lock();
        let context = state.current()?;
        let owner = state.ownership.owners.get(&address);
        if owner.is_none_or(|it| it.kind != AllocationKind::Registered) {
            let message = format!("{address:#x} is not the start of registered memory");
            return Err(Code::HostMemoryNotRegistered.because(message));
        }
        state.reject_while_capturing("cuMemHostUnregister")?;
        let mut state = self.wait(state, |state| state.schedule.is_idle(context));
        state.check_context(context)?;
        state.free_now(address)
    }

    /// `cuMemHostGetDevicePointer`: the same address, because addressing is unified.
    pub(crate) fn device_address(&self, address: u64) -> Result<u64> {
        self.with(|state| {
            state.current()?;
            match state.space.find(address).map(|it| it.kind) {
                Some(MemoryKind::Pinned | MemoryKind::Managed(_)) => Ok(address),
                _ => {
                    let message = format!("{address:#x} is not page-locked host memory");
                    Err(Code::InvalidValue.because(message))
                }
            }
        })
    }

    /// `cuMemGetAddressRange`: the base address and size of an allocation.
    pub(crate) fn address_range(&self, address: u64) -> Result<(u64, usize)> {
        self.with(|state| {
            state.current()?;
            let info = state.allocation(address)?;
            Ok((info.base, info.bytes))
        })
    }

    /// Fails unless these bytes are in managed memory.
    pub(crate) fn check_managed(&self, address: u64, bytes: usize) -> Result<()> {
        self.with(|state| {
            state.current()?;
            state.check_range(address, bytes)?;
            match state.allocation(address)?.kind {
                MemoryKind::Managed(_) => Ok(()),
                _ => {
                    Err(Code::InvalidValue
                        .because(format!("{address:#x} is not in managed memory")))
                }
            }
        })
    }

    /// `cuPointerGetAttribute`.
    pub(crate) fn pointer_attribute(
        &self,
        attribute: i32,
        address: u64,
    ) -> Result<PointerAttribute> {
        self.with(|state| {
            let info = state.allocation(address)?;
            let owner = state.ownership.owners.get(&info.base);
            let is_host = info.kind == MemoryKind::Pinned;
            let device = match info.kind {
                MemoryKind::Device(device)
                | MemoryKind::Managed(device)
                | MemoryKind::Module(device)
                | MemoryKind::Constant(device) => device,
                MemoryKind::Pinned => owner.map_or(0, |it| it.device),
            };
            Ok(match attribute {
                1 => PointerAttribute::Wide(owner.map_or(0, |it| it.context.raw())),
                2 => PointerAttribute::Word(if is_host { 1 } else { 2 }),
                3 => PointerAttribute::Wide(address),
                4 if is_host || matches!(info.kind, MemoryKind::Managed(_)) => {
                    PointerAttribute::Wide(address)
                }
                7 => PointerAttribute::Wide(info.number),
                8 => PointerAttribute::Word(u32::from(matches!(info.kind, MemoryKind::Managed(_)))),
                9 => PointerAttribute::Word(device),
                11 => PointerAttribute::Wide(info.base),
                12 => PointerAttribute::Wide(info.bytes as u64),
                13 => PointerAttribute::Word(1),
                17 => PointerAttribute::Wide(match owner.map(|it| it.kind) {
                    Some(AllocationKind::Pool(pool)) => pool.raw(),
                    _ => 0,
                }),
                _ => {
                    let message = format!("attribute {attribute} of {address:#x} is not supported");
                    return Err(Code::InvalidValue.because(message));
                }
            })
        })
    }
}
