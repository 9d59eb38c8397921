//! Graphs made from a key.

use gnnkit_core::generate;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arg::{Arg, Slice, count, key as key_of, real};
use crate::graph::{PySorted, all_cores, by_width, to_py};
use crate::user_error;

/// indptr and indices of an R-MAT graph. The third array is empty.
#[pyfunction]
#[pyo3(signature = (num_nodes, num_edges, key, threads=None))]
fn generate_rmat<'py>(
    py: Python<'py>,
    num_nodes: Arg<'_, 'py>,
    num_edges: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PySorted<'py>> {
    let (num_nodes, num_edges) = (count("num_nodes", num_nodes)?, count("num_edges", num_edges)?);
    let (key, threads) = (key_of("key", key)?, all_cores(threads)?);
    by_width!(num_nodes, I => to_py(py, py.detach(|| generate::rmat::<I>(num_nodes, num_edges, key, threads))))
}

/// indptr and indices of a stochastic block model. The third array is empty.
#[pyfunction]
#[pyo3(signature = (num_nodes, num_edges, num_blocks, in_block, key, threads=None))]
fn generate_block_model<'py>(
    py: Python<'py>,
    num_nodes: Arg<'_, 'py>,
    num_edges: Arg<'_, 'py>,
    num_blocks: Arg<'_, 'py>,
    in_block: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PySorted<'py>> {
    let (num_nodes, num_edges) = (count("num_nodes", num_nodes)?, count("num_edges", num_edges)?);
    let (num_blocks, in_block) = (count("num_blocks", num_blocks)?, real("in_block", in_block)?);
    let (key, threads) = (key_of("key", key)?, all_cores(threads)?);
    by_width!(num_nodes, I => {
        let model = || generate::block_model::<I>(num_nodes, num_edges, num_blocks, in_block, key, threads);
        to_py(py, py.detach(model))
    })
}

/// indptr and indices of a lattice. The third array is empty.
#[pyfunction]
#[pyo3(signature = (num_nodes, side, dims, threads=None))]
fn generate_lattice<'py>(
    py: Python<'py>,
    num_nodes: Arg<'_, 'py>,
    side: Arg<'_, 'py>,
    dims: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PySorted<'py>> {
    let (num_nodes, side) = (count("num_nodes", num_nodes)?, count("side", side)?);
    let dims = u32::try_from(count("dims", dims)?).unwrap_or(u32::MAX);
    let threads = all_cores(threads)?;
    by_width!(num_nodes, I => to_py(py, py.detach(|| generate::lattice::<I>(num_nodes, side, dims, threads))))
}

/// The class of each node, in the order of `generate_rmat` and `generate_block_model`
/// of that key, or of node ids.
#[pyfunction]
#[pyo3(signature = (num_nodes, num_classes, key=None))]
fn generate_labels<'py>(
    py: Python<'py>,
    num_nodes: Arg<'_, 'py>,
    num_classes: Arg<'_, 'py>,
    key: Option<Arg<'_, 'py>>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (num_nodes, num_classes) = (count("num_nodes", num_nodes)?, count("num_classes", num_classes)?);
    let key = key.map(|key| key_of("key", key)).transpose()?;
    let labels = py.detach(|| generate::labels(num_nodes, num_classes, key));
    Ok(labels.map_err(user_error)?.into_pyarray(py))
}

/// Features around the mean of each node's class, one row after the other.
#[pyfunction]
#[pyo3(signature = (labels, width, noise, key, threads=None))]
fn generate_features<'py>(
    py: Python<'py>,
    labels: Arg<'_, 'py>,
    width: Arg<'_, 'py>,
    noise: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let (labels, width) = (Slice::new("labels", labels)?, count("width", width)?);
    let (noise, key) = (real("noise", noise)? as f32, key_of("key", key)?);
    let (labels, threads) = (labels.as_slice(), all_cores(threads)?);
    let features = py.detach(|| generate::features(labels, width, noise, key, threads));
    Ok(features.map_err(user_error)?.into_pyarray(py))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(generate_rmat, m)?)?;
    m.add_function(wrap_pyfunction!(generate_block_model, m)?)?;
    m.add_function(wrap_pyfunction!(generate_lattice, m)?)?;
    m.add_function(wrap_pyfunction!(generate_labels, m)?)?;
    m.add_function(wrap_pyfunction!(generate_features, m)?)
}
