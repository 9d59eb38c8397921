//! Fallible allocation, tables on large pages, and lists that return their memory for
//! reuse by later batches.

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use crate::Error;

/// Smaller lists are not kept: the allocator has their memory at hand anyway.
const LEAST_BYTES: usize = 1 << 17;

/// How many bytes of lists of one type are kept at most.
const MOST_BYTES: usize = 1 << 26;

/// A list that leaves its memory to the next batches when it is dropped. Allocating
/// pages and returning them to the system costs 15 % of a large batch and half of a
/// small one.
#[derive(Debug, Clone, PartialEq)]
pub struct List<T: Kept>(Vec<T>);

/// Element types of lists that keep their memory for reuse.
pub trait Kept: Copy + Send + 'static {
    /// The store of this element type.
    fn store() -> &'static Store<Self>;
}

/// Memory of lists that were dropped.
///
/// A lock that is taken is not waited for: whoever has it may not exist, as threads do
/// not survive a fork.
#[derive(Debug)]
pub struct Store<T>(Mutex<Vec<Vec<T>>>);

macro_rules! keep {
    ($($of:ty),*) => {
        $(impl Kept for $of {
            fn store() -> &'static Store<Self> {
                static STORE: Store<$of> = Store(Mutex::new(Vec::new()));
                &STORE
            }
        })*
    };
}

keep!(i16, i32, i64, f32);

impl<T> Store<T> {
    /// An empty list with room for `capacity` and at most twice that.
    fn take(&self, capacity: usize) -> Option<Vec<T>> {
        let mut free = self.0.try_lock().ok()?;
        let fitting = (0..free.len()).filter(|&at| (capacity..=2 * capacity).contains(&free[at].capacity()));
        let best = fitting.min_by_key(|&at| free[at].capacity())?;
        Some(free.swap_remove(best))
    }

    fn give(&self, mut list: Vec<T>) {
        let bytes = |list: &Vec<T>| list.capacity() * size_of::<T>();
        if bytes(&list) < LEAST_BYTES {
            return;
        }
        if let Ok(mut free) = self.0.try_lock()
            && bytes(&list) + free.iter().map(bytes).sum::<usize>() <= MOST_BYTES
        {
            list.clear();
            free.push(list);
        }
    }
}

impl<T: Kept> List<T> {
    /// An empty list with room for `capacity`.
    pub fn with_capacity(capacity: usize) -> Self {
        Self(
            T::store()
                .take(capacity)
                .unwrap_or_else(|| Vec::with_capacity(capacity)),
        )
    }
}

impl<T: Kept> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Kept> Drop for List<T> {
    fn drop(&mut self) {
        T::store().give(std::mem::take(&mut self.0));
    }
}

impl<T: Kept> Deref for List<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Kept> DerefMut for List<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.0
    }
}

/// Smaller requests are not compared with the memory of the machine.
const MUCH_BYTES: usize = 1 << 28;

/// Makes room for `additional` more elements of `list`.
///
/// Their number follows from the count `name = value`, which the error names. `None`:
/// the number is beyond `usize`. A system that promises more memory than it has ends
/// the process later, so large requests are first compared with the memory of the
/// machine.
#[inline]
pub(crate) fn reserve<T>(
    list: &mut Vec<T>,
    additional: Option<usize>,
    name: &'static str,
    value: usize,
) -> Result<(), Error> {
    let additional = additional.unwrap_or(usize::MAX);
    if list.capacity() - list.len() >= additional {
        return Ok(());
    }
    let bytes = list.len().saturating_add(additional).saturating_mul(size_of::<T>());
    if bytes >= MUCH_BYTES && bytes >= machine_bytes() {
        return Err(Error::TooLarge { name, value });
    }
    list.try_reserve(additional)
        .map_err(|_| Error::TooLarge { name, value })
}

/// A vector of `len` times `fill`. Its length follows from `name = value` as in
/// [`reserve`].
pub(crate) fn filled<T: Clone>(fill: T, len: Option<usize>, name: &'static str, value: usize) -> Result<Vec<T>, Error> {
    let mut list: Vec<T> = Vec::new();
    reserve(&mut list, len, name, value)?;
    let len = len.unwrap_or_default();
    advise(list.as_mut_ptr().cast(), size_of::<T>() * len);
    list.resize(len, fill);
    Ok(list)
}

/// A copy on pages as [`zeroed`] has.
pub(crate) fn copied<T: Copy>(slice: &[T]) -> Vec<T> {
    let mut list: Vec<T> = Vec::with_capacity(slice.len());
    advise(list.as_mut_ptr().cast(), size_of_val(slice));
    list.extend_from_slice(slice);
    list
}

/// Bytes of memory that this machine has.
#[cfg(target_os = "linux")]
fn machine_bytes() -> usize {
    // SAFETY: both calls only read settings of the system.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let known = usize::try_from(pages).ok().zip(usize::try_from(size).ok());
    known.map_or(usize::MAX, |(pages, size)| pages.saturating_mul(size))
}

#[cfg(not(target_os = "linux"))]
fn machine_bytes() -> usize {
    isize::MAX as usize
}

/// Allocates a vector of zeros on 2 MiB pages where the system grants them on request.
/// On pages of 4 KiB, random access spends a fifth of a batch on address translation.
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
    // SAFETY: whole pages of memory that the caller owns. The advice changes their
    // size, never their contents. -17 % of a batch.
    unsafe { libc::madvise(start.add(skip).cast(), bytes - skip, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: *mut u8, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(capacities: &[usize]) -> Store<i64> {
        let store = Store(Mutex::default());
        capacities.iter().for_each(|&len| store.give(vec![7; len]));
        store
    }

    #[test]
    fn the_smallest_list_with_room_is_taken_and_is_empty() {
        let store = store(&[40_000, 20_000, 30_000, 60_000]);
        let capacities =
            [25_000, 25_000, 25_000].map(|least| store.take(least).map(|list| (list.len(), list.capacity())));
        assert_eq!(capacities, [Some((0, 30_000)), Some((0, 40_000)), None]);
    }

    #[test]
    fn small_lists_and_too_many_are_not_kept() {
        assert_eq!(store(&[100]).take(100), None);
        let half = MOST_BYTES / size_of::<i64>() / 2;
        let store = store(&[half, half, half]);
        assert!([store.take(half), store.take(half)].iter().all(Option::is_some));
        assert_eq!(store.take(half), None);
    }

    #[test]
    fn what_no_memory_holds_is_refused_by_name() {
        let text = |len| filled(0u64, len, "width", 7).unwrap_err().to_string();
        for len in [Some(1 << 45), Some(usize::MAX), None] {
            assert_eq!(text(len), "width = 7 needs more memory than there is");
        }
        assert_eq!(filled(3, Some(2), "width", 2), Ok(vec![3, 3]));
    }

    #[test]
    fn a_store_that_is_locked_is_not_waited_for() {
        let store = store(&[20_000]);
        let _held = store.0.lock().unwrap();
        store.give(vec![7; 20_000]);
        assert_eq!(store.take(20_000), None);
    }
}
