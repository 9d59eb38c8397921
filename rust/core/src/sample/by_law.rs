//! One hop by any law, such as one of another crate.

use super::batch::{Hop, Sizes};
use super::edges::{Draw, Edges, Importance};
use super::expand::{DrawInto, Task};
use super::law::{Law, Row};
use super::sampler::Scratch;
use crate::Error;
use crate::csc::{Id, check_ids};
use crate::view::View;

/// Draws one hop of `nodes` by a law, to the same bits on any number of threads.
///
/// Nodes may repeat. With `importance`, the hop has importance weights, by
/// [`Law::inverse_expectation`] and [`Law::total`]. Where the graph has relations, the law
/// draws once per node and relation. A draw that is none of the row's edges is an error.
///
/// `typical` is about how many edges a row draws, by which the work is divided.
pub fn draw_by<I: Id, L: Law>(
    graph: &View<'_, I>,
    nodes: &[I],
    law: &L,
    typical: usize,
    importance: Option<Importance>,
    scratch: &mut Scratch,
) -> Result<Hop<I>, Error> {
    check_ids("nodes", nodes, graph.num_nodes(), "nodes")?;
    graph.extra().check_rows(nodes.len())?;
    scratch.crew.run(|crew| {
        let mut edges = Edges::new(graph, importance, Sizes::default());
        let draw = Draw {
            graph,
            nodes,
            num_draws: nodes.len().saturating_mul(typical),
            importance,
        };
        let num_sources = graph.num_sources();
        let task = DrawInto {
            draw,
            crew,
            edges: &mut edges,
        };
        task.run(&Checked { law, num_sources })?;
        Ok(edges.into_hop())
    })
}

/// A law whose draws are checked.
struct Checked<'a, L> {
    law: &'a L,
    num_sources: usize,
}

impl<L: Law> Law for Checked<'_, L> {
    type Room = L::Room;

    const DRAWS_NODES: bool = L::DRAWS_NODES;

    #[inline(always)]
    fn draw(&self, row: &Row, room: &mut L::Room, out: &mut Vec<i64>) -> Result<(), Error> {
        let first = out.len();
        self.law.draw(row, room, out)?;
        let node = row.node;
        let valid = match L::DRAWS_NODES {
            true => 0..self.num_sources,
            false => row.start..row.start + row.degree,
        };
        let drawn = out.get(first..).ok_or(Error::Withdrawn { node })?;
        match drawn.iter().find(|&&value| !valid.contains(&(value as usize))) {
            Some(&value) => Err(Error::Drawn { node, value }),
            None => Ok(()),
        }
    }

    #[inline(always)]
    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, room: &L::Room) -> Result<f64, Error> {
        self.law.inverse_expectation(row, edge, drawn, room)
    }

    #[inline(always)]
    fn total(&self, row: &Row, room: &L::Room) -> f64 {
        self.law.total(row, room)
    }
}
