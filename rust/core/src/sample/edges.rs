//! The edges that rows draw, and the loop that draws them.
//!
//! Random reads are most of the cost of a batch, so they are prefetched long before
//! use. While the rows of a block draw, the sources that earlier blocks drew arrive.

use std::ops::Range;

use super::batch::{Hop, Sizes};
use super::law::{Law, Row};
use crate::Error;
use crate::csc::Id;
use crate::isa::{Isa, Kernel};
use crate::memory::{List, reserve};
use crate::read::{load, prefetch};
use crate::view::View;

/// Rows of a block. Few rows let draws, which keep the processor busy, mix with reads,
/// which keep the memory busy.
pub(crate) const BLOCK: usize = 8;

/// Number of blocks between prefetching data and using the data. More keeps more reads
/// in flight. Too many evicts lines from the nearest cache before use.
pub(crate) const LAG: usize = 2;

/// The estimate that importance weights keep unbiased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    /// The mean over all in-edges: 1 / (d_v E), where E is the expected number of draws
    /// of the edge.
    Mean,
    /// The sum over all in-edges: 1 / E.
    Sum,
}

/// The edges of rows drawn so far.
#[derive(Debug)]
pub(crate) struct Edges<I: Id> {
    pub indptr: List<i64>,
    pub sources: List<I>,
    pub edge_ids: List<i64>,
    pub weight: Option<List<f32>>,
    pub relation: Option<List<i16>>,
    pub importance: Option<Importance>,
    /// [num_edges] times of the edges, where paths bound what sources see.
    pub since: Option<List<i64>>,
}

impl<I: Id> Edges<I> {
    pub fn new(graph: &View<'_, I>, importance: Option<Importance>, sizes: Sizes) -> Self {
        let relations = graph.extra().relations;
        let mut indptr = List::with_capacity(sizes.rows + 1);
        indptr.push(0);
        Self {
            indptr,
            sources: List::with_capacity(sizes.edges),
            edge_ids: List::with_capacity(sizes.edges),
            weight: importance.map(|_| List::with_capacity(sizes.edges)),
            relation: relations.map(|_| List::with_capacity(sizes.edges)),
            importance,
            since: graph.times_of_paths().map(|_| List::with_capacity(sizes.edges)),
        }
    }

    /// Appends the rows of `others`.
    pub fn append(&mut self, others: &Self) -> Result<(), Error> {
        let (begin, more) = (self.edge_ids.len() as i64, Some(others.edge_ids.len()));
        reserve(&mut self.sources, more, "number of draws", self.edge_ids.len())?;
        reserve(&mut self.edge_ids, more, "number of draws", begin as usize)?;
        self.indptr.extend(others.indptr[1..].iter().map(|end| begin + end));
        self.sources.extend_from_slice(&others.sources);
        self.edge_ids.extend_from_slice(&others.edge_ids);
        if let (Some(weight), Some(others)) = (&mut self.weight, &others.weight) {
            reserve(weight, more, "number of draws", begin as usize)?;
            weight.extend_from_slice(others);
        }
        if let (Some(relation), Some(others)) = (&mut self.relation, &others.relation) {
            reserve(relation, more, "number of draws", begin as usize)?;
            relation.extend_from_slice(others);
        }
        if let (Some(since), Some(others)) = (&mut self.since, &others.since) {
            reserve(since, more, "number of draws", begin as usize)?;
            since.extend_from_slice(others);
        }
        Ok(())
    }

    /// The rows as a hop.
    pub fn into_hop(self) -> Hop<I> {
        Hop {
            indptr: self.indptr,
            sources: self.sources,
            edge_ids: self.edge_ids,
            weight: self.weight,
            relation: self.relation,
        }
    }

    /// Draws the edges of `nodes` and prefetches their sources.
    #[inline(always)]
    pub fn draw<L: Law>(
        &mut self,
        graph: &View<'_, I>,
        law: &L,
        first: usize,
        nodes: &[I],
        room: &mut L::Room,
    ) -> Result<(), Error> {
        for (at, node) in (first..).zip(nodes) {
            let node = node.index();
            let (edges, id) = (graph.edges(node)?, graph.key(at, node));
            let row = |relation: usize, edges: Range<usize>| {
                let seen = graph.visible(at, relation, edges);
                Row {
                    at,
                    node,
                    id,
                    start: seen.start,
                    degree: seen.degree,
                    split: seen.split,
                    gap: seen.gap,
                    relation,
                    nth: 0,
                }
            };
            match &graph.extra().relations {
                None => self.draw_row(graph, law, &row(0, edges), room)?,
                Some(relations) => {
                    for (nth, group) in relations.groups(node)?.enumerate() {
                        let group = relations.group(group, node, &edges)?;
                        let row = Row {
                            id: relations.key(group.relation, id),
                            nth,
                            ..row(group.relation, group.start..group.start + group.degree)
                        };
                        self.draw_row(graph, law, &row, room)?;
                        self.add_relation(row.relation)?;
                    }
                }
            }
            self.indptr.push(self.edge_ids.len() as i64);
        }
        Ok(())
    }

    /// Appends the relation of the edges of the row that drew last.
    #[inline(always)]
    fn add_relation(&mut self, number: usize) -> Result<(), Error> {
        if let Some(relation) = &mut self.relation {
            let drawn = self.edge_ids.len();
            let more = drawn - relation.len();
            reserve(relation, Some(more), "number of draws", drawn)?;
            relation.resize(drawn, number as i16);
        }
        Ok(())
    }

    /// Draws the edges of one row, and prefetches their sources and ids.
    #[inline(always)]
    fn draw_row<L: Law>(&mut self, graph: &View<'_, I>, law: &L, row: &Row, room: &mut L::Room) -> Result<(), Error> {
        let drawn = self.edge_ids.len();
        law.draw(row, room, &mut self.edge_ids)?;
        let picks = &mut self.edge_ids[drawn..];
        if let (Some(weight), Some(importance)) = (&mut self.weight, self.importance) {
            let scale = match importance {
                Importance::Mean => 1.0 / law.total(row, room),
                Importance::Sum => 1.0,
            };
            reserve(weight, Some(picks.len()), "number of draws", drawn)?;
            for &edge in &*picks {
                let inverse = law.inverse_expectation(row, edge, picks.len(), room)?;
                weight.push((scale * inverse) as f32);
            }
        }
        if row.gap > 0 {
            picks
                .iter_mut()
                .for_each(|edge| *edge = row.position(*edge as usize) as i64);
        }
        if !L::DRAWS_NODES {
            picks.iter().for_each(|&edge| graph.prefetch_edge(edge as usize));
            if let Some(order) = graph.edge_order() {
                picks.iter().for_each(|&edge| prefetch(order, edge as usize));
            }
        }
        Ok(())
    }

    /// Reads the sources and ids of drawn `edges` and calls `see` with each source.
    #[inline(always)]
    pub fn gather<L: Law>(
        &mut self,
        graph: &View<'_, I>,
        edges: Range<usize>,
        mut see: impl FnMut(usize),
    ) -> Result<(), Error> {
        let (indices, order) = (graph.indices(), graph.edge_order());
        if let (Some(since), Some(times)) = (&mut self.since, graph.times_of_paths()) {
            reserve(since, Some(edges.len()), "number of draws", edges.end)?;
            let positions = self.edge_ids[edges.clone()].iter();
            since.extend(positions.map(|&edge| load(&times[edge as usize])));
        }
        reserve(&mut self.sources, Some(edges.len()), "number of draws", edges.end)?;
        let end = self.sources.len() + edges.len();
        let spare = self.sources.spare_capacity_mut();
        for (space, edge) in spare.iter_mut().zip(&mut self.edge_ids[edges]) {
            let position = *edge as usize;
            let source = if L::DRAWS_NODES {
                I::from_index(position)
            } else {
                load(&indices[position])
            };
            if let Some(order) = order {
                *edge = load(&order[position]);
            }
            see(source.index());
            space.write(source);
        }
        // SAFETY: the loop wrote so many spare elements.
        unsafe { self.sources.set_len(end) };
        Ok(())
    }
}

/// One hop of `nodes`, which must be destinations of `graph`.
#[derive(Clone, Copy)]
pub(crate) struct Draw<'a, I> {
    pub graph: &'a View<'a, I>,
    pub nodes: &'a [I],
    /// About how many edges the nodes draw.
    pub num_draws: usize,
    pub importance: Option<Importance>,
}

/// Draws the rows of `task` into `edges`, which must be empty. The first one is row
/// `first` of the hop. Unless there is an error, every source exists.
pub(crate) fn draw_rows<I: Id, L: Law>(
    task: &Draw<'_, I>,
    law: &L,
    first: usize,
    room: &mut L::Room,
    edges: &mut Edges<I>,
) -> Result<(), Error> {
    Isa::best().run(DrawAll {
        task,
        law,
        first,
        room,
        edges,
    })
}

/// Draws the edges of all nodes of `task` and reads their sources.
struct DrawAll<'a, 't, I: Id, L: Law> {
    task: &'a Draw<'t, I>,
    law: &'a L,
    first: usize,
    room: &'a mut L::Room,
    edges: &'a mut Edges<I>,
}

impl<I: Id, L: Law> Kernel for DrawAll<'_, '_, I, L> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self, _: Isa) -> Result<(), Error> {
        let Draw { graph, nodes, .. } = *self.task;
        let edges = self.edges;
        // Where the edges of the last blocks end, the newest last.
        let mut ends = [edges.edge_ids.len(); LAG + 1];
        let mut largest = 0;
        ask_first(graph, nodes, 0);
        for begin in (0..nodes.len() + LAG * BLOCK).step_by(BLOCK) {
            ask_ahead(graph, nodes, begin);
            let block = &nodes[nodes.len().min(begin)..nodes.len().min(begin + BLOCK)];
            edges.draw(graph, self.law, self.first + begin, block, self.room)?;
            ends.rotate_left(1);
            ends[LAG] = edges.edge_ids.len();
            edges.gather::<L>(graph, ends[0]..ends[1], |source| largest = source.max(largest))?;
        }
        if largest < graph.num_sources() || edges.sources.is_empty() {
            return Ok(());
        }
        let at = edges.sources.iter().position(|source| source.index() == largest);
        let at = at.expect("it is one of them");
        Err(graph.no_such_source(edges.edge_ids[at], edges.sources[at]))
    }
}

/// Prefetches what the first blocks of `nodes[begin..]` read.
#[inline(always)]
pub(crate) fn ask_first<I: Id>(graph: &View<'_, I>, nodes: &[I], begin: usize) {
    let extra = graph.extra();
    let blocks = if extra.relations.is_some() || extra.times.is_some() {
        2 * LAG
    } else {
        LAG
    };
    for node in some(nodes, begin..begin + blocks * BLOCK) {
        graph.prefetch_node(node.index());
    }
}

/// Prefetches what blocks after the one at `begin` read: edge ranges, and of those that
/// have arrived the groups where nodes draw by relation, or the times.
#[inline(always)]
pub(crate) fn ask_ahead<I: Id>(graph: &View<'_, I>, nodes: &[I], begin: usize) {
    let mut ahead = begin + LAG * BLOCK;
    if let Some(relations) = &graph.extra().relations {
        for node in some(nodes, ahead..ahead + BLOCK) {
            relations.prefetch_groups(node.index());
        }
        ahead += LAG * BLOCK;
    } else if graph.extra().times.is_some() {
        for node in some(nodes, ahead..ahead + BLOCK) {
            graph.prefetch_times(node.index());
        }
        ahead += LAG * BLOCK;
    }
    for node in some(nodes, ahead..ahead + BLOCK) {
        graph.prefetch_node(node.index());
    }
}

/// The nodes of `rows`. Rows beyond the last node are left out.
#[inline(always)]
fn some<I>(nodes: &[I], rows: Range<usize>) -> &[I] {
    &nodes[rows.start.min(nodes.len())..rows.end.min(nodes.len())]
}
