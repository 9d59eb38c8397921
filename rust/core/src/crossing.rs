//! Edges between the regions of a partition.

use std::ops::Range;

use crate::csc::{Csc, Id, check_ids};
use crate::error::Error;
use crate::memory::filled;
use crate::pool::for_each;
use crate::view::prefetch;

/// Below this many edges per thread, starting the thread costs more than it saves.
const MIN_WORK: usize = 1 << 16;

/// Owners of sources are asked for this many edges ahead.
const AHEAD: usize = 16;

/// The edges whose ends have different owners.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// How many there are.
    pub count: usize,
    /// Which nodes have one.
    pub boundary: Vec<bool>,
    /// Which pairs (owner of the destination, owner of the source) have one, row by row.
    pub linked: Vec<bool>,
}

/// Finds the edges between owners. `owner` is below `num_ranks` for each node. The error
/// names the first owner that is not, and a graph of other nodes.
pub fn crossing<I: Id>(csc: Csc<'_, I>, owner: &[i32], num_ranks: usize, threads: usize) -> Result<Crossing, Error> {
    check_ids("owner", owner, num_ranks, "ranks")?;
    for expected in [csc.num_nodes(), csc.num_sources()] {
        if owner.len() != expected {
            let (name, actual) = ("owner", owner.len());
            return Err(Error::Length { name, actual, expected });
        }
    }
    let mut found = Vec::new();
    let parts = parts(&csc, threads);
    for _ in &parts {
        found.push(Crossing {
            count: 0,
            boundary: filled(false, Some(owner.len()), "owner", owner.len())?,
            linked: filled(false, num_ranks.checked_mul(num_ranks), "num_ranks", num_ranks)?,
        });
    }
    let work: Vec<_> = parts.into_iter().zip(&mut found).collect();
    for_each(work.len(), work, |(nodes, found)| {
        look(&csc, nodes, owner, num_ranks, found)
    });
    let mut whole = found.pop().expect("there is a part");
    for part in found {
        whole.count += part.count;
        join(&mut whole.boundary, &part.boundary);
        join(&mut whole.linked, &part.linked);
    }
    Ok(whole)
}

fn join(whole: &mut [bool], part: &[bool]) {
    whole.iter_mut().zip(part).for_each(|(whole, part)| *whole |= part);
}

fn look<I: Id>(csc: &Csc<'_, I>, nodes: Range<usize>, owner: &[i32], num_ranks: usize, found: &mut Crossing) {
    let indices = csc.indices();
    for node in nodes {
        let own = owner[node];
        let (begin, end) = (csc.indptr()[node] as usize, csc.indptr()[node + 1] as usize);
        for edge in begin..end {
            if let Some(next) = indices.get(edge + AHEAD) {
                prefetch(owner, next.index());
            }
            let source = indices[edge].index();
            let other = owner[source];
            if other != own {
                found.count += 1;
                found.boundary[source] = true;
                found.boundary[node] = true;
                found.linked[own.index() * num_ranks + other.index()] = true;
            }
        }
    }
}

/// Ranges of nodes with about as many in-edges.
fn parts<I: Id>(csc: &Csc<'_, I>, threads: usize) -> Vec<Range<usize>> {
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
    use super::*;
    use crate::edges::from_edges;
    use crate::rng::Stream;

    #[test]
    fn any_number_of_threads_finds_the_edges_between_owners() {
        let mut stream = Stream::new(3);
        for (num_nodes, num_edges) in [(1, 0), (40, 60), (1000, 300_000)] {
            let mut draw =
                |below: u64, count: usize| -> Vec<i32> { (0..count).map(|_| stream.below(below) as i32).collect() };
            let (src, dst) = (draw(num_nodes, num_edges), draw(num_nodes, num_edges));
            let (owner, n) = (draw(3, num_nodes as usize), num_nodes as usize);
            let sorted = from_edges::<i32, ()>(&src, &dst, n, n, 1).unwrap();
            let csc = Csc::new(&sorted.indptr, &sorted.indices, n).unwrap();
            let mut expected = Crossing {
                count: 0,
                boundary: vec![false; n],
                linked: vec![false; 9],
            };
            for (&source, &destination) in src.iter().zip(&dst) {
                let (from, to) = (owner[source as usize], owner[destination as usize]);
                if from != to {
                    expected.count += 1;
                    expected.boundary[source as usize] = true;
                    expected.boundary[destination as usize] = true;
                    expected.linked[(to * 3 + from) as usize] = true;
                }
            }
            for threads in [1, 2, 8] {
                assert_eq!(crossing(csc, &owner, 3, threads).unwrap(), expected);
            }
        }
    }

    #[test]
    fn errors_name_the_owner() {
        let csc = Csc::new(&[0, 1], &[0i32], 1).unwrap();
        let text = |owner: &[i32]| crossing(csc, owner, 2, 1).unwrap_err().to_string();
        assert_eq!(text(&[2]), "owner[0] = 2 is out of range for 2 ranks");
        assert_eq!(text(&[0, 0]), "owner has 2 entries, expected 1");
    }
}
