//! Numbered jobs done ahead of their consumer on threads, and handed out in order.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The result of `Pipeline::take`.
#[derive(Debug)]
pub enum Taken<T> {
    /// The next result, or the panic of the worker that should have made it.
    Next(thread::Result<T>),
    /// Not made yet.
    Pending,
    /// All jobs are done and taken, or the pipeline was closed.
    End,
}

/// Results of jobs, at most `depth` of them made or in the making and not yet taken.
/// Which thread does a job, and when, never shows: results come in the order of the
/// jobs.
///
/// Dropping it waits for the jobs that have begun. Threads do not survive a fork: in a
/// forked child it takes nothing, and dropping it there touches neither threads nor
/// locks.
#[derive(Debug)]
pub struct Pipeline<T> {
    shared: Arc<Shared<T>>,
    threads: Vec<JoinHandle<()>>,
    pid: u32,
}

#[derive(Debug)]
struct Shared<T> {
    state: Mutex<State<T>>,
    made: Condvar,
    taken: Condvar,
    depth: usize,
}

#[derive(Debug)]
struct State<T> {
    to_do: Range<usize>,
    to_take: usize,
    made: BTreeMap<usize, thread::Result<T>>,
}

impl<T: Send + 'static> Pipeline<T> {
    /// Starts one thread for each of `workers`, which do `jobs`. `depth` must not be 0.
    pub fn start<W>(jobs: Range<usize>, depth: usize, workers: Vec<W>) -> io::Result<Self>
    where
        W: FnMut(usize) -> T + Send + 'static,
    {
        assert!(depth > 0, "nothing could be made");
        let mut pipeline = Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    to_take: jobs.start,
                    to_do: jobs,
                    made: BTreeMap::new(),
                }),
                made: Condvar::new(),
                taken: Condvar::new(),
                depth,
            }),
            threads: Vec::new(),
            pid: process::id(),
        };
        for mut worker in workers {
            let shared = Arc::clone(&pipeline.shared);
            let run = move || {
                while let Some(job) = shared.next_job() {
                    let result = catch_unwind(AssertUnwindSafe(|| worker(job)));
                    shared.lock().made.insert(job, result);
                    shared.made.notify_all();
                }
            };
            let thread = thread::Builder::new().name("gnnkit-loader".into()).spawn(run)?;
            pipeline.threads.push(thread);
        }
        Ok(pipeline)
    }
}

impl<T> Pipeline<T> {
    /// The next result in order, waiting no longer than `patience` for it.
    pub fn take(&self, patience: Duration) -> Taken<T> {
        let waiting =
            |state: &mut State<T>| state.to_take < state.to_do.end && !state.made.contains_key(&state.to_take);
        let guard = self.shared.lock();
        let (mut state, _) = self
            .shared
            .made
            .wait_timeout_while(guard, patience, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        if state.to_take >= state.to_do.end {
            return Taken::End;
        }
        let next = state.to_take;
        let Some(result) = state.made.remove(&next) else {
            return Taken::Pending;
        };
        state.to_take += 1;
        self.shared.taken.notify_one();
        Taken::Next(result)
    }

    /// Whether this is the process that started the threads.
    pub fn is_own_process(&self) -> bool {
        self.pid == process::id()
    }
}

impl<T> Drop for Pipeline<T> {
    fn drop(&mut self) {
        if !self.is_own_process() {
            // The threads do not exist here, and one of them may have held the lock at
            // the fork. Theirs is also a count of `shared` each, which so is never
            // freed.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.lock().to_do = 0..0;
        self.shared.taken.notify_all();
        for thread in self.threads.drain(..) {
            thread.join().expect("workers catch panics");
        }
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for room for a result and returns the next job, or none when no job is
    /// left.
    fn next_job(&self) -> Option<usize> {
        let full = |state: &mut State<T>| !state.to_do.is_empty() && state.to_do.start - state.to_take >= self.depth;
        let mut state = self
            .taken
            .wait_while(self.lock(), full)
            .unwrap_or_else(PoisonError::into_inner);
        state.to_do.next()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn squares(num_threads: usize) -> Vec<impl FnMut(usize) -> usize + Send + 'static> {
        let late = |job: usize| thread::sleep(Duration::from_micros((job * 7919 % 5) as u64 * 100));
        (0..num_threads)
            .map(|_| {
                move |job| {
                    late(job);
                    job * job
                }
            })
            .collect()
    }

    #[test]
    fn results_come_in_order_for_any_depth_and_number_of_threads() {
        for (depth, num_threads) in [(1, 1), (1, 4), (3, 2), (50, 8)] {
            let pipeline = Pipeline::start(5..60, depth, squares(num_threads)).unwrap();
            for job in 5..60 {
                assert!(matches!(pipeline.take(PATIENCE), Taken::Next(Ok(square)) if square == job * job));
            }
            assert!(matches!(pipeline.take(PATIENCE), Taken::End));
        }
    }

    #[test]
    fn no_more_than_depth_jobs_begin_before_they_are_taken() {
        let begun = Arc::new(AtomicUsize::new(0));
        let workers = (0..4)
            .map(|_| {
                let begun = Arc::clone(&begun);
                move |_| begun.fetch_add(1, Ordering::SeqCst)
            })
            .collect();
        let pipeline = Pipeline::start(0..100, 3, workers).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert_eq!(begun.load(Ordering::SeqCst), 3);
        assert!(matches!(pipeline.take(PATIENCE), Taken::Next(Ok(_))));
        thread::sleep(Duration::from_millis(50));
        assert_eq!(begun.load(Ordering::SeqCst), 4);
    }

    #[test]
    fn dropping_it_waits_for_its_threads() {
        let alive = Arc::new(());
        let holder = Arc::clone(&alive);
        let pipeline = Pipeline::start(0..1_000, 2, vec![move |_| Arc::strong_count(&holder)]).unwrap();
        assert!(matches!(pipeline.take(PATIENCE), Taken::Next(Ok(_))));
        drop(pipeline);
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_panic_reaches_the_consumer() {
        let pipeline = Pipeline::start(0..2, 2, vec![|job| assert!(job != 1, "job {job}")]).unwrap();
        assert!(matches!(pipeline.take(PATIENCE), Taken::Next(Ok(()))));
        assert!(matches!(pipeline.take(PATIENCE), Taken::Next(Err(_))));
        assert!(matches!(pipeline.take(PATIENCE), Taken::End));
    }

    #[test]
    fn an_impatient_consumer_is_told_that_nothing_is_there() {
        let slow = |_| thread::sleep(Duration::from_millis(100));
        let pipeline = Pipeline::start(0..1, 1, vec![slow]).unwrap();
        assert!(matches!(pipeline.take(Duration::ZERO), Taken::Pending));
        assert!(matches!(pipeline.take(PATIENCE), Taken::Next(Ok(()))));
    }
}
