//! What is known of pointers: whose memory they point to, and which of the host's own memory was
//! registered as page-locked.

use crate::memory::Place;

use super::error::{Code, Result};
use super::memory::Kind;
use super::{Driver, State};

/// What `cuPointerGetAttribute` may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointerFact {
    Word(u32),
    Wide(u64),
}

impl Driver {
    /// `cuMemHostRegister`.
    pub(crate) fn register(&self, address: u64, bytes: usize, flags: u32) -> Result<()> {
        self.with(|state| {
            state.current()?;
            if address == 0 || bytes == 0 || flags & !0xf != 0 {
                let words = format!("{bytes} bytes at {address:#x} with flags {flags:#x}");
                return Err(Code::InvalidValue.because(words));
            }
            let end = address.saturating_add(bytes as u64);
            let below = state.ledger.registered.range(..end).next_back();
            let overlaps = below.is_some_and(|(start, bytes)| start + *bytes as u64 > address);
            if overlaps || state.space.find(address).is_some() {
                let words = format!("{address:#x} is page-locked already");
                return Err(Code::HostMemoryAlreadyRegistered.because(words));
            }
            state.ledger.registered.insert(address, bytes);
            Ok(())
        })
    }

    /// `cuMemHostUnregister`.
    pub(crate) fn unregister(&self, address: u64) -> Result<()> {
        self.with(|state| {
            state.current()?;
            let known = state.ledger.registered.remove(&address);
            known.map(drop).ok_or_else(|| {
                let words = format!("{address:#x} is not the start of registered memory");
                Code::HostMemoryNotRegistered.because(words)
            })
        })
    }

    /// `cuMemHostGetDevicePointer`: the same address, as addressing is unified.
    pub(crate) fn device_address(&self, address: u64) -> Result<u64> {
        self.with(|state| {
            state.current()?;
            if state.is_registered(address, 1) {
                let words = "kernels cannot reach registered memory here; use cuMemHostAlloc";
                return Err(Code::NotSupported.because(words));
            }
            match state.space.find(address).map(|it| it.place) {
                Some(Place::Pinned | Place::Managed(_)) => Ok(address),
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
            match state.allocation(address)?.place {
                Place::Managed(_) => Ok(()),
                _ => Err(Code::InvalidValue.because(format!("{address:#x} is no managed memory"))),
            }
        })
    }

    /// `cuPointerGetAttribute`.
    pub(crate) fn pointer_fact(&self, attribute: i32, address: u64) -> Result<PointerFact> {
        self.with(|state| {
            let info = state.allocation(address)?;
            let owner = state.ledger.owners.get(&info.base);
            let is_host = info.place == Place::Pinned;
            let device = match info.place {
                Place::Device(device)
                | Place::Managed(device)
                | Place::Module(device)
                | Place::Constant(device) => device,
                Place::Pinned => owner.map_or(0, |it| it.device),
            };
            Ok(match attribute {
                1 => PointerFact::Wide(owner.map_or(0, |it| it.context.raw())),
                2 => PointerFact::Word(if is_host { 1 } else { 2 }),
                3 => PointerFact::Wide(address),
                4 if is_host || matches!(info.place, Place::Managed(_)) => {
                    PointerFact::Wide(address)
                }
                7 => PointerFact::Wide(info.number),
                8 => PointerFact::Word(u32::from(matches!(info.place, Place::Managed(_)))),
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

impl State {
    /// Whether registered memory of the host holds these bytes.
    pub(crate) fn is_registered(&self, address: u64, bytes: usize) -> bool {
        let below = self.ledger.registered.range(..=address).next_back();
        below.is_some_and(|(start, length)| {
            address.saturating_add(bytes as u64) <= start + *length as u64
        })
    }
}
