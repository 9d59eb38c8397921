//! Rows of a table by id.

use gnnkit_core::gather::Rows;
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, count};
use crate::array::{Input, Output};
use crate::user_error;

/// Writes row `ids[i]` of `source` to row i of `out`. Rows are copied as bytes, for any
/// element type.
#[pyfunction]
fn gather_rows(
    py: Python<'_>,
    source: Arg<'_, '_>,
    ids: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Arg<'_, '_>,
) -> PyResult<()> {
    let (source, mut out) = (Input::<u8>::new("source", source)?, Output::<u8>::new("out", out)?);
    out.apart_from(&source)?;
    let ids = Ids::new("ids", ids)?;
    let threads = count("threads", threads)?;
    let (num_rows, row_bytes) = source.rows()?;
    let rows = Rows::new(source.as_slice()?, num_rows, row_bytes).map_err(user_error)?;
    let out = out.as_slice()?;
    with_ids!(ids, ids => py.detach(|| rows.gather(ids, out, threads))).map_err(user_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(gather_rows, m)?)
}
