//! Vertex-cuts in one pass over the edges: each edge goes to a cell that holds edges of
//! its ends already.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::csc::Id;
use crate::memory::filled;
use crate::stream_nodes::Parts;
use crate::{Csc, Error};

/// No cluster or cell yet.
const NONE: u32 = u32::MAX;

/// How the cell of an edge is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rule {
    /// High-degree replicated first (Petroni et al., CIKM 2015): ends with edges in the
    /// cell, the end of lower degree more, plus `balance` times the free share.
    Hdrf {
        /// Weight of balance, lambda in the paper.
        balance: f64,
    },
    /// Two-phase streaming (Mayer et al., ICDE 2022): clusters of nodes first, then for
    /// each edge the better one of the two cells of its ends' clusters.
    TwoPhase,
}

/// The owner of each node and the cell of each edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VertexCut {
    /// [num_nodes] cell that owns the node.
    pub node_cell: Vec<i32>,
    /// [num_edges] cell that holds the edge.
    pub edge_cell: Vec<i32>,
}

/// Assigns each edge a cell, in the order of the graph, and each node one of the cells
/// with its edges.
///
/// No cell gets more edges than `parts` allows. Each node is owned by the cell where it
/// saves the most words: the rows that the cell need not receive, and the partial sums
/// that it need not send. A first pass counts the degrees. Takes O(num_nodes cells)
/// bits in addition to the result. `parts.passes` is not read.
pub fn stream_edges<I: Id>(csc: &Csc<'_, I>, parts: Parts, rule: Rule) -> Result<VertexCut, Error> {
    let (num_nodes, num_sources) = (csc.num_nodes(), csc.num_sources());
    if num_sources != num_nodes {
        return Err(Error::NotSquare { num_nodes, num_sources });
    }
    if num_nodes >= NONE as usize {
        return Err(Error::TooMany {
            name: "num_nodes",
            actual: num_nodes,
            limit: NONE as usize - 1,
        });
    }
    parts.check()?;
    if let Rule::Hdrf { balance } = rule
        && !(balance >= 0.0 && balance.is_finite())
    {
        return Err(Error::Amount {
            name: "balance",
            value: balance,
        });
    }
    let mut cells = Cells::new(csc, parts)?;
    match rule {
        Rule::Hdrf { balance } => cells.hdrf(csc, balance),
        Rule::TwoPhase => cells.two_phase(csc)?,
    }
    let node_cell = cells.owners(parts.bound(num_nodes))?;
    Ok(VertexCut {
        node_cell,
        edge_cell: cells.edge_cell,
    })
}

/// The edges of each cell, and the nodes at their ends.
struct Cells {
    degree: Vec<u32>, // [num_nodes] in-edges and out-edges
    load: Vec<u64>,   // [cells] edges
    bound: u64,
    words: usize,        // 64 bits for the cells of a node
    reads: Vec<u64>,     // [num_nodes, words] cells with an edge that leaves the node
    writes: Vec<u64>,    // [num_nodes, words] cells with an edge that enters the node
    edge_cell: Vec<i32>, // [num_edges], none yet beyond the stream
}

impl Cells {
    fn new<I: Id>(csc: &Csc<'_, I>, parts: Parts) -> Result<Self, Error> {
        let (n, m, cells) = (csc.num_nodes(), csc.num_edges(), parts.number);
        let words = cells.div_ceil(64);
        let mut degree = filled(0u32, Some(n), "num_nodes", n)?;
        for (node, degree) in degree.iter_mut().enumerate() {
            *degree = csc.neighbors(node).len() as u32;
        }
        for source in csc.indices() {
            degree[source.index()] += 1;
        }
        Ok(Self {
            degree,
            load: filled(0, Some(cells), "num_parts", cells)?,
            bound: parts.bound(m),
            words,
            reads: filled(0, n.checked_mul(words), "num_parts", cells)?,
            writes: filled(0, n.checked_mul(words), "num_parts", cells)?,
            edge_cell: filled(-1, Some(m), "num_edges", m)?,
        })
    }

    fn hdrf<I: Id>(&mut self, csc: &Csc<'_, I>, balance: f64) {
        for (edge, source, destination) in edges(csc) {
            let (most, least) = self
                .load
                .iter()
                .fold((0, u64::MAX), |(a, b), &load| (a.max(load), b.min(load)));
            let score = |cell: usize| {
                self.kept(source, destination, cell)
                    + balance * (most - self.load[cell]) as f64 / (1 + most - least) as f64
            };
            let with_room = (0..self.load.len()).filter(|&cell| self.load[cell] < self.bound);
            self.put(edge, source, destination, best(with_room, score));
        }
    }

    fn two_phase<I: Id>(&mut self, csc: &Csc<'_, I>) -> Result<(), Error> {
        let clusters = Clusters::of(csc, &self.degree, self.load.len())?;
        let cell_of = clusters.pack(self.load.len());
        let place = |node: usize| cell_of[clusters.of[node] as usize] as usize;
        for (edge, source, destination) in edges(csc) {
            if place(source) == place(destination) && self.load[place(source)] < self.bound {
                self.put(edge, source, destination, place(source));
            }
        }
        for (edge, source, destination) in edges(csc) {
            if self.edge_cell[edge] < 0 {
                let volume = |node: usize| clusters.volume[clusters.of[node] as usize] as f64;
                let both = volume(source) + volume(destination);
                let score = |cell: usize| {
                    let own = |node: usize| if place(node) == cell { volume(node) / both } else { 0.0 };
                    self.kept(source, destination, cell) + own(source) + own(destination)
                };
                let two = [place(source), place(destination)].into_iter();
                let with_room: Vec<usize> = two.filter(|&cell| self.load[cell] < self.bound).collect();
                let cell = if with_room.is_empty() {
                    self.emptiest()
                } else {
                    best(with_room.into_iter(), score)
                };
                self.put(edge, source, destination, cell);
            }
        }
        Ok(())
    }

    /// The ends that have edges in `cell` already: 1 for each, and up to 1 more for an
    /// end of low degree.
    fn kept(&self, source: usize, destination: usize, cell: usize) -> f64 {
        let (a, b) = (f64::from(self.degree[source]), f64::from(self.degree[destination]));
        let mut kept = 0.0;
        if self.has(source, cell) {
            kept += 1.0 + b / (a + b);
        }
        if self.has(destination, cell) {
            kept += 1.0 + a / (a + b);
        }
        kept
    }

    fn has(&self, node: usize, cell: usize) -> bool {
        let word = node * self.words + cell / 64;
        (self.reads[word] | self.writes[word]) >> (cell % 64) & 1 == 1
    }

    fn put(&mut self, edge: usize, source: usize, destination: usize, cell: usize) {
        self.edge_cell[edge] = cell as i32;
        self.load[cell] += 1;
        self.reads[source * self.words + cell / 64] |= 1 << (cell % 64);
        self.writes[destination * self.words + cell / 64] |= 1 << (cell % 64);
    }

    fn emptiest(&self) -> usize {
        (0..self.load.len())
            .min_by_key(|&cell| self.load[cell])
            .expect("there is a cell")
    }

    /// Gives each node to a cell where it costs fewest words, of equal ones to the cell
    /// with fewest nodes. Nodes without edges come last, and fill up.
    fn owners(&self, bound: u64) -> Result<Vec<i32>, Error> {
        let num_nodes = self.degree.len();
        let mut owner = filled(0, Some(num_nodes), "num_nodes", num_nodes)?;
        let mut owned = vec![0u64; self.load.len()];
        let alone = |node: &usize| self.degree[*node] == 0;
        for node in (0..num_nodes)
            .filter(|node| !alone(node))
            .chain((0..num_nodes).filter(alone))
        {
            let saved = |cell: usize| {
                let (word, bit) = (node * self.words + cell / 64, cell % 64);
                (self.reads[word] >> bit & 1) + (self.writes[word] >> bit & 1)
            };
            let cell = (0..owned.len())
                .filter(|&cell| owned[cell] < bound)
                .max_by_key(|&cell| (saved(cell), u64::MAX - owned[cell], usize::MAX - cell))
                .expect("the bound is at least the mean");
            owner[node] = cell as i32;
            owned[cell] += 1;
        }
        Ok(owner)
    }
}

/// Clusters of nodes (Hollocou et al., 2017) of bounded volume, the sum of degrees.
struct Clusters {
    of: Vec<u32>,     // [num_nodes]
    volume: Vec<u64>, // [clusters]
}

impl Clusters {
    /// Makes clusters in one pass: the end in the cluster of less volume joins the
    /// other end's cluster.
    fn of<I: Id>(csc: &Csc<'_, I>, degree: &[u32], cells: usize) -> Result<Self, Error> {
        let num_nodes = csc.num_nodes();
        let mut of = filled(0, Some(num_nodes), "num_nodes", num_nodes)?;
        of.iter_mut()
            .enumerate()
            .for_each(|(node, cluster)| *cluster = node as u32);
        let mut volume: Vec<u64> = degree.iter().copied().map(u64::from).collect();
        let most = (2 * csc.num_edges() / cells) as u64;
        for (_, source, destination) in edges(csc) {
            let (a, b) = (of[source] as usize, of[destination] as usize);
            if a != b && volume[a] <= most && volume[b] <= most {
                let (node, from, to) = if volume[a] <= volume[b] {
                    (source, a, b)
                } else {
                    (destination, b, a)
                };
                let moved = u64::from(degree[node]);
                if volume[to] + moved <= most {
                    volume[from] -= moved;
                    volume[to] += moved;
                    of[node] = to as u32;
                }
            }
        }
        Ok(Self { of, volume })
    }

    /// Gives each cluster, from the largest on, to the cell of least volume.
    fn pack(&self, cells: usize) -> Vec<u32> {
        let mut order: Vec<usize> = (0..self.volume.len())
            .filter(|&cluster| self.volume[cluster] > 0)
            .collect();
        order.sort_by_key(|&cluster| (u64::MAX - self.volume[cluster], cluster));
        let mut heap: BinaryHeap<_> = (0..cells as u32).map(|cell| Reverse((0u64, cell))).collect();
        let mut cell_of = vec![0; self.volume.len()];
        for cluster in order {
            let Reverse((volume, cell)) = heap.pop().expect("there is a cell");
            cell_of[cluster] = cell;
            heap.push(Reverse((volume + self.volume[cluster], cell)));
        }
        cell_of
    }
}

/// Position, source and destination of each edge in order.
fn edges<'a, I: Id>(csc: &Csc<'a, I>) -> impl Iterator<Item = (usize, usize, usize)> + use<'a, I> {
    let csc = *csc;
    (0..csc.num_nodes()).flat_map(move |node| {
        let first = csc.indptr()[node] as usize;
        let sources = csc.neighbors(node).iter().enumerate();
        sources.map(move |(at, source)| (first + at, source.index(), node))
    })
}

/// The first cell of the highest score.
fn best(cells: impl Iterator<Item = usize>, score: impl Fn(usize) -> f64) -> usize {
    let (cell, _) = cells.fold((usize::MAX, f64::NEG_INFINITY), |(best, highest), cell| {
        let score = score(cell);
        if score > highest {
            (cell, score)
        } else {
            (best, highest)
        }
    });
    debug_assert!(cell != usize::MAX, "the bound is at least the mean");
    cell
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::from_edges;
    use proptest::prelude::*;

    const RULES: [Rule; 2] = [Rule::Hdrf { balance: 1.1 }, Rule::TwoPhase];

    fn parts(number: usize, max_imbalance: f64) -> Parts {
        Parts {
            number,
            max_imbalance,
            passes: 1,
        }
    }

    fn largest(cells: &[i32], number: usize) -> usize {
        (0..number as i32)
            .map(|cell| cells.iter().filter(|&&c| c == cell).count())
            .max()
            .unwrap()
    }

    proptest! {
        #[test]
        fn nodes_and_edges_stay_within_the_bounds(
            n in 1usize..20, pairs in prop::collection::vec((0..20i32, 0..20i32), 0..80),
            number in 1usize..6, bound in 1.0f64..2.0,
        ) {
            let (src, dst): (Vec<i32>, Vec<i32>) =
                pairs.into_iter().map(|(a, b)| (a % n as i32, b % n as i32)).unzip();
            let sorted = from_edges::<i32, ()>(&src[..], &dst[..], n, n, 1).unwrap();
            let csc = Csc::new(&sorted.indptr, &sorted.indices, n).unwrap();
            for rule in RULES {
                let cut = stream_edges(&csc, parts(number, bound), rule).unwrap();
                let most = |total: usize| ((bound * total as f64 / number as f64) as usize).max(total.div_ceil(number));
                prop_assert!(largest(&cut.edge_cell, number) <= most(csc.num_edges()));
                prop_assert!(largest(&cut.node_cell, number) <= most(n));
                prop_assert!(cut.edge_cell.iter().all(|&cell| (0..number as i32).contains(&cell)));
            }
        }
    }

    #[test]
    fn a_weight_that_orders_nothing_is_refused() {
        let csc = Csc::new(&[0, 1], &[0], 1).unwrap();
        for balance in [f64::NAN, f64::INFINITY, -1.0] {
            let refused = stream_edges(&csc, parts(1, 1.0), Rule::Hdrf { balance }).unwrap_err();
            assert_eq!(
                refused.to_string(),
                format!("balance = {balance} is not a finite number of at least 0")
            );
        }
    }

    #[test]
    fn cliques_stay_whole() {
        // Four cliques of eight nodes, with interleaved ids.
        let joined = |a: i32, b: i32| a != b && a % 4 == b % 4;
        let pairs = (0..32).flat_map(|a| (0..32).map(move |b| (a, b)));
        let (src, dst): (Vec<i32>, Vec<i32>) = pairs.filter(|&(a, b)| joined(a, b)).unzip();
        let sorted = from_edges::<i32, ()>(&src[..], &dst[..], 32, 32, 1).unwrap();
        let csc = Csc::new(&sorted.indptr, &sorted.indices, 32).unwrap();
        let cut = stream_edges(&csc, parts(4, 1.0), Rule::TwoPhase).unwrap();
        for (edge, _, destination) in edges(&csc) {
            assert_eq!(cut.edge_cell[edge], cut.node_cell[destination]);
            assert_eq!(cut.node_cell[destination], cut.node_cell[destination % 4]);
        }
    }

    #[test]
    fn a_hub_is_replicated_before_its_leaves() {
        let (src, dst): (Vec<i32>, Vec<i32>) = (1..41).flat_map(|leaf| [(0, leaf), (leaf, 0)]).unzip();
        let sorted = from_edges::<i32, ()>(&src[..], &dst[..], 41, 41, 1).unwrap();
        let csc = Csc::new(&sorted.indptr, &sorted.indices, 41).unwrap();
        let cut = stream_edges(&csc, parts(4, 2.0), RULES[0]).unwrap();
        let split = (1..41usize).filter(|&leaf| {
            let mut cells = edges(&csc)
                .filter(|e| e.1 == leaf || e.2 == leaf)
                .map(|e| cut.edge_cell[e.0]);
            let first = cells.next();
            cells.any(|cell| Some(cell) != first)
        });
        assert!(split.count() <= 3);
    }

    #[test]
    fn errors_name_the_argument() {
        let csc = Csc::new(&[0, 1], &[1i32], 2).unwrap();
        let error = stream_edges(&csc, parts(2, 1.0), RULES[0]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the graph has 2 sources and 1 destinations")
        );
        let square = Csc::new(&[0, 1, 1], &[1i32], 2).unwrap();
        let error = stream_edges(&square, parts(0, 1.0), RULES[0]).unwrap_err();
        assert_eq!(error.to_string(), "num_parts = 0 must be within 1..=16777216");
    }
}
