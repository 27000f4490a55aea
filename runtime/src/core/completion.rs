//! Completions: one host thread waits for work of another.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::Result;

/// A result that one thread sets and others wait for, without spinning. Clones share it.
///
/// The threads that do the work keep one clone and the closure of a [`Pending`](crate::Pending)
/// waits on another:
///
/// ```
/// use meshgrad_runtime::{Completion, Device, Pending, Result, Tensor};
///
/// # fn main() -> Result<()> {
/// let x = Tensor::scalar(&Device::cpu(), 1.0f32)?;
/// let completion = Completion::default();
/// let waiting = completion.clone();
/// let pending = Pending::by_host(move || waiting.wait().map(|()| x));
///
/// let worker = std::thread::spawn(move || completion.complete(Ok(())));
/// assert_eq!(pending.wait()?.item::<f32>()?, 1.0);
/// # assert!(worker.join().unwrap());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Completion(Arc<Inner>);

#[derive(Default)]
struct Inner {
    result: Mutex<Option<Result<()>>>,
    is_set: Condvar,
}

impl Completion {
    /// Sets the result and wakes all waiting threads. Returns false, and changes nothing, if it was
    /// already set.
    pub fn complete(&self, result: Result<()>) -> bool {
        let mut slot = self.lock();
        if slot.is_some() {
            return false;
        }
        *slot = Some(result);
        drop(slot);
        self.0.is_set.notify_all();
        true
    }

    /// Whether the result is set.
    pub fn is_complete(&self) -> bool {
        self.lock().is_some()
    }

    /// Blocks until the result is set.
    ///
    /// # Errors
    /// The result's error.
    pub fn wait(&self) -> Result<()> {
        let mut slot = self.lock();
        loop {
            if let Some(result) = &*slot {
                return result.clone();
            }
            let waited = self.0.is_set.wait(slot);
            slot = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until the result is set or `deadline` has passed. `None` if it is not set by then.
    pub fn wait_until(&self, deadline: Instant) -> Option<Result<()>> {
        let mut slot = self.lock();
        loop {
            if let Some(result) = &*slot {
                return Some(result.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.0.is_set.wait_timeout(slot, left);
            slot = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.0.result.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({:?})", self.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::storage::busy;
    use crate::{Device, Error, Pending, Tensor};

    fn tensor(device: &Device) -> Tensor {
        Tensor::from_slice(device, &[3], &[1.0f32, 2.0, 3.0]).unwrap()
    }

    fn pending(completion: &Completion, x: Tensor) -> Pending<Tensor> {
        let completion = completion.clone();
        Pending::by_host(move || completion.wait().map(|()| x))
    }

    fn error() -> Error {
        busy("test")
    }

    /// `wait` returns the same, whether the work ends before, during or after the call.
    #[test]
    fn the_order_of_wait_and_complete_does_not_matter() {
        let device = Device::cpu();
        for result in [Ok(()), Err(error())] {
            let done = Completion::default();
            assert!(done.complete(result.clone()));
            let before = pending(&done, tensor(&device)).wait();

            let done = Completion::default();
            let later = pending(&done, tensor(&device));
            let waiting = std::thread::spawn(move || later.wait());
            while !waiting.is_finished() && !done.is_complete() {
                std::thread::sleep(Duration::from_millis(1));
                done.complete(result.clone());
            }
            let after = waiting.join().unwrap();

            for waited in [before, after] {
                let values = waited.map(|x| x.to_vec::<f32>().unwrap());
                assert_eq!(values, result.clone().map(|()| vec![1.0, 2.0, 3.0]));
            }
        }
    }

    #[test]
    fn every_waiting_thread_gets_the_first_result() {
        let done = Completion::default();
        let device = Device::cpu();
        let waiting: Vec<_> = (0..16)
            .map(|_| {
                let pending = pending(&done, tensor(&device));
                std::thread::spawn(move || pending.wait().map(|_| ()))
            })
            .collect();
        assert!(done.complete(Err(error())));
        assert!(!done.complete(Ok(())));
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), Err(error()));
        }
        assert_eq!(done.wait(), Err(error()));
    }

    #[test]
    fn dropping_a_pending_frees_its_tensors_and_does_not_stop_the_work() {
        let device = Device::cpu();
        let done = Completion::default();
        drop(pending(&done, tensor(&device)));
        assert_eq!(device.memory_stats().live, 0);
        assert!(done.complete(Ok(())));
    }

    #[test]
    fn a_deadline_ends_the_wait_but_not_the_work() {
        let done = Completion::default();
        assert_eq!(done.wait_until(Instant::now()), None);
        assert!(!done.is_complete());
        done.complete(Ok(()));
        assert_eq!(done.wait_until(Instant::now()), Some(Ok(())));
    }

    #[test]
    fn map_changes_the_result_only() {
        let (done, device) = (Completion::default(), Device::cpu());
        let shape = pending(&done, tensor(&device)).map(|x| x.elements());
        done.complete(Ok(()));
        assert_eq!(shape.wait(), Ok(3));

        let stream = device.stream().unwrap();
        let pending = crate::with_stream(&stream, || Ok::<_, Error>(tensor(&device))).unwrap();
        assert_eq!(pending.map(|x| x.elements()).wait(), Ok(3));
    }

    #[test]
    fn errors_of_and_then_are_returned_by_wait() {
        let (done, device) = (Completion::default(), Device::cpu());
        done.complete(Ok(()));
        let stream = device.stream().unwrap();
        let on_stream = || crate::with_stream(&stream, || Ok::<_, Error>(tensor(&device))).unwrap();
        for work in [pending(&done, tensor(&device)), on_stream()] {
            assert_eq!(work.and_then(|x| Ok(x.elements())).wait(), Ok(3));
        }
        for work in [pending(&done, tensor(&device)), on_stream()] {
            assert_eq!(work.and_then(|_| Err::<(), _>(error())).wait(), Err(error()));
        }
        let failed = Completion::default();
        failed.complete(Err(error()));
        let never = pending(&failed, tensor(&device)).and_then(|_| -> Result<()> { panic!() });
        assert_eq!(never.wait(), Err(error()));
    }
}
