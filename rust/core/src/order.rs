//! Orders of nodes in which the rows that a node reads stand close to each other.

use crate::csc::{Csc, Id, check_ids};
use crate::error::{Error, check_length};
use crate::memory::filled;
use crate::read::prefetch;

/// Rows are looked up this many edges ahead.
const AHEAD: usize = 16;

/// The order of Cuthill and McKee, reversed: breadth first from a node of least degree,
/// the in-neighbours of a node by degree (Cuthill, McKee, ACM 1969; George, 1971).
///
/// Sources without in-edges of their own, which stand behind the nodes, have no place.
/// Returns each node once.
pub fn reverse_cuthill_mckee<I: Id>(csc: Csc<'_, I>) -> Result<Vec<i64>, Error> {
    let (indptr, indices, num_nodes) = (csc.indptr(), csc.indices(), csc.num_nodes());
    let degree = |node: usize| indptr[node + 1] - indptr[node];
    let mut order: Vec<i64> = filled(0, Some(num_nodes), "num_nodes", num_nodes)?;
    let mut seen: Vec<bool> = filled(false, Some(num_nodes), "num_nodes", num_nodes)?;
    let mut starts: Vec<i64> = (0..num_nodes as i64).collect();
    starts.sort_by_key(|&node| degree(node as usize)); // stable
    let (mut read, mut written) = (0, 0);
    for start in starts {
        if seen[start as usize] {
            continue;
        }
        seen[start as usize] = true;
        order[written] = start;
        written += 1;
        while read < written {
            let node = order[read] as usize;
            read += 1;
            let (first, end) = (written, indptr[node + 1] as usize);
            for edge in indptr[node] as usize..end {
                if let Some(next) = indices.get(edge + AHEAD).filter(|next| next.index() < num_nodes) {
                    prefetch(&seen, next.index());
                }
                let source = indices[edge].index();
                if source < num_nodes && !seen[source] {
                    seen[source] = true;
                    order[written] = source as i64;
                    written += 1;
                }
            }
            order[first..written].sort_unstable_by_key(|&node| (degree(node as usize), node));
        }
    }
    order.reverse();
    Ok(order)
}

/// Edges of each of [`BLOCKS`] stretches that are counted, where there are more edges.
const STRETCH: usize = 1 << 20;
const BLOCKS: usize = 16;

/// Counts the misses of direct-mapped caches of `slots` rows when edges read their
/// sources' rows in order, summed over caches of several sizes. `order` contains each
/// node once (default: 0, 1, ...), and each node is a source. For more than 16 million
/// edges, only 16 ranges of a million edges are counted.
pub fn missed_rows<I: Id>(csc: Csc<'_, I>, slots: &[usize], order: Option<&[i64]>) -> Result<usize, Error> {
    missed(csc, slots, order, STRETCH)
}

fn missed<I: Id>(csc: Csc<'_, I>, slots: &[usize], order: Option<&[i64]>, stretch: usize) -> Result<usize, Error> {
    let (num_nodes, num_sources, num_edges) = (csc.num_nodes(), csc.num_sources(), csc.num_edges());
    for (name, value, low) in slots
        .iter()
        .map(|&value| ("slots", value, 1))
        .chain([("num_sources", num_sources, 0)])
    {
        let high = u32::MAX as usize - 1;
        if !(low..=high).contains(&value) {
            return Err(Error::Count { name, value, low, high });
        }
    }
    let mut place: Vec<u32> = filled(0, Some(num_sources), "num_sources", num_sources)?;
    place.iter_mut().enumerate().for_each(|(id, place)| *place = id as u32);
    if let Some(order) = order {
        check_length("order", order.len(), num_nodes)?;
        check_ids("order", order, num_nodes, "nodes")?;
        check_ids("order", order, num_sources, "sources")?; // `place` has an entry for each source
        for (at, node) in order.iter().enumerate() {
            place[node.index()] = at as u32;
        }
    }
    let mut caches = Vec::new();
    for &slots in slots {
        let reachable = slots.min(num_sources.max(num_nodes)).max(1); // no row uses a later slot
        caches.push(filled(u32::MAX, Some(reachable), "slots", slots)?);
    }
    let (mut lost, mut passed) = (0, 0);
    for at in 0..num_nodes {
        let node = order.map_or(at, |order| order[at].index());
        let edges = csc.indptr()[node] as usize..csc.indptr()[node + 1] as usize;
        let counts = num_edges <= BLOCKS * stretch || passed % (num_edges / BLOCKS) < stretch;
        passed += edges.len();
        for edge in edges.filter(|_| counts) {
            if let Some(next) = csc.indices().get(edge + AHEAD) {
                prefetch(&place, next.index());
            }
            let source = place[csc.indices()[edge].index()];
            for kept in &mut caches {
                let slot = source as usize % kept.len();
                lost += usize::from(kept[slot] != source);
                kept[slot] = source;
            }
        }
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the path 0 - 1 - ... - 9 with renumbered nodes.
    fn path(numbers: &[i32]) -> (Vec<i64>, Vec<i32>) {
        let mut into: Vec<Vec<i32>> = vec![vec![]; numbers.len()];
        for pair in numbers.windows(2) {
            into[pair[0] as usize].push(pair[1]);
            into[pair[1] as usize].push(pair[0]);
        }
        let mut indptr = vec![0];
        into.iter()
            .for_each(|row| indptr.push(indptr[indptr.len() - 1] + row.len() as i64));
        (indptr, into.concat())
    }

    #[test]
    fn a_path_becomes_a_path() {
        let numbers = [3, 7, 0, 9, 4, 1, 8, 2, 6, 5];
        let (indptr, indices) = path(&numbers);
        let order = reverse_cuthill_mckee(Csc::new(&indptr, &indices, 10).unwrap()).unwrap();
        let mut expected: Vec<i64> = numbers.iter().map(|&node| i64::from(node)).collect();
        expected.reverse(); // from the end of least number on, and then reversed
        assert_eq!(order, expected);
    }

    #[test]
    fn every_node_has_one_place_and_sources_behind_the_nodes_have_none() {
        let (indptr, indices) = ([0, 2, 3, 3, 5], [4, 1, 0, 3, 5]);
        let mut order = reverse_cuthill_mckee(Csc::new(&indptr, &indices, 6).unwrap()).unwrap();
        order.sort_unstable();
        assert_eq!(order, [0, 1, 2, 3]);
    }

    #[test]
    fn rows_that_a_slot_keeps_are_not_missed() {
        let (indptr, indices) = ([0, 7], [0, 0, 1, 0, 2, 0, 0]);
        let csc = Csc::new(&indptr, &indices, 3).unwrap();
        let count = |slots| missed_rows(csc, &[slots], None);
        assert_eq!(count(4), Ok(3));
        assert_eq!(count(2), Ok(4)); // 2 takes the slot of 0
        assert_eq!(count(1), Ok(5));
        assert!(count(0).is_err());
        assert_eq!(missed_rows(csc, &[4, 1], None), Ok(8));
        assert_eq!(count(u32::MAX as usize - 1), Ok(3)); // without memory for so many slots
    }

    #[test]
    fn of_many_edges_some_are_counted() {
        let num_edges = 3 * BLOCKS * 10;
        let (indptr, indices) = (
            (0..=num_edges as i64).collect::<Vec<_>>(),
            (0..num_edges as i32).collect::<Vec<_>>(),
        );
        let csc = Csc::new(&indptr, &indices, num_edges).unwrap();
        assert_eq!(missed(csc, &[8], None, 10), Ok(BLOCKS * 10));
        assert_eq!(missed(csc, &[8], None, 30), Ok(num_edges));
    }

    #[test]
    fn rows_are_counted_in_an_order() {
        let numbers = [3, 7, 0, 9, 4, 1, 8, 2, 6, 5];
        let (indptr, indices) = path(&numbers);
        let csc = Csc::new(&indptr, &indices, 10).unwrap();
        let order: Vec<i64> = numbers.iter().map(|&node| i64::from(node)).collect();
        assert_eq!(missed_rows(csc, &[4], Some(&order)), Ok(10)); // each row once
        assert!(missed_rows(csc, &[4], None).unwrap() > 10);
        assert!(missed_rows(csc, &[4], Some(&order[1..])).is_err());
        assert!(missed_rows(csc, &[4], Some(&[10; 10])).is_err());
        let wide = Csc::new(&[0, 1, 2, 2], &[0, 1], 2).unwrap();
        assert!(missed_rows(wide, &[4], None).is_ok());
        assert!(missed_rows(wide, &[4], Some(&[0, 1, 2])).is_err()); // node 2 is no source
    }
}
