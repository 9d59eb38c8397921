//! The one validated graph type: whoever holds a `Csc` may index without looking.

use crate::Error;
use crate::error::check_length;
use crate::memory::Kept;

/// An unsigned reading of the two id widths that users have.
pub trait Id: Kept + Sync + Ord + std::fmt::Debug + 'static {
    /// As an index. A `Csc` has checked that the id is not negative.
    fn index(self) -> usize;
    /// As a signed number, for errors.
    fn signed(self) -> i64;
    /// From an index that is known to fit.
    fn from_index(index: usize) -> Self;
    /// The largest index that fits.
    const MAX: usize;
    /// An id and a place, ordered by both. One number is compared faster than two.
    type Key: Copy + Ord + Default + Send;
    /// The key of the id at `place`, which fits the width of the id.
    fn key(self, place: usize) -> Self::Key;
    /// The id and the place of a key.
    fn of_key(key: Self::Key) -> (Self, usize);
}

macro_rules! id {
    ($t:ty, $half:ty, $key:ty) => {
        impl Id for $t {
            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }
            #[inline(always)]
            fn signed(self) -> i64 {
                i64::from(self)
            }
            #[inline(always)]
            fn from_index(index: usize) -> Self {
                index as $t
            }
            const MAX: usize = <$t>::MAX as usize;
            type Key = $key;
            #[inline(always)]
            fn key(self, place: usize) -> $key {
                <$key>::from(self as $half) << <$half>::BITS | place as $key
            }
            #[inline(always)]
            fn of_key(key: $key) -> (Self, usize) {
                ((key >> <$half>::BITS) as $t, key as $half as usize)
            }
        }
    };
}
id!(i32, u32, u64);
id!(i64, u64, u128);

/// In-edges by destination: node v reads from `indices[indptr[v]..indptr[v + 1]]`.
#[derive(Debug, Clone, Copy)]
pub struct Csc<'a, I> {
    indptr: &'a [i64],
    indices: &'a [I],
    num_sources: usize,
}

impl<'a, I: Id> Csc<'a, I> {
    /// Checks that `indptr` runs from 0 to the number of edges without decreasing and
    /// that every source exists.
    pub fn new(indptr: &'a [i64], indices: &'a [I], num_sources: usize) -> Result<Self, Error> {
        check_indptr(indptr, indices.len())?;
        check_ids("indices", indices, num_sources, "nodes")?;
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

    /// Where the in-edges of each destination start and end.
    pub fn indptr(&self) -> &'a [i64] {
        self.indptr
    }

    /// The source of each edge.
    pub fn indices(&self) -> &'a [I] {
        self.indices
    }

    /// The sources that `node` reads from.
    pub fn neighbors(&self, node: usize) -> &'a [I] {
        &self.indices[self.indptr[node] as usize..self.indptr[node + 1] as usize]
    }
}

/// Checks that the edges of all destinations are `0..num_edges`.
pub(crate) fn check_indptr(indptr: &[i64], num_edges: usize) -> Result<(), Error> {
    let (Some(&first), Some(&last)) = (indptr.first(), indptr.last()) else {
        return check_length("indptr", 0, 1);
    };
    if first != 0 {
        return Err(Error::IndptrStart(first));
    }
    if let Some(at) = indptr.windows(2).position(|pair| pair[1] < pair[0]) {
        return Err(Error::IndptrDecreases {
            position: at + 1,
            value: indptr[at + 1],
            previous: indptr[at],
        });
    }
    check_length("indices", num_edges, last as usize)
}

/// Checks that every id is in `0..bound`. The error names the first one outside.
pub fn check_ids<I: Id>(name: &'static str, ids: &[I], bound: usize, of: &'static str) -> Result<(), Error> {
    // A negative id is huge as an index: one comparison, and a loop without exit
    // vectorises.
    let bad = |id: &I| id.index() >= bound;
    if !ids
        .chunks(4096)
        .any(|chunk| chunk.iter().fold(false, |any, id| any | bad(id)))
    {
        return Ok(());
    }
    let position = ids.iter().position(bad).expect("seen above");
    Err(Error::OutOfRange {
        name,
        position,
        value: ids[position].signed(),
        bound,
        of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_place() {
        let text = |indptr: &[i64], indices: &[i32]| Csc::new(indptr, indices, 3).unwrap_err().to_string();
        assert_eq!(text(&[], &[]), "indptr has 0 entries, expected 1");
        assert_eq!(text(&[1, 1], &[0]), "indptr[0] = 1, expected 0");
        assert_eq!(text(&[0, 2, 1, 2], &[0, 1]), "indptr[2] = 1 is below indptr[1] = 2");
        assert_eq!(text(&[0, 1, 1, 3], &[0, 1]), "indices has 2 entries, expected 3");
        assert_eq!(
            text(&[0, 1, 1, 2], &[0, 3]),
            "indices[1] = 3 is out of range for 3 nodes"
        );
        assert_eq!(
            text(&[0, 1, 1, 2], &[-1, 2]),
            "indices[0] = -1 is out of range for 3 nodes"
        );
    }
}
