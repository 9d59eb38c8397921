//! The graph as a sampler reads it.

use std::ops::Range;

use crate::csc::Id;
use crate::error::check_length;
use crate::float::Floats;
use crate::read::{load, prefetch};
use crate::relations::Relations;
use crate::similarity::Similarity;
use crate::{Csc, Error};

/// A CSC in memory that somebody else may write to while we read: a NumPy array, a
/// mapped file.
///
/// The constructor looks at lengths only, so a view costs nothing per batch. Each value
/// is checked where it is read. So a corrupt graph, or a graph that changes after its
/// check, ends in an error and never in a node or an address that does not exist.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, I> {
    indptr: &'a [i64],
    indices: &'a [I],
    num_sources: usize,
    extra: Extra<'a>,
    latest: Option<&'a [usize]>, // [num_relations] visible edges of a row that may be drawn, the latest
    paths: bool,                 // whether draws keep the times of their edges
}

/// The arrays that some laws read in addition to the edges.
#[derive(Debug, Clone, Copy, Default)]
pub struct Extra<'a> {
    /// [num_edges] weights of edges.
    pub weight: Option<Floats<'a>>,
    /// [num_sources] a number per node: by how much it is wanted.
    pub wanted: Option<&'a [f64]>,
    /// Rows of nodes [num_sources, width] that walks compare, instead of `wanted`.
    pub similarity: Option<Similarity<'a>>,
    /// [num_sources] the cluster of each node.
    pub cluster: Option<&'a [i64]>,
    /// [num_nodes] global ids of the destinations, which key their draws. `None`: their
    /// numbers are their ids.
    pub rows: Option<&'a [i64]>,
    /// [num_sources] global ids of the sources, for laws that hash sources.
    pub sources: Option<&'a [i64]>,
    /// [num_nodes] numbers of draws, for the balanced law. `None`: the nodes of the hop
    /// share a budget.
    pub counts: Option<&'a [i64]>,
    /// [num_rows] keys the draws of each node of a hop, instead of its global id. Nodes
    /// that repeat in a hop then draw independently.
    pub keys: Option<&'a [i64]>,
    /// [num_edges] times, ascending within the in-edges of a node or of one of its
    /// relations. The lowest number is visible at all times.
    pub times: Option<&'a [i64]>,
    /// [num_rows] the latest time that each node of a hop sees. `None`: all times.
    pub bounds: Option<&'a [i64]>,
    /// A node sees edges later than its bound minus this number. `None`: all earlier
    /// ones.
    pub window: Option<i64>,
    /// Whether a node draws among its latest visible edges, as many as the fanout.
    pub latest: bool,
    /// The in-edges of each node by relation. `None`: a node draws from all of them.
    pub relations: Option<Relations<'a>>,
}

/// The in-edges from which a row draws. They are numbered from `start` on, and those
/// from `start + split` on stand `gap` positions later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    pub start: usize,
    pub degree: usize,
    pub split: usize,
    pub gap: usize,
}

impl Extra<'_> {
    /// Checks that each array of a hop has an entry per node of the hop.
    pub(crate) fn check_rows(&self, num_rows: usize) -> Result<(), Error> {
        check_length("keys", self.keys.map_or(num_rows, <[i64]>::len), num_rows)?;
        check_length("bounds", self.bounds.map_or(num_rows, <[i64]>::len), num_rows)
    }
}

#[inline(always)]
fn check_weight(name: &'static str, position: usize, value: f64) -> Result<f64, Error> {
    if (0.0..f64::INFINITY).contains(&value) {
        return Ok(value);
    }
    Err(Error::Weight { name, position, value })
}

/// The number of ascending `times` up to `bound`, which often are none or all.
#[inline(always)]
fn count_until(times: &[i64], bound: i64) -> usize {
    match times {
        [.., last] if load(last) <= bound => times.len(),
        [first, ..] if load(first) > bound => 0,
        _ => times.partition_point(|time| load(time) <= bound),
    }
}

impl<'a, I: Id> View<'a, I> {
    /// Sources are `0..num_sources`. `indptr` must not be empty.
    pub fn new(indptr: &'a [i64], indices: &'a [I], num_sources: usize) -> Result<Self, Error> {
        if indptr.is_empty() {
            return Err(Error::Length {
                name: "indptr",
                actual: 0,
                expected: 1,
            });
        }
        Ok(Self {
            indptr,
            indices,
            num_sources,
            extra: Extra::default(),
            latest: None,
            paths: false,
        })
    }

    /// The same graph with the other arrays of its sampler. Checks their lengths.
    pub fn with(self, extra: Extra<'a>) -> Result<Self, Error> {
        let length = |name, actual: Option<usize>, expected| match actual {
            Some(actual) if actual != expected => Err(Error::Length { name, actual, expected }),
            _ => Ok(()),
        };
        length("weight", extra.weight.map(|weight| weight.len()), self.num_edges())?;
        length("wanted", extra.wanted.map(<[f64]>::len), self.num_sources)?;
        if let Some(similarity) = extra.similarity {
            similarity.check_len(self.num_sources)?;
        }
        length("cluster", extra.cluster.map(<[i64]>::len), self.num_sources)?;
        length("rows", extra.rows.map(<[i64]>::len), self.num_nodes())?;
        length("sources", extra.sources.map(<[i64]>::len), self.num_sources)?;
        length("counts", extra.counts.map(<[i64]>::len), self.num_nodes())?;
        length("times", extra.times.map(<[i64]>::len), self.num_edges())?;
        if let Some(relations) = extra.relations {
            relations.check(self.num_nodes(), self.num_edges())?;
        }
        Ok(Self { extra, ..self })
    }

    /// The other arrays that the sampler reads.
    pub fn extra(&self) -> &Extra<'a> {
        &self.extra
    }

    /// Drops the arrays of a hop's nodes, which must be empty.
    pub(crate) fn without_row_values(self) -> Result<Self, Error> {
        self.extra.check_rows(0)?;
        Ok(self.for_rows(None, None))
    }

    /// The same graph for the nodes of a hop.
    pub(crate) fn for_rows(self, keys: Option<&'a [i64]>, bounds: Option<&'a [i64]>) -> Self {
        let extra = Extra {
            keys,
            bounds,
            ..self.extra
        };
        Self { extra, ..self }
    }

    /// The same graph for a hop with `fanouts` by relation, which bound what a node
    /// draws from if these are its latest edges.
    pub(crate) fn for_hop(self, fanouts: &'a [usize]) -> Self {
        let latest = self.extra.latest.then_some(fanouts);
        Self { latest, ..self }
    }

    /// The same graph for draws that keep the times of their edges if `paths`.
    pub(crate) fn for_paths(self, paths: bool) -> Self {
        Self { paths, ..self }
    }

    /// The times of the edges, if draws keep these.
    pub(crate) fn times_of_paths(&self) -> Option<&'a [i64]> {
        self.extra.times.filter(|_| self.paths)
    }

    /// Checks that sources and destinations are the same nodes.
    pub fn check_square(&self) -> Result<(), Error> {
        if self.num_sources == self.num_nodes() {
            return Ok(());
        }
        Err(Error::NotSquare {
            num_nodes: self.num_nodes(),
            num_sources: self.num_sources,
        })
    }

    /// The source of `edge`, checked.
    #[inline(always)]
    pub fn source(&self, edge: usize) -> Result<usize, Error> {
        let id = load(&self.indices[edge]);
        if id.index() < self.num_sources {
            return Ok(id.index());
        }
        Err(self.no_such_source(edge as i64, id))
    }

    /// The weight of `edge`: 1 where nothing says otherwise.
    #[inline(always)]
    pub fn weight(&self, edge: usize) -> Result<f64, Error> {
        let value = match self.extra.weight {
            None => return Ok(1.0),
            Some(Floats::F32(values)) => f64::from(load(&values[edge])),
            Some(Floats::F64(values)) => load(&values[edge]),
        };
        check_weight("weight", edge, value)
    }

    /// By how much `node` is wanted: 1 where nothing says otherwise.
    #[inline(always)]
    pub(crate) fn wanted(&self, node: usize) -> Result<f64, Error> {
        match self.extra.wanted {
            Some(wanted) => check_weight("wanted", node, load(&wanted[node])),
            None => Ok(1.0),
        }
    }

    /// The global id of destination `node`, which keys the draws of the node.
    #[inline(always)]
    pub(crate) fn row_id(&self, node: usize) -> u64 {
        match self.extra.rows {
            Some(ids) => load(&ids[node]) as u64,
            None => node as u64,
        }
    }

    /// The global id of `source`, which was read from `edge`. Without global ids the
    /// source is not checked.
    #[inline(always)]
    pub(crate) fn source_id(&self, edge: usize, source: I) -> Result<u64, Error> {
        match self.extra.sources {
            None => Ok(source.index() as u64),
            Some(ids) => match ids.get(source.index()) {
                Some(id) => Ok(load(id) as u64),
                None => Err(self.no_such_source(edge as i64, source)),
            },
        }
    }

    /// Number of destinations.
    pub fn num_nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Number of edges.
    pub fn num_edges(&self) -> usize {
        self.indices.len()
    }

    /// Sources are `0..num_sources`.
    pub fn num_sources(&self) -> usize {
        self.num_sources
    }

    /// The source of each edge, as it stands: not yet compared with `num_sources`.
    pub fn indices(&self) -> &'a [I] {
        self.indices
    }

    /// The positions of the in-edges of `node`, inside of `indices`. `node` must be one
    /// of the destinations.
    #[inline(always)]
    pub fn edges(&self, node: usize) -> Result<Range<usize>, Error> {
        let (start, end) = (load(&self.indptr[node]), load(&self.indptr[node + 1]));
        if start as u64 <= end as u64 && end as u64 <= self.indices.len() as u64 {
            return Ok(start as usize..end as usize);
        }
        Err(Error::EdgeRange {
            node,
            start,
            end,
            num_edges: self.indices.len(),
        })
    }

    /// Keys the draws of row `at` of a hop. `node` must be one of the destinations.
    #[inline(always)]
    pub(crate) fn key(&self, at: usize, node: usize) -> u64 {
        self.extra
            .keys
            .map_or_else(|| self.row_id(node), |keys| load(&keys[at]) as u64)
    }

    /// The part of `edges` from which row `at` of a hop draws. They must be all edges
    /// of the row, or those of its `relation`. With a window, edges that are visible at
    /// all times come before a gap.
    #[inline(always)]
    pub(crate) fn visible(&self, at: usize, relation: usize, edges: Range<usize>) -> Seen {
        let (start, degree) = (edges.start, edges.len());
        let (Some(times), Some(bounds)) = (self.extra.times, self.extra.bounds) else {
            let (split, gap) = (0, 0);
            return Seen {
                start,
                degree,
                split,
                gap,
            };
        };
        let (times, bound) = (&times[edges], load(&bounds[at]));
        let end = count_until(times, bound);
        let (split, gap) = self.extra.window.map_or((0, 0), |window| {
            let fixed = count_until(&times[..end], i64::MIN);
            (fixed, count_until(&times[fixed..end], bound.saturating_sub(window)))
        });
        let most = self.latest.map_or(usize::MAX, |fanouts| fanouts[relation]);
        let early = (end - gap).saturating_sub(most);
        Seen {
            start: start + early,
            degree: end - gap - early,
            split: split.saturating_sub(early),
            gap,
        }
    }

    /// Returns the error for an edge with a source that is not below `num_sources`.
    #[cold]
    pub(crate) fn no_such_source(&self, edge: i64, id: I) -> Error {
        Error::OutOfRange {
            name: "indices",
            position: edge as usize,
            value: id.signed(),
            bound: self.num_sources,
            of: "nodes",
        }
    }

    /// Prefetches the values that `edges(node)` reads.
    #[inline(always)]
    pub(crate) fn prefetch_node(&self, node: usize) {
        prefetch(self.indptr, node);
        if let Some(relations) = &self.extra.relations {
            relations.prefetch_node(node);
        }
        if let Some(ids) = self.extra.rows {
            prefetch(ids, node);
        }
    }

    /// Prefetches some of the times of the in-edges of `node`.
    #[inline(always)]
    pub(crate) fn prefetch_times(&self, node: usize) {
        if let Some(times) = self.extra.times {
            self.prefetch_row(times, node);
        }
    }

    /// Prefetches some of the sources of the in-edges of `node`.
    #[inline(always)]
    pub(crate) fn prefetch_edges(&self, node: usize) {
        self.prefetch_row(self.indices, node);
    }

    /// Prefetches both ends and the middle of a row.
    #[inline(always)]
    fn prefetch_row<T>(&self, values: &[T], node: usize) {
        let (start, end) = (load(&self.indptr[node]) as usize, load(&self.indptr[node + 1]) as usize);
        prefetch(values, start);
        prefetch(values, start.wrapping_add(end) / 2);
        prefetch(values, end.wrapping_sub(1));
    }

    /// The ids of edges that are drawn by relation. `None`: their positions.
    pub(crate) fn edge_order(&self) -> Option<&'a [i64]> {
        self.extra.relations.as_ref().and_then(|relations| relations.order)
    }

    /// Prefetches the source of `edge`.
    #[inline(always)]
    pub(crate) fn prefetch_edge(&self, edge: usize) {
        prefetch(self.indices, edge);
    }
}

impl<'a, I: Id> From<Csc<'a, I>> for View<'a, I> {
    fn from(csc: Csc<'a, I>) -> Self {
        Self {
            indptr: csc.indptr(),
            indices: csc.indices(),
            num_sources: csc.num_sources(),
            extra: Extra::default(),
            latest: None,
            paths: false,
        }
    }
}
