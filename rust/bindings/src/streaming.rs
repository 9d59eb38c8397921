//! Partitions from streams of nodes and edges, and the edges between parts.

use gnnkit_core::cover;
use gnnkit_core::csc::Id;
use gnnkit_core::stream_edges::{Rule, VertexCut};
use gnnkit_core::stream_nodes::{Order, Parts, Score};
use gnnkit_core::{Csc, Error, buffer_nodes as by_buffers, stream_edges as by_edges, stream_nodes as by_nodes};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, key as key_of, optional, real, refuse, text};
use crate::user_error;

#[pyfunction]
#[allow(clippy::too_many_arguments)]
fn stream_nodes<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_parts: Arg<'_, 'py>,
    score: Arg<'_, 'py>,
    order: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    max_imbalance: Arg<'_, 'py>,
    passes: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let score = match text("score", score)?.as_str() {
        "ldg" => Score::Ldg,
        "fennel" => Score::Fennel,
        _ => return Err(refuse("score", "must be ldg or fennel")),
    };
    let key = key_of("key", key)?;
    let order = match text("order", order)?.as_str() {
        "id" => Order::Id,
        "random" => Order::Random(key),
        "bfs" => Order::BreadthFirst,
        _ => return Err(refuse("order", "must be id, random or bfs")),
    };
    let parts = Parts {
        number: count("num_parts", num_parts)?,
        max_imbalance: real("max_imbalance", max_imbalance)?,
        passes: count("passes", passes)?,
    };
    let indptr = indptr.as_slice();
    let assigned = with_ids!(indices, indices => {
        py.detach(|| square(indptr, indices).and_then(|csc| by_nodes::stream_nodes(&csc, parts, score, order)))
    });
    Ok(assigned.map_err(user_error)?.into_pyarray(py))
}

#[pyfunction]
fn buffer_nodes<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_parts: Arg<'_, 'py>,
    buffer: Arg<'_, 'py>,
    max_imbalance: Arg<'_, 'py>,
    passes: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let parts = Parts {
        number: count("num_parts", num_parts)?,
        max_imbalance: real("max_imbalance", max_imbalance)?,
        passes: count("passes", passes)?,
    };
    let buffer = count("buffer", buffer)?;
    let indptr = indptr.as_slice();
    let assigned = with_ids!(indices, indices => {
        py.detach(|| square(indptr, indices).and_then(|csc| by_buffers::buffer_nodes(&csc, parts, buffer)))
    });
    Ok(assigned.map_err(user_error)?.into_pyarray(py))
}

type Cut<'py> = (Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

#[pyfunction]
fn stream_edges<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    num_parts: Arg<'_, 'py>,
    max_imbalance: Arg<'_, 'py>,
    balance: Arg<'_, 'py>,
) -> PyResult<Cut<'py>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let parts = Parts {
        number: count("num_parts", num_parts)?,
        max_imbalance: real("max_imbalance", max_imbalance)?,
        passes: 1,
    };
    let balance = optional(balance, |value| real("balance", value))?;
    let rule = balance.map_or(Rule::TwoPhase, |balance| Rule::Hdrf { balance });
    let indptr = indptr.as_slice();
    let cut = with_ids!(indices, indices => {
        py.detach(|| square(indptr, indices).and_then(|csc| by_edges::stream_edges(&csc, parts, rule)))
    });
    let VertexCut { node_cell, edge_cell } = cut.map_err(user_error)?;
    Ok((node_cell.into_pyarray(py), edge_cell.into_pyarray(py)))
}

#[pyfunction]
fn cover_cells<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    node_cell: Arg<'_, 'py>,
    num_cells: Arg<'_, 'py>,
    max_imbalance: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<i32>>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let node_cell = Slice::<i32>::new("node_cell", node_cell)?;
    let (num_cells, max_imbalance) = (count("num_cells", num_cells)?, real("max_imbalance", max_imbalance)?);
    let (indptr, node_cell) = (indptr.as_slice(), node_cell.as_slice());
    let cells = with_ids!(indices, indices => {
        py.detach(|| {
            square(indptr, indices).and_then(|csc| cover::cover_cells(&csc, node_cell, num_cells, max_imbalance))
        })
    });
    Ok(cells.map_err(user_error)?.into_pyarray(py))
}

/// Validates a graph with equal source and destination nodes.
fn square<'a, I: Id>(indptr: &'a [i64], indices: &'a [I]) -> Result<Csc<'a, I>, Error> {
    Csc::new(indptr, indices, indptr.len().saturating_sub(1))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(stream_nodes, m)?)?;
    m.add_function(wrap_pyfunction!(buffer_nodes, m)?)?;
    m.add_function(wrap_pyfunction!(stream_edges, m)?)?;
    m.add_function(wrap_pyfunction!(cover_cells, m)?)
}
