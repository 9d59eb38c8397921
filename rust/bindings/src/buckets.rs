//! Edges by buckets of destinations, and a table of ids.

use gnnkit_core::buckets::{self, IdTable, Texts};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, within};
use crate::graph::all_cores;
use crate::user_error;

/// The largest shift of an id.
const MAX_SHIFT: usize = i64::BITS as usize - 1;

type Order<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// How many ids fall in each bin of `1 << shift` ids.
#[pyfunction]
#[pyo3(signature = (ids, shift, num_bins, threads=None))]
fn count_bins<'py>(
    py: Python<'py>,
    ids: Arg<'_, 'py>,
    shift: Arg<'_, 'py>,
    num_bins: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ids = Ids::new("ids", ids)?;
    let (shift, num_bins) = (
        within("shift", shift, 0..=MAX_SHIFT)? as u32,
        count("num_bins", num_bins)?,
    );
    let threads = all_cores(threads)?;
    let counts = with_ids!(ids, ids => py.detach(|| buckets::count_bins(ids, shift, num_bins, threads)));
    Ok(counts.map_err(user_error)?.into_pyarray(py))
}

/// The positions of ids by (bucket, position), and the size of each bucket.
#[pyfunction]
#[pyo3(signature = (ids, shift, buckets, num_buckets, threads=None))]
fn bucket_order<'py>(
    py: Python<'py>,
    ids: Arg<'_, 'py>,
    shift: Arg<'_, 'py>,
    buckets: Arg<'_, 'py>,
    num_buckets: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<Order<'py>> {
    let (ids, of_bins) = (Ids::new("ids", ids)?, Slice::<i32>::new("buckets", buckets)?);
    let (shift, num_buckets) = (
        within("shift", shift, 0..=MAX_SHIFT)? as u32,
        count("num_buckets", num_buckets)?,
    );
    let (of_bins, threads) = (of_bins.as_slice(), all_cores(threads)?);
    let found = with_ids!(ids, ids => py.detach(|| buckets::bucket_order(ids, shift, of_bins, num_buckets, threads)));
    let (order, sizes) = found.map_err(user_error)?;
    Ok((order.into_pyarray(py), sizes.into_pyarray(py)))
}

/// Finds the number of each of many distinct texts. Text i is
/// `data[offsets[i]:offsets[i + 1]]`.
#[pyclass(name = "IdTable", module = "gnnkit._core", frozen)]
struct PyIdTable(IdTable);

#[pymethods]
impl PyIdTable {
    #[new]
    fn new(py: Python<'_>, data: Arg<'_, '_>, offsets: Arg<'_, '_>) -> PyResult<Self> {
        let (data, offsets) = (Slice::<u8>::new("data", data)?, Slice::<i64>::new("offsets", offsets)?);
        let (data, offsets) = (data.as_slice(), offsets.as_slice());
        let table = py.detach(|| Texts::new(data, offsets).and_then(IdTable::new));
        table.map(Self).map_err(user_error)
    }

    /// Returns the number of each text, or -1 for a text that is not in the table.
    #[pyo3(signature = (data, offsets, threads=None))]
    fn find<'py>(
        &self,
        py: Python<'py>,
        data: Arg<'_, 'py>,
        offsets: Arg<'_, 'py>,
        threads: Option<Arg<'_, 'py>>,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let (data, offsets) = (Slice::<u8>::new("data", data)?, Slice::<i64>::new("offsets", offsets)?);
        let (data, offsets, threads) = (data.as_slice(), offsets.as_slice(), all_cores(threads)?);
        let found = py.detach(|| self.0.find(Texts::new(data, offsets)?, threads));
        Ok(found.map_err(user_error)?.into_pyarray(py))
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyIdTable>()?;
    m.add_function(wrap_pyfunction!(count_bins, m)?)?;
    m.add_function(wrap_pyfunction!(bucket_order, m)?)
}
