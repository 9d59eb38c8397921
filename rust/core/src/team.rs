//! Work on the threads of torch's operators.
//!
//! After a parallel operator torch's threads keep their cores for milliseconds, in wait
//! for the next one. Threads of our own would have to share the cores with them, and a
//! sum between two products would take up to twice its time.

use crate::pool;

/// Like [`pool::for_each`], on the OpenMP threads that torch's operators use, or on a
/// pool if this process has no OpenMP.
///
/// For kernels that run between torch's operators. Work concurrent with these belongs
/// on a pool, because waiting OpenMP threads would keep cores busy.
pub fn for_each<T: Send>(threads: usize, tasks: Vec<T>, work: impl Fn(T) + Sync) {
    pool::number(tasks, work, |count, work| {
        #[cfg(target_os = "linux")]
        if threads.min(count) > 1
            && let Some(start) = openmp::start()
        {
            // All threads, also for few tasks: changing the number of OpenMP threads
            // stops and starts threads, here and at torch's next operator.
            return openmp::for_each_number(start, pool::started(threads), count, work);
        }
        pool::for_each_number(threads, count, work);
    });
}

#[cfg(target_os = "linux")]
mod openmp {
    use std::any::Any;
    use std::ffi::{c_uint, c_void};
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
    use std::{mem, process, ptr};

    type Body = unsafe extern "C" fn(*mut c_void);
    /// Calls a body with its data on the given number of OpenMP threads, including the
    /// calling one, and waits for all. Exported by GNU's and LLVM's runtimes.
    pub(super) type Start = unsafe extern "C" fn(Body, *mut c_void, c_uint, c_uint);

    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    static PROCESS: AtomicU32 = AtomicU32::new(0); // in which OpenMP threads were started

    /// Returns the runtime that torch has loaded, or `None` before torch is imported
    /// and in a forked process, which does not inherit OpenMP threads.
    pub(super) fn start() -> Option<Start> {
        let mut found = FOUND.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name is a C string.
            found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"GOMP_parallel".as_ptr()) };
            FOUND.store(found, Ordering::Relaxed);
        }
        if found.is_null() {
            return None;
        }
        let own = process::id();
        let first = PROCESS
            .compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed)
            .unwrap_or_else(|first| first);
        // SAFETY: the runtime's binary interface, which its users are compiled against.
        (first == 0 || first == own).then(|| unsafe { mem::transmute::<*mut c_void, Start>(found) })
    }

    struct Team<'a> {
        work: &'a (dyn Fn(usize) + Sync),
        count: usize,
        next: AtomicUsize,
        panic: Mutex<Option<Box<dyn Any + Send>>>,
    }

    pub(super) fn for_each_number(start: Start, threads: usize, count: usize, work: &(dyn Fn(usize) + Sync)) {
        let (next, panic) = (AtomicUsize::new(0), Mutex::new(None));
        let mut team = Team {
            work,
            count,
            next,
            panic,
        };
        // SAFETY: `body` receives the expected type, which outlives the call. It only
        // reads it, and no panic unwinds out of it.
        unsafe { start(body, (&raw mut team).cast(), threads as c_uint, 0) };
        if let Some(panic) = team.panic.into_inner().expect("nobody panics with the lock") {
            resume_unwind(panic);
        }
    }

    /// Takes tasks until none is left.
    unsafe extern "C" fn body(team: *mut c_void) {
        // SAFETY: `for_each_number` passes a `Team`, to which no thread writes.
        let team = unsafe { &*team.cast::<Team<'_>>() };
        let done = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let number = team.next.fetch_add(1, Ordering::Relaxed);
                if number >= team.count {
                    return;
                }
                (team.work)(number);
            }
        }));
        if let Err(panic) = done {
            team.next.store(team.count, Ordering::Relaxed);
            team.panic
                .lock()
                .expect("nobody panics with the lock")
                .get_or_insert(panic);
        }
    }
}
