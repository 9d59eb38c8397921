//! Dropout keyed by ids.

use gnnkit_core::{Bf16, Dropout};
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, count, key as key_of, real};
use crate::array::{Input, Item, Output, by_type, same_rows};
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
    by_type!("x", x, [f32, f64, Bf16], apply(dropout, x, &ids, out, gate, threads))
}

fn apply<T: Item>(
    dropout: Dropout,
    x: Arg<'_, '_>,
    ids: &Ids<'_>,
    out: Arg<'_, '_>,
    gate: Option<Arg<'_, '_>>,
    threads: usize,
) -> PyResult<()> {
    let (py, x, mut out) = (
        x.py(),
        Input::<T::Held>::new("x", x)?,
        Output::<T::Held>::new("out", out)?,
    );
    out.apart_from(&x)?;
    let gate = gate.map(|gate| Input::<T::Held>::new("gate", gate)).transpose()?;
    if let Some(gate) = &gate {
        out.apart_from(gate)?;
        same_rows(("x", x.shape()), ("gate", gate.shape()))?;
    }
    let width = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let (x, out) = (T::of(x.as_slice()?), T::of_mut(out.as_slice()?));
    let gate = gate.as_ref().map(Input::as_slice).transpose()?.map(T::of);
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
    by_type!(
        "x",
        x,
        [f32, f64, Bf16],
        rectified(dropout, x, &ids, out, kept, threads)
    )
}

fn rectified<T: Item>(
    dropout: Dropout,
    x: Arg<'_, '_>,
    ids: &Ids<'_>,
    out: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    threads: usize,
) -> PyResult<()> {
    let (py, x, mut out) = (
        x.py(),
        Input::<T::Held>::new("x", x)?,
        Output::<T::Held>::new("out", out)?,
    );
    let mut kept = Output::<u32>::new("kept", kept)?;
    out.apart_from(&x)?;
    kept.apart_from(&x)?;
    kept.apart_from_output(&out)?;
    let width = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let (x, out, kept) = (T::of(x.as_slice()?), T::of_mut(out.as_slice()?), kept.as_slice()?);
    with_ids!(*ids, ids => py.detach(|| dropout.rectify(ids, width, x, out, kept, threads))).map_err(user_error)
}

/// Writes a bit of each element of `width` columns to `kept`: whether `dropout` keeps
/// the element.
#[pyfunction]
#[pyo3(signature = (ids, width, p, key, kept, threads=None))]
fn dropout_kept(
    ids: Arg<'_, '_>,
    width: Arg<'_, '_>,
    p: Arg<'_, '_>,
    key: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let dropout = Dropout::new(key_of("key", key)?, real("p", p)?).map_err(user_error)?;
    let (py, width, threads) = (ids.py(), count("width", width)?, num_threads(threads, 1)?);
    let (ids, mut kept) = (Ids::new("ids", ids)?, Output::<u32>::new("kept", kept)?);
    let kept = kept.as_slice()?;
    with_ids!(ids, ids => py.detach(|| dropout.kept(ids, width, kept, threads))).map_err(user_error)
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
    by_type!(
        "grad",
        grad,
        [f32, f64, Bf16],
        rectified_backward(dropout, grad, kept, out, threads)
    )
}

fn rectified_backward<T: Item>(
    dropout: Dropout,
    grad: Arg<'_, '_>,
    kept: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: usize,
) -> PyResult<()> {
    let (py, grad, kept) = (
        grad.py(),
        Input::<T::Held>::new("grad", grad)?,
        Input::<u32>::new("kept", kept)?,
    );
    let mut out = Output::<T::Held>::new("out", out)?;
    out.apart_from(&grad)?;
    out.apart_from(&kept)?;
    let width = same_rows(("grad", grad.shape()), ("out", out.shape()))?;
    let (grad, kept, out) = (T::of(grad.as_slice()?), kept.as_slice()?, T::of_mut(out.as_slice()?));
    py.detach(|| dropout.rectify_backward(width, grad, kept, out, threads))
        .map_err(user_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(dropout_kept, m)?)?;
    m.add_function(wrap_pyfunction!(rectify, m)?)?;
    m.add_function(wrap_pyfunction!(rectify_backward, m)?)?;
    m.add_function(wrap_pyfunction!(dropout, m)?)
}
