//! Rows of a table picked by id. This fetches the features of a batch.

use crate::Error;
use crate::csc::{Id, check_ids};
use crate::pool;

/// Rows are requested this many bytes ahead of the copy: enough to hide a cache miss,
/// not so many that they are evicted again.
const AHEAD_BYTES: usize = 4096;
/// Below this many bytes of output one thread is faster than the start of a second.
const BYTES_PER_THREAD: usize = 1 << 20;

/// A table of rows of equal size, of any type, in memory or mapped from a file.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    bytes: &'a [u8],
    num_rows: usize,
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    /// `bytes` holds `num_rows` rows, one after the other, of `row_bytes` each.
    pub fn new(bytes: &'a [u8], num_rows: usize, row_bytes: usize) -> Result<Self, Error> {
        check_size("source", bytes.len(), num_rows, row_bytes)?;
        Ok(Self {
            bytes,
            num_rows,
            row_bytes,
        })
    }

    /// Writes row `ids[i]` to row i of `out`, on `threads` threads. The error names the
    /// first id that is no row.
    pub fn gather<I: Id>(&self, ids: &[I], out: &mut [u8], threads: usize) -> Result<(), Error> {
        check_size("out", out.len(), ids.len(), self.row_bytes)?;
        check_ids("ids", ids, self.num_rows, "rows")?;
        if out.is_empty() {
            return Ok(());
        }
        let threads = threads.clamp(1, 1 + out.len() / BYTES_PER_THREAD);
        let share = ids.len().div_ceil(threads);
        let parts = ids.chunks(share).zip(out.chunks_mut(share * self.row_bytes));
        pool::for_each(threads, parts.collect(), |(ids, out)| match self.row_bytes {
            // Compiled for rows of one number, such as labels and ids.
            4 => self.copy(ids, out, 4),
            8 => self.copy(ids, out, 8),
            row_bytes => self.copy(ids, out, row_bytes),
        });
        Ok(())
    }

    #[inline(always)]
    fn copy<I: Id>(&self, ids: &[I], out: &mut [u8], row_bytes: usize) {
        let ahead = (AHEAD_BYTES / row_bytes).clamp(1, 64);
        let row = |id: &I| &self.bytes[id.index() * row_bytes..][..row_bytes];
        for (position, (id, out)) in ids.iter().zip(out.chunks_exact_mut(row_bytes)).enumerate() {
            if let Some(next) = ids.get(position + ahead) {
                prefetch(row(next));
            }
            out.copy_from_slice(row(id));
        }
    }
}

fn check_size(name: &'static str, actual: usize, num_rows: usize, row_bytes: usize) -> Result<(), Error> {
    match num_rows.checked_mul(row_bytes) {
        Some(expected) if expected == actual => Ok(()),
        expected => Err(Error::Length {
            name,
            actual,
            expected: expected.unwrap_or(usize::MAX),
        }),
    }
}

/// Prefetches the cache lines of `row`, at most as many as are worth having in flight.
/// The processor streams the rest of a long row by itself.
#[inline(always)]
fn prefetch(row: &[u8]) {
    for line in row.chunks(64).take(AHEAD_BYTES / 64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, which reads nothing. SSE is part of x86_64.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(line.as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(num_rows: usize, row_bytes: usize) -> Vec<u8> {
        (0..num_rows * row_bytes)
            .map(|i| (i * 31 + i / row_bytes.max(1)) as u8)
            .collect()
    }

    #[test]
    fn rows_arrive_in_the_order_of_the_ids() {
        for row_bytes in [1, 2, 4, 7, 8, 64, 400, 5000] {
            let bytes = table(50, row_bytes);
            let rows = Rows::new(&bytes, 50, row_bytes).unwrap();
            let ids: Vec<i32> = (0..700).map(|i| (i * i + 3) % 50).collect();
            let expected: Vec<u8> = ids
                .iter()
                .flat_map(|&id| &bytes[id as usize * row_bytes..][..row_bytes])
                .copied()
                .collect();
            for threads in [1, 2, 3, 16] {
                let mut out = vec![0; expected.len()];
                rows.gather(&ids, &mut out, threads).unwrap();
                assert_eq!(out, expected, "{row_bytes} bytes, {threads} threads");
            }
        }
    }

    #[test]
    fn errors_name_the_place() {
        let bytes = table(3, 4);
        let rows = Rows::new(&bytes, 3, 4).unwrap();
        let text = |ids: &[i64], out: usize| rows.gather(ids, &mut vec![0; out], 1).unwrap_err().to_string();
        assert_eq!(text(&[0, 3], 8), "ids[1] = 3 is out of range for 3 rows");
        assert_eq!(text(&[-1], 4), "ids[0] = -1 is out of range for 3 rows");
        assert_eq!(text(&[0], 8), "out has 8 entries, expected 4");
        assert!(Rows::new(&bytes, usize::MAX, 4).is_err());
        assert!(Rows::new(&[], 3, 0).unwrap().gather(&[2i64], &mut [], 1).is_ok());
        assert!(Rows::new(&[], 3, 0).unwrap().gather(&[3i64], &mut [], 1).is_err());
    }
}
