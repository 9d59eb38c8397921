//! Where to hold the edges between two parts, so that the fewest rows travel.

use std::ops::Range;

use crate::csc::{Id, check_ids};
use crate::memory::filled;
use crate::{Csc, Error};

/// No node, or no cell yet.
const NONE: u32 = u32::MAX;

/// The most cells.
const MAX_CELLS: usize = 1 << 12;

/// Finds the cell of each edge: the owner's of its source, or the owner's of its
/// destination.
///
/// An edge u -> v between two cells needs the row of u at v's cell, or a partial sum of
/// v from u's cell. Rows and partial sums serve all edges of the two cells, so the
/// fewest words are a least vertex cover of the bipartite graph of these edges. König's
/// theorem makes a least cover from a largest matching (Hopcroft and Karp, SIAM J.
/// Comput. 1973). An edge of which both ends are in the cover goes to the cell with
/// fewer edges.
///
/// A cell with more than `max_imbalance` times the mean number of edges returns some:
/// its edges to another cell move back to their destinations' cells, those that cost
/// the fewest words per edge first. Takes O(sqrt(num_nodes) num_edges) time at worst,
/// and O(num_nodes) memory in addition to the result and the edges of one cell.
pub fn cover_cells<I: Id>(
    csc: &Csc<'_, I>,
    node_cell: &[i32],
    num_cells: usize,
    max_imbalance: f64,
) -> Result<Vec<i32>, Error> {
    let (num_nodes, num_sources) = (csc.num_nodes(), csc.num_sources());
    if num_sources != num_nodes {
        return Err(Error::NotSquare { num_nodes, num_sources });
    }
    if node_cell.len() != num_nodes {
        let actual = node_cell.len();
        return Err(Error::Length {
            name: "node_cell",
            actual,
            expected: num_nodes,
        });
    }
    if !(1..=MAX_CELLS).contains(&num_cells) {
        return Err(Error::Count {
            name: "num_cells",
            value: num_cells,
            low: 1,
            high: MAX_CELLS,
        });
    }
    if num_nodes >= NONE as usize {
        return Err(Error::TooMany {
            name: "num_nodes",
            actual: num_nodes,
            limit: NONE as usize - 1,
        });
    }
    check_ids("node_cell", node_cell, num_cells, "cells")?;
    let mut cover = Cover {
        csc,
        node_cell,
        edge_cell: filled(-1, Some(csc.num_edges()), "num_edges", csc.num_edges())?,
        load: filled(0, Some(num_cells), "num_cells", num_cells)?,
        place: filled(NONE, Some(num_nodes), "num_nodes", num_nodes)?,
        pairs: Vec::new(),
    };
    let mut owned = filled(Vec::new(), Some(num_cells), "num_cells", num_cells)?;
    for (node, cell) in node_cell.iter().enumerate() {
        owned[cell.index()].push(node as u32);
    }
    for (cell, nodes) in owned.iter().enumerate() {
        cover.hold_in_edges(cell, nodes);
    }
    let mean = csc.num_edges() as f64 / num_cells as f64;
    cover.give_back(&owned, (max_imbalance * mean) as u64);
    cover.hold_the_rest();
    Ok(cover.edge_cell)
}

struct Cover<'a, I> {
    csc: &'a Csc<'a, I>,
    node_cell: &'a [i32],
    edge_cell: Vec<i32>, // [num_edges] -1: both ends are in the cover
    load: Vec<u64>,      // [num_cells] edges
    place: Vec<u32>,     // [num_nodes] number of a source in the pair of cells at hand
    pairs: Vec<Pair>,    // of which `from` holds edges
}

/// What the edges from one cell to another cost if their destinations hold them.
struct Pair {
    from: usize,
    to: usize,
    moved: u64, // edges that `from` holds no more
    lost: u64,  // words
}

/// The edges from one cell to another.
#[derive(Default, Clone)]
struct Crossing {
    edges: Vec<usize>,      // in order of destinations
    destinations: Vec<u32>, // distinct
    starts: Vec<usize>,     // [destinations] of `edges`
}

impl<I: Id> Cover<'_, I> {
    fn hold_in_edges(&mut self, cell: usize, nodes: &[u32]) {
        let mut crossing = vec![Crossing::default(); self.load.len()];
        for &node in nodes {
            for edge in edges_of(self.csc, node as usize) {
                let from = self.node_cell[self.csc.indices()[edge].index()].index();
                if from == cell {
                    self.hold(edge, cell);
                    continue;
                }
                let pair = &mut crossing[from];
                if pair.destinations.last() != Some(&node) {
                    pair.destinations.push(node);
                    pair.starts.push(pair.edges.len());
                }
                pair.edges.push(edge);
            }
        }
        for (from, pair) in crossing.into_iter().enumerate() {
            self.hold_crossing(from, cell, pair);
        }
    }

    fn hold_crossing(&mut self, from: usize, to: usize, mut pair: Crossing) {
        pair.starts.push(pair.edges.len());
        let mut sources = Vec::new();
        let mut ends = Vec::with_capacity(pair.edges.len());
        for edge in &pair.edges {
            let source = self.csc.indices()[*edge].index();
            if self.place[source] == NONE {
                self.place[source] = sources.len() as u32;
                sources.push(source);
            }
            ends.push(self.place[source]);
        }
        let (sums, rows) = Matching::largest(&pair.starts, &ends, sources.len()).cover();
        for (at, sent) in sums.iter().enumerate() {
            for position in pair.starts[at]..pair.starts[at + 1] {
                match (sent, rows[ends[position] as usize]) {
                    (true, false) => self.hold(pair.edges[position], from),
                    (false, true) => self.hold(pair.edges[position], to),
                    _ => {}
                }
            }
        }
        let moved = pair
            .edges
            .iter()
            .filter(|&&edge| self.edge_cell[edge] == from as i32)
            .count() as u64;
        if moved > 0 {
            let words = sums.iter().chain(&rows).filter(|&&covered| covered).count();
            let lost = (sources.len() - words) as u64;
            self.pairs.push(Pair { from, to, moved, lost });
        }
        sources.into_iter().for_each(|source| self.place[source] = NONE);
    }

    /// Holds edges at their destinations again until no cell has more than `bound`.
    fn give_back(&mut self, owned: &[Vec<u32>], bound: u64) {
        while let Some(full) = (0..self.load.len()).max_by_key(|&cell| self.load[cell])
            && self.load[full] > bound
        {
            let gains = |pair: &Pair| pair.from == full && self.load[pair.to] + pair.moved < self.load[full];
            let price = |pair: &Pair| pair.lost as f64 / pair.moved as f64;
            let best = (0..self.pairs.len())
                .filter(|&at| gains(&self.pairs[at]))
                .min_by(|&a, &b| price(&self.pairs[a]).total_cmp(&price(&self.pairs[b])));
            let Some(best) = best else { break };
            let Pair { from, to, moved, .. } = self.pairs.swap_remove(best);
            self.load[from] -= moved;
            for &node in &owned[to] {
                for edge in edges_of(self.csc, node as usize) {
                    if self.node_cell[self.csc.indices()[edge].index()].index() == from
                        && self.edge_cell[edge] != to as i32
                    {
                        self.hold(edge, to);
                    }
                }
            }
        }
    }

    fn hold(&mut self, edge: usize, cell: usize) {
        self.edge_cell[edge] = cell as i32;
        self.load[cell] += 1;
    }

    /// Holds the edges for which both the row and the partial sum travel anyway.
    fn hold_the_rest(&mut self) {
        for node in 0..self.csc.num_nodes() {
            let to = self.node_cell[node].index();
            for edge in edges_of(self.csc, node) {
                if self.edge_cell[edge] < 0 {
                    let from = self.node_cell[self.csc.indices()[edge].index()].index();
                    self.hold(edge, if self.load[from] < self.load[to] { from } else { to });
                }
            }
        }
    }
}

/// The positions of the in-edges of `node`.
fn edges_of<I: Id>(csc: &Csc<'_, I>, node: usize) -> Range<usize> {
    csc.indptr()[node] as usize..csc.indptr()[node + 1] as usize
}

/// A matching of a bipartite graph between left and right nodes.
struct Matching<'a> {
    starts: &'a [usize], // [lefts + 1] edges of each left node
    ends: &'a [u32],     // the right node of each edge
    left: Vec<u32>,      // [lefts] the right node matched, or NONE
    right: Vec<u32>,     // [rights]
    level: Vec<u32>,     // [lefts] steps from a free left node
    next: Vec<usize>,    // [lefts] the edge to try next
}

impl<'a> Matching<'a> {
    fn largest(starts: &'a [usize], ends: &'a [u32], rights: usize) -> Self {
        let lefts = starts.len() - 1;
        let mut matching = Self {
            starts,
            ends,
            left: vec![NONE; lefts],
            right: vec![NONE; rights],
            level: vec![NONE; lefts],
            next: starts[..lefts].to_vec(),
        };
        matching.begin();
        while matching.layer() {
            matching.next.copy_from_slice(&starts[..lefts]);
            for root in 0..lefts as u32 {
                if matching.left[root as usize] == NONE {
                    matching.augment(root);
                }
            }
        }
        matching
    }

    /// Matches each left node with its first free right node.
    fn begin(&mut self) {
        for left in 0..self.left.len() {
            let ends = &self.ends[self.starts[left]..self.starts[left + 1]];
            if let Some(&free) = ends.iter().find(|&&end| self.right[end as usize] == NONE) {
                (self.left[left], self.right[free as usize]) = (free, left as u32);
            }
        }
    }

    /// Counts the steps from free left nodes along alternating paths. Says whether a
    /// free right node can be reached.
    fn layer(&mut self) -> bool {
        self.level.fill(NONE);
        let mut queue: Vec<u32> = (0..self.left.len() as u32)
            .filter(|&left| self.left[left as usize] == NONE)
            .collect();
        queue.iter().for_each(|&left| self.level[left as usize] = 0);
        let (mut at, mut found) = (0, false);
        while at < queue.len() {
            let left = queue[at] as usize;
            for &end in &self.ends[self.starts[left]..self.starts[left + 1]] {
                let back = self.right[end as usize];
                if back == NONE {
                    found = true;
                } else if self.level[back as usize] == NONE {
                    self.level[back as usize] = self.level[left] + 1;
                    queue.push(back);
                }
            }
            at += 1;
        }
        found
    }

    /// Flips a path from the free left node `root` to a free right node, one level a
    /// step, if there is one.
    fn augment(&mut self, root: u32) {
        let mut path = vec![root];
        while let Some(&left) = path.last() {
            let left = left as usize;
            if self.next[left] == self.starts[left + 1] {
                self.level[left] = NONE; // a dead end
                path.pop();
                continue;
            }
            let back = self.right[self.ends[self.next[left]] as usize];
            self.next[left] += 1;
            if back == NONE {
                for left in path {
                    let end = self.ends[self.next[left as usize] - 1];
                    (self.left[left as usize], self.right[end as usize]) = (end, left);
                }
                return;
            }
            if self.level[back as usize] == self.level[left].wrapping_add(1) {
                path.push(back);
            }
        }
    }

    /// Which left and right nodes are in a least vertex cover, after the last `layer`.
    /// These are the left nodes that no alternating path reaches, and the right nodes
    /// that a path reaches.
    fn cover(&self) -> (Vec<bool>, Vec<bool>) {
        let left: Vec<bool> = self.level.iter().map(|&level| level == NONE).collect();
        let mut right = vec![false; self.right.len()];
        for (at, _) in left.iter().enumerate().filter(|&(_, &covered)| !covered) {
            for &end in &self.ends[self.starts[at]..self.starts[at + 1]] {
                right[end as usize] = true;
            }
        }
        (left, right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::from_edges;
    use proptest::prelude::*;

    /// Rows and partial sums that travel: (0, source, cell) and (1, destination, cell).
    fn words(csc: &Csc<'_, i32>, node_cell: &[i32], edge_cell: &[i32]) -> usize {
        let mut moved = Vec::new();
        for node in 0..csc.num_nodes() {
            for edge in edges_of(csc, node) {
                let (source, cell) = (csc.indices()[edge].index(), edge_cell[edge]);
                moved.extend((node_cell[source] != cell).then_some((0, source, cell)));
                moved.extend((node_cell[node] != cell).then_some((1, node, node_cell[node] * 100 + cell)));
            }
        }
        moved.sort_unstable();
        moved.dedup();
        moved.len()
    }

    fn ends(csc: &Csc<'_, i32>, node_cell: &[i32]) -> Vec<[i32; 2]> {
        (0..csc.num_nodes())
            .flat_map(|node| edges_of(csc, node).map(move |edge| (node, edge)))
            .map(|(node, edge)| [node_cell[csc.indices()[edge].index()], node_cell[node]])
            .collect()
    }

    prop_compose! {
        fn case(cells: i32)(n in 1usize..7)
            (edges in prop::collection::vec((0..n as i32, 0..n as i32), 0..10),
             node_cell in prop::collection::vec(0..cells, n), n in Just(n))
            -> (usize, Vec<(i32, i32)>, Vec<i32>) {
            (n, edges, node_cell)
        }
    }

    proptest! {
        #[test]
        fn no_choice_of_ends_moves_fewer_words((n, edges, node_cell) in case(3)) {
            let (src, dst): (Vec<i32>, Vec<i32>) = edges.into_iter().unzip();
            let sorted = from_edges::<i32, ()>(&src[..], &dst[..], n, n, 1).unwrap();
            let csc = Csc::new(&sorted.indptr, &sorted.indices, n).unwrap();
            let ends = ends(&csc, &node_cell);
            let found = cover_cells(&csc, &node_cell, 3, f64::INFINITY).unwrap();
            prop_assert!(found.iter().zip(&ends).all(|(cell, ends)| ends.contains(cell)));
            let least = (0..1usize << ends.len())
                .map(|choice| ends.iter().enumerate().map(|(at, ends)| ends[choice >> at & 1]).collect::<Vec<_>>())
                .map(|cells| words(&csc, &node_cell, &cells))
                .min();
            prop_assert_eq!(Some(words(&csc, &node_cell, &found)), least);
        }

        #[test]
        fn a_bound_on_edges_costs_words_and_never_more_than_destinations(
            (n, edges, node_cell) in case(3), bound in 1.0f64..2.0,
        ) {
            let (src, dst): (Vec<i32>, Vec<i32>) = edges.into_iter().unzip();
            let sorted = from_edges::<i32, ()>(&src[..], &dst[..], n, n, 1).unwrap();
            let csc = Csc::new(&sorted.indptr, &sorted.indices, n).unwrap();
            let ends = ends(&csc, &node_cell);
            let at_destinations: Vec<i32> = ends.iter().map(|ends| ends[1]).collect();
            let found = cover_cells(&csc, &node_cell, 3, bound).unwrap();
            prop_assert!(found.iter().zip(&ends).all(|(cell, ends)| ends.contains(cell)));
            prop_assert!(words(&csc, &node_cell, &found) <= words(&csc, &node_cell, &at_destinations));
        }
    }

    #[test]
    fn leaves_of_a_hub_send_one_partial_sum_and_get_one_row() {
        // A star, both ways: node 0 in cell 0, its 40 leaves in cells 0 and 1.
        let (src, dst): (Vec<i32>, Vec<i32>) = (1..41).flat_map(|leaf| [(0, leaf), (leaf, 0)]).unzip();
        let sorted = from_edges::<i32, ()>(&src[..], &dst[..], 41, 41, 1).unwrap();
        let csc = Csc::new(&sorted.indptr, &sorted.indices, 41).unwrap();
        let node_cell: Vec<i32> = (0..41).map(|node| node % 2).collect();
        let found = cover_cells(&csc, &node_cell, 2, 1.1).unwrap();
        assert_eq!(words(&csc, &node_cell, &found), 2);
        assert_eq!(found.iter().filter(|&&cell| cell == 0).count(), 40);
    }

    #[test]
    fn errors_name_the_argument() {
        let csc = Csc::new(&[0, 1, 1], &[1i32], 2).unwrap();
        let text = |cells: &[i32], number| cover_cells(&csc, cells, number, 1.0).unwrap_err().to_string();
        assert_eq!(text(&[0], 2), "node_cell has 1 entries, expected 2");
        assert_eq!(text(&[0, 2], 2), "node_cell[1] = 2 is out of range for 2 cells");
        assert_eq!(text(&[0, 0], 0), "num_cells = 0 must be within 1..=4096");
    }
}
