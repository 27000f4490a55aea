//! Exported functions: contexts.

use std::ffi::c_int;

use super::arguments::{In, Out, Pointer};
use super::{driver, exports};
use crate::driver::context::ContextHandle;
use crate::driver::error::{Code, Result};
use crate::driver::stream::PRIORITIES;

/// `CUctxCreateParams`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CreateParameters {
    affinities: Pointer,
    affinity_count: c_int,
    graphics: Pointer,
}

exports! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) {
        context.set(driver()?.retain_primary(device)?.raw())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        driver()?.release_primary(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        driver()?.reset_primary(device)
    }

    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<u32>, active: Out<c_int>) {
        let (known_flags, is_active) = driver()?.primary_state(device)?;
        flags.set(known_flags)?;
        active.set(is_active.into())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        driver()?.set_primary_flags(device, flags)
    }

    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, device: c_int) {
        context.set(driver()?.create_context(device, flags)?.raw())
    }

    fn cuCtxCreate_v3(
        context: Out<u64>,
        _affinities: Pointer,
        affinity_count: c_int,
        flags: u32,
        device: c_int,
    ) {
        reject_affinity(affinity_count)?;
        context.set(driver()?.create_context(device, flags)?.raw())
    }

    fn cuCtxCreate_v4(
        context: Out<u64>,
        parameters: In<CreateParameters>,
        flags: u32,
        device: c_int,
    ) {
        if !parameters.is_null() {
            let parameters = parameters.get()?;
            reject_affinity(parameters.affinity_count)?;
            if parameters.graphics.address() != 0 {
                let message = "sharing with graphics APIs is not supported";
                return Err(Code::NotSupported.because(message));
            }
        }
        context.set(driver()?.create_context(device, flags)?.raw())
    }

    fn cuCtxDestroy_v2(context: u64) {
        driver()?.destroy_context(ContextHandle::from_raw(context))
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        let current = driver()?.current_context()?;
        context.set(current.map_or(0, ContextHandle::raw))
    }

    fn cuCtxSetCurrent(context: u64) {
        let handle = (context != 0).then(|| ContextHandle::from_raw(context));
        driver()?.set_current_context(handle)
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        driver()?.push_context(ContextHandle::from_raw(context))
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        context.set_if_not_null(driver()?.pop_context()?.raw());
        Ok(())
    }

    fn cuCtxGetDevice(device: Out<c_int>) {
        device.set(driver()?.current_device()?)
    }

    fn cuCtxSynchronize() {
        driver()?.synchronize_context()
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(driver()?.context_flags()?)
    }

    fn cuCtxSetFlags(flags: u32) {
        driver()?.set_context_flags(flags)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: c_int) {
        value.set(driver()?.limit(limit)?)
    }

    fn cuCtxSetLimit(limit: c_int, value: usize) {
        driver()?.set_limit(limit, value)
    }

    fn cuCtxGetCacheConfig(preference: Out<c_int>) {
        preference.set(driver()?.cache_preference()?)
    }

    fn cuCtxSetCacheConfig(preference: c_int) {
        driver()?.set_cache_preference(preference)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        driver()?.current_device()?;
        least.set_if_not_null(PRIORITIES.0);
        greatest.set_if_not_null(PRIORITIES.1);
        Ok(())
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        driver()?.device_of(ContextHandle::from_raw(context))?;
        version.set(3020)
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        driver()?.enable_peer(ContextHandle::from_raw(peer), flags)
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        driver()?.disable_peer(ContextHandle::from_raw(peer))
    }
}

fn reject_affinity(count: c_int) -> Result<()> {
    match count {
        0 => Ok(()),
        _ => Err(Code::UnsupportedExecAffinity
            .because("execution affinity is not supported: a context uses all multiprocessors")),
    }
}
