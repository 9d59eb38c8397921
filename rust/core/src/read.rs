//! Reads of memory that other processes may write, and prefetches.

/// Reads `value` once, so the value that is checked is the value that is used, even if
/// another process writes to it concurrently.
#[inline(always)]
pub(crate) fn load<T: Copy>(value: &T) -> T {
    // SAFETY: a reference is always valid for a read.
    unsafe { std::ptr::from_ref(value).read_volatile() }
}

/// Prefetches `slice[at]`. Any `at` is allowed.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see and faults on no
    // address. It is worth a factor of three.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().wrapping_add(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, at);
}
