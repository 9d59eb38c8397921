//! One hop of given nodes, and the batch that hops add up to.
//!
//! Random reads are what a batch costs, so they are asked for long before they are used: while the rows of a block draw, the
//! sources that earlier blocks drew arrive, and those of still earlier ones, whose table slots have arrived meanwhile, get their
//! numbers.

use std::ops::Range;

use super::law::{Law, Room, Row};
use super::slices::Crew;
use super::table::Table;
use crate::Error;
use crate::csc::Id;
use crate::isa::{Isa, Kernel};
use crate::memory::List;
use crate::view::{View, load};

/// Rows of a block: few, so that draws, which keep the processor busy, and reads, which keep the memory busy, mix.
const BLOCK: usize = 8;

/// How many blocks later that is used which was asked for: enough reads under way at once, few enough to stay in the nearest
/// cache until then.
const LAG: usize = 2;

/// One hop with global ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Hop<I: Id> {
    /// [num_nodes + 1] where the edges of each node begin.
    pub indptr: List<i64>,
    /// [num_edges] global ids of the sources.
    pub sources: List<I>,
    /// [num_edges] positions in the graph's `indices`.
    pub edge_ids: List<i64>,
    /// [num_edges] importance weights, if asked for.
    pub weight: Option<List<f32>>,
}

/// A sampled batch: the blocks of all hops over one list of nodes, of which each block uses the front.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch<I: Id> {
    /// [num_nodes] global ids in the order in which they were found; the seeds come first.
    pub nodes: List<I>,
    /// [num_hops + 1] how many nodes were known when each hop began, and at the end.
    pub known: Vec<usize>,
    /// [num_rows + 1] where the edges of each row begin. Where nodes draw once, hop h reads rows `0..known[h]`; where they
    /// draw anew at every hop, the hops' rows follow one another.
    pub indptr: List<i64>,
    /// [num_edges] positions in `nodes` of the sources.
    pub indices: List<I>,
    /// [num_edges] positions in the graph's `indices`.
    pub edge_ids: List<i64>,
    /// [num_edges] importance weights, if asked for.
    pub weight: Option<List<f32>>,
}

/// How much memory a batch sets aside.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub nodes: usize,
    pub rows: usize,
    pub edges: usize,
}

impl Sizes {
    /// For the batch that comes after `batch`: a little more.
    pub fn after<I: Id>(batch: &Batch<I>) -> Self {
        let more = |len: usize| len + len / 8;
        Self {
            nodes: more(batch.nodes.len()),
            rows: more(batch.indptr.len()),
            edges: more(batch.indices.len()),
        }
    }
}

/// Which mean an importance weight keeps unbiased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    /// The mean over all in-edges: 1 / (d_v E), where E is how often the edge is drawn in expectation.
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
    importance: Option<Importance>,
}

impl<I: Id> Edges<I> {
    pub fn new(importance: Option<Importance>, sizes: Sizes) -> Self {
        let mut indptr = List::with_capacity(sizes.rows + 1);
        indptr.push(0);
        Self {
            indptr,
            sources: List::with_capacity(sizes.edges),
            edge_ids: List::with_capacity(sizes.edges),
            weight: importance.map(|_| List::with_capacity(sizes.edges)),
            importance,
        }
    }

    /// Adds the rows of `others` after its own.
    pub fn append(&mut self, others: &Self) {
        let begin = self.edge_ids.len() as i64;
        self.indptr.extend(others.indptr[1..].iter().map(|end| begin + end));
        self.sources.extend_from_slice(&others.sources);
        self.edge_ids.extend_from_slice(&others.edge_ids);
        if let (Some(weight), Some(others)) = (&mut self.weight, &others.weight) {
            weight.extend_from_slice(others);
        }
    }

    /// Draws the edges of `nodes`, and asks for their sources.
    #[inline(always)]
    fn draw<L: Law>(
        &mut self,
        graph: &View<'_, I>,
        law: &L,
        first: usize,
        nodes: &[I],
        room: &mut Room,
    ) -> Result<(), Error> {
        for (at, node) in (first..).zip(nodes) {
            let node = node.index();
            let edges = graph.edges(node)?;
            let row = Row {
                at,
                node,
                id: graph.row_id(node),
                start: edges.start,
                degree: edges.len(),
            };
            let drawn = self.edge_ids.len();
            law.draw(&row, room, &mut self.edge_ids)?;
            let picks = &self.edge_ids[drawn..];
            if !L::DRAWS_NODES {
                picks.iter().for_each(|&edge| graph.prefetch_edge(edge as usize));
            }
            self.indptr.push(self.edge_ids.len() as i64);
            if let (Some(weight), Some(importance)) = (&mut self.weight, self.importance) {
                let scale = match importance {
                    Importance::Mean => 1.0 / law.total(&row, room),
                    Importance::Sum => 1.0,
                };
                for &edge in picks {
                    let inverse = law.inverse_expectation(&row, edge, picks.len(), room)?;
                    weight.push((scale * inverse) as f32);
                }
            }
        }
        Ok(())
    }

    /// Reads the sources of drawn `edges`; calls `see` with each.
    #[inline(always)]
    fn gather<L: Law>(&mut self, graph: &View<'_, I>, edges: Range<usize>, mut see: impl FnMut(usize)) {
        let indices = graph.indices();
        self.sources.reserve(edges.len());
        let end = self.sources.len() + edges.len();
        let spare = self.sources.spare_capacity_mut();
        for (space, &edge) in spare.iter_mut().zip(&self.edge_ids[edges]) {
            let source = if L::DRAWS_NODES {
                I::from_index(edge as usize)
            } else {
                load(&indices[edge as usize])
            };
            see(source.index());
            space.write(source);
        }
        // SAFETY: the loop wrote so many spare elements.
        unsafe { self.sources.set_len(end) };
    }
}

/// The edges of all nodes of `task`, and their sources.
struct DrawAll<'a, 't, I: Id, L> {
    task: &'a Draw<'t, I>,
    law: &'a L,
    first: usize,
    room: &'a mut Room,
    edges: &'a mut Edges<I>,
}

impl<I: Id, L: Law> Kernel for DrawAll<'_, '_, I, L> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self, _: Isa) -> Result<(), Error> {
        let Draw { graph, nodes, .. } = *self.task;
        let edges = self.edges;
        let mut ends = [edges.edge_ids.len(); LAG + 1]; // of the last blocks' edges, the newest last
        let mut largest = 0;
        ask(graph, nodes, 0..LAG * BLOCK);
        for begin in (0..nodes.len() + LAG * BLOCK).step_by(BLOCK) {
            ask(graph, nodes, begin + LAG * BLOCK..begin + (LAG + 1) * BLOCK);
            let block = &nodes[nodes.len().min(begin)..nodes.len().min(begin + BLOCK)];
            edges.draw(graph, self.law, self.first + begin, block, self.room)?;
            ends.rotate_left(1);
            ends[LAG] = edges.edge_ids.len();
            edges.gather::<L>(graph, ends[0]..ends[1], |source| largest = source.max(largest));
        }
        if largest < graph.num_sources() || edges.sources.is_empty() {
            return Ok(());
        }
        let at = edges.sources.iter().position(|source| source.index() == largest);
        let at = at.expect("it is one of them");
        Err(graph.no_such_source(edges.edge_ids[at], edges.sources[at]))
    }
}

/// Work that needs the law by which nodes draw.
pub(crate) trait Task<I> {
    /// The nodes that draw.
    fn nodes(&self) -> &[I];

    fn run<L: Law>(self, law: &L) -> Result<(), Error>;
}

/// One hop of `nodes`, which must be destinations of `graph`.
#[derive(Clone, Copy)]
pub(crate) struct Draw<'a, I> {
    pub graph: &'a View<'a, I>,
    pub nodes: &'a [I],
    /// About how many edges they draw.
    pub num_draws: usize,
    pub importance: Option<Importance>,
}

/// A [`Draw`] that writes to `edges`, which are none yet.
pub(crate) struct DrawInto<'a, I: Id> {
    pub draw: Draw<'a, I>,
    pub crew: &'a mut Crew,
    pub edges: &'a mut Edges<I>,
}

impl<I: Id> Task<I> for DrawInto<'_, I> {
    fn nodes(&self) -> &[I] {
        self.draw.nodes
    }

    fn run<L: Law>(self, law: &L) -> Result<(), Error> {
        let Self { draw, crew, edges } = self;
        if !crew.is_worth_it(draw.num_draws) {
            return draw_rows(&draw, law, 0, &mut crew.room, edges);
        }
        crew.draw(&draw, law, |drawn| {
            edges.append(&drawn);
            Ok(())
        })
    }
}

/// Adds to `edges`, which are none yet, what the rows of `task` draw; the first is row `first` of the hop. Every source exists,
/// unless there is an error.
pub(crate) fn draw_rows<I: Id, L: Law>(
    task: &Draw<'_, I>,
    law: &L,
    first: usize,
    room: &mut Room,
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

/// Draws one hop for `nodes[rows]`, renumbers the sources and appends those that are new to `nodes`.
pub(crate) struct Expand<'a, I: Id, T> {
    pub graph: &'a View<'a, I>,
    pub rows: Range<usize>,
    /// About how many edges they draw.
    pub num_draws: usize,
    pub crew: &'a mut Crew,
    pub edges: &'a mut Edges<I>,
    pub nodes: &'a mut Vec<I>,
    pub table: &'a mut T,
}

impl<I: Id, T: Table + Send> Task<I> for Expand<'_, I, T> {
    fn nodes(&self) -> &[I] {
        &self.nodes[self.rows.clone()]
    }

    fn run<L: Law>(self, law: &L) -> Result<(), Error> {
        if !self.crew.is_worth_it(self.num_draws) {
            return Isa::best().run(OnOne { task: self, law });
        }
        let Self {
            graph,
            rows,
            num_draws,
            crew,
            edges,
            nodes,
            table,
        } = self;
        let drawing = nodes[rows].to_vec(); // `nodes` grows meanwhile
        let draw = Draw {
            graph,
            nodes: &drawing,
            num_draws,
            importance: edges.importance,
        };
        crew.draw(&draw, law, |drawn| {
            Isa::best().run(Number {
                graph,
                drawn,
                edges: &mut *edges,
                nodes: &mut *nodes,
                table: &mut *table,
            })
        })
    }
}

/// An [`Expand`] done by one thread.
struct OnOne<'a, 't, I: Id, T, L> {
    task: Expand<'t, I, T>,
    law: &'a L,
}

impl<I: Id, T: Table, L: Law> Kernel for OnOne<'_, '_, I, T, L> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self, _: Isa) -> Result<(), Error> {
        let Expand {
            graph,
            rows,
            crew,
            edges,
            nodes,
            table,
            ..
        } = self.task;
        let mut ends = [edges.edge_ids.len(); 2 * LAG + 1]; // of the last blocks' edges, the newest last
        ask(graph, &nodes[..rows.end], rows.start..rows.start + LAG * BLOCK);
        for begin in (rows.start..rows.end + (2 * LAG - 1) * BLOCK).step_by(BLOCK) {
            let block = rows.end.min(begin)..rows.end.min(begin + BLOCK);
            let ahead = begin + LAG * BLOCK;
            ask(graph, &nodes[..rows.end], ahead..ahead + BLOCK);
            edges.draw(graph, self.law, begin - rows.start, &nodes[block], &mut crew.room)?;
            ends.rotate_left(1);
            ends[2 * LAG] = edges.edge_ids.len();
            edges.gather::<L>(graph, ends[LAG - 1]..ends[LAG], |source| table.prefetch(source));
            number(graph, edges, ends[0]..ends[1], nodes, table)?;
        }
        Ok(())
    }
}

/// Adds what was `drawn` to `edges`, with local ids.
struct Number<'a, I: Id, T> {
    graph: &'a View<'a, I>,
    drawn: Edges<I>,
    edges: &'a mut Edges<I>,
    nodes: &'a mut Vec<I>,
    table: &'a mut T,
}

impl<I: Id, T: Table> Kernel for Number<'_, I, T> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self, _: Isa) -> Result<(), Error> {
        const SOME: usize = 32;
        let Self {
            graph,
            drawn,
            edges,
            nodes,
            table,
        } = self;
        let begin = edges.sources.len();
        edges.append(&drawn);
        let end = edges.sources.len();
        let some = |begin: usize| end.min(begin)..end.min(begin + SOME);
        for at in (begin..end).step_by(SOME) {
            for source in &edges.sources[some(at + SOME)] {
                table.prefetch(source.index());
            }
            number(graph, edges, some(at), nodes, table)?;
        }
        Ok(())
    }
}

/// Asks for the edge ranges of `nodes[rows]`, as far as there are such nodes.
#[inline(always)]
fn ask<I: Id>(graph: &View<'_, I>, nodes: &[I], rows: Range<usize>) {
    let rows = rows.start.min(nodes.len())..rows.end.min(nodes.len());
    nodes[rows].iter().for_each(|node| graph.prefetch_node(node.index()));
}

/// Replaces the sources of `range` by their local ids.
#[inline(always)]
fn number<I: Id, T: Table>(
    graph: &View<'_, I>,
    edges: &mut Edges<I>,
    range: Range<usize>,
    nodes: &mut Vec<I>,
    table: &mut T,
) -> Result<(), Error> {
    table.reserve(range.len());
    nodes.reserve(range.len());
    let known = nodes.len();
    let spare = nodes.spare_capacity_mut();
    let mut fresh = 0;
    for (at, source) in range.clone().zip(&mut edges.sources[range]) {
        let id = *source;
        let Some(local) = table.insert(id.index(), (known + fresh) as u32) else {
            return Err(graph.no_such_source(edges.edge_ids[at], id));
        };
        // Written whether or not it is new: the next new one overwrites it.
        spare[fresh].write(id);
        fresh += usize::from(local as usize == known + fresh);
        *source = I::from_index(local as usize);
    }
    // SAFETY: the first `fresh` spare entries were written above.
    unsafe { nodes.set_len(known + fresh) };
    Ok(())
}
