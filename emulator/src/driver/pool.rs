//! Memory pools: what stream-ordered allocations come from. Addresses are never used twice here, so
//! a pool only keeps accounts: how much it has taken from its device, and how much is in use.

use super::context::ContextHandle;
use super::error::{Code, Result};
use super::handles::{Handle, Named};
use super::{Driver, State};

pub(crate) type PoolHandle = Handle<Pool>;

/// The accounts of a pool, in bytes.
pub(crate) struct Pool {
    device: u32,
    /// A device's own, which nobody destroys.
    is_default: bool,
    used: Level,
    reserved: Level,
    /// The most that it may take from its device.
    limit: usize,
    /// How much it keeps when the host waits.
    threshold: u64,
    /// `CU_MEMPOOL_ATTR_REUSE_*`, which concern addresses that are used twice.
    reuse: [bool; 3],
}

/// A number and the highest it has been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Level {
    now: usize,
    high: usize,
}

impl Level {
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
    /// A device's own.
    pub(crate) fn of_device(device: u32) -> Pool {
        Pool {
            is_default: true,
            ..Pool::new(device, usize::MAX)
        }
    }

    /// One of a program, that takes at most `limit` bytes.
    pub(crate) fn new(device: u32, limit: usize) -> Pool {
        Pool {
            device,
            is_default: false,
            limit,
            used: Level::default(),
            reserved: Level::default(),
            threshold: 0,
            reuse: [true; 3],
        }
    }

    /// Whether it is one of a program's on this device.
    pub(crate) fn is_left_on(&self, device: u32) -> bool {
        self.device == device && !self.is_default
    }

    /// Gives all but `keep` bytes back to the device, as far as they are not in use.
    fn trim(&mut self, keep: usize) {
        let kept = self.reserved.now.min(keep).max(self.used.now);
        self.reserved.set(kept);
    }
}

impl Driver {
    /// `cuMemPoolCreate`; a `limit` of 0 is none.
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
                let words = format!("pool {pool:?} is not of device {device}");
                return Err(Code::InvalidValue.because(words));
            }
            state.device_pools[device as usize].1 = pool;
            Ok(())
        })
    }

    /// `cuMemPoolGetAttribute`: the first three are numbers of four bytes, the others of eight.
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

    /// `cuMemPoolSetAttribute`: high water marks can only be set to 0.
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

    /// Lets the pools of a context's device keep no more than they should, as when the host waits.
    pub(crate) fn release_pools_of(&self, context: ContextHandle) {
        // A context that has ended meanwhile has no device to release anything of.
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
            let words = format!("a pool of at most {limit} bytes would hold {used}");
            return Err(Code::OutOfMemory.because(words));
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
            return Err(Code::InvalidValue.because("a device's default pool stays"));
        }
        for (default, current) in &mut self.device_pools {
            if *current == pool {
                *current = *default;
            }
        }
        self.pools.remove(pool).map(drop)
    }

    pub(crate) fn return_to_pool(&mut self, pool: PoolHandle, bytes: usize) {
        // A pool that was destroyed has no accounts any more.
        if let Ok(pool) = self.pools.get_mut(pool) {
            pool.used.set(pool.used.now.saturating_sub(bytes));
        }
    }

    pub(crate) fn reserved_by_pools(&self, device: u32) -> usize {
        let here = self.pools.iter().filter(|(_, pool)| pool.device == device);
        here.map(|(_, pool)| pool.reserved.now).sum()
    }

    /// Makes all pools of a device keep only what is in use.
    pub(crate) fn trim_pools(&mut self, device: u32) {
        for pool in self.pools.handles(|pool| pool.device == device) {
            if let Ok(pool) = self.pools.get_mut(pool) {
                pool.trim(0);
            }
        }
    }
}

fn unknown(attribute: i32) -> super::error::Error {
    Code::InvalidValue.because(format!(
        "{attribute} is no attribute of pools that can be so set"
    ))
}
