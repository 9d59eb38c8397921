//! The nodes of a batch by type, and its edges by relation.

use crate::Error;
use crate::csc::{Id, check_indptr};
use crate::error::check_length;
use crate::memory::List;

/// Up to this number of types, comparing an id with all of their ends is faster than a
/// search.
const FEW_TYPES: usize = 16;

/// Nodes numbered within their types, in their order.
#[derive(Debug, PartialEq)]
pub struct NodesByType {
    /// [num_nodes] positions in the batch, ordered by type and then by position.
    pub positions: List<i64>,
    /// [num_nodes] ids within the type, in the order of `positions`.
    pub ids: List<i64>,
    /// [num_nodes] the number of each node among those of its type, in the batch's
    /// order.
    pub local: List<i64>,
    /// [num_types] where each type ends in `positions`.
    pub ends: Vec<usize>,
}

impl NodesByType {
    /// Numbers `nodes`. The ids of each type are consecutive, and `sizes` counts them.
    pub fn new<I: Id>(nodes: &[I], sizes: &[usize]) -> Result<Self, Error> {
        let mut total = 0_usize;
        let mut bounds = Vec::with_capacity(sizes.len());
        for &size in sizes {
            total = total.checked_add(size).ok_or(Error::TooLarge {
                name: "sizes",
                value: size,
            })?;
            bounds.push(total);
        }
        let type_of = |id: usize| {
            if bounds.len() <= FEW_TYPES {
                bounds.iter().map(|&end| usize::from(end <= id)).sum()
            } else {
                bounds.partition_point(|&end| end <= id)
            }
        };
        let mut ends = vec![0; sizes.len()];
        for (position, node) in nodes.iter().enumerate() {
            let of_type: usize = type_of(node.index());
            let Some(count) = ends.get_mut(of_type) else {
                return Err(Error::OutOfRange {
                    name: "nodes",
                    position,
                    value: node.signed(),
                    bound: total,
                    of: "nodes",
                });
            };
            *count += 1;
        }
        let starts = starts_of(&mut ends);
        let mut next = starts.clone();
        let mut local = of_length(nodes.len());
        let (mut positions, mut ids) = (of_length(nodes.len()), of_length(nodes.len()));
        for (position, node) in nodes.iter().enumerate() {
            let of_type: usize = type_of(node.index());
            let place = next[of_type];
            next[of_type] += 1;
            local[position] = (place - starts[of_type]) as i64;
            positions[place] = position as i64;
            ids[place] = (node.index() - (bounds[of_type] - sizes[of_type])) as i64;
        }
        Ok(Self {
            positions,
            ids,
            local,
            ends,
        })
    }
}

/// The edges of one hop, by destination.
#[derive(Debug, Clone, Copy)]
pub struct TypedEdges<'a, I> {
    /// [num_dst + 1] where the edges of each destination begin.
    pub indptr: &'a [i64],
    /// [num_edges] positions of the sources in the batch.
    pub indices: &'a [I],
    /// [num_edges] relations.
    pub relation: &'a [i16],
    /// [num_edges] ids.
    pub edge_ids: Option<&'a [i64]>,
}

/// Edges in order of relation, and otherwise in their order.
#[derive(Debug, PartialEq)]
pub struct EdgesByRelation {
    /// [num_edges] positions of the sources among the nodes of their type.
    pub row: List<i64>,
    /// [num_edges] positions of the destinations among the nodes of their type.
    pub col: List<i64>,
    /// [num_edges] positions in the hop.
    pub order: List<i64>,
    /// [num_edges] ids, if known.
    pub edge_ids: Option<List<i64>>,
    /// [num_relations] where each relation ends.
    pub ends: Vec<usize>,
}

impl EdgesByRelation {
    /// Divides `edges`. `local` [num_nodes] numbers the batch's nodes within their
    /// types.
    pub fn new<I: Id>(edges: &TypedEdges<'_, I>, local: &[i64], num_relations: usize) -> Result<Self, Error> {
        let num_edges = edges.indices.len();
        check_length("relation", edges.relation.len(), num_edges)?;
        check_length("edge_ids", edges.edge_ids.map_or(num_edges, <[i64]>::len), num_edges)?;
        let num_dst = edges.indptr.len().saturating_sub(1);
        if num_dst > local.len() {
            return Err(Error::TooMany {
                name: "destinations of indptr",
                actual: num_dst,
                limit: local.len(),
            });
        }
        check_indptr(edges.indptr, num_edges)?;
        let mut ends = count_relations(edges.relation, num_relations)?;
        let mut next = starts_of(&mut ends);
        let [mut row, mut col, mut order] = [of_length(num_edges), of_length(num_edges), of_length(num_edges)];
        let mut edge_ids = edges.edge_ids.map(|_| of_length(num_edges));
        for (destination, pair) in edges.indptr.windows(2).enumerate() {
            for edge in pair[0] as usize..pair[1] as usize {
                let place = &mut next[edges.relation[edge] as usize];
                let source = edges.indices[edge];
                let Some(&position) = local.get(source.index()) else {
                    return Err(Error::OutOfRange {
                        name: "indices",
                        position: edge,
                        value: source.signed(),
                        bound: local.len(),
                        of: "nodes",
                    });
                };
                row[*place] = position;
                col[*place] = local[destination];
                order[*place] = edge as i64;
                if let (Some(sorted), Some(ids)) = (&mut edge_ids, edges.edge_ids) {
                    sorted[*place] = ids[edge];
                }
                *place += 1;
            }
        }
        Ok(Self {
            row,
            col,
            order,
            edge_ids,
            ends,
        })
    }
}

/// The number of edges of each relation.
fn count_relations(relation: &[i16], num_relations: usize) -> Result<Vec<usize>, Error> {
    let mut counts = vec![0; num_relations];
    for (position, &number) in relation.iter().enumerate() {
        let count = usize::try_from(number).ok().and_then(|number| counts.get_mut(number));
        let Some(count) = count else {
            return Err(Error::OutOfRange {
                name: "relation",
                position,
                value: i64::from(number),
                bound: num_relations,
                of: "relations",
            });
        };
        *count += 1;
    }
    Ok(counts)
}

/// Replaces counts by ends, and returns the starts.
fn starts_of(counts: &mut [usize]) -> Vec<usize> {
    let mut end = 0;
    let starts = counts.iter_mut().map(|count| {
        let start = end;
        end += *count;
        *count = end;
        start
    });
    starts.collect()
}

/// Allocates a list in which all elements are written later.
fn of_length(len: usize) -> List<i64> {
    let mut list = List::with_capacity(len);
    list.resize(len, 0);
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_within_their_types() {
        for sizes in [vec![3, 0, 4, 1], [vec![3, 0, 4, 1], vec![0; 20]].concat()] {
            let nodes = [7_i32, 0, 4, 2, 3, 6];
            let by_type = NodesByType::new(&nodes, &sizes).unwrap();
            assert_eq!(*by_type.positions, [1, 3, 2, 4, 5, 0]);
            assert_eq!(*by_type.ids, [0, 2, 1, 0, 3, 0]);
            assert_eq!(*by_type.local, [0, 0, 0, 1, 1, 2]);
            assert_eq!(by_type.ends[..4], [2, 2, 5, 6]);
        }
    }

    #[test]
    fn nodes_beyond_the_last_type_are_refused() {
        for node in [8_i64, -1] {
            let error = NodesByType::new(&[0, node], &[3, 5]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("nodes[1] = {node} is out of range for 8 nodes")
            );
        }
        assert!(NodesByType::new(&[0_i32], &[usize::MAX, 1]).is_err());
        assert!(NodesByType::new::<i32>(&[], &[]).unwrap().ends.is_empty());
    }

    const EDGES: TypedEdges<'static, i32> = TypedEdges {
        indptr: &[0, 3, 3, 5],
        indices: &[3, 1, 2, 0, 4],
        relation: &[1, 0, 1, 2, 1],
        edge_ids: Some(&[10, 11, 12, 13, 14]),
    };
    const LOCAL: [i64; 5] = [0, 0, 1, 1, 2];

    #[test]
    fn edges_are_divided_in_their_order() {
        let divided = EdgesByRelation::new(&EDGES, &LOCAL, 4).unwrap();
        assert_eq!(*divided.order, [1, 0, 2, 4, 3]);
        assert_eq!(*divided.row, [0, 1, 1, 2, 0]);
        assert_eq!(*divided.col, [0, 0, 0, 1, 1]);
        assert_eq!(**divided.edge_ids.as_ref().unwrap(), [11, 10, 12, 14, 13]);
        assert_eq!(divided.ends, [1, 4, 5, 5]);
    }

    #[test]
    fn edges_that_do_not_fit_are_refused() {
        let text = |edges: TypedEdges<'_, i32>, local: &[i64], num_relations| {
            EdgesByRelation::new(&edges, local, num_relations)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(EDGES, &LOCAL, 2),
            "relation[3] = 2 is out of range for 2 relations"
        );
        assert_eq!(
            text(EDGES, &LOCAL[..4], 3),
            "indices[4] = 4 is out of range for 4 nodes"
        );
        let few = &LOCAL[..2];
        assert_eq!(
            text(EDGES, few, 3),
            "3 destinations of indptr are more than the limit of 2"
        );
        let cases: [(&[i64], &str); 4] = [
            (&[], "indptr has 0 entries, expected 1"),
            (&[1, 5], "indptr[0] = 1, expected 0"),
            (&[0, 4, 3, 5], "indptr[2] = 3 is below indptr[1] = 4"),
            (&[0, 4], "indices has 5 entries, expected 4"),
        ];
        for (indptr, expected) in cases {
            assert_eq!(text(TypedEdges { indptr, ..EDGES }, &LOCAL, 3), expected);
        }
        let relation = &[0_i16; 4];
        assert_eq!(
            text(TypedEdges { relation, ..EDGES }, &LOCAL, 3),
            "relation has 4 entries, expected 5"
        );
    }
}
