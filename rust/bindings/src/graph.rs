//! Graphs: validation, edge lists to CSC, transposition, degrees.

use std::thread::available_parallelism;

use gnnkit_core::csc::Id;
use gnnkit_core::edges::{self, Sorted, Tag};
use gnnkit_core::{Csc, Error};
use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::value_error;

/// Either id width that NumPy users have.
#[derive(FromPyObject)]
pub enum PyIds<'py> {
    I32(PyReadonlyArray1<'py, i32>),
    I64(PyReadonlyArray1<'py, i64>),
}

/// Either width of edge weights.
#[derive(FromPyObject)]
pub enum PyWeight<'py> {
    F32(PyReadonlyArray1<'py, f32>),
    F64(PyReadonlyArray1<'py, f64>),
}

/// Runs the body with the arrays of ids, whichever width they have, as slices.
macro_rules! with_ids {
    ($ids:expr, $slice:ident => $body:expr) => {
        match &$ids {
            PyIds::I32(array) => {
                let $slice = array.as_slice()?;
                $body
            }
            PyIds::I64(array) => {
                let $slice = array.as_slice()?;
                $body
            }
        }
    };
}

/// Threads to use: what the user says, else the cores that this process may use.
pub(crate) fn num_threads(threads: Option<i64>) -> PyResult<usize> {
    match threads {
        None => Ok(available_parallelism().map_or(1, usize::from)),
        Some(threads @ 1..) => Ok(threads as usize),
        Some(threads) => Err(PyValueError::new_err(format!("threads={threads} must be at least 1"))),
    }
}

/// indptr, indices (int32 or int64) and the position of each edge in what it was made from, empty where not wanted.
pub(crate) type PySorted<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyArray1<i64>>,
);

/// In-degrees and out-degrees.
type PyDegrees<'py> = (Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

/// A tag that the caller may see.
pub(crate) trait PyTag: Tag {
    fn positions(tags: Vec<Self>) -> Vec<i64>;
}

impl PyTag for i64 {
    fn positions(tags: Vec<Self>) -> Vec<i64> {
        tags
    }
}

impl PyTag for () {
    fn positions(_: Vec<Self>) -> Vec<i64> {
        Vec::new()
    }
}

pub(crate) fn to_py<O: Id + Element, A: PyTag>(
    py: Python<'_>,
    sorted: Result<Sorted<O, A>, Error>,
) -> PyResult<PySorted<'_>> {
    let Sorted { indptr, indices, tags } = sorted.map_err(value_error)?;
    let indices = indices.into_pyarray(py).as_untyped().clone();
    Ok((indptr.into_pyarray(py), indices, A::positions(tags).into_pyarray(py)))
}

/// Evaluates the body with `$ids` as the narrowest type that numbers `num_nodes`.
macro_rules! by_width {
    ($num_nodes:expr, $ids:ident => $body:expr) => {
        if $num_nodes <= i32::MAX as usize {
            type $ids = i32;
            $body
        } else {
            type $ids = i64;
            $body
        }
    };
}
pub(crate) use by_width;

/// Raises `ValueError` naming the first bad value of a CSC and its place. One thread, so it may run before a fork.
#[pyfunction]
fn check_csc(
    py: Python<'_>,
    indptr: PyReadonlyArray1<'_, i64>,
    indices: PyIds<'_>,
    num_sources: usize,
) -> PyResult<()> {
    let indptr = indptr.as_slice()?;
    with_ids!(indices, indices => py.detach(|| Csc::new(indptr, indices, num_sources).map(drop)).map_err(value_error))
}

/// The CSC of the edges `src[i] -> dst[i]`, and i of each edge where `positions` is true.
#[pyfunction]
#[pyo3(signature = (src, dst, num_nodes, num_sources, positions, threads=None))]
fn csc_from_edges<'py>(
    py: Python<'py>,
    src: PyIds<'py>,
    dst: PyIds<'py>,
    num_nodes: usize,
    num_sources: usize,
    positions: bool,
    threads: Option<i64>,
) -> PyResult<PySorted<'py>> {
    let threads = num_threads(threads)?;
    with_ids!(src, src => with_ids!(dst, dst => by_width!(num_nodes.max(num_sources), O => {
        if positions {
            to_py(py, py.detach(|| edges::from_edges::<O, i64>(src, dst, num_nodes, num_sources, threads)))
        } else {
            to_py(py, py.detach(|| edges::from_edges::<O, ()>(src, dst, num_nodes, num_sources, threads)))
        }
    })))
}

/// The graph turned around, and the position in it of each edge.
#[pyfunction]
#[pyo3(signature = (indptr, indices, num_sources, threads=None))]
fn csc_transpose<'py>(
    py: Python<'py>,
    indptr: PyReadonlyArray1<'py, i64>,
    indices: PyIds<'py>,
    num_sources: usize,
    threads: Option<i64>,
) -> PyResult<PySorted<'py>> {
    let threads = num_threads(threads)?;
    let indptr = indptr.as_slice()?;
    with_ids!(indices, indices => {
        let csc = Csc::new(indptr, indices, num_sources).map_err(value_error)?;
        by_width!(num_sources.max(csc.num_nodes()), O => to_py(py, py.detach(|| edges::transpose::<O, i64>(csc, threads))))
    })
}

/// The graph with the reverse edges that it lacks, and the position of the edge that each comes from.
#[pyfunction]
#[pyo3(signature = (indptr, indices, threads=None))]
fn csc_symmetrize<'py>(
    py: Python<'py>,
    indptr: PyReadonlyArray1<'py, i64>,
    indices: PyIds<'py>,
    threads: Option<i64>,
) -> PyResult<PySorted<'py>> {
    let threads = num_threads(threads)?;
    let indptr = indptr.as_slice()?;
    let num_nodes = indptr.len().saturating_sub(1);
    with_ids!(indices, indices => {
        let csc = Csc::new(indptr, indices, num_nodes).map_err(value_error)?;
        by_width!(num_nodes, O => to_py(py, py.detach(|| edges::symmetrize::<O, i64>(csc, threads))))
    })
}

/// Sums of the weights of each destination's in-edges and of each source's out-edges.
#[pyfunction]
fn csc_degrees<'py>(
    py: Python<'py>,
    indptr: PyReadonlyArray1<'py, i64>,
    indices: PyIds<'py>,
    num_sources: usize,
    weight: Option<PyWeight<'py>>,
) -> PyResult<PyDegrees<'py>> {
    let indptr = indptr.as_slice()?;
    let degrees = with_ids!(indices, indices => {
        let csc = Csc::new(indptr, indices, num_sources).map_err(value_error)?;
        match &weight {
            None => edges::degrees::<_, f64>(csc, None),
            Some(PyWeight::F32(weight)) => edges::degrees(csc, Some(weight.as_slice()?)),
            Some(PyWeight::F64(weight)) => edges::degrees(csc, Some(weight.as_slice()?)),
        }
    });
    let (in_degree, out_degree) = degrees.map_err(value_error)?;
    Ok((in_degree.into_pyarray(py), out_degree.into_pyarray(py)))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(check_csc, m)?)?;
    m.add_function(wrap_pyfunction!(csc_from_edges, m)?)?;
    m.add_function(wrap_pyfunction!(csc_transpose, m)?)?;
    m.add_function(wrap_pyfunction!(csc_symmetrize, m)?)?;
    m.add_function(wrap_pyfunction!(csc_degrees, m)?)
}
