//! Edges within chosen clusters (Cluster-GCN: Chiang et al., KDD 2019).

use super::law::{Law, Row};
use crate::Error;
use crate::csc::Id;
use crate::read::load;
use crate::view::View;

/// Selects all in-edges with a source in one of the seeds' clusters.
pub(crate) struct WithinClusters<'a, I> {
    graph: &'a View<'a, I>,
    cluster: &'a [i64],
    chosen: Vec<i64>, // ascending
}

impl<'a, I: Id> WithinClusters<'a, I> {
    /// `seeds` must be destinations of `graph`, of which sources and destinations are
    /// the same.
    pub fn new(graph: &'a View<'a, I>, seeds: &[I]) -> Result<Self, Error> {
        let cluster = graph.extra().cluster.ok_or(Error::Length {
            name: "cluster",
            actual: 0,
            expected: graph.num_sources(),
        })?;
        graph.check_square()?;
        let mut chosen: Vec<i64> = seeds.iter().map(|seed| load(&cluster[seed.index()])).collect();
        chosen.sort_unstable();
        chosen.dedup();
        Ok(Self { graph, cluster, chosen })
    }
}

impl<I: Id> Law for WithinClusters<'_, I> {
    type Room = ();

    fn draw(&self, row: &Row, _room: &mut (), out: &mut Vec<i64>) -> Result<(), Error> {
        for edge in row.start..row.start + row.degree {
            if self
                .chosen
                .binary_search(&load(&self.cluster[self.graph.source(edge)?]))
                .is_ok()
            {
                out.push(edge as i64);
            }
        }
        Ok(())
    }
}
