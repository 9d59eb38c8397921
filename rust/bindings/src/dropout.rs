//! Dropout keyed by ids.

use gnnkit_core::{Dropout, Float};
use numpy::Element;
use pyo3::prelude::*;

use crate::array::{Input, Output, is_double, same_rows};
use crate::graph::PyIds;
use crate::value_error;

/// Writes the kept elements of `x`, scaled, to `out`.
#[pyfunction]
#[pyo3(signature = (x, ids, p, key, out, gate=None, threads=1))]
fn dropout(
    x: &Bound<'_, PyAny>,
    ids: PyIds<'_>,
    p: f64,
    key: u64,
    out: &Bound<'_, PyAny>,
    gate: Option<&Bound<'_, PyAny>>,
    threads: usize,
) -> PyResult<()> {
    let dropout = Dropout::new(key, p).map_err(value_error)?;
    if is_double("x", x)? {
        apply::<f64>(dropout, x, &ids, out, gate, threads)
    } else {
        apply::<f32>(dropout, x, &ids, out, gate, threads)
    }
}

fn apply<T: Float + Element>(
    dropout: Dropout,
    x: &Bound<'_, PyAny>,
    ids: &PyIds<'_>,
    out: &Bound<'_, PyAny>,
    gate: Option<&Bound<'_, PyAny>>,
    threads: usize,
) -> PyResult<()> {
    let (py, x, mut out) = (x.py(), Input::<T>::new("x", x)?, Output::<T>::new("out", out)?);
    out.apart_from(&x)?;
    let gate = gate.map(|gate| Input::<T>::new("gate", gate)).transpose()?;
    if let Some(gate) = &gate {
        out.apart_from(gate)?;
        same_rows(("x", x.shape()), ("gate", gate.shape()))?;
    }
    let width = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let (x, out) = (x.as_slice()?, out.as_slice()?);
    let gate = gate.as_ref().map(Input::as_slice).transpose()?;
    match ids {
        PyIds::I32(ids) => {
            let ids = ids.as_slice()?;
            py.detach(|| dropout.apply(ids, width, x, gate, out, threads))
        }
        PyIds::I64(ids) => {
            let ids = ids.as_slice()?;
            py.detach(|| dropout.apply(ids, width, x, gate, out, threads))
        }
    }
    .map_err(value_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(dropout, m)?)
}
