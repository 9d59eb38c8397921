//! Hops under a law: draws, and the numbering of the nodes that are found.

use std::ops::Range;

use super::batch::Nodes;
use super::crew::Crew;
use super::edges::{BLOCK, Draw, Edges, LAG, ask_ahead, ask_first, draw_rows};
use super::law::Law;
use super::paths::PathTrees;
use super::table::Table;
use crate::Error;
use crate::csc::Id;
use crate::error::check_count;
use crate::isa::{Isa, Kernel};
use crate::view::View;

/// Work that needs the law by which nodes draw.
pub(crate) trait Task<I> {
    /// The nodes that draw.
    fn nodes(&self) -> &[I];

    fn run<L: Law>(self, law: &L) -> Result<(), Error>;
}

/// A [`Draw`] into `edges`, which must be empty.
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
            let mut room = crew.take_room::<L>();
            draw_rows(&draw, law, 0, &mut room, edges)?;
            crew.give_room(room);
            return Ok(());
        }
        crew.draw(&draw, law, |drawn| edges.append(&drawn))
    }
}

/// Draws one hop for `rows`, numbers the sources and appends new sources to `known`.
pub(crate) struct Expand<'a, I: Id, T> {
    pub graph: &'a View<'a, I>,
    pub rows: &'a [I],
    /// [num_rows] trees of the rows, empty if there is one tree.
    pub trees: &'a [u32],
    /// About how many edges the rows draw.
    pub num_draws: usize,
    pub crew: &'a mut Crew,
    pub edges: &'a mut Edges<I>,
    pub known: &'a mut Nodes<I>,
    pub table: &'a mut T,
    /// `None`: sources are of their row's tree.
    pub paths: Option<&'a mut PathTrees>,
}

impl<I: Id, T: Table + Send> Task<I> for Expand<'_, I, T> {
    fn nodes(&self) -> &[I] {
        self.rows
    }

    fn run<L: Law>(self, law: &L) -> Result<(), Error> {
        if !self.crew.is_worth_it(self.num_draws) {
            return Isa::best().run(OnOne { task: self, law });
        }
        let Self {
            graph,
            rows,
            trees,
            num_draws,
            crew,
            edges,
            known,
            table,
            mut paths,
        } = self;
        let draw = Draw {
            graph,
            nodes: rows,
            num_draws,
            importance: edges.importance,
        };
        let mut first = 0;
        crew.draw(&draw, law, |drawn| {
            let end = first + drawn.indptr.len() - 1;
            let trees = if trees.is_empty() { trees } else { &trees[first..end] };
            first = end;
            Isa::best().run(Number {
                graph,
                drawn,
                trees,
                edges: &mut *edges,
                known: &mut *known,
                table: &mut *table,
                paths: paths.as_deref_mut(),
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
            trees,
            crew,
            edges,
            known,
            table,
            mut paths,
            ..
        } = self.task;
        let mut room = crew.take_room::<L>();
        // Where the edges of the last blocks end, the newest last.
        let mut ends = [edges.edge_ids.len(); 2 * LAG + 1];
        let block = |begin: usize| rows.len().min(begin)..rows.len().min(begin + BLOCK);
        let first = edges.indptr.len() - 1;
        ask_first(graph, rows, 0);
        for begin in (0..rows.len() + (2 * LAG - 1) * BLOCK).step_by(BLOCK) {
            ask_ahead(graph, rows, begin);
            edges.draw(graph, self.law, begin, &rows[block(begin)], &mut room)?;
            ends.rotate_left(1);
            ends[2 * LAG] = edges.edge_ids.len();
            if trees.is_empty() {
                edges.gather::<L>(graph, ends[LAG - 1]..ends[LAG], |source| table.prefetch(source))?;
                number(graph, edges, ends[0]..ends[1], known, table)?;
                continue;
            }
            edges.gather::<L>(graph, ends[LAG - 1]..ends[LAG], |_| ())?;
            if let Some(begin) = begin.checked_sub(LAG * BLOCK) {
                ask_trees(edges, first + begin, &trees[block(begin)], table);
            }
            if let Some(begin) = begin.checked_sub((2 * LAG - 1) * BLOCK) {
                let paths = paths.as_deref_mut();
                number_trees(graph, edges, first + begin, &trees[block(begin)], known, table, paths)?;
            }
        }
        crew.give_room(room);
        Ok(())
    }
}

/// Appends `drawn` to `edges` with local ids.
struct Number<'a, I: Id, T> {
    graph: &'a View<'a, I>,
    drawn: Edges<I>,
    trees: &'a [u32],
    edges: &'a mut Edges<I>,
    known: &'a mut Nodes<I>,
    table: &'a mut T,
    paths: Option<&'a mut PathTrees>,
}

impl<I: Id, T: Table> Kernel for Number<'_, I, T> {
    type Output = Result<(), Error>;

    #[inline(always)]
    fn run(self, _: Isa) -> Result<(), Error> {
        const SOME: usize = 32;
        let Self {
            graph,
            drawn,
            trees,
            edges,
            known,
            table,
            mut paths,
        } = self;
        let (begin, first) = (edges.sources.len(), edges.indptr.len() - 1);
        edges.append(&drawn)?;
        let block = |at: usize| &trees[trees.len().min(at)..trees.len().min(at + BLOCK)];
        for at in (0..trees.len()).step_by(BLOCK) {
            ask_trees(edges, first + at + BLOCK, block(at + BLOCK), table);
            number_trees(graph, edges, first + at, block(at), known, table, paths.as_deref_mut())?;
        }
        if !trees.is_empty() {
            return Ok(());
        }
        let end = edges.sources.len();
        let some = |begin: usize| end.min(begin)..end.min(begin + SOME);
        for at in (begin..end).step_by(SOME) {
            for source in &edges.sources[some(at + SOME)] {
                table.prefetch(source.index());
            }
            number(graph, edges, some(at), known, table)?;
        }
        Ok(())
    }
}

/// Prefetches the slots of the sources of rows `first..`, which are of `trees`.
#[inline(always)]
fn ask_trees<I: Id, T: Table>(edges: &Edges<I>, first: usize, trees: &[u32], table: &mut T) {
    for (row, &tree) in (first..).zip(trees) {
        table.enter(tree);
        for source in &edges.sources[edges.indptr[row] as usize..edges.indptr[row + 1] as usize] {
            table.prefetch(source.index());
        }
    }
}

/// Numbers the sources of rows `first..`, which are of `trees`.
#[inline(always)]
fn number_trees<I: Id, T: Table>(
    graph: &View<'_, I>,
    edges: &mut Edges<I>,
    first: usize,
    trees: &[u32],
    known: &mut Nodes<I>,
    table: &mut T,
    mut paths: Option<&mut PathTrees>,
) -> Result<(), Error> {
    for (row, &tree) in (first..).zip(trees) {
        let range = edges.indptr[row] as usize..edges.indptr[row + 1] as usize;
        let Some(paths) = paths.as_deref_mut() else {
            table.enter(tree);
            number(graph, edges, range, known, table)?;
            known.trees.resize(known.nodes.len(), tree);
            continue;
        };
        for at in range {
            let time = edges.since.as_ref().map_or(i64::MIN, |since| since[at]);
            let tree = paths.enter(tree, time)?;
            table.enter(tree);
            number(graph, edges, at..at + 1, known, table)?;
            known.trees.resize(known.nodes.len(), tree);
        }
    }
    check_count("nodes of a batch", known.nodes.len(), I::MAX.min(u32::MAX as usize))
}

/// Replaces the sources of `range` by their local ids.
#[inline(always)]
fn number<I: Id, T: Table>(
    graph: &View<'_, I>,
    edges: &mut Edges<I>,
    range: Range<usize>,
    known: &mut Nodes<I>,
    table: &mut T,
) -> Result<(), Error> {
    let nodes = &mut known.nodes;
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
        // Written whether or not the source is new. The next new one overwrites it.
        spare[fresh].write(id);
        fresh += usize::from(local as usize == known + fresh);
        *source = I::from_index(local as usize);
    }
    // SAFETY: the first `fresh` spare entries were written above.
    unsafe { nodes.set_len(known + fresh) };
    Ok(())
}
