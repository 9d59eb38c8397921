//! One hop drawn by several threads, to the same bits as by one.
//!
//! Rows are cut into slices, and any thread may draw any slice. The calling thread
//! takes the slices in order, so nodes are numbered as by one thread. While the next
//! slice is missing, the calling thread draws slices too.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::batch::Sizes;
use super::edges::{Draw, Edges, draw_rows};
use super::law::Law;
use crate::csc::Id;
use crate::{Error, pool};

/// Approximate number of edges that a slice draws. Handing over a slice is cheap
/// compared with its draws, and the wait for the last slice is short.
const SLICE: usize = 1 << 12;

/// Fewer slices are drawn by one thread before other threads have woken.
const FEW_SLICES: usize = 4;

/// The threads that draw, and the memory of their draws.
#[derive(Debug)]
pub(crate) struct Crew {
    pub threads: usize,
    /// The needs of the last batch, by type of nodes and of edges.
    pub sizes: Vec<Sizes>,
    rooms: Rooms,
}

impl Default for Crew {
    fn default() -> Self {
        Self {
            threads: 1,
            sizes: Vec::new(),
            rooms: Rooms::default(),
        }
    }
}

/// Memory of draws that nobody uses, of whichever laws have drawn.
#[derive(Debug, Default)]
struct Rooms(Mutex<Vec<Box<dyn Any + Send>>>);

impl Rooms {
    fn take<L: Law>(&self) -> Box<L::Room> {
        let mut free = self.lock();
        let fits = free.iter().position(|room| room.is::<L::Room>());
        let room = fits.and_then(|at| free.swap_remove(at).downcast().ok());
        room.unwrap_or_default()
    }

    fn give(&self, room: Box<dyn Any + Send>) {
        self.lock().push(room);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Box<dyn Any + Send>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Crew {
    /// Memory for draws by the law `L`, used before or new.
    pub fn take_room<L: Law>(&self) -> Box<L::Room> {
        self.rooms.take::<L>()
    }

    /// Gives back memory for later draws.
    pub fn give_room(&self, room: Box<dyn Any + Send>) {
        self.rooms.give(room);
    }

    /// Does `work`, which may call `draw` several times.
    pub fn run<R: Send>(&mut self, mut work: impl FnMut(&mut Self) -> Result<R, Error> + Send) -> Result<R, Error> {
        let threads = self.threads;
        let result = pool::enter(threads, || work(self));
        if result.is_ok() || threads == 1 {
            return result;
        }
        // Several threads need not meet the error that one thread meets first.
        self.threads = 1;
        let result = work(self);
        self.threads = threads;
        result
    }

    /// Whether there are several threads and, for that many draws, they are faster than
    /// one.
    pub fn is_worth_it(&self, num_draws: usize) -> bool {
        self.threads > 1 && num_draws >= FEW_SLICES * SLICE
    }

    /// Calls `take` with the edges that each slice of `task` drew, in order.
    pub fn draw<I: Id, L: Law>(
        &mut self,
        task: &Draw<'_, I>,
        law: &L,
        mut take: impl FnMut(Edges<I>) -> Result<(), Error> + Send,
    ) -> Result<(), Error> {
        let rooms = &self.rooms;
        let slices = &Slices::new(task, law);
        let (sender, receiver) = channel();
        let help = |sender: Sender<_>| {
            let mut room = rooms.take::<L>();
            while let Some(at) = slices.claim() {
                if sender.send((at, slices.draw(at, &mut room))).is_err() {
                    break; // after an error nobody wants the rest
                }
            }
            rooms.give(room);
        };
        let senders = vec![sender; self.threads - 1].into_iter();
        let helpers = senders.map(|sender| Box::new(|| help(sender)) as pool::Help<'_>);
        pool::with_help(helpers.collect(), move || {
            let mut room = rooms.take::<L>();
            let mut drawn: Vec<_> = (0..slices.count()).map(|_| None).collect();
            for next in 0..drawn.len() {
                while drawn[next].is_none() {
                    let (at, edges) = if let Ok(received) = receiver.try_recv() {
                        received
                    } else if let Some(own) = slices.claim() {
                        (own, slices.draw(own, &mut room))
                    } else {
                        receiver
                            .recv()
                            .expect("whoever claimed the slice sends it, or panicked")
                    };
                    drawn[at] = Some(edges);
                }
                drawn[next].take().map_or(Ok(()), |edges| take(edges?))?;
            }
            rooms.give(room);
            Ok(())
        })
    }
}

/// The rows of a hop, in slices.
struct Slices<'a, 't, I, L> {
    task: &'a Draw<'t, I>,
    law: &'a L,
    /// Rows of a slice. The last slice may have fewer.
    size: usize,
    /// The first slice that nobody draws yet.
    unclaimed: AtomicUsize,
}

impl<'a, 't, I: Id, L: Law> Slices<'a, 't, I, L> {
    fn new(task: &'a Draw<'t, I>, law: &'a L) -> Self {
        let count = task.num_draws.div_ceil(SLICE).max(1);
        Self {
            task,
            law,
            size: task.nodes.len().div_ceil(count).max(1),
            unclaimed: AtomicUsize::new(0),
        }
    }

    fn count(&self) -> usize {
        self.task.nodes.len().div_ceil(self.size)
    }

    /// A slice to draw. Each is given out once.
    fn claim(&self) -> Option<usize> {
        let at = self.unclaimed.fetch_add(1, Ordering::Relaxed);
        (at < self.count()).then_some(at)
    }

    fn draw(&self, at: usize, room: &mut L::Room) -> Result<Edges<I>, Error> {
        let first = at * self.size;
        let nodes = &self.task.nodes[first..self.task.nodes.len().min(first + self.size)];
        let num_draws = self.task.num_draws * nodes.len() / self.task.nodes.len();
        let sizes = Sizes {
            rows: nodes.len(),
            edges: num_draws,
            nodes: 0,
        };
        let mut edges = Edges::new(self.task.graph, self.task.importance, sizes);
        let task = Draw {
            nodes,
            num_draws,
            ..*self.task
        };
        draw_rows(&task, self.law, first, room, &mut edges)?;
        Ok(edges)
    }
}
