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

/// Writes ReLU and dropout of `x` to `out`, and a bit of each element to `kept`.
#[pyfunction]
#[pyo3(signature = (x, ids, p, key, out, kept, threads=None))]
fn rectify(
    x: Arg<'_, '_>,
    ids: Arg<'_, '_>,
    p: Arg<'_, '_>,
    key: Arg<'_, '_>,
    out: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let dropout = Dropout::new(key_of("key", key)?, real("p", p)?).map_err(user_error)?;
    let (ids, threads) = (Ids::new("ids", ids)?, num_threads(threads, 1)?);
    if is_double("x", x)? {
        rectified::<f64>(dropout, x, &ids, out, kept, threads)
    } else {
        rectified::<f32>(dropout, x, &ids, out, kept, threads)
    }
}

fn rectified<T: Float + Element>(
    dropout: Dropout,
    x: Arg<'_, '_>,
    ids: &Ids<'_>,
    out: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    threads: usize,
) -> PyResult<()> {
    let (py, x, mut out) = (x.py(), Input::<T>::new("x", x)?, Output::<T>::new("out", out)?);
    let mut kept = Output::<u32>::new("kept", kept)?;
    out.apart_from(&x)?;
    kept.apart_from(&x)?;
    kept.apart_from_output(&out)?;
    let width = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let (x, out, kept) = (x.as_slice()?, out.as_slice()?, kept.as_slice()?);
    with_ids!(*ids, ids => py.detach(|| dropout.rectify(ids, width, x, out, kept, threads))).map_err(user_error)
}

/// Writes the gradient of `rectify` to `out`.
#[pyfunction]
#[pyo3(signature = (grad, kept, p, out, threads=None))]
fn rectify_backward(
    grad: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    p: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let dropout = Dropout::new(0, real("p", p)?).map_err(user_error)?;
    let threads = num_threads(threads, 1)?;
    if is_double("grad", grad)? {
        rectified_backward::<f64>(dropout, grad, kept, out, threads)
    } else {
        rectified_backward::<f32>(dropout, grad, kept, out, threads)
    }
}

fn rectified_backward<T: Float + Element>(
    dropout: Dropout,
    grad: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: usize,
) -> PyResult<()> {
    let (py, grad, kept) = (
        grad.py(),
        Input::<T>::new("grad", grad)?,
        Input::<u32>::new("kept", kept)?,
    );
    let mut out = Output::<T>::new("out", out)?;
    out.apart_from(&grad)?;
    out.apart_from(&kept)?;
    let width = same_rows(("grad", grad.shape()), ("out", out.shape()))?;
    let (grad, kept, out) = (grad.as_slice()?, kept.as_slice()?, out.as_slice()?);
    py.detach(|| dropout.rectify_backward(width, grad, kept, out, threads))
        .map_err(user_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(rectify, m)?)?;
    m.add_function(wrap_pyfunction!(rectify_backward, m)?)?;
    m.add_function(wrap_pyfunction!(dropout, m)?)
}
