//! Several collectives that start together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meshgrad_error::error;
use meshgrad_mesh::Group;
use meshgrad_runtime::{Device, Pending, Result, Tensor};

use crate::communicator::{Communicator, Operands};
use crate::ticket::Request;

/// A communicator within [`fuse`](crate::Collectives::fuse): its collectives start when the scope
/// ends.
pub struct Fused<'a, C: Communicator + ?Sized> {
    communicator: &'a C,
    calls: Mutex<Vec<Deferred>>,
}

/// A call that has not started.
struct Deferred {
    request: Request,
    operands: Operands,
    slot: Slot,
}

/// What the call's `Pending` waits for; `None` until the scope ends.
type Slot = Arc<Mutex<Option<Pending<Option<Tensor>>>>>;

/// Runs `scope`, then starts the collectives that it called.
pub(crate) fn fuse<C: Communicator + ?Sized, T>(
    communicator: &C,
    scope: impl FnOnce(&Fused<'_, C>) -> Result<T>,
) -> Result<T> {
    let fused = Fused { communicator, calls: Mutex::default() };
    let value = scope(&fused)?;
    let calls = fused.calls.into_inner();
    let calls = calls.unwrap_or_else(PoisonError::into_inner);
    let mut slots = Vec::with_capacity(calls.len());
    let starts = calls.into_iter().map(|call| {
        slots.push(call.slot);
        (call.request, call.operands)
    });
    let pending = communicator.start_fused(starts.collect())?;
    for (slot, pending) in slots.iter().zip(pending) {
        *lock(slot) = Some(pending);
    }
    Ok(value)
}

impl<C: Communicator + ?Sized> Communicator for Fused<'_, C> {
    fn group(&self) -> &Group {
        self.communicator.group()
    }

    fn rank(&self) -> usize {
        self.communicator.rank()
    }

    fn index(&self) -> usize {
        self.communicator.index()
    }

    fn device(&self) -> &Device {
        self.communicator.device()
    }

    fn can_capture(&self) -> bool {
        self.communicator.can_capture()
    }

    fn start(&self, request: Request, operands: Operands) -> Result<Pending<Option<Tensor>>> {
        let collective = request.fingerprint.collective;
        let slot = Slot::default();
        lock(&self.calls).push(Deferred { request, operands, slot: slot.clone() });
        Ok(Pending::by_host(move || {
            let started = lock(&slot).take().ok_or_else(|| {
                error!(
                    Invalid,
                    "{collective} has not started: wait for it after the `fuse` closure has \
                     returned without an error"
                )
            });
            started?.wait()
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
