//! Neighbourhoods of walks: the nodes that they visit most.

use super::law::{Law, Room, Row};
use crate::Error;
use crate::csc::Id;
use crate::view::View;
use crate::walk::Walks;

/// How often the walks of one row stood on a node, and when first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visits {
    node: usize,
    count: usize,
    first: usize,
}

/// The `fanout` nodes that walks from a node visit most, the start itself left out; of equals the one visited first.
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
    const DRAWS_NODES: bool = true;

    fn draw(&self, row: &Row, room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error> {
        let Room {
            visits, path, walkers, ..
        } = room;
        path.clear();
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
