//! Validation of graphs.

use gnnkit_core::Csc;
use gnnkit_core::csc::Id;
use numpy::{Element, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::value_error;

/// Either id width that NumPy users have.
#[derive(FromPyObject)]
pub enum PyIds<'py> {
    I32(PyReadonlyArray1<'py, i32>),
    I64(PyReadonlyArray1<'py, i64>),
}

fn check<I: Id + Element>(
    py: Python<'_>,
    indptr: &PyReadonlyArray1<'_, i64>,
    indices: &PyReadonlyArray1<'_, I>,
    num_sources: usize,
) -> PyResult<()> {
    let (indptr, indices) = (indptr.as_slice()?, indices.as_slice()?);
    py.detach(|| Csc::new(indptr, indices, num_sources).map(drop)).map_err(value_error)
}

/// Raises `ValueError` naming the first bad value of a CSC and its place. One thread, so it may run before a fork.
#[pyfunction]
fn check_csc(py: Python<'_>, indptr: PyReadonlyArray1<'_, i64>, indices: PyIds<'_>, num_sources: usize) -> PyResult<()> {
    match indices {
        PyIds::I32(indices) => check(py, &indptr, &indices, num_sources),
        PyIds::I64(indices) => check(py, &indptr, &indices, num_sources),
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(check_csc, m)?)
}
