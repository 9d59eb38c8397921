//! Sampled neighbourhoods: seeds in, blocks out, the same bits on any number of
//! threads.
//!
//! Every draw is a hash of its purpose (see [`crate::rng`]): the key of the batch, the
//! node that draws and the number of the draw.
//!
//! The files build on each other in this order, and no file imports a later one:
//!
//! 1. `batch` holds the results, `table` finds local ids, `numbering` numbers nodes for
//!    samplers in Python, and `floyd` draws distinct numbers.
//! 2. `law` says what a law is. `uniform`, `weighted`, `labor`, `cluster` and `visits`
//!    are laws, and `balanced` is one that draws as `uniform` does.
//! 3. `edges` draws rows by a law, `crew` does so on several threads, and `expand`
//!    numbers the nodes that a hop finds.
//! 4. This file chooses the law, and `grow` runs the hops of a batch.

mod balanced;
mod batch;
mod cluster;
mod crew;
mod edges;
mod expand;
mod floyd;
mod grow;
mod labor;
mod law;
mod numbering;
mod table;
#[cfg(test)]
mod tests;
mod uniform;
mod visits;
mod weighted;

use balanced::Balanced;
pub use balanced::water_fill;
use batch::Sizes;
pub use batch::{Batch, Hop, Nodes, Subgraph};
use cluster::WithinClusters;
use crew::Crew;
pub use edges::Importance;
use edges::{Draw, Edges};
use expand::{DrawInto, Task};
pub use grow::{EdgeType, Request, Seeds, Trees};
use labor::Labor;
use law::Most;
pub use numbering::Numbering;
pub use table::DENSE_NODES;
use table::{Dense, Hashed};
use uniform::{Equal, Uniform, UniformWithReplacement};
use visits::MostVisited;
use weighted::{Weighted, WeightedWithReplacement};

use crate::csc::{Id, check_ids};
use crate::rng::derive;
use crate::view::View;
use crate::walk::Walks;
use crate::{Error, pool};

/// The most edges that a row counts for when the work of a hop is divided. Rows with
/// more draws are few.
const TYPICAL_FANOUT: usize = 32;

/// The most hops of a batch.
pub const MAX_HOPS: usize = 1 << 10;

/// The largest fanout with replacement: such a fanout is not bounded by the degree.
const MAX_REPLACED: i64 = 1 << 20;

/// The number of in-edges that a node draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fanout {
    /// All of them.
    All,
    /// At most this number.
    Most(usize),
}

impl Fanout {
    /// From the number that users write, where -1 means all.
    pub fn new(hop: usize, fanout: i64) -> Result<Self, Error> {
        match fanout {
            -1 => Ok(Self::All),
            0.. => Ok(Self::Most(fanout as usize)),
            _ => Err(Error::Fanout { hop, fanout }),
        }
    }

    fn most(self) -> usize {
        match self {
            Self::All => usize::MAX,
            Self::Most(count) => count,
        }
    }
}

/// The law by which the nodes of a batch draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Every in-edge equally likely.
    Neighbor {
        /// Whether draws are independent. Then an edge may come twice, and a node with
        /// in-edges always draws the whole fanout.
        replace: bool,
    },
    /// Every in-edge equally likely, and exactly the fanout for every node with
    /// in-edges: an edge comes again only where a node has fewer than the fanout.
    Equal,
    /// In proportion to [`Extra::weight`] times [`Extra::wanted`] of the source.
    Weighted {
        /// As for `Neighbor`.
        replace: bool,
    },
    /// Every in-edge equally likely, in numbers per node as equal as degrees allow.
    /// Together the nodes of a hop draw the fanout times their number. The draws of a
    /// node depend on all these nodes.
    Balanced,
    /// Edges kept with probability fanout / degree by one number per source and hop, so
    /// that nodes share sources.
    Labor,
    /// The nodes that random walks visit most, towards [`Extra::wanted`] or towards
    /// nodes like the start ([`Extra::similarity`]). Every edge must have its reverse.
    MetropolisHastings(Walks),
    /// All edges between the clusters ([`Extra::cluster`]) of the seeds. Fanouts are
    /// not read.
    Cluster,
}

impl Kind {
    /// Whether an edge may come several times, so that the degree does not bound draws.
    fn repeats(self) -> bool {
        matches!(
            self,
            Self::Neighbor { replace: true } | Self::Weighted { replace: true } | Self::Equal
        )
    }
}

fn too_many(value: usize) -> Error {
    Error::Count {
        name: "fanout with replacement",
        value,
        low: 0,
        high: MAX_REPLACED as usize,
    }
}

/// The rule by which a batch is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    /// The law of the draws.
    pub kind: Kind,
    /// [num_hops] from the seeds outward.
    pub fanouts: Vec<Fanout>,
    /// `false`: a node draws once, when it is first found, and every layer uses the
    /// same draws. `true`: all nodes found so far draw anew at every hop, as in DGL.
    pub redraw: bool,
    /// Importance weights to return.
    pub importance: Option<Importance>,
}

/// Memory that batches reuse, and the number of threads that make a batch. One batch at
/// a time uses a scratch. Neither ever reaches a result.
#[derive(Debug, Default)]
pub struct Scratch {
    tables: Vec<(Dense, Hashed)>, // [num_node_types]
    crew: Crew,
}

impl Scratch {
    /// The same memory, for batches that `threads` threads make together. The default
    /// is 1.
    pub fn on_threads(&mut self, threads: usize) -> &mut Self {
        self.crew.threads = threads.clamp(1, pool::MOST_THREADS);
        self
    }
}

impl Sampler {
    /// A sampler with `fanouts` as users write them: -1 means all neighbours.
    pub fn new(kind: Kind, fanouts: &[i64], redraw: bool, importance: Option<Importance>) -> Result<Self, Error> {
        let num_hops = fanouts.len();
        if !(1..=MAX_HOPS).contains(&num_hops) {
            return Err(Error::Count {
                name: "number of fanouts",
                value: num_hops,
                low: 1,
                high: MAX_HOPS,
            });
        }
        let most = if kind.repeats() { MAX_REPLACED } else { i64::MAX };
        if let Some(hop) = fanouts.iter().position(|&fanout| fanout > most) {
            return Err(too_many(fanouts[hop] as usize));
        }
        let fanouts = fanouts.iter().enumerate();
        Ok(Self {
            kind,
            fanouts: fanouts
                .map(|(hop, &fanout)| Fanout::new(hop, fanout))
                .collect::<Result<_, _>>()?,
            redraw,
            importance,
        })
    }

    /// One hop of `nodes`, which may repeat. Hop 0 is the seeds' own.
    pub fn draw<I: Id>(
        &self,
        graph: &View<'_, I>,
        nodes: &[I],
        hop: usize,
        key: u64,
        scratch: &mut Scratch,
    ) -> Result<Hop<I>, Error> {
        check_ids("nodes", nodes, graph.num_nodes(), "nodes")?;
        graph.extra().check_rows(nodes.len())?;
        let num_hops = self.fanouts.len();
        if hop >= num_hops {
            return Err(Error::Hop { hop, num_hops });
        }
        let fanouts = self.by_relation(graph, hop)?;
        let graph = &graph.for_hop(&fanouts);
        scratch.crew.run(|crew| {
            let mut edges = Edges::new(graph, self.importance, Sizes::default());
            let task = DrawInto {
                draw: Draw {
                    graph,
                    nodes,
                    num_draws: self.num_draws(hop, nodes.len()),
                    importance: self.importance,
                },
                crew,
                edges: &mut edges,
            };
            self.with_law(graph, nodes, hop, key, Most(&fanouts), task)?;
            Ok(edges.into_hop())
        })
    }

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
            graph: graph.without_row_values()?, // only a draw knows its rows in advance
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

    /// About how many edges `num_rows` rows draw.
    fn num_draws(&self, hop: usize, num_rows: usize) -> usize {
        num_rows * self.fanouts[hop].most().min(TYPICAL_FANOUT)
    }

    /// Runs `task` under the law of `hop` in a batch of `seeds`.
    fn with_law<I: Id>(
        &self,
        graph: &View<'_, I>,
        seeds: &[I],
        hop: usize,
        key: u64,
        most: Most<'_>,
        task: impl Task<I>,
    ) -> Result<(), Error> {
        let of_hop = derive(key, hop as u64);
        let key = if self.redraw { of_hop } else { key };
        match self.kind {
            Kind::Neighbor { replace: true } => task.run(&UniformWithReplacement { key, most }),
            Kind::Neighbor { replace: false } => task.run(&Uniform { key, most }),
            Kind::Equal => task.run(&Equal { key, most }),
            Kind::Weighted { replace: true } => task.run(&WeightedWithReplacement { graph, key, most }),
            Kind::Weighted { replace: false } => task.run(&Weighted { graph, key, most }),
            Kind::Balanced => {
                let law = Balanced::new(graph, task.nodes(), key, most)?;
                task.run(&law)
            }
            Kind::Labor => task.run(&Labor {
                graph,
                key: of_hop,
                most,
            }),
            Kind::MetropolisHastings(walks) => task.run(&MostVisited::new(graph, key, most.of(0), walks)?),
            Kind::Cluster => task.run(&WithinClusters::new(graph, seeds)?),
        }
    }

    /// The largest numbers of draws of a row at `hop`, by relation.
    fn by_relation<I: Id>(&self, graph: &View<'_, I>, hop: usize) -> Result<Vec<usize>, Error> {
        let extra = graph.extra();
        let name = match self.kind {
            Kind::Balanced => "balanced",
            Kind::Labor => "labor",
            Kind::MetropolisHastings(_) => "metropolis_hastings",
            Kind::Cluster => "cluster",
            _ => "",
        };
        if extra.times.is_some() && !name.is_empty() {
            return Err(Error::ByTime { name });
        }
        let Some(relations) = &extra.relations else {
            return Ok(vec![self.fanouts[hop].most()]);
        };
        if matches!(self.kind, Kind::MetropolisHastings(_) | Kind::Cluster) {
            return Err(Error::ByRelation { name });
        }
        let by_relation = relations.of_hop(hop)?;
        let limit = if self.kind.repeats() {
            MAX_REPLACED as usize
        } else {
            usize::MAX
        };
        match by_relation
            .iter()
            .find(|&&fanout| fanout > limit && fanout != usize::MAX)
        {
            Some(&value) => Err(too_many(value)),
            None => Ok(by_relation),
        }
    }
}
