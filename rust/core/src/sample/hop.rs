//! One hop of given nodes, and the batch that hops add up to.
//!
//! Random reads are what a batch costs, so they are asked for long before they are used: while the rows of block b draw, the
//! sources that block b - 1 drew arrive, and those of block b - 2, whose table slots have arrived meanwhile, get their numbers.

use std::ops::Range;

use super::law::{Law, Room, Row};
use super::slices::{Crew, draw_on_threads};
use super::table::{Divisible, Table};
use super::view::{View, load};
use crate::csc::Id;
use crate::{Error, pool};

/// Rows of a block: enough reads under way at once, few enough to stay in the nearest cache until they are used.
const BLOCK: usize = 32;

/// One hop with global ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Hop<I> {
    /// [num_nodes + 1] where the edges of each node begin.
    pub indptr: Vec<i64>,
    /// [num_edges] global ids of the sources.
    pub sources: Vec<I>,
    /// [num_edges] positions in the graph's `indices`.
    pub edge_ids: Vec<i64>,
    /// [num_edges] importance weights, if asked for.
    pub weight: Option<Vec<f32>>,
}

/// A sampled batch: the blocks of all hops over one list of nodes, of which each block uses the front.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch<I> {
    /// [num_nodes] global ids in the order in which they were found; the seeds come first.
    pub nodes: Vec<I>,
    /// [num_hops + 1] how many nodes were known when each hop began, and at the end.
    pub known: Vec<usize>,
    /// [num_rows + 1] where the edges of each row begin. Where nodes draw once, hop h reads rows `0..known[h]`; where they
    /// draw anew at every hop, the hops' rows follow one another.
    pub indptr: Vec<i64>,
    /// [num_edges] positions in `nodes` of the sources.
    pub indices: Vec<I>,
    /// [num_edges] positions in the graph's `indices`.
    pub edge_ids: Vec<i64>,
    /// [num_edges] importance weights, if asked for.
    pub weight: Option<Vec<f32>>,
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
pub(crate) struct Edges<I> {
    pub indptr: Vec<i64>,
    pub sources: Vec<I>,
    pub edge_ids: Vec<i64>,
    pub weight: Option<Vec<f32>>,
    importance: Option<Importance>,
}

impl<I: Id> Edges<I> {
    pub fn new(importance: Option<Importance>) -> Self {
        Self {
            indptr: vec![0],
            sources: Vec::new(),
            edge_ids: Vec::new(),
            weight: importance.map(|_| Vec::new()),
            importance,
        }
    }

    pub fn reserve(&mut self, rows: usize, edges: usize) {
        self.indptr.reserve(rows);
        self.sources.reserve(edges);
        self.edge_ids.reserve(edges);
    }

    pub fn importance(&self) -> Option<Importance> {
        self.importance
    }

    /// No rows again.
    pub fn clear(&mut self, importance: Option<Importance>) {
        self.indptr.truncate(1);
        self.sources.clear();
        self.edge_ids.clear();
        self.weight = importance.map(|_| self.weight.take().unwrap_or_default());
        self.weight.iter_mut().for_each(Vec::clear);
        self.importance = importance;
    }

    /// Adds the rows of `parts`, one after the other, after its own; each list on a thread.
    pub fn append(&mut self, parts: &[&Self], threads: usize) {
        let Self {
            indptr,
            sources,
            edge_ids,
            weight,
            ..
        } = self;
        let mut begin = edge_ids.len() as i64;
        let mut lists: Vec<Box<dyn FnOnce() + Send + '_>> = vec![
            Box::new(|| parts.iter().for_each(|part| edge_ids.extend_from_slice(&part.edge_ids))),
            Box::new(|| parts.iter().for_each(|part| sources.extend_from_slice(&part.sources))),
            Box::new(move || {
                for part in parts {
                    indptr.extend(part.indptr[1..].iter().map(|end| begin + end));
                    begin += part.edge_ids.len() as i64;
                }
            }),
        ];
        if let Some(weight) = weight {
            let drawn = parts.iter().filter_map(|part| part.weight.as_deref());
            lists.push(Box::new(|| drawn.for_each(|part| weight.extend_from_slice(part))));
        }
        pool::for_each(threads, lists, |list| list());
    }

    /// The empty range at the end.
    fn none(&self) -> Range<usize> {
        self.edge_ids.len()..self.edge_ids.len()
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
    ) -> Result<Range<usize>, Error> {
        let begin = self.edge_ids.len();
        for (at, node) in (first..).zip(nodes) {
            let node = node.index();
            let edges = graph.edges(node)?;
            let row = Row {
                at,
                node,
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
        Ok(begin..self.edge_ids.len())
    }

    /// Draws the edges of all `nodes` and reads their sources.
    #[inline(always)]
    fn draw_all<L: Law>(
        &mut self,
        graph: &View<'_, I>,
        law: &L,
        first: usize,
        nodes: &[I],
        room: &mut Room,
    ) -> Result<(), Error> {
        let mut asked = self.none();
        for begin in (0..nodes.len()).step_by(BLOCK) {
            let end = (begin + BLOCK).min(nodes.len());
            ask(graph, &nodes[end..]);
            let drawn = self.draw(graph, law, first + begin, &nodes[begin..end], room)?;
            self.gather::<L>(graph, std::mem::replace(&mut asked, drawn), |_| ());
        }
        self.gather::<L>(graph, asked, |_| ());
        Ok(())
    }

    /// Reads the sources of drawn `edges`; calls `ask` with each.
    #[inline(always)]
    fn gather<L: Law>(&mut self, graph: &View<'_, I>, edges: Range<usize>, mut ask: impl FnMut(usize)) {
        let indices = graph.indices();
        self.sources.extend(self.edge_ids[edges].iter().map(|&edge| {
            let source = if L::DRAWS_NODES {
                I::from_index(edge as usize)
            } else {
                load(&indices[edge as usize])
            };
            ask(source.index());
            source
        }));
    }
}

/// Work that needs the law by which nodes draw.
pub(crate) trait Task<I> {
    /// The nodes that draw.
    fn nodes(&self) -> &[I];

    fn run<L: Law>(self, law: &L) -> Result<(), Error>;
}

/// Runs `work` compiled for the processor at hand; all that it calls must be `#[inline(always)]`.
pub(crate) fn fastest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
        fn on_x86_64_v3<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has what the function is compiled for. -10 % of a batch.
            return unsafe { on_x86_64_v3(work) };
        }
    }
    work()
}

/// One hop of `nodes`, which must be destinations of `graph`.
pub(crate) struct Draw<'a, I> {
    pub graph: &'a View<'a, I>,
    pub nodes: &'a [I],
    /// About how many edges they draw.
    pub num_draws: usize,
    pub importance: Option<Importance>,
}

/// A [`Draw`] that writes to `edges`, which are none yet.
pub(crate) struct DrawInto<'a, I> {
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
        match draw_on_threads(&draw, law, crew, edges) {
            Some(()) => Ok(()),
            None => draw_rows(&draw, law, 0, &mut crew.room, edges),
        }
    }
}

/// Adds to `edges`, which are none yet, what the rows of `task` draw; the first is row `first` of the hop. Every source exists.
pub(crate) fn draw_rows<I: Id, L: Law>(
    task: &Draw<'_, I>,
    law: &L,
    first: usize,
    room: &mut Room,
    edges: &mut Edges<I>,
) -> Result<(), Error> {
    let &Draw { graph, nodes, .. } = task;
    fastest(|| edges.draw_all(graph, law, first, nodes, room))?;
    match edges
        .sources
        .iter()
        .position(|source| source.index() >= graph.num_sources())
    {
        Some(at) => Err(graph.no_such_source(edges.edge_ids[at], edges.sources[at])),
        None => Ok(()),
    }
}

/// Draws one hop for `nodes[rows]`, renumbers the sources and appends those that are new to `nodes`.
pub(crate) struct Expand<'a, I, T> {
    pub graph: &'a View<'a, I>,
    pub rows: Range<usize>,
    /// About how many edges they draw.
    pub num_draws: usize,
    /// Whether no hop follows that needs the table.
    pub is_last: bool,
    pub crew: &'a mut Crew,
    pub edges: &'a mut Edges<I>,
    pub nodes: &'a mut Vec<I>,
    pub table: &'a mut T,
}

impl<I: Id, T: Divisible> Task<I> for Expand<'_, I, T> {
    fn nodes(&self) -> &[I] {
        &self.nodes[self.rows.clone()]
    }

    fn run<L: Law>(mut self, law: &L) -> Result<(), Error> {
        match self.run_on_threads(law) {
            Some(()) => Ok(()),
            None => fastest(|| self.run_on_one(law)),
        }
    }
}

impl<I: Id, T: Table> Expand<'_, I, T> {
    #[inline(always)]
    fn run_on_one<L: Law>(self, law: &L) -> Result<(), Error> {
        let Self {
            graph,
            rows,
            crew,
            edges,
            nodes,
            table,
            ..
        } = self;
        let room = &mut crew.room;
        let (mut asked, mut read) = (edges.none(), edges.none());
        for first in rows.clone().step_by(BLOCK) {
            let next = (first + BLOCK).min(rows.end);
            ask(graph, &nodes[next..rows.end]);
            let drawn = edges.draw(graph, law, first - rows.start, &nodes[first..next], room)?;
            edges.gather::<L>(graph, asked.clone(), |source| table.prefetch(source));
            number(graph, edges, read, nodes, table)?;
            (asked, read) = (drawn, asked);
        }
        edges.gather::<L>(graph, asked.clone(), |source| table.prefetch(source));
        number(graph, edges, read, nodes, table)?;
        number(graph, edges, asked, nodes, table)
    }
}

/// Asks for the edge ranges of the block of nodes that comes next.
#[inline(always)]
fn ask<I: Id>(graph: &View<'_, I>, nodes: &[I]) {
    nodes
        .iter()
        .take(BLOCK)
        .for_each(|node| graph.prefetch_node(node.index()));
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
