//! Aggregation over in-edges.

use gnnkit_core::aggregate::Columns;
use gnnkit_core::{Bf16, Csc, Dropout, Error, Float, Number};
use numpy::Element;
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, real, refuse};
use crate::array::{Input, Item, Output, by_type, same_rows, width};
use crate::graph::num_threads;
use crate::user_error;

/// The in-edges of a graph, ready to aggregate over.
#[pyclass(frozen, module = "gnnkit._core")]
pub(crate) struct Aggregator(pub(crate) gnnkit_core::Aggregator);

#[pymethods]
impl Aggregator {
    #[new]
    fn new(indptr: Arg<'_, '_>, indices: Arg<'_, '_>, num_sources: Arg<'_, '_>) -> PyResult<Self> {
        let num_sources = count("num_sources", num_sources)?;
        let (py, indptr) = (indptr.py(), Slice::new("indptr", indptr)?);
        let indices = Ids::new("indices", indices)?;
        let made = with_ids!(indices, indices => copy(py, indptr.as_slice(), indices, num_sources));
        made.map(Self).map_err(user_error)
    }

    #[getter]
    fn num_sources(&self) -> usize {
        self.0.num_sources()
    }

    #[getter]
    fn num_destinations(&self) -> usize {
        self.0.num_destinations()
    }

    #[getter]
    fn num_edges(&self) -> usize {
        self.0.num_edges()
    }

    fn transpose(&self, py: Python<'_>) -> PyResult<Self> {
        py.detach(|| self.0.transpose()).map(Self).map_err(user_error)
    }

    #[pyo3(signature = (x, out, threads=None))]
    fn sum(&self, x: Arg<'_, '_>, out: Arg<'_, '_>, threads: Option<Arg<'_, '_>>) -> PyResult<()> {
        by_type!("x", x, [f32, f64, Bf16], sum(&self.0, x, out, threads))
    }

    #[pyo3(signature = (weight, x, out, threads=None))]
    fn weighted_sum(
        &self,
        weight: Arg<'_, '_>,
        x: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        by_type!("x", x, [f32, f64, Bf16], weighted_sum(&self.0, weight, x, out, threads))
    }

    /// Where `kept` is given, dropout with probability `p` makes the rows first.
    #[pyo3(signature = (weight, x, out, threads=None, kept=None, p=None))]
    fn sum_beside(
        &self,
        weight: Arg<'_, '_>,
        x: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
        kept: Option<Arg<'_, '_>>,
        p: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        let p = p.map_or(Ok(0.0), |p| real("p", p))?;
        by_type!(
            "x",
            x,
            [f32, f64, Bf16],
            sum_beside(&self.0, weight, x, out, (kept, p), threads)
        )
    }

    #[pyo3(signature = (weight, grad, out, threads=None))]
    fn sum_beside_backward(
        &self,
        weight: Arg<'_, '_>,
        grad: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        by_type!(
            "grad",
            grad,
            [f32, f64, Bf16],
            sum_beside_backward(&self.0, weight, grad, out, threads)
        )
    }

    #[pyo3(signature = (x, grad, out, threads=None))]
    fn edge_dot(
        &self,
        x: Arg<'_, '_>,
        grad: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        by_type!("x", x, [f32, f64], edge_dot(&self.0, x, grad, out, threads))
    }

    #[pyo3(signature = (x, out, arg, threads=None))]
    fn max(&self, x: Arg<'_, '_>, out: Arg<'_, '_>, arg: Arg<'_, '_>, threads: Option<Arg<'_, '_>>) -> PyResult<()> {
        by_type!("x", x, [f32, f64], max(&self.0, x, out, arg, threads))
    }

    #[pyo3(signature = (grad, arg, out, threads=None))]
    fn max_backward(
        &self,
        grad: Arg<'_, '_>,
        arg: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        by_type!("grad", grad, [f32, f64], max_backward(&self.0, grad, arg, out, threads))
    }
}

fn copy<I: gnnkit_core::csc::Id>(
    py: Python<'_>,
    indptr: &[i64],
    indices: &[I],
    num_sources: usize,
) -> Result<gnnkit_core::Aggregator, Error> {
    py.detach(|| gnnkit_core::Aggregator::new(Csc::new(indptr, indices, num_sources)?))
}

fn sum<T: Item>(
    edges: &gnnkit_core::Aggregator,
    x: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, x, mut out) = (
        x.py(),
        Input::<T::Held>::new("x", x)?,
        Output::<T::Held>::new("out", out)?,
    );
    out.apart_from(&x)?;
    let columns = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let (x, out) = (T::of(x.as_slice()?), T::of_mut(out.as_slice()?));
    py.detach(|| edges.sum(columns, x, out, threads)).map_err(user_error)
}

fn weighted_sum<T: Item>(
    edges: &gnnkit_core::Aggregator,
    weight: Arg<'_, '_>,
    x: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, weight) = (x.py(), Input::<T::Wide>::new("weight", weight)?);
    let (x, mut out) = (Input::<T::Held>::new("x", x)?, Output::<T::Held>::new("out", out)?);
    out.apart_from(&x)?;
    out.apart_from(&weight)?;
    let columns = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let columns = Columns::new(columns, width("weight", weight.shape())?).map_err(user_error)?;
    let (weight, x, out) = (weight.as_slice()?, T::of(x.as_slice()?), T::of_mut(out.as_slice()?));
    py.detach(|| edges.weighted_sum(columns, weight, x, out, threads))
        .map_err(user_error)
}

fn sum_beside<T: Item>(
    edges: &gnnkit_core::Aggregator,
    weight: Arg<'_, '_>,
    x: Arg<'_, '_>,
    out: Arg<'_, '_>,
    (kept, p): (Option<Arg<'_, '_>>, f64),
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let (dropout, threads) = (Dropout::new(0, p).map_err(user_error)?, num_threads(threads, 1)?);
    let (py, weight) = (x.py(), Input::<T::Wide>::new("weight", weight)?);
    let (x, mut out) = (Input::<T::Held>::new("x", x)?, Output::<T::Held>::new("out", out)?);
    let kept = kept.map(|kept| Input::<u32>::new("kept", kept)).transpose()?;
    out.apart_from(&x)?;
    out.apart_from(&weight)?;
    let columns = width("x", x.shape())?;
    twice(("out", out.shape()), ("x", columns))?;
    let (weight, x, out) = (weight.as_slice()?, T::of(x.as_slice()?), T::of_mut(out.as_slice()?));
    let kept = kept.as_ref().map(Input::as_slice).transpose()?;
    py.detach(|| match kept {
        None => edges.sum_beside(columns, weight, x, out, threads),
        Some(kept) => edges.sum_beside_kept(columns, weight, x, (kept, dropout), out, threads),
    })
    .map_err(user_error)
}

fn sum_beside_backward<T: Item>(
    edges: &gnnkit_core::Aggregator,
    weight: Arg<'_, '_>,
    grad: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, weight) = (grad.py(), Input::<T::Wide>::new("weight", weight)?);
    let (grad, mut out) = (
        Input::<T::Held>::new("grad", grad)?,
        Output::<T::Held>::new("out", out)?,
    );
    out.apart_from(&grad)?;
    out.apart_from(&weight)?;
    let columns = width("out", out.shape())?;
    twice(("grad", grad.shape()), ("out", columns))?;
    let (weight, grad, out) = (weight.as_slice()?, T::of(grad.as_slice()?), T::of_mut(out.as_slice()?));
    py.detach(|| edges.sum_beside_backward(columns, weight, grad, out, threads))
        .map_err(user_error)
}

/// Checks that rows of `wide` have twice the columns of `narrow`.
fn twice(wide: (&str, &[usize]), narrow: (&str, usize)) -> PyResult<()> {
    let columns = width(wide.0, wide.1)?;
    if columns == narrow.1.saturating_mul(2) {
        return Ok(());
    }
    let (name, half) = narrow;
    Err(refuse(
        wide.0,
        format_args!("has {columns} columns, twice the {half} of {name} expected"),
    ))
}

fn edge_dot<T: Float + Element>(
    edges: &gnnkit_core::Aggregator,
    x: Arg<'_, '_>,
    grad: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, x, grad) = (x.py(), Input::<T>::new("x", x)?, Input::<T>::new("grad", grad)?);
    let mut out = Output::<T>::new("out", out)?;
    out.apart_from(&x)?;
    out.apart_from(&grad)?;
    let columns = same_rows(("x", x.shape()), ("grad", grad.shape()))?;
    let columns = Columns::new(columns, width("out", out.shape())?).map_err(user_error)?;
    let (x, grad, out) = (x.as_slice()?, grad.as_slice()?, out.as_slice()?);
    py.detach(|| edges.edge_dot(columns, x, grad, out, threads))
        .map_err(user_error)
}

fn max<T: Float + Number + Element>(
    edges: &gnnkit_core::Aggregator,
    x: Arg<'_, '_>,
    out: Arg<'_, '_>,
    arg: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, x, mut out) = (x.py(), Input::<T>::new("x", x)?, Output::<T>::new("out", out)?);
    let mut arg = Output::<i64>::new("arg", arg)?;
    out.apart_from(&x)?;
    arg.apart_from(&x)?;
    arg.apart_from_output(&out)?;
    let columns = same_rows(("x", x.shape()), ("out", out.shape()))?;
    let (x, out, arg) = (x.as_slice()?, out.as_slice()?, arg.as_slice()?);
    py.detach(|| edges.max(columns, x, out, arg, threads))
        .map_err(user_error)
}

fn max_backward<T: Float + Element>(
    edges: &gnnkit_core::Aggregator,
    grad: Arg<'_, '_>,
    arg: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, grad, arg) = (
        grad.py(),
        Input::<T>::new("grad", grad)?,
        Input::<i64>::new("arg", arg)?,
    );
    let mut out = Output::<T>::new("out", out)?;
    out.apart_from(&grad)?;
    out.apart_from(&arg)?;
    let columns = same_rows(("out", out.shape()), ("grad", grad.shape()))?;
    let (grad, arg, out) = (grad.as_slice()?, arg.as_slice()?, out.as_slice()?);
    py.detach(|| edges.max_backward(columns, grad, arg, out, threads))
        .map_err(user_error)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Aggregator>()
}
