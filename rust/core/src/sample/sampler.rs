//! The laws that users choose from, and one hop by the chosen law.

use super::balanced::Balanced;
use super::batch::{Hop, Sizes};
use super::cluster::WithinClusters;
use super::crew::Crew;
use super::edges::{Draw, Edges, Importance};
use super::expand::{DrawInto, Task};
use super::labor::Labor;
use super::law::Most;
use super::table::{Dense, Hashed};
use super::uniform::{Equal, Uniform, UniformWithReplacement};
use super::visits::MostVisited;
use super::weighted::{Weighted, WeightedWithReplacement};
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
    pub(super) fn repeats(self) -> bool {
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
    /// If true, all nodes found so far redraw at every hop, as in DGL. Otherwise, a
    /// node draws once, when it is first found, and every layer uses the same draws.
    pub redraw: bool,
    /// Importance weights to return.
    pub importance: Option<Importance>,
}

/// Memory that batches reuse, and the number of threads that make a batch. One batch at
/// a time uses a scratch. Neither ever reaches a result.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) tables: Vec<(Dense, Hashed)>, // [num_node_types]
    pub(super) crew: Crew,
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

    /// About how many edges `num_rows` rows draw.
    pub(super) fn num_draws(&self, hop: usize, num_rows: usize) -> usize {
        num_rows * self.fanouts[hop].most().min(TYPICAL_FANOUT)
    }

    /// Runs `task` under the law of `hop` in a batch of `seeds`.
    pub(super) fn with_law<I: Id>(
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
    pub(super) fn by_relation<I: Id>(&self, graph: &View<'_, I>, hop: usize) -> Result<Vec<usize>, Error> {
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
