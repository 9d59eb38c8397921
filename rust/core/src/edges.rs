//! Converts edge lists to CSC by one parallel sort. The result does not depend on the
//! number of threads.

use std::mem::take;
use std::ops::Range;

use crate::csc::{Csc, Id, check_ids, check_indptr};
use crate::error::Error;
use crate::memory::{self, filled};
use crate::pool::for_each;

/// Buckets of one scatter: so many open cache lines and pages a core follows well.
const MAX_BUCKETS: usize = 1 << 10;
/// Edges per bucket to aim at: the bucket is then sorted within the cache.
const BUCKET_EDGES: usize = 1 << 16;
/// Below this many units of work per thread, starting the thread costs more than it
/// saves.
const MIN_WORK: usize = 1 << 14;

/// A value that travels with an edge through the sort: the position of the edge, or
/// `()`, which takes no memory.
pub trait Tag: Copy + Default + Send + Sync {
    /// The tag of the edge at `position`.
    fn at(position: usize) -> Self;
}

impl Tag for i32 {
    fn at(position: usize) -> Self {
        position as i32
    }
}

impl Tag for i64 {
    fn at(position: usize) -> Self {
        position as i64
    }
}

impl Tag for () {
    fn at(_: usize) -> Self {}
}

/// Edges that can be visited from any unit of work on, so that threads share them: two
/// slices, a graph, a generator.
pub trait Edges<A>: Sync {
    /// Number of units of work. A unit may yield any number of edges.
    fn num_units(&self) -> usize;

    /// Calls `visit(source, destination, tag)` for each edge of the units, the same way
    /// every time.
    fn each(&self, units: Range<usize>, visit: impl FnMut(usize, usize, A));
}

/// A CSC with the tag of each edge. The in-edges of a destination are ordered by source,
/// and equal ones as they were visited.
#[derive(Debug, Clone, PartialEq)]
pub struct Sorted<I, A> {
    /// Where the in-edges of each destination start and end.
    pub indptr: Vec<i64>,
    /// The source of each edge.
    pub indices: Vec<I>,
    /// The tag of each edge.
    pub tags: Vec<A>,
}

type Record<I, A> = (I, I, A); // destination, source, tag

/// Sorts edges between nodes that the caller has checked: sources fit `I`, destinations
/// are `0..num_nodes`.
pub fn sort<I: Id, A: Tag>(edges: &impl Edges<A>, num_nodes: usize, threads: usize) -> Result<Sorted<I, A>, Error> {
    let mut indptr = filled(0i64, num_nodes.checked_add(1), "num_nodes", num_nodes)?;
    let units = edges.num_units();
    let parts = split(units, threads.clamp(1, units / MIN_WORK + 1));
    let shift = bucket_shift(num_nodes, units);
    let counts = count(edges, &parts, num_nodes.div_ceil(1 << shift), shift);
    let records = scatter::<I, A>(edges, parts, &counts, shift)?;
    let num_edges = records.len();
    let mut indices = filled(I::from_index(0), Some(num_edges), "num_edges", num_edges)?;
    let mut tags = filled(A::default(), Some(num_edges), "num_edges", num_edges)?;

    let mut work = Vec::new();
    let (mut start, mut slices) = (0, (&records[..], &mut indices[..], &mut tags[..]));
    for (bucket, indptr) in indptr[1..].chunks_mut(1 << shift).enumerate() {
        let size = counts.iter().map(|part| part[bucket]).sum();
        let (records, more_records) = slices.0.split_at(size);
        let (indices, more_indices) = slices.1.split_at_mut(size);
        let (tags, more_tags) = slices.2.split_at_mut(size);
        slices = (more_records, more_indices, more_tags);
        work.push((start, bucket << shift, indptr, records, indices, tags));
        start += size;
    }
    for_each(threads, work, |(start, first, indptr, records, indices, tags)| {
        sort_bucket(first, indptr, records, indices, tags);
        for entry in indptr {
            *entry += start as i64;
        }
    });
    Ok(Sorted { indptr, indices, tags })
}

/// Sorts the edges into the destinations from `first` on: by counting them, and then the
/// sources of each destination. `indptr` gets the end of each.
fn sort_bucket<I: Id, A: Tag>(
    first: usize,
    indptr: &mut [i64],
    records: &[Record<I, A>],
    indices: &mut [I],
    tags: &mut [A],
) {
    for (destination, ..) in records {
        indptr[destination.index() - first] += 1;
    }
    let mut begin = 0;
    for entry in indptr.iter_mut() {
        (*entry, begin) = (begin, begin + *entry);
    }
    let mut keys = vec![I::Key::default(); records.len()];
    for (number, &(destination, source, _)) in records.iter().enumerate() {
        let place = &mut indptr[destination.index() - first]; // its begin, and at last its end
        keys[*place as usize] = source.key(number);
        *place += 1;
    }
    let mut begin = 0;
    for &end in indptr.iter() {
        keys[begin..end as usize].sort_unstable(); // no two are equal
        begin = end as usize;
    }
    for ((index, tag), key) in indices.iter_mut().zip(tags).zip(keys) {
        let (source, number) = I::of_key(key);
        (*index, *tag) = (source, records[number].2);
    }
}

fn bucket_shift(num_nodes: usize, num_edges: usize) -> u32 {
    let buckets = (num_edges / BUCKET_EDGES).clamp(1, MAX_BUCKETS);
    num_nodes.div_ceil(buckets).max(1).next_power_of_two().trailing_zeros()
}

fn split(units: usize, parts: usize) -> Vec<Range<usize>> {
    (0..parts)
        .map(|part| units * part / parts..units * (part + 1) / parts)
        .collect()
}

fn count<A>(edges: &impl Edges<A>, parts: &[Range<usize>], buckets: usize, shift: u32) -> Vec<Vec<usize>> {
    let mut counts = vec![vec![0; buckets]; parts.len()];
    let work = parts.iter().cloned().zip(&mut counts).collect();
    for_each(parts.len(), work, |(units, counts)| {
        edges.each(units, |_, destination, _| counts[destination >> shift] += 1);
    });
    counts
}

/// Brings the edges into the order of their buckets. Each part has its own stretch of
/// each bucket, so none waits.
fn scatter<I: Id, A: Tag>(
    edges: &impl Edges<A>,
    parts: Vec<Range<usize>>,
    counts: &[Vec<usize>],
    shift: u32,
) -> Result<Vec<Record<I, A>>, Error> {
    let num_edges = counts.iter().flatten().sum();
    let empty = (I::from_index(0), I::from_index(0), A::default());
    let mut records = filled(empty, Some(num_edges), "num_edges", num_edges)?;
    let mut rest = &mut records[..];
    let mut stretches: Vec<Vec<_>> = parts.iter().map(|_| Vec::new()).collect();
    for bucket in 0..counts[0].len() {
        for (sizes, stretches) in counts.iter().zip(&mut stretches) {
            let (stretch, more) = take(&mut rest).split_at_mut(sizes[bucket]);
            stretches.push(stretch.iter_mut());
            rest = more;
        }
    }
    let work: Vec<_> = parts.into_iter().zip(stretches).collect();
    for_each(work.len(), work, |(units, mut stretches)| {
        edges.each(units, |source, destination, tag| {
            let record = stretches[destination >> shift].next().expect("counted above");
            *record = (I::from_index(destination), I::from_index(source), tag);
        });
    });
    Ok(records)
}

/// An edge list as users have it, tagged by position.
struct List<'a, S, D> {
    src: &'a [S],
    dst: &'a [D],
}

impl<S: Id, D: Id, A: Tag> Edges<A> for List<'_, S, D> {
    fn num_units(&self) -> usize {
        self.src.len()
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, A)) {
        for position in units {
            visit(self.src[position].index(), self.dst[position].index(), A::at(position));
        }
    }
}

/// An edge list with a tag of the caller's for each edge.
struct Tagged<'a, S, D, A> {
    src: &'a [S],
    dst: &'a [D],
    tags: &'a [A],
}

impl<S: Id, D: Id, A: Tag> Edges<A> for Tagged<'_, S, D, A> {
    fn num_units(&self) -> usize {
        self.src.len()
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, A)) {
        for position in units {
            visit(
                self.src[position].index(),
                self.dst[position].index(),
                self.tags[position],
            );
        }
    }
}

/// The edges of a graph turned around, tagged by their position in it.
struct Reversed<'a, I>(Csc<'a, I>);

impl<I: Id, A: Tag> Edges<A> for Reversed<'_, I> {
    fn num_units(&self) -> usize {
        self.0.num_edges()
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, A)) {
        each_edge(&self.0, units, |source, destination, edge| {
            visit(destination, source, A::at(edge))
        });
    }
}

/// The edges of a graph and the missing reverse edges, tagged by the position of the
/// edge of the graph.
struct Symmetric<'a, I, O> {
    csc: Csc<'a, I>,
    reversed: Csc<'a, O>, // sources of a destination ascend
}

impl<I: Id, O: Id, A: Tag> Edges<A> for Symmetric<'_, I, O> {
    fn num_units(&self) -> usize {
        self.csc.num_edges()
    }

    fn each(&self, units: Range<usize>, mut visit: impl FnMut(usize, usize, A)) {
        each_edge(&self.csc, units, |source, destination, edge| {
            visit(source, destination, A::at(edge));
            let out_neighbors = self.reversed.neighbors(destination);
            if out_neighbors.binary_search_by_key(&source, |id| id.index()).is_err() {
                visit(destination, source, A::at(edge));
            }
        });
    }
}

/// Visits (source, destination, position) of the edges at the given positions of a
/// graph.
fn each_edge<I: Id>(csc: &Csc<'_, I>, edges: Range<usize>, mut visit: impl FnMut(usize, usize, usize)) {
    let mut end = csc.indptr().partition_point(|&end| end as usize <= edges.start);
    for edge in edges {
        while csc.indptr()[end] as usize <= edge {
            end += 1;
        }
        visit(csc.indices()[edge].index(), end - 1, edge);
    }
}

/// The CSC of the edges `src[i] -> dst[i]`, tagged by i.
///
/// # Example
/// ```
/// use gnnkit_core::edges::from_edges;
/// let sorted = from_edges::<i32, i64>(&[2i64, 0, 1], &[1, 1, 0], 2, 3, 1)?;
/// assert_eq!(sorted.indptr, [0, 1, 3]);
/// assert_eq!(sorted.indices, [1, 0, 2]);
/// assert_eq!(sorted.tags, [2, 1, 0]);
/// # Ok::<(), gnnkit_core::Error>(())
/// ```
pub fn from_edges<O: Id, A: Tag>(
    src: &[impl Id],
    dst: &[impl Id],
    num_nodes: usize,
    num_sources: usize,
    threads: usize,
) -> Result<Sorted<O, A>, Error> {
    check_list(src, dst, num_nodes, num_sources)?;
    sort(&List { src, dst }, num_nodes, threads)
}

/// As [`from_edges`], with the tags of the caller. Equal edges stay in the order of the
/// list.
pub fn from_tagged<I: Id, A: Tag>(
    src: &[I],
    dst: &[impl Id],
    tags: &[A],
    num_nodes: usize,
    num_sources: usize,
    threads: usize,
) -> Result<Sorted<I, A>, Error> {
    check_list(src, dst, num_nodes, num_sources)?;
    check_length("tags", tags.len(), src.len())?;
    sort(&Tagged { src, dst, tags }, num_nodes, threads)
}

fn check_list(src: &[impl Id], dst: &[impl Id], num_nodes: usize, num_sources: usize) -> Result<(), Error> {
    check_ids("src", src, num_sources, "nodes")?;
    check_ids("dst", dst, num_nodes, "nodes")?;
    check_length("dst", dst.len(), src.len())
}

fn check_length(name: &'static str, actual: usize, expected: usize) -> Result<(), Error> {
    if actual != expected {
        return Err(Error::Length { name, actual, expected });
    }
    Ok(())
}

/// Lists the sources of all edges of a CSC, and then the destinations of these edges.
///
/// # Example
/// ```
/// use gnnkit_core::edges::list;
/// assert_eq!(list(&[0, 1, 3], &[1, 1, 0])?.as_slice(), [1, 1, 0, 0, 1, 1]);
/// # Ok::<(), gnnkit_core::Error>(())
/// ```
pub fn list(indptr: &[i64], indices: &[impl Id]) -> Result<memory::List<i64>, Error> {
    check_indptr(indptr, indices.len())?;
    // A little more, so that lists of about as many edges use the same memory.
    let mut ends = memory::List::with_capacity(2 * indices.len() + indices.len() / 4);
    ends.extend(indices.iter().map(|source| source.signed()));
    for (destination, end) in indptr[1..].iter().enumerate() {
        ends.resize(indices.len() + *end as usize, destination as i64);
    }
    Ok(ends)
}

/// The graph with every edge turned around: its destinations are the sources of `csc`.
/// Tagged by position in `csc`.
pub fn transpose<O: Id, A: Tag>(csc: Csc<'_, impl Id>, threads: usize) -> Result<Sorted<O, A>, Error> {
    sort(&Reversed(csc), csc.num_sources(), threads)
}

/// The graph and the reverse of each edge u -> v, u != v, where no edge v -> u exists.
/// Tagged by the position in `csc` of the edge itself or of the one it reverses. As
/// many parallel edges are added as there are. A pair that is joined in both directions
/// stays unchanged. `csc` must have as many sources as destinations.
pub fn symmetrize<O: Id, A: Tag>(csc: Csc<'_, impl Id>, threads: usize) -> Result<Sorted<O, A>, Error> {
    let Sorted { indptr, indices, .. } = transpose::<O, ()>(csc, threads)?;
    let reversed = Csc::new(&indptr, &indices, csc.num_nodes())?;
    sort(&Symmetric { csc, reversed }, csc.num_nodes(), threads)
}

/// The sum of the weights of each destination's in-edges and of each source's
/// out-edges, added in the order of their positions. Without weights every edge counts
/// 1.
pub fn degrees<I: Id, W: Copy + Into<f64>>(
    csc: Csc<'_, I>,
    weight: Option<&[W]>,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    if let Some(weight) = weight {
        check_length("weight", weight.len(), csc.num_edges())?;
    }
    let (num_nodes, num_sources) = (csc.num_nodes(), csc.num_sources());
    let mut inward = filled(0.0, Some(num_nodes), "num_nodes", num_nodes)?;
    let mut outward = filled(0.0, Some(num_sources), "num_sources", num_sources)?;
    each_edge(&csc, 0..csc.num_edges(), |source, destination, edge| {
        let weight = weight.map_or(1.0, |weight| weight[edge].into());
        inward[destination] += weight;
        outward[source] += weight;
    });
    Ok((inward, outward))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    fn random_edges(num_nodes: u64, num_edges: usize) -> (Vec<i32>, Vec<i32>) {
        let mut stream = Stream::new(num_nodes);
        (0..num_edges)
            .map(|_| (stream.below(num_nodes) as i32, stream.below(num_nodes) as i32))
            .unzip()
    }

    #[test]
    fn any_number_of_threads_gives_the_sorted_edges() {
        for (num_nodes, num_edges) in [(1, 0), (1, 5), (70, 100_000), (100_000, 300_000)] {
            let (src, dst) = random_edges(num_nodes, num_edges);
            let mut expected: Vec<_> = (0..num_edges).map(|e| (dst[e], src[e], e as i64)).collect();
            expected.sort_unstable();
            for threads in [1, 2, 3, 8] {
                let n = num_nodes as usize;
                let sorted = from_edges::<i32, i64>(&src, &dst, n, n, threads).unwrap();
                assert_eq!(sorted.tags, expected.iter().map(|e| e.2).collect::<Vec<_>>());
                let tags: Vec<i32> = (0..num_edges as i32).map(|e| 7 - e).collect();
                let tagged = from_tagged::<i32, i32>(&src, &dst, &tags, n, n, threads).unwrap();
                assert_eq!(tagged.tags, expected.iter().map(|e| 7 - e.2 as i32).collect::<Vec<_>>());
                assert_eq!(tagged.indptr, sorted.indptr);
                let csc = Csc::new(&sorted.indptr, &sorted.indices, n).unwrap();
                let mut edges = Vec::new();
                each_edge(&csc, 0..num_edges, |source, destination, _| {
                    edges.push((destination as i32, source as i32))
                });
                assert_eq!(edges, expected.iter().map(|e| (e.0, e.1)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn symmetrize_is_idempotent_and_equals_its_transpose() {
        let (src, dst) = random_edges(50, 100);
        let sorted = from_edges::<i32, ()>(&src, &dst, 50, 50, 1).unwrap();
        let once = symmetrize::<i64, ()>(Csc::new(&sorted.indptr, &sorted.indices, 50).unwrap(), 1).unwrap();
        let csc = Csc::new(&once.indptr, &once.indices, 50).unwrap();
        assert_eq!(symmetrize(csc, 2).unwrap(), once);
        let mut pairs = transpose::<i64, ()>(csc, 2).unwrap().indices;
        let mut back = once.indices.clone();
        pairs.dedup();
        back.dedup();
        assert_eq!(pairs, back);
    }

    #[test]
    fn errors_name_the_place() {
        let text = |src: &[i64], dst: &[i64], num_nodes| {
            from_edges::<i32, ()>(src, dst, num_nodes, 3, 1)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(text(&[0, 3], &[0, 1], 3), "src[1] = 3 is out of range for 3 nodes");
        assert_eq!(text(&[0, 2], &[-1, 1], 3), "dst[0] = -1 is out of range for 3 nodes");
        assert_eq!(text(&[0, 2], &[1], 3), "dst has 1 entries, expected 2");
        assert_eq!(
            text(&[], &[], usize::MAX),
            format!("num_nodes = {} needs more memory than there is", usize::MAX)
        );
    }
}
