//! Threads that survive a fork: ranks are forked, and a thread pool is not.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::process;
use std::rc::Rc;
use std::sync::{Mutex, OnceLock};
use std::thread;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// The largest number of threads that a caller may ask for.
pub const MOST_THREADS: usize = 1024;

/// The number of threads that a pool of `threads` threads starts: at most eight per
/// core, because they stay until the calling thread ends.
pub(crate) fn started(threads: usize) -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let cores = *CORES.get_or_init(|| thread::available_parallelism().map_or(1, usize::from));
    threads.min(8 * cores).min(MOST_THREADS)
}

struct Pool {
    pid: u32,
    threads: usize,
    pool: ManuallyDrop<ThreadPool>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        // After a fork the threads of an inherited pool do not exist: waiting for them
        // would never end.
        if self.pid == process::id() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.pool) }
        }
    }
}

thread_local! {
    // Per calling thread, so that there is no lock which another thread could hold at
    // the moment of a fork.
    static POOLS: RefCell<Vec<Rc<Pool>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` on each of `tasks` on at most `threads` threads. One thread is the
/// calling one.
///
/// Pools are made on first use, per calling thread and process. Where the system
/// refuses more threads the calling one does the work.
pub fn for_each<T: Send>(threads: usize, tasks: Vec<T>, work: impl Fn(T) + Sync) {
    number(tasks, work, |count, work| for_each_number(threads, count, work));
}

/// Calls `all` with the number of tasks and the work on a task by its number.
pub(crate) fn number<T: Send>(
    tasks: Vec<T>,
    work: impl Fn(T) + Sync,
    all: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
) {
    let tasks: Vec<_> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
    all(tasks.len(), &|number| {
        let task = tasks[number].lock().expect("nobody panics with the lock").take();
        work(task.expect("each number comes once"));
    });
}

/// As [`for_each`], compiled once: work behind a pointer, and tasks by number.
pub(crate) fn for_each_number(threads: usize, count: usize, work: &(dyn Fn(usize) + Sync)) {
    match pool_of(if count > 1 { threads } else { 1 }) {
        Some(pool) => pool
            .pool
            .install(|| (0..count).into_par_iter().with_max_len(1).for_each(work)),
        None => (0..count).for_each(work),
    }
}

/// Does `work` on one of at most `threads` threads, where [`with_help`] finds the
/// others: the calling thread need not fall asleep and wake again each time.
pub fn enter<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    let (mut work, mut result) = (Some(work), None);
    enter_once(threads, &mut || result = work.take().map(|work| work()));
    result.expect("called once")
}

fn enter_once(threads: usize, work: &mut (dyn FnMut() + Send)) {
    match pool_of(threads) {
        Some(pool) => pool.pool.install(work),
        None => work(),
    }
}

/// Work that helps the calling thread.
pub type Help<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Runs `work` on the calling thread and, within [`enter`], the tasks of `helpers` on
/// the other threads at the same time.
pub fn with_help<R: Send>(helpers: Vec<Help<'_>>, work: impl FnOnce() -> R + Send) -> R {
    let (mut work, mut result) = (Some(work), None);
    help_once(helpers, &mut || result = work.take().map(|work| work()));
    result.expect("called once")
}

fn help_once(helpers: Vec<Help<'_>>, work: &mut (dyn FnMut() + Send)) {
    if rayon::current_thread_index().is_none() {
        drop(helpers);
        return work();
    }
    rayon::scope(|scope| {
        helpers.into_iter().for_each(|help| scope.spawn(|_| help()));
        work();
    });
}

/// The pool of this thread and process, or none for a single thread.
fn pool_of(threads: usize) -> Option<Rc<Pool>> {
    let threads = started(threads);
    if threads <= 1 {
        return None;
    }
    POOLS.with_borrow_mut(|pools| {
        let pid = process::id();
        if let Some(pool) = pools.iter().find(|p| p.pid == pid && p.threads == threads) {
            return Some(Rc::clone(pool));
        }
        let pool = ManuallyDrop::new(ThreadPoolBuilder::new().num_threads(threads).build().ok()?);
        pools.push(Rc::new(Pool { pid, threads, pool }));
        pools.last().cloned()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_task_runs_once_on_any_number_of_threads() {
        for threads in [0, 1, 2, 5] {
            let sum = AtomicUsize::new(0);
            for_each(threads, (0..100).collect(), |task: usize| {
                sum.fetch_add(1 << 20 | task, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), (100 << 20) + 4950, "{threads} threads");
        }
    }

    #[test]
    fn a_pool_has_at_most_eight_threads_per_core() {
        let cores = thread::available_parallelism().unwrap().get();
        assert_eq!(started(1), 1);
        assert_eq!(started(usize::MAX), (8 * cores).min(MOST_THREADS));
    }
}
