//! One hop on several threads, with the bits of one.
//!
//! Rows are cut into slices. Each slice draws, and deals the positions of its edges to parts by their source. Each part inserts
//! its sources in order of position into a table that only it touches, with the position in place of a local id: so the first
//! position of a source wins, as it does on one thread. How many first positions come before one is its place among the new nodes.

use std::any::Any;

use super::hop::{Draw, Edges, Expand, Importance, draw_rows, fastest};
use super::law::{Law, Room};
use super::table::{Divisible, Table, part_of};
use crate::csc::Id;
use crate::{Error, pool};

/// Fewer draws than this per thread, of at least four, are done before other threads have woken.
const FEW_DRAWS: usize = 1 << 11;

/// Slices per thread: threads that got easy ones, or more of the processor, take more.
const SLICES: usize = 4;

/// How many sources ahead of its use a part asks for a slot of its table.
const AHEAD: usize = 16;

/// The threads that draw, and the memory of their draws.
#[derive(Debug)]
pub(crate) struct Crew {
    pub threads: usize,
    /// For one thread.
    pub room: Room,
    /// For several: the `Vec<Slice<I>>` of the last draws, in the width that these had. Fresh pages cost more than the draws.
    slices: Box<dyn Any + Send>,
}

impl Default for Crew {
    fn default() -> Self {
        Self {
            threads: 1,
            room: Room::default(),
            slices: Box::new(()),
        }
    }
}

impl Crew {
    /// What the rows of `task` draw, in slices. `None`: one thread has to do it, as the draws are few or it has an error to report.
    fn draw<I: Id, L: Law>(&mut self, task: &Draw<'_, I>, law: &L) -> Option<&mut Vec<Slice<I>>> {
        let (threads, num_slices) = (self.threads, SLICES * self.threads);
        if threads == 1 || task.num_draws < FEW_DRAWS * threads.max(4) {
            return None;
        }
        if !self.slices.is::<Vec<Slice<I>>>() {
            self.slices = Box::new(Vec::<Slice<I>>::new());
        }
        let slices: &mut Vec<Slice<I>> = self.slices.downcast_mut()?;
        let size = task.nodes.len().div_ceil(num_slices).max(1);
        let rows = task.nodes.chunks(size);
        slices.truncate(rows.len());
        slices.resize_with(rows.len(), || Slice::new(task.importance));
        let tasks = slices.iter_mut().zip(rows).enumerate().collect();
        let drawn = pool::map(
            threads,
            tasks,
            |(at, (slice, nodes)): (usize, (&mut Slice<I>, &[I]))| {
                slice.draw(&Draw { nodes, ..*task }, law, at * size, threads)
            },
        );
        drawn.into_iter().all(|drawn| drawn.is_ok()).then_some(slices)
    }
}

/// What the rows of `task` draw is added to `edges`. `None`: one thread has to do it; nothing was changed.
pub(crate) fn draw_on_threads<I: Id, L: Law>(
    task: &Draw<'_, I>,
    law: &L,
    crew: &mut Crew,
    edges: &mut Edges<I>,
) -> Option<()> {
    let threads = crew.threads;
    edges.append(&edges_of(crew.draw(task, law)?), threads);
    Some(())
}

impl<I: Id, T: Divisible> Expand<'_, I, T> {
    /// The whole task. `None`: one thread has to do it; nothing was changed.
    pub fn run_on_threads<L: Law>(&mut self, law: &L) -> Option<()> {
        let task = Draw {
            graph: self.graph,
            nodes: &self.nodes[self.rows.clone()],
            num_draws: self.num_draws,
            importance: self.edges.importance(),
        };
        let (threads, known) = (self.crew.threads, self.nodes.len());
        let slices = self.crew.draw(&task, law)?;
        let end = slices.iter_mut().fold(known, |first, slice| {
            slice.first = first;
            first + slice.edges.sources.len().next_multiple_of(64)
        });
        if end > I::MAX.min(u32::MAX as usize) {
            return None;
        }
        insert(slices, self.table, threads);
        pool::for_each(threads, slices.iter_mut().collect(), |slice| {
            fastest(|| slice.settle(threads));
        });
        if !self.is_last {
            renumber(slices, self.table, threads, known);
        }
        let ranks = Ranks::new(slices, known);
        pool::for_each(threads, slices.iter_mut().collect(), |slice| {
            fastest(|| slice.resolve(&ranks));
        });
        slices
            .iter()
            .for_each(|slice| self.nodes.extend_from_slice(&slice.fresh));
        self.edges.append(&edges_of(slices), threads);
        Some(())
    }
}

fn edges_of<I>(slices: &[Slice<I>]) -> Vec<&Edges<I>> {
    slices.iter().map(|slice| &slice.edges).collect()
}

/// What some of the rows drew.
#[derive(Debug)]
struct Slice<I> {
    room: Room,
    edges: Edges<I>,
    /// [num_parts] positions of the edges whose sources belong to each part; then their provisional local ids.
    dealt: Vec<Vec<u32>>,
    /// The provisional local id of the first edge: a node that is new has that of its first edge until all of those are known.
    first: usize,
    /// Sources that are new, in order.
    fresh: Vec<I>,
    /// One bit per edge: whether its source is new.
    is_fresh: Vec<u64>,
}

impl<I: Id> Slice<I> {
    fn new(importance: Option<Importance>) -> Self {
        Self {
            room: Room::default(),
            edges: Edges::new(importance),
            dealt: Vec::new(),
            first: 0,
            fresh: Vec::new(),
            is_fresh: Vec::new(),
        }
    }

    /// Draws, and deals the edges to parts.
    fn draw<L: Law>(&mut self, task: &Draw<'_, I>, law: &L, first: usize, num_parts: usize) -> Result<(), Error> {
        let Self { room, edges, dealt, .. } = self;
        edges.clear(task.importance);
        draw_rows(task, law, first, room, edges)?;
        dealt.resize_with(num_parts, Vec::new);
        dealt.iter_mut().for_each(Vec::clear);
        for (at, source) in edges.sources.iter().enumerate() {
            dealt[part_of(source.index(), num_parts)].push(at as u32);
        }
        Ok(())
    }

    /// Replaces positions by what `part` has for their sources.
    fn insert(edges: &Edges<I>, first: usize, positions: &mut [u32], part: &mut impl Table) {
        part.reserve(positions.len());
        for at in 0..positions.len() {
            if let Some(&ahead) = positions.get(at + AHEAD) {
                part.prefetch(edges.sources[ahead as usize].index());
            }
            let position = positions[at] as usize;
            let local = part.insert(edges.sources[position].index(), (first + position) as u32);
            positions[at] = local.expect("draw_rows checked that the source exists");
        }
    }

    /// Replaces sources by their provisional local ids, and tells which are new.
    #[inline(always)]
    fn settle(&mut self, num_parts: usize) {
        let sources = &mut self.edges.sources;
        let mut next: Vec<_> = self.dealt.iter().map(|locals| locals.iter()).collect();
        self.fresh.resize(sources.len(), I::from_index(0));
        self.is_fresh.clear();
        self.is_fresh.resize(sources.len().div_ceil(64), 0);
        let mut num_fresh = 0;
        for (at, source) in sources.iter_mut().enumerate() {
            let id = *source;
            let local = next[part_of(id.index(), num_parts)]
                .next()
                .expect("every edge was dealt");
            let is_fresh = *local as usize == self.first + at;
            // Written whether or not it is new, as nothing predicts that: the next new one overwrites it.
            self.fresh[num_fresh] = id;
            num_fresh += usize::from(is_fresh);
            self.is_fresh[at / 64] |= u64::from(is_fresh) << (at % 64);
            *source = I::from_index(*local as usize);
        }
        self.fresh.truncate(num_fresh);
    }

    /// Replaces provisional local ids by those to stay.
    #[inline(always)]
    fn resolve(&mut self, ranks: &Ranks) {
        for source in &mut self.edges.sources {
            *source = I::from_index(ranks.local(source.index()));
        }
    }
}

/// Inserts the sources of all slices, each part on a thread.
fn insert<I: Id>(slices: &mut [Slice<I>], table: &mut impl Divisible, threads: usize) {
    let mut of_parts: Vec<Vec<_>> = (0..threads).map(|_| Vec::with_capacity(slices.len())).collect();
    for Slice {
        edges, dealt, first, ..
    } in slices
    {
        for (of_part, positions) in of_parts.iter_mut().zip(dealt) {
            of_part.push((&*edges, *first, positions));
        }
    }
    let parts = table.parts().into_iter().zip(of_parts).collect();
    pool::for_each(threads, parts, |(mut part, slices)| {
        for (edges, first, positions) in slices {
            Slice::insert(edges, first, positions, &mut part);
        }
    });
}

/// Gives the table the local ids of the new nodes, which come after the `known` ones.
fn renumber<I: Id>(slices: &[Slice<I>], table: &mut impl Divisible, threads: usize, known: usize) {
    let parts = table.parts().into_iter().enumerate().collect();
    pool::for_each(threads, parts, |(part, mut table)| {
        let fresh = slices.iter().flat_map(|slice| &slice.fresh);
        for (local, id) in (known..).zip(fresh) {
            if part_of(id.index(), threads) == part {
                table.renumber(id.index(), local as u32);
            }
        }
    });
}

/// Local ids by provisional ones.
struct Ranks {
    known: usize,
    /// Which of 64 edges were the first of a new node, and how many were so before them.
    words: Vec<(u64, usize)>,
}

impl Ranks {
    fn new<I>(slices: &[Slice<I>], known: usize) -> Self {
        let mut before = 0;
        let count = |&word: &u64| {
            before += word.count_ones() as usize;
            (word, before - word.count_ones() as usize)
        };
        let words = slices.iter().flat_map(|slice| &slice.is_fresh).map(count).collect();
        Self { known, words }
    }

    #[inline(always)]
    fn local(&self, provisional: usize) -> usize {
        let at = provisional.saturating_sub(self.known);
        let (word, before) = self.words[at / 64];
        let rank = before + (word & ((1 << (at % 64)) - 1)).count_ones() as usize;
        std::hint::select_unpredictable(provisional < self.known, provisional, self.known + rank)
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{Dense, Sharded};
    use super::super::{Batch, Extra, Fanout, Importance, Kind, Limits, Sampler, Scratch, View, Weights};
    use super::*;
    use crate::rng::{Stream, derive};
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
            wanted: None,
            cluster: Some(&cluster),
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
        let (mut dense, mut sharded) = (Dense::default(), Sharded::default());
        each_batch::<i32>(|sampler, graph, seeds| {
            let mut crew = Crew::default();
            let one: Batch<i32> = sampler
                .sample_with(graph, seeds, 3, &mut crew, &mut dense.start(NUM_NODES, 1))
                .unwrap();
            for threads in [1, 2, 5] {
                crew.threads = threads;
                let table = sharded.start(NUM_NODES, threads);
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
