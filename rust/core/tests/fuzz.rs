//! Graphs, seeds, fanouts and weights that are wrong at random: results only name nodes
//! and edges that exist.
//!
//! `cargo test` runs it for two seconds. To run it for minutes, from another case on:
//!
//!     GNNKIT_FUZZ_SECONDS=600 GNNKIT_FUZZ_FIRST=1000000 \
//!         cargo test --release -p gnnkit-core --test fuzz -- --nocapture
//!
//! A failure names its case. `GNNKIT_FUZZ_SECONDS=0 GNNKIT_FUZZ_FIRST=case` runs that
//! one alone.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use gnnkit_core::balance::{even_order, tree_sizes};
use gnnkit_core::csc::Id;
use gnnkit_core::float::Floats;
use gnnkit_core::gather::Rows;
use gnnkit_core::rng::{Stream, derive};
use gnnkit_core::sample::{Batch, Fanout, Hop, Importance, Kind, Sampler, Scratch};
use gnnkit_core::similarity::{Preference, Similarity};
use gnnkit_core::view::{Extra, View};
use gnnkit_core::walk::Walks;
use gnnkit_core::{Csc, Error};

struct Input<I> {
    indptr: Vec<i64>,
    indices: Vec<I>,
    num_sources: usize,
    weight: Vec<f32>,
    wanted: Vec<f64>,
    /// Rows of nodes, their width, and the weight of a node unlike the start.
    similarity: Option<(Vec<f32>, usize, f64)>,
    cluster: Vec<i64>,
    ids: Option<Vec<i64>>,
    seeds: Vec<I>,
    sampler: Sampler,
    key: u64,
}

/// Numbers at random, of which one in so many is odd.
struct Dice {
    stream: Stream,
    one_in: u64,
}

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.stream.below(bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn strikes(&mut self) -> bool {
        self.stream.below(self.one_in) == 0
    }

    /// `value`, or an odd number that sizes and places often get wrong.
    fn id(&mut self, value: usize) -> i64 {
        const ODD: [i64; 10] = [
            -1,
            0,
            1,
            63,
            i64::MIN,
            i64::MAX,
            0x7fff_ffff,
            0xffff_ffff,
            1 << 40,
            -(1 << 31),
        ];
        if self.strikes() { self.pick(&ODD) } else { value as i64 }
    }

    fn float(&mut self) -> f64 {
        const ODD: [f64; 6] = [f64::NAN, f64::INFINITY, -1.0, 0.0, f64::MIN_POSITIVE, f64::MAX];
        if self.strikes() {
            self.pick(&ODD)
        } else {
            self.stream.next_f64()
        }
    }

    fn fanout(&mut self) -> Fanout {
        match self.below(100) {
            90.. => Fanout::All,
            most => Fanout::Most(most),
        }
    }

    fn sampler(&mut self) -> Sampler {
        let replace = self.pick(&[false, true]);
        let walks = Walks {
            length: self.below(5),
            num_walks: self.below(5),
            alpha: self.stream.next_f64(),
        };
        let kinds = [
            Kind::Neighbor { replace },
            Kind::Equal,
            Kind::Weighted { replace },
            Kind::Balanced,
            Kind::Labor,
            Kind::MetropolisHastings(walks),
            Kind::Cluster,
        ];
        Sampler {
            kind: self.pick(&kinds),
            fanouts: (0..=self.below(3)).map(|_| self.fanout()).collect(),
            redraw: self.pick(&[false, true]),
            importance: self.pick(&[None, Some(Importance::Mean), Some(Importance::Sum)]),
        }
    }

    /// [num_nodes + 1] where the edges of each node begin.
    fn indptr(&mut self, num_nodes: usize, num_edges: usize) -> Vec<i64> {
        let mut ends: Vec<usize> = (0..=num_nodes).map(|_| self.below(num_edges + 1)).collect();
        ends.sort_unstable();
        (ends[0], ends[num_nodes]) = (0, num_edges);
        ends.into_iter().map(|end| self.id(end)).collect()
    }

    fn similarity(&mut self, num_sources: usize) -> Option<(Vec<f32>, usize, f64)> {
        let width = self.pick(&[0, 3, 20]);
        let len = self.id(num_sources * width).clamp(0, 1 << 15) as usize;
        let rows = (0..len).map(|_| self.float() as f32).collect();
        (self.below(2) == 0).then(|| (rows, width, self.float()))
    }

    fn input<I: Id>(&mut self, narrow: impl Fn(i64) -> I) -> Input<I> {
        let num_nodes = self.below(70);
        let num_edges = if num_nodes == 0 { 0 } else { self.below(600) };
        let num_sources = self.id(num_nodes).clamp(0, 1000) as usize;
        let chosen: Vec<usize> = (0..num_nodes).filter(|_| self.below(3) == 0).collect();
        Input {
            indptr: self.indptr(num_nodes, num_edges),
            indices: (0..num_edges)
                .map(|_| {
                    let source = self.below(num_nodes);
                    narrow(self.id(source))
                })
                .collect(),
            num_sources,
            weight: (0..num_edges).map(|_| self.float() as f32).collect(),
            wanted: (0..num_sources).map(|_| self.float()).collect(),
            similarity: self.similarity(num_sources),
            cluster: (0..num_sources).map(|node| self.id(node % 4)).collect(),
            ids: (self.below(2) == 0).then(|| (0..num_nodes).map(|node| self.id(3 * node)).collect()),
            seeds: chosen.into_iter().map(|seed| narrow(self.id(seed))).collect(),
            sampler: self.sampler(),
            key: self.stream.next_u64(),
        }
    }
}

fn input<I: Id>(case: u64, narrow: impl Fn(i64) -> I) -> Input<I> {
    let mut stream = Stream::new(derive(1, case));
    let one_in = [u64::MAX, 1000, 30, 3][stream.below(4) as usize];
    Dice { stream, one_in }.input(narrow)
}

/// Everything that reads arrays of users. An error is as good as a result. Impossible
/// results are asserted against.
fn run<I: Id>(input: &Input<I>, scratch: &mut Scratch) -> Result<(), Error> {
    gather(input)?;
    plan(input)?;
    let similarity = input.similarity.as_ref();
    let similarity = similarity
        .map(|(rows, width, floor)| Ok(Similarity::new(Floats::F32(rows), *width, Preference::new(*floor, 8)?)));
    let extra = Extra {
        weight: Some(Floats::F32(&input.weight)),
        wanted: Some(&input.wanted),
        similarity: similarity.transpose()?,
        cluster: Some(&input.cluster),
        rows: input.ids.as_deref(),
        sources: input.ids.as_deref().filter(|ids| ids.len() == input.num_sources),
        counts: input.ids.as_deref(),
        ..Extra::default()
    };
    let graph = View::new(&input.indptr, &input.indices, input.num_sources)?.with(extra)?;
    if let Ok(hop) = input.sampler.draw(&graph, &input.seeds, 0, input.key, scratch) {
        check_hop(&hop, &graph, input);
    }
    let batch = input.sampler.sample(&graph, &input.seeds, input.key, scratch)?;
    check_batch(&batch, &graph, input);
    Ok(())
}

fn gather<I: Id>(input: &Input<I>) -> Result<(), Error> {
    let num_rows = input.indptr.len();
    let (table, mut out) = (vec![7u8; num_rows * 3], vec![0; input.seeds.len() * 3]);
    if Rows::new(&table, num_rows, 3)?
        .gather(&input.seeds, &mut out, 2)
        .is_ok()
    {
        assert!(out.iter().all(|&byte| byte == 7), "a row that does not exist");
    }
    Ok(())
}

fn plan<I: Id>(input: &Input<I>) -> Result<(), Error> {
    let Ok(graph) = Csc::new(&input.indptr, &input.indices, input.num_sources) else {
        return Ok(()); // samplers must bear with what this refuses
    };
    let seeds: Vec<i64> = input.seeds.iter().map(|seed| seed.signed()).collect();
    let costs = tree_sizes(&graph, &[Some(3), None], false, &seeds, 2)?;
    let mut order = even_order(&costs, 2, 3, 2, input.key)?;
    order.sort_unstable();
    assert!(order.into_iter().eq(0..seeds.len()), "an order that is no permutation");
    Ok(())
}

fn check_hop<I: Id>(hop: &Hop<I>, graph: &View<'_, I>, input: &Input<I>) {
    check_indptr(&hop.indptr, hop.sources.len());
    assert_eq!(hop.indptr.len(), input.seeds.len() + 1);
    let mut sources = hop.sources.iter().map(|source| source.index());
    assert!(
        sources.all(|source| source < graph.num_sources()),
        "a source that does not exist"
    );
    if !matches!(input.sampler.kind, Kind::MetropolisHastings(_)) {
        let edges = 0..graph.num_edges() as i64;
        assert!(
            hop.edge_ids.iter().all(|edge| edges.contains(edge)),
            "an edge that does not exist"
        );
    }
}

fn check_batch<I: Id>(batch: &Batch<I>, graph: &View<'_, I>, input: &Input<I>) {
    check_indptr(&batch.indptr, batch.indices.len());
    assert!(batch.nodes.starts_with(&input.seeds), "the seeds come first");
    let distinct: HashSet<usize> = batch.nodes.iter().map(|node| node.index()).collect();
    assert_eq!(distinct.len(), batch.nodes.len(), "a node comes twice");
    assert!(
        distinct.iter().all(|&node| node < graph.num_nodes()),
        "a node that does not exist"
    );
    let mut locals = batch.indices.iter().map(|local| local.index());
    assert!(
        locals.all(|local| local < distinct.len()),
        "an edge from outside of the batch"
    );
    assert!(batch.known.is_sorted() && batch.known.last() == Some(&distinct.len()));
    let num_weights = batch.weight.as_ref().map(|weight| weight.len());
    assert!(num_weights.is_none_or(|number| number == batch.indices.len()));
}

fn check_indptr(indptr: &[i64], num_edges: usize) {
    assert!(indptr.is_sorted() && indptr.first() == Some(&0) && indptr.last() == Some(&(num_edges as i64)));
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a whole number"))
}

#[test]
fn whatever_comes_in_what_comes_out_exists() {
    let limit = Duration::from_secs(number("GNNKIT_FUZZ_SECONDS", 2));
    let first = number("GNNKIT_FUZZ_FIRST", 0);
    let (start, mut scratch) = (Instant::now(), Scratch::default());
    let (mut num_cases, mut num_sampled) = (0, 0);
    while num_cases == 0 || start.elapsed() < limit {
        let case = first + num_cases;
        let sampled = catch_unwind(AssertUnwindSafe(|| {
            let narrow = run(&input(case, |id| id as i32), &mut scratch);
            let wide = run(&input(case, |id| id), &mut scratch);
            u64::from(narrow.is_ok()) + u64::from(wide.is_ok())
        }));
        num_sampled += sampled.unwrap_or_else(|_| panic!("case {case}, as told above"));
        num_cases += 1;
    }
    println!(
        "{num_cases} cases from {first} on, {num_sampled} of {} inputs gave a batch",
        2 * num_cases
    );
    assert!(
        num_cases == 1 || num_sampled > num_cases / 10,
        "nearly all are refused, so little is tested"
    );
}
