//! Batches of all laws, by any number of threads and through both tables.

use super::{EdgeType, Fanout, Importance, Kind, Request, Sampler, Scratch, Seeds, Subgraph, Trees};
use crate::Error;
use crate::csc::Id;
use crate::float::Floats;
use crate::relations::Relations;
use crate::rng::{Stream, derive};
use crate::similarity::{Preference, Similarity};
use crate::view::{Extra, View};
use crate::walk::Walks;

const NUM_NODES: usize = 3000;

const WALKS: Kind = Kind::MetropolisHastings(Walks {
    length: 4,
    num_walks: 5,
    alpha: 1.0,
});

const KINDS: [Kind; 9] = [
    Kind::Neighbor { replace: false },
    Kind::Neighbor { replace: true },
    Kind::Equal,
    Kind::Weighted { replace: false },
    Kind::Weighted { replace: true },
    Kind::Balanced,
    Kind::Labor,
    WALKS,
    Kind::Cluster,
];

/// Most edges lead from a few nodes to a few nodes.
fn skewed<I: Id>() -> (Vec<i64>, Vec<I>) {
    let mut stream = Stream::new(derive(5, 0));
    let mut skewed = || (NUM_NODES as f64 * stream.next_f64().powi(3)) as usize * 7 % NUM_NODES;
    let mut edges: Vec<_> = (0..60_000).map(|_| (skewed(), skewed())).collect();
    edges.sort_unstable();
    let end = |node: usize| edges.partition_point(|&(target, _)| target < node) as i64;
    let sources = edges.iter().map(|&(_, source)| I::from_index(source)).collect();
    ((0..=NUM_NODES).map(end).collect(), sources)
}

/// The in-edges of each node in consecutive groups of about equal size.
struct Groups {
    indptr: Vec<i64>,
    codes: Vec<i64>,
    starts: Vec<i64>,
    num_relations: usize,
}

impl Groups {
    fn of(indptr: &[i64], num_relations: usize) -> Self {
        let (mut offsets, mut codes, mut starts) = (vec![0], Vec::new(), Vec::new());
        for (node, row) in indptr.windows(2).enumerate() {
            let (begin, count) = (row[0], row[1] - row[0]);
            for relation in 0..num_relations as i64 {
                let at = |relation| begin + count * relation / num_relations as i64;
                if at(relation) < at(relation + 1) {
                    codes.push(node as i64 * num_relations as i64 + relation);
                    starts.push(at(relation));
                }
            }
            offsets.push(codes.len() as i64);
        }
        starts.push(indptr[indptr.len() - 1]);
        Self {
            indptr: offsets,
            codes,
            starts,
            num_relations,
        }
    }

    fn relations(&self) -> Relations<'_> {
        Relations {
            indptr: &self.indptr,
            codes: &self.codes,
            starts: &self.starts,
            order: None,
            fanouts: &[4, 0, -1, 3, 2, 1, 2, 2, 2][..3 * self.num_relations],
            num_relations: self.num_relations,
            num_ids: NUM_NODES,
        }
    }
}

fn sampler(kind: Kind, redraw: bool) -> Sampler {
    Sampler {
        kind,
        // The largest first hop has enough draws for 16 threads.
        fanouts: [20, 8, 7].map(Fanout::Most).to_vec(),
        redraw,
        importance: Some(Importance::Sum),
    }
}

/// Checks batches of a few seeds, with few draws in the first hops, and of many.
fn each_batch<I: Id>(mut check: impl FnMut(&Sampler, &View<'_, I>, &[I])) {
    let (indptr, indices) = skewed::<I>();
    let weight: Vec<f32> = (0..indices.len()).map(|edge| (edge % 5) as f32).collect();
    let cluster: Vec<i64> = (0..NUM_NODES as i64).map(|node| node % 4).collect();
    let rows: Vec<f32> = (0..NUM_NODES * 11).map(|at| (at * at % 13) as f32 - 4.0).collect();
    let extra = Extra {
        weight: Some(Floats::F32(&weight)),
        cluster: Some(&cluster),
        ..Extra::default()
    };
    let graph = View::new(&indptr, &indices, NUM_NODES).unwrap().with(extra).unwrap();
    let preference = Preference::new(0.1, 8).unwrap();
    let similarity = Some(Similarity::new(Floats::F32(&rows), 11, preference));
    let compared = graph.with(Extra { similarity, ..extra }).unwrap();
    let cases = KINDS.iter().map(|kind| (*kind, graph));
    let groups = Groups::of(&indptr, 3);
    let typed = graph
        .with(Extra {
            cluster: None,
            relations: Some(groups.relations()),
            ..extra
        })
        .unwrap();
    let of_relations = KINDS
        .iter()
        .filter(|kind| !matches!(kind, Kind::MetropolisHastings(_) | Kind::Cluster));
    let of_relations = of_relations.map(|kind| (*kind, typed));
    for (kind, graph) in cases.chain([(WALKS, compared)]).chain(of_relations) {
        for (num_seeds, redraw) in [(40, false), (300, true), (2000, false)] {
            let seeds: Vec<I> = (0..num_seeds)
                .map(|seed| I::from_index(seed * 11 % NUM_NODES))
                .collect();
            check(&sampler(kind, redraw), &graph, &seeds);
        }
    }
}

fn batches_do_not_depend_on_threads<I: Id>() {
    let (mut one, mut many) = (Scratch::default(), Scratch::default());
    each_batch::<I>(|sampler, graph, seeds| {
        let batch = sampler.sample(graph, seeds, 3, &mut one).unwrap();
        let hop = sampler.draw(graph, &batch.nodes, 1, 3, &mut one).unwrap();
        for threads in [2, 3, 8, 16] {
            let many = many.on_threads(threads);
            let case = format!("{sampler:?}, {} seeds, {threads} threads", seeds.len());
            assert!(sampler.sample(graph, seeds, 3, many).unwrap() == batch, "{case}");
            assert!(sampler.draw(graph, &batch.nodes, 1, 3, many).unwrap() == hop, "{case}");
        }
    });
}

#[test]
fn batches_of_int32_do_not_depend_on_threads() {
    batches_do_not_depend_on_threads::<i32>();
}

#[test]
fn batches_of_int64_do_not_depend_on_threads() {
    batches_do_not_depend_on_threads::<i64>();
}

#[test]
fn one_tree_is_a_batch_without_trees_and_has_the_table_of_large_graphs() {
    let mut scratch = Scratch::default();
    each_batch::<i32>(|sampler, graph, seeds| {
        let one = sampler.sample(graph, seeds, 3, &mut scratch).unwrap();
        for threads in [1, 2, 5] {
            let trees = vec![0; seeds.len()];
            let grown = in_trees(sampler, graph, seeds, &trees, &[0], None, scratch.on_threads(threads)).unwrap();
            assert_eq!((&grown.nodes[0].nodes, &grown.nodes[0].known), (&one.nodes, &one.known));
            assert!(grown.nodes[0].trees.iter().all(|&tree| tree == 0));
            let edges = &grown.edges[0];
            assert!((&edges.indptr, &edges.sources, &edges.weight) == (&one.indptr, &one.indices, &one.weight));
        }
        scratch.on_threads(1);
    });
}

#[test]
fn trees_draw_as_batches_of_their_own_and_see_no_later_edge() {
    let (indptr, indices) = skewed::<i32>();
    let at = |edge: i64| if edge % 9 == 0 { i64::MIN } else { edge * 7 % 100 };
    let mut times: Vec<i64> = (0..indices.len() as i64).map(at).collect();
    for row in indptr.windows(2) {
        times[row[0] as usize..row[1] as usize].sort_unstable();
    }
    for (latest, window) in [(false, None), (true, None), (false, Some(20)), (true, Some(20))] {
        let extra = Extra {
            times: Some(&times),
            window,
            latest,
            ..Extra::default()
        };
        let graph = View::new(&indptr, &indices, NUM_NODES).unwrap().with(extra).unwrap();
        let sampler = sampler(Kind::Neighbor { replace: false }, false);
        let seeds: Vec<i32> = (0..600).map(|seed| seed * 11 % 500).collect();
        let trees: Vec<u32> = (0..600).collect();
        let keys: Vec<i64> = (0..600).map(|tree| tree * 31 % 17).collect();
        let bounds: Vec<i64> = (0..600).map(|tree| tree % 110 - 5).collect();
        let mut scratch = Scratch::default();
        let grown = in_trees(&sampler, &graph, &seeds, &trees, &keys, Some(&bounds), &mut scratch).unwrap();
        for threads in [2, 5] {
            let many = scratch.on_threads(threads);
            let other = in_trees(&sampler, &graph, &seeds, &trees, &keys, Some(&bounds), many).unwrap();
            assert!(other == grown);
        }
        let (nodes, edges) = (&grown.nodes[0], &grown.edges[0]);
        for row in 0..edges.indptr.len() - 1 {
            for edge in edges.indptr[row] as usize..edges.indptr[row + 1] as usize {
                let tree = nodes.trees[row];
                assert_eq!(nodes.trees[edges.sources[edge] as usize], tree);
                let (time, bound) = (times[edges.edge_ids[edge] as usize], bounds[tree as usize]);
                let since = window.map_or(i64::MIN, |window| bound - window);
                assert!(time <= bound && (time > since || time == i64::MIN));
            }
        }
        for tree in [0, 7, 333] {
            let (keys, bounds) = (&keys[tree..=tree], &bounds[tree..=tree]);
            let alone = in_trees(
                &sampler,
                &graph,
                &seeds[tree..=tree],
                &[0],
                keys,
                Some(bounds),
                &mut scratch,
            )
            .unwrap();
            let rows = (0..nodes.nodes.len()).filter(|&row| nodes.trees[row] as usize == tree);
            let together: Vec<i32> = rows.map(|row| nodes.nodes[row]).collect();
            assert_eq!(*alone.nodes[0].nodes, together);
        }
    }
}

#[test]
fn laws_that_do_not_draw_by_time_are_named() {
    let (indptr, indices) = skewed::<i32>();
    let times = vec![0; indices.len()];
    let extra = Extra {
        times: Some(&times),
        ..Extra::default()
    };
    let graph = View::new(&indptr, &indices, NUM_NODES).unwrap().with(extra).unwrap();
    for kind in [Kind::Balanced, Kind::Labor, WALKS, Kind::Cluster] {
        let error = sampler(kind, false).sample(&graph, &[3], 3, &mut Scratch::default());
        let text = error.unwrap_err().to_string();
        assert!(
            text.ends_with("does not draw by time: use neighbor or weighted"),
            "{text}"
        );
    }
}

/// Samples a batch of one type, with seeds in `trees`.
fn in_trees<I: Id>(
    sampler: &Sampler,
    graph: &View<'_, I>,
    seeds: &[I],
    trees: &[u32],
    keys: &[i64],
    bounds: Option<&[i64]>,
    scratch: &mut Scratch,
) -> Result<Subgraph<I>, Error> {
    let edge_type = EdgeType {
        sampler,
        graph: *graph,
        source: 0,
        destination: 0,
        key: 3,
    };
    let seeds = Seeds {
        nodes: seeds,
        trees,
        num_nodes: NUM_NODES,
    };
    let request = Request {
        num_hops: sampler.fanouts.len(),
        edge_types: &[edge_type],
        seeds: &[seeds],
        trees: Some(Trees {
            keys,
            bounds,
            paths: None,
        }),
        repeat: false,
        induced: false,
        most_draws: usize::MAX,
    };
    request.grow(scratch)
}

#[test]
fn errors_do_not_depend_on_threads() {
    let (indptr, mut indices) = skewed::<i32>();
    let seeds: Vec<i32> = (0..2000).collect();
    let (mut one, mut many) = (Scratch::default(), Scratch::default());
    let sampler = sampler(Kind::Neighbor { replace: false }, false);
    for at in [59_000, 30_000, 7] {
        indices[at..at + 900].fill(-1);
        let graph = View::new(&indptr, &indices, NUM_NODES).unwrap();
        let error = sampler.sample(&graph, &seeds, 3, &mut one).unwrap_err();
        let on_many = sampler.sample(&graph, &seeds, 3, many.on_threads(4)).unwrap_err();
        assert_eq!(on_many.to_string(), error.to_string());
    }
}

#[test]
fn a_single_relation_draws_as_a_graph_without_relations() {
    let (indptr, indices) = skewed::<i32>();
    let graph = View::new(&indptr, &indices, NUM_NODES).unwrap();
    let groups = Groups::of(&indptr, 1);
    let fanouts = [20, 8, 7];
    let relations = Relations {
        fanouts: &fanouts,
        ..groups.relations()
    };
    let typed = graph
        .with(Extra {
            relations: Some(relations),
            ..Extra::default()
        })
        .unwrap();
    let seeds: Vec<i32> = (0..400).collect();
    let mut scratch = Scratch::default();
    let by_node = KINDS
        .into_iter()
        .filter(|kind| !matches!(kind, Kind::MetropolisHastings(_) | Kind::Cluster | Kind::Balanced));
    for kind in by_node {
        let sampler = sampler(kind, false);
        let batch = sampler.sample(&graph, &seeds, 3, &mut scratch).unwrap();
        let mut by_relation = sampler.sample(&typed, &seeds, 3, &mut scratch).unwrap();
        assert!(by_relation.relation.take().unwrap().iter().all(|&number| number == 0));
        assert!(by_relation == batch, "{kind:?}");
    }
}

#[test]
fn rows_of_a_relation_draw_at_most_its_fanout() {
    let (indptr, indices) = skewed::<i32>();
    let groups = Groups::of(&indptr, 3);
    let extra = Extra {
        relations: Some(groups.relations()),
        ..Extra::default()
    };
    let graph = View::new(&indptr, &indices, NUM_NODES).unwrap().with(extra).unwrap();
    let nodes: Vec<i32> = (0..NUM_NODES as i32).collect();
    let sampler = sampler(Kind::Neighbor { replace: false }, false);
    let hop = sampler.draw(&graph, &nodes, 0, 3, &mut Scratch::default()).unwrap();
    for node in 0..NUM_NODES {
        let drawn = &hop.edge_ids[hop.indptr[node] as usize..hop.indptr[node + 1] as usize];
        for group in groups.indptr[node] as usize..groups.indptr[node + 1] as usize {
            let edges = groups.starts[group]..groups.starts[group + 1];
            let count = drawn.iter().filter(|edge| edges.contains(edge)).count() as i64;
            let most = [4, 0, i64::MAX][groups.codes[group] as usize % 3];
            assert_eq!(count, (edges.end - edges.start).min(most));
        }
    }
}

#[test]
fn edges_drawn_by_relation_have_its_number_and_their_ids() {
    let (indptr, indices) = skewed::<i32>();
    let groups = Groups::of(&indptr, 3);
    let order: Vec<i64> = (0..indices.len() as i64).rev().collect();
    let with = |order| {
        let relations = Relations {
            order,
            ..groups.relations()
        };
        let extra = Extra {
            relations: Some(relations),
            ..Extra::default()
        };
        View::new(&indptr, &indices, NUM_NODES).unwrap().with(extra)
    };
    let (graph, ordered) = (with(None).unwrap(), with(Some(&order)).unwrap());
    let seeds: Vec<i32> = (0..2000).collect();
    let sampler = sampler(Kind::Neighbor { replace: false }, false);
    let batch = sampler.sample(&graph, &seeds, 3, &mut Scratch::default()).unwrap();
    for threads in [1, 4] {
        let mut scratch = Scratch::default();
        let mut other = sampler
            .sample(&ordered, &seeds, 3, scratch.on_threads(threads))
            .unwrap();
        other.edge_ids.iter_mut().for_each(|id| *id = order[*id as usize]);
        assert!(other == batch);
    }
    for (&edge, &relation) in batch.edge_ids.iter().zip(batch.relation.as_ref().unwrap().iter()) {
        let group = groups.starts.partition_point(|&start| start <= edge) - 1;
        assert_eq!(groups.codes[group] % 3, i64::from(relation));
    }
    let error = with(Some(&order[1..])).unwrap_err().to_string();
    assert!(error.starts_with("relations.order has "), "{error}");
}
