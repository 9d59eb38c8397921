//! Rows of a file, read by position from several threads, with some of them in memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::csc::{Id, check_ids};
use crate::error::Error;
use crate::memory::filled;
use crate::pool;
use crate::ring::{self, PAGE, pages};
use crate::row_cache::{Place, Policy, RowCache, Step};

/// Reads that are no further apart than this become one. A drive of 60,000 reads and
/// 1.7 GB a second brings 28 KB in the time of one more read, one of 500,000 and 3 GB 6 KB.
const GAP: u64 = 2 * PAGE;

/// The most bytes of one read, unless a row is longer.
const PIECE: u64 = 1 << 18;

/// Reads at a time: what the drive needs to be busy, whatever the number of cores.
const READERS: usize = 32;

/// Tasks for each reader, so that a slow one is helped.
const TASKS: usize = 8;

/// A table of rows of equal size in a file.
#[derive(Debug)]
pub struct RowFile {
    file: File,
    path: PathBuf,
    begin: u64, // of the first row
    size: u64,  // of the file
    num_rows: usize,
    row_bytes: usize,
    ring: bool, // reads by io_uring, else by threads
}

/// How a file is read.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// Reads pass by the system's cache of files.
    pub direct: bool,
    /// Reads by io_uring, else by threads.
    pub ring: bool,
}

/// One read: bytes of the file, and the wanted rows within.
#[derive(Debug, PartialEq)]
struct Piece {
    bytes: Range<u64>,
    wanted: Range<usize>,
}

/// What a batch read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Rows that were in memory.
    pub hits: u64,
    /// Rows from the file.
    pub rows: u64,
    /// Bytes from the file, whole pages.
    pub bytes: u64,
    /// Reads.
    pub reads: u64,
}

impl RowFile {
    /// Opens a file of `num_rows` rows of `row_bytes` each, from byte `begin` on.
    pub fn open(path: &Path, begin: u64, num_rows: usize, row_bytes: usize, how: How) -> Result<Self, Error> {
        let told = |at: u64, why: String| Error::Read {
            path: path.display().to_string(),
            at,
            why,
        };
        if how.ring {
            ring::check().map_err(|error| told(0, format!("io_uring: {error}")))?;
        }
        let file = open(path, how.direct).map_err(|error| told(0, error.to_string()))?;
        let size = file.metadata().map_err(|error| told(0, error.to_string()))?.len();
        let end = num_rows as u128 * row_bytes as u128 + u128::from(begin);
        if end > u128::from(size) {
            return Err(told(size, format!("the file ends here, and its rows at {end}")));
        }
        Ok(Self {
            file,
            path: path.into(),
            begin,
            size,
            num_rows,
            row_bytes,
            ring: how.ring,
        })
    }

    /// Writes row `ids[i]` to row i of `out`.
    pub fn read<I: Id>(&self, ids: &[I], out: &mut [u8]) -> Result<Counts, Error> {
        self.check_out(ids.len(), out)?;
        check_ids("ids", ids, self.num_rows, "rows")?;
        let place = |(position, id): (usize, &I)| Place {
            row: id.index() as u32,
            position: position as u32,
        };
        self.read_places(ids.iter().enumerate().map(place).collect(), out)
    }

    /// Writes rows to their positions in `out`. Rows may repeat, positions may not.
    fn read_places(&self, mut wanted: Vec<Place>, out: &mut [u8]) -> Result<Counts, Error> {
        if self.row_bytes == 0 || wanted.is_empty() {
            return Ok(Counts::default());
        }
        wanted.sort_unstable();
        let pieces = self.pieces(&wanted);
        let counts = count(&pieces);
        let mut rows: Vec<_> = out.chunks_exact_mut(self.row_bytes).map(Some).collect();
        let mut rows: Vec<&mut [u8]> = wanted
            .iter()
            .map(|place| rows[place.position as usize].take().expect("positions differ"))
            .collect();
        if self.ring {
            let bytes: Vec<_> = pieces.iter().map(|piece| piece.bytes.clone()).collect();
            let read = ring::read(&self.file, &bytes, |number, found| {
                let rows = &mut rows[pieces[number].wanted.clone()];
                self.scatter(&pieces[number], &wanted, rows, found);
            });
            return read.map(|()| counts).map_err(|(at, why)| self.failed(at, why));
        }
        let per_task = pieces.len().div_ceil(READERS * TASKS);
        let (mut rest, mut tasks) = (rows, Vec::new());
        for pieces in pieces.chunks(per_task).rev() {
            tasks.push((pieces, rest.split_off(pieces[0].wanted.start)));
        }
        let failed = Mutex::new(None);
        pool::for_each(READERS, tasks, |(pieces, mut rows)| {
            if let Err(error) = self.read_pieces(pieces, &wanted, &mut rows) {
                failed.lock().expect("nobody panics with the lock").get_or_insert(error);
            }
        });
        match failed.into_inner().expect("nobody panics with the lock") {
            Some(error) => Err(error),
            None => Ok(counts),
        }
    }

    /// Reads pieces. `rows` are those of the pieces, in their order.
    fn read_pieces(&self, pieces: &[Piece], wanted: &[Place], rows: &mut [&mut [u8]]) -> Result<(), Error> {
        let most = pieces
            .iter()
            .map(|piece| pages(piece.bytes.end - piece.bytes.start))
            .max();
        let most = usize::try_from(most.unwrap_or(0)).unwrap_or(usize::MAX);
        let mut room = filled(0u8, most.checked_add(PAGE as usize), "row_bytes", self.row_bytes)?;
        let skip = room.as_ptr().align_offset(PAGE as usize);
        let buffer = &mut room[skip..][..most];
        let mut rest = rows;
        for piece in pieces {
            self.read_piece(&piece.bytes, buffer)?;
            let (rows, others) = rest.split_at_mut(piece.wanted.len());
            self.scatter(piece, wanted, rows, buffer);
            rest = others;
        }
        Ok(())
    }

    /// Copies `rows`, which are those of a piece, out of its bytes.
    fn scatter(&self, piece: &Piece, wanted: &[Place], rows: &mut [&mut [u8]], bytes: &[u8]) {
        for (place, row) in wanted[piece.wanted.clone()].iter().zip(rows) {
            let at = (self.begin_of(place.row) - piece.bytes.start) as usize;
            row.copy_from_slice(&bytes[at..at + self.row_bytes]);
        }
    }

    fn failed(&self, at: u64, why: String) -> Error {
        let path = self.path.display().to_string();
        Error::Read { path, at, why }
    }

    /// Reads bytes of the file, whole pages as far as the file goes.
    fn read_piece(&self, bytes: &Range<u64>, buffer: &mut [u8]) -> Result<(), Error> {
        let asked = pages(bytes.end - bytes.start) as usize;
        let (needed, mut found) = ((bytes.end - bytes.start) as usize, 0);
        while found < needed {
            let at = bytes.start + found as u64;
            let why = match read_at(&self.file, &mut buffer[found..asked], at) {
                Ok(0) => "the file ends here".to_owned(),
                Ok(count) => {
                    found += count;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error.to_string(),
            };
            return Err(self.failed(at, why));
        }
        Ok(())
    }

    /// The reads for wanted rows in ascending order.
    fn pieces(&self, wanted: &[Place]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for (number, place) in wanted.iter().enumerate() {
            let begin = self.begin_of(place.row);
            let start = begin / PAGE * PAGE;
            let end = pages(begin + self.row_bytes as u64).min(self.size);
            match pieces.last_mut() {
                Some(last) if start <= last.bytes.end + GAP && end - last.bytes.start <= PIECE => {
                    last.bytes.end = last.bytes.end.max(end);
                    last.wanted.end = number + 1;
                }
                _ => pieces.push(Piece {
                    bytes: start..end,
                    wanted: number..number + 1,
                }),
            }
        }
        pieces
    }

    fn begin_of(&self, row: u32) -> u64 {
        self.begin + u64::from(row) * self.row_bytes as u64
    }

    fn check_out(&self, num_rows: usize, out: &[u8]) -> Result<(), Error> {
        let expected = num_rows.saturating_mul(self.row_bytes);
        crate::error::check_length("out", out.len(), expected)
    }
}

fn count(pieces: &[Piece]) -> Counts {
    Counts {
        hits: 0,
        rows: pieces.last().map_or(0, |piece| piece.wanted.end as u64),
        bytes: pieces.iter().map(|piece| piece.bytes.end - piece.bytes.start).sum(),
        reads: pieces.len() as u64,
    }
}

#[cfg(target_os = "linux")]
fn open(path: &Path, direct: bool) -> io::Result<File> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;

    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // SAFETY: advice on an open file, which changes no memory. Without it each read of
    // a page would bring 32.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn open(path: &Path, _direct: bool) -> io::Result<File> {
    File::open(path)
}

#[cfg(unix)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(windows)]
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}

/// Rows of a file, of which a cache keeps some.
#[derive(Debug)]
pub struct CachedRows {
    file: RowFile,
    cache: RowCache,
    rows: Vec<u8>, // by slot
}

impl CachedRows {
    /// Keeps at most `capacity` rows.
    pub fn new(file: RowFile, policy: Policy, capacity: usize) -> Result<Self, Error> {
        let cache = RowCache::new(policy, file.num_rows, capacity)?;
        let size = cache.capacity().checked_mul(file.row_bytes);
        let too_large = Error::TooLarge {
            name: "capacity",
            value: capacity,
        };
        // Zeros of the system, which take no memory before they are written.
        let rows = vec![0; size.filter(|&size| size <= isize::MAX as usize).ok_or(too_large)?];
        Ok(Self { file, cache, rows })
    }

    /// The file.
    pub fn file(&self) -> &RowFile {
        &self.file
    }

    /// As `RowCache::announce`.
    pub fn announce<I: Id>(&mut self, rows: &[I]) -> Result<(), Error> {
        self.cache.announce(rows)
    }

    /// As `RowCache::forget`.
    pub fn forget(&mut self) {
        self.cache.forget();
    }

    /// Reads rows that stay. At most the capacity.
    pub fn fill<I: Id>(&mut self, rows: &[I]) -> Result<Counts, Error> {
        check_ids("rows", rows, self.file.num_rows, "rows")?;
        let slots = self.cache.fill(rows)?;
        let wanted = slots.iter().map(|slot| Place {
            row: rows[slot.position as usize].index() as u32,
            position: slot.row,
        });
        self.file.read_places(wanted.collect(), &mut self.rows)
    }

    /// Writes the rows of the first announced batch, and keeps what the policy says.
    /// None: no batch is announced.
    pub fn take(&mut self, out: &mut [u8]) -> Result<Option<Counts>, Error> {
        let Some(step) = self.cache.take() else {
            return Ok(None);
        };
        self.file.check_out(step.hits.len() + step.misses.len(), out)?;
        let width = self.file.row_bytes;
        for hit in &step.hits {
            row_mut(out, hit.position, width).copy_from_slice(row(&self.rows, hit.row, width));
        }
        let hits = step.hits.len() as u64;
        let counts = self.file.read_places(step.misses, out)?;
        for kept in &step.kept {
            row_mut(&mut self.rows, kept.row, width).copy_from_slice(row(out, kept.position, width));
        }
        Ok(Some(Counts { hits, ..counts }))
    }

    /// Counts what `take` would read, and keeps no row: for dry runs.
    pub fn count(&mut self) -> Option<Counts> {
        let Step { hits, mut misses, .. } = self.cache.take()?;
        misses.sort_unstable();
        let hits = hits.len() as u64;
        Some(Counts {
            hits,
            ..count(&self.file.pieces(&misses))
        })
    }
}

fn row(rows: &[u8], number: u32, width: usize) -> &[u8] {
    &rows[number as usize * width..][..width]
}

fn row_mut(rows: &mut [u8], number: u32, width: usize) -> &mut [u8] {
    &mut rows[number as usize * width..][..width]
}

#[cfg(test)]
mod tests {
    use std::env::temp_dir;
    use std::fs;

    use super::*;

    const HEAD: usize = 128;
    const WAYS: [bool; 2] = [false, true]; // by threads, and by io_uring where the system has it

    /// A file that is removed at the end, and its rows.
    struct Table {
        path: PathBuf,
        rows: Vec<Vec<u8>>,
    }

    impl Table {
        fn new(name: &str, num_rows: usize, row_bytes: usize) -> Self {
            let path = temp_dir().join(format!("gnnkit-{}-{name}", std::process::id()));
            let byte = |row: usize, at: usize| (row * 31 + at * 7 + row / 256) as u8;
            let rows: Vec<Vec<u8>> = (0..num_rows)
                .map(|row| (0..row_bytes).map(|at| byte(row, at)).collect())
                .collect();
            fs::write(&path, [vec![1; HEAD], rows.concat()].concat()).unwrap();
            Self { path, rows }
        }

        fn open(&self, ring: bool) -> RowFile {
            let how = How { direct: false, ring };
            RowFile::open(&self.path, HEAD as u64, self.rows.len(), self.rows[0].len(), how).unwrap()
        }

        fn expected(&self, ids: &[i32]) -> Vec<u8> {
            ids.iter().flat_map(|&id| self.rows[id as usize].clone()).collect()
        }
    }

    impl Drop for Table {
        fn drop(&mut self) {
            fs::remove_file(&self.path).unwrap();
        }
    }

    #[test]
    fn rows_of_any_size_arrive_in_the_order_of_the_ids() {
        for row_bytes in [1, 3, 100, 4096, 5000, 300_000] {
            let num_rows = (3_000_000 / row_bytes).clamp(20, 5000);
            let table = Table::new(&format!("order-{row_bytes}"), num_rows, row_bytes);
            let ids: Vec<i32> = (0..200).map(|i| (i * i * 7 + 3) % num_rows as i32).collect();
            for ring in WAYS.into_iter().filter(|ring| !ring || ring::check().is_ok()) {
                let mut out = vec![0; ids.len() * row_bytes];
                let counts = table.open(ring).read(&ids, &mut out).unwrap();
                assert!(out == table.expected(&ids), "{row_bytes} bytes, io_uring {ring}");
                assert_eq!(counts.rows, 200);
                assert!(counts.reads <= 200 && counts.bytes % 4096 <= (HEAD + num_rows * row_bytes) as u64 % 4096);
            }
        }
    }

    #[test]
    fn neighbours_are_one_read_of_whole_pages() {
        let table = Table::new("pieces", 4096, 64);
        let wanted = |rows: &[u32]| rows.iter().map(|&row| Place { row, position: row }).collect::<Vec<_>>();
        let file = table.open(false);
        let pieces = file.pieces(&wanted(&[0, 5, 200, 900, 4095]));
        let bytes: Vec<_> = pieces.iter().map(|piece| piece.bytes.clone()).collect();
        assert_eq!(bytes, [0..16384, 57344..61440, 262144..262272]);
        assert_eq!(pieces[0].wanted, 0..3);
        let all: Vec<u32> = (0..4096).collect();
        assert!(
            file.pieces(&wanted(&all))
                .iter()
                .all(|piece| piece.bytes.end - piece.bytes.start <= PIECE)
        );
    }

    #[test]
    fn cached_rows_are_those_of_the_file_under_every_policy() {
        let table = Table::new("cached", 500, 36);
        let batches: Vec<Vec<i32>> = (0..30)
            .map(|batch| (0..40).map(|i| (i * (batch + 3) * 5 + batch) % 499).collect())
            .map(|mut rows: Vec<i32>| {
                rows.sort_unstable();
                rows.dedup();
                rows.reverse();
                rows
            })
            .collect();
        for policy in [Policy::Exact, Policy::Lru, Policy::Static] {
            let [mut cached, mut dry] = [0, 1].map(|_| CachedRows::new(table.open(false), policy, 90).unwrap());
            if policy == Policy::Static {
                for each in [&mut cached, &mut dry] {
                    assert_eq!(each.fill(&(0..90).collect::<Vec<i32>>()).unwrap().rows, 90);
                }
            }
            for number in 0..batches.len() + 4 {
                if let Some(rows) = batches.get(number) {
                    cached.announce(rows).unwrap();
                    dry.announce(rows).unwrap();
                }
                if let Some(ids) = number.checked_sub(4).map(|taken| &batches[taken]) {
                    let mut out = vec![0; ids.len() * 36];
                    let counts = cached.take(&mut out).unwrap();
                    assert!(out == table.expected(ids), "{policy:?} {number}");
                    assert_eq!(counts, dry.count());
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_named_with_the_place() {
        let table = Table::new("short", 100, 100);
        let open = |rows| RowFile::open(&table.path, 128, rows, 100, How::default()).map(|_| ());
        let text = open(101).unwrap_err().to_string();
        assert!(
            text.contains("short: byte 10128: the file ends here, and its rows at 10228"),
            "{text}"
        );
        let ways = WAYS.into_iter().filter(|ring| !ring || ring::check().is_ok());
        let files: Vec<_> = ways.map(|ring| table.open(ring)).collect();
        File::options()
            .write(true)
            .open(&table.path)
            .unwrap()
            .set_len(5000)
            .unwrap();
        for file in files {
            let text = file.read(&[99i32, 3, 98], &mut [0; 300]).unwrap_err().to_string();
            assert!(
                text.contains("short: byte ") && text.contains("the file ends here"),
                "{text}"
            );
        }
        assert!(RowFile::open(Path::new("/nowhere"), 0, 1, 1, How::default()).is_err());
    }
}
