//! Graphs: validation, edge lists to CSC, transposition, degrees.

use std::thread::available_parallelism;

use gnnkit_core::crossing::crossing;
use gnnkit_core::csc::Id;
use gnnkit_core::edges::{self, Sorted, Tag};
use gnnkit_core::order;
use gnnkit_core::{Csc, Error};
use numpy::{Element, IntoPyArray, PyArray1, PyArrayMethods, PyUntypedArray};
use pyo3::prelude::*;

use crate::arg::{Arg, Floats, Ids, Slice, count, exactly, flag, optional, within};
use crate::border::plane;
use crate::sample::list_to_py;
use crate::user_error;

/// The number of threads that the caller wants, at least 1. No result depends on it.
pub(crate) fn num_threads(threads: Option<Arg<'_, '_>>, default: usize) -> PyResult<usize> {
    threads.map_or(Ok(default), |threads| {
        within("threads", threads, 1..=isize::MAX as usize)
    })
}

/// As [`num_threads`]. The default is the cores that this process may use.
pub(crate) fn all_cores(threads: Option<Arg<'_, '_>>) -> PyResult<usize> {
    num_threads(threads, available_parallelism().map_or(1, usize::from))
}

/// indptr, indices (int32 or int64) and the position of each edge in the input, empty
/// where not wanted.
pub(crate) type PySorted<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyArray1<i64>>,
);

/// indptr, indices and tags, each of int32 or int64.
type PyTagged<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyUntypedArray>,
    Bound<'py, PyUntypedArray>,
);

/// The number of edges between owners, nodes at these, pairs of owners row by row, edges
/// of each cell, rows gathered and reduced by pairs of cells, and copies of nodes.
type PyCrossing<'py> = (
    usize,
    Bound<'py, PyArray1<bool>>,
    Bound<'py, PyArray1<bool>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    usize,
);

/// In-degrees and out-degrees.
type PyDegrees<'py> = (Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<f64>>);

/// A tag that the caller may see.
pub(crate) trait PyTag: Tag {
    fn positions(tags: Vec<Self>) -> Vec<i64>;
}

impl PyTag for i64 {
    fn positions(tags: Vec<Self>) -> Vec<i64> {
        tags
    }
}

impl PyTag for () {
    fn positions(_: Vec<Self>) -> Vec<i64> {
        Vec::new()
    }
}

pub(crate) fn to_py<O: Id + Element, A: PyTag>(
    py: Python<'_>,
    sorted: Result<Sorted<O, A>, Error>,
) -> PyResult<PySorted<'_>> {
    let Sorted { indptr, indices, tags } = sorted.map_err(user_error)?;
    let indices = indices.into_pyarray(py).as_untyped().clone();
    Ok((indptr.into_pyarray(py), indices, A::positions(tags).into_pyarray(py)))
}

/// Evaluates the body with `$ids` as the narrowest type that numbers `num_nodes`.
macro_rules! by_width {
    ($num_nodes:expr, $ids:ident => $body:expr) => {
        if $num_nodes <= i32::MAX as usize {
            type $ids = i32;
            $body
        } else {
            type $ids = i64;
            $body
        }
    };
}
pub(crate) use by_width;

/// Raises `UserError` naming the first bad value of a CSC and its place. One thread, so
/// it may run before a fork.
#[pyfunction]
fn check_csc(py: Python<'_>, indptr: Arg<'_, '_>, indices: Arg<'_, '_>, num_sources: Arg<'_, '_>) -> PyResult<()> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let num_sources = count("num_sources", num_sources)?;
    let indptr = indptr.as_slice();
    with_ids!(indices, indices => py.detach(|| Csc::new(indptr, indices, num_sources).map(drop)).map_err(user_error))
}

/// The CSC of the edges `src[i] -> dst[i]`, and i of each edge where `positions` is
/// true.
#[pyfunction]
#[pyo3(signature = (src, dst, num_nodes, num_sources, positions, threads=None))]
fn csc_from_edges<'py>(
    py: Python<'py>,
    src: Arg<'_, 'py>,
    dst: Arg<'_, 'py>,
    num_nodes: Arg<'_, 'py>,
    num_sources: Arg<'_, 'py>,
    positions: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PySorted<'py>> {
    let (src, dst) = (Ids::new("src", src)?, Ids::new("dst", dst)?);
    let (num_nodes, num_sources) = (count("num_nodes", num_nodes)?, count("num_sources", num_sources)?);
    let (positions, threads) = (flag("positions", positions)?, all_cores(threads)?);
    with_ids!(src, src => with_ids!(dst, dst => by_width!(num_nodes.max(num_sources), O => {
        if positions {
            to_py(py, py.detach(|| edges::from_edges::<O, i64>(src, dst, num_nodes, num_sources, threads)))
        } else {
            to_py(py, py.detach(|| edges::from_edges::<O, ()>(src, dst, num_nodes, num_sources, threads)))
        }
    })))
}

/// The graph turned around, and the position in it of each edge.
#[pyfunction]
#[pyo3(signature = (indptr, indices, num_sources, threads=None))]
fn csc_transpose<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_sources: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PySorted<'py>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let (num_sources, threads) = (count("num_sources", num_sources)?, all_cores(threads)?);
    with_ids!(indices, indices => {
        let csc = Csc::new(indptr.as_slice(), indices, num_sources).map_err(user_error)?;
        by_width!(num_sources.max(csc.num_nodes()), O => to_py(py, py.detach(|| edges::transpose::<O, i64>(csc, threads))))
    })
}

/// Adds the missing reverse edges, and returns the position of the edge that each edge
/// comes from.
#[pyfunction]
#[pyo3(signature = (indptr, indices, threads=None))]
fn csc_symmetrize<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PySorted<'py>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let (indptr, threads) = (indptr.as_slice(), all_cores(threads)?);
    let num_nodes = indptr.len().saturating_sub(1);
    with_ids!(indices, indices => {
        let csc = Csc::new(indptr, indices, num_nodes).map_err(user_error)?;
        by_width!(num_nodes, O => to_py(py, py.detach(|| edges::symmetrize::<O, i64>(csc, threads))))
    })
}

/// Sums of the weights of each destination's in-edges and of each source's out-edges.
#[pyfunction]
fn csc_degrees<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_sources: Arg<'_, 'py>,
    weight: Arg<'_, 'py>,
) -> PyResult<PyDegrees<'py>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let num_sources = count("num_sources", num_sources)?;
    let weight = optional(weight, |weight| Floats::new("weight", weight))?;
    let degrees = with_ids!(indices, indices => {
        let csc = Csc::new(indptr.as_slice(), indices, num_sources).map_err(user_error)?;
        match &weight {
            None => edges::degrees::<_, f64>(csc, None),
            Some(Floats::F32(weight)) => edges::degrees(csc, Some(weight.as_slice())),
            Some(Floats::F64(weight)) => edges::degrees(csc, Some(weight.as_slice())),
        }
    });
    let (in_degree, out_degree) = degrees.map_err(user_error)?;
    Ok((in_degree.into_pyarray(py), out_degree.into_pyarray(py)))
}

/// The CSC of the edges `src[i] -> dst[i]`, and `tags[i]` of each edge. Equal edges stay
/// in their order.
#[pyfunction]
#[pyo3(signature = (src, dst, tags, num_nodes, num_sources, threads=None))]
fn csc_with_tags<'py>(
    py: Python<'py>,
    src: Arg<'_, 'py>,
    dst: Arg<'_, 'py>,
    tags: Arg<'_, 'py>,
    num_nodes: Arg<'_, 'py>,
    num_sources: Arg<'_, 'py>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PyTagged<'py>> {
    let (src, tags) = (Ids::new("src", src)?, Ids::new("tags", tags)?);
    let dst = Slice::<i32>::new("dst", dst)?;
    let (num_nodes, num_sources) = (count("num_nodes", num_nodes)?, count("num_sources", num_sources)?);
    let (dst, threads) = (dst.as_slice(), all_cores(threads)?);
    with_ids!(src, src => with_ids!(tags, tags => {
        tagged(py, py.detach(|| edges::from_tagged(src, dst, tags, num_nodes, num_sources, threads)))
    }))
}

fn tagged<I: Id + Element, A: Tag + Element>(
    py: Python<'_>,
    sorted: Result<Sorted<I, A>, Error>,
) -> PyResult<PyTagged<'_>> {
    let Sorted { indptr, indices, tags } = sorted.map_err(user_error)?;
    let (indices, tags) = (indices.into_pyarray(py), tags.into_pyarray(py));
    Ok((
        indptr.into_pyarray(py),
        indices.as_untyped().clone(),
        tags.as_untyped().clone(),
    ))
}

/// What a partition makes travel: edges between owners, and rows that cells exchange.
#[pyfunction]
#[pyo3(signature = (indptr, indices, owner, grid, edge_cell=None, threads=None))]
fn csc_crossing<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    owner: Arg<'_, 'py>,
    grid: Arg<'_, 'py>,
    edge_cell: Option<Arg<'_, 'py>>,
    threads: Option<Arg<'_, 'py>>,
) -> PyResult<PyCrossing<'py>> {
    let edge_cell = edge_cell
        .map(|cells| Slice::<i32>::new("edge_cell", cells))
        .transpose()?;
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let (owner, grid) = (Slice::<i32>::new("owner", owner)?, plane("grid", grid)?);
    let (indptr, owner, threads) = (indptr.as_slice(), owner.as_slice(), all_cores(threads)?);
    let edge_cell = edge_cell.as_ref().map(Slice::as_slice);
    let found = with_ids!(indices, indices => py.detach(|| {
        crossing(Csc::new(indptr, indices, owner.len())?, owner, grid, edge_cell, threads)
    }));
    let found = found.map_err(user_error)?;
    Ok((
        found.count,
        found.boundary.into_pyarray(py),
        found.linked.into_pyarray(py),
        found.held.into_pyarray(py),
        found.gathered.into_pyarray(py),
        found.reduced.into_pyarray(py),
        found.copies,
    ))
}

/// The nodes in the reversed order of Cuthill and McKee.
#[pyfunction]
fn csc_cuthill_mckee<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_sources: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let (indptr, num_sources) = (indptr.as_slice(), count("num_sources", num_sources)?);
    let found = with_ids!(indices, indices => py.detach(|| {
        order::reverse_cuthill_mckee(Csc::new(indptr, indices, num_sources)?)
    }));
    Ok(found.map_err(user_error)?.into_pyarray(py))
}

/// Counts the edges for which a small cache has evicted the source's row.
#[pyfunction]
#[pyo3(signature = (indptr, indices, num_sources, slots, order=None))]
fn csc_missed_rows<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_sources: Arg<'_, 'py>,
    slots: Arg<'_, 'py>,
    order: Option<Arg<'_, 'py>>,
) -> PyResult<usize> {
    let order = order.map(|order| Slice::<i64>::new("order", order)).transpose()?;
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let [small, large] = exactly("slots", slots)?;
    let (num_sources, slots) = (
        count("num_sources", num_sources)?,
        [count("slots[0]", &small)?, count("slots[1]", &large)?],
    );
    let (indptr, order) = (indptr.as_slice(), order.as_ref().map(Slice::as_slice));
    let missed = with_ids!(indices, indices => py.detach(|| {
        order::missed_rows(Csc::new(indptr, indices, num_sources)?, &slots, order)
    }));
    missed.map_err(user_error)
}

/// Sources and then destinations of all edges, [2 * num_edges].
#[pyfunction]
fn csc_edges<'py>(py: Python<'py>, indptr: Arg<'_, 'py>, indices: Arg<'_, 'py>) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let indptr = indptr.as_slice();
    let ends = with_ids!(indices, indices => py.detach(|| edges::list(indptr, indices)));
    list_to_py(py, ends.map_err(user_error)?)
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(csc_cuthill_mckee, m)?)?;
    m.add_function(wrap_pyfunction!(csc_missed_rows, m)?)?;
    m.add_function(wrap_pyfunction!(check_csc, m)?)?;
    m.add_function(wrap_pyfunction!(csc_from_edges, m)?)?;
    m.add_function(wrap_pyfunction!(csc_with_tags, m)?)?;
    m.add_function(wrap_pyfunction!(csc_crossing, m)?)?;
    m.add_function(wrap_pyfunction!(csc_edges, m)?)?;
    m.add_function(wrap_pyfunction!(csc_transpose, m)?)?;
    m.add_function(wrap_pyfunction!(csc_symmetrize, m)?)?;
    m.add_function(wrap_pyfunction!(csc_degrees, m)?)
}
