//! The rule by which a node draws among its in-edges.

use crate::Error;

/// One node that draws.
#[derive(Debug, Clone, Copy)]
pub struct Row {
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
    /// Number of these in-edges before a gap, which draws do not count.
    pub split: usize,
    /// Number of edges of the gap, 0 where all edges from `start` on follow each other.
    pub gap: usize,
    /// Relation of these in-edges, 0 where a node draws from all of its in-edges.
    pub relation: usize,
    /// Number of the relation among those of the node.
    pub nth: usize,
}

impl Row {
    /// The position in the graph's arrays of the edge that a law numbers `edge`, from
    /// `start` on. A law draws `edge`, and reads its weight and source at the position.
    /// The two differ only where nodes draw by time.
    #[inline(always)]
    pub fn position(&self, edge: usize) -> usize {
        edge + if edge < self.start + self.split { 0 } else { self.gap }
    }
}

/// The maximum number of draws of a row in one hop, by relation. A single entry if nodes
/// draw from all in-edges. `usize::MAX`: all in-edges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Most<'a>(pub &'a [usize]);

impl Most<'_> {
    #[inline(always)]
    pub fn of(&self, relation: usize) -> usize {
        self.0[relation]
    }
}

/// The rule by which nodes draw, such as one of another crate, which
/// [`draw_by`](super::draw_by) draws hops by.
///
/// The draws of a row follow from the row and the law alone, so any thread may draw rows
/// in any order. A law keeps its own key and fanout, and hashes the row's `id`, so that a
/// node draws the same in every batch of the key, on every rank:
///
/// ```
/// use gnnkit_core::Error;
/// use gnnkit_core::rng::{Stream, derive};
/// use gnnkit_core::sample::{Law, Row, Scratch, draw_by};
/// use gnnkit_core::view::View;
///
/// /// Each in-edge on its own, with probability `share`.
/// struct Coins {
///     key: u64,
///     share: f64,
/// }
///
/// impl Law for Coins {
///     type Room = ();
///
///     fn draw(&self, row: &Row, _: &mut (), out: &mut Vec<i64>) -> Result<(), Error> {
///         let mut stream = Stream::new(derive(self.key, row.id));
///         let edges = row.start..row.start + row.degree;
///         out.extend(edges.filter(|_| stream.next_f64() < self.share).map(|edge| edge as i64));
///         Ok(())
///     }
/// }
///
/// // A node with 1,000 in-edges keeps about a quarter of them, in 200 batches.
/// let (indptr, indices) = ([0, 1000], vec![0i32; 1000]);
/// let graph = View::new(&indptr, &indices, 1)?;
/// let mut total = 0;
/// for key in 0..200 {
///     let law = Coins { key, share: 0.25 };
///     total += draw_by(&graph, &[0], &law, 250, None, &mut Scratch::default())?.edge_ids.len();
/// }
/// let deviation = (200_000.0 * 0.25 * 0.75f64).sqrt();
/// assert!((total as f64 - 50_000.0).abs() < 4.0 * deviation);
/// # Ok::<(), Error>(())
/// ```
pub trait Law: Sync {
    /// Memory that draws reuse, one per thread. Its contents never reach a result.
    type Room: Default + Send + 'static;

    /// Whether the law draws nodes instead of positions of edges.
    const DRAWS_NODES: bool = false;

    /// Appends the numbers of the edges drawn, of `row.start..row.start + row.degree`.
    /// A law that `DRAWS_NODES` appends nodes.
    fn draw(&self, row: &Row, room: &mut Self::Room, out: &mut Vec<i64>) -> Result<(), Error>;

    /// 1 / the expected number of draws of `edge`, after `draw` of the same row
    /// appended `drawn` edges and filled `room`. Called only where importance weights
    /// are wanted. The default is right for edges that are equally likely.
    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, room: &Self::Room) -> Result<f64, Error> {
        let _ = (edge, room);
        Ok(row.degree as f64 / drawn as f64)
    }

    /// The divisor that turns a sum into the mean: the number of in-edges by default.
    fn total(&self, row: &Row, room: &Self::Room) -> f64 {
        let _ = room;
        row.degree as f64
    }
}
