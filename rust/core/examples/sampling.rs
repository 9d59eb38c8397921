//! Milliseconds per sampled batch on an R-MAT graph, by one thread and by several
//! together: `cargo run --release --example sampling [nodes] [edges] [batches]
//! [threads]`.
//!
//! The default is the size of ogbn-products, 2,449,029 nodes and 123.7 M directed
//! edges, more skewed, with permuted ids.

use std::time::Instant;

use gnnkit_core::csc::Id;
use gnnkit_core::rng::{Stream, derive};
use gnnkit_core::sample::{Fanout, Kind, Sampler, Scratch};
use gnnkit_core::view::View;

fn argument<T: std::str::FromStr>(position: usize, default: T) -> T {
    std::env::args()
        .nth(position)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Edge `index` of an R-MAT with quadrants .57/.19/.19/.05, endpoints scaled to
/// `num_nodes` and permuted.
fn edge(index: u64, num_nodes: u64) -> (usize, usize) {
    let stream = Stream::new(derive(1, index));
    let (mut source, mut target) = (0u64, 0u64);
    for level in 0..22 {
        let draw = (stream.word(level / 2) >> (32 * (level % 2)) & 0xffff_ffff) as u32;
        let quadrant = [0.57, 0.76, 0.95]
            .iter()
            .filter(|&&edge| f64::from(draw) >= edge * 4_294_967_296.0)
            .count() as u64;
        source = (source << 1) | (quadrant & 1);
        target = (target << 1) | (quadrant >> 1);
    }
    let permute = |id: u64| (((id * num_nodes) >> 22) * 1_000_003 % num_nodes) as usize;
    (permute(source), permute(target))
}

/// Generates the edges twice, so that nothing but the CSC is ever held.
fn rmat<I: Id>(num_nodes: usize, num_edges: u64) -> (Vec<i64>, Vec<I>) {
    let mut indptr = vec![0i64; num_nodes + 1];
    (0..num_edges).for_each(|index| indptr[edge(index, num_nodes as u64).1 + 1] += 1);
    (0..num_nodes).for_each(|node| indptr[node + 1] += indptr[node]);
    let mut next = indptr.clone();
    let mut indices = vec![I::from_index(0); num_edges as usize];
    #[cfg(target_os = "linux")]
    // SAFETY: whole pages of our own vector, and only advice.
    unsafe {
        let skip = indices.as_ptr().cast::<u8>().align_offset(4096);
        libc::madvise(
            indices.as_mut_ptr().cast::<u8>().add(skip).cast(),
            indices.len() * size_of::<I>() - skip,
            libc::MADV_HUGEPAGE,
        );
    }
    for index in 0..num_edges {
        let (source, target) = edge(index, num_nodes as u64);
        indices[next[target] as usize] = I::from_index(source);
        next[target] += 1;
    }
    (indptr, indices)
}

fn main() {
    let num_nodes: usize = argument(1, 2_449_029);
    let num_edges: u64 = argument(2, 123_718_280);
    let batches: u64 = argument(3, 200);
    let threads = [1, argument(4, 2)];
    let start = Instant::now();
    let (indptr, indices) = rmat::<i32>(num_nodes, num_edges);
    println!(
        "{num_nodes} nodes, {num_edges} edges made in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let graph = View::new(&indptr, &indices, num_nodes).unwrap();
    for fanouts in [vec![15, 10, 5], vec![25, 10], vec![10, 10]] {
        let sampler = Sampler {
            kind: Kind::Neighbor { replace: false },
            fanouts: fanouts
                .iter()
                .enumerate()
                .map(|(hop, &k)| Fanout::new(hop, k).unwrap())
                .collect(),
            redraw: false,
            importance: None,
        };
        for threads in threads {
            let mut scratch = Scratch::default();
            let (mut times, mut edges, mut nodes) = (Vec::new(), 0, 0);
            for batch in 0..batches {
                let mut stream = Stream::new(derive(9, batch));
                let mut seeds: Vec<i32> = (0..1024).map(|_| stream.below(num_nodes as u64) as i32).collect();
                seeds.sort_unstable();
                seeds.dedup();
                let start = Instant::now();
                let result = sampler
                    .sample(&graph, &seeds, batch, scratch.on_threads(threads))
                    .unwrap();
                times.push(start.elapsed().as_secs_f64() * 1e3);
                (edges, nodes) = (edges + result.indices.len(), nodes + result.nodes.len());
            }
            times.sort_by(f64::total_cmp);
            println!(
                "{fanouts:?}, {threads} threads: median {:.2} ms, min {:.2} ms, {:.0} edges, {:.0} nodes",
                times[times.len() / 2],
                times[0],
                edges as f64 / batches as f64,
                nodes as f64 / batches as f64
            );
        }
    }
}
