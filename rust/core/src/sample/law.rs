//! What a node draws among its in-edges.

use std::collections::BinaryHeap;

use super::floyd::{Bits, distinct};
use super::visits::Visits;
use super::weighted::Arrival;
use crate::Error;
use crate::rng::{Stream, derive};
use crate::walk::Walker;

/// One node that draws.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Position among the nodes that draw in this hop.
    pub at: usize,
    /// Number of the node among the destinations of the graph.
    pub node: usize,
    /// Keys the draws: the global id of the node.
    pub id: u64,
    /// Its first in-edge.
    pub start: usize,
    /// Number of its in-edges.
    pub degree: usize,
}

/// Memory that draws reuse; one per thread. Its contents never reach a result.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub bits: Bits,
    pub arrivals: BinaryHeap<Arrival>,
    /// When the first edge arrives that the last row did not draw.
    pub next_arrival: f64,
    /// Sums of the weights of the last row's edges.
    pub sums: Vec<f64>,
    pub walkers: Vec<Walker>,
    /// Nodes that the last row's walks stood on, and at which step.
    pub path: Vec<(usize, usize)>,
    pub visits: Vec<Visits>,
}

/// The rule by which nodes draw. What a row draws follows from the row alone, so rows may be drawn in any order by any thread.
pub(crate) trait Law: Sync {
    /// Whether it draws nodes themselves instead of positions of edges.
    const DRAWS_NODES: bool = false;

    /// Appends the positions of the edges drawn.
    fn draw(&self, row: &Row, room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error>;

    /// 1 / the expected number of times that `edge` is drawn, after `draw` of the same row appended `drawn` edges.
    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, room: &Room) -> Result<f64, Error> {
        let _ = (edge, room);
        Ok(row.degree as f64 / drawn as f64)
    }

    /// What a sum is divided by to give the mean.
    fn total(&self, row: &Row, room: &Room) -> f64 {
        let _ = room;
        row.degree as f64
    }
}

/// Every in-edge equally likely, none twice; all of them where there are no more than `fanout`.
pub(crate) struct Uniform {
    pub key: u64,
    pub fanout: usize,
}

impl Law for Uniform {
    #[inline(always)]
    fn draw(&self, row: &Row, room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error> {
        draw_distinct(self.key, self.fanout, row, room, out);
        Ok(())
    }
}

/// `count` distinct in-edges of `row`, or all.
#[inline(always)]
pub(crate) fn draw_distinct(key: u64, count: usize, row: &Row, room: &mut Room, out: &mut Vec<i64>) {
    if row.degree <= count {
        out.extend(row.start as i64..(row.start + row.degree) as i64);
    } else {
        let stream = Stream::new(derive(key, row.id));
        distinct(stream, row.degree, count, &mut room.bits, |pick| {
            out.push((row.start + pick) as i64)
        });
    }
}

/// `fanout` independent draws, each in-edge equally likely; none where there are no in-edges.
pub(crate) struct UniformWithReplacement {
    pub key: u64,
    pub fanout: usize,
}

impl Law for UniformWithReplacement {
    #[inline(always)]
    fn draw(&self, row: &Row, _room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error> {
        if row.degree > 0 {
            let mut stream = Stream::new(derive(self.key, row.id));
            out.extend((0..self.fanout).map(|_| row.start as i64 + stream.below(row.degree as u64) as i64));
        }
        Ok(())
    }
}
