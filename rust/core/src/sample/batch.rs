//! The results of sampling: one hop in global ids, and a batch of all hops.

use crate::csc::Id;
use crate::memory::List;

/// One hop with global ids.
#[derive(Debug, Clone, PartialEq)]
pub struct Hop<I: Id> {
    /// [num_nodes + 1] where the edges of each node begin.
    pub indptr: List<i64>,
    /// [num_edges] global ids of the sources.
    pub sources: List<I>,
    /// [num_edges] positions in the graph's `indices`, or ids by
    /// [`Relations::order`](crate::relations::Relations::order).
    pub edge_ids: List<i64>,
    /// [num_edges] importance weights, if asked for.
    pub weight: Option<List<f32>>,
    /// [num_edges] relations, if nodes draw by relation.
    pub relation: Option<List<i16>>,
}

/// A sampled batch: the blocks of all hops over one list of nodes. Each block uses the
/// front of the list.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch<I: Id> {
    /// [num_nodes] global ids in the order in which they were found. The seeds come
    /// first.
    pub nodes: List<I>,
    /// [num_hops + 1] how many nodes were known when each hop began, and at the end.
    pub known: Vec<usize>,
    /// [num_rows + 1] where the edges of each row begin. If nodes draw once, hop h
    /// reads rows `0..known[h]`. If nodes redraw at every hop, each hop's rows follow
    /// those of the previous hop.
    pub indptr: List<i64>,
    /// [num_edges] positions in `nodes` of the sources.
    pub indices: List<I>,
    /// [num_edges] as in [`Hop`].
    pub edge_ids: List<i64>,
    /// [num_edges] importance weights, if asked for.
    pub weight: Option<List<f32>>,
    /// [num_edges] relations, if nodes draw by relation.
    pub relation: Option<List<i16>>,
}

/// The nodes of one type in a batch, in the order in which they were found. The seeds
/// come first.
#[derive(Debug, Clone, PartialEq)]
pub struct Nodes<I: Id> {
    /// [num_nodes] global ids.
    pub nodes: List<I>,
    /// [num_nodes] trees of the nodes, empty if there is one tree.
    pub trees: Vec<u32>,
    /// [num_hops + 1] how many nodes were known when each hop began, and at the end.
    pub known: Vec<usize>,
}

/// A sampled batch of a graph with several types.
#[derive(Debug, Clone, PartialEq)]
pub struct Subgraph<I: Id> {
    /// [num_node_types]
    pub nodes: Vec<Nodes<I>>,
    /// [num_edge_types] edges with positions in `nodes`. Row i is node i of the type of
    /// their destinations.
    pub edges: Vec<Hop<I>>,
    /// [num_trees] the time of each tree, empty unless paths bound what nodes see.
    pub tree_times: Vec<i64>,
}

/// The memory that a batch sets aside, in elements.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub nodes: usize,
    pub rows: usize,
    pub edges: usize,
}

impl Sizes {
    /// The sizes for the batch after one with these nodes and edges: a little more.
    pub fn after<I: Id>(nodes: Option<&Nodes<I>>, edges: Option<&Hop<I>>) -> Self {
        let more = |len: usize| len + len / 8;
        Self {
            nodes: more(nodes.map_or(0, |of| of.nodes.len())),
            rows: more(edges.map_or(0, |of| of.indptr.len())),
            edges: more(edges.map_or(0, |of| of.edge_ids.len())),
        }
    }
}
