//! Even work.

use gnnkit_core::csc::{Csc, Id};
use gnnkit_core::{Error, balance};
use numpy::{Element, PyArray1};
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, flag, key as key_of, numbers};
use crate::user_error;

#[pyfunction]
fn tree_sizes<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    fanouts: Arg<'_, 'py>,
    replace: Arg<'_, 'py>,
    seeds: Arg<'_, 'py>,
    threads: Arg<'_, 'py>,
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
    let (indptr, seeds) = (Slice::new("indptr", indptr)?, Slice::new("seeds", seeds)?);
    let (indptr, seeds) = (indptr.as_slice(), seeds.as_slice());
    let indices = Ids::new("indices", indices)?;
    let (fanouts, replace) = (numbers("fanouts", fanouts)?, flag("replace", replace)?);
    let threads = count("threads", threads)?;
    let sizes = with_ids!(indices, indices => {
        py.detach(|| sizes(indptr, indices, &fanouts, replace, seeds, threads))
    });
    Ok(PyArray1::from_vec(py, sizes.map_err(user_error)?))
}

#[pyfunction]
fn even_order<'py>(
    py: Python<'py>,
    costs: Arg<'_, 'py>,
    num_workers: Arg<'_, 'py>,
    batch_size: Arg<'_, 'py>,
    window: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let costs = Slice::new("costs", costs)?;
    let (num_workers, batch_size) = (count("num_workers", num_workers)?, count("batch_size", batch_size)?);
    let (window, key) = (count("window", window)?, key_of("key", key)?);
    let costs = costs.as_slice();
    let order = py.detach(|| balance::even_order(costs, num_workers, batch_size, window, key));
    let order = order.map_err(user_error)?.into_iter().map(|item| item as i64);
    Ok(PyArray1::from_iter(py, order))
}

#[pyfunction]
fn shuffled_order<'py>(py: Python<'py>, ids: Arg<'_, 'py>, key: Arg<'_, 'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (ids, key) = (Slice::<i64>::new("ids", ids)?, key_of("key", key)?);
    let ids = ids.as_slice();
    let order = py.detach(|| balance::shuffled_order(ids, key));
    Ok(PyArray1::from_iter(py, order.into_iter().map(|item| item as i64)))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(tree_sizes, m)?)?;
    m.add_function(wrap_pyfunction!(even_order, m)?)?;
    m.add_function(wrap_pyfunction!(shuffled_order, m)?)
}
