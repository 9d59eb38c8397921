//! Pairs of nodes.

use gnnkit_core::Csc;
use gnnkit_core::links::{Ends, NonEdges, Pair, draws, edges_without as core_edges_without};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count as count_of, exactly, key as key_of, optional, refuse};
use crate::array::Input;
use crate::user_error;

/// Row pointers and edge ids.
type Edges<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// The rows of an array [k, 2].
fn pairs_of<'a>(array: &'a Input<'_, i64>) -> PyResult<&'a [Pair]> {
    match array.rows()? {
        (_, 2) => Ok(array.as_slice()?.as_chunks().0),
        (_, width) => Err(refuse("pairs", format_args!("has {width} columns, expected 2"))),
    }
}

/// The first and last candidate of both ends.
fn ends_of(value: Arg<'_, '_>) -> PyResult<Ends> {
    let [a, b, c, d] = exactly("ends", value)?;
    let bound = |value| count_of("ends", value);
    Ok(Ends {
        sources: bound(&a)?..bound(&b)?,
        destinations: bound(&c)?..bound(&d)?,
    })
}

/// Pairs without an edge, [k * count * 2].
#[pyfunction]
#[pyo3(signature = (pairs, ids, num_nodes, known, among, count, key, threads, ends=None))]
#[allow(clippy::too_many_arguments, reason = "one for each argument of Python")]
fn negative_pairs<'py>(
    py: Python<'py>,
    pairs: Arg<'_, 'py>,
    ids: Arg<'_, 'py>,
    num_nodes: Arg<'_, 'py>,
    known: Arg<'_, 'py>,
    among: Arg<'_, 'py>,
    count: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    threads: Arg<'_, 'py>,
    ends: Option<Arg<'_, 'py>>,
) -> PyResult<Bound<'py, PyArray1<i64>>> {
    let ends = ends.map(ends_of).transpose()?;
    let (pairs, ids) = (Input::new("pairs", pairs)?, Slice::new("ids", ids)?);
    let known = optional(known, |known| Slice::new("known", known))?;
    let among = optional(among, |among| Slice::new("among", among))?;
    let (num_nodes, count) = (count_of("num_nodes", num_nodes)?, count_of("count", count)?);
    let (key, threads) = (key_of("key", key)?, count_of("threads", threads)?);
    let (pairs, ids) = (pairs_of(&pairs)?, ids.as_slice());
    let known = known.as_ref().map_or(&[][..], Slice::as_slice);
    let among = among.as_ref().map(Slice::as_slice);
    let drawn = py.detach(|| {
        let mut non_edges = NonEdges::new(num_nodes, known, among)?;
        if let Some(ends) = ends {
            non_edges = non_edges.between(ends)?;
        }
        non_edges.draw(pairs, ids, count, key, threads)
    });
    Ok(drawn.map_err(user_error)?.into_flattened().into_pyarray(py))
}

/// A number in [0, 1) for each pair, [k].
#[pyfunction]
fn pair_draws<'py>(
    py: Python<'py>,
    pairs: Arg<'_, 'py>,
    num_nodes: Arg<'_, 'py>,
    key: Arg<'_, 'py>,
    threads: Arg<'_, 'py>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let (pairs, num_nodes) = (Input::new("pairs", pairs)?, count_of("num_nodes", num_nodes)?);
    let (key, threads) = (key_of("key", key)?, count_of("threads", threads)?);
    let pairs = pairs_of(&pairs)?;
    let drawn = py.detach(|| draws(pairs, num_nodes, key, threads));
    Ok(drawn.map_err(user_error)?.into_pyarray(py))
}

/// Where the edges that join no excluded pair start and end, and their places.
#[pyfunction]
fn edges_without<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    src_nodes: Arg<'_, 'py>,
    excluded: Arg<'_, 'py>,
    num_nodes: Arg<'_, 'py>,
) -> PyResult<Edges<'py>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let (nodes, excluded) = (Ids::new("src_nodes", src_nodes)?, Slice::new("excluded", excluded)?);
    let num_nodes = count_of("num_nodes", num_nodes)?;
    let (indptr, excluded) = (indptr.as_slice(), excluded.as_slice());
    let found = with_ids!(indices, indices => with_ids!(nodes, nodes => py.detach(|| {
        core_edges_without(Csc::new(indptr, indices, nodes.len())?, nodes, excluded, num_nodes)
    })));
    let (indptr, kept) = found.map_err(user_error)?;
    Ok((indptr.into_pyarray(py), kept.into_pyarray(py)))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(negative_pairs, m)?)?;
    m.add_function(wrap_pyfunction!(pair_draws, m)?)?;
    m.add_function(wrap_pyfunction!(edges_without, m)?)
}
