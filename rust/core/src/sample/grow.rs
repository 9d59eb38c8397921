//! The hops of a batch: nodes of one type or several draw, and the nodes that they find
//! draw in the next hop.

use super::batch::{Batch, Nodes, Sizes, Subgraph};
use super::crew::Crew;
use super::edges::{BLOCK, Edges};
use super::expand::Expand;
use super::law::Most;
use super::numbering::{check_distinct, number_seeds};
use super::paths::{PathTrees, Trees};
use super::sampler::{Fanout, Sampler, Scratch};
use super::table::{DENSE_NODES, Dense, DenseBatch, Hashed, Table};
use crate::Error;
use crate::csc::{Id, check_ids};
use crate::error::check_length;
use crate::memory::List;
use crate::read::load;
use crate::view::View;

/// The edges of one type, and the rule by which nodes draw them.
#[derive(Debug, Clone, Copy)]
pub struct EdgeType<'a, I> {
    /// The rule. All types of a batch have the same number of fanouts.
    pub sampler: &'a Sampler,
    /// The edges. Its rows are all nodes of the destination type.
    pub graph: View<'a, I>,
    /// Number of the node type of the sources.
    pub source: usize,
    /// Number of the node type of the destinations.
    pub destination: usize,
    /// Keys the draws.
    pub key: u64,
}

/// The seeds of one node type.
#[derive(Debug, Clone, Copy)]
pub struct Seeds<'a, I> {
    /// [num_seeds] global ids.
    pub nodes: &'a [I],
    /// [num_seeds] tree of each seed, empty if there is one tree. A tree has a time bound and
    /// a random key, and a node in two trees is two rows of the batch.
    pub trees: &'a [u32],
    /// Number of nodes of the type.
    pub num_nodes: usize,
}

/// What a batch is made of.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a, I> {
    /// Number of hops, at most the number of fanouts.
    pub num_hops: usize,
    /// In each hop, types draw in this order.
    pub edge_types: &'a [EdgeType<'a, I>],
    /// [num_node_types]
    pub seeds: &'a [Seeds<'a, I>],
    /// `None`: all nodes are of one tree.
    pub trees: Option<Trees<'a>>,
    /// Whether seeds of a tree may repeat. Then they draw independently.
    pub repeat: bool,
    /// Whether to return all visible edges among the nodes instead of the drawn ones.
    pub induced: bool,
    /// The most draws with replacement of one type in a hop.
    pub most_draws: usize,
}

/// The table of one node type.
enum AnyTable<'a> {
    Dense(DenseBatch<'a>),
    Hashed(&'a mut Hashed),
}

/// Runs the body with the table, whichever it is.
macro_rules! with_table {
    ($any:expr, $table:ident => $body:expr) => {
        match $any {
            AnyTable::Dense($table) => $body,
            AnyTable::Hashed($table) => {
                let $table = &mut **$table;
                $body
            }
        }
    };
}

/// One node type of a batch that grows.
struct Known<'a, I: Id> {
    nodes: Nodes<I>,
    table: AnyTable<'a>,
    repeats: Vec<usize>, // positions of seeds that repeat
}

impl Sampler {
    /// All hops of `seeds`, which must be distinct.
    pub fn sample<I: Id>(
        &self,
        graph: &View<'_, I>,
        seeds: &[I],
        key: u64,
        scratch: &mut Scratch,
    ) -> Result<Batch<I>, Error> {
        graph.check_square()?;
        let edge_type = EdgeType {
            sampler: self,
            graph: graph.without_row_values()?, // they index the rows of one hop, which a batch does not know in advance
            source: 0,
            destination: 0,
            key,
        };
        let request = Request {
            num_hops: self.fanouts.len(),
            edge_types: &[edge_type],
            seeds: &[Seeds {
                nodes: seeds,
                trees: &[],
                num_nodes: graph.num_nodes(),
            }],
            trees: None,
            repeat: false,
            induced: false,
            most_draws: usize::MAX,
        };
        let grown = request.grow(scratch)?;
        let [nodes] = <[_; 1]>::try_from(grown.nodes).expect("there is one type");
        let [edges] = <[_; 1]>::try_from(grown.edges).expect("there is one type");
        Ok(Batch {
            nodes: nodes.nodes,
            known: nodes.known,
            indptr: edges.indptr,
            indices: edges.sources,
            edge_ids: edges.edge_ids,
            weight: edges.weight,
            relation: edges.relation,
        })
    }
}

impl<'a, I: Id> Request<'a, I> {
    /// Draws all hops.
    pub fn grow(&self, scratch: &mut Scratch) -> Result<Subgraph<I>, Error> {
        self.check()?;
        let num_types = self.seeds.len().max(self.edge_types.len());
        let Scratch { tables, crew } = scratch;
        crew.sizes.resize(num_types, Sizes::default());
        tables.resize_with(tables.len().max(num_types), Default::default);
        crew.run(|crew| {
            let mut known = Vec::with_capacity(self.seeds.len());
            for (seeds, (tables, sizes)) in self.seeds.iter().zip(tables.iter_mut().zip(&crew.sizes)) {
                known.push(Known::new(self, seeds, tables, *sizes)?);
            }
            let mut paths = self.trees.and_then(|trees| Some(PathTrees::new(&trees, &trees.paths?)));
            let types = self.edge_types.iter().zip(&crew.sizes);
            let new = |(of, sizes): (&EdgeType<'_, I>, &Sizes)| {
                let graph = of.graph.for_paths(paths.is_some());
                Edges::new(&graph, of.sampler.importance, *sizes)
            };
            let mut edges: Vec<_> = types.map(new).collect();
            for hop in 0..self.num_hops {
                for (of, edges) in self.edge_types.iter().zip(&mut edges) {
                    self.expand(of, hop, &mut known, edges, crew, paths.as_mut())?;
                }
                for of in &mut known {
                    of.nodes.known.push(of.nodes.nodes.len());
                }
            }
            if self.trees.is_some() {
                for of in &mut known {
                    of.nodes.trees.resize(of.nodes.nodes.len(), 0); // one tree is not written row by row
                }
            }
            let (nodes, mut tables): (Vec<_>, Vec<_>) = known.into_iter().map(|of| (of.nodes, of.table)).unzip();
            if self.induced {
                for (of, table) in nodes.iter().zip(&mut tables) {
                    with_table!(table, table => table.mark(&of.nodes));
                }
                let types = self.edge_types.iter().zip(&crew.sizes);
                let among = |(of, &sizes): (&EdgeType<'_, I>, _)| self.among(of, &nodes, &mut tables[of.source], sizes);
                edges = types.map(among).collect::<Result<_, _>>()?;
            }
            let edges: Vec<_> = edges.into_iter().map(Edges::into_hop).collect();
            for (at, sizes) in crew.sizes.iter_mut().enumerate() {
                *sizes = Sizes::after(nodes.get(at), edges.get(at));
            }
            let tree_times = paths.map(|paths| paths.times).unwrap_or_default();
            Ok(Subgraph {
                nodes,
                edges,
                tree_times,
            })
        })
    }

    /// Checks the shapes and ids that the hops rely on.
    fn check(&self) -> Result<(), Error> {
        let num_trees = self.trees.map_or(0, |trees| trees.keys.len());
        if let Some(Trees {
            bounds: Some(bounds), ..
        }) = self.trees
        {
            check_length("bounds", bounds.len(), num_trees)?;
        }
        let paths = self.trees.and_then(|trees| trees.paths);
        check_length("times", paths.map_or(num_trees, |paths| paths.times.len()), num_trees)?;
        let most_trees = if paths.is_some() { u32::MAX as usize } else { num_trees };
        for seeds in self.seeds {
            check_length("trees", seeds.trees.len(), self.trees.map_or(0, |_| seeds.nodes.len()))?;
            let trees: Vec<i64> = seeds.trees.iter().map(|&tree| i64::from(tree)).collect();
            check_ids("trees", &trees, num_trees, "trees")?;
            if seeds.num_nodes.checked_mul(most_trees).is_none() {
                return Err(Error::TooLarge {
                    name: "number of trees",
                    value: most_trees,
                });
            }
        }
        for of in self.edge_types {
            let num_hops = of.sampler.fanouts.len();
            if self.num_hops > num_hops {
                let hop = self.num_hops - 1;
                return Err(Error::Hop { hop, num_hops });
            }
            check_length(
                "indptr",
                of.graph.num_nodes() + 1,
                self.seeds[of.destination].num_nodes + 1,
            )?;
            check_length("num_sources", of.graph.num_sources(), self.seeds[of.source].num_nodes)?;
        }
        Ok(())
    }

    /// Draws one hop of one type.
    fn expand(
        &self,
        of: &EdgeType<'_, I>,
        hop: usize,
        known: &mut [Known<'_, I>],
        edges: &mut Edges<I>,
        crew: &mut Crew,
        paths: Option<&mut PathTrees>,
    ) -> Result<(), Error> {
        let EdgeType { sampler, graph, .. } = of;
        let drawing = &known[of.destination];
        let first = match sampler.redraw || hop == 0 {
            true => 0,
            false => drawing.nodes.known[hop - 1],
        };
        // Copied, because the list of nodes grows during the draws.
        let rows = drawing.nodes.nodes[first..drawing.nodes.known[hop]].to_vec();
        let trees = match self.trees {
            Some(trees) if !trees.are_one() => drawing.nodes.trees[first..drawing.nodes.known[hop]].to_vec(),
            _ => Vec::new(),
        };
        let all = match (&paths, self.trees) {
            (Some(paths), _) => Some((&paths.keys[..], Some(&paths.bounds[..]))),
            (None, trees) => trees.map(|trees| (trees.keys, trees.bounds)),
        };
        let repeats = if first == 0 { &drawing.repeats[..] } else { &[] };
        let keys = keys_of(graph, all.map(|(keys, _)| keys), &rows, &trees, repeats);
        let bounds = all
            .and_then(|(_, bounds)| bounds)
            .map(|bounds| bounds_of(bounds, &trees, rows.len()));
        let fanouts = sampler.by_relation(graph, hop)?;
        self.check_draws(sampler, sampler.fanouts[hop], rows.len())?;
        let graph = graph.for_hop(&fanouts).for_paths(paths.is_some());
        let graph = graph.for_rows(keys.as_deref(), bounds.as_deref());
        let Known { nodes, table, .. } = &mut known[of.source];
        let num_draws = sampler.num_draws(hop, rows.len());
        with_table!(table, table => {
            let task = Expand {
                graph: &graph,
                rows: &rows,
                trees: &trees,
                num_draws,
                crew,
                edges,
                known: nodes,
                table,
                paths,
            };
            sampler.with_law(&graph, self.seeds[of.destination].nodes, hop, of.key, Most(&fanouts), task)
        })
    }

    /// Checks that draws which no degree bounds fit into memory.
    fn check_draws(&self, sampler: &Sampler, fanout: Fanout, num_rows: usize) -> Result<(), Error> {
        match fanout {
            Fanout::Most(fanout) if sampler.kind.repeats() && fanout.saturating_mul(num_rows) > self.most_draws => {
                Err(Error::Draws { fanout, num_rows })
            }
            _ => Ok(()),
        }
    }

    /// All edges of one type among known nodes that their destinations see.
    fn among(
        &self,
        of: &EdgeType<'_, I>,
        known: &[Nodes<I>],
        table: &mut AnyTable<'_>,
        sizes: Sizes,
    ) -> Result<Edges<I>, Error> {
        let mut edges = Edges::new(&of.graph, None, sizes);
        let Nodes { nodes, trees, .. } = &known[of.destination];
        let bounds = self.trees.and_then(|trees| trees.bounds);
        let bounds = bounds.map(|bounds| bounds_of(bounds, trees, nodes.len()));
        let graph = of.graph.for_rows(None, bounds.as_deref());
        with_table!(table, table => add_among(&graph, nodes, trees, table, &mut edges)?);
        Ok(edges)
    }
}

/// Appends the edges of `nodes` from nodes that `table` has. Reads all edges that the rows
/// of `graph` see.
fn add_among<I: Id>(
    graph: &View<'_, I>,
    nodes: &[I],
    trees: &[u32],
    table: &mut impl Table,
    edges: &mut Edges<I>,
) -> Result<(), Error> {
    for (at, node) in nodes.iter().enumerate() {
        if let Some(ahead) = nodes.get(at + 4 * BLOCK) {
            graph.prefetch_node(ahead.index());
        }
        if let Some(ahead) = nodes.get(at + 2 * BLOCK) {
            graph.prefetch_edges(ahead.index());
        }
        let seen = graph.visible(at, 0, graph.edges(node.index())?);
        let row = seen.start + seen.gap..seen.start + seen.gap + seen.degree;
        table.enter(trees.get(at).copied().unwrap_or_default());
        table.prefetch_seeks(graph.indices()[row.clone()].iter().map(|source| load(source).index()));
        let (first, mut count) = (edges.edge_ids.len(), 0);
        edges.sources.reserve(row.len());
        edges.edge_ids.reserve(row.len());
        let (sources, edge_ids) = (
            &mut edges.sources.spare_capacity_mut()[..row.len()],
            &mut edges.edge_ids.spare_capacity_mut()[..row.len()],
        );
        for edge in row {
            let (is_known, found) = table.seek(graph.source(edge)?);
            // Written whether or not the source is known: nothing predicts which.
            sources[count].write(I::from_index(found));
            edge_ids[count].write(edge as i64);
            count += usize::from(is_known);
        }
        // SAFETY: the first `count` spare entries of both were written above.
        unsafe {
            edges.sources.set_len(first + count);
            edges.edge_ids.set_len(first + count);
        }
        edges.indptr.push((first + count) as i64);
    }
    table.settle(&mut edges.sources);
    Ok(())
}

/// Random keys of rows, or `None` if their global ids are the keys.
fn keys_of<I: Id>(
    graph: &View<'_, I>,
    of_trees: Option<&[i64]>,
    rows: &[I],
    trees: &[u32],
    repeats: &[usize],
) -> Option<Vec<i64>> {
    let num_nodes = graph.num_nodes() as i64;
    let ids = rows.iter().map(|row| graph.row_id(row.index()) as i64);
    if let Some(keys) = of_trees {
        let of_tree = |tree: usize| load(&keys[tree]).wrapping_mul(num_nodes);
        return Some(match trees.is_empty() && keys.len() == 1 {
            true => {
                let key = of_tree(0);
                ids.map(|id| key.wrapping_add(id)).collect()
            }
            false => ids
                .zip(trees)
                .map(|(id, &tree)| of_tree(tree as usize).wrapping_add(id))
                .collect(),
        });
    }
    let mut keys: Vec<i64> = if repeats.is_empty() { return None } else { ids.collect() };
    repeats.iter().for_each(|&at| keys[at] = num_nodes + at as i64);
    Some(keys)
}

/// The latest time that each row sees.
fn bounds_of(bounds: &[i64], trees: &[u32], num_rows: usize) -> Vec<i64> {
    match bounds {
        [bound] => vec![load(bound); num_rows],
        bounds => trees.iter().map(|&tree| load(&bounds[tree as usize])).collect(),
    }
}

impl<'a, I: Id> Known<'a, I> {
    /// Numbers the seeds.
    fn new(
        of: &Request<'_, I>,
        seeds: &Seeds<'_, I>,
        (dense, hashed): &'a mut (Dense, Hashed),
        sizes: Sizes,
    ) -> Result<Self, Error> {
        let is_one_tree = of.trees.is_none_or(|trees| trees.are_one());
        let is_dense = is_one_tree && seeds.num_nodes.max(seeds.nodes.len()) <= DENSE_NODES;
        let mut table = match is_dense {
            true => AnyTable::Dense(dense.start(seeds.num_nodes)),
            false => AnyTable::Hashed(hashed.start(seeds.num_nodes)),
        };
        let repeats = with_table!(&mut table, table => number_seeds(seeds.nodes, seeds.trees, seeds.num_nodes, table)?);
        if !of.repeat {
            check_distinct(seeds.nodes, &repeats)?;
        }
        let mut nodes = List::with_capacity(sizes.nodes.max(seeds.nodes.len()));
        nodes.extend_from_slice(seeds.nodes);
        let nodes = Nodes {
            known: vec![nodes.len()],
            nodes,
            trees: seeds.trees.to_vec(),
        };
        Ok(Self { nodes, table, repeats })
    }
}
