//! Memory pools for stream-ordered allocation. The emulator never reuses addresses, so a pool only
//! counts the bytes that it has reserved on its device and the bytes in use.

use super::context::ContextHandle;
use super::error::{Code, Result};
use super::handles::{Handle, Named};
use super::{Driver, State};

pub(crate) type PoolHandle = Handle<Pool>;

/// The state of a pool, in bytes.
pub(crate) struct Pool {
    device: u32,
    /// A device's default pool, which cannot be destroyed.
    is_default: bool,
    used: Watermark,
    reserved: Watermark,
    /// The maximum that it may reserve on its device.
    limit: usize,
    /// The release threshold: how much it keeps reserved when the host synchronizes.
    threshold: u64,
    /// `CU_MEMPOOL_ATTR_REUSE_*`. They have no effect, because addresses are not reused.
    reuse: [bool; 3],
}

/// A value and its maximum so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watermark {
    now: usize,
    high: usize,
}

impl Watermark {
    fn set(&mut self, now: usize) {
        self.now = now;
        self.high = self.high.max(now);
    }
}

impl Named for Pool {
    const NAME: &'static str = "memory pool";
    const UNKNOWN: Code = Code::InvalidValue;
    const DESTROYED: Code = Code::InvalidValue;
}

impl Pool {
    /// A device's default pool.
    pub(crate) fn of_device(device: u32) -> Pool {
        Pool { is_default: true, ..Pool::new(device, usize::MAX) }
    }

    /// A created pool of at most `limit` bytes.
    pub(crate) fn new(device: u32, limit: usize) -> Pool {
        Pool {
            device,
            is_default: false,
            limit,
            used: Watermark::default(),
            reserved: Watermark::default(),
            threshold: 0,
            reuse: [true; 3],
        }
    }

    /// Whether it leaks when the last context of `device` is destroyed: it is a created pool of
    /// that device.
    pub(crate) fn is_leaked_on(&self, device: u32) -> bool {
        self.device == device && !self.is_default
    }

    /// Returns unused memory to the device, down to `keep` bytes.
    fn trim(&mut self, keep: usize) {
        let kept = self.reserved.now.min(keep).max(self.used.now);
        self.reserved.set(kept);
    }
}

impl Driver {
    /// `cuMemPoolCreate`; a `limit` of 0 means no limit.
    pub(crate) fn create_pool(&self, device: i32, limit: usize) -> Result<PoolHandle> {
        self.with(|state| {
            state.device(device)?;
            let limit = if limit == 0 { usize::MAX } else { limit };
            Ok(state.pools.insert(Pool::new(device as u32, limit)))
        })
    }

    /// `cuMemPoolDestroy`.
    pub(crate) fn destroy_pool(&self, pool: PoolHandle) -> Result<()> {
        self.with(|state| state.destroy_pool(pool))
    }

    /// `cuMemPoolTrimTo`.
    pub(crate) fn trim_pool(&self, pool: PoolHandle, keep: usize) -> Result<()> {
        self.with(|state| {
            state.pools.get_mut(pool)?.trim(keep);
            Ok(())
        })
    }

    /// `cuDeviceGetDefaultMemPool`.
    pub(crate) fn default_pool(&self, device: i32) -> Result<PoolHandle> {
        self.with(|state| {
            state.device(device)?;
            Ok(state.device_pools[device as usize].0)
        })
    }

    /// `cuDeviceGetMemPool`.
    pub(crate) fn device_pool(&self, device: i32) -> Result<PoolHandle> {
        self.with(|state| {
            state.device(device)?;
            Ok(state.device_pools[device as usize].1)
        })
    }

    /// `cuDeviceSetMemPool`.
    pub(crate) fn set_device_pool(&self, device: i32, pool: PoolHandle) -> Result<()> {
        self.with(|state| {
            state.device(device)?;
            if state.pools.get(pool)?.device != device as u32 {
                let message = format!("pool {pool:?} does not belong to device {device}");
                return Err(Code::InvalidValue.because(message));
            }
            state.device_pools[device as usize].1 = pool;
            Ok(())
        })
    }

    /// `cuMemPoolGetAttribute`: the first three attributes have 4 bytes, the others 8.
    pub(crate) fn pool_attribute(&self, pool: PoolHandle, attribute: i32) -> Result<u64> {
        self.with(|state| {
            let pool = state.pools.get(pool)?;
            Ok(match attribute {
                1..=3 => u64::from(pool.reuse[attribute as usize - 1]),
                4 => pool.threshold,
                5 => pool.reserved.now as u64,
                6 => pool.reserved.high as u64,
                7 => pool.used.now as u64,
                8 => pool.used.high as u64,
                _ => return Err(unknown(attribute)),
            })
        })
    }

    /// `cuMemPoolSetAttribute`: high watermarks can only be reset to 0.
    pub(crate) fn set_pool_attribute(
        &self,
        pool: PoolHandle,
        attribute: i32,
        value: u64,
    ) -> Result<()> {
        self.with(|state| {
            let pool = state.pools.get_mut(pool)?;
            match (attribute, value) {
                (1..=3, _) => pool.reuse[attribute as usize - 1] = value != 0,
                (4, _) => pool.threshold = value,
                (6, 0) => pool.reserved.high = pool.reserved.now,
                (8, 0) => pool.used.high = pool.used.now,
                _ => return Err(unknown(attribute)),
            }
            Ok(())
        })
    }

    /// Trims the pools of a context's device to their release thresholds, as a host synchronization
    /// does.
    pub(crate) fn release_pools_of(&self, context: ContextHandle) {
        // A context that was destroyed meanwhile has nothing to release.
        let _ = self.with(|state| {
            let device = state.contexts.get(context)?.device;
            for pool in state.pools.handles(|pool| pool.device == device) {
                let pool = state.pools.get_mut(pool)?;
                pool.trim(usize::try_from(pool.threshold).unwrap_or(usize::MAX));
            }
            Ok(())
        });
    }
}

impl State {
    pub(crate) fn take_from_pool(&mut self, handle: PoolHandle, bytes: usize) -> Result<()> {
        let pool = self.pools.get(handle)?;
        let (device, used) = (pool.device, pool.used.now.saturating_add(bytes));
        if used > pool.limit {
            let limit = pool.limit;
            let message =
                format!("the pool is limited to {limit} bytes; {used} bytes would be in use");
            return Err(Code::OutOfMemory.because(message));
        }
        if used > pool.reserved.now {
            if used - pool.reserved.now > self.free_memory(device) {
                self.trim_pools(device);
            }
            let kept = self.pools.get(handle)?.reserved.now;
            self.check_room(device, used.saturating_sub(kept))?;
        }
        let pool = self.pools.get_mut(handle)?;
        pool.used.set(used);
        pool.reserved.set(pool.reserved.now.max(used));
        Ok(())
    }

    pub(crate) fn destroy_pool(&mut self, pool: PoolHandle) -> Result<()> {
        if self.pools.get(pool)?.is_default {
            return Err(Code::InvalidValue.because("a device's default pool cannot be destroyed"));
        }
        for (default, current) in &mut self.device_pools {
            if *current == pool {
                *current = *default;
            }
        }
        self.pools.remove(pool).map(drop)
    }

    pub(crate) fn return_to_pool(&mut self, pool: PoolHandle, bytes: usize) {
        // The pool may have been destroyed.
        if let Ok(pool) = self.pools.get_mut(pool) {
            pool.used.set(pool.used.now.saturating_sub(bytes));
        }
    }

    pub(crate) fn reserved_by_pools(&self, device: u32) -> usize {
        let here = self.pools.iter().filter(|(_, pool)| pool.device == device);
        here.map(|(_, pool)| pool.reserved.now).sum()
    }

    /// Trims all pools of a device to the bytes in use.
    pub(crate) fn trim_pools(&mut self, device: u32) {
        for pool in self.pools.handles(|pool| pool.device == device) {
            if let Ok(pool) = self.pools.get_mut(pool) {
                pool.trim(0);
            }
        }
    }
}

fn unknown(attribute: i32) -> super::error::Error {
    Code::InvalidValue
        .because(format!("{attribute} is not a pool attribute, or cannot be set to this value"))
}
