//! Batches sampled, and their rows gathered, ahead of their consumer on threads without
//! the interpreter's lock.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gnnkit_core::Error;
use gnnkit_core::csc::Id;
use gnnkit_core::float;
use gnnkit_core::gather::Rows;
use gnnkit_core::loader::{Pipeline, Taken};
use gnnkit_core::pool::MOST_THREADS;
use gnnkit_core::relations::Relations;
use gnnkit_core::rng;
use gnnkit_core::sample::{Batch, Sampler, Scratch};
use gnnkit_core::similarity::{Preference, Similarity};
use gnnkit_core::view::{Extra, View};
use numpy::{Element, PyArray1};
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::IntoPyDict;
use pyo3::{IntoPyObjectExt, ffi};

use crate::arg::{self, Arg, Ids, Slice, attribute, count, exactly, items, key as key_of, refuse, within};
use crate::array::{Input, Output};
use crate::sample::{PyReading, PyRelations, PySampler, batch_to_py, narrow};
use crate::user_error;

/// How long a consumer waits before it looks for Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(50);

/// The most batches that are made ahead.
const MOST_AHEAD: usize = 1 << 16;

/// Memory of a NumPy array to read, for threads that do not hold the interpreter's
/// lock.
struct Held<T> {
    start: *const T,
    len: usize,
    _array: Py<PyAny>,
}

// SAFETY: NumPy neither moves nor frees the memory of an array that is alive, and
// `_array` keeps the array alive.
unsafe impl<T: Sync> Send for Held<T> {}
// SAFETY: as above. The memory is only read.
unsafe impl<T: Sync> Sync for Held<T> {}

impl<T: Element> Held<T> {
    fn new(array: &Slice<'_, T>) -> Self {
        Self::of(array.as_slice(), array.as_any())
    }

    /// `slice`, which must be memory of `array`.
    fn of(slice: &[T], array: &Bound<'_, PyAny>) -> Self {
        Self {
            start: slice.as_ptr(),
            len: slice.len(),
            _array: array.clone().unbind(),
        }
    }

    fn as_slice(&self) -> &[T] {
        // SAFETY: the pointer and length come from a slice of the array. Other threads
        // may write to it, so `View` checks user ids where it reads them.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

/// Memory of a NumPy array to write.
struct Buffer {
    start: *mut u8,
    len: usize,
    array: Py<PyAny>,
}

// SAFETY: NumPy neither moves nor frees the memory of an array that is alive, and
// `array` keeps the array alive.
unsafe impl Send for Buffer {}

impl Buffer {
    /// The memory of `array`, which `allocate` has just returned for `num_bytes`.
    fn new(array: &Bound<'_, PyAny>, num_bytes: usize) -> PyResult<Self> {
        // SAFETY: `array` is alive, and the interpreter's lock is held.
        if unsafe { ffi::Py_REFCNT(array.as_ptr()) } != 1 {
            return Err(refuse("allocate", "returned an object that somebody else holds"));
        }
        let mut bytes = Output::<u8>::new("allocate", array)?;
        let slice = bytes.as_slice()?;
        if slice.len() < num_bytes {
            let found = slice.len();
            return Err(refuse(
                "allocate",
                format_args!("returned {found} bytes for {num_bytes}"),
            ));
        }
        Ok(Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            array: array.clone().unbind(),
        })
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: made from a mutable slice of the array, of which nobody else has a
        // view (`Buffers`).
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// The edges that native samplers read.
enum Edges {
    I32(Held<i32>),
    I64(Held<i64>),
}

/// The arrays of a graph that native samplers read.
struct Reading {
    indptr: Held<i64>,
    edges: Edges,
    num_sources: usize,
    weight: Option<Floats>,
    wanted: Option<Held<f64>>,
    /// Rows that walks compare, their width, and what walks prefer.
    features: Option<(Floats, usize, Preference)>,
    cluster: Option<Held<i64>>,
    rows: Option<Held<i64>>,
    sources: Option<Held<i64>>,
    counts: Option<Held<i64>>,
    relations: Option<HeldRelations>,
}

/// The in-edges of nodes by relation.
struct HeldRelations {
    indptr: Held<i64>,
    codes: Held<i64>,
    starts: Held<i64>,
    order: Option<Held<i64>>,
    fanouts: Held<i64>,
    num_relations: usize,
    num_ids: usize,
}

impl HeldRelations {
    fn new(relations: &PyRelations<'_>) -> Self {
        Self {
            indptr: Held::new(&relations.indptr),
            codes: Held::new(&relations.codes),
            starts: Held::new(&relations.starts),
            order: relations.order.as_ref().map(Held::new),
            fanouts: Held::new(&relations.fanouts),
            num_relations: relations.num_relations,
            num_ids: relations.num_ids,
        }
    }

    fn view(&self) -> Relations<'_> {
        Relations {
            indptr: self.indptr.as_slice(),
            codes: self.codes.as_slice(),
            starts: self.starts.as_slice(),
            order: self.order.as_ref().map(Held::as_slice),
            fanouts: self.fanouts.as_slice(),
            num_relations: self.num_relations,
            num_ids: self.num_ids,
        }
    }
}

enum Floats {
    F32(Held<f32>),
    F64(Held<f64>),
}

impl Floats {
    fn new(values: &arg::Floats<'_>) -> Self {
        match values {
            arg::Floats::F32(values) => Self::F32(Held::new(values)),
            arg::Floats::F64(values) => Self::F64(Held::new(values)),
        }
    }

    fn view(&self) -> float::Floats<'_> {
        match self {
            Self::F32(values) => float::Floats::F32(values.as_slice()),
            Self::F64(values) => float::Floats::F64(values.as_slice()),
        }
    }
}

impl Reading {
    fn new(reading: &PyReading<'_>) -> Self {
        let features = reading.features.as_ref();
        Self {
            indptr: Held::new(&reading.indptr),
            edges: held_ids(&reading.indices),
            num_sources: reading.num_sources,
            weight: reading.weight.as_ref().map(Floats::new),
            wanted: reading.wanted.as_ref().map(Held::new),
            features: features.map(|(table, like)| (Floats::new(&table.values), table.width, *like)),
            cluster: reading.cluster.as_ref().map(Held::new),
            rows: reading.rows.as_ref().map(Held::new),
            sources: reading.sources.as_ref().map(Held::new),
            counts: reading.counts.as_ref().map(Held::new),
            relations: reading.relations.as_ref().map(HeldRelations::new),
        }
    }

    fn extra(&self) -> Extra<'_> {
        let compared = self.features.as_ref();
        Extra {
            weight: self.weight.as_ref().map(Floats::view),
            wanted: self.wanted.as_ref().map(Held::as_slice),
            similarity: compared.map(|(rows, width, like)| Similarity::new(rows.view(), *width, *like)),
            cluster: self.cluster.as_ref().map(Held::as_slice),
            rows: self.rows.as_ref().map(Held::as_slice),
            sources: self.sources.as_ref().map(Held::as_slice),
            counts: self.counts.as_ref().map(Held::as_slice),
            relations: self.relations.as_ref().map(HeldRelations::view),
            ..Extra::default()
        }
    }

    fn sample(&self, sampler: &Sampler, seeds: &[i64], key: u64, scratch: &mut Scratch) -> Result<Drawn, Error> {
        match &self.edges {
            Edges::I32(edges) => self.sample_as(edges, sampler, seeds, key, scratch).map(Drawn::I32),
            Edges::I64(edges) => self.sample_as(edges, sampler, seeds, key, scratch).map(Drawn::I64),
        }
    }

    fn sample_as<I: Id + Element>(
        &self,
        edges: &Held<I>,
        sampler: &Sampler,
        seeds: &[i64],
        key: u64,
        scratch: &mut Scratch,
    ) -> Result<Batch<I>, Error> {
        let view = View::new(self.indptr.as_slice(), edges.as_slice(), self.num_sources)?.with(self.extra())?;
        let seeds = narrow("seeds", seeds, view.num_nodes())?;
        sampler.sample(&view, &seeds, key, scratch)
    }
}

/// Who draws.
enum Draws {
    Native {
        sampler: Sampler,
        reading: Box<Reading>,
    },
    /// A sampler written in Python, and its graph: the thread takes the interpreter's
    /// lock for it.
    Python {
        sampler: Py<PyAny>,
        graph: Py<PyAny>,
    },
}

/// The rows to gather for input nodes of each batch.
struct Table {
    bytes: Held<u8>,
    num_rows: usize,
    row_bytes: usize,
    buffers: Buffers,
}

/// Memory for gathered rows. A buffer goes back to work when no view of it is left.
struct Buffers {
    allocate: Py<PyAny>,
    free: Mutex<Vec<Buffer>>,
    lent: Mutex<Vec<Buffer>>,
}

/// The inputs that all threads share.
struct Plan {
    draws: Draws,
    seeds: Vec<i64>,
    offsets: Vec<usize>,
    key: u64,
    tables: Vec<Table>,
    since: Instant,
}

enum Drawn {
    I32(Batch<i32>),
    I64(Batch<i64>),
    Python(Py<PyAny>),
}

struct Made {
    batch: Drawn,
    rows: Vec<Buffer>,
    work: Work,
}

/// The work on one batch: the thread, and seconds since the loader was made.
#[derive(Clone, Copy, Default)]
struct Work {
    thread: usize,
    begun: f64,
    drawn: f64,
    ended: f64,
}

type MadeAhead = Pipeline<PyResult<Made>>;

impl Draws {
    fn draw(&self, seeds: &[i64], key: u64, scratch: &mut Scratch) -> PyResult<Drawn> {
        match self {
            Self::Native { sampler, reading } => reading.sample(sampler, seeds, key, scratch).map_err(user_error),
            Self::Python { sampler, graph } => attached(|py| {
                let seeds = PyArray1::from_slice(py, seeds);
                let named = [("key", key)].into_py_dict(py)?;
                let batch = sampler.bind(py).call_method("sample", (graph, seeds), Some(&named))?;
                Ok(Drawn::Python(batch.unbind()))
            }),
        }
    }
}

/// Runs `work` with the interpreter's lock, unless the interpreter is going away.
fn attached<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> PyResult<T> {
    Python::try_attach(work).unwrap_or_else(|| Err(PyRuntimeError::new_err("the interpreter is shutting down")))
}

impl Plan {
    fn make(&self, thread: usize, step: usize, scratch: &mut Scratch) -> PyResult<Made> {
        let begun = self.now();
        let seeds = &self.seeds[self.offsets[step]..self.offsets[step + 1]];
        let batch = self.draws.draw(seeds, rng::derive(self.key, step as u64), scratch)?;
        let drawn = self.now();
        let rows = self
            .tables
            .iter()
            .map(|table| table.gather(&batch))
            .collect::<PyResult<_>>()?;
        let ended = self.now();
        let work = Work {
            thread,
            begun,
            drawn,
            ended,
        };
        Ok(Made { batch, rows, work })
    }

    /// Seconds since the loader was made.
    fn now(&self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }
}

impl Table {
    fn new(rows: Arg<'_, '_>, allocate: Arg<'_, '_>) -> PyResult<Self> {
        let bytes = Input::<u8>::new("table", rows)?;
        let (num_rows, row_bytes) = bytes.rows()?;
        Ok(Self {
            bytes: Held::of(bytes.as_slice()?, rows),
            num_rows,
            row_bytes,
            buffers: Buffers {
                allocate: allocate.clone().unbind(),
                free: Mutex::default(),
                lent: Mutex::default(),
            },
        })
    }

    fn gather(&self, batch: &Drawn) -> PyResult<Buffer> {
        match batch {
            Drawn::I32(batch) => self.gather_rows(&batch.nodes),
            Drawn::I64(batch) => self.gather_rows(&batch.nodes),
            Drawn::Python(batch) => match attached(|py| input_nodes(batch.bind(py)))? {
                Edges::I32(nodes) => self.gather_rows(nodes.as_slice()),
                Edges::I64(nodes) => self.gather_rows(nodes.as_slice()),
            },
        }
    }

    fn gather_rows<I: Id>(&self, ids: &[I]) -> PyResult<Buffer> {
        let rows = Rows::new(self.bytes.as_slice(), self.num_rows, self.row_bytes).map_err(user_error)?;
        let num_bytes = ids.len().saturating_mul(self.row_bytes);
        if num_bytes > isize::MAX as usize {
            return Err(refuse("table", format_args!("has no memory for {} rows", ids.len())));
        }
        let mut buffer = self.buffers.take(num_bytes)?;
        let out = &mut buffer.as_mut_slice()[..num_bytes];
        rows.gather(ids, out, 1).map_err(user_error)?;
        Ok(buffer)
    }
}

/// `batch.input_nodes` of a batch that was made in Python.
fn input_nodes(batch: &Bound<'_, PyAny>) -> PyResult<Edges> {
    let nodes = Ids::new("input_nodes", &batch.getattr("input_nodes")?)?;
    Ok(held_ids(&nodes))
}

fn held_ids(ids: &Ids<'_>) -> Edges {
    match ids {
        Ids::I32(ids) => Edges::I32(Held::new(ids)),
        Ids::I64(ids) => Edges::I64(Held::new(ids)),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Buffers {
    /// A buffer that nobody else sees, of `num_bytes` or more.
    fn take(&self, num_bytes: usize) -> PyResult<Buffer> {
        let mut free = lock(&self.free);
        if let Some(fits) = free.iter().position(|buffer| buffer.len >= num_bytes) {
            return Ok(free.swap_remove(fits));
        }
        let too_small = free.pop(); // given up for the larger one
        // A thread with the interpreter's lock may wait for this lock.
        drop(free);
        drop(too_small);
        attached(|py| {
            let array = self.allocate.bind(py).call1((num_bytes + num_bytes / 8,))?;
            Buffer::new(&array, num_bytes)
        })
    }

    /// The whole of `buffer` as an array. A buffer with a view of it left is not
    /// written.
    fn lend(&self, py: Python<'_>, buffer: Buffer) -> Py<PyAny> {
        let array = buffer.array.clone_ref(py);
        lock(&self.lent).push(buffer);
        array
    }

    /// Frees the lent buffers of which no view is left.
    fn recycle(&self, py: Python<'_>) {
        // SAFETY: `array` is alive, and holding `py` ensures that its reference count
        // does not change.
        let unseen = |buffer: &mut Buffer| unsafe { ffi::Py_REFCNT(buffer.array.bind(py).as_ptr()) } == 1;
        let unseen: Vec<_> = lock(&self.lent).extract_if(.., unseen).collect();
        lock(&self.free).extend(unseen);
    }
}

/// The steps of an epoch. Step i has the seeds `seeds[offsets[i]..offsets[i + 1]]` and
/// the key `derive(key, i)`.
struct Steps {
    seeds: Vec<i64>,
    offsets: Vec<usize>,
    first: usize,
    key: u64,
}

impl Steps {
    /// The steps of (seeds, offsets, first step, key).
    fn new(steps: Arg<'_, '_>) -> PyResult<Self> {
        let [seeds, offsets, first, key] = exactly("steps", steps)?;
        let seeds = Slice::new("seeds", &seeds)?.as_slice().to_vec();
        let bounds = items("offsets", &offsets)?;
        let bound = |offset: &Bound<'_, PyAny>| within("offsets", offset, 0..=seeds.len());
        let offsets: Vec<usize> = bounds.iter().map(bound).collect::<PyResult<_>>()?;
        if offsets.is_empty() || !offsets.is_sorted() {
            return Err(refuse("offsets", "must be at least one and must not fall"));
        }
        Ok(Self {
            first: count("first step", &first)?,
            key: key_of("key", &key)?,
            seeds,
            offsets,
        })
    }
}

/// A batch as `Sampler.sample` of `gnnkit._core` or of a sampler in Python returns it,
/// and for each table the buffer that begins with its rows.
type PyMade = (Py<PyAny>, Vec<Py<PyAny>>);

/// An epoch's batches of one rank, in order.
#[pyclass(frozen, name = "Loader", module = "gnnkit._core")]
struct PyLoader {
    plan: Arc<Plan>,
    ahead: Mutex<Option<Arc<MadeAhead>>>,
    last: Mutex<Work>,
}

#[pymethods]
impl PyLoader {
    #[new]
    #[pyo3(signature = (graph, sampler, steps, tables, allocate, threads, depth))]
    fn new(
        graph: Arg<'_, '_>,
        sampler: Arg<'_, '_>,
        steps: Arg<'_, '_>,
        tables: Arg<'_, '_>,
        allocate: Arg<'_, '_>,
        threads: Arg<'_, '_>,
        depth: Arg<'_, '_>,
    ) -> PyResult<Self> {
        let threads = within("threads", threads, 1..=MOST_THREADS)?;
        let depth = within("prefetch", depth, 1..=MOST_AHEAD)?;
        if !allocate.is_callable() {
            return Err(PyTypeError::new_err("allocate must be a function of a number of bytes"));
        }
        let Steps {
            seeds,
            offsets,
            first,
            key,
        } = Steps::new(steps)?;
        let num_steps = offsets.len() - 1;
        let plan = Arc::new(Plan {
            draws: draws(graph, sampler)?,
            seeds,
            offsets,
            key,
            tables: items("tables", tables)?
                .iter()
                .map(|table| Table::new(table, allocate))
                .collect::<PyResult<_>>()?,
            since: Instant::now(),
        });
        let worker = |thread| {
            let plan = Arc::clone(&plan);
            let mut scratch = Scratch::default();
            move |step| plan.make(thread, step, &mut scratch)
        };
        let workers = (0..threads.min(depth)).map(worker).collect();
        // Where the system refuses a thread, the others are waited for, and may need the lock.
        let ahead = graph
            .py()
            .detach(|| Pipeline::start(first..num_steps, depth, workers))?;
        Ok(Self {
            plan,
            ahead: Mutex::new(Some(Arc::new(ahead))),
            last: Mutex::default(),
        })
    }

    /// The next batch. Raises `RuntimeError` after the last one, after `close` and
    /// after a fork.
    fn take(&self, py: Python<'_>) -> PyResult<PyMade> {
        let ahead = lock(&self.ahead).clone().ok_or_else(ended)?;
        if !ahead.is_own_process() {
            return Err(PyRuntimeError::new_err(
                "this iterator was made before a fork, which its threads do not survive: make a new one of the loader",
            ));
        }
        for table in &self.plan.tables {
            table.buffers.recycle(py);
        }
        let made = next(py, &ahead);
        // The last reference waits for threads, which may need the interpreter's lock.
        py.detach(|| drop(ahead));
        let made = made?;
        *lock(&self.last) = made.work;
        let batch = match made.batch {
            Drawn::I32(batch) => batch_to_py(py, batch)?.into_py_any(py)?,
            Drawn::I64(batch) => batch_to_py(py, batch)?.into_py_any(py)?,
            Drawn::Python(batch) => batch,
        };
        let rows = self.plan.tables.iter().zip(made.rows);
        Ok((batch, rows.map(|(table, rows)| table.buffers.lend(py, rows)).collect()))
    }

    /// The thread that made the last batch taken, and when it began, had drawn and had
    /// gathered, in seconds since this loader was made.
    fn last_work(&self) -> (usize, f64, f64, f64) {
        let work = *lock(&self.last);
        (work.thread, work.begun, work.drawn, work.ended)
    }

    /// Ends the threads, after the batches that they are at.
    fn close(&self, py: Python<'_>) {
        let ahead = lock(&self.ahead).take();
        py.detach(|| drop(ahead));
    }
}

/// The error after the last batch.
fn ended() -> PyErr {
    PyRuntimeError::new_err("there are no more batches")
}

/// Waits for the next result of `ahead`, and checks for Ctrl-C while waiting.
fn next(py: Python<'_>, ahead: &MadeAhead) -> PyResult<Made> {
    loop {
        match py.detach(|| ahead.take(PATIENCE)) {
            Taken::Next(Ok(made)) => return made,
            Taken::Next(Err(panic)) => resume_unwind(panic),
            Taken::Pending => py.check_signals()?,
            Taken::End => return Err(ended()),
        }
    }
}

impl Drop for PyLoader {
    fn drop(&mut self) {
        // The threads may need the lock to end.
        Python::attach(|py| self.close(py));
    }
}

fn draws(graph: &Bound<'_, PyAny>, sampler: &Bound<'_, PyAny>) -> PyResult<Draws> {
    let Ok(native) = sampler.cast::<PySampler>() else {
        attribute("sampler", sampler, "sample")?;
        return Ok(Draws::Python {
            sampler: sampler.clone().unbind(),
            graph: graph.clone().unbind(),
        });
    };
    Ok(Draws::Native {
        sampler: native.get().0.clone(),
        reading: Box::new(Reading::new(&untimed(PyReading::new(graph)?)?)),
    })
}

/// The reading itself, unless edges have times.
fn untimed(reading: PyReading<'_>) -> PyResult<PyReading<'_>> {
    if reading.visibility.is_some() {
        return Err(refuse("graph", "has times, but the seeds of a Loader have none"));
    }
    Ok(reading)
}

/// The key of `value` under `key`: chained by seed, epoch, step.
#[pyfunction]
fn derive(key: Arg<'_, '_>, value: Arg<'_, '_>) -> PyResult<u64> {
    Ok(rng::derive(key_of("key", key)?, key_of("value", value)?))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyLoader>()?;
    m.add_function(wrap_pyfunction!(derive, m)?)
}
