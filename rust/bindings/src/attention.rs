//! Attention over in-edges.

use gnnkit_core::Dropout;
use gnnkit_core::aggregate::{Attention, Columns, Exact, destination_backward};
use numpy::Element;
use pyo3::prelude::*;

use crate::aggregate::Aggregator;
use crate::arg::{Arg, Slice, key as key_of, real, refuse};
use crate::array::{Input, Item, Output, by_type, same_rows, width};
use crate::graph::num_threads;
use crate::user_error;

/// What all passes over the edges read.
struct Read<'py, T: Element> {
    x: Input<'py, T>,
    source: Input<'py, T>,
    edge: Option<Input<'py, T>>,
    ids: Option<Slice<'py, i64>>,
    dropout: Dropout,
    columns: Columns,
    slope: T,
}

/// The arguments that all passes over the edges share.
struct Shared<'a, 'py> {
    edges: &'a Bound<'py, Aggregator>,
    x: Arg<'a, 'py>,
    source: Arg<'a, 'py>,
    slope: f64,
    edge: Option<Arg<'a, 'py>>,
    ids: Option<Arg<'a, 'py>>,
    dropout: Dropout,
    threads: usize,
}

impl<'a, 'py> Shared<'a, 'py> {
    #[allow(clippy::too_many_arguments)]
    fn new(
        edges: Arg<'a, 'py>,
        x: Arg<'a, 'py>,
        source: Arg<'a, 'py>,
        slope: Arg<'a, 'py>,
        edge: Option<Arg<'a, 'py>>,
        ids: Option<Arg<'a, 'py>>,
        p: Option<Arg<'a, 'py>>,
        key: Option<Arg<'a, 'py>>,
        threads: Option<Arg<'a, 'py>>,
    ) -> PyResult<Self> {
        let Ok(edges) = edges.cast::<Aggregator>() else {
            return Err(refuse("edges", "must be an Aggregator"));
        };
        let key = key.map_or(Ok(0), |key| key_of("key", key))?;
        let p = p.map_or(Ok(0.0), |p| real("p", p))?;
        Ok(Self {
            edges,
            x,
            source,
            slope: real("slope", slope)?,
            edge: edge.filter(|edge| !edge.is_none()),
            ids: ids.filter(|ids| !ids.is_none()),
            dropout: Dropout::new(key, p).map_err(user_error)?,
            threads: num_threads(threads, 1)?,
        })
    }

    fn read<T: Exact + Element>(&self) -> PyResult<Read<'py, T>> {
        let (x, source) = (Input::<T>::new("x", self.x)?, Input::<T>::new("source", self.source)?);
        let columns = Columns::new(width("x", x.shape())?, width("source", source.shape())?).map_err(user_error)?;
        Ok(Read {
            x,
            source,
            edge: self.edge.map(|edge| Input::<T>::new("edge", edge)).transpose()?,
            ids: self.ids.map(|ids| Slice::new("ids", ids)).transpose()?,
            dropout: self.dropout,
            columns,
            slope: T::of(self.slope),
        })
    }
}

impl<T: Exact + Element> Read<'_, T> {
    fn attention(&self) -> PyResult<Attention<'_, T>> {
        Ok(Attention {
            columns: self.columns,
            slope: self.slope,
            x: self.x.as_slice()?,
            source: self.source.as_slice()?,
            edge: self.edge.as_ref().map(Input::as_slice).transpose()?,
            dropout: self.ids.as_ref().map(|ids| (self.dropout, ids.as_slice())),
        })
    }

    /// Checks that nothing which is read is written.
    fn apart_from(&self, out: &Output<'_, T>) -> PyResult<()> {
        out.apart_from(&self.x)?;
        out.apart_from(&self.source)?;
        self.edge.as_ref().map_or(Ok(()), |edge| out.apart_from(edge))
    }
}

/// Writes the sums of rows with the weights of attention to `out`.
#[pyfunction]
#[pyo3(signature = (edges, x, source, destination, slope, out, stats, bent=None, edge=None, ids=None, p=None, key=None,
                    threads=None))]
#[allow(clippy::too_many_arguments)]
fn attend(
    edges: Arg<'_, '_>,
    x: Arg<'_, '_>,
    source: Arg<'_, '_>,
    destination: Arg<'_, '_>,
    slope: Arg<'_, '_>,
    out: Arg<'_, '_>,
    stats: Arg<'_, '_>,
    bent: Option<Arg<'_, '_>>,
    edge: Option<Arg<'_, '_>>,
    ids: Option<Arg<'_, '_>>,
    p: Option<Arg<'_, '_>>,
    key: Option<Arg<'_, '_>>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let shared = Shared::new(edges, x, source, slope, edge, ids, p, key, threads)?;
    let bent = bent.filter(|bent| !bent.is_none());
    by_type!("x", x, [f32, f64], forward(&shared, destination, out, bent, stats))
}

fn forward<T: Exact + Item + Element>(
    shared: &Shared<'_, '_>,
    destination: Arg<'_, '_>,
    out: Arg<'_, '_>,
    bent: Option<Arg<'_, '_>>,
    stats: Arg<'_, '_>,
) -> PyResult<()> {
    let (read, destination) = (shared.read::<T>()?, Input::<T>::new("destination", destination)?);
    let (mut out, mut stats) = (Output::<T>::new("out", out)?, Output::<T>::new("stats", stats)?);
    let mut bent = bent.map(|bent| Output::<T>::new("bent", bent)).transpose()?;
    same_rows(("source", read.source.shape()), ("destination", destination.shape()))?;
    for output in [Some(&out), Some(&stats), bent.as_ref()].into_iter().flatten() {
        read.apart_from(output)?;
        output.apart_from(&destination)?;
    }
    out.apart_from_output(&stats)?;
    if let Some(bent) = &bent {
        bent.apart_from_output(&out)?;
        bent.apart_from_output(&stats)?;
    }
    let (attention, destination) = (read.attention()?, destination.as_slice()?);
    let (out, stats) = (out.as_slice()?, stats.as_slice()?);
    let bent = bent.as_mut().map(Output::as_slice).transpose()?;
    let (py, edges, threads) = (shared.x.py(), &shared.edges.get().0, shared.threads);
    py.detach(|| attention.forward(edges, destination, out, bent, stats, threads))
        .map_err(user_error)
}

/// Writes what `attend_backward` reads of destinations to `info`, and the gradient of
/// `destination` to `slopes`.
#[pyfunction]
#[pyo3(signature = (destination, grad, out, bent, stats, info, slopes, threads=None))]
#[allow(clippy::too_many_arguments)]
fn attend_destinations(
    destination: Arg<'_, '_>,
    grad: Arg<'_, '_>,
    out: Arg<'_, '_>,
    bent: Arg<'_, '_>,
    stats: Arg<'_, '_>,
    info: Arg<'_, '_>,
    slopes: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    by_type!(
        "grad",
        grad,
        [f32, f64],
        destinations(destination, [grad, out, bent], stats, info, slopes, threads)
    )
}

fn destinations<T: Exact + Item + Element>(
    destination: Arg<'_, '_>,
    [grad, out, bent]: [Arg<'_, '_>; 3],
    stats: Arg<'_, '_>,
    info: Arg<'_, '_>,
    slopes: Arg<'_, '_>,
    threads: usize,
) -> PyResult<()> {
    let (py, destination) = (grad.py(), Input::<T>::new("destination", destination)?);
    let rows = [
        Input::<T>::new("grad", grad)?,
        Input::<T>::new("out", out)?,
        Input::<T>::new("bent", bent)?,
    ];
    let stats = Input::<T>::new("stats", stats)?;
    let (mut info, mut slopes) = (Output::<T>::new("info", info)?, Output::<T>::new("slopes", slopes)?);
    let [grad, ..] = &rows;
    let columns = Columns::new(width("grad", grad.shape())?, width("destination", destination.shape())?);
    for input in rows.iter().chain([&destination, &stats]) {
        info.apart_from(input)?;
        slopes.apart_from(input)?;
    }
    info.apart_from_output(&slopes)?;
    let (columns, destination, stats) = (columns.map_err(user_error)?, destination.as_slice()?, stats.as_slice()?);
    let [grad, out, bent] = &rows;
    let rows = [grad.as_slice()?, out.as_slice()?, bent.as_slice()?];
    let (info, slopes) = (info.as_slice()?, slopes.as_slice()?);
    py.detach(|| destination_backward(columns, destination, rows, stats, info, slopes, threads))
        .map_err(user_error)
}

/// Writes the gradients of `x` and of `source` to `out` and `slopes`.
#[pyfunction]
#[pyo3(signature = (edges, x, source, grad, info, slope, out, slopes, edge=None, ids=None, p=None, key=None, threads=None))]
#[allow(clippy::too_many_arguments)]
fn attend_backward(
    edges: Arg<'_, '_>,
    x: Arg<'_, '_>,
    source: Arg<'_, '_>,
    grad: Arg<'_, '_>,
    info: Arg<'_, '_>,
    slope: Arg<'_, '_>,
    out: Arg<'_, '_>,
    slopes: Arg<'_, '_>,
    edge: Option<Arg<'_, '_>>,
    ids: Option<Arg<'_, '_>>,
    p: Option<Arg<'_, '_>>,
    key: Option<Arg<'_, '_>>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let shared = Shared::new(edges, x, source, slope, edge, ids, p, key, threads)?;
    by_type!("x", x, [f32, f64], backward(&shared, grad, info, out, slopes))
}

fn backward<T: Exact + Item + Element>(
    shared: &Shared<'_, '_>,
    grad: Arg<'_, '_>,
    info: Arg<'_, '_>,
    out: Arg<'_, '_>,
    slopes: Arg<'_, '_>,
) -> PyResult<()> {
    let read = shared.read::<T>()?;
    let (grad, info) = (Input::<T>::new("grad", grad)?, Input::<T>::new("info", info)?);
    let (mut out, mut slopes) = (Output::<T>::new("out", out)?, Output::<T>::new("slopes", slopes)?);
    for output in [&out, &slopes] {
        read.apart_from(output)?;
        output.apart_from(&grad)?;
        output.apart_from(&info)?;
    }
    out.apart_from_output(&slopes)?;
    let (attention, grad, info) = (read.attention()?, grad.as_slice()?, info.as_slice()?);
    let (out, slopes) = (out.as_slice()?, slopes.as_slice()?);
    let (py, edges, threads) = (shared.x.py(), &shared.edges.get().0, shared.threads);
    py.detach(|| attention.backward(edges, grad, info, out, slopes, threads))
        .map_err(user_error)
}

/// Turns the products of `edge_dot` in `out` into the gradient of `edge`.
#[pyfunction]
#[pyo3(signature = (edges, x, source, info, slope, out, edge=None, ids=None, p=None, key=None, threads=None))]
#[allow(clippy::too_many_arguments)]
fn attend_edges(
    edges: Arg<'_, '_>,
    x: Arg<'_, '_>,
    source: Arg<'_, '_>,
    info: Arg<'_, '_>,
    slope: Arg<'_, '_>,
    out: Arg<'_, '_>,
    edge: Option<Arg<'_, '_>>,
    ids: Option<Arg<'_, '_>>,
    p: Option<Arg<'_, '_>>,
    key: Option<Arg<'_, '_>>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let shared = Shared::new(edges, x, source, slope, edge, ids, p, key, threads)?;
    by_type!("x", x, [f32, f64], edge_backward(&shared, info, out))
}

fn edge_backward<T: Exact + Item + Element>(
    shared: &Shared<'_, '_>,
    info: Arg<'_, '_>,
    out: Arg<'_, '_>,
) -> PyResult<()> {
    let (read, info) = (shared.read::<T>()?, Input::<T>::new("info", info)?);
    let mut out = Output::<T>::new("out", out)?;
    read.apart_from(&out)?;
    out.apart_from(&info)?;
    let (attention, info, out) = (read.attention()?, info.as_slice()?, out.as_slice()?);
    let (py, edges, threads) = (shared.x.py(), &shared.edges.get().0, shared.threads);
    py.detach(|| attention.edge_backward(edges, info, out, threads))
        .map_err(user_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(attend, m)?)?;
    m.add_function(wrap_pyfunction!(attend_destinations, m)?)?;
    m.add_function(wrap_pyfunction!(attend_backward, m)?)?;
    m.add_function(wrap_pyfunction!(attend_edges, m)?)
}
