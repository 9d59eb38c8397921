//! Even work.

use gnnkit_core::csc::{Csc, Id};
use gnnkit_core::{Error, balance};
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::graph::PyIds;
use crate::value_error;

#[pyfunction]
fn tree_sizes<'py>(
    py: Python<'py>,
    indptr: PyReadonlyArray1<'py, i64>,
    indices: PyIds<'py>,
    fanouts: Vec<i64>,
    replace: bool,
    seeds: PyReadonlyArray1<'py, i64>,
    threads: usize,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    fn sizes<I: Id + Element>(
        indptr: &[i64],
        indices: &[I],
        fanouts: &[i64],
        replace: bool,
        seeds: &[i64],
        threads: usize,
    ) -> Result<Vec<f64>, Error> {
        let graph = Csc::new(indptr, indices, indptr.len().saturating_sub(1))?;
        let fanouts: Vec<_> = fanouts.iter().map(|&fanout| usize::try_from(fanout).ok()).collect();
        balance::tree_sizes(&graph, &fanouts, replace, seeds, threads)
    }
    let (indptr, seeds) = (indptr.as_slice()?, seeds.as_slice()?);
    let sizes = match &indices {
        PyIds::I32(indices) => {
            let indices = indices.as_slice()?;
            py.detach(|| sizes(indptr, indices, &fanouts, replace, seeds, threads))
        }
        PyIds::I64(indices) => {
            let indices = indices.as_slice()?;
            py.detach(|| sizes(indptr, indices, &fanouts, replace, seeds, threads))
        }
    };
    Ok(PyArray1::from_vec(py, sizes.map_err(value_error)?))
}

#[pyfunction]
fn even_order<'py>(
    py: Python<'py>,
    costs: PyReadonlyArray1<'py, f64>,
    num_workers: usize,
    batch_size: usize,
    window: usize,
    key: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let costs = costs.as_slice()?;
    let order = py.detach(|| balance::even_order(costs, num_workers, batch_size, window, key));
    let order = order.map_err(value_error)?.into_iter().map(|item| item as i64);
    Ok(PyArray1::from_iter(py, order))
}

#[pyfunction]
fn shuffled_order<'py>(
    py: Python<'py>,
    ids: PyReadonlyArray1<'py, i64>,
    key: u64,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ids = ids.as_slice()?;
    let order = py.detach(|| balance::shuffled_order(ids, key));
    Ok(PyArray1::from_iter(py, order.into_iter().map(|item| item as i64)))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(tree_sizes, m)?)?;
    m.add_function(wrap_pyfunction!(even_order, m)?)?;
    m.add_function(wrap_pyfunction!(shuffled_order, m)?)
}
