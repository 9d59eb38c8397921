//! Graphs made from a key.

use gnnkit_core::generate;
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::graph::{PySorted, by_width, num_threads, to_py};
use crate::value_error;

/// indptr and indices of an R-MAT graph; the third array is empty.
#[pyfunction]
#[pyo3(signature = (num_nodes, num_edges, key, threads=None))]
fn generate_rmat(
    py: Python<'_>,
    num_nodes: usize,
    num_edges: usize,
    key: u64,
    threads: Option<i64>,
) -> PyResult<PySorted<'_>> {
    let threads = num_threads(threads)?;
    by_width!(num_nodes, I => to_py(py, py.detach(|| generate::rmat::<I>(num_nodes, num_edges, key, threads))))
}

/// indptr and indices of a stochastic block model; the third array is empty.
#[pyfunction]
#[pyo3(signature = (num_nodes, num_edges, num_blocks, in_block, key, threads=None))]
fn generate_block_model(
    py: Python<'_>,
    num_nodes: usize,
    num_edges: usize,
    num_blocks: usize,
    in_block: f64,
    key: u64,
    threads: Option<i64>,
) -> PyResult<PySorted<'_>> {
    let threads = num_threads(threads)?;
    by_width!(num_nodes, I => {
        let model = || generate::block_model::<I>(num_nodes, num_edges, num_blocks, in_block, key, threads);
        to_py(py, py.detach(model))
    })
}

/// indptr and indices of a lattice; the third array is empty.
#[pyfunction]
#[pyo3(signature = (num_nodes, side, dims, threads=None))]
fn generate_lattice(
    py: Python<'_>,
    num_nodes: usize,
    side: usize,
    dims: u32,
    threads: Option<i64>,
) -> PyResult<PySorted<'_>> {
    let threads = num_threads(threads)?;
    by_width!(num_nodes, I => to_py(py, py.detach(|| generate::lattice::<I>(num_nodes, side, dims, threads))))
}

/// The class of each node, in the order of `generate_rmat` and `generate_block_model` of that key, or of node ids.
#[pyfunction]
#[pyo3(signature = (num_nodes, num_classes, key=None))]
fn generate_labels(
    py: Python<'_>,
    num_nodes: usize,
    num_classes: usize,
    key: Option<u64>,
) -> PyResult<Bound<'_, PyArray1<i64>>> {
    let labels = py.detach(|| generate::labels(num_nodes, num_classes, key));
    Ok(labels.map_err(value_error)?.into_pyarray(py))
}

/// Features around the mean of each node's class, one row after the other.
#[pyfunction]
#[pyo3(signature = (labels, width, noise, key, threads=None))]
fn generate_features<'py>(
    py: Python<'py>,
    labels: PyReadonlyArray1<'py, i64>,
    width: usize,
    noise: f32,
    key: u64,
    threads: Option<i64>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let (labels, threads) = (labels.as_slice()?, num_threads(threads)?);
    let features = py.detach(|| generate::features(labels, width, noise, key, threads));
    Ok(features.map_err(value_error)?.into_pyarray(py))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(generate_rmat, m)?)?;
    m.add_function(wrap_pyfunction!(generate_block_model, m)?)?;
    m.add_function(wrap_pyfunction!(generate_lattice, m)?)?;
    m.add_function(wrap_pyfunction!(generate_labels, m)?)?;
    m.add_function(wrap_pyfunction!(generate_features, m)?)
}
