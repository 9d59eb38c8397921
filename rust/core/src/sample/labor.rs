//! LABOR-0 (Balin and Catalyurek, NeurIPS 2023).

use super::law::{Law, Most, Row};
use crate::Error;
use crate::csc::Id;
use crate::read::load;
use crate::rng::Stream;
use crate::view::View;

/// One number per source decides for all nodes of a hop: an edge is kept iff its
/// source's is at most fanout / degree. Relations share the number of a source, so that
/// nodes share sources across relations too.
pub(crate) struct Labor<'a, I> {
    pub graph: &'a View<'a, I>,
    /// Of the hop.
    pub key: u64,
    pub most: Most<'a>,
}

impl<I: Id> Law for Labor<'_, I> {
    type Room = ();

    #[inline(always)]
    fn draw(&self, row: &Row, _room: &mut (), out: &mut Vec<i64>) -> Result<(), Error> {
        let edges = row.start..row.start + row.degree;
        let fanout = self.most.of(row.relation);
        if row.degree <= fanout {
            out.extend(edges.map(|edge| edge as i64));
            return Ok(());
        }
        // The share fanout / degree of 2^64 equally likely numbers is kept.
        let kept = (((fanout as u128) << 64) / row.degree as u128) as u64;
        let number = Stream::new(self.key);
        for (edge, source) in edges.clone().zip(&self.graph.indices()[edges]) {
            if number.word(self.graph.source_id(edge, load(source))?) < kept {
                out.push(edge as i64);
            }
        }
        Ok(())
    }

    fn inverse_expectation(&self, row: &Row, _edge: i64, _drawn: usize, _room: &()) -> Result<f64, Error> {
        Ok((row.degree as f64 / self.most.of(row.relation) as f64).max(1.0))
    }
}
