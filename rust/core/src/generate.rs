//! Graphs made from a key: every edge, label and feature is a hash of its number, so
//! threads change nothing.

use std::ops::Range;

use crate::csc::Id;
use crate::edges::{Edges, Sorted, sort};
use crate::error::Error;
use crate::memory::{filled, reserve};
use crate::pool::{MOST_THREADS, for_each};
use crate::rng::{Stream, derive};

// The purpose of a key.
const EDGES: u64 = 0;
const NODES: u64 = 1;
const CLASSES: u64 = 2;
const FEATURES: u64 = 3;

/// A lattice is a line, a square or a cube.
const MAX_DIMS: usize = 3;

/// A random order of `0..len` that needs no memory: three rounds of multiply and shift
/// on the next power of two, repeated until the result is in range.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    len: u64,
    bits: u32,
    rounds: [u64; 3],
}

impl Permutation {
    /// The order that belongs to `key`.
    pub fn new(len: usize, key: u64) -> Self {
        let stream = Stream::new(key);
        let len = len as u64;
        Self {
            len,
            bits: len.next_power_of_two().trailing_zeros(),
            rounds: [0, 1, 2].map(|at| stream.word(at)),
        }
    }

    /// The place of `index`, which must be below `len`.
    #[inline]
    pub fn apply(&self, index: usize) -> usize {
        let mask = (1 << self.bits) - 1;
        let mut x = index as u64;
        loop {
            for round in self.rounds {
                x = (x ^ (round >> 32)).wrapping_mul(round | 1) & mask; // odd: a bijection
                x ^= x >> self.bits.div_ceil(2).max(1);
            }
            if x < self.len {
                return x as usize;
            }
        }
    }
}

/// `0..num_nodes` in `num_blocks` ranges of nearly equal length. Block b starts at
/// `num_nodes * b / num_blocks`.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    num_nodes: usize,
    num_blocks: usize,
}

impl Blocks {
    fn new(num_nodes: usize, num_blocks: usize) -> Result<Self, Error> {
        if num_blocks == 0 || num_blocks > num_nodes.max(1) {
            return Err(Error::Count {
                name: "num_classes",
                value: num_blocks,
                low: 1,
                high: num_nodes.max(1),
            });
        }
        Ok(Self { num_nodes, num_blocks })
    }

    fn start(&self, block: usize) -> usize {
        (self.num_nodes as u128 * block as u128 / self.num_blocks as u128) as usize
    }

    fn of(&self, node: usize) -> usize {
        (((node as u128 + 1) * self.num_blocks as u128 - 1) / self.num_nodes as u128) as usize
    }
}

/// Draws four levels of R-MAT at once: Walker's alias method over the 16 x 16 blocks
/// that they divide the matrix into.
struct Levels {
    /// The share of 2^24 in which a block stands for itself, else the block to take.
    aliases: [(u32, u8); 256],
}

impl Levels {
    /// Probabilities of the quarters of a level, by bits of source and destination.
    const QUARTERS: [f64; 4] = [0.57, 0.19, 0.19, 0.05];

    fn new() -> Self {
        let quarter =
            |block: usize, level: usize| Self::QUARTERS[((block >> (4 + level)) & 1) * 2 + ((block >> level) & 1)];
        let mut mass: Vec<f64> = (0..256)
            .map(|block| 256.0 * (0..4).map(|level| quarter(block, level)).product::<f64>())
            .collect();
        let mut aliases = std::array::from_fn(|block| (1 << 24, block as u8));
        let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..256).partition(|&block| mass[block] < 1.0);
        while let (Some(block), Some(&donor)) = (small.pop(), large.last()) {
            aliases[block] = ((mass[block] * f64::from(1 << 24)) as u32, donor as u8);
            mass[donor] -= 1.0 - mass[block];
            if mass[donor] < 1.0 {
                small.extend(large.pop());
            }
        }
        Self { aliases }
    }

    /// A block from 32 random bits: four bits of the source above four of the
    /// destination.
    #[inline]
    fn draw(&self, bits: u32) -> usize {
        let (share, alias) = self.aliases[bits as usize & 0xff];
        if bits >> 8 < share {
            bits as usize & 0xff
        } else {
            alias as usize
        }
    }
}

/// R-MAT: each edge descends through the quarters of the adjacency matrix. A pair
/// outside of the matrix is drawn again.
struct RMat {
    num_nodes: usize,
    num_edges: usize,
    key: u64,
    order: Permutation,
    levels: Levels,
}

impl RMat {
    fn new(num_nodes: usize, num_edges: usize, key: u64) -> Self {
        let order = Permutation::new(num_nodes, derive(key, NODES));
        Self {
            num_nodes,
            num_edges,
            key: derive(key, EDGES),
            order,
            levels: Levels::new(),
        }
    }

    /// Source and destination, before ids are permuted.
    fn draw(&self, edge: usize) -> (usize, usize) {
        let mut stream = Stream::new(derive(self.key, edge as u64));
        // Levels that are drawn and not used.
        let surplus = self.order.bits.next_multiple_of(8) - self.order.bits;
        loop {
            let (mut source, mut destination) = (0, 0);
            for _ in 0..self.order.bits.div_ceil(8) {
                let word = stream.next_u64();
                for block in [self.levels.draw(word as u32), self.levels.draw((word >> 32) as u32)] {
                    source = source << 4 | block >> 4;
                    destination = destination << 4 | block & 0xf;
                }
            }
            let (source, destination) = (source >> surplus, destination >> surplus);
            if source < self.num_nodes && destination < self.num_nodes {
                return (source, destination);
            }
        }
    }
}

impl Edges<()> for RMat {
    fn num_units(&self) -> usize {
        self.num_edges
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, ())) {
        for edge in units {
            let (source, destination) = self.draw(edge);
            visit(self.order.apply(source), self.order.apply(destination), ());
        }
    }
}

/// Block model: a uniform source, and a destination in its block with probability
/// `in_block`, else in another one.
struct BlockModel {
    blocks: Blocks,
    num_edges: usize,
    in_block: f64,
    key: u64,
    order: Permutation,
}

impl BlockModel {
    fn draw(&self, edge: usize) -> (usize, usize) {
        let mut stream = Stream::new(derive(self.key, edge as u64));
        let num_nodes = self.blocks.num_nodes;
        let source = stream.below(num_nodes as u64) as usize;
        let block = self.blocks.of(source);
        let (start, end) = (self.blocks.start(block), self.blocks.start(block + 1));
        let inside = stream.next_f64() < self.in_block;
        // A block of one node has no edge inside, a single block none outside.
        if (inside || end - start == num_nodes) && end - start > 1 {
            let other = start + stream.below((end - start - 1) as u64) as usize;
            return (source, other + usize::from(other >= source));
        }
        let other = stream.below((num_nodes - (end - start)) as u64) as usize;
        (source, if other < start { other } else { other + (end - start) })
    }
}

impl Edges<()> for BlockModel {
    fn num_units(&self) -> usize {
        self.num_edges
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, ())) {
        for edge in units {
            let (source, destination) = self.draw(edge);
            visit(self.order.apply(source), self.order.apply(destination), ());
        }
    }
}

/// A line, square or cube of `side` nodes along each axis, filled in the order of ids.
/// The last row may be shorter.
struct Lattice {
    num_nodes: usize,
    side: usize,
    dims: u32,
}

impl Edges<()> for Lattice {
    fn num_units(&self) -> usize {
        self.num_nodes
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, ())) {
        for node in units {
            for axis in 0..self.dims {
                // An axis with a stride beyond all nodes has one place.
                let Some(stride) = self.side.checked_pow(axis).filter(|&stride| stride < self.num_nodes) else {
                    break;
                };
                let place = node / stride % self.side;
                if place > 0 {
                    visit(node - stride, node, ());
                }
                if place + 1 < self.side && node + stride < self.num_nodes {
                    visit(node + stride, node, ());
                }
            }
        }
    }
}

/// R-MAT (Chakrabarti et al., 2004) with Graph500's .57, .19, .19, .05 and permuted
/// ids. Self-loops and parallel edges stay, so that there are `num_edges` edges.
pub fn rmat<I: Id>(num_nodes: usize, num_edges: usize, key: u64, threads: usize) -> Result<Sorted<I, ()>, Error> {
    check_edges(num_nodes, num_edges, 1)?;
    sort(&RMat::new(num_nodes, num_edges, key), num_nodes, threads)
}

/// A stochastic block model with a given number of edges, permuted ids and no
/// self-loops. Parallel edges stay. The block of a node is its label in [`labels`] of
/// the same key.
pub fn block_model<I: Id>(
    num_nodes: usize,
    num_edges: usize,
    num_blocks: usize,
    in_block: f64,
    key: u64,
    threads: usize,
) -> Result<Sorted<I, ()>, Error> {
    check_edges(num_nodes, num_edges, 2)?;
    let blocks = Blocks::new(num_nodes, num_blocks)?;
    let order = Permutation::new(num_nodes, derive(key, NODES));
    sort(
        &BlockModel {
            blocks,
            num_edges,
            in_block,
            key: derive(key, EDGES),
            order,
        },
        num_nodes,
        threads,
    )
}

/// A lattice of `dims` axes, both directions of each edge. Node ids run along the first
/// axis first.
pub fn lattice<I: Id>(num_nodes: usize, side: usize, dims: u32, threads: usize) -> Result<Sorted<I, ()>, Error> {
    for (name, value, high) in [("side", side, isize::MAX as usize), ("dims", dims as usize, MAX_DIMS)] {
        if !(1..=high).contains(&value) {
            return Err(Error::Count {
                name,
                value,
                low: 1,
                high,
            });
        }
    }
    let most_edges = num_nodes.checked_mul(2 * dims as usize);
    reserve(&mut Vec::<[I; 2]>::new(), most_edges, "num_nodes", num_nodes)?;
    sort(&Lattice { num_nodes, side, dims }, num_nodes, threads)
}

fn check_edges(num_nodes: usize, num_edges: usize, low: usize) -> Result<(), Error> {
    if num_edges > 0 && num_nodes < low {
        return Err(Error::Count {
            name: "num_nodes",
            value: num_nodes,
            low,
            high: usize::MAX,
        });
    }
    reserve(&mut Vec::<[i32; 2]>::new(), Some(num_edges), "num_edges", num_edges)
}

/// Classes of equal size: ranges of node ids, in the order that [`rmat`] and
/// [`block_model`] give the ids if there is a key.
pub fn labels(num_nodes: usize, num_classes: usize, key: Option<u64>) -> Result<Vec<i64>, Error> {
    let mut labels = filled(0, Some(num_nodes), "num_nodes", num_nodes)?;
    let blocks = Blocks::new(num_nodes, num_classes)?;
    let order = key.map(|key| Permutation::new(num_nodes, derive(key, NODES)));
    for node in 0..num_nodes {
        labels[order.map_or(node, |order| order.apply(node))] = blocks.of(node) as i64;
    }
    Ok(labels)
}

/// Draws rows of features: the mean of the node's class, with entries of variance 1,
/// plus noise of variance `noise`^2.
pub fn features(labels: &[i64], width: usize, noise: f32, key: u64, threads: usize) -> Result<Vec<f32>, Error> {
    let mut features = filled(0.0, labels.len().checked_mul(width), "width", width)?;
    if width == 0 {
        return Ok(features);
    }
    let rows = labels.len().div_ceil(threads.clamp(1, MOST_THREADS) * 4).max(1);
    let work = features
        .chunks_mut(rows * width)
        .zip(labels.chunks(rows))
        .enumerate()
        .collect();
    for_each(threads, work, |(part, (features, labels))| {
        for (at, (row, &label)) in features.chunks_mut(width).zip(labels).enumerate() {
            let mean = Stream::new(derive(derive(key, CLASSES), label as u64));
            let deviation = Stream::new(derive(derive(key, FEATURES), (part * rows + at) as u64));
            for (column, value) in row.iter_mut().enumerate() {
                *value = bell(mean.word(column as u64)) + noise * bell(deviation.word(column as u64));
            }
        }
    });
    Ok(features)
}

/// The sum of four uniform numbers, scaled to mean 0 and variance 1: near normal, and
/// the same on every machine.
fn bell(word: u64) -> f32 {
    let sum: u32 = (0..4).map(|lane| (word >> (16 * lane)) as u32 & 0xffff).sum();
    const DEVIATION: f32 = 37_837.23; // of the sum: 65536 / sqrt(3)
    (sum as f32 - 131_070.0) / DEVIATION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_reach_every_index_once_and_follow_the_key() {
        for len in [1, 2, 3, 64, 65, 1000] {
            let mut seen = vec![false; len];
            let order = Permutation::new(len, 5);
            (0..len).for_each(|index| seen[order.apply(index)] = true);
            assert!(seen.iter().all(|&seen| seen), "{len}");
        }
        let images: std::collections::HashSet<_> = (0..100).map(|key| Permutation::new(1000, key).apply(0)).collect();
        assert!(images.len() > 80);
    }

    #[test]
    fn blocks_cover_all_nodes_in_order() {
        for (num_nodes, num_blocks) in [(1, 1), (10, 3), (7, 7), (100, 16)] {
            let blocks = Blocks::new(num_nodes, num_blocks).unwrap();
            for node in 0..num_nodes {
                let block = blocks.of(node);
                assert!((blocks.start(block)..blocks.start(block + 1)).contains(&node));
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_graph() {
        let rmat_of = |threads| rmat::<i32>(5000, 100_000, 3, threads).unwrap();
        let sbm_of = |threads| block_model::<i32>(5000, 100_000, 7, 0.8, 3, threads).unwrap();
        let lattice_of = |threads| lattice::<i32>(50_000, 37, 3, threads).unwrap();
        let features_of = |threads| features(&[0, 1, 1, 0, 2], 3, 1.0, 9, threads).unwrap();
        for threads in [2, 3] {
            assert_eq!(rmat_of(threads), rmat_of(1));
            assert_eq!(sbm_of(threads), sbm_of(1));
            assert_eq!(lattice_of(threads), lattice_of(1));
            assert_eq!(features_of(threads), features_of(1));
        }
    }

    #[test]
    fn every_level_of_rmat_has_its_probabilities() {
        let model = RMat::new(1024, 0, 1);
        let mut counts = [[0.0f64; 4]; 10];
        for (source, destination) in (0..100_000).map(|edge| model.draw(edge)) {
            for (level, counts) in counts.iter_mut().enumerate() {
                counts[((source >> level) & 1) * 2 + ((destination >> level) & 1)] += 1e-5;
            }
        }
        for counts in counts {
            for (count, expected) in counts.into_iter().zip(Levels::QUARTERS) {
                assert!((count - expected).abs() < 0.01, "{counts:?}");
            }
        }
    }

    #[test]
    fn features_have_the_variance_asked_for() {
        let values = features(&[0; 1000], 100, 2.0, 1, 1).unwrap();
        let mean = bell(Stream::new(derive(derive(1, CLASSES), 0)).word(0));
        let column: Vec<f32> = values.iter().step_by(100).map(|value| value - mean).collect();
        let variance = column.iter().map(|x| x * x).sum::<f32>() / 1000.0;
        assert!((variance - 4.0).abs() < 0.6, "{variance}");
    }
}
