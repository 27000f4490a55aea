//! Contexts: one shared primary context per device, and created contexts. Each thread has a stack
//! of contexts; the top one is current.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::MutexGuard;
use std::thread::ThreadId;

use super::error::{Code, Error, Result};
use super::handles::{Handle, Named};
use super::schedule::Ticket;
use super::stream::{Stream, StreamHandle, StreamKind};
use super::{Driver, State};

pub(crate) type ContextHandle = Handle<Context>;

/// A context of a device.
pub(crate) struct Context {
    pub(crate) device: u32,
    flags: u32,
    primary: bool,
    /// The legacy default stream (handle 0).
    pub(crate) legacy: StreamHandle,
    /// Last operations of destroyed blocking streams that have not run yet.
    pub(crate) pending_after_destroy: Vec<Ticket>,
    /// Per-thread default streams, created on first use.
    pub(crate) per_thread: HashMap<ThreadId, StreamHandle>,
    limits: Limits,
    cache: i32,
    peers: BTreeSet<ContextHandle>,
    /// The error of the first operation that failed; the context is unusable from then on.
    pub(crate) failure: Option<Error>,
}

impl Named for Context {
    const NAME: &'static str = "context";
    const UNKNOWN: Code = Code::InvalidContext;
    const DESTROYED: Code = Code::ContextIsDestroyed;
}

/// A device's primary context. Its handle stays the same across resets.
#[derive(Default)]
pub(crate) struct Primary {
    handle: Option<ContextHandle>,
    retained: u64,
    flags: u32,
}

/// `CUlimit` values by number, with a device's defaults.
struct Limits([usize; 7]);

/// `CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH`, which compute capability 9.0 does not support.
const SYNC_DEPTH: i32 = 3;

impl Default for Limits {
    fn default() -> Limits {
        // Stack, printf buffer, heap, synchronization depth, pending launches, L2 fetch, L2 kept.
        Limits([1024, 1 << 20, 8 << 20, 2, 2048, 64, 0])
    }
}

thread_local! {
    static STACK: RefCell<Vec<ContextHandle>> = const { RefCell::new(Vec::new()) };
}

/// The current context of this thread.
fn top() -> Option<ContextHandle> {
    STACK.with_borrow(|stack| stack.last().copied())
}

impl Driver {
    /// `cuDevicePrimaryCtxRetain`.
    pub(crate) fn retain_primary(&self, device: i32) -> Result<ContextHandle> {
        self.with(|state| {
            state.device(device)?;
            let primary = &mut state.primaries[device as usize];
            primary.retained += 1;
            let (known, flags) = (primary.handle, primary.flags);
            if let Some(handle) = known
                && state.contexts.get(handle).is_ok()
            {
                return Ok(handle);
            }
            let handle = state.begin(known, device as u32, flags, true);
            state.primaries[device as usize].handle = Some(handle);
            Ok(handle)
        })
    }

    /// `cuDevicePrimaryCtxRelease`: the last release destroys the context.
    pub(crate) fn release_primary(&self, device: i32) -> Result<()> {
        let mut state = self.lock();
        state.device(device)?;
        let primary = &mut state.primaries[device as usize];
        let Some(handle) = primary.handle.filter(|_| primary.retained > 0) else {
            let message = format!("the primary context of device {device} is not retained");
            return Err(Code::InvalidContext.because(message));
        };
        primary.retained -= 1;
        match primary.retained {
            0 => self.end_context(state, handle),
            _ => Ok(()),
        }
    }

    /// `cuDevicePrimaryCtxReset`: destroys the context even if it is still retained.
    pub(crate) fn reset_primary(&self, device: i32) -> Result<()> {
        let mut state = self.lock();
        state.device(device)?;
        state.primaries[device as usize].retained = 0;
        let handle = state.primaries[device as usize].handle;
        let handle = handle.filter(|handle| state.contexts.get(*handle).is_ok());
        match handle {
            Some(handle) => self.end_context(state, handle),
            None => Ok(()),
        }
    }

    /// `cuDevicePrimaryCtxGetState`: the flags, and whether the context is active.
    pub(crate) fn primary_state(&self, device: i32) -> Result<(u32, bool)> {
        self.with(|state| {
            state.device(device)?;
            let primary = &state.primaries[device as usize];
            Ok((primary.flags, primary.retained > 0))
        })
    }

    /// `cuDevicePrimaryCtxSetFlags`.
    pub(crate) fn set_primary_flags(&self, device: i32, flags: u32) -> Result<()> {
        self.with(|state| {
            state.device(device)?;
            check_flags(flags)?;
            let primary = &mut state.primaries[device as usize];
            primary.flags = flags;
            if let Some(handle) = primary.handle
                && let Ok(context) = state.contexts.get_mut(handle)
            {
                context.flags = flags;
            }
            Ok(())
        })
    }

    /// `cuCtxCreate`: the new context becomes current.
    pub(crate) fn create_context(&self, device: i32, flags: u32) -> Result<ContextHandle> {
        self.with(|state| {
            state.device(device)?;
            check_flags(flags)?;
            let handle = state.begin(None, device as u32, flags, false);
            STACK.with_borrow_mut(|stack| stack.push(handle));
            Ok(handle)
        })
    }

    /// `cuCtxDestroy`.
    pub(crate) fn destroy_context(&self, handle: ContextHandle) -> Result<()> {
        let state = self.lock();
        if state.contexts.get(handle)?.primary {
            let message =
                "a primary context cannot be destroyed; release it with cuDevicePrimaryCtxRelease";
            return Err(Code::InvalidContext.because(message));
        }
        STACK.with_borrow_mut(|stack| stack.pop_if(|it| *it == handle));
        self.end_context(state, handle)
    }

    /// `cuCtxGetCurrent`.
    pub(crate) fn current_context(&self) -> Result<Option<ContextHandle>> {
        Ok(top())
    }

    /// `cuCtxSetCurrent`: replaces the top of the stack, or pops it.
    pub(crate) fn set_current_context(&self, handle: Option<ContextHandle>) -> Result<()> {
        if let Some(handle) = handle {
            self.with(|state| state.contexts.get(handle).map(drop))?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            stack.extend(handle);
        });
        Ok(())
    }

    /// `cuCtxPushCurrent`.
    pub(crate) fn push_context(&self, handle: ContextHandle) -> Result<()> {
        self.with(|state| state.contexts.get(handle).map(drop))?;
        STACK.with_borrow_mut(|stack| stack.push(handle));
        Ok(())
    }

    /// `cuCtxPopCurrent`.
    pub(crate) fn pop_context(&self) -> Result<ContextHandle> {
        let popped = STACK.with_borrow_mut(Vec::pop);
        popped.ok_or_else(|| {
            Code::InvalidContext.because("the context stack of this thread is empty")
        })
    }

    /// `cuCtxGetDevice`.
    pub(crate) fn current_device(&self) -> Result<i32> {
        self.with(|state| {
            let context = state.current()?;
            Ok(state.contexts.get(context)?.device as i32)
        })
    }

    /// The device of any live context.
    pub(crate) fn device_of(&self, context: ContextHandle) -> Result<u32> {
        self.with(|state| Ok(state.contexts.get(context)?.device))
    }

    /// `cuCtxSynchronize`.
    pub(crate) fn synchronize_context(&self) -> Result<()> {
        let mut state = self.lock();
        let context = state.current()?;
        state.reject_while_capturing("cuCtxSynchronize")?;
        let state = self.wait(state, |state| state.schedule.is_idle(context));
        state.check_context(context)?;
        drop(state);
        self.release_pools_of(context);
        Ok(())
    }

    /// `cuCtxGetFlags`.
    pub(crate) fn context_flags(&self) -> Result<u32> {
        self.with(|state| Ok(state.current_mut()?.flags))
    }

    /// `cuCtxSetFlags`.
    pub(crate) fn set_context_flags(&self, flags: u32) -> Result<()> {
        check_flags(flags)?;
        self.with(|state| {
            state.current_mut()?.flags = flags;
            Ok(())
        })
    }

    /// `cuCtxGetLimit`.
    pub(crate) fn limit(&self, limit: i32) -> Result<usize> {
        self.with(|state| state.limit_mut(limit).map(|value| *value))
    }

    /// `cuCtxSetLimit`.
    pub(crate) fn set_limit(&self, limit: i32, value: usize) -> Result<()> {
        self.with(|state| {
            *state.limit_mut(limit)? = value;
            Ok(())
        })
    }

    /// `cuCtxGetCacheConfig`.
    pub(crate) fn cache_preference(&self) -> Result<i32> {
        self.with(|state| Ok(state.current_mut()?.cache))
    }

    /// `cuCtxSetCacheConfig`.
    pub(crate) fn set_cache_preference(&self, preference: i32) -> Result<()> {
        check_cache_preference(preference)?;
        self.with(|state| {
            state.current_mut()?.cache = preference;
            Ok(())
        })
    }

    /// `cuCtxEnablePeerAccess`.
    pub(crate) fn enable_peer(&self, peer: ContextHandle, flags: u32) -> Result<()> {
        self.with(|state| {
            let device = state.contexts.get(peer)?.device;
            let context = state.current_mut()?;
            if flags != 0 || device == context.device {
                let message = "flags must be 0 and the peer must be a context of another device";
                return Err(Code::InvalidDevice.because(message));
            }
            match context.peers.insert(peer) {
                true => Ok(()),
                false => Err(Code::PeerAccessAlreadyEnabled
                    .because(format!("access to context {peer:?} is already enabled"))),
            }
        })
    }

    /// `cuCtxDisablePeerAccess`.
    pub(crate) fn disable_peer(&self, peer: ContextHandle) -> Result<()> {
        self.with(|state| match state.current_mut()?.peers.remove(&peer) {
            true => Ok(()),
            false => Err(Code::PeerAccessNotEnabled
                .because(format!("access to context {peer:?} is not enabled"))),
        })
    }

    /// Waits for the context's operations, reports leaks, and releases everything it holds.
    fn end_context<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        handle: ContextHandle,
    ) -> Result<()> {
        let mut state = self.wait(state, |state| state.schedule.is_idle(handle));
        let failed = state.check_context(handle).is_err();
        let leaks = state.release_all_of(handle)?;
        drop(state);
        // After a failure, a program cannot free anything, so nothing counts as leaked.
        match failed {
            true => Ok(()),
            false => self.report_leaks(&leaks),
        }
    }
}

impl State {
    /// The current context. Fails if it has failed.
    pub(crate) fn current(&self) -> Result<ContextHandle> {
        let Some(handle) = top() else {
            let message = "no context is current on this thread; call cuCtxSetCurrent";
            return Err(Code::InvalidContext.because(message));
        };
        match &self.contexts.get(handle)?.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(handle),
        }
    }

    fn current_mut(&mut self) -> Result<&mut Context> {
        let handle = self.current()?;
        self.contexts.get_mut(handle)
    }

    fn limit_mut(&mut self, limit: i32) -> Result<&mut usize> {
        let context = self.current_mut()?;
        let device = context.device as usize;
        let unknown = || Code::UnsupportedLimit.because(format!("limit {limit} is not supported"));
        if limit == SYNC_DEPTH && self.devices[device].model.data_sheet().major >= 9 {
            return Err(unknown());
        }
        let at = usize::try_from(limit).map_err(|_| unknown())?;
        self.current_mut()?.limits.0.get_mut(at).ok_or_else(unknown)
    }

    /// Creates a context. `known` is the handle to reuse: a primary context keeps its handle when
    /// it is created again.
    fn begin(
        &mut self,
        known: Option<ContextHandle>,
        device: u32,
        flags: u32,
        primary: bool,
    ) -> ContextHandle {
        let handle = known.unwrap_or_else(|| self.contexts.reserve());
        let legacy = self.streams.insert(Stream::new(handle, StreamKind::Legacy, 0));
        let context = Context {
            device,
            flags,
            primary,
            legacy,
            pending_after_destroy: Vec::new(),
            per_thread: HashMap::new(),
            limits: Limits::default(),
            cache: 0,
            peers: BTreeSet::new(),
            failure: None,
        };
        self.contexts.restore(handle, context);
        handle
    }
}

/// `CUctx_flags`: a scheduling policy of 0, 1, 2 or 4, and five flags.
fn check_flags(flags: u32) -> Result<()> {
    let schedule = flags & 7;
    match flags & !0xff == 0 && matches!(schedule, 0 | 1 | 2 | 4) {
        true => Ok(()),
        false => Err(Code::InvalidValue.because(format!("{flags:#x} are not valid context flags"))),
    }
}

/// `CUfunc_cache`.
pub(crate) fn check_cache_preference(preference: i32) -> Result<()> {
    match preference {
        0..=3 => Ok(()),
        _ => Err(Code::InvalidValue.because(format!("{preference} is not a CUfunc_cache"))),
    }
}
