//! Partitions of nodes buffer by buffer: some nodes with their edges are clustered,
//! placed cluster by cluster, and then moved one by one.

use crate::csc::Id;
use crate::generate::Permutation;
use crate::memory::filled;
use crate::stream_nodes::{Parts, Score, State, Weight, check_square};
use crate::{Csc, Error};

/// The most nodes of a buffer.
const MAX_BUFFER: usize = 1 << 30;

/// A buffer has at most this many times as many in-edges as nodes, but one node at least.
const EDGES_PER_NODE: usize = 32;

/// The most rounds in which nodes choose the cluster of most of their neighbours.
const CLUSTERING: usize = 5;

/// The most rounds in which nodes of a buffer move to better parts.
const REFINING: usize = 6;

/// Rounds end where less than one node in so many has moved.
const SETTLED: usize = 100;

/// A cluster has at most this share of what a part may have.
const CLUSTERS_PER_PART: u64 = 8;

/// Assigns each node a part, `0..parts.number`.
///
/// As HeiStream (Faraj and Schulz, JEA 2022), with one level of clusters instead of
/// several: buffers of consecutive nodes are read, size-constrained label propagation
/// finds clusters in each, clusters are placed by the score of LDG, largest first, and
/// nodes then move to the best part. Later passes only move nodes. Within a buffer, edges count in both directions.
/// Parts have the bounds of `stream_nodes`. Nodes without edges in their buffer come
/// last. Takes O(num_nodes + parts) memory, and some bytes for each edge of a buffer.
pub fn buffer_nodes<I: Id>(csc: &Csc<'_, I>, parts: Parts, buffer: usize) -> Result<Vec<i32>, Error> {
    check_square(csc)?;
    parts.check()?;
    if !(1..=MAX_BUFFER).contains(&buffer) {
        let (name, value, low, high) = ("buffer", buffer, 1, MAX_BUFFER);
        return Err(Error::Count { name, value, low, high });
    }
    let mut state = State::new(csc, parts, Score::Ldg)?;
    for pass in 0..parts.passes {
        let (mut first, mut alone) = (0, Vec::new());
        while first < csc.num_nodes() {
            let last = end_of(csc, first, buffer);
            let buffer = Buffer::read(csc, first, last)?;
            if pass == 0 {
                buffer.place(&mut state)?;
            }
            buffer.refine(&mut state, &mut alone);
            first = last;
        }
        alone.into_iter().for_each(|node| state.place(node, std::iter::empty()));
    }
    Ok(state.part)
}

/// The end of the buffer that begins with a node.
fn end_of<I: Id>(csc: &Csc<'_, I>, first: usize, buffer: usize) -> usize {
    let most = buffer.saturating_mul(EDGES_PER_NODE);
    let (mut last, mut edges) = (first, 0usize);
    while last < csc.num_nodes() && last - first < buffer {
        edges += csc.neighbors(last).len();
        if last > first && edges > most {
            break;
        }
        last += 1;
    }
    last
}

/// The nodes `first..first + len`, numbered from 0, and the edges between them.
struct Buffer<'a, I> {
    csc: &'a Csc<'a, I>,
    first: usize,
    len: usize,
    start: Vec<usize>, // [len + 1] begin of each node's out-edges in the buffer
    targets: Vec<u32>, // destinations of these
}

impl<'a, I: Id> Buffer<'a, I> {
    fn read(csc: &'a Csc<'a, I>, first: usize, last: usize) -> Result<Self, Error> {
        let len = last - first;
        let mut start = filled(0usize, len.checked_add(1), "buffer", len)?;
        let mut buffer = Self {
            csc,
            first,
            len,
            start: Vec::new(),
            targets: Vec::new(),
        };
        for node in 0..len {
            buffer.inside(node).for_each(|source| start[source + 1] += 1);
        }
        for node in 0..len {
            start[node + 1] += start[node];
        }
        let total = start[len];
        let mut targets = filled(0u32, Some(total), "edges of a buffer", total)?;
        let mut at = start.clone();
        for node in 0..len {
            buffer.inside(node).for_each(|source| {
                targets[at[source]] = node as u32;
                at[source] += 1;
            });
        }
        (buffer.start, buffer.targets) = (start, targets);
        Ok(buffer)
    }

    /// Sources of a node's in-edges that are in the buffer. Self-loops are none.
    fn inside(&self, node: usize) -> impl Iterator<Item = usize> + use<'a, '_, I> {
        let (first, len) = (self.first, self.len);
        let sources = self.csc.neighbors(first + node).iter();
        sources
            .map(move |source| source.index().wrapping_sub(first))
            .filter(move |&source| source < len && source != node)
    }

    /// Destinations of a node's out-edges that are in the buffer.
    fn outward(&self, node: usize) -> impl Iterator<Item = usize> + use<'_, 'a, I> {
        self.targets[self.start[node]..self.start[node + 1]]
            .iter()
            .map(|&target| target as usize)
    }

    /// Gives all nodes with edges a part, cluster by cluster.
    fn place(&self, state: &mut State<'a, I>) -> Result<(), Error> {
        for members in self.clusters(state)?.in_order() {
            if !self.is_alone(members[0] as usize) {
                self.place_cluster(state, members);
            }
        }
        Ok(())
    }

    /// Moves nodes to better parts, and adds those without edges to `alone`.
    fn refine(&self, state: &mut State<'a, I>, alone: &mut Vec<usize>) {
        alone.extend(
            (0..self.len)
                .filter(|&node| self.is_alone(node))
                .map(|node| self.first + node),
        );
        for _ in 0..REFINING {
            let mut moved = 0usize;
            for node in (0..self.len).filter(|&node| !self.is_alone(node)) {
                let before = state.part[self.first + node];
                state.place(self.first + node, self.outward(node).map(|target| self.first + target));
                moved += usize::from(state.part[self.first + node] != before);
            }
            if moved * SETTLED < self.len {
                break;
            }
        }
    }

    /// Whether no edge leads to the node, and none to the buffer leaves the node.
    fn is_alone(&self, node: usize) -> bool {
        self.csc.neighbors(self.first + node).is_empty() && self.start[node] == self.start[node + 1]
    }

    /// Gives the nodes of a cluster to one part, or each to its own if none has room.
    fn place_cluster(&self, state: &mut State<'a, I>, members: &[u32]) {
        let global = |node: &u32| self.first + *node as usize;
        let further = |node: &u32| self.outward(*node as usize).map(|target| self.first + target);
        let mut weight = Weight { nodes: 0, edges: 0 };
        for node in members {
            let own = state.weight(global(node));
            weight.nodes += own.nodes;
            weight.edges += own.edges;
            state.see(global(node), further(node));
        }
        match state.place_together(weight) {
            Some(part) => members.iter().for_each(|node| state.enter(global(node), part)),
            None => members.iter().for_each(|node| state.place(global(node), further(node))),
        }
    }

    /// Clusters by label propagation (Raghavan, Albert and Kumara, 2007), of bounded
    /// size. Nodes choose in a keyed order.
    fn clusters(&self, state: &State<'a, I>) -> Result<Clusters, Error> {
        let bound = state.most();
        let most = Weight {
            nodes: bound.nodes.div_ceil(CLUSTERS_PER_PART),
            edges: bound.edges.div_ceil(CLUSTERS_PER_PART),
        };
        let mut label: Vec<u32> = (0..self.len as u32).collect();
        let mut sizes: Vec<Weight> = (0..self.len).map(|node| state.weight(self.first + node)).collect();
        let mut count = filled(0u32, Some(self.len), "buffer", self.len)?;
        let (mut touched, order) = (Vec::new(), Permutation::new(self.len, self.first as u64));
        for _ in 0..CLUSTERING {
            let mut moved = 0usize;
            for node in (0..self.len).map(|index| order.apply(index)) {
                let own = state.weight(self.first + node);
                for neighbour in self.inside(node).chain(self.outward(node)) {
                    let cluster = label[neighbour] as usize;
                    if count[cluster] == 0 {
                        touched.push(cluster);
                    }
                    count[cluster] += 1;
                }
                let home = label[node] as usize;
                let mut best = (count[home], home);
                for &cluster in &touched {
                    let size = sizes[cluster];
                    let fits = size.nodes + own.nodes <= most.nodes && size.edges + own.edges <= most.edges;
                    let better =
                        count[cluster] > best.0 || (count[cluster] == best.0 && best.1 != home && cluster < best.1);
                    if cluster != home && fits && better {
                        best = (count[cluster], cluster);
                    }
                }
                touched.drain(..).for_each(|cluster| count[cluster] = 0);
                if best.1 != home {
                    sizes[home].nodes -= own.nodes;
                    sizes[home].edges -= own.edges;
                    sizes[best.1].nodes += own.nodes;
                    sizes[best.1].edges += own.edges;
                    label[node] = best.1 as u32;
                    moved += 1;
                }
            }
            if moved * SETTLED < self.len {
                break;
            }
        }
        Clusters::of(&label, &sizes)
    }
}

/// The nodes of each cluster of a buffer, largest cluster first.
struct Clusters {
    order: Vec<u32>,   // clusters with nodes
    start: Vec<usize>, // [len + 1] begin of each cluster's members
    members: Vec<u32>, // [len] by cluster
}

impl Clusters {
    fn of(label: &[u32], sizes: &[Weight]) -> Result<Self, Error> {
        let len = label.len();
        let mut start = filled(0usize, len.checked_add(1), "buffer", len)?;
        label.iter().for_each(|&cluster| start[cluster as usize + 1] += 1);
        for cluster in 0..len {
            start[cluster + 1] += start[cluster];
        }
        let (mut at, mut members) = (start.clone(), filled(0u32, Some(len), "buffer", len)?);
        for (node, &cluster) in label.iter().enumerate() {
            members[at[cluster as usize]] = node as u32;
            at[cluster as usize] += 1;
        }
        let mut order: Vec<u32> = (0..len as u32).filter(|&each| sizes[each as usize].nodes > 0).collect();
        let size = |each: &u32| sizes[*each as usize].nodes + sizes[*each as usize].edges;
        order.sort_by_key(|each| std::cmp::Reverse(size(each))); // stable
        Ok(Self { order, start, members })
    }

    fn in_order(&self) -> impl Iterator<Item = &[u32]> {
        let members = |each: &u32| &self.members[self.start[*each as usize]..self.start[*each as usize + 1]];
        self.order.iter().map(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::from_edges;
    use proptest::prelude::*;

    fn graph(pairs: impl IntoIterator<Item = (i32, i32)>, n: usize) -> (Vec<i64>, Vec<i32>) {
        let (src, dst): (Vec<i32>, Vec<i32>) = pairs.into_iter().unzip();
        let sorted = from_edges::<i32, ()>(&src[..], &dst[..], n, n, 1).unwrap();
        (sorted.indptr, sorted.indices)
    }

    fn parts(number: usize, passes: usize) -> Parts {
        Parts {
            number,
            max_imbalance: 1.1,
            passes,
        }
    }

    proptest! {
        #[test]
        fn every_node_has_a_part_for_any_buffer(
            n in 1usize..40, pairs in prop::collection::vec((0..40i32, 0..40i32), 0..160),
            number in 1usize..6, buffer in 1usize..50, passes in 1usize..3,
        ) {
            let (indptr, indices) = graph(pairs.into_iter().map(|(a, b)| (a % n as i32, b % n as i32)), n);
            let csc = Csc::new(&indptr, &indices, n).unwrap();
            let part = buffer_nodes(&csc, parts(number, passes), buffer).unwrap();
            prop_assert_eq!(&part, &buffer_nodes(&csc, parts(number, passes), buffer).unwrap());
            prop_assert!(part.iter().all(|&part| (0..number as i32).contains(&part)));
        }
    }

    #[test]
    fn cliques_are_found_in_one_buffer_and_in_several() {
        // Eight cliques of 16 nodes, with ids interleaved within ranges of 32.
        let pairs = (0..128).flat_map(|a| (0..128).map(move |b| (a, b)));
        let same = |a: i32, b: i32| a / 32 == b / 32 && a % 2 == b % 2;
        let (indptr, indices) = graph(pairs.filter(|&(a, b)| a != b && same(a, b)), 128);
        let csc = Csc::new(&indptr, &indices, 128).unwrap();
        for buffer in [128, 32] {
            let part = buffer_nodes(&csc, parts(4, 1), buffer).unwrap();
            for node in 0..128 {
                assert_eq!(part[node], part[node / 32 * 32 + node % 2], "buffer {buffer}: {part:?}");
            }
            let sizes: Vec<_> = (0..4)
                .map(|own| part.iter().filter(|&&part| part == own).count())
                .collect();
            assert_eq!(sizes, [32; 4]);
        }
    }

    #[test]
    fn errors_name_the_argument() {
        let csc = Csc::new(&[0, 1, 1], &[1i32], 2).unwrap();
        let text = |number, buffer| buffer_nodes(&csc, parts(number, 1), buffer).unwrap_err().to_string();
        assert_eq!(text(0, 1), "num_parts = 0 must be within 1..=16777216");
        assert_eq!(text(2, 0), "buffer = 0 must be within 1..=1073741824");
    }
}
