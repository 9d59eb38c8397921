//! The law by which nodes draw their heaviest in-edges, for gnnkit.

use gnnkit_core::Error;
use gnnkit_core::csc::Id;
use gnnkit_core::float::Floats;
use gnnkit_core::sample::{Law, Row, Scratch, draw_by};
use gnnkit_core::view::{Extra, View};
use numpy::{Element, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

pyo3::import_exception!(gnnkit.errors, UserError);

/// The `count` in-edges of largest weight, the first ones of equal weight.
struct TopK<'a, I> {
    graph: &'a View<'a, I>,
    count: usize,
}

impl<I: Id> Law for TopK<'_, I> {
    /// Weights and positions of a row's edges.
    type Room = Vec<(f64, i64)>;

    fn draw(&self, row: &Row, room: &mut Self::Room, out: &mut Vec<i64>) -> Result<(), Error> {
        let edges = row.start..row.start + row.degree;
        if row.degree <= self.count {
            out.extend(edges.map(|edge| edge as i64));
            return Ok(());
        }
        room.clear();
        for edge in edges {
            room.push((self.graph.weight(row.position(edge))?, edge as i64));
        }
        room.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let first = out.len();
        out.extend(room[..self.count].iter().map(|&(_, edge)| edge));
        out[first..].sort_unstable();
        Ok(())
    }
}

/// indptr, sources and edge ids of a hop.
type PyHop<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>);

/// Draws one hop of `nodes`, whose dtype is that of `indices`.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // as many as a graph has arrays
fn draw<'py>(
    py: Python<'py>,
    indptr: PyReadonlyArray1<'py, i64>,
    indices: &Bound<'py, PyAny>,
    weight: Option<&Bound<'py, PyAny>>,
    num_sources: usize,
    nodes: &Bound<'py, PyAny>,
    count: usize,
    threads: usize,
) -> PyResult<PyHop<'py>> {
    let graph = (indptr, weight, num_sources);
    match indices.extract::<PyReadonlyArray1<'py, i32>>() {
        Ok(indices) => draw_as(py, graph, indices, nodes.extract()?, count, threads),
        Err(_) => draw_as::<i64>(py, graph, indices.extract()?, nodes.extract()?, count, threads),
    }
}

fn draw_as<'py, I: Id + Element>(
    py: Python<'py>,
    (indptr, weight, num_sources): (PyReadonlyArray1<'py, i64>, Option<&Bound<'py, PyAny>>, usize),
    indices: PyReadonlyArray1<'py, I>,
    nodes: PyReadonlyArray1<'py, I>,
    count: usize,
    threads: usize,
) -> PyResult<PyHop<'py>> {
    let single: Option<PyReadonlyArray1<'py, f32>> = weight.and_then(|weight| weight.extract().ok());
    let double: Option<PyReadonlyArray1<'py, f64>> = match weight {
        Some(weight) if single.is_none() => Some(weight.extract()?),
        _ => None,
    };
    let (indptr, indices, nodes) = (indptr.as_slice()?, indices.as_slice()?, nodes.as_slice()?);
    let weight = match (&single, &double) {
        (Some(weight), _) => Some(Floats::F32(weight.as_slice()?)),
        (None, Some(weight)) => Some(Floats::F64(weight.as_slice()?)),
        (None, None) => None,
    };
    let hop = py.detach(|| {
        let extra = Extra {
            weight,
            ..Extra::default()
        };
        let graph = &View::new(indptr, indices, num_sources)?.with(extra)?;
        let (law, mut scratch) = (TopK { graph, count }, Scratch::default());
        draw_by(graph, nodes, &law, count.min(32), None, scratch.on_threads(threads))
    });
    let hop = hop.map_err(|error| UserError::new_err(error.to_string()))?;
    Ok((
        PyArray1::from_slice(py, &hop.indptr),
        PyArray1::from_slice(py, &hop.sources).into_any(),
        PyArray1::from_slice(py, &hop.edge_ids),
    ))
}

#[pymodule]
fn _law(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(draw, m)?)
}
