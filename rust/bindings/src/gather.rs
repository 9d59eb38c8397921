//! Rows of a table by id.

use gnnkit_core::gather::Rows;
use numpy::{PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::graph::PyIds;
use crate::value_error;

/// Writes row `ids[i]` of `source` to row i of `out`. Rows are bytes: what they mean is the caller's business.
#[pyfunction]
fn gather_rows(
    py: Python<'_>,
    source: PyReadonlyArray2<'_, u8>,
    ids: PyIds<'_>,
    mut out: PyReadwriteArray2<'_, u8>,
    threads: usize,
) -> PyResult<()> {
    let [num_rows, row_bytes] = [source.shape()[0], source.shape()[1]];
    let rows = Rows::new(source.as_slice()?, num_rows, row_bytes).map_err(value_error)?;
    let out = out.as_slice_mut()?;
    match &ids {
        PyIds::I32(ids) => {
            let ids = ids.as_slice()?;
            py.detach(|| rows.gather(ids, out, threads))
        }
        PyIds::I64(ids) => {
            let ids = ids.as_slice()?;
            py.detach(|| rows.gather(ids, out, threads))
        }
    }
    .map_err(value_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(gather_rows, m)?)
}
