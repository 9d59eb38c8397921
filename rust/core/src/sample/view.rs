//! The graph as a sampler reads it.

use std::ops::Range;

use crate::csc::Id;
use crate::{Csc, Error};

/// A CSC in memory that somebody else may write to while we read: a NumPy array, a mapped file.
///
/// Making one looks at lengths only, so it costs nothing per batch. Each value is checked where it is read, so a corrupt graph,
/// or one that changes after it was checked, ends in an error and never in a node or an address that does not exist.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, I> {
    indptr: &'a [i64],
    indices: &'a [I],
    num_sources: usize,
}

impl<'a, I: Id> View<'a, I> {
    /// Sources are `0..num_sources`; `indptr` must not be empty.
    pub fn new(indptr: &'a [i64], indices: &'a [I], num_sources: usize) -> Result<Self, Error> {
        if indptr.is_empty() {
            return Err(Error::Length {
                name: "indptr",
                actual: 0,
                expected: 1,
            });
        }
        Ok(Self {
            indptr,
            indices,
            num_sources,
        })
    }

    /// Number of destinations.
    pub fn num_nodes(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Number of edges.
    pub fn num_edges(&self) -> usize {
        self.indices.len()
    }

    /// Sources are `0..num_sources`.
    pub fn num_sources(&self) -> usize {
        self.num_sources
    }

    /// The source of each edge, as it stands: not yet compared with `num_sources`.
    pub fn indices(&self) -> &'a [I] {
        self.indices
    }

    /// The positions of the in-edges of `node`, inside of `indices`. `node` must be one of the destinations.
    #[inline(always)]
    pub fn edges(&self, node: usize) -> Result<Range<usize>, Error> {
        let (start, end) = (load(&self.indptr[node]), load(&self.indptr[node + 1]));
        if start as u64 <= end as u64 && end as u64 <= self.indices.len() as u64 {
            return Ok(start as usize..end as usize);
        }
        Err(Error::EdgeRange {
            node,
            start,
            end,
            num_edges: self.indices.len(),
        })
    }

    /// The error for an edge whose source is not below `num_sources`.
    #[cold]
    pub(crate) fn no_such_source(&self, edge: i64, id: I) -> Error {
        Error::OutOfRange {
            name: "indices",
            position: edge as usize,
            value: id.signed(),
            bound: self.num_sources,
            of: "nodes",
        }
    }

    /// Asks the memory for what `edges(node)` reads.
    #[inline(always)]
    pub(crate) fn prefetch_node(&self, node: usize) {
        prefetch(self.indptr, node);
    }

    /// Asks the memory for the source of `edge`.
    #[inline(always)]
    pub(crate) fn prefetch_edge(&self, edge: usize) {
        prefetch(self.indices, edge);
    }
}

impl<'a, I: Id> From<Csc<'a, I>> for View<'a, I> {
    fn from(csc: Csc<'a, I>) -> Self {
        Self {
            indptr: csc.indptr(),
            indices: csc.indices(),
            num_sources: csc.num_sources(),
        }
    }
}

/// Reads `value` once: what is checked is what is used, even if another process writes to it in between.
#[inline(always)]
pub(crate) fn load<T: Copy>(value: &T) -> T {
    // SAFETY: a reference is always valid for a read.
    unsafe { std::ptr::from_ref(value).read_volatile() }
}

/// A hint that `slice[at]` is read soon; any `at` is allowed.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see and faults on no address. It is worth a factor of three.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(slice.as_ptr().wrapping_add(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, at);
}
