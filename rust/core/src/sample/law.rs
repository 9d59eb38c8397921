//! The rule by which a node draws among its in-edges.

use crate::Error;

/// One node that draws.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Position among the nodes that draw in this hop.
    pub at: usize,
    /// Number of the node among the destinations of the graph.
    pub node: usize,
    /// Keys the draws: the global id of the node, or [`Extra::keys`](crate::view::Extra).
    pub id: u64,
    /// The first in-edge that it may draw.
    pub start: usize,
    /// Number of in-edges that it may draw.
    pub degree: usize,
    /// Relation of these in-edges, 0 where a node draws from all of its in-edges.
    pub relation: usize,
    /// Number of the relation among those of the node.
    pub nth: usize,
}

/// The largest number of draws of a row in one hop by relation, of one where nodes draw
/// from all in-edges. `usize::MAX`: all in-edges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most<'a>(pub &'a [usize]);

impl Most<'_> {
    #[inline(always)]
    pub fn of(&self, relation: usize) -> usize {
        self.0[relation]
    }
}

/// The rule by which nodes draw. The draws of a row follow from the row alone, so any
/// thread may draw rows in any order.
pub(crate) trait Law: Sync {
    /// Memory that draws reuse, one per thread. Its contents never reach a result.
    type Room: Default + Send + 'static;

    /// Whether the law draws nodes instead of positions of edges.
    const DRAWS_NODES: bool = false;

    /// Appends the positions of the edges drawn.
    fn draw(&self, row: &Row, room: &mut Self::Room, out: &mut Vec<i64>) -> Result<(), Error>;

    /// 1 / the expected number of draws of `edge`, after `draw` of the same row
    /// appended `drawn` edges.
    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, room: &Self::Room) -> Result<f64, Error> {
        let _ = (edge, room);
        Ok(row.degree as f64 / drawn as f64)
    }

    /// The divisor that turns a sum into the mean.
    fn total(&self, row: &Row, room: &Self::Room) -> f64 {
        let _ = room;
        row.degree as f64
    }
}
