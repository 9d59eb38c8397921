//! Aggregation over in-edges.

use gnnkit_core::aggregate::{Columns, Factor, How, Matrix};
use gnnkit_core::{Bf16, Csc, Dropout, Error, Float, Number};
use numpy::Element;
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, flag, key as key_of, real, refuse};
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

    #[pyo3(signature = (x, out, threads=None, *, weight=None, source=None, destination=None, own=None, add=None, width=None))]
    #[allow(clippy::too_many_arguments)]
    fn sum(
        &self,
        x: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
        weight: Option<Arg<'_, '_>>,
        source: Option<Arg<'_, '_>>,
        destination: Option<Arg<'_, '_>>,
        own: Option<Arg<'_, '_>>,
        add: Option<Arg<'_, '_>>,
        width: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        let own = own.map_or(Ok(0.0), |own| real("own", own))?;
        let add = add.map_or(Ok(false), |add| flag("add", add))?;
        let width = width.map(|width| count("width", width)).transpose()?;
        let factors = (weight, source, destination);
        by_type!(
            "x",
            x,
            [f32, f64, Bf16],
            sum(&self.0, x, out, factors, (own, add, width), threads)
        )
    }

    /// Where `kept` is given, dropout with probability `p` makes the rows first.
    #[pyo3(signature = (x, out, threads=None, *, weight=None, source=None, destination=None, kept=None, p=None))]
    #[allow(clippy::too_many_arguments)]
    fn sum_beside(
        &self,
        x: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
        weight: Option<Arg<'_, '_>>,
        source: Option<Arg<'_, '_>>,
        destination: Option<Arg<'_, '_>>,
        kept: Option<Arg<'_, '_>>,
        p: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        let p = p.map_or(Ok(0.0), |p| real("p", p))?;
        let factors = (weight, source, destination);
        by_type!(
            "x",
            x,
            [f32, f64, Bf16],
            sum_beside(&self.0, x, out, factors, (kept, p), threads)
        )
    }

    #[pyo3(signature = (grad, out, threads=None, *, weight=None, source=None, destination=None))]
    fn sum_beside_backward(
        &self,
        grad: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
        weight: Option<Arg<'_, '_>>,
        source: Option<Arg<'_, '_>>,
        destination: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        let factors = (weight, source, destination);
        by_type!(
            "grad",
            grad,
            [f32, f64, Bf16],
            sum_beside_backward(&self.0, grad, out, factors, threads)
        )
    }

    #[pyo3(signature = (values, ids, p, key, out, threads=None))]
    fn drop_stored(
        &self,
        values: Arg<'_, '_>,
        ids: Arg<'_, '_>,
        p: Arg<'_, '_>,
        key: Arg<'_, '_>,
        out: Arg<'_, '_>,
        threads: Option<Arg<'_, '_>>,
    ) -> PyResult<()> {
        let dropout = Dropout::new(key_of("key", key)?, real("p", p)?).map_err(user_error)?;
        let ids = Ids::new("ids", ids)?;
        by_type!(
            "values",
            values,
            [f32, f64],
            drop_stored(&self.0, dropout, &ids, values, out, threads)
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

/// Arguments: factors of edges, of sources, of sums.
type Given<'a, 'py> = (Option<Arg<'a, 'py>>, Option<Arg<'a, 'py>>, Option<Arg<'a, 'py>>);

/// The factors of a sum, each with its name for errors.
struct Factors<'py, W: Element> {
    weight: Option<Input<'py, W>>,
    source: Option<Input<'py, W>>,
    destination: Option<Input<'py, W>>,
}

impl<'py, W: Element + Float> Factors<'py, W> {
    fn new((weight, source, destination): Given<'_, 'py>) -> PyResult<Self> {
        if weight.is_some() && source.is_some() {
            return Err(refuse("source", "goes without weight: multiply the weights"));
        }
        let input = |name, array: Option<Arg<'_, 'py>>| array.map(|array| Input::new(name, array)).transpose();
        Ok(Self {
            weight: input("weight", weight)?,
            source: input("source", source)?,
            destination: input("destination", destination)?,
        })
    }

    fn apart_from<T: Element>(&self, out: &Output<'py, T>) -> PyResult<()> {
        let given = [&self.weight, &self.source, &self.destination];
        given.into_iter().flatten().try_for_each(|input| out.apart_from(input))
    }

    fn heads(&self) -> PyResult<usize> {
        match &self.weight {
            Some(weight) => width("weight", weight.shape()),
            None => Ok(1),
        }
    }

    fn how(&self) -> PyResult<How<'_, W>> {
        let factor = match (&self.weight, &self.source) {
            (Some(weight), _) => Factor::Edge(weight.as_slice()?),
            (None, Some(source)) => Factor::Source(source.as_slice()?),
            (None, None) => Factor::One,
        };
        let destination = self.destination.as_ref().map(Input::as_slice).transpose()?;
        Ok(How {
            destination,
            ..How::by(factor)
        })
    }
}

fn sum<T: Item>(
    edges: &gnnkit_core::Aggregator,
    x: Arg<'_, '_>,
    out: Arg<'_, '_>,
    factors: Given<'_, '_>,
    (own, add, columns): (f64, bool, Option<usize>),
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let (factors, threads) = (Factors::<T::Wide>::new(factors)?, num_threads(threads, 1)?);
    let (py, x, mut out) = (
        x.py(),
        Input::<T::Held>::new("x", x)?,
        Output::<T::Held>::new("out", out)?,
    );
    out.apart_from(&x)?;
    factors.apart_from(&out)?;
    let (of_x, of_out) = (width("x", x.shape())?, width("out", out.shape())?);
    let columns = match columns {
        Some(columns) => columns,
        None => same_rows(("x", x.shape()), ("out", out.shape()))?,
    };
    let columns = Columns::new(columns, factors.heads()?).map_err(user_error)?;
    let (x, out) = (T::of(x.as_slice()?), T::of_mut(out.as_slice()?));
    let how = How {
        own: T::Wide::of(own),
        add,
        ..factors.how()?
    };
    let x = Matrix {
        values: x,
        stride: of_x,
    };
    let out = Matrix {
        values: out,
        stride: of_out,
    };
    py.detach(|| edges.sum(columns, how, x, out, threads))
        .map_err(user_error)
}

fn sum_beside<T: Item>(
    edges: &gnnkit_core::Aggregator,
    x: Arg<'_, '_>,
    out: Arg<'_, '_>,
    factors: Given<'_, '_>,
    (kept, p): (Option<Arg<'_, '_>>, f64),
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let (dropout, threads) = (Dropout::new(0, p).map_err(user_error)?, num_threads(threads, 1)?);
    let (py, factors) = (x.py(), Factors::<T::Wide>::new(factors)?);
    let (x, mut out) = (Input::<T::Held>::new("x", x)?, Output::<T::Held>::new("out", out)?);
    let kept = kept.map(|kept| Input::<u32>::new("kept", kept)).transpose()?;
    out.apart_from(&x)?;
    factors.apart_from(&out)?;
    let columns = width("x", x.shape())?;
    twice(("out", out.shape()), ("x", columns))?;
    let (how, x, out) = (factors.how()?, T::of(x.as_slice()?), T::of_mut(out.as_slice()?));
    let kept = kept.as_ref().map(Input::as_slice).transpose()?;
    let kept = kept.map(|kept| (kept, dropout));
    py.detach(|| edges.sum_beside(columns, how, x, kept, out, threads))
        .map_err(user_error)
}

fn sum_beside_backward<T: Item>(
    edges: &gnnkit_core::Aggregator,
    grad: Arg<'_, '_>,
    out: Arg<'_, '_>,
    factors: Given<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, factors) = (grad.py(), Factors::<T::Wide>::new(factors)?);
    let (grad, mut out) = (
        Input::<T::Held>::new("grad", grad)?,
        Output::<T::Held>::new("out", out)?,
    );
    out.apart_from(&grad)?;
    factors.apart_from(&out)?;
    let columns = width("out", out.shape())?;
    twice(("grad", grad.shape()), ("out", columns))?;
    let (how, grad, out) = (factors.how()?, T::of(grad.as_slice()?), T::of_mut(out.as_slice()?));
    py.detach(|| edges.sum_beside_backward(columns, how, grad, out, threads))
        .map_err(user_error)
}

fn drop_stored<T: Number + Float + Element>(
    edges: &gnnkit_core::Aggregator,
    dropout: Dropout,
    ids: &Ids<'_>,
    values: Arg<'_, '_>,
    out: Arg<'_, '_>,
    threads: Option<Arg<'_, '_>>,
) -> PyResult<()> {
    let threads = num_threads(threads, 1)?;
    let (py, values, mut out) = (
        values.py(),
        Input::<T>::new("values", values)?,
        Output::<T>::new("out", out)?,
    );
    out.apart_from(&values)?;
    let (values, out) = (values.as_slice()?, out.as_slice()?);
    with_ids!(*ids, ids => py.detach(|| edges.drop_stored(dropout, ids, values, out, threads))).map_err(user_error)
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
