//! Pairs of nodes: pairs without an edge, a number for each pair, and the edges of a
//! block that join none of some pairs.
//!
//! Every draw is a hash of its purpose, so neither threads nor the other pairs of a
//! call change a draw.

use std::hint::select_unpredictable;
use std::ops::Range;

use crate::csc::{Csc, Id, check_ids};
use crate::error::Error;
use crate::memory::filled;
use crate::pool::{MOST_THREADS, for_each};
use crate::rng::{Stream, derive};

/// Draws of one end of a pair, and then of the other end.
const TRIES: usize = 32;

/// Draws of both ends, where no other end of an edge was found.
const TRIES_OF_BOTH: usize = 1024;

/// Pairs that are searched for together.
const GROUP: usize = 16;

/// The fewest pairs that a thread is woken for.
const PAIRS_OF_A_THREAD: usize = 4096;

/// The most nodes: the number of every pair fits into 63 bits.
const MOST_NODES: usize = 3_037_000_499;

/// An ordered pair of nodes: source and destination.
pub type Pair = [i64; 2];

/// The ordered pairs of nodes, in order of destination.
#[derive(Debug, Clone, Copy)]
struct Plane {
    num_nodes: i64,
}

impl Plane {
    fn new(num_nodes: usize) -> Result<Self, Error> {
        if num_nodes > MOST_NODES {
            return Err(Error::Count {
                name: "num_nodes",
                value: num_nodes,
                low: 0,
                high: MOST_NODES,
            });
        }
        Ok(Self {
            num_nodes: num_nodes as i64,
        })
    }

    fn check(&self, name: &'static str, nodes: &[impl Id]) -> Result<(), Error> {
        check_ids(name, nodes, self.num_nodes as usize, "nodes")
    }

    /// The number of a pair.
    #[inline]
    const fn code(&self, [source, destination]: Pair) -> i64 {
        destination * self.num_nodes + source
    }

    /// The number of a pair, and of its reverse the same.
    #[inline]
    fn unordered(&self, [a, b]: Pair) -> i64 {
        self.code([a.min(b), a.max(b)])
    }
}

/// The candidates for each end of a pair, as positions among all candidates.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Candidates for the source.
    pub sources: Range<usize>,
    /// Candidates for the destination.
    pub destinations: Range<usize>,
}

/// The pairs that may be drawn: no loop, and no pair of `known`.
#[derive(Debug)]
pub struct NonEdges<'a> {
    plane: Plane,
    known: &'a [i64],
    among: Option<&'a [i64]>,
    ends: Option<Ends>,
}

impl<'a> NonEdges<'a> {
    /// Nodes are drawn from `among`, by default from all nodes. `known` holds ascending
    /// codes `destination * num_nodes + source`. Codes in another order are not found.
    pub fn new(num_nodes: usize, known: &'a [i64], among: Option<&'a [i64]>) -> Result<Self, Error> {
        let plane = Plane::new(num_nodes)?;
        if let Some(nodes) = among {
            plane.check("among", nodes)?;
        }
        Ok(Self {
            plane,
            known,
            among,
            ends: None,
        })
    }

    /// Restricts each end to some of the candidates, as the ends of a relation.
    pub fn between(self, ends: Ends) -> Result<Self, Error> {
        let nodes = self.num_candidates();
        for range in [&ends.sources, &ends.destinations] {
            for (value, low, high) in [(range.end, 0, nodes), (range.start, 0, range.end)] {
                if value > high {
                    let name = "ends";
                    return Err(Error::Count { name, value, low, high });
                }
            }
        }
        let ends = Some(ends);
        Ok(Self { ends, ..self })
    }

    /// Draws `count` pairs for each edge of `pairs`, with another source or another
    /// destination, which are equally likely. Between given ends, pairs have another
    /// destination.
    ///
    /// Draws follow from the key, the id of the edge and the number of the pair. An end
    /// is uniform over the nodes that give a pair. Where draws find no such node, the
    /// other end is drawn instead, and then both ends.
    pub fn draw(
        &self,
        pairs: &[Pair],
        ids: &[i64],
        count: usize,
        key: u64,
        threads: usize,
    ) -> Result<Vec<Pair>, Error> {
        if ids.len() != pairs.len() {
            return Err(Error::Length {
                name: "ids",
                actual: ids.len(),
                expected: pairs.len(),
            });
        }
        self.plane.check("pairs", pairs.as_flattened())?;
        let mut drawn = filled([0, 0], pairs.len().checked_mul(count), "count", count)?;
        if drawn.is_empty() {
            return Ok(drawn);
        }
        let size = part(pairs.len(), PAIRS_OF_A_THREAD.div_ceil(count), threads);
        let mut results: Vec<Result<(), Error>> = pairs.chunks(size).map(|_| Ok(())).collect();
        let work = pairs.chunks(size).zip(ids.chunks(size));
        let work = work.zip(drawn.chunks_mut(size * count)).zip(&mut results).collect();
        for_each(threads, work, |(((pairs, ids), drawn), result)| {
            *result = self.fill(pairs, ids, count, key, drawn);
        });
        results.into_iter().collect::<Result<(), _>>()?;
        Ok(drawn)
    }

    fn fill(&self, pairs: &[Pair], ids: &[i64], count: usize, key: u64, drawn: &mut [Pair]) -> Result<(), Error> {
        let place = |at: usize| {
            let (edge, number) = (at / count, at % count);
            let key = derive(key, ids[edge] as u64);
            (pairs[edge], Stream::new(derive(key, number as u64)))
        };
        for (group, drawn) in drawn.chunks_mut(GROUP).enumerate() {
            let first = group * GROUP;
            for (at, pair) in (first..).zip(drawn.iter_mut()) {
                let (edge, stream) = place(at);
                *pair = self.tries(edge, stream).next().ok_or(Error::NoPair { edge })?;
            }
            let known = self.known(drawn);
            for ((at, pair), known) in (first..).zip(drawn).zip(known) {
                let (edge, stream) = place(at);
                if known || !differs(*pair, edge) {
                    let next = self.tries(edge, stream).skip(1).find(|&pair| self.serves(pair, edge));
                    *pair = next.ok_or(Error::NoPair { edge })?;
                }
            }
        }
        Ok(())
    }

    /// The pairs to try for an edge, in order. Nothing where there are no nodes.
    fn tries(&self, edge: Pair, mut stream: Stream) -> impl Iterator<Item = Pair> {
        let (first, ranges) = match &self.ends {
            None => {
                let nodes = self.num_candidates();
                (stream.next_u64() as usize & 1, [0..nodes, 0..nodes])
            }
            Some(ends) => (1, [ends.sources.clone(), ends.destinations.clone()]),
        };
        let is_empty = ranges.iter().any(Range::is_empty);
        let tries = if is_empty { 0 } else { 2 * TRIES + TRIES_OF_BOTH };
        (0..tries).map(move |at| {
            let mut node = |end: usize| {
                let range = &ranges[end];
                self.node(range.start as u64 + stream.below(range.len() as u64))
            };
            let mut pair = edge;
            match at / TRIES {
                0 => pair[first] = node(first),
                1 => pair[1 - first] = node(1 - first),
                _ => pair = [node(0), node(1)],
            }
            pair
        })
    }

    fn num_candidates(&self) -> usize {
        self.among.map_or(self.plane.num_nodes as usize, <[i64]>::len)
    }

    /// Says which of at most `GROUP` pairs are known. The searches go in step, so that
    /// their reads wait for memory together.
    fn known(&self, pairs: &[Pair]) -> [bool; GROUP] {
        let (mut codes, mut found) = ([0; GROUP], [0; GROUP]);
        for (code, &pair) in codes.iter_mut().zip(pairs) {
            *code = self.plane.code(pair);
        }
        if self.known.is_empty() {
            return [false; GROUP];
        }
        let mut size = self.known.len();
        while size > 1 {
            let half = size / 2;
            for (found, &code) in found.iter_mut().zip(&codes) {
                *found = select_unpredictable(self.known[*found + half] <= code, *found + half, *found);
            }
            size -= half;
        }
        std::array::from_fn(|at| self.known[found[at]] == codes[at])
    }

    #[inline]
    fn node(&self, at: u64) -> i64 {
        self.among.map_or(at as i64, |nodes| nodes[at as usize])
    }

    #[inline]
    fn serves(&self, pair: Pair, edge: Pair) -> bool {
        differs(pair, edge) && self.known.binary_search(&self.plane.code(pair)).is_err()
    }
}

/// Whether a pair is neither a loop nor the edge.
#[inline]
fn differs(pair: Pair, edge: Pair) -> bool {
    pair[0] != pair[1] && pair != edge
}

/// A number in [0, 1) for each of `pairs`, for its reverse the same.
pub fn draws(pairs: &[Pair], num_nodes: usize, key: u64, threads: usize) -> Result<Vec<f64>, Error> {
    let plane = Plane::new(num_nodes)?;
    plane.check("pairs", pairs.as_flattened())?;
    let mut drawn = filled(0.0, Some(pairs.len()), "pairs", pairs.len())?;
    let size = part(pairs.len(), PAIRS_OF_A_THREAD, threads);
    let work = pairs.chunks(size).zip(drawn.chunks_mut(size)).collect();
    for_each(threads, work, |(pairs, drawn): (&[Pair], &mut [f64])| {
        for (&pair, drawn) in pairs.iter().zip(drawn) {
            *drawn = Stream::new(derive(key, plane.unordered(pair) as u64)).next_f64();
        }
    });
    Ok(drawn)
}

/// The edges of a block that join no pair of `excluded`, in either direction: where the
/// edges of each destination start and end, and their places in the block.
///
/// `nodes` are the global ids of the sources, destinations first. `excluded` holds
/// ascending codes `larger end * num_nodes + smaller end`.
pub fn edges_without<I: Id, N: Id>(
    block: Csc<'_, I>,
    nodes: &[N],
    excluded: &[i64],
    num_nodes: usize,
) -> Result<(Vec<i64>, Vec<i64>), Error> {
    let plane = Plane::new(num_nodes)?;
    plane.check("src_nodes", nodes)?;
    if nodes.len() < block.num_nodes() {
        return Err(Error::Length {
            name: "src_nodes",
            actual: nodes.len(),
            expected: block.num_nodes(),
        });
    }
    let sieve = Sieve::new(excluded);
    let (mut indptr, mut kept) = (vec![0], Vec::with_capacity(block.num_edges()));
    for (row, bounds) in block.indptr().windows(2).enumerate() {
        for edge in bounds[0]..bounds[1] {
            let source = nodes[block.indices()[edge as usize].index()];
            let code = plane.unordered([source.signed(), nodes[row].signed()]);
            if !(sieve.may_hold(code) && excluded.binary_search(&code).is_ok()) {
                kept.push(edge);
            }
        }
        indptr.push(kept.len() as i64);
    }
    Ok((indptr, kept))
}

/// A bit for each hash of some codes. Most searches end here.
struct Sieve {
    bits: Vec<u64>,
    shift: u32,
}

impl Sieve {
    /// Sixteen bits for each code, up to a size that stays in a near cache.
    fn new(codes: &[i64]) -> Self {
        let log = (codes.len() * 16).next_power_of_two().trailing_zeros().clamp(6, 20);
        let mut sieve = Self {
            bits: vec![0; 1 << (log - 6)],
            shift: 64 - log,
        };
        for &code in codes {
            let place = sieve.place(code);
            sieve.bits[place / 64] |= 1 << (place % 64);
        }
        sieve
    }

    #[inline]
    const fn place(&self, code: i64) -> usize {
        // Multiplication by an odd constant spreads codes over the upper bits.
        ((code as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn may_hold(&self, code: i64) -> bool {
        let place = self.place(code);
        self.bits[place / 64] >> (place % 64) & 1 == 1
    }
}

/// Items of a thread's part, of which each thread takes several in turn.
fn part(items: usize, least: usize, threads: usize) -> usize {
    items.div_ceil(threads.clamp(1, MOST_THREADS) * 4).max(least).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const NODES: usize = 9;

    /// Ascending codes of a star around node 0, and of some edges more.
    fn known() -> Vec<i64> {
        let star = (1..8).map(|leaf| [leaf, 0]);
        let plane = Plane::new(NODES).unwrap();
        let mut codes: Vec<i64> = star
            .chain([[0, 3], [3, 5], [5, 3], [7, 2]])
            .map(|pair| plane.code(pair))
            .collect();
        codes.sort_unstable();
        codes
    }

    /// Counts what is drawn for one edge under many ids.
    fn counts(edge: Pair, among: Option<&[i64]>, draws: usize) -> HashMap<Pair, usize> {
        let known = known();
        let ids: Vec<i64> = (0..draws as i64).collect();
        let drawn = NonEdges::new(NODES, &known, among)
            .unwrap()
            .draw(&vec![edge; draws], &ids, 1, 5, 2);
        drawn.unwrap().into_iter().fold(HashMap::new(), |mut all, pair| {
            *all.entry(pair).or_insert(0) += 1;
            all
        })
    }

    #[test]
    fn each_end_is_replaced_equally_often_and_uniformly_over_non_edges() {
        const DRAWS: usize = 80_000;
        for edge in [[3, 5], [7, 2], [0, 3]] {
            let found = counts(edge, None, DRAWS);
            for end in [0, 1] {
                let possible: Vec<Pair> = (0..NODES as i64)
                    .map(|node| if end == 0 { [node, edge[1]] } else { [edge[0], node] })
                    .filter(|&[u, v]| u != v && known().binary_search(&(v * NODES as i64 + u)).is_err())
                    .collect();
                let expected = DRAWS as f64 / 2.0 / possible.len() as f64;
                let chi: f64 = possible
                    .iter()
                    .map(|pair| (*found.get(pair).unwrap_or(&0) as f64 - expected).powi(2) / expected)
                    .sum();
                assert!(chi < 27.9, "{edge:?}, end {end}: chi-square {chi}"); // p < 0.001 at 9 degrees
            }
        }
    }

    #[test]
    fn an_end_without_a_choice_leaves_the_other_end_and_then_both() {
        let sources: Vec<i64> = (1..8).collect();
        let found = counts([1, 0], Some(&sources), 1000); // every candidate is a source of 0
        assert!(
            found
                .keys()
                .all(|&[source, destination]| source == 1 && destination > 1)
        );
        let found = counts([3, 5], Some(&[3, 5, 0]), 1000);
        assert_eq!(
            found.keys().copied().collect::<std::collections::HashSet<_>>(),
            [[0, 5]].into()
        );
        let found = counts([2, 6], Some(&[2, 6]), 100); // only the reverse is left
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [[6, 2]]);
    }

    #[test]
    fn between_ends_the_destination_is_replaced_and_each_end_keeps_its_range() {
        const DRAWS: usize = 40_000;
        let known = known();
        let draw = |edge: Pair, among: Option<&[i64]>, sources: Range<usize>, destinations: Range<usize>| {
            let ids: Vec<i64> = (0..DRAWS as i64).collect();
            let ends = Ends { sources, destinations };
            NonEdges::new(NODES, &known, among)?
                .between(ends)?
                .draw(&vec![edge; DRAWS], &ids, 1, 5, 2)
        };
        let drawn = draw([7, 2], None, 5..9, 0..5).unwrap();
        let expected = DRAWS as f64 / 3.0; // 7 -> 0 and 7 -> 2 are edges
        for node in [1, 3, 4] {
            let count = drawn.iter().filter(|&&pair| pair == [7, node]).count() as f64;
            assert!(
                (count - expected).powi(2) / expected < 27.9,
                "destination {node}: {count}"
            );
        }
        // Every destination of the range is one of node 7's, so another source is drawn.
        let drawn = draw([7, 2], Some(&[5, 6, 7, 8, 2, 0]), 0..4, 4..6).unwrap();
        assert!(
            drawn
                .iter()
                .all(|&[source, end]| end == 2 && [5, 6, 8].contains(&source))
        );
        assert!(draw([7, 2], None, 5..10, 0..5).is_err());
        assert!(draw([7, 2], None, Range { start: 5, end: 4 }, 0..5).is_err());
        assert_eq!(draw([7, 2], None, 5..9, 3..3), Err(Error::NoPair { edge: [7, 2] }));
    }

    #[test]
    fn threads_and_other_edges_change_no_draw() {
        let known = known();
        let non_edges = NonEdges::new(NODES, &known, None).unwrap();
        let pairs: Vec<Pair> = (0..30_000).map(|at| [at % 9, (at + 1) % 9]).collect();
        let ids: Vec<i64> = (0..30_000).rev().collect();
        let alone = non_edges.draw(&pairs, &ids, 3, 7, 1).unwrap();
        for threads in [2, 5] {
            assert_eq!(non_edges.draw(&pairs, &ids, 3, 7, threads).unwrap(), alone);
            assert_eq!(
                draws(&pairs, NODES, 7, threads).unwrap(),
                draws(&pairs, NODES, 7, 1).unwrap()
            );
        }
        assert_eq!(
            non_edges.draw(&pairs[100..], &ids[100..], 3, 7, 1).unwrap(),
            alone[300..]
        );
        assert!(non_edges.draw(&pairs, &ids, 0, 7, 2).unwrap().is_empty());
    }

    #[test]
    fn a_complete_graph_is_an_error_and_ids_are_checked() {
        let all: Vec<i64> = (0..9).collect();
        let complete = NonEdges::new(3, &all, None).unwrap();
        assert_eq!(
            complete.draw(&[[1, 2]], &[0], 1, 0, 1),
            Err(Error::NoPair { edge: [1, 2] })
        );
        assert!(complete.draw(&[[1, 3]], &[0], 1, 0, 1).is_err());
        assert!(complete.draw(&[[1, 2]], &[], 1, 0, 1).is_err());
        assert!(complete.draw(&[[1, 2]], &[0], usize::MAX, 0, 1).is_err());
        assert!(NonEdges::new(3, &[], Some(&[-1])).is_err());
        assert!(NonEdges::new(MOST_NODES + 1, &[], None).is_err());
        assert!(draws(&[[0, 3]], 3, 0, 1).is_err());
    }

    #[test]
    fn draws_are_uniform_and_the_same_for_the_reverse() {
        let pairs: Vec<Pair> = (0..100_000).map(|at| [at / 400, at % 400]).collect();
        let reverse: Vec<Pair> = pairs.iter().map(|&[u, v]| [v, u]).collect();
        let drawn = draws(&pairs, 400, 3, 1).unwrap();
        assert_eq!(drawn, draws(&reverse, 400, 3, 1).unwrap());
        let mut counts = [0.0; 10];
        for (_, draw) in pairs.iter().zip(&drawn).filter(|(pair, _)| pair[0] < pair[1]) {
            counts[(draw * 10.0) as usize] += 1.0;
        }
        let total = counts.iter().sum::<f64>() / 10.0;
        let chi: f64 = counts.iter().map(|count| (count - total).powi(2) / total).sum();
        assert!(chi < 27.9, "chi-square {chi} at 9 degrees of freedom");
    }

    #[test]
    fn edges_of_excluded_pairs_leave_a_block_in_both_directions() {
        let (indptr, indices, nodes) = ([0, 3, 4], [1, 2, 0, 0], [5i64, 7, 9]);
        let block = Csc::new(&indptr, &indices, 3).unwrap();
        let without = |excluded: &[i64]| edges_without::<i32, i64>(block, &nodes, excluded, 20).unwrap();
        assert_eq!(without(&[7 * 20 + 5]), (vec![0, 2, 2], vec![1, 2])); // 7 -> 5 and 5 -> 7
        assert_eq!(without(&[]), (vec![0, 3, 4], vec![0, 1, 2, 3]));
        let all: Vec<i64> = (0..400).collect();
        assert_eq!(without(&all), (vec![0, 0, 0], vec![]));
        assert!(edges_without::<i32, i64>(block, &nodes[..1], &[], 20).is_err());
        assert!(edges_without::<i32, i64>(block, &nodes, &[], 9).is_err());
    }
}
