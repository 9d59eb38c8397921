//! Moves of boundary nodes.

use gnnkit_core::border::{self, Grid};
use gnnkit_core::csc::Id;
use gnnkit_core::{Csc, Error};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, exactly, real};
use crate::user_error;

/// Rows, columns and slices.
pub(crate) fn plane(name: &str, grid: Arg<'_, '_>) -> PyResult<Grid> {
    let [rows, cols, slices] = exactly(name, grid)?;
    Ok(Grid {
        rows: count(&format!("{name}[0]"), &rows)?,
        cols: count(&format!("{name}[1]"), &cols)?,
        slices: count(&format!("{name}[2]"), &slices)?,
    })
}

#[pyfunction]
fn min_words<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    node_rank: Arg<'_, 'py>,
    grid: Arg<'_, 'py>,
    max_imbalance: Arg<'_, 'py>,
) -> PyResult<(Bound<'py, PyArray1<i32>>, usize)> {
    let mut ranks = Slice::<i32>::new("node_rank", node_rank)?.as_slice().to_vec();
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let grid = plane("grid", grid)?;
    let max_imbalance = real("max_imbalance", max_imbalance)?;
    let indptr = indptr.as_slice();
    let moves = with_ids!(indices, indices => {
        py.detach(|| improve(indptr, indices, grid, &mut ranks, max_imbalance))
    });
    let moves = moves.map_err(user_error)?;
    Ok((ranks.into_pyarray(py), moves))
}

fn improve<I: Id>(
    indptr: &[i64],
    indices: &[I],
    grid: Grid,
    ranks: &mut [i32],
    max_imbalance: f64,
) -> Result<usize, Error> {
    let csc = Csc::new(indptr, indices, ranks.len())?;
    border::min_words(csc, grid, ranks, max_imbalance)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(min_words, m)?)
}
