//! Sampled neighbourhoods.

use std::any::Any;
use std::cell::RefCell;

use gnnkit_core::Error;
use gnnkit_core::csc::{Id, check_ids};
use gnnkit_core::memory::{Kept, List};
use gnnkit_core::sample::{Batch, Fanout, Hop, Importance, Kind, Limits, Numbering, Sampler, Scratch, water_fill};
use gnnkit_core::view::{Extra, View, Weights};
use gnnkit_core::walk::Walks;
use numpy::ndarray::ArrayView1;
use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::graph::{PyIds, PyWeight};
use crate::value_error;

thread_local! {
    /// Tables that a thread's batches reuse. They live and die with the thread, so a fork inherits no lock.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The attributes of `gnnkit.graph.CSC`.
#[derive(FromPyObject)]
pub struct PyCsc<'py> {
    pub indptr: PyReadonlyArray1<'py, i64>,
    pub indices: PyIds<'py>,
    pub num_sources: usize,
    pub weight: Option<PyWeight<'py>>,
}

/// The attributes of `gnnkit.sampler.base.Reading`.
#[derive(FromPyObject)]
pub struct PyReading<'py> {
    pub csc: PyCsc<'py>,
    pub wanted: Option<PyReadonlyArray1<'py, f64>>,
    pub cluster: Option<PyReadonlyArray1<'py, i64>>,
    pub rows: Option<PyReadonlyArray1<'py, i64>>,
    pub sources: Option<PyReadonlyArray1<'py, i64>>,
    pub counts: Option<PyReadonlyArray1<'py, i64>>,
}

impl PyReading<'_> {
    fn extra(&self) -> PyResult<Extra<'_>> {
        let weight = match &self.csc.weight {
            None => None,
            Some(PyWeight::F32(weight)) => Some(Weights::F32(weight.as_slice()?)),
            Some(PyWeight::F64(weight)) => Some(Weights::F64(weight.as_slice()?)),
        };
        Ok(Extra {
            weight,
            wanted: self.wanted.as_ref().map(|wanted| wanted.as_slice()).transpose()?,
            cluster: self.cluster.as_ref().map(|cluster| cluster.as_slice()).transpose()?,
            rows: self.rows.as_ref().map(|rows| rows.as_slice()).transpose()?,
            sources: self.sources.as_ref().map(|sources| sources.as_slice()).transpose()?,
            counts: self.counts.as_ref().map(|counts| counts.as_slice()).transpose()?,
        })
    }
}

/// Runs the body with a view of what is read, whichever width its ids have.
macro_rules! with_view {
    ($reading:expr, $view:ident => $body:expr) => {
        with_ids!($reading.csc.indices, indices => {
            let csc = View::new($reading.csc.indptr.as_slice()?, indices, $reading.csc.num_sources);
            let extra = $reading.extra()?;
            let $view = csc.and_then(|csc| csc.with(extra)).map_err(value_error)?;
            $body
        })
    };
}

/// length, num_walks, alpha.
#[derive(FromPyObject)]
struct PyWalks(usize, usize, f64);

impl From<PyWalks> for Walks {
    fn from(PyWalks(length, num_walks, alpha): PyWalks) -> Self {
        Self {
            length,
            num_walks,
            alpha,
        }
    }
}

/// indptr, sources, edge ids, weights of one hop.
type PyHop<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyArray1<i64>>,
    Option<Bound<'py, PyArray1<f32>>>,
);

/// nodes, known, indptr, indices, edge ids, weights of a batch.
type PyBatch<'py> = (
    Bound<'py, PyUntypedArray>,
    Vec<usize>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyArray1<i64>>,
    Option<Bound<'py, PyArray1<f32>>>,
);

/// What a native sampler draws; immutable, so that any number of threads may use it.
#[pyclass(frozen, name = "Sampler", module = "gnnkit._core")]
pub struct PySampler(pub Sampler);

#[pymethods]
impl PySampler {
    /// Uniform neighbours.
    #[staticmethod]
    fn neighbor(fanouts: Vec<i64>, replace: bool, redraw: bool, importance: Option<&str>) -> PyResult<Self> {
        Self::new(Kind::Neighbor { replace }, &fanouts, redraw, importance)
    }

    /// In proportion to weights.
    #[staticmethod]
    fn weighted(fanouts: Vec<i64>, replace: bool, redraw: bool, importance: Option<&str>) -> PyResult<Self> {
        Self::new(Kind::Weighted { replace }, &fanouts, redraw, importance)
    }

    /// As equal a number of neighbours per node as degrees allow.
    #[staticmethod]
    fn balanced(
        fanouts: Vec<i64>,
        least: usize,
        most: Option<usize>,
        redraw: bool,
        importance: Option<&str>,
    ) -> PyResult<Self> {
        let most = most.unwrap_or(usize::MAX);
        Self::new(Kind::Balanced(Limits { least, most }), &fanouts, redraw, importance)
    }

    /// Nodes of a hop share sources.
    #[staticmethod]
    fn labor(fanouts: Vec<i64>, redraw: bool, importance: Option<&str>) -> PyResult<Self> {
        Self::new(Kind::Labor, &fanouts, redraw, importance)
    }

    /// The nodes that walks visit most.
    #[staticmethod]
    fn metropolis_hastings(
        fanouts: Vec<i64>,
        walks: PyWalks,
        redraw: bool,
        importance: Option<&str>,
    ) -> PyResult<Self> {
        Self::new(Kind::MetropolisHastings(walks.into()), &fanouts, redraw, importance)
    }

    /// All edges between the clusters of the seeds.
    #[staticmethod]
    fn cluster(num_hops: usize) -> PyResult<Self> {
        Self::new(Kind::Cluster, &vec![-1; num_hops], false, None)
    }

    /// One hop of `nodes`, drawn by `threads` threads.
    fn draw<'py>(
        &self,
        py: Python<'py>,
        reading: PyReading<'py>,
        nodes: PyReadonlyArray1<'py, i64>,
        hop: usize,
        key: u64,
        threads: usize,
    ) -> PyResult<PyHop<'py>> {
        let nodes = nodes.as_slice()?;
        with_view!(reading, view => {
            let drawn = py.detach(|| {
                let nodes = narrow("nodes", nodes, view.num_nodes())?;
                SCRATCH.with_borrow_mut(|scratch| self.0.draw(&view, &nodes, hop, key, scratch.on_threads(threads)))
            });
            hop_to_py(py, drawn.map_err(value_error)?)
        })
    }

    /// All hops of `seeds`, drawn and numbered by `threads` threads.
    fn sample<'py>(
        &self,
        py: Python<'py>,
        reading: PyReading<'py>,
        seeds: PyReadonlyArray1<'py, i64>,
        key: u64,
        threads: usize,
    ) -> PyResult<PyBatch<'py>> {
        let seeds = seeds.as_slice()?;
        with_view!(reading, view => {
            let batch = py.detach(|| {
                let seeds = narrow("seeds", seeds, view.num_nodes())?;
                SCRATCH.with_borrow_mut(|scratch| self.0.sample(&view, &seeds, key, scratch.on_threads(threads)))
            });
            batch_to_py(py, batch.map_err(value_error)?)
        })
    }
}

/// Local ids in order of first occurrence.
#[pyclass(name = "Numbering", module = "gnnkit._core")]
struct PyNumbering(Numbering);

#[pymethods]
impl PyNumbering {
    #[new]
    fn new(seeds: PyReadonlyArray1<'_, i64>, num_nodes: usize) -> PyResult<Self> {
        Numbering::new(seeds.as_slice()?, num_nodes)
            .map(Self)
            .map_err(value_error)
    }

    /// The local id of each of `ids`; those that are new come next.
    fn add<'py>(&mut self, py: Python<'py>, ids: PyReadonlyArray1<'_, i64>) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let ids = ids.as_slice()?;
        let locals = py.detach(|| self.0.add(ids)).map_err(value_error)?;
        Ok(locals.into_pyarray(py))
    }

    /// Global ids in order of first occurrence.
    fn nodes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i64>> {
        PyArray1::from_slice(py, self.0.nodes())
    }
}

impl PySampler {
    fn new(kind: Kind, fanouts: &[i64], redraw: bool, importance: Option<&str>) -> PyResult<Self> {
        if fanouts.is_empty() {
            return Err(PyValueError::new_err(
                "fanouts=[] names no hop: give one number of neighbours per layer",
            ));
        }
        let fanouts = fanouts
            .iter()
            .enumerate()
            .map(|(hop, &fanout)| Fanout::new(hop, fanout));
        let importance = match importance {
            None => None,
            Some("mean") => Some(Importance::Mean),
            Some("sum") => Some(Importance::Sum),
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "importance={other} must be mean, sum or null"
                )));
            }
        };
        Ok(Self(Sampler {
            kind,
            fanouts: fanouts.collect::<Result<_, _>>().map_err(value_error)?,
            redraw,
            importance,
        }))
    }
}

/// Ids below `bound` in the width of the graph's own.
pub(crate) fn narrow<I: Id>(name: &'static str, ids: &[i64], bound: usize) -> Result<Vec<I>, Error> {
    check_ids(name, ids, bound, "nodes")?;
    Ok(ids.iter().map(|id| I::from_index(id.index())).collect())
}

fn hop_to_py<I: Id + Element>(py: Python<'_>, hop: Hop<I>) -> PyResult<PyHop<'_>> {
    Ok((
        list_to_py(py, hop.indptr)?,
        list_to_py(py, hop.sources)?.as_untyped().clone(),
        list_to_py(py, hop.edge_ids)?,
        hop.weight.map(|weight| list_to_py(py, weight)).transpose()?,
    ))
}

pub(crate) fn batch_to_py<I: Id + Element>(py: Python<'_>, batch: Batch<I>) -> PyResult<PyBatch<'_>> {
    Ok((
        list_to_py(py, batch.nodes)?.as_untyped().clone(),
        batch.known,
        list_to_py(py, batch.indptr)?,
        list_to_py(py, batch.indices)?.as_untyped().clone(),
        list_to_py(py, batch.edge_ids)?,
        batch.weight.map(|weight| list_to_py(py, weight)).transpose()?,
    ))
}

/// The list that an array shows; later batches use its memory when no view of the array is left.
#[pyclass(frozen, module = "gnnkit._core")]
struct Memory {
    _list: Box<dyn Any + Send + Sync>,
}

fn list_to_py<T: Kept + Element>(py: Python<'_>, list: List<T>) -> PyResult<Bound<'_, PyArray1<T>>> {
    let (start, len) = (list.as_ptr(), list.len());
    let memory = Bound::new(py, Memory { _list: Box::new(list) })?.into_any();
    // SAFETY: the elements stay where they are, and `memory` keeps them and lets nobody else reach them.
    Ok(unsafe { PyArray1::borrow_from_array(&ArrayView1::from_shape_ptr(len, start), memory) })
}

/// The nodes that walks stand on, [num_starts * num_walks * (length + 1)], the start first.
#[pyfunction]
fn visited<'py>(
    py: Python<'py>,
    reading: PyReading<'py>,
    starts: PyReadonlyArray1<'py, i64>,
    walks: PyWalks,
    key: u64,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let starts = starts.as_slice()?;
    let walks = Walks::from(walks);
    with_view!(reading, view => {
        let visited = py.detach(|| walks.visited(&view, &narrow("starts", starts, view.num_nodes())?, key));
        visited.map(|visited| visited.into_pyarray(py).as_untyped().clone()).map_err(value_error)
    })
}

/// Numbers of draws per node, as equal as `degrees` allow.
#[pyfunction(name = "water_fill")]
fn water_fill_py<'py>(
    py: Python<'py>,
    degrees: PyReadonlyArray1<'py, i64>,
    budget: usize,
    least: usize,
    most: Option<usize>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let degrees = degrees.as_slice()?;
    check_ids("degrees", degrees, usize::MAX >> 1, "neighbours").map_err(value_error)?;
    let counts = py.detach(|| {
        let degrees: Vec<usize> = degrees.iter().map(|degree| degree.index()).collect();
        let most = most.unwrap_or(usize::MAX);
        water_fill(&degrees, budget, Limits { least, most })
            .into_iter()
            .map(|count| count as i64)
            .collect::<Vec<_>>()
    });
    Ok(counts.into_pyarray(py))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PySampler>()?;
    m.add_class::<PyNumbering>()?;
    m.add_function(wrap_pyfunction!(visited, m)?)?;
    m.add_function(wrap_pyfunction!(water_fill_py, m)?)
}
