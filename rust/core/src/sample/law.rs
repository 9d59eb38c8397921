//! What a node draws among its in-edges.

use super::floyd::{Bits, distinct};
use crate::Error;
use crate::rng::{Stream, derive};

/// One node that draws.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Global id.
    pub node: usize,
    /// Its first in-edge.
    pub start: usize,
    /// Number of its in-edges.
    pub degree: usize,
}

/// Memory that draws reuse; one per thread. Its contents never reach a result.
#[derive(Debug, Default)]
pub(crate) struct Room {
    pub bits: Bits,
}

/// The rule by which nodes draw. What a row draws follows from the row alone, so rows may be drawn in any order by any thread.
pub(crate) trait Law: Sync {
    /// An upper bound of what `draw` appends.
    fn most(&self, row: &Row) -> usize;

    /// Appends the positions of the edges drawn.
    fn draw(&self, row: &Row, room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error>;

    /// 1 / the expected number of times that `edge` is drawn, after `draw` of the same row appended `drawn` edges.
    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, room: &Room) -> f64 {
        let _ = (edge, room);
        row.degree as f64 / drawn as f64
    }
}

/// Every in-edge equally likely, none twice; all of them where there are no more than `fanout`.
pub(crate) struct Uniform {
    pub key: u64,
    pub fanout: usize,
}

impl Law for Uniform {
    #[inline(always)]
    fn most(&self, row: &Row) -> usize {
        row.degree.min(self.fanout)
    }

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
        let stream = Stream::new(derive(key, row.node as u64));
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
    fn most(&self, row: &Row) -> usize {
        if row.degree == 0 { 0 } else { self.fanout }
    }

    #[inline(always)]
    fn draw(&self, row: &Row, _room: &mut Room, out: &mut Vec<i64>) -> Result<(), Error> {
        let mut stream = Stream::new(derive(self.key, row.node as u64));
        for _ in 0..self.most(row) {
            out.push(row.start as i64 + stream.below(row.degree as u64) as i64);
        }
        Ok(())
    }
}
