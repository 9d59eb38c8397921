//! Even work: the cost of a seed, and splits of seeds into batches of equal size and
//! equal cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::Error;
use crate::csc::{Csc, Id, check_ids};
use crate::pool;
use crate::rng::derive;

/// The most workers that items are dealt out to.
const MAX_WORKERS: usize = 1 << 20;

/// Computes the expected number of edges in the tree of each of `roots`, before nodes
/// that recur are merged.
///
/// A node at hop h draws `s_h(v) = min(fanouts[h], d_v)` of its in-edges uniformly, or
/// `fanouts[h]` with replacement, and all of them where the fanout is `None`. So the
/// tree below it has `t_h(v) = s_h(v) (1 + mean of t_{h+1}(u) over the in-edges u ->
/// v)` edges, `t` being 0 after the last hop. The first hop reads the edges of the
/// roots, the last one only degrees, and each other hop takes one pass over the edges.
/// The bits do not depend on the number of threads.
pub fn tree_sizes<I: Id>(
    graph: &Csc<'_, I>,
    fanouts: &[Option<usize>],
    replace: bool,
    roots: &[i64],
    threads: usize,
) -> Result<Vec<f64>, Error> {
    check_ids("seeds", roots, graph.num_nodes(), "nodes")?;
    let (num_sources, num_nodes) = (graph.num_sources(), graph.num_nodes());
    if num_sources != num_nodes {
        return Err(Error::Length {
            name: "indptr",
            actual: num_nodes + 1,
            expected: num_sources + 1,
        });
    }
    let Some((&first, outer)) = fanouts.split_first() else {
        return Ok(vec![0.0; roots.len()]);
    };
    let mut below = None;
    for &fanout in outer.iter().rev() {
        let mut sizes = vec![0.0; num_nodes];
        in_parallel(graph, &mut sizes, threads, |node| {
            tree_size(graph, node, fanout, replace, below.as_deref())
        });
        below = Some(sizes);
    }
    let size = |root: &i64| tree_size(graph, root.index(), first, replace, below.as_deref());
    Ok(roots.iter().map(size).collect())
}

fn tree_size<I: Id>(
    graph: &Csc<'_, I>,
    node: usize,
    fanout: Option<usize>,
    replace: bool,
    below: Option<&[f64]>,
) -> f64 {
    let sources = graph.neighbors(node);
    let draws = match fanout {
        Some(fanout) if replace && !sources.is_empty() => fanout,
        Some(fanout) => fanout.min(sources.len()),
        None => sources.len(),
    };
    match below {
        Some(below) if draws > 0 => {
            let sum: f64 = sources.iter().map(|source| below[source.index()]).sum();
            draws as f64 * (1.0 + sum / sources.len() as f64)
        }
        _ => draws as f64,
    }
}

/// Fills `out[node] = value(node)`. Each thread gets a range of nodes with equally many
/// edges.
fn in_parallel<I: Id>(graph: &Csc<'_, I>, out: &mut [f64], threads: usize, value: impl Fn(usize) -> f64 + Sync) {
    let threads = threads.clamp(1, 1 + (graph.num_edges() >> 20));
    let bound = |part: usize| {
        let edges = (graph.num_edges() as u128 * part as u128 / threads as u128) as i64;
        graph.indptr()[1..].partition_point(|&end| end <= edges)
    };
    let fill = |nodes: Range<usize>, out: &mut [f64]| {
        for (node, out) in nodes.zip(out) {
            *out = value(node);
        }
    };
    let (mut tasks, mut rest, mut start) = (Vec::new(), out, 0);
    for part in 1..=threads {
        let last = part == threads;
        let stop = if last {
            graph.num_nodes()
        } else {
            bound(part).max(start)
        };
        let (own, others) = rest.split_at_mut(stop - start);
        tasks.push((start..stop, own));
        (rest, start) = (others, stop);
    }
    pool::for_each(threads, tasks, |(nodes, out)| fill(nodes, out));
}

/// Returns the part, `0..num_parts`, of each item. Numbers of items differ by at most
/// one, and sums of `costs` are nearly equal.
///
/// Longest processing time first, among the parts that have room. If the room of the
/// parts is ignored, the largest sum is at most 4/3 - 1/(3 `num_parts`) times the least
/// possible (Graham, 1969). The tests find this bound to hold with room too. Hundreds
/// of items a part come within 1e-4 of the mean. Karmarkar-Karp differencing with equal
/// counts (BLDM) left 10 % on heavy tails, because each part gets one item of each
/// size.
pub fn split(costs: &[f64], num_parts: usize) -> Vec<usize> {
    let mut falling: Vec<usize> = (0..costs.len()).collect();
    falling.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
    let (few, extra) = (costs.len() / num_parts, costs.len() % num_parts);
    let part = |number| Part {
        cost: 0.0,
        number,
        room: few + usize::from(number < extra),
    };
    let mut open: BinaryHeap<Reverse<Part>> = (0..num_parts).map(|number| Reverse(part(number))).collect();
    let mut part_of = vec![0; costs.len()];
    for item in falling {
        while open.peek().is_some_and(|part| part.0.room == 0) {
            open.pop();
        }
        let mut least = open.peek_mut().expect("as much room as items");
        least.0.cost += costs[item];
        least.0.room -= 1;
        part_of[item] = least.0.number;
    }
    part_of
}

/// A part that is being filled, ordered by cost, then number.
struct Part {
    cost: f64,
    number: usize,
    room: usize,
}

impl Ord for Part {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.cost.total_cmp(&other.cost).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for Part {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Part {}

/// An order of the items in which batches follow one another, step by step and in each
/// step rank by rank, such that the batches of a window cost the same.
///
/// A step takes `num_workers * batch_size` items, a window `window` steps. The items of
/// each window stay the same. Each item is equally likely in each batch of the window,
/// so items in random order stay in random order. Items that do not fill a step form
/// one more step, which is a window of its own. There the numbers of items of two ranks
/// differ by at most one.
pub fn even_order(
    costs: &[f64],
    num_workers: usize,
    batch_size: usize,
    window: usize,
    key: u64,
) -> Result<Vec<usize>, Error> {
    if let Some(position) = costs.iter().position(|cost| !cost.is_finite()) {
        return Err(Error::NotFinite {
            name: "costs",
            position,
            value: costs[position],
        });
    }
    let most = isize::MAX as usize;
    for (name, value, high) in [
        ("num_workers", num_workers, MAX_WORKERS),
        ("batch_size", batch_size, most),
        ("window", window, most),
    ] {
        if !(1..=high).contains(&value) {
            return Err(Error::Count {
                name,
                value,
                low: 1,
                high,
            });
        }
    }
    let per_step = num_workers.saturating_mul(batch_size);
    let per_window = per_step.saturating_mul(window);
    let whole = costs.len() / per_step * per_step;
    let mut order = Vec::with_capacity(costs.len());
    let windows = (0..whole).step_by(per_window).map(|start| {
        let stop = whole.min(start.saturating_add(per_window));
        (start..stop, (stop - start) / batch_size)
    });
    for (items, num_batches) in windows.chain(std::iter::once((whole..costs.len(), num_workers))) {
        let first = items.start;
        let mut batches = vec![Vec::new(); num_batches];
        for (item, batch) in (first..).zip(split(&costs[items], num_batches)) {
            batches[batch].push(item);
        }
        // The first parts hold the costliest items. A hash gives no batch a place of
        // its own.
        let mut places: Vec<usize> = (0..num_batches).collect();
        places.sort_by_key(|&batch| (Reverse(batches[batch].len()), derive(key, (first + batch) as u64)));
        order.extend(places.into_iter().flat_map(|batch| std::mem::take(&mut batches[batch])));
    }
    Ok(order)
}

/// The positions of `ids` in an order that follows from `key` and the ids alone: the
/// order of a hash. The hash is a bijection, so distinct ids never tie.
pub fn shuffled_order<I: Id>(ids: &[I], key: u64) -> Vec<usize> {
    let hashes = ids.iter().map(|id| derive(key, id.signed() as u64));
    let mut order: Vec<(u64, usize)> = hashes.zip(0..).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, position)| position).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    fn random_costs(count: usize, key: u64) -> Vec<f64> {
        let mut stream = Stream::new(key);
        (0..count)
            .map(|_| (1.0 / (1.0 - stream.next_f64())).min(900.0))
            .collect()
    }

    fn sums(costs: &[f64], part_of: &[usize], num_parts: usize) -> (Vec<usize>, Vec<f64>) {
        let (mut counts, mut sums) = (vec![0; num_parts], vec![0.0; num_parts]);
        for (&part, cost) in part_of.iter().zip(costs) {
            counts[part] += 1;
            sums[part] += cost;
        }
        (counts, sums)
    }

    fn largest(values: &[f64]) -> f64 {
        values.iter().fold(f64::MIN, |a, &b| a.max(b))
    }

    /// Returns the smallest maximum sum over all splits into parts with sizes that
    /// differ by at most one.
    fn brute_force(costs: &[f64], room: &mut [usize], sums: &mut [f64]) -> f64 {
        let Some((&cost, rest)) = costs.split_first() else {
            return largest(sums);
        };
        let mut best = f64::INFINITY;
        for part in 0..room.len() {
            if room[part] > 0 {
                (room[part], sums[part]) = (room[part] - 1, sums[part] + cost);
                best = best.min(brute_force(rest, room, sums));
                (room[part], sums[part]) = (room[part] + 1, sums[part] - cost);
            }
        }
        best
    }

    #[test]
    fn sums_stay_within_the_bound_of_the_best_split() {
        for (case, num_parts) in (0..60).zip([1, 2, 3].into_iter().cycle()) {
            let costs = random_costs(num_parts * (1 + case as usize % 3), case);
            let (counts, sums) = sums(&costs, &split(&costs, num_parts), num_parts);
            let best = brute_force(&costs, &mut counts.clone(), &mut vec![0.0; num_parts]);
            assert!(counts.iter().all(|&count| count == costs.len() / num_parts));
            // The widest group spreads by no more than the largest cost, which the best
            // split holds too.
            assert!(
                largest(&sums) <= (2.0 - 1.0 / num_parts as f64) * best + 1e-9,
                "{costs:?}"
            );
        }
    }

    #[test]
    fn skewed_costs_come_out_even() {
        let costs = random_costs(8 * 1024, 3);
        let (counts, sums) = sums(&costs, &split(&costs, 8), 8);
        assert_eq!(counts, [1024; 8]);
        let mean = sums.iter().sum::<f64>() / 8.0;
        assert!(largest(&sums) / mean < 1.0001, "{}", largest(&sums) / mean);
    }

    #[test]
    fn an_uneven_number_of_items_differs_by_one() {
        for (count, num_parts) in [(0, 3), (1, 3), (2, 3), (10, 4), (3, 1)] {
            let costs = random_costs(count, 1);
            let (counts, _) = sums(&costs, &split(&costs, num_parts), num_parts);
            let few = count / num_parts;
            assert!(
                counts.iter().all(|&count| count == few || count == few + 1),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn an_order_keeps_the_items_of_each_window() {
        let costs = random_costs(47, 5);
        let order = even_order(&costs, 2, 5, 2, 9).unwrap();
        for window in [0..20, 20..40, 40..47] {
            let mut items = order[window.clone()].to_vec();
            items.sort_unstable();
            assert_eq!(items, window.collect::<Vec<_>>());
        }
        assert!(even_order(&[1.0, f64::NAN], 1, 1, 1, 0).is_err());
    }

    #[test]
    fn a_shuffle_does_not_depend_on_the_order_before() {
        let ids: Vec<i64> = (0..1000).collect();
        let backwards: Vec<i64> = ids.iter().rev().copied().collect();
        let shuffle =
            |ids: &[i64], key| -> Vec<i64> { shuffled_order(ids, key).into_iter().map(|at| ids[at]).collect() };
        let shuffled = shuffle(&ids, 4);
        assert_eq!(shuffled, shuffle(&backwards, 4));
        assert_ne!(shuffled, shuffle(&ids, 5));
        let mut sorted = shuffled;
        sorted.sort_unstable();
        assert_eq!(sorted, ids);
    }

    #[test]
    fn tree_sizes_follow_the_definition() {
        // 0 <- 1, 2, 3; 1 <- 2; 2 <- 0, 1; 3 has no in-edges.
        let graph = Csc::new(&[0, 3, 4, 6, 6], &[1i32, 2, 3, 2, 0, 1], 4).unwrap();
        let sizes =
            |fanouts: &[Option<usize>], replace| tree_sizes(&graph, fanouts, replace, &[0, 1, 2, 3], 2).unwrap();
        assert_eq!(sizes(&[], false), [0.0; 4]);
        assert_eq!(sizes(&[Some(2)], false), [2.0, 1.0, 2.0, 0.0]);
        assert_eq!(sizes(&[Some(2)], true), [2.0, 2.0, 2.0, 0.0]);
        assert_eq!(sizes(&[None, Some(1)], false), [5.0, 2.0, 4.0, 0.0]);
        assert!(tree_sizes(&graph, &[None], false, &[4], 1).is_err());
    }
}
