//! Exported functions: events.

use super::arguments::Out;
use super::{driver, exports};
use crate::driver::event::EventHandle;

exports! {
    fn cuEventCreate(event: Out<u64>, flags: u32) {
        event.set(driver()?.create_event(flags)?.raw())
    }

    fn cuEventDestroy_v2(event: u64) {
        driver()?.destroy_event(EventHandle::from_raw(event))
    }

    fn cuEventRecord(event: u64, stream: u64) {
        driver()?.record_event(EventHandle::from_raw(event), stream, 0)
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) {
        driver()?.record_event(EventHandle::from_raw(event), stream, flags)
    }

    fn cuEventQuery(event: u64) {
        driver()?.query_event(EventHandle::from_raw(event))
    }

    fn cuEventSynchronize(event: u64) {
        driver()?.synchronize_event(EventHandle::from_raw(event))
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        let (start, end) = (EventHandle::from_raw(start), EventHandle::from_raw(end));
        milliseconds.set(driver()?.elapsed(start, end)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        let (start, end) = (EventHandle::from_raw(start), EventHandle::from_raw(end));
        milliseconds.set(driver()?.elapsed(start, end)?)
    }
}
