//! Partitions of nodes in one pass over the graph: each node goes to the part with most
//! of its neighbours that has room.

use crate::csc::Id;
use crate::generate::Permutation;
use crate::memory::{filled, reserve};
use crate::{Csc, Error};

/// The most parts.
const MAX_PARTS: usize = 1 << 24;

/// The most passes over the nodes.
const MAX_PASSES: usize = 1 << 16;

/// No part yet.
const NONE: i32 = -1;

/// How neighbours weigh against the load of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Neighbours times the free share of the part: linear deterministic greedy (Stanton
    /// and Kliot, KDD 2012).
    Ldg,
    /// Neighbours minus the marginal cost `alpha gamma load^(gamma - 1)`, with gamma =
    /// 1.5 (Tsourakakis et al., WSDM 2014).
    Fennel,
}

/// The order in which nodes arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Ascending ids.
    Id,
    /// The permutation of a key.
    Random(u64),
    /// Breadth first against the edges, from the lowest id that was not reached.
    BreadthFirst,
}

/// The parts to make.
#[derive(Debug, Clone, Copy)]
pub struct Parts {
    /// How many.
    pub number: usize,
    /// Bound on largest over mean of the parts' nodes, and of their in-edges.
    pub max_imbalance: f64,
    /// Passes over the nodes. Later passes know the neighbours that come later.
    pub passes: usize,
}

/// Assigns each node a part, `0..parts.number`.
///
/// Neighbours are the sources of a node's in-edges. The load of a part is the mean of
/// its nodes and its in-edges, in units of nodes, as in PowerLyra (Chen et al., EuroSys
/// 2015). A part has room for a node if nodes and in-edges stay within the bounds.
/// Where no part has room, the node goes to the part that is least full afterwards.
/// Nodes without in-edges come last, and even out the numbers of nodes. A part with
/// more nodes than edges, in shares of what has been placed and beyond the imbalance,
/// takes no node below the mean degree while another part has room, and the other way
/// around. Otherwise some parts would be full of nodes and the others of edges.
/// Passes after the first are restreaming (Nishimura and Ugander, KDD 2013): each node
/// leaves its part and is reassigned. Takes O(num_nodes + parts) memory.
pub fn stream_nodes<I: Id>(csc: &Csc<'_, I>, parts: Parts, score: Score, order: Order) -> Result<Vec<i32>, Error> {
    check_square(csc)?;
    parts.check()?;
    let mut stream = State::new(csc, parts, score)?;
    let order = sequence::<I>(csc, order)?;
    for _ in 0..parts.passes {
        for &node in &order {
            stream.assign(node.index());
        }
    }
    Ok(stream.part)
}

/// Checks that sources and destinations are the same nodes.
pub(crate) fn check_square<I: Id>(csc: &Csc<'_, I>) -> Result<(), Error> {
    let (num_nodes, num_sources) = (csc.num_nodes(), csc.num_sources());
    if num_sources != num_nodes {
        return Err(Error::NotSquare { num_nodes, num_sources });
    }
    Ok(())
}

impl Parts {
    /// Checks the counts. The error names the first one out of bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (name, value, high) in [
            ("num_parts", self.number, MAX_PARTS),
            ("passes", self.passes, MAX_PASSES),
        ] {
            if !(1..=high).contains(&value) {
                return Err(Error::Count {
                    name,
                    value,
                    low: 1,
                    high,
                });
            }
        }
        Ok(())
    }

    /// The most that a part may have of `total`, at least the mean rounded up.
    pub(crate) fn bound(&self, total: usize) -> u64 {
        let mean = total as f64 / self.number as f64;
        ((self.max_imbalance * mean) as u64).max(total.div_ceil(self.number) as u64)
    }
}

/// What each part has, and where each node is.
pub(crate) struct State<'a, I> {
    csc: &'a Csc<'a, I>,
    score: Score,
    pub(crate) part: Vec<i32>, // [num_nodes]
    nodes: Vec<u64>,           // [parts]
    edges: Vec<u64>,           // [parts] in-edges
    count: Vec<u32>,           // [parts] neighbours of the node at hand
    max_nodes: u64,
    max_edges: u64,
    max_gap: f64,
    placed: (u64, u64), // nodes and in-edges of all parts
    alpha: f64,
    nodes_per_edge: f64,
}

/// What is placed together: some nodes, and their in-edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Weight {
    pub nodes: u64,
    pub edges: u64,
}

impl<'a, I: Id> State<'a, I> {
    pub(crate) fn new(csc: &'a Csc<'a, I>, parts: Parts, score: Score) -> Result<Self, Error> {
        let (n, m, k) = (csc.num_nodes(), csc.num_edges(), parts.number);
        // An edge between two nodes that arrive counts once, and stands in both
        // directions: so m of Fennel is half the number of edges.
        let alpha = (k as f64).sqrt() * (m as f64 / 2.0) / (n as f64).powf(1.5);
        Ok(Self {
            csc,
            score,
            part: filled(NONE, Some(n), "num_nodes", n)?,
            nodes: filled(0, Some(k), "num_parts", k)?,
            edges: filled(0, Some(k), "num_parts", k)?,
            count: filled(0, Some(k), "num_parts", k)?,
            max_nodes: parts.bound(n).max(1),
            max_edges: parts.bound(m).max(1),
            max_gap: parts.max_imbalance - 1.0,
            placed: (0, 0),
            alpha,
            nodes_per_edge: n as f64 / m.max(1) as f64,
        })
    }

    fn assign(&mut self, node: usize) {
        self.place(node, std::iter::empty());
    }

    /// Places a node by the sources of its in-edges, and by further neighbours.
    pub(crate) fn place(&mut self, node: usize, further: impl Iterator<Item = usize>) {
        self.leave(node); // a self-loop is no neighbour
        self.see(node, further);
        let weight = self.weight(node);
        let best = self.best(weight).unwrap_or_else(|| self.least_full(weight.edges));
        self.count.fill(0);
        self.enter(node, best);
    }

    /// Returns a part with room for the nodes for which `see` has counted neighbours.
    pub(crate) fn place_together(&mut self, weight: Weight) -> Option<usize> {
        let best = self.best(weight);
        self.count.fill(0);
        best
    }

    /// Counts the neighbours of a node that have a part.
    pub(crate) fn see(&mut self, node: usize, further: impl Iterator<Item = usize>) {
        let sources = self.csc.neighbors(node).iter().map(|source| source.index());
        for neighbour in sources.chain(further) {
            let part = self.part[neighbour];
            if part != NONE {
                self.count[part.index()] += 1;
            }
        }
    }

    /// Takes a node from its part, if it has one.
    pub(crate) fn leave(&mut self, node: usize) {
        if self.part[node] != NONE {
            let (part, degree) = (self.part[node].index(), self.weight(node).edges);
            self.nodes[part] -= 1;
            self.edges[part] -= degree;
            self.placed = (self.placed.0 - 1, self.placed.1 - degree);
            self.part[node] = NONE;
        }
    }

    /// Gives a node without a part to a part.
    pub(crate) fn enter(&mut self, node: usize, part: usize) {
        let degree = self.weight(node).edges;
        self.part[node] = part as i32;
        self.nodes[part] += 1;
        self.edges[part] += degree;
        self.placed = (self.placed.0 + 1, self.placed.1 + degree);
    }

    /// A node and its in-edges.
    pub(crate) fn weight(&self, node: usize) -> Weight {
        Weight {
            nodes: 1,
            edges: self.csc.neighbors(node).len() as u64,
        }
    }

    /// The most nodes and in-edges of a part.
    pub(crate) fn most(&self) -> Weight {
        Weight {
            nodes: self.max_nodes,
            edges: self.max_edges,
        }
    }

    fn best(&self, weight: Weight) -> Option<usize> {
        let Weight { nodes, edges } = weight;
        let room = |part: usize| {
            self.nodes[part] + nodes <= self.max_nodes && (edges == 0 || self.edges[part] + edges <= self.max_edges)
        };
        self.highest(|part| room(part) && self.suits(part, weight))
            .or_else(|| self.highest(room))
    }

    /// Whether the weight leaves the nodes of a part in step with its in-edges.
    fn suits(&self, part: usize, weight: Weight) -> bool {
        let (nodes, edges) = (self.placed.0.max(1) as f64, self.placed.1.max(1) as f64);
        let gap = (self.nodes[part] as f64 / nodes - self.edges[part] as f64 / edges) * self.count.len() as f64;
        let below_mean = weight.edges as f64 * nodes <= weight.nodes as f64 * edges;
        if below_mean {
            gap <= self.max_gap
        } else {
            -gap <= self.max_gap
        }
    }

    /// The part of the highest score. Of equal scores the less full one, of equally
    /// full ones the first.
    fn highest(&self, allowed: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best: Option<(f64, f64, usize)> = None;
        for part in 0..self.count.len() {
            if allowed(part) {
                let (score, fullness) = (self.score(part), self.fullness(part, 0));
                if best.is_none_or(|(highest, least, _)| score > highest || (score == highest && fullness < least)) {
                    best = Some((score, fullness, part));
                }
            }
        }
        best.map(|(_, _, part)| part)
    }

    fn least_full(&self, degree: u64) -> usize {
        let fullness = |part: &usize| self.fullness(*part, degree);
        (0..self.count.len())
            .min_by(|a, b| fullness(a).total_cmp(&fullness(b)))
            .expect("there is a part")
    }

    fn score(&self, part: usize) -> f64 {
        let neighbours = f64::from(self.count[part]);
        match self.score {
            Score::Ldg => neighbours * (1.0 - self.fullness(part, 0)),
            Score::Fennel => neighbours - self.alpha * 1.5 * self.load(part).sqrt(),
        }
    }

    /// Nodes and in-edges, in units of nodes.
    fn load(&self, part: usize) -> f64 {
        0.5 * (self.nodes[part] as f64 + self.edges[part] as f64 * self.nodes_per_edge)
    }

    /// The larger share of its two bounds that a part has, with a node of `degree`.
    fn fullness(&self, part: usize, degree: u64) -> f64 {
        let nodes = self.nodes[part] as f64 / self.max_nodes as f64;
        nodes.max((self.edges[part] + degree) as f64 / self.max_edges as f64)
    }
}

/// All nodes in order.
fn sequence<I: Id>(csc: &Csc<'_, I>, order: Order) -> Result<Vec<I>, Error> {
    let num_nodes = csc.num_nodes();
    let mut nodes = Vec::new();
    reserve(&mut nodes, Some(num_nodes), "num_nodes", num_nodes)?;
    match order {
        Order::Id => nodes.extend((0..num_nodes).map(I::from_index)),
        Order::Random(key) => {
            let permutation = Permutation::new(num_nodes, key);
            nodes.extend((0..num_nodes).map(|index| I::from_index(permutation.apply(index))));
        }
        Order::BreadthFirst => breadth_first(csc, &mut nodes)?,
    }
    // Stable: nodes without neighbours fill up what the others have left.
    nodes.sort_by_key(|node| csc.neighbors(node.index()).is_empty());
    Ok(nodes)
}

fn breadth_first<I: Id>(csc: &Csc<'_, I>, nodes: &mut Vec<I>) -> Result<(), Error> {
    let mut reached = filled(false, Some(csc.num_nodes()), "num_nodes", csc.num_nodes())?;
    let mut at = 0;
    for root in 0..csc.num_nodes() {
        if !reached[root] {
            reached[root] = true;
            nodes.push(I::from_index(root));
        }
        while at < nodes.len() {
            for source in csc.neighbors(nodes[at].index()) {
                if !reached[source.index()] {
                    reached[source.index()] = true;
                    nodes.push(*source);
                }
            }
            at += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::from_edges;
    use proptest::prelude::*;

    const SCORES: [Score; 2] = [Score::Ldg, Score::Fennel];
    const ORDERS: [Order; 3] = [Order::Id, Order::Random(7), Order::BreadthFirst];

    fn graph(pairs: impl IntoIterator<Item = (i32, i32)>, n: usize) -> (Vec<i64>, Vec<i32>) {
        let (src, dst): (Vec<i32>, Vec<i32>) = pairs.into_iter().unzip();
        let sorted = from_edges::<i32, ()>(&src[..], &dst[..], n, n, 1).unwrap();
        (sorted.indptr, sorted.indices)
    }

    /// Nodes and in-edges of each part.
    fn loads(csc: &Csc<'_, i32>, part: &[i32], number: usize) -> (Vec<u64>, Vec<u64>) {
        let (mut nodes, mut edges) = (vec![0; number], vec![0; number]);
        for (node, part) in part.iter().enumerate() {
            nodes[part.index()] += 1;
            edges[part.index()] += csc.neighbors(node).len() as u64;
        }
        (nodes, edges)
    }

    proptest! {
        #[test]
        fn a_part_beyond_a_bound_means_that_none_had_room(
            n in 1usize..30, pairs in prop::collection::vec((0..30i32, 0..30i32), 0..120),
            number in 1usize..6, max_imbalance in 1.0f64..2.0, passes in 1usize..4,
        ) {
            let (indptr, indices) = graph(pairs.into_iter().map(|(a, b)| (a % n as i32, b % n as i32)), n);
            let csc = Csc::new(&indptr, &indices, n).unwrap();
            let parts = Parts { number, max_imbalance, passes };
            let largest = (0..n).map(|node| csc.neighbors(node).len() as u64).max().unwrap();
            for (score, order) in SCORES.into_iter().zip(ORDERS) {
                let part = stream_nodes(&csc, parts, score, order).unwrap();
                prop_assert_eq!(&part, &stream_nodes(&csc, parts, score, order).unwrap());
                prop_assert!(part.iter().all(|&part| (0..number as i32).contains(&part)));
                let (nodes, edges) = loads(&csc, &part, number);
                let beyond = |load: &[u64], bound: u64| load.iter().any(|&load| load > bound);
                if beyond(&edges, parts.bound(csc.num_edges())) || beyond(&nodes, parts.bound(n)) {
                    let (fewest, least) = (nodes.iter().min().unwrap(), edges.iter().min().unwrap());
                    let no_room = fewest + 1 >= parts.bound(n) || least + largest > parts.bound(csc.num_edges());
                    let split = nodes.iter().zip(&edges).all(|(&nodes, &edges)| {
                        nodes + 1 >= parts.bound(n) || edges + largest >= parts.bound(csc.num_edges())
                    });
                    prop_assert!(no_room || split, "{nodes:?} {edges:?}");
                }
            }
        }
    }

    #[test]
    fn cliques_are_found_whatever_their_ids() {
        // Four cliques of 16 nodes, with interleaved ids.
        let pairs = (0..64).flat_map(|a| (0..64).map(move |b| (a, b)));
        let (indptr, indices) = graph(pairs.filter(|&(a, b)| a != b && a % 4 == b % 4), 64);
        let csc = Csc::new(&indptr, &indices, 64).unwrap();
        for score in SCORES {
            for order in [Order::Id, Order::Random(7)] {
                let parts = Parts {
                    number: 4,
                    max_imbalance: 1.1,
                    passes: 2,
                };
                let part = stream_nodes(&csc, parts, score, order).unwrap();
                assert!(
                    (0..64).all(|node| part[node] == part[node % 4]),
                    "{score:?} {order:?}: {part:?}"
                );
            }
        }
    }

    #[test]
    fn every_order_visits_every_node_once_and_isolated_ones_last() {
        let (indptr, indices) = graph([(1, 2), (2, 3), (4, 3), (3, 4), (5, 5)], 7);
        let csc = Csc::new(&indptr, &indices, 7).unwrap();
        for order in ORDERS {
            let mut nodes = sequence(&csc, order).unwrap();
            assert!(
                nodes[..4].iter().all(|node| [2, 3, 4, 5].contains(node)),
                "{order:?}: {nodes:?}"
            );
            nodes.sort_unstable();
            assert_eq!(nodes, [0, 1, 2, 3, 4, 5, 6]);
        }
        assert_eq!(sequence(&csc, Order::BreadthFirst).unwrap(), [2, 3, 4, 5, 0, 1, 6]);
    }

    #[test]
    fn errors_name_the_argument() {
        let csc = Csc::new(&[0, 1, 1], &[1i32], 2).unwrap();
        let text = |number, passes| {
            let parts = Parts {
                number,
                max_imbalance: 1.1,
                passes,
            };
            stream_nodes(&csc, parts, Score::Ldg, Order::Id)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(text(0, 1), "num_parts = 0 must be within 1..=16777216");
        assert_eq!(text(2, 0), "passes = 0 must be within 1..=65536");
    }
}
