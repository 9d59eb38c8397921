//! The nodes of a batch by type, and its edges by relation.

use gnnkit_core::by_type::{EdgesByRelation, NodesByType, TypedEdges};
use gnnkit_core::relations::MOST_RELATIONS;
use numpy::PyArray1;
use pyo3::prelude::*;

use crate::arg::{Arg, Ids, Slice, count, items, optional, within};
use crate::sample::list_to_py;
use crate::user_error;

type Array<'py> = Bound<'py, PyArray1<i64>>;

/// Positions and ids by type, the number of each node within its type, and where each
/// type ends.
#[pyfunction]
fn nodes_by_type<'py>(
    py: Python<'py>,
    nodes: Arg<'_, 'py>,
    sizes: Arg<'_, 'py>,
) -> PyResult<(Array<'py>, Array<'py>, Array<'py>, Vec<usize>)> {
    let nodes = Ids::new("nodes", nodes)?;
    let sizes = items("sizes", sizes)?;
    let sizes: Vec<usize> = sizes.iter().map(|size| count("sizes", size)).collect::<PyResult<_>>()?;
    let by_type = with_ids!(nodes, nodes => py.detach(|| NodesByType::new(nodes, &sizes)));
    let by_type = by_type.map_err(user_error)?;
    Ok((
        list_to_py(py, by_type.positions)?,
        list_to_py(py, by_type.ids)?,
        list_to_py(py, by_type.local)?,
        by_type.ends,
    ))
}

/// Sources, destinations, positions, edge ids, and where each relation ends.
type Divided<'py> = (Array<'py>, Array<'py>, Array<'py>, Option<Array<'py>>, Vec<usize>);

/// The edges of one hop in order of relation.
#[pyfunction]
fn edges_by_relation<'py>(
    py: Python<'py>,
    indptr: Arg<'_, 'py>,
    indices: Arg<'_, 'py>,
    relation: Arg<'_, 'py>,
    edge_ids: Arg<'_, 'py>,
    local: Arg<'_, 'py>,
    num_relations: Arg<'_, 'py>,
) -> PyResult<Divided<'py>> {
    let (indptr, indices) = (Slice::new("indptr", indptr)?, Ids::new("indices", indices)?);
    let relation = Slice::new("relation", relation)?;
    let edge_ids = optional(edge_ids, |ids| Slice::new("edge_ids", ids))?;
    let local = Slice::new("local", local)?;
    let num_relations = within("num_relations", num_relations, 0..=MOST_RELATIONS)?;
    let (indptr, relation, local) = (indptr.as_slice(), relation.as_slice(), local.as_slice());
    let edge_ids = edge_ids.as_ref().map(Slice::as_slice);
    let divided = with_ids!(indices, indices => {
        let edges = TypedEdges { indptr, indices, relation, edge_ids };
        py.detach(|| EdgesByRelation::new(&edges, local, num_relations))
    });
    let divided = divided.map_err(user_error)?;
    Ok((
        list_to_py(py, divided.row)?,
        list_to_py(py, divided.col)?,
        list_to_py(py, divided.order)?,
        divided.edge_ids.map(|ids| list_to_py(py, ids)).transpose()?,
        divided.ends,
    ))
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(nodes_by_type, m)?)?;
    m.add_function(wrap_pyfunction!(edges_by_relation, m)?)
}
