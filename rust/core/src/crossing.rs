//! What a partition makes travel: edges between owners, and rows that cells exchange.

use std::ops::Range;

use crate::border::Grid;
use crate::csc::{Csc, Id, check_ids};
use crate::error::{Error, check_length};
use crate::memory::filled;
use crate::pool::for_each;
use crate::read::prefetch;

/// Below this many edges per thread, starting the thread costs more than it saves.
const MIN_WORK: usize = 1 << 16;

/// Owners of sources are asked for this many edges ahead.
const AHEAD: usize = 16;

/// Edges between nodes of different owners, and the ends that each grid cell sees.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// How many edges there are.
    pub count: usize,
    /// Which nodes have one.
    pub boundary: Vec<bool>,
    /// Which pairs (owner of the destination, owner of the source) have one, row by row.
    pub linked: Vec<bool>,
    /// Edges that each cell holds, crossing or not.
    pub held: Vec<i64>,
    /// `[i, j]`: sources of cell i's edges that cell j != i owns.
    pub gathered: Vec<i64>,
    /// `[i, j]`: destinations of cell j's edges that cell i != j owns.
    pub reduced: Vec<i64>,
    /// Pairs of a node and a cell that owns it, or holds one of its edges.
    pub copies: usize,
}

/// Looks at each edge. `owner` is below the number of ranks for each node. `edge_cell`
/// is the cell that holds each edge. Without it this is the cell in the row of the
/// destination's owner and in the column of the source's. The error names the first
/// value out of range, and lists of another length.
pub fn crossing<I: Id>(
    csc: Csc<'_, I>,
    owner: &[i32],
    grid: Grid,
    edge_cell: Option<&[i32]>,
    threads: usize,
) -> Result<Crossing, Error> {
    let ranks = grid.check()?;
    check_ids("owner", owner, ranks, "ranks")?;
    for expected in [csc.num_nodes(), csc.num_sources()] {
        check_length("owner", owner.len(), expected)?;
    }
    if let Some(cells) = edge_cell {
        check_length("edge_cell", cells.len(), csc.num_edges())?;
        check_ids("edge_cell", cells, grid.cells(), "cells")?;
    }
    let of_rank = |value: fn(&Grid, usize) -> usize| -> Vec<u32> {
        (0..ranks).map(|rank| value(&grid, rank / grid.slices) as u32).collect()
    };
    let layout = Layout {
        owner,
        edge_cell,
        ranks,
        cells: grid.cells(),
        cell: of_rank(|_, cell| cell),
        row: of_rank(|grid, cell| cell % grid.rows),
        column: of_rank(|grid, cell| cell - cell % grid.rows),
    };
    match grid.cells() {
        0..=8 => layout.look::<I, u8>(&csc, threads),
        9..=16 => layout.look::<I, u16>(&csc, threads),
        17..=32 => layout.look::<I, u32>(&csc, threads),
        _ => layout.look::<I, u64>(&csc, threads),
    }
}

/// A set of as many cells as the type has bits.
trait Cells: Copy + Send + 'static {
    const NONE: Self;
    fn with(self, cell: u32) -> Self;
    fn union(self, other: Self) -> Self;
    fn bits(self) -> u64;
}

macro_rules! cells {
    ($($of:ty),*) => {
        $(impl Cells for $of {
            const NONE: Self = 0;
            fn with(self, cell: u32) -> Self {
                self | 1 << cell
            }
            fn union(self, other: Self) -> Self {
                self | other
            }
            fn bits(self) -> u64 {
                u64::from(self)
            }
        })*
    };
}

cells!(u8, u16, u32, u64);

/// The partition, with the place of each rank.
struct Layout<'a> {
    owner: &'a [i32],
    edge_cell: Option<&'a [i32]>,
    ranks: usize,
    cells: usize,
    cell: Vec<u32>,   // [ranks]
    row: Vec<u32>,    // [ranks] of the cell
    column: Vec<u32>, // [ranks] the first cell of the cell's column
}

/// What one thread finds at the destinations of a range.
struct Part<'a, B> {
    nodes: Range<usize>,
    entered: &'a mut [B], // [nodes] cells with edges into each node
    left: Vec<B>,         // [num_nodes] cells with edges out of each node
    count: usize,
    boundary: Vec<bool>, // [num_nodes]
    linked: Vec<bool>,   // [ranks, ranks]
    held: Vec<i64>,      // [cells]
}

impl Layout<'_> {
    fn look<I: Id, B: Cells>(&self, csc: &Csc<'_, I>, threads: usize) -> Result<Crossing, Error> {
        let nodes = self.owner.len();
        let squared = |number: usize| number.checked_mul(number);
        let mut found = Crossing {
            count: 0,
            boundary: filled(false, Some(nodes), "owner", nodes)?,
            linked: filled(false, squared(self.ranks), "grid", self.ranks)?,
            held: filled(0, Some(self.cells), "grid", self.cells)?,
            gathered: filled(0, squared(self.cells), "grid", self.cells)?,
            reduced: filled(0, squared(self.cells), "grid", self.cells)?,
            copies: 0,
        };
        let mut entered = filled(B::NONE, Some(nodes), "owner", nodes)?;
        let at_once = 8 * size_of::<B>();
        for first in (0..self.cells).step_by(at_once) {
            entered.fill(B::NONE);
            let (mut parts, mut rest) = (Vec::new(), entered.as_mut_slice());
            for range in ranges(csc, threads) {
                let (own, others) = rest.split_at_mut(range.len());
                rest = others;
                parts.push(Part {
                    nodes: range,
                    entered: own,
                    left: filled(B::NONE, Some(nodes), "owner", nodes)?,
                    count: 0,
                    boundary: filled(false, Some(nodes), "owner", nodes)?,
                    linked: filled(false, squared(self.ranks), "grid", self.ranks)?,
                    held: filled(0, Some(self.cells), "grid", self.cells)?,
                });
            }
            for_each(parts.len(), parts.iter_mut().collect(), |part| {
                self.read(csc, first, part)
            });
            let mut left = filled(B::NONE, Some(nodes), "owner", nodes)?;
            for part in parts {
                for (whole, own) in left.iter_mut().zip(&part.left) {
                    *whole = whole.union(*own);
                }
                if first == 0 {
                    found.count += part.count;
                    join(&mut found.boundary, &part.boundary);
                    join(&mut found.linked, &part.linked);
                    found.held.iter_mut().zip(&part.held).for_each(|(all, own)| *all += own);
                }
            }
            self.count(first, at_once, &left, &entered, &mut found);
        }
        Ok(found)
    }

    /// Reads the edges of a part, and notes cells from `first` on.
    fn read<I: Id, B: Cells>(&self, csc: &Csc<'_, I>, first: usize, part: &mut Part<'_, B>) {
        let (indices, at_once) = (csc.indices(), 8 * size_of::<B>());
        for node in part.nodes.clone() {
            let own = self.owner[node].index();
            let (row, mut entered) = (self.row[own], B::NONE);
            let (begin, end) = (csc.indptr()[node] as usize, csc.indptr()[node + 1] as usize);
            for edge in begin..end {
                if let Some(next) = indices.get(edge + AHEAD) {
                    prefetch(self.owner, next.index());
                    prefetch(&part.left, next.index());
                }
                let source = indices[edge].index();
                let other = self.owner[source].index();
                let cell = match self.edge_cell {
                    None => (row + self.column[other]) as usize,
                    Some(cells) => cells[edge].index(),
                };
                part.held[cell] += 1;
                let bit = cell.wrapping_sub(first);
                if bit < at_once {
                    entered = entered.with(bit as u32);
                    part.left[source] = part.left[source].with(bit as u32);
                }
                if other != own {
                    part.count += 1;
                    part.boundary[source] = true;
                    part.boundary[node] = true;
                    part.linked[own * self.ranks + other] = true;
                }
            }
            part.entered[node - part.nodes.start] = entered;
        }
    }

    /// Counts the nodes that cells from `first` on see, and do not own.
    fn count<B: Cells>(&self, first: usize, at_once: usize, left: &[B], entered: &[B], found: &mut Crossing) {
        for (node, owner) in self.owner.iter().enumerate() {
            let own = self.cell[owner.index()] as usize;
            let owned = if (first..first + at_once).contains(&own) {
                1 << (own - first)
            } else {
                0
            };
            let (left, entered) = (left[node].bits(), entered[node].bits());
            found.copies += (left | entered | owned).count_ones() as usize;
            each(left & !owned, |bit| {
                found.gathered[(first + bit) * self.cells + own] += 1
            });
            each(entered & !owned, |bit| {
                found.reduced[own * self.cells + first + bit] += 1
            });
        }
    }
}

/// Calls `work` with the place of each bit that is set.
fn each(mut bits: u64, mut work: impl FnMut(usize)) {
    while bits != 0 {
        work(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

fn join(whole: &mut [bool], part: &[bool]) {
    whole.iter_mut().zip(part).for_each(|(whole, part)| *whole |= part);
}

/// Ranges of nodes with about as many in-edges.
fn ranges<I: Id>(csc: &Csc<'_, I>, threads: usize) -> Vec<Range<usize>> {
    let parts = threads.clamp(1, csc.num_edges() / MIN_WORK + 1);
    let bound = |part: usize| match part {
        0 => 0,
        part if part == parts => csc.num_nodes(),
        part => csc
            .indptr()
            .partition_point(|&end| (end as usize) < csc.num_edges() * part / parts)
            .min(csc.num_nodes()),
    };
    (0..parts).map(|part| bound(part)..bound(part + 1)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::edges::from_edges;
    use crate::rng::Stream;

    /// Counts by sets, an edge at a time.
    fn counted(csc: &Csc<'_, i32>, owner: &[i32], grid: Grid, edge_cell: Option<&[i32]>) -> Crossing {
        let (ranks, cells) = (grid.cells() * grid.slices, grid.cells());
        let cell_of = |node: usize| owner[node] as usize / grid.slices;
        let mut found = Crossing {
            count: 0,
            boundary: vec![false; owner.len()],
            linked: vec![false; ranks * ranks],
            held: vec![0; cells],
            gathered: vec![0; cells * cells],
            reduced: vec![0; cells * cells],
            copies: 0,
        };
        let (mut sources, mut targets) = (BTreeSet::new(), BTreeSet::new());
        for node in 0..owner.len() {
            for edge in csc.indptr()[node] as usize..csc.indptr()[node + 1] as usize {
                let source = csc.indices()[edge] as usize;
                let by_grid = cell_of(node) % grid.rows + cell_of(source) / grid.rows * grid.rows;
                let cell = edge_cell.map_or(by_grid, |cells| cells[edge] as usize);
                sources.insert((source, cell));
                targets.insert((node, cell));
                found.held[cell] += 1;
                if owner[source] != owner[node] {
                    found.count += 1;
                    found.boundary[source] = true;
                    found.boundary[node] = true;
                    found.linked[owner[node] as usize * ranks + owner[source] as usize] = true;
                }
            }
        }
        for &(node, cell) in sources.iter().filter(|&&(node, cell)| cell != cell_of(node)) {
            found.gathered[cell * cells + cell_of(node)] += 1;
        }
        for &(node, cell) in targets.iter().filter(|&&(node, cell)| cell != cell_of(node)) {
            found.reduced[cell_of(node) * cells + cell] += 1;
        }
        let own = (0..owner.len()).map(|node| (node, cell_of(node)));
        found.copies = own.chain(sources).chain(targets).collect::<BTreeSet<_>>().len();
        found
    }

    #[test]
    fn any_number_of_threads_finds_what_a_count_by_sets_finds() {
        let mut stream = Stream::new(3);
        for (num_nodes, num_edges) in [(1, 0), (40, 60), (1000, 150_000)] {
            for (rows, cols, slices) in [(3, 1, 1), (2, 3, 2), (5, 2, 1), (4, 5, 1), (7, 9, 1), (23, 3, 2)] {
                let grid = Grid { rows, cols, slices };
                let mut draw = |below: usize, count: usize| -> Vec<i32> {
                    (0..count).map(|_| stream.below(below as u64) as i32).collect()
                };
                let (src, dst) = (draw(num_nodes, num_edges), draw(num_nodes, num_edges));
                let (owner, held) = (draw(rows * cols * slices, num_nodes), draw(rows * cols, num_edges));
                let sorted = from_edges::<i32, ()>(&src, &dst, num_nodes, num_nodes, 1).unwrap();
                let csc = Csc::new(&sorted.indptr, &sorted.indices, num_nodes).unwrap();
                for edge_cell in [None, Some(held.as_slice())] {
                    let expected = counted(&csc, &owner, grid, edge_cell);
                    for threads in [1, 2, 8] {
                        assert_eq!(crossing(csc, &owner, grid, edge_cell, threads).unwrap(), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn errors_name_the_value() {
        let csc = Csc::new(&[0, 1], &[0i32], 1).unwrap();
        let text = |owner: &[i32], edge_cell: Option<&[i32]>, rows: usize| {
            let grid = Grid {
                rows,
                cols: 1,
                slices: 1,
            };
            crossing(csc, owner, grid, edge_cell, 1).unwrap_err().to_string()
        };
        assert_eq!(text(&[2], None, 2), "owner[0] = 2 is out of range for 2 ranks");
        assert_eq!(text(&[0, 0], None, 2), "owner has 2 entries, expected 1");
        assert_eq!(
            text(&[0], Some(&[2]), 2),
            "edge_cell[0] = 2 is out of range for 2 cells"
        );
        assert_eq!(text(&[0], Some(&[]), 2), "edge_cell has 0 entries, expected 1");
        assert!(text(&[0], None, 0).starts_with("grid"));
    }
}
