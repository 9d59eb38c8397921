//! Moves of boundary nodes.

use gnnkit_core::border::{self, Grid};
use gnnkit_core::csc::Id;
use gnnkit_core::{Csc, Error};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::graph::PyIds;
use crate::value_error;

#[pyfunction]
fn min_words<'py>(
    py: Python<'py>,
    indptr: PyReadonlyArray1<'py, i64>,
    indices: PyIds<'py>,
    node_rank: PyReadonlyArray1<'py, i32>,
    grid: (usize, usize, usize),
    max_imbalance: f64,
) -> PyResult<(Bound<'py, PyArray1<i32>>, usize)> {
    let mut ranks = node_rank.as_slice()?.to_vec();
    let indptr = indptr.as_slice()?;
    let moves = match &indices {
        PyIds::I32(indices) => improve(py, indptr, indices.as_slice()?, grid, &mut ranks, max_imbalance),
        PyIds::I64(indices) => improve(py, indptr, indices.as_slice()?, grid, &mut ranks, max_imbalance),
    };
    let moves = moves.map_err(value_error)?;
    Ok((ranks.into_pyarray(py), moves))
}

fn improve<I: Id>(
    py: Python<'_>,
    indptr: &[i64],
    indices: &[I],
    (rows, cols, slices): (usize, usize, usize),
    ranks: &mut [i32],
    max_imbalance: f64,
) -> Result<usize, Error> {
    py.detach(|| {
        let csc = Csc::new(indptr, indices, ranks.len())?;
        border::min_words(csc, Grid { rows, cols, slices }, ranks, max_imbalance)
    })
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(min_words, m)?)
}
