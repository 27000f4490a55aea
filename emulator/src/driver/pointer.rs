//! What is known of pointers: whose memory they point to, and which of the host's own memory was
//! registered as page-locked.

use crate::memory::{HOST_ALIGNMENT, MemoryKind};

use super::Driver;
use super::error::{Code, Result};
use super::ffi::host::HostRange;
use super::memory::Kind;

/// What `cuPointerGetAttribute` may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerFact {
    Word(u32),
    Wide(u64),
}

impl Driver {
    /// `cuMemHostRegister`: kernels reach the memory at its own address.
    pub(crate) fn register(&self, range: HostRange, flags: u32) -> Result<()> {
        let (address, bytes) = (range.address(), range.bytes());
        let end = address.checked_add(bytes as u64);
        if address == 0 || bytes == 0 || end.is_none() || flags & !0xf != 0 {
            let words = format!("{bytes} bytes at {address:#x} with flags {flags:#x}");
            return Err(Code::InvalidValue.because(words));
        }
        let Some(block) = range.block() else {
            let words = format!(
                "registered memory begins at a multiple of {HOST_ALIGNMENT} bytes here, and \
                 {address:#x} is none"
            );
            return Err(Code::NotSupported.because(words));
        };
        self.with(|state| {
            let context = state.current()?;
            if !state.space.register(block) {
                let words = format!("{address:#x} is page-locked already");
                return Err(Code::HostMemoryAlreadyRegistered.because(words));
            }
            state.own(context, address, bytes, Kind::Registered)
        })
    }

    /// `cuMemHostUnregister`: waits for what runs.
    pub(crate) fn unregister(&self, address: u64) -> Result<()> {
        let mut state = self.lock();
        let context = state.current()?;
        let owner = state.ledger.owners.get(&address);
        if owner.is_none_or(|it| it.kind != Kind::Registered) {
            let words = format!("{address:#x} is not the start of registered memory");
            return Err(Code::HostMemoryNotRegistered.because(words));
        }
        state.refuse_while_capturing("cuMemHostUnregister")?;
        let mut state = self.wait(state, |state| state.schedule.is_idle(context));
        state.healthy(context)?;
        state.free_now(address)
    }

    /// `cuMemHostGetDevicePointer`: the same address, as addressing is unified.
    pub(crate) fn device_address(&self, address: u64) -> Result<u64> {
        self.with(|state| {
            state.current()?;
            match state.space.find(address).map(|it| it.kind) {
                Some(MemoryKind::Pinned | MemoryKind::Managed(_)) => Ok(address),
                _ => {
                    let words = format!("{address:#x} is not page-locked memory of the host");
                    Err(Code::InvalidValue.because(words))
                }
            }
        })
    }

    /// `cuMemGetAddressRange`: the first address and the bytes of an allocation.
    pub(crate) fn address_range(&self, address: u64) -> Result<(u64, usize)> {
        self.with(|state| {
            state.current()?;
            let info = state.allocation(address)?;
            Ok((info.base, info.bytes))
        })
    }

    /// An error unless managed memory holds these bytes.
    pub(crate) fn check_managed(&self, address: u64, bytes: usize) -> Result<()> {
        self.with(|state| {
            state.current()?;
            state.check_range(address, bytes)?;
            match state.allocation(address)?.kind {
                MemoryKind::Managed(_) => Ok(()),
                _ => Err(Code::InvalidValue.because(format!("{address:#x} is no managed memory"))),
            }
        })
    }

    /// `cuPointerGetAttribute`.
    pub(crate) fn pointer_fact(&self, attribute: i32, address: u64) -> Result<PointerFact> {
        self.with(|state| {
            let info = state.allocation(address)?;
            let owner = state.ledger.owners.get(&info.base);
            let is_host = info.kind == MemoryKind::Pinned;
            let device = match info.kind {
                MemoryKind::Device(device)
                | MemoryKind::Managed(device)
                | MemoryKind::Module(device)
                | MemoryKind::Constant(device) => device,
                MemoryKind::Pinned => owner.map_or(0, |it| it.device),
            };
            Ok(match attribute {
                1 => PointerFact::Wide(owner.map_or(0, |it| it.context.raw())),
                2 => PointerFact::Word(if is_host { 1 } else { 2 }),
                3 => PointerFact::Wide(address),
                4 if is_host || matches!(info.kind, MemoryKind::Managed(_)) => {
                    PointerFact::Wide(address)
                }
                7 => PointerFact::Wide(info.number),
                8 => PointerFact::Word(u32::from(matches!(info.kind, MemoryKind::Managed(_)))),
                9 => PointerFact::Word(device),
                11 => PointerFact::Wide(info.base),
                12 => PointerFact::Wide(info.bytes as u64),
                13 => PointerFact::Word(1),
                17 => PointerFact::Wide(match owner.map(|it| it.kind) {
                    Some(Kind::Pool(pool)) => pool.raw(),
                    _ => 0,
                }),
                _ => {
                    let words = format!("attribute {attribute} of {address:#x}");
                    return Err(Code::InvalidValue.because(words));
                }
            })
        })
    }
}
