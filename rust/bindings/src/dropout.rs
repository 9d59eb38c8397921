//! Dropout keyed by ids.

use gnnkit_core::{Dropout, Float};
use numpy::Element;
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, key as key_of, real};
use crate::array::{Input, Output, is_double, same_rows};
use crate::graph::num_threads;
use crate::user_error;

/// Writes the kept elements of `x`, scaled, to `out`.
#[pyfunction]
#[pyo3(signature = (x, ids, p, key, out, gate=None, threads=None))]
fn dropout(
    x: Arg<'_, '_>,
    ids: Arg<'_, '_>,
    p: Arg<'_, '_>,
    key: Arg<'_, '_>,
    out: Arg<'_, '_>,
    gate: Option<Arg<'_, '_>>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let dropout = Dropout::new(key_of("key", key)?, real("p", p)?).map_err(user_error)?;
    let (ids, threads) = (Ids::new("ids", ids)?, num_threads(threads, 1)?);
    if is_double("x", x)? {
        apply::<f64>(dropout, x, &ids, out, gate, threads)
    } else {
        apply::<f32>(dropout, x, &ids, out, gate, threads)
    }
}

fn apply<T: Float + Element>(
    dropout: Dropout,
    x: Arg<'_, '_>,
    ids: &Ids<'_>,
    out: Arg<'_, '_>,
    gate: Option<Arg<'_, '_>>,
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
    with_ids!(*ids, ids => py.detach(|| dropout.apply(ids, width, x, gate, out, threads))).map_err(user_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(dropout, m)?)
}
