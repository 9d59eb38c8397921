//! Neighbourhoods of walks: the nodes that they visit most.

use super::law::{Law, Row};
use crate::Error;
use crate::csc::Id;
use crate::memory::reserve;
use crate::view::View;
use crate::walk::{Walker, Walks};

/// How often the walks of one row stood on a node, and when first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visits {
    node: usize,
    count: usize,
    first: usize,
}

/// The walks of a row.
#[derive(Debug, Default)]
pub(crate) struct Room {
    walkers: Vec<Walker>,
    /// Nodes that the walks stood on, and at which step.
    path: Vec<(usize, usize)>,
    visits: Vec<Visits>,
}

/// The `fanout` nodes that walks from a node visit most, without the start. Of nodes
/// with equal visits the one visited first comes first.
pub(crate) struct MostVisited<'a, I> {
    graph: &'a View<'a, I>,
    key: u64,
    fanout: usize,
    walks: Walks,
}

impl<'a, I: Id> MostVisited<'a, I> {
    pub fn new(graph: &'a View<'a, I>, key: u64, fanout: usize, walks: Walks) -> Result<Self, Error> {
        graph.check_square()?;
        Ok(Self {
            graph,
            key,
            fanout,
            walks,
        })
    }
}

impl<I: Id> Law for MostVisited<'_, I> {
    type Room = Room;

    const DRAWS_NODES: bool = true;

    fn draw(&self, row: &Row, room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error> {
        let Room { visits, path, walkers } = room;
        path.clear();
        let num_steps = self.walks.length.checked_mul(self.walks.num_walks);
        reserve(
            path,
            num_steps,
            "walk_length * num_walks",
            num_steps.unwrap_or(usize::MAX),
        )?;
        let mut first = 0;
        self.walks.run(self.graph, row.node, self.key, walkers, |node| {
            path.push((node, first));
            first += 1;
        })?;
        path.sort_unstable();
        let runs = path.chunk_by(|a, b| a.0 == b.0).filter(|run| run[0].0 != row.node);
        visits.clear();
        visits.extend(runs.map(|run| Visits {
            node: run[0].0,
            count: run.len(),
            first: run[0].1,
        }));
        visits.sort_unstable_by_key(|visits| (std::cmp::Reverse(visits.count), visits.first));
        visits.truncate(self.fanout);
        out.extend(visits.iter().map(|visits| visits.node as i64));
        Ok(())
    }

    /// How often the walks visited the node.
    fn inverse_expectation(&self, _row: &Row, node: i64, _drawn: usize, room: &Room) -> Result<f64, Error> {
        let visits = room.visits.iter().find(|visits| visits.node as i64 == node);
        Ok(visits.map_or(0, |visits| visits.count) as f64)
    }

    fn total(&self, _row: &Row, room: &Room) -> f64 {
        room.visits.iter().map(|visits| visits.count).sum::<usize>() as f64
    }
}
