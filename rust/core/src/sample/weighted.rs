//! Draws in proportion to weights.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::law::{Law, Most, Row};
use crate::Error;
use crate::csc::Id;
use crate::memory::reserve;
use crate::rng::{Stream, derive};
use crate::view::View;

/// An edge and when it arrives, if edges arrive at rates equal to their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrival {
    time: f64,
    edge: usize,
}

impl Eq for Arrival {}

impl PartialOrd for Arrival {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Arrival {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then(self.edge.cmp(&other.edge))
    }
}

/// Weight of an edge: its own, times by how much its source is wanted.
fn weight<I: Id>(graph: &View<'_, I>, edge: usize) -> Result<f64, Error> {
    let own = graph.weight(edge)?;
    if graph.extra().wanted.is_none() {
        return Ok(own);
    }
    Ok(own * graph.wanted(graph.source(edge)?)?)
}

/// The first edges to arrive, at most the fanout: without replacement, each draw in proportion to
/// the weights that are left (Efraimidis and Spirakis, Information Processing Letters
/// 97(5), 2006). Edges of weight 0 never arrive.
pub(crate) struct Weighted<'a, I> {
    pub graph: &'a View<'a, I>,
    pub key: u64,
    pub most: Most<'a>,
}

/// The earliest edges of a row.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    earliest: BinaryHeap<Arrival>,
    /// When the first edge arrives that the last row did not draw.
    next: f64,
}

impl<I: Id> Law for Weighted<'_, I> {
    type Room = Arrivals;

    fn draw(&self, row: &Row, room: &mut Arrivals, out: &mut Vec<i64>) -> Result<(), Error> {
        room.next = f64::INFINITY;
        let fanout = self.most.of(row.relation);
        if fanout == 0 {
            return Ok(());
        }
        let stream = Stream::new(derive(self.key, row.id));
        let arrivals = &mut room.earliest;
        arrivals.clear();
        for at in 0..row.degree {
            let edge = row.start + at;
            let weight = weight(self.graph, row.position(edge))?;
            if weight > 0.0 {
                let uniform = 1.0 - (stream.word(at as u64) >> 11) as f64 * (1.0 / (1u64 << 53) as f64); // in (0, 1]
                push_bounded(arrivals, fanout, uniform, weight, edge);
            }
        }
        if arrivals.len() > fanout {
            room.next = arrivals.pop().map_or(f64::INFINITY, |last| last.time);
        }
        let first = out.len();
        out.extend(arrivals.drain().map(|arrival| arrival.edge as i64));
        out[first..].sort_unstable();
        Ok(())
    }

    /// Given when the first edge that was not drawn arrives, the others are
    /// independent: edge e was to arrive before it with probability 1 - exp(-w time).
    /// So sums with its inverse are unbiased (Cohen and Kaplan, PODC 2007).
    fn inverse_expectation(&self, row: &Row, edge: i64, _drawn: usize, room: &Arrivals) -> Result<f64, Error> {
        let weight = weight(self.graph, row.position(edge as usize))?;
        Ok(-1.0 / (-weight * room.next).exp_m1())
    }
}

/// Keeps the `fanout` + 1 earliest.
#[inline(always)]
fn push_bounded(arrivals: &mut BinaryHeap<Arrival>, fanout: usize, uniform: f64, weight: f64, edge: usize) {
    if arrivals.len() > fanout {
        let Some(mut last) = arrivals.peek_mut() else { return };
        // 1 - u is at most -ln u: most edges are late without a logarithm.
        if (1.0 - uniform) > last.time * weight {
            return;
        }
        let arrival = Arrival {
            time: -uniform.ln() / weight,
            edge,
        };
        if arrival < *last {
            *last = arrival;
        }
        return;
    }
    arrivals.push(Arrival {
        time: -uniform.ln() / weight,
        edge,
    });
}

/// As many independent draws as the fanout, in proportion to the weights. A row of zero
/// weights draws none. All in-edges of positive weight are drawn once each.
pub(crate) struct WeightedWithReplacement<'a, I> {
    pub graph: &'a View<'a, I>,
    pub key: u64,
    pub most: Most<'a>,
}

impl<I: Id> Law for WeightedWithReplacement<'_, I> {
    /// Sums of the weights of the last row's edges.
    type Room = Vec<f64>;

    fn draw(&self, row: &Row, sums: &mut Vec<f64>, out: &mut Vec<i64>) -> Result<(), Error> {
        sums.clear();
        let (mut total, fanout) = (0.0, self.most.of(row.relation));
        for edge in row.start..row.start + row.degree {
            let weight = weight(self.graph, row.position(edge))?;
            if fanout == usize::MAX && weight > 0.0 {
                out.push(edge as i64);
            }
            total += weight;
            sums.push(total);
        }
        if fanout == usize::MAX {
            return Ok(());
        }
        if total == f64::INFINITY {
            return Err(Error::WeightSum { node: row.node });
        }
        if total > 0.0 {
            reserve(out, Some(fanout), "fanout", fanout)?;
            let mut stream = Stream::new(derive(self.key, row.id));
            for _ in 0..fanout {
                let mark = stream.next_f64() * total;
                // Rounding may put the mark on the total itself: then the last edge of
                // positive weight is meant.
                let at = sums.partition_point(|&sum| sum <= mark);
                let at = if at < sums.len() {
                    at
                } else {
                    sums.partition_point(|&sum| sum < total)
                };
                out.push((row.start + at) as i64);
            }
        }
        Ok(())
    }

    fn inverse_expectation(&self, row: &Row, edge: i64, drawn: usize, sums: &Vec<f64>) -> Result<f64, Error> {
        if self.most.of(row.relation) == usize::MAX {
            return Ok(1.0);
        }
        let total = sums.last().copied().unwrap_or_default();
        Ok(total / (drawn as f64 * weight(self.graph, row.position(edge as usize))?))
    }
}
