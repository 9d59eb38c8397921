//! Rows of a file, of which a cache keeps some.

use std::sync::{Mutex, MutexGuard, PoisonError};

use gnnkit_core::row_cache::Policy;
use gnnkit_core::row_file::{CachedRows, Counts, How, RowFile};
use pyo3::prelude::*;

use crate::arg::{self, Arg, Ids, count, flag, refuse, text};
use crate::array::Output;
use crate::user_error;

/// Hits, and rows, bytes and reads of the file.
type PyCounts = (u64, u64, u64, u64);

fn counts(found: Counts) -> PyCounts {
    (found.hits, found.rows, found.bytes, found.reads)
}

/// Rows of a file in memory of a fixed size.
#[pyclass(name = "RowFile", module = "gnnkit._core", frozen)]
struct PyRowFile(Mutex<CachedRows>);

impl PyRowFile {
    /// Locked without the interpreter's lock only.
    fn lock(&self) -> MutexGuard<'_, CachedRows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyRowFile {
    #[new]
    #[pyo3(signature = (path, begin, num_rows, row_bytes, policy, capacity, direct, ring))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        path: Arg<'_, '_>,
        begin: Arg<'_, '_>,
        num_rows: Arg<'_, '_>,
        row_bytes: Arg<'_, '_>,
        policy: Arg<'_, '_>,
        capacity: Arg<'_, '_>,
        direct: Arg<'_, '_>,
        ring: Arg<'_, '_>,
    ) -> PyResult<Self> {
        let (begin, num_rows) = (count("begin", begin)? as u64, count("num_rows", num_rows)?);
        let (row_bytes, capacity) = (count("row_bytes", row_bytes)?, count("capacity", capacity)?);
        let how = How {
            direct: flag("direct", direct)?,
            ring: flag("ring", ring)?,
        };
        let path = arg::path("path", path)?;
        let policy = match text("policy", policy)?.as_str() {
            "exact" => Policy::Exact,
            "lru" => Policy::Lru,
            "static" => Policy::Static,
            other => return Err(refuse("policy", format_args!("{other} is none of exact, lru, static"))),
        };
        let made = py.detach(|| {
            let file = RowFile::open(&path, begin, num_rows, row_bytes, how)?;
            CachedRows::new(file, policy, capacity)
        });
        Ok(Self(Mutex::new(made.map_err(user_error)?)))
    }

    /// Writes row `ids[i]` to row i of `out`, bypassing the cache.
    fn read(&self, py: Python<'_>, ids: Arg<'_, '_>, out: Arg<'_, '_>) -> PyResult<PyCounts> {
        let (ids, mut out) = (Ids::new("ids", ids)?, Output::<u8>::new("out", out)?);
        let out = out.as_slice()?;
        let found = with_ids!(ids, ids => py.detach(|| self.lock().file().read(ids, out)));
        found.map(counts).map_err(user_error)
    }

    /// Reads rows that stay.
    fn fill(&self, py: Python<'_>, rows: Arg<'_, '_>) -> PyResult<PyCounts> {
        let rows = Ids::new("rows", rows)?;
        let found = with_ids!(rows, rows => py.detach(|| self.lock().fill(rows)));
        found.map(counts).map_err(user_error)
    }

    /// Tells the rows of a further batch, each once.
    fn announce(&self, py: Python<'_>, rows: Arg<'_, '_>) -> PyResult<()> {
        let rows = Ids::new("rows", rows)?;
        with_ids!(rows, rows => py.detach(|| self.lock().announce(rows))).map_err(user_error)
    }

    /// Forgets the announced batches.
    fn forget(&self, py: Python<'_>) {
        py.detach(|| self.lock().forget());
    }

    /// Writes the rows of the first announced batch.
    fn take(&self, py: Python<'_>, out: Arg<'_, '_>) -> PyResult<PyCounts> {
        let mut out = Output::<u8>::new("out", out)?;
        let out = out.as_slice()?;
        announced(py.detach(|| self.lock().take(out)).map_err(user_error)?)
    }

    /// Counts what `take` would read, and reads nothing.
    fn count(&self, py: Python<'_>) -> PyResult<PyCounts> {
        announced(py.detach(|| self.lock().count()))
    }
}

fn announced(found: Option<Counts>) -> PyResult<PyCounts> {
    found.map(counts).ok_or_else(|| refuse("take", "no batch is announced"))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRowFile>()
}
