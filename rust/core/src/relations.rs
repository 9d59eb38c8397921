//! The in-edges of nodes by relation, for graphs with types of edges.

use std::ops::Range;

use crate::Error;
use crate::error::check_length;
use crate::read::{load, prefetch};

/// Maximum number of relations, because relation numbers have 16 bits.
pub const MOST_RELATIONS: usize = 1 << 15;

/// The in-edges of each node in groups, one per relation that the node has.
///
/// A group draws like a node: the law sees its edges alone, and its draws are keyed by
/// relation and node. Values are checked where they are read, as in
/// [`View`](crate::view::View).
#[derive(Debug, Clone, Copy)]
pub struct Relations<'a> {
    /// [num_nodes + 1] where the groups of each node begin.
    pub indptr: &'a [i64],
    /// [num_groups] node * num_relations + relation of each group.
    pub codes: &'a [i64],
    /// [num_groups + 1] where the edges of each group begin.
    pub starts: &'a [i64],
    /// [num_edges] the id of each edge, which draws return. `None`: the edge's position.
    pub order: Option<&'a [i64]>,
    /// [num_hops * num_relations] draws per node, by hop and then by relation. -1: all.
    pub fanouts: &'a [i64],
    /// Number of relations.
    pub num_relations: usize,
    /// Number of nodes in the complete graph. Their ids key the draws.
    pub num_ids: usize,
}

/// The in-edges of one node with one relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub relation: usize,
    pub start: usize,
    pub degree: usize,
}

impl Relations<'_> {
    /// Checks the lengths of the arrays.
    pub(crate) fn check(&self, num_nodes: usize, num_edges: usize) -> Result<(), Error> {
        check_length("relations.indptr", self.indptr.len(), num_nodes + 1)?;
        check_length("relations.starts", self.starts.len(), self.codes.len() + 1)?;
        check_length("relations.order", self.order.map_or(num_edges, <[i64]>::len), num_edges)?;
        if !(1..=MOST_RELATIONS).contains(&self.num_relations)
            || self.num_relations.checked_mul(num_nodes.max(self.num_ids)).is_none()
        {
            return Err(Error::TooLarge {
                name: "num_relations",
                value: self.num_relations,
            });
        }
        Ok(())
    }

    /// The draws per node of each relation at `hop`.
    pub(crate) fn of_hop(&self, hop: usize) -> Result<Vec<usize>, Error> {
        let end = (hop + 1) * self.num_relations;
        if end > self.fanouts.len() {
            return Err(Error::Length {
                name: "relations.fanouts",
                actual: self.fanouts.len(),
                expected: end,
            });
        }
        let of_hop = self.fanouts[end - self.num_relations..end].iter();
        of_hop
            .map(|fanout| match load(fanout) {
                -1 => Ok(usize::MAX),
                fanout @ 0.. => Ok(fanout as usize),
                fanout => Err(Error::Fanout { hop, fanout }),
            })
            .collect()
    }

    /// The positions of the groups of `node`, which must be one of the destinations.
    #[inline(always)]
    pub(crate) fn groups(&self, node: usize) -> Result<Range<usize>, Error> {
        let (start, end) = (load(&self.indptr[node]), load(&self.indptr[node + 1]));
        if start as u64 <= end as u64 && end as u64 <= self.codes.len() as u64 {
            return Ok(start as usize..end as usize);
        }
        Err(Error::EdgeRange {
            node,
            start,
            end,
            num_edges: self.codes.len(),
        })
    }

    /// Returns group `at` of `node`, which has its edges within `edges`.
    #[inline(always)]
    pub(crate) fn group(&self, at: usize, node: usize, edges: &Range<usize>) -> Result<Group, Error> {
        let relation = load(&self.codes[at]).wrapping_sub((node * self.num_relations) as i64);
        let (begin, end) = (load(&self.starts[at]), load(&self.starts[at + 1]));
        if relation as u64 >= self.num_relations as u64 {
            return Err(Error::OutOfRange {
                name: "relations.codes",
                position: at,
                value: relation,
                bound: self.num_relations,
                of: "relations",
            });
        }
        if begin < edges.start as i64 || end < begin || end > edges.end as i64 {
            return Err(Error::RowRange {
                at,
                node,
                begin,
                end,
                first: edges.start,
                last: edges.end,
            });
        }
        Ok(Group {
            relation: relation as usize,
            start: begin as usize,
            degree: (end - begin) as usize,
        })
    }

    /// Keys the draws of a group: the global id of its node and its relation.
    #[inline(always)]
    pub(crate) fn key(&self, relation: usize, id: u64) -> u64 {
        (relation as u64).wrapping_mul(self.num_ids as u64).wrapping_add(id)
    }

    /// Prefetches the values that `groups(node)` reads.
    #[inline(always)]
    pub(crate) fn prefetch_node(&self, node: usize) {
        prefetch(self.indptr, node);
    }

    /// Prefetches the values that `group` reads of the groups of `node`.
    #[inline(always)]
    pub(crate) fn prefetch_groups(&self, node: usize) {
        let (start, end) = (load(&self.indptr[node]) as usize, load(&self.indptr[node + 1]) as usize);
        prefetch(self.codes, start);
        prefetch(self.starts, start);
        prefetch(self.codes, end);
        prefetch(self.starts, end);
    }
}
