//! One hop drawn by several threads, with the bits of one.
//!
//! Rows are cut into slices, which any thread may draw, as what a row draws follows from the row alone. The calling thread takes
//! what they drew in order, which numbers nodes as one thread would, and draws slices itself while the next one is missing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

use super::hop::{Draw, Edges, Sizes, draw_rows};
use super::law::{Law, Room};
use crate::csc::Id;
use crate::{Error, pool};

/// About how many edges a slice draws: handing it over is cheap beside them, and nobody waits long for the last one.
const SLICE: usize = 1 << 12;

/// Fewer slices are drawn before other threads have woken.
const FEW_SLICES: usize = 4;

/// The threads that draw, and the memory of their draws.
#[derive(Debug)]
pub(crate) struct Crew {
    pub threads: usize,
    /// Of the calling thread.
    pub room: Room,
    /// What the last batch needed.
    pub sizes: Sizes,
    /// Of the other threads, while they do not draw.
    rooms: Mutex<Vec<Room>>,
}

impl Default for Crew {
    fn default() -> Self {
        Self {
            threads: 1,
            room: Room::default(),
            sizes: Sizes::default(),
            rooms: Mutex::default(),
        }
    }
}

impl Crew {
    /// Does `work`, which may call `draw` several times.
    pub fn run<R: Send>(&mut self, mut work: impl FnMut(&mut Self) -> Result<R, Error> + Send) -> Result<R, Error> {
        let threads = self.threads;
        let result = pool::enter(threads, || work(self));
        if result.is_ok() || threads == 1 {
            return result;
        }
        // Of several errors, threads need not meet the one that one thread meets.
        self.threads = 1;
        let result = work(self);
        self.threads = threads;
        result
    }

    /// Whether there are several threads and, for that many draws, they are faster than one.
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
        let (room, rooms) = (&mut self.room, &self.rooms);
        let slices = &Slices::new(task, law);
        let (sender, receiver) = channel();
        let help = |sender: Sender<_>| {
            let lock = || rooms.lock().unwrap_or_else(PoisonError::into_inner);
            let mut room = lock().pop().unwrap_or_default();
            while let Some(at) = slices.claim() {
                if sender.send((at, slices.draw(at, &mut room))).is_err() {
                    break; // there was an error: nobody wants the rest
                }
            }
            lock().push(room);
        };
        let helpers = vec![sender; self.threads - 1].into_iter().map(|sender| || help(sender));
        pool::with_help(helpers.collect(), move || {
            let mut drawn: Vec<_> = (0..slices.count()).map(|_| None).collect();
            for next in 0..drawn.len() {
                while drawn[next].is_none() {
                    let (at, edges) = if let Ok(received) = receiver.try_recv() {
                        received
                    } else if let Some(own) = slices.claim() {
                        (own, slices.draw(own, room))
                    } else {
                        receiver
                            .recv()
                            .expect("whoever claimed the slice sends it, or panicked")
                    };
                    drawn[at] = Some(edges);
                }
                drawn[next].take().map_or(Ok(()), |edges| take(edges?))?;
            }
            Ok(())
        })
    }
}

/// The rows of a hop, in slices.
struct Slices<'a, 't, I, L> {
    task: &'a Draw<'t, I>,
    law: &'a L,
    /// Rows of a slice; the last one may have fewer.
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

    /// A slice to draw; each is given out once.
    fn claim(&self) -> Option<usize> {
        let at = self.unclaimed.fetch_add(1, Ordering::Relaxed);
        (at < self.count()).then_some(at)
    }

    fn draw(&self, at: usize, room: &mut Room) -> Result<Edges<I>, Error> {
        let first = at * self.size;
        let nodes = &self.task.nodes[first..self.task.nodes.len().min(first + self.size)];
        let num_draws = self.task.num_draws * nodes.len() / self.task.nodes.len();
        let sizes = Sizes {
            rows: nodes.len(),
            edges: num_draws,
            nodes: 0,
        };
        let mut edges = Edges::new(self.task.importance, sizes);
        let task = Draw {
            nodes,
            num_draws,
            ..*self.task
        };
        draw_rows(&task, self.law, first, room, &mut edges)?;
        Ok(edges)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Dense, Hashed};
    use super::super::{Batch, Fanout, Importance, Kind, Limits, Sampler, Scratch};
    use super::*;
    use crate::rng::{Stream, derive};
    use crate::view::{Extra, View, Weights};
    use crate::walk::Walks;

    const NUM_NODES: usize = 3000;

    const KINDS: [Kind; 8] = [
        Kind::Neighbor { replace: false },
        Kind::Neighbor { replace: true },
        Kind::Weighted { replace: false },
        Kind::Weighted { replace: true },
        Kind::Balanced(Limits { least: 1, most: 30 }),
        Kind::Labor,
        Kind::MetropolisHastings(Walks {
            length: 4,
            num_walks: 5,
            alpha: 1.0,
        }),
        Kind::Cluster,
    ];

    /// Most edges lead from a few nodes to a few nodes.
    fn skewed<I: Id>() -> (Vec<i64>, Vec<I>) {
        let mut stream = Stream::new(derive(5, 0));
        let mut skewed = || (NUM_NODES as f64 * stream.next_f64().powi(3)) as usize * 7 % NUM_NODES;
        let mut edges: Vec<_> = (0..60_000).map(|_| (skewed(), skewed())).collect();
        edges.sort_unstable();
        let end = |node: usize| edges.partition_point(|&(target, _)| target < node) as i64;
        let sources = edges.iter().map(|&(_, source)| I::from_index(source)).collect();
        ((0..=NUM_NODES).map(end).collect(), sources)
    }

    fn sampler(kind: Kind, redraw: bool) -> Sampler {
        Sampler {
            kind,
            fanouts: [20, 8, 7].map(Fanout::Most).to_vec(), // in the largest first hop enough draws for 16 threads
            redraw,
            importance: Some(Importance::Sum),
        }
    }

    /// Batches of a few seeds, whose first hops are few draws, and of many.
    fn each_batch<I: Id>(mut check: impl FnMut(&Sampler, &View<'_, I>, &[I])) {
        let (indptr, indices) = skewed::<I>();
        let weight: Vec<f32> = (0..indices.len()).map(|edge| (edge % 5) as f32).collect();
        let cluster: Vec<i64> = (0..NUM_NODES as i64).map(|node| node % 4).collect();
        let extra = Extra {
            weight: Some(Weights::F32(&weight)),
            cluster: Some(&cluster),
            ..Extra::default()
        };
        let graph = View::new(&indptr, &indices, NUM_NODES).unwrap().with(extra).unwrap();
        for kind in KINDS {
            for (num_seeds, redraw) in [(40, false), (300, true), (2000, false)] {
                let seeds: Vec<I> = (0..num_seeds)
                    .map(|seed| I::from_index(seed * 11 % NUM_NODES))
                    .collect();
                check(&sampler(kind, redraw), &graph, &seeds);
            }
        }
    }

    fn batches_do_not_depend_on_threads<I: Id>() {
        let (mut one, mut many) = (Scratch::default(), Scratch::default());
        each_batch::<I>(|sampler, graph, seeds| {
            let batch = sampler.sample(graph, seeds, 3, &mut one).unwrap();
            let hop = sampler.draw(graph, &batch.nodes, 1, 3, &mut one).unwrap();
            for threads in [2, 3, 8, 16] {
                let many = many.on_threads(threads);
                let case = format!("{sampler:?}, {} seeds, {threads} threads", seeds.len());
                assert!(sampler.sample(graph, seeds, 3, many).unwrap() == batch, "{case}");
                assert!(sampler.draw(graph, &batch.nodes, 1, 3, many).unwrap() == hop, "{case}");
            }
        });
    }

    #[test]
    fn batches_of_int32_do_not_depend_on_threads() {
        batches_do_not_depend_on_threads::<i32>();
    }

    #[test]
    fn batches_of_int64_do_not_depend_on_threads() {
        batches_do_not_depend_on_threads::<i64>();
    }

    #[test]
    fn tables_for_large_graphs_give_the_same_batches() {
        let (mut dense, mut hashed) = (Dense::default(), Hashed::default());
        each_batch::<i32>(|sampler, graph, seeds| {
            let mut crew = Crew::default();
            let one: Batch<i32> = sampler
                .sample_with(graph, seeds, 3, &mut crew, &mut dense.start(NUM_NODES))
                .unwrap();
            for threads in [1, 2, 5] {
                crew.threads = threads;
                let table = hashed.start(NUM_NODES);
                assert!(sampler.sample_with(graph, seeds, 3, &mut crew, table).unwrap() == one);
            }
        });
    }

    #[test]
    fn errors_do_not_depend_on_threads() {
        let (indptr, mut indices) = skewed::<i32>();
        let seeds: Vec<i32> = (0..2000).collect();
        let (mut one, mut many) = (Scratch::default(), Scratch::default());
        let sampler = sampler(Kind::Neighbor { replace: false }, false);
        for at in [59_000, 30_000, 7] {
            indices[at..at + 900].fill(-1);
            let graph = View::new(&indptr, &indices, NUM_NODES).unwrap();
            let error = sampler.sample(&graph, &seeds, 3, &mut one).unwrap_err();
            let on_many = sampler.sample(&graph, &seeds, 3, many.on_threads(4)).unwrap_err();
            assert_eq!(on_many.to_string(), error.to_string());
        }
    }
}
