//! Random walks of Metropolis and Hastings: they visit nodes by a law that does not
//! favour hubs.

use crate::Error;
use crate::csc::Id;
use crate::memory::{filled, reserve};
use crate::rng::{Stream, derive};
use crate::similarity::Like;
use crate::view::View;

/// Walks that start at every node.
///
/// At u a neighbour v is proposed uniformly and taken with probability min(1, w(v) /
/// w(u) (d(u) / d(v))^alpha). Otherwise the walk stays, and u counts once more. On a
/// graph in which every edge has its reverse, each component is visited in proportion
/// to w d^(1 - alpha): uniformly with alpha = 1 and w = 1, as a plain walk does with
/// alpha = 0. The weight w is [`Extra::wanted`](crate::view::Extra::wanted), or the
/// [similarity](crate::similarity::Similarity) to the start. Then the start itself
/// weighs as much as its mean neighbour, of up to 32 evenly spaced ones.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Walks {
    /// Steps of each walk.
    pub length: usize,
    /// Walks per start.
    pub num_walks: usize,
    /// Exponent on the ratio of degrees.
    pub alpha: f64,
}

/// Where one walk stands.
#[derive(Debug, Clone)]
pub(crate) struct Walker {
    stream: Stream,
    at: Place,
    proposed: usize,
}

#[derive(Debug, Clone)]
struct Place {
    node: usize,
    start: usize,
    degree: usize,
    wanted: f64,
}

/// The graph, and the nodes that the walks of one start want.
struct Aim<'a, I> {
    graph: &'a View<'a, I>,
    like: Option<Like<'a>>,
}

impl<'a, I: Id> Aim<'a, I> {
    fn new(graph: &'a View<'a, I>, start: usize) -> Result<Self, Error> {
        let Some(similarity) = graph.extra().similarity else {
            return Ok(Self { graph, like: None });
        };
        let mut like = similarity.to(start)?;
        let edges = graph.edges(start)?;
        let apart = edges.len().div_ceil(MAX_ASKED).max(1);
        let neighbours = edges.step_by(apart).map(|edge| graph.source(edge));
        let neighbours = neighbours.collect::<Result<Vec<_>, _>>()?;
        neighbours.iter().for_each(|&node| like.prefetch(node));
        like.weigh_start(neighbours.into_iter())?;
        let like = Some(like);
        Ok(Self { graph, like })
    }

    #[inline(always)]
    fn place(&self, node: usize) -> Result<Place, Error> {
        let edges = self.graph.edges(node)?;
        Ok(Place {
            node,
            start: edges.start,
            degree: edges.len(),
            wanted: match &self.like {
                Some(like) => like.weight(node)?,
                None => self.graph.wanted(node)?,
            },
        })
    }

    #[inline(always)]
    fn prefetch(&self, node: usize) {
        self.graph.prefetch_node(node);
        if let Some(like) = &self.like {
            like.prefetch(node);
        }
    }
}

/// About how many neighbours say what the start weighs. A hub would read all others.
const MAX_ASKED: usize = 32;

/// The most steps that the walks of one start take together.
const MAX_STEPS: usize = 1 << 24;

impl Walks {
    /// `num_walks` walks of `length` steps from every start.
    pub fn new(length: usize, num_walks: usize, alpha: f64) -> Result<Self, Error> {
        for (name, value) in [
            ("walk_length", length),
            ("num_walks", num_walks),
            ("walk_length * num_walks", length.saturating_mul(num_walks)),
        ] {
            if value > MAX_STEPS {
                return Err(Error::Count {
                    name,
                    value,
                    low: 0,
                    high: MAX_STEPS,
                });
            }
        }
        Ok(Self {
            length,
            num_walks,
            alpha,
        })
    }

    /// Calls `visit` with the node of each walk from `start` after every step, step by
    /// step and in each step walk by walk.
    ///
    /// All walks of a start take their steps together, so that they wait for memory
    /// together. `start` must be one of the nodes of `graph`, of which sources and
    /// destinations are the same.
    pub(crate) fn run<I: Id>(
        &self,
        graph: &View<'_, I>,
        start: usize,
        key: u64,
        walkers: &mut Vec<Walker>,
        mut visit: impl FnMut(usize),
    ) -> Result<(), Error> {
        let aim = Aim::new(graph, start)?;
        let at = aim.place(start)?;
        let key = derive(key, graph.row_id(start));
        let walker = |walk: usize| Walker {
            stream: Stream::new(derive(key, walk as u64)),
            at: at.clone(),
            proposed: start,
        };
        walkers.clear();
        reserve(walkers, Some(self.num_walks), "num_walks", self.num_walks)?;
        walkers.extend((0..self.num_walks).map(walker));
        for _ in 0..self.length {
            self.step(&aim, walkers)?;
            walkers.iter().for_each(|walker| visit(walker.at.node));
        }
        Ok(())
    }

    fn step<I: Id>(&self, aim: &Aim<'_, I>, walkers: &mut [Walker]) -> Result<(), Error> {
        for Walker { stream, at, proposed } in &mut *walkers {
            // An isolated node proposes the edge after the last one: itself, below.
            *proposed = at.start + stream.below(at.degree.max(1) as u64) as usize;
            aim.graph.prefetch_edge(*proposed);
        }
        for walker in &mut *walkers {
            let isolated = walker.at.degree == 0;
            walker.proposed = if isolated {
                walker.at.node
            } else {
                aim.graph.source(walker.proposed)?
            };
            aim.prefetch(walker.proposed);
        }
        for Walker { stream, at, proposed } in walkers {
            let there = aim.place(*proposed)?;
            if stream.next_f64() < self.ratio(at, &there) {
                *at = there;
            }
        }
        Ok(())
    }

    /// The acceptance before it is cut at 1. From a place where nobody wants to be,
    /// every way is out.
    #[inline(always)]
    fn ratio(&self, from: &Place, to: &Place) -> f64 {
        if from.wanted == 0.0 {
            return 1.0;
        }
        let degrees = from.degree as f64 / to.degree as f64;
        to.wanted / from.wanted
            * if self.alpha == 1.0 {
                degrees
            } else {
                degrees.powf(self.alpha)
            }
    }

    /// The nodes that the walks from each of `starts` stand on: [num_starts, num_walks,
    /// length + 1], the start first.
    pub fn visited<I: Id>(&self, graph: &View<'_, I>, starts: &[I], key: u64) -> Result<Vec<I>, Error> {
        graph.check_square()?;
        crate::csc::check_ids("starts", starts, graph.num_nodes(), "nodes")?;
        let per_walk = self.length.saturating_add(1);
        let per_start = per_walk.saturating_mul(self.num_walks);
        let len = starts.len().checked_mul(per_start);
        let mut visited = filled(I::from_index(0), len, "walk_length * num_walks", per_start)?;
        let mut walkers = Vec::new();
        for (rows, start) in visited.chunks_mut(per_start.max(1)).zip(starts) {
            rows.iter_mut().step_by(per_walk).for_each(|first| *first = *start);
            let mut count = 0;
            self.run(graph, start.index(), key, &mut walkers, |node| {
                let (step, walk) = (count / self.num_walks, count % self.num_walks);
                rows[walk * per_walk + step + 1] = I::from_index(node);
                count += 1;
            })?;
        }
        Ok(visited)
    }
}
