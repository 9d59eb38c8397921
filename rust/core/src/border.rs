//! Moves nodes at the border of their region to the neighbouring region that lowers the
//! words of an aggregation.

use crate::csc::{Id, check_ids};
use crate::{Csc, Error, edges};

/// The most passes over the nodes. A pass is linear in the edges, and few nodes move
/// after the first passes.
const MAX_PASSES: usize = 10;

/// The most ranks of a grid.
const MAX_RANKS: usize = 1 << 24;

/// The process grid: `rank = cell * slices + slice`, cell i at row `i % rows`, column
/// `i / rows`.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// Destinations are divided into this many rows.
    pub rows: usize,
    /// Sources are divided into this many columns.
    pub cols: usize,
    /// Ranks of each cell.
    pub slices: usize,
}

impl Grid {
    pub(crate) const fn cells(&self) -> usize {
        self.rows * self.cols
    }

    /// The number of ranks. The error names a grid of none or of too many.
    pub(crate) fn check(&self) -> Result<usize, Error> {
        let ranks = self.rows.checked_mul(self.cols);
        let ranks = ranks.and_then(|cells| cells.checked_mul(self.slices));
        let ranks = ranks.unwrap_or(usize::MAX);
        if (1..=MAX_RANKS).contains(&ranks) {
            return Ok(ranks);
        }
        Err(Error::Count {
            name: "grid",
            value: ranks,
            low: 1,
            high: MAX_RANKS,
        })
    }

    const fn place(&self, cell: usize) -> (usize, usize) {
        (cell % self.rows, cell / self.rows)
    }
}

/// Improves `node_rank` in place and returns the number of moves. A node moves only
/// where this lowers the words that all ranks receive in one aggregation, counted
/// exactly: for each node the other rows among its destinations (gather) and the other
/// columns among its sources (reduce). No rank's nodes and no cell's edges grow beyond
/// `max_imbalance` times the mean, or beyond the largest there was.
///
/// This is size-constrained label propagation (Meyerhenke, Sanders, Schulz, SEA 2014)
/// with the gain in connectivity, as in Mt-KaHyPar (Gottesbueren et al., ALENEX 2021),
/// but in order of node ids, so that there is one result. Takes O((rows + cols) *
/// num_nodes) memory.
pub fn min_words<I: Id>(
    csc: Csc<'_, I>,
    grid: Grid,
    node_rank: &mut [i32],
    max_imbalance: f64,
) -> Result<usize, Error> {
    if node_rank.len() != csc.num_nodes() {
        return Err(Error::Length {
            name: "node_rank",
            actual: node_rank.len(),
            expected: csc.num_nodes(),
        });
    }
    check_ids("node_rank", node_rank, grid.check()?, "workers")?;
    let turned = edges::transpose::<I, ()>(csc, 1)?;
    let reversed = Csc::new(&turned.indptr, &turned.indices, csc.num_nodes())?;
    let mut regions = Regions::new(csc, reversed, grid, node_rank, max_imbalance)?;
    let mut moves = 0;
    for _ in 0..MAX_PASSES {
        let moved = (0..csc.num_nodes()).filter(|&node| regions.improve(node)).count();
        moves += moved;
        if moved == 0 || moved < csc.num_nodes() / 1000 {
            break;
        }
    }
    Ok(moves)
}

/// One direction of the plane: rows with the out-edges of each node, or columns with
/// its in-edges.
struct Axis {
    width: usize,
    place: Vec<u32>, // [num_nodes] where on this axis each node is owned
    /// [num_nodes, width] edges of each node by the place of their other end.
    count: Vec<u32>,
}

impl Axis {
    fn new<I: Id>(width: usize, place: Vec<u32>, edges: Csc<'_, I>) -> Result<Self, Error> {
        let (name, value) = ("num_nodes", place.len());
        let mut count = Vec::new();
        let len = value.checked_mul(width).ok_or(Error::TooLarge { name, value })?;
        count
            .try_reserve_exact(len)
            .map_err(|_| Error::TooLarge { name, value })?;
        count.resize(len, 0);
        for node in 0..place.len() {
            for end in edges.neighbors(node) {
                count[node * width + place[end.index()] as usize] += 1;
            }
        }
        Ok(Self { width, place, count })
    }

    fn counts(&self, node: usize) -> &[u32] {
        &self.count[node * self.width..][..self.width]
    }

    /// For each place `to`: how many more other places all nodes need if `node` goes
    /// there. `neighbours` are the nodes that count the edges of `node`. The `loops` of
    /// `node` move with the node.
    fn changes<I: Id>(&self, node: usize, loops: u32, neighbours: &[I]) -> Vec<i32> {
        if self.width == 1 {
            return vec![0];
        }
        let (from, own) = (self.place[node] as usize, self.counts(node));
        let mut left = i32::from(own[from] > loops);
        let mut changes: Vec<i32> = own.iter().map(|&edges| -i32::from(edges > 0)).collect();
        for (other, edges) in distinct(neighbours, node) {
            let (counts, place) = (self.counts(other), self.place[other] as usize);
            for (change, &edges) in changes.iter_mut().zip(counts) {
                *change += i32::from(edges == 0);
            }
            // Its own place costs nothing.
            changes[place] -= i32::from(counts[place] == 0);
            left -= i32::from(counts[from] == edges && place != from);
        }
        changes.iter_mut().for_each(|change| *change += left);
        changes[from] = 0;
        changes
    }

    fn relocate<I: Id>(&mut self, node: usize, to: usize, others: &[I]) {
        let from = self.place[node] as usize;
        for other in others {
            self.count[other.index() * self.width + from] -= 1;
            self.count[other.index() * self.width + to] += 1;
        }
        self.place[node] = to as u32;
    }
}

/// The current assignment, with the counts from which the change of a move follows.
struct Regions<'a, I> {
    sources: Csc<'a, I>,
    destinations: Csc<'a, I>,
    grid: Grid,
    node_rank: &'a mut [i32],
    rows: Axis,
    cols: Axis,
    owned: Vec<usize>, // [ranks]
    held: Vec<u64>,    // [cells] edges
    max_owned: usize,
    max_held: u64,
    /// [cells] the last node + 1 that was found to have a neighbour there.
    reached: Vec<usize>,
}

impl<'a, I: Id> Regions<'a, I> {
    fn new(
        sources: Csc<'a, I>,
        destinations: Csc<'a, I>,
        grid: Grid,
        node_rank: &'a mut [i32],
        max_imbalance: f64,
    ) -> Result<Self, Error> {
        let places: (Vec<_>, Vec<_>) = node_rank
            .iter()
            .map(|rank| grid.place(rank.index() / grid.slices))
            .map(|(row, col)| (row as u32, col as u32))
            .unzip();
        let rows = Axis::new(grid.rows, places.0, destinations)?;
        let cols = Axis::new(grid.cols, places.1, sources)?;
        let mut owned = vec![0; grid.cells() * grid.slices];
        let mut held = vec![0; grid.cells()];
        for (node, rank) in node_rank.iter().enumerate() {
            owned[rank.index()] += 1;
            for (col, &edges) in cols.counts(node).iter().enumerate() {
                held[col * grid.rows + rows.place[node] as usize] += u64::from(edges);
            }
        }
        let allowed = |total: usize, parts: usize| (max_imbalance * total as f64 / parts as f64) as u64;
        let max_owned = allowed(node_rank.len(), owned.len()) as usize;
        let max_held = allowed(sources.num_edges(), held.len());
        Ok(Self {
            max_owned: owned.iter().copied().fold(max_owned, usize::max),
            max_held: held.iter().copied().fold(max_held, u64::max),
            reached: vec![0; grid.cells()],
            sources,
            destinations,
            grid,
            node_rank,
            rows,
            cols,
            owned,
            held,
        })
    }

    /// Moves `node` to the neighbouring region of fewest words, if that lowers them.
    fn improve(&mut self, node: usize) -> bool {
        let regions = self.neighbouring(node);
        if regions.is_empty() {
            return false;
        }
        let loops = self.loops(node);
        let rows = self.rows.changes(node, loops, self.sources.neighbors(node));
        let cols = self.cols.changes(node, loops, self.destinations.neighbors(node));
        let mut best = (0, None);
        for cell in regions {
            let (row, col) = self.grid.place(cell);
            let change = rows[row] + cols[col];
            if change < best.0 && self.fits(node, cell, loops) {
                best = (change, Some(cell));
            }
        }
        if let Some(cell) = best.1 {
            self.relocate(node, cell, loops);
        }
        best.1.is_some()
    }

    fn cell(&self, node: usize) -> usize {
        self.node_rank[node].index() / self.grid.slices
    }

    fn loops(&self, node: usize) -> u32 {
        let sources = self.sources.neighbors(node).iter();
        sources.filter(|source| source.index() == node).count() as u32
    }

    /// The other cells that own a neighbour, ascending.
    fn neighbouring(&mut self, node: usize) -> Vec<usize> {
        let own = self.cell(node);
        let mut cells = Vec::new();
        for edges in [self.sources, self.destinations] {
            for neighbour in edges.neighbors(node) {
                let cell = self.cell(neighbour.index());
                if cell != own && self.reached[cell] != node + 1 {
                    self.reached[cell] = node + 1;
                    cells.push(cell);
                }
            }
        }
        cells.sort_unstable();
        cells
    }

    fn fits(&mut self, node: usize, cell: usize, loops: u32) -> bool {
        if self.owned[self.emptiest(cell)] >= self.max_owned {
            return false;
        }
        let own = self.cell(node);
        let (row, col) = self.grid.place(cell);
        self.move_edges(node, own, cell, loops);
        let in_row = (0..self.grid.cols).map(|col| col * self.grid.rows + row);
        let in_col = (0..self.grid.rows).map(|row| col * self.grid.rows + row);
        let fits = in_row.chain(in_col).all(|cell| self.held[cell] <= self.max_held);
        self.move_edges(node, cell, own, loops);
        fits
    }

    /// In-edges go to the new row, out-edges to the new column, self-loops with their
    /// node.
    fn move_edges(&mut self, node: usize, from: usize, to: usize, loops: u32) {
        let own = self.grid.place(self.cell(node));
        let ((row, col), (new_row, new_col)) = (self.grid.place(from), self.grid.place(to));
        let mut shift = |from: usize, to: usize, edges: u32| {
            self.held[to] += u64::from(edges);
            self.held[from] -= u64::from(edges);
        };
        for (place, &edges) in self.cols.counts(node).iter().enumerate() {
            let start = place * self.grid.rows;
            shift(
                start + row,
                start + new_row,
                edges - if place == own.1 { loops } else { 0 },
            );
        }
        for (place, &edges) in self.rows.counts(node).iter().enumerate() {
            let edges = edges - if place == own.0 { loops } else { 0 };
            shift(col * self.grid.rows + place, new_col * self.grid.rows + place, edges);
        }
        shift(from, to, loops);
    }

    fn relocate(&mut self, node: usize, cell: usize, loops: u32) {
        let (row, col) = self.grid.place(cell);
        self.move_edges(node, self.cell(node), cell, loops);
        self.rows.relocate(node, row, self.sources.neighbors(node));
        self.cols.relocate(node, col, self.destinations.neighbors(node));
        let rank = self.emptiest(cell);
        self.owned[self.node_rank[node].index()] -= 1;
        self.owned[rank] += 1;
        self.node_rank[node] = rank as i32;
    }

    /// The rank of a cell that owns the fewest nodes, the first of several.
    fn emptiest(&self, cell: usize) -> usize {
        let ranks = cell * self.grid.slices..(cell + 1) * self.grid.slices;
        ranks
            .min_by_key(|&rank| self.owned[rank])
            .expect("slices are at least 1")
    }
}

/// The distinct neighbours other than `node`, and how many edges join each.
fn distinct<I: Id>(neighbours: &[I], node: usize) -> Vec<(usize, u32)> {
    let mut ids: Vec<usize> = neighbours.iter().map(|id| id.index()).collect();
    ids.retain(|&id| id != node);
    ids.sort_unstable();
    ids.chunk_by(|a, b| a == b)
        .map(|run| (run[0], run.len() as u32))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words by the definition: rows of other destinations and columns of other
    /// sources, for each node.
    fn words(csc: Csc<'_, i32>, grid: Grid, node_rank: &[i32]) -> usize {
        let place = |node: usize| grid.place(node_rank[node].index() / grid.slices);
        let mut needs = Vec::new();
        for v in 0..csc.num_nodes() {
            for u in csc.neighbors(v).iter().map(|u| u.index()) {
                if place(u).0 != place(v).0 {
                    needs.push((0, u, place(v).0));
                }
                if place(u).1 != place(v).1 {
                    needs.push((1, v, place(u).1));
                }
            }
        }
        needs.sort_unstable();
        needs.dedup();
        needs.len()
    }

    fn largest(csc: Csc<'_, i32>, grid: Grid, node_rank: &[i32]) -> (usize, usize) {
        let (mut owned, mut held) = (vec![0; grid.cells() * grid.slices], vec![0; grid.cells()]);
        let place = |node: usize| grid.place(node_rank[node].index() / grid.slices);
        for v in 0..csc.num_nodes() {
            owned[node_rank[v].index()] += 1;
            for u in csc.neighbors(v) {
                held[place(u.index()).1 * grid.rows + place(v).0] += 1;
            }
        }
        (owned.into_iter().max().unwrap(), held.into_iter().max().unwrap())
    }

    prop_compose! {
        fn case()(n in 1usize..20, rows in 1usize..4, cols in 1usize..4, slices in 1usize..3)
            (edges in prop::collection::vec((0..n as i32, 0..n as i32), 0..80),
             ranks in prop::collection::vec(0..(rows * cols * slices) as i32, n),
             n in Just(n), rows in Just(rows), cols in Just(cols), slices in Just(slices))
            -> (usize, Vec<(i32, i32)>, Grid, Vec<i32>) {
            (n, edges, Grid { rows, cols, slices }, ranks)
        }
    }

    proptest! {
        #[test]
        fn words_fall_with_every_move_and_balance_holds((n, edges, grid, before) in case(), bound in 1.0f64..2.0) {
            let (src, dst): (Vec<i32>, Vec<i32>) = edges.into_iter().unzip();
            let sorted = edges::from_edges::<i32, ()>(&src[..], &dst[..], n, n, 1).unwrap();
            let csc = Csc::new(&sorted.indptr, &sorted.indices, n).unwrap();
            let mut after = before.clone();
            let moves = min_words(csc, grid, &mut after, bound).unwrap();
            prop_assert!(words(csc, grid, &after) + moves <= words(csc, grid, &before));
            let (owned, held) = largest(csc, grid, &after);
            let (most_owned, most_held) = largest(csc, grid, &before);
            let mean = |total: usize, parts: usize| (bound * total as f64 / parts as f64) as usize;
            prop_assert!(owned <= most_owned.max(mean(n, grid.cells() * grid.slices)));
            prop_assert!(held <= most_held.max(mean(csc.num_edges(), grid.cells())));
        }
    }
}
