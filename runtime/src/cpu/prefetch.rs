//! Software prefetching, for access patterns that the hardware prefetcher does not predict.

/// Bytes per cache line.
const CACHE_LINE: usize = 64;

/// Prefetches all cache lines of `elements`.
#[inline(always)]
pub(crate) fn prefetch<T>(elements: &[T]) {
    for element in elements.iter().step_by(CACHE_LINE / size_of::<T>()) {
        prefetch_line(element);
    }
    if let Some(last) = elements.last() {
        prefetch_line(last); // if the first element is not aligned to a line
    }
}

#[inline(always)]
fn prefetch_line<T>(element: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint and accesses no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = element;
}
