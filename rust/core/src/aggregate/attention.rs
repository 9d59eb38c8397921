//! Attention over in-edges: a softmax of scores, and the sum of rows with its weights.
//!
//! The score of the edge e = u -> v is `leaky(z)` of `z = source[u] + destination[v] +
//! edge[e]`. Let `a` be the softmax of the scores over the edges into v, `f` the factor
//! of dropout and `l` the slope of the leaky ReLU at z. All have heads. Then
//!
//! ```text
//! out[v] = sum of a f x[u]        bent[v] = sum of a f l x[u]
//! ```
//!
//! With g, the gradient of `out`, and D[v] = g[v] . out[v], the gradient of z is `a l (f
//! x[u] . g[v] - D[v])`. So its sums need no product of rows for each edge:
//!
//! ```text
//! by destination     g[v] . bent[v] - D[v] (sum of a l)
//! by source          x[u] . (sum of a f l g[v]) - sum of a l D[v]
//! ```
//!
//! Nothing is kept for an edge. Both passes read a row for each edge once, and compute
//! the weights of some edges from the scores of the two ends.

use std::mem::swap;
use std::ops::Range;

use super::rows::{Pass, Reduce, Rows, Split, plan};
use super::{AHEAD, Aggregator, Columns};
use crate::dropout::Dropout;
use crate::error::check_length;
use crate::isa::{Isa, Kernel, at, at_mut, prefetch};
use crate::{Error, Float, Number, team};

/// Weights that are computed together, few enough to stay in L1.
const CHUNK: usize = 2048;
/// Powers that are computed together: a register of the widest instruction set.
const LANES: usize = 16;
/// Numbers of each head in `stats`: the largest score, 1 / the sum of powers above it,
/// and the sum of a l.
const STATS: usize = 3;
/// Numbers of each head in `info`: destination's part of the score, the largest score, 1
/// / the sum of powers, and D.
const INFO: usize = 4;

/// Runs the body for all heads, some at a time: `$number` of them, a constant, from
/// `$first` on, in rows of `$heads`. The usual numbers of heads are constants too.
macro_rules! for_heads {
    ($all:expr, |$number:ident, $heads:ident, $first:ident| $body:expr) => {
        match $all {
            1 => for_heads!(1, 1, 0, |$number, $heads, $first| $body),
            2 => for_heads!(2, 2, 0, |$number, $heads, $first| $body),
            4 => for_heads!(4, 4, 0, |$number, $heads, $first| $body),
            8 => for_heads!(8, 8, 0, |$number, $heads, $first| $body),
            all => {
                for first in (0..all / 8 * 8).step_by(8) {
                    for_heads!(8, all, first, |$number, $heads, $first| $body);
                }
                for first in all / 8 * 8..all {
                    for_heads!(1, all, first, |$number, $heads, $first| $body);
                }
            }
        }
    };
    ($constant:literal, $all:expr, $from:expr, |$number:ident, $heads:ident, $first:ident| $body:expr) => {{
        const $number: usize = $constant;
        let ($heads, $first): (usize, usize) = ($all, $from);
        $body
    }};
}

/// An element type that computes with itself.
pub trait Exact: Float + Number<Wide = Self> {}

impl Exact for f32 {}
impl Exact for f64 {}

/// What the passes of an attention read.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a, T> {
    /// Columns of x.
    pub columns: Columns,
    /// Slope of the leaky ReLU below 0.
    pub slope: T,
    /// [sources, width] rows.
    pub x: &'a [T],
    /// [sources, heads] the sources' parts of the scores.
    pub source: &'a [T],
    /// [edges, heads] the edges' own parts of the scores, where there are any.
    pub edge: Option<&'a [T]>,
    /// Drops weights of edges by their ids [edges].
    pub dropout: Option<(Dropout, &'a [i64])>,
}

impl<T: Exact> Attention<'_, T> {
    /// Writes the sums to `out` [destinations, width], and what
    /// [`Self::backward`] needs: `bent` [destinations, width] if wanted, and `stats`
    /// [destinations, 3, heads]. `destination` [destinations, heads] has the
    /// destinations' parts of the scores.
    pub fn forward(
        &self,
        edges: &Aggregator,
        destination: &[T],
        out: &mut [T],
        bent: Option<&mut [T]>,
        stats: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        self.forward_on(Isa::best(), edges, destination, (out, bent), stats, threads)
    }

    fn forward_on(
        &self,
        isa: Isa,
        edges: &Aggregator,
        destination: &[T],
        (out, bent): (&mut [T], Option<&mut [T]>),
        stats: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let Columns { width, heads } = self.columns;
        let rows = edges.num_destinations();
        self.check(edges, edges.num_sources(), false)?;
        check_length("destination", destination.len(), rows.saturating_mul(heads))?;
        check_length("out", out.len(), rows.saturating_mul(width))?;
        check_length("stats", stats.len(), rows.saturating_mul(heads).saturating_mul(STATS))?;
        if heads == 0 || rows == 0 {
            return Ok(());
        }
        match bent {
            Some(bent) => {
                check_length("bent", bent.len(), rows.saturating_mul(width))?;
                self.forward_rows(isa, edges, destination, [out, bent], stats, threads);
            }
            None => self.forward_rows(isa, edges, destination, [out], stats, threads),
        }
        Ok(())
    }

    fn forward_rows<const N: usize>(
        &self,
        isa: Isa,
        edges: &Aggregator,
        destination: &[T],
        out: [&mut [T]; N],
        stats: &mut [T],
        threads: usize,
    ) {
        let Columns { width, heads } = self.columns;
        let panels = &plan::<T, [T; N]>(self.columns, isa, true);
        let out = out.map(|out| Strided { items: out, row: width });
        let stats = Strided {
            items: stats,
            row: STATS * heads,
        };
        let tasks = edges.tasks(width, threads, |row| row, (out, stats));
        team::for_each(threads, tasks, |(rows, (out, stats))| {
            isa.run(Forward {
                attention: self,
                edges,
                panels,
                destination,
                rows,
                out,
                stats,
            });
        });
    }

    /// Writes the gradients of x and of `source` to `out` and `slopes`, from the gradient
    /// `grad` [destinations, width] and from `info`, by the transpose of the edges.
    pub fn backward(
        &self,
        transposed: &Aggregator,
        grad: &[T],
        info: &[T],
        out: &mut [T],
        slopes: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        self.backward_on(Isa::best(), transposed, grad, info, (out, slopes), threads)
    }

    fn backward_on(
        &self,
        isa: Isa,
        edges: &Aggregator,
        grad: &[T],
        info: &[T],
        (out, slopes): (&mut [T], &mut [T]),
        threads: usize,
    ) -> Result<(), Error> {
        let Columns { width, heads } = self.columns;
        let (rows, of_grad) = (edges.num_destinations(), edges.num_sources());
        self.check(edges, rows, true)?;
        check_length("grad", grad.len(), of_grad.saturating_mul(width))?;
        check_length("info", info.len(), of_grad.saturating_mul(heads).saturating_mul(INFO))?;
        check_length("out", out.len(), rows.saturating_mul(width))?;
        check_length("slopes", slopes.len(), rows.saturating_mul(heads))?;
        if heads == 0 || rows == 0 {
            return Ok(());
        }
        let panels = &plan::<T, [T; 2]>(self.columns, isa, true);
        let out = Strided { items: out, row: width };
        let slopes = Strided {
            items: slopes,
            row: heads,
        };
        let tasks = edges.tasks(width, threads, |row| row, (out, slopes));
        team::for_each(threads, tasks, |(rows, (out, slopes))| {
            isa.run(Backward {
                attention: self,
                edges,
                panels,
                grad,
                info,
                rows,
                out,
                slopes,
            });
        });
        Ok(())
    }

    /// Turns the products x[u] . g[v] of the edges, `out` [edges, heads], into the
    /// gradient of `edge`.
    pub fn edge_backward(&self, edges: &Aggregator, info: &[T], out: &mut [T], threads: usize) -> Result<(), Error> {
        self.edge_backward_on(Isa::best(), edges, info, out, threads)
    }

    fn edge_backward_on(
        &self,
        isa: Isa,
        edges: &Aggregator,
        info: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let heads = self.columns.heads;
        let rows = edges.num_destinations();
        self.check(edges, edges.num_sources(), false)?;
        check_length("info", info.len(), rows.saturating_mul(heads).saturating_mul(INFO))?;
        check_length("out", out.len(), edges.num_edges().saturating_mul(heads))?;
        if heads == 0 || rows == 0 {
            return Ok(());
        }
        let tasks = edges.tasks(heads, threads, |row| edges.indptr[row] * heads, out);
        team::for_each(threads, tasks, |(rows, out)| {
            isa.run(EdgeBackward {
                attention: self,
                edges,
                info,
                rows,
                out,
            });
        });
        Ok(())
    }

    /// That the arrays have a row for each of `sources` and of the edges, which are
    /// transposed or not.
    fn check(&self, edges: &Aggregator, sources: usize, transposed: bool) -> Result<(), Error> {
        if edges.position.is_some() != transposed {
            return Err(Error::Direction {
                function: "attention",
                name: if transposed { "grad" } else { "x" },
                wanted: if transposed { "transposed" } else { "original" },
            });
        }
        let Columns { width, heads } = self.columns;
        check_length("x", self.x.len(), sources.saturating_mul(width))?;
        check_length("source", self.source.len(), sources.saturating_mul(heads))?;
        if let Some(edge) = self.edge {
            check_length("edge", edge.len(), edges.num_edges().saturating_mul(heads))?;
        }
        if let Some((_, ids)) = self.dropout {
            check_length("ids", ids.len(), edges.num_edges())?;
        }
        Ok(())
    }

    /// The H scores of an edge from `first` on after the leaky ReLU, and the slopes. The
    /// sum of both ends comes first, in both passes.
    #[inline(always)]
    fn score<const H: usize>(&self, source: [T; H], own: [T; H], place: impl FnOnce() -> usize) -> [[T; H]; 2] {
        let (mut score, mut bend) = (source, [self.slope; H]);
        for head in 0..H {
            score[head] = source[head] + own[head];
        }
        if let Some(edge) = self.edge {
            let edge: [T; H] = load(edge, place());
            for head in 0..H {
                score[head] = score[head] + edge[head];
            }
        }
        for head in 0..H {
            bend[head] = self.bend(score[head]);
            score[head] = score[head] * bend[head];
        }
        [score, bend]
    }

    /// Writes scores of the edges `part` into one row, and the slopes of the leaky ReLU,
    /// to `scratch`. Raises `largest` [heads] to the largest. `own` [heads] is the
    /// destination's.
    #[inline(always)]
    fn scores(&self, edges: &Aggregator, part: Range<usize>, own: &[T], scratch: &mut Scratch<T>, largest: &mut [T]) {
        for_heads!(self.columns.heads, |H, heads, first| {
            let (power, bend) = (&mut scratch.power[..], &mut scratch.bend[..]);
            let (own, mut best): ([T; H], [T; H]) = (load(own, first), load(largest, first));
            for (place, edge) in part.clone().enumerate() {
                if let Some(&later) = edges.sources.get(edge + AHEAD) {
                    prefetch(&self.source[later as usize * heads + first..][..H]);
                }
                let source = load(self.source, edges.sources[edge] as usize * heads + first);
                let [score, slope] = self.score(source, own, || edge * heads + first);
                for head in 0..H {
                    best[head] = if score[head] > best[head] {
                        score[head]
                    } else {
                        best[head]
                    };
                }
                store(power, place * heads + first, score);
                store(bend, place * heads + first, slope);
            }
            store(largest, first, best);
        });
    }

    /// The slope of the leaky ReLU.
    #[inline(always)]
    fn bend(&self, score: T) -> T {
        if score > <T as Float>::ZERO {
            T::of(1.0)
        } else {
            self.slope
        }
    }
}

/// The gradient of the destinations' parts of the scores, to `slopes` [destinations,
/// heads], and what [`Attention::backward`] reads of a destination, to `info`
/// [destinations, 4, heads].
///
/// `grad`, `out` and `bent` are [destinations, width].
#[allow(clippy::too_many_arguments)]
pub fn destination_backward<T: Exact>(
    columns: Columns,
    destination: &[T],
    [grad, out, bent]: [&[T]; 3],
    stats: &[T],
    info: &mut [T],
    slopes: &mut [T],
    threads: usize,
) -> Result<(), Error> {
    let Columns { width, heads } = columns;
    let rows = destination.len().checked_div(heads).unwrap_or(0);
    check_length("destination", destination.len(), rows * heads)?;
    for (name, rows_of) in [("grad", grad), ("out", out), ("bent", bent)] {
        check_length(name, rows_of.len(), rows.saturating_mul(width))?;
    }
    check_length("stats", stats.len(), rows.saturating_mul(heads).saturating_mul(STATS))?;
    check_length("info", info.len(), rows.saturating_mul(heads).saturating_mul(INFO))?;
    check_length("slopes", slopes.len(), rows * heads)?;
    if heads == 0 || rows == 0 {
        return Ok(());
    }
    let rows = rows.div_ceil(threads.max(1)).max(1);
    let ins = destination
        .chunks(rows * heads)
        .zip(stats.chunks(rows * heads * STATS))
        .enumerate();
    let outs = info
        .chunks_mut(rows * heads * INFO)
        .zip(slopes.chunks_mut(rows * heads));
    team::for_each(
        threads,
        ins.zip(outs).collect(),
        |((task, (destination, stats)), (info, slopes))| {
            let first = task * rows * width;
            let items = first..first + destination.len() / heads * width;
            Isa::best().run(DestinationBackward {
                columns,
                destination,
                grad: &grad[items.clone()],
                out: &out[items.clone()],
                bent: &bent[items],
                stats,
                info,
                slopes,
            });
        },
    );
    Ok(())
}

/// The items from `start` on, by value, so that these stay in registers.
#[inline(always)]
fn load<T: Copy, const N: usize>(items: &[T], start: usize) -> [T; N] {
    *items[start..]
        .first_chunk()
        .expect("lengths are checked before a kernel runs")
}

#[inline(always)]
fn store<T: Copy, const N: usize>(items: &mut [T], start: usize, values: [T; N]) {
    *items[start..]
        .first_chunk_mut()
        .expect("lengths are checked before a kernel runs") = values;
}

/// Number of edges for which weights are computed together.
fn chunk(heads: usize) -> usize {
    (CHUNK / heads).max(1)
}

/// Output with rows of `row` items.
struct Strided<'o, T> {
    items: &'o mut [T],
    row: usize,
}

impl<T: Send> Split for Strided<'_, T> {
    fn split(self, at: usize) -> (Self, Self) {
        let (own, rest) = self.items.split_at_mut(at * self.row);
        let row = self.row;
        (Self { items: own, row }, Self { items: rest, row })
    }
}

impl<T> Strided<'_, T> {
    #[inline(always)]
    fn row(&mut self, row: usize) -> &mut [T] {
        &mut self.items[row * self.row..][..self.row]
    }
}

/// Values of some edges, [edges, heads] each.
struct Scratch<T> {
    power: Vec<T>, // the score, later its power
    bend: Vec<T>,  // l
    kept: Vec<T>,  // after dropout
    bent: Vec<T>,  // times l
    share: Vec<T>, // 1 / the sum of powers
    lost: Vec<T>,  // D
    ids: Vec<i64>, // [edges]
}

impl<T: Exact> Scratch<T> {
    fn new(heads: usize) -> Self {
        let items = (chunk(heads) * heads).next_multiple_of(LANES);
        let empty = || vec![<T as Float>::ZERO; items];
        Self {
            power: empty(),
            bend: empty(),
            kept: empty(),
            bent: empty(),
            share: empty(),
            lost: empty(),
            ids: vec![0; chunk(heads)],
        }
    }

    /// Subtracts `largest` [heads] from `count` scores.
    #[inline(always)]
    fn subtract(&mut self, largest: &[T], count: usize) {
        for_heads!(largest.len(), |H, heads, first| {
            let (power, largest): (_, [T; H]) = (&mut self.power[..], load(largest, first));
            for place in 0..count / heads {
                let mut next: [T; H] = load(power, place * heads + first);
                for head in 0..H {
                    next[head] = next[head] - largest[head];
                }
                store(power, place * heads + first, next);
            }
        });
    }

    /// Adds `count` powers to `total` [heads], and these times `factors` to `other`.
    #[inline(always)]
    fn add(&self, factors: &[T], count: usize, total: &mut [T], other: &mut [T]) {
        for_heads!(total.len(), |H, heads, first| {
            let (mut sums, mut others): ([T; H], [T; H]) = (load(total, first), load(other, first));
            for place in 0..count / heads {
                let power: [T; H] = load(&self.power, place * heads + first);
                let factor: [T; H] = load(factors, place * heads + first);
                for head in 0..H {
                    sums[head] = sums[head] + power[head];
                    others[head] = others[head] + power[head] * factor[head];
                }
            }
            store(total, first, sums);
            store(other, first, others);
        });
    }

    /// Turns `count` scores into powers.
    #[inline(always)]
    fn exp(&mut self, count: usize) {
        for start in (0..count).step_by(LANES) {
            let mut powers: [T; LANES] = load(&self.power, start);
            for power in &mut powers {
                *power = power.exp_of_negative();
            }
            store(&mut self.power, start, powers);
        }
    }

    /// Divides `count` powers by their sums, and multiplies D by l.
    #[inline(always)]
    fn divide(&mut self, count: usize) {
        multiply(&mut self.power, &self.share, count);
        multiply(&mut self.lost, &self.bend, count);
    }

    /// Drops `count` weights, and multiplies these by l.
    #[inline(always)]
    fn drop(&mut self, isa: Isa, dropout: Option<(Dropout, &[i64])>, heads: usize, count: usize) {
        let (power, kept) = (&self.power[..count], &mut self.kept[..count]);
        match dropout {
            None => kept.copy_from_slice(power),
            Some((dropout, ids)) => dropout.apply_within(isa, ids, heads, power, kept),
        }
        for start in (0..count).step_by(LANES) {
            store(
                &mut self.bent,
                start,
                times::<T, LANES>(load(&self.kept, start), load(&self.bend, start)),
            );
        }
    }
}

/// Multiplies the first `count` items of `values` by those of `factors`. Both have a whole
/// number of registers.
#[inline(always)]
fn multiply<T: Exact>(values: &mut [T], factors: &[T], count: usize) {
    for start in (0..count).step_by(LANES) {
        store(
            values,
            start,
            times::<T, LANES>(load(values, start), load(factors, start)),
        );
    }
}

#[inline(always)]
fn times<T: Exact, const N: usize>(a: [T; N], b: [T; N]) -> [T; N] {
    let mut product = a;
    for item in 0..N {
        product[item] = a[item] * b[item];
    }
    product
}

/// Sums of rows with N weights for each edge.
struct Sums<T, const N: usize> {
    so_far: [Vec<T>; N], // [width]
    next: [Vec<T>; N],   // [width]
}

impl<T: Exact, const N: usize> Sums<T, N> {
    fn new(width: usize) -> Self {
        let empty = || [(); N].map(|()| vec![<T as Float>::ZERO; width]);
        Self {
            so_far: empty(),
            next: empty(),
        }
    }

    #[inline(always)]
    fn clear(&mut self) {
        for sum in &mut self.so_far {
            sum.fill(<T as Float>::ZERO);
        }
    }

    /// Adds the rows of x that the edges `part` read.
    #[inline(always)]
    fn add(
        &mut self,
        isa: Isa,
        panels: &[Vec<Pass>],
        (edges, x, columns): (&Aggregator, &[T], Columns),
        part: Range<usize>,
        weights: [&[T]; N],
    ) {
        let reduce = &Weighted {
            edges,
            x,
            columns,
            part,
            weights,
            so_far: self.so_far.each_ref().map(Vec::as_slice),
        };
        let (rows, stride) = (0..1, columns.width);
        let out = self.next.each_mut().map(Vec::as_mut_slice);
        Rows {
            reduce,
            panels,
            stride,
            rows,
            out,
        }
        .run(isa);
        swap(&mut self.so_far, &mut self.next);
    }
}

/// The sum of `so_far` and of the rows of some edges. Not in place, because the passes
/// over a row overlap.
struct Weighted<'a, T, const N: usize> {
    edges: &'a Aggregator,
    x: &'a [T],
    columns: Columns,
    part: Range<usize>,
    weights: [&'a [T]; N], // [part, heads]
    so_far: [&'a [T]; N],  // [width]
}

impl<T: Exact, const N: usize> Weighted<'_, T, N> {
    #[inline(always)]
    fn weights<const K: usize>(&self, set: usize, place: usize, head: usize) -> &[T; K] {
        let [weights] = at::<T, K, 1>(self.weights[set], place * self.columns.heads + head);
        weights
    }
}

/// By value, so that the sums stay in registers.
#[inline(always)]
fn plus<T: Exact, const D: usize, const K: usize>(sums: [[T; D]; K], x: &[[T; D]; K], weights: &[T; K]) -> [[T; D]; K] {
    let mut next = sums;
    // Unrolled by hand: a loop over heads kept the sums in memory, at a fifth of the speed.
    macro_rules! heads {
        ($($head:literal)*) => {
            $(if $head < K {
                next[$head] = plus_head(next[$head], &x[$head], weights[$head]);
            })*
        };
    }
    heads!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    next
}

#[inline(always)]
fn plus_head<T: Exact, const D: usize>(sums: [T; D], x: &[T; D], weight: T) -> [T; D] {
    let mut next = sums;
    for column in 0..D {
        next[column] = next[column] + weight * x[column];
    }
    next
}

impl<T: Exact, const N: usize> Reduce for Weighted<'_, T, N> {
    const HEADS: bool = true;
    const COLUMN_BYTES: usize = N * size_of::<T>();
    type Item = T;
    type Out<'o> = [&'o mut [T]; N];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, _: usize, pass: Pass, out: &mut [&mut [T]; N], place: usize) {
        let mut kept: [[T; D]; K] = *at(self.so_far[0], pass.start);
        let mut bent: [[T; D]; K] = *at(self.so_far[N - 1], pass.start);
        for (place, edge) in self.part.clone().enumerate() {
            let width = self.columns.width;
            if let Some(&later) = self.edges.sources.get(edge + AHEAD) {
                prefetch(&self.x[later as usize * width + pass.start..][..D * K]);
            }
            let x = at(self.x, self.edges.sources[edge] as usize * width + pass.start);
            kept = plus(kept, x, self.weights(0, place, pass.head));
            if N > 1 {
                bent = plus(bent, x, self.weights(N - 1, place, pass.head));
            }
        }
        *at_mut(out[0], place) = kept;
        if N > 1 {
            *at_mut(out[N - 1], place) = bent;
        }
    }
}

/// The edges of a row in parts of at most `chunk`.
#[inline(always)]
fn parts(edges: &Range<usize>, chunk: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let end = edges.end;
    edges
        .clone()
        .step_by(chunk)
        .map(move |start| start..end.min(start + chunk))
}

struct Forward<'a, 'o, T, const N: usize> {
    attention: &'a Attention<'a, T>,
    edges: &'a Aggregator,
    panels: &'a [Vec<Pass>],
    destination: &'a [T],
    rows: Range<usize>,
    out: [Strided<'o, T>; N],
    stats: Strided<'o, T>,
}

impl<T: Exact, const N: usize> Kernel for Forward<'_, '_, T, N> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, isa: Isa) {
        self.rows(isa);
    }
}

impl<T: Exact, const N: usize> Forward<'_, '_, T, N> {
    #[inline(always)]
    fn rows(&mut self, isa: Isa) {
        let (attention, edges) = (self.attention, self.edges);
        let (columns, heads) = (attention.columns, attention.columns.heads);
        let (mut scratch, mut sums) = (Scratch::new(heads), Sums::<T, N>::new(columns.width));
        let zero = <T as Float>::ZERO;
        let mut stats = [(); STATS].map(|()| vec![zero; heads]);
        for row in self.rows.clone() {
            let all = edges.edges(row);
            let own = &self.destination[row * heads..][..heads];
            let [largest, total, steepness] = &mut stats;
            largest.fill(T::NEG_INFINITY);
            total.fill(zero);
            steepness.fill(zero);
            sums.clear();
            for part in parts(&all, chunk(heads)) {
                attention.scores(edges, part, own, &mut scratch, largest);
            }
            for part in parts(&all, chunk(heads)) {
                if all.len() > chunk(heads) {
                    attention.scores(edges, part.clone(), own, &mut scratch, largest);
                }
                let count = part.len() * heads;
                scratch.subtract(largest, count);
                scratch.exp(count);
                scratch.add(&scratch.bend, count, total, steepness);
                let dropout = attention.dropout.map(|(dropout, ids)| (dropout, &ids[part.clone()]));
                scratch.drop(isa, dropout, heads, count);
                let weights = [&scratch.kept[..count], &scratch.bent[..count]];
                let weights = weights.first_chunk().expect("N is 1 or 2");
                sums.add(isa, self.panels, (edges, attention.x, columns), part, *weights);
            }
            self.write(row - self.rows.start, all.is_empty(), heads, &sums, &mut stats);
        }
    }

    /// Divides by the sums of powers.
    #[inline(always)]
    fn write(&mut self, row: usize, empty: bool, heads: usize, sums: &Sums<T, N>, stats: &mut [Vec<T>; STATS]) {
        let (zero, one) = (<T as Float>::ZERO, T::of(1.0));
        let [largest, total, steepness] = stats;
        for head in 0..heads {
            let share = if empty { zero } else { one / total[head] };
            largest[head] = if empty { zero } else { largest[head] };
            (total[head], steepness[head]) = (share, steepness[head] * share);
        }
        let each = self.attention.columns.of_head().max(1);
        for (out, sums) in self.out.iter_mut().zip(&sums.so_far) {
            let heads = out.row(row).chunks_exact_mut(each).zip(sums.chunks_exact(each));
            for ((out, sums), &share) in heads.zip(&*total) {
                for (out, &sum) in out.iter_mut().zip(sums) {
                    *out = sum * share;
                }
            }
        }
        for (out, stats) in self.stats.row(row).chunks_exact_mut(heads).zip(stats) {
            out.copy_from_slice(stats);
        }
    }
}

struct Backward<'a, 'o, T> {
    attention: &'a Attention<'a, T>,
    edges: &'a Aggregator,
    panels: &'a [Vec<Pass>],
    grad: &'a [T],
    info: &'a [T],
    rows: Range<usize>,
    out: Strided<'o, T>,
    slopes: Strided<'o, T>,
}

impl<T: Exact> Kernel for Backward<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, isa: Isa) {
        self.rows(isa);
    }
}

impl<T: Exact> Backward<'_, '_, T> {
    #[inline(always)]
    fn rows(&mut self, isa: Isa) {
        let (attention, edges) = (self.attention, self.edges);
        let (columns, heads) = (attention.columns, attention.columns.heads);
        let (mut scratch, mut sums) = (Scratch::new(heads), Sums::<T, 2>::new(columns.width));
        let zero = <T as Float>::ZERO;
        let (mut total, mut lost) = (vec![zero; heads], vec![zero; heads]);
        for row in self.rows.clone() {
            lost.fill(zero);
            sums.clear();
            for part in parts(&edges.edges(row), chunk(heads)) {
                let count = part.len() * heads;
                self.scores(part.clone(), row, &mut scratch);
                scratch.exp(count);
                scratch.divide(count);
                scratch.add(&scratch.lost, count, &mut total, &mut lost);
                let mut ids = std::mem::take(&mut scratch.ids);
                let dropout = attention.dropout.map(|(dropout, of_edges)| {
                    for (id, edge) in ids.iter_mut().zip(part.clone()) {
                        *id = of_edges[edges.position(edge)];
                    }
                    (dropout, &ids[..part.len()])
                });
                scratch.drop(isa, dropout, heads, count);
                scratch.ids = ids;
                let weights = [&scratch.kept[..count], &scratch.bent[..count]];
                sums.add(isa, self.panels, (edges, self.grad, columns), part, weights);
            }
            self.write(row, heads, &sums, &lost);
        }
    }

    /// The scores of the edges `part` out of `row`, minus the largest of each
    /// destination, and the destinations' other numbers.
    #[inline(always)]
    fn scores(&self, part: Range<usize>, row: usize, scratch: &mut Scratch<T>) {
        let (attention, edges) = (self.attention, self.edges);
        for_heads!(attention.columns.heads, |H, heads, first| {
            let (power, bend) = (&mut scratch.power[..], &mut scratch.bend[..]);
            let (share, lost) = (&mut scratch.share[..], &mut scratch.lost[..]);
            let source: [T; H] = load(attention.source, row * heads + first);
            for (place, edge) in part.clone().enumerate() {
                if let Some(&later) = edges.sources.get(edge + AHEAD) {
                    prefetch(&self.info[later as usize * INFO * heads..][..INFO * heads]);
                }
                let info = &self.info[edges.sources[edge] as usize * INFO * heads..][..INFO * heads];
                let largest: [T; H] = load(info, heads + first);
                let position = || edges.position(edge) * heads + first;
                let [mut score, slope] = attention.score(source, load(info, first), position);
                for head in 0..H {
                    score[head] = score[head] - largest[head];
                }
                let place = place * heads + first;
                store(power, place, score);
                store(bend, place, slope);
                store::<T, H>(share, place, load(info, 2 * heads + first));
                store::<T, H>(lost, place, load(info, 3 * heads + first));
            }
        });
    }

    #[inline(always)]
    fn write(&mut self, row: usize, heads: usize, sums: &Sums<T, 2>, lost: &[T]) {
        let columns = self.attention.columns;
        let x = &self.attention.x[row * columns.width..][..columns.width];
        let [kept, bent] = &sums.so_far;
        let place = row - self.rows.start;
        self.out.row(place).copy_from_slice(kept);
        for (head, slope) in self.slopes.row(place).iter_mut().enumerate().take(heads) {
            *slope = head_dot(columns, head, x, bent) - lost[head];
        }
    }
}

/// The dot product of one head of two rows. Column j is added to partial sum j % 8, in an
/// order that no register size changes.
#[inline(always)]
fn head_dot<T: Exact>(columns: Columns, head: usize, a: &[T], b: &[T]) -> T {
    let each = columns.of_head();
    let (first, whole) = (head * each, head * each + each / 8 * 8);
    let mut sums = [<T as Float>::ZERO; 8];
    for start in (first..whole).step_by(8) {
        let product = times::<T, 8>(load(a, start), load(b, start));
        for lane in 0..8 {
            sums[lane] = sums[lane] + product[lane];
        }
    }
    for item in whole..first + each {
        sums[item - whole] = sums[item - whole] + a[item] * b[item];
    }
    for lane in 0..4 {
        sums[lane] = sums[lane] + sums[lane + 4];
    }
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

struct EdgeBackward<'a, 'o, T> {
    attention: &'a Attention<'a, T>,
    edges: &'a Aggregator,
    info: &'a [T],
    rows: Range<usize>,
    out: &'o mut [T],
}

impl<T: Exact> Kernel for EdgeBackward<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, isa: Isa) {
        self.rows(isa);
    }
}

impl<T: Exact> EdgeBackward<'_, '_, T> {
    #[inline(always)]
    fn rows(&mut self, isa: Isa) {
        let (attention, edges) = (self.attention, self.edges);
        let heads = attention.columns.heads;
        let (mut scratch, mut best) = (Scratch::new(heads), vec![T::NEG_INFINITY; heads]);
        let first = edges.indptr[self.rows.start];
        for row in self.rows.clone() {
            let info = &self.info[row * INFO * heads..][..INFO * heads];
            let (own, info) = info.split_at(heads);
            let (largest, info) = info.split_at(heads);
            let (share, lost) = info.split_at(heads);
            for part in parts(&edges.edges(row), chunk(heads)) {
                let count = part.len() * heads;
                attention.scores(edges, part.clone(), own, &mut scratch, &mut best);
                scratch.subtract(largest, count);
                scratch.exp(count);
                let out = &mut self.out[(part.start - first) * heads..][..count];
                if let Some((dropout, ids)) = attention.dropout {
                    dropout.apply_within(isa, &ids[part], heads, out, &mut scratch.kept[..count]);
                    out.copy_from_slice(&scratch.kept[..count]);
                }
                let rows = scratch.power[..count].chunks_exact(heads);
                let rows = rows.zip(scratch.bend[..count].chunks_exact(heads));
                for (out, (power, bend)) in out.chunks_exact_mut(heads).zip(rows) {
                    for head in 0..heads {
                        out[head] = power[head] * share[head] * bend[head] * (out[head] - lost[head]);
                    }
                }
            }
        }
    }
}

struct DestinationBackward<'a, T> {
    columns: Columns,
    destination: &'a [T],
    grad: &'a [T],
    out: &'a [T],
    bent: &'a [T],
    stats: &'a [T],
    info: &'a mut [T],
    slopes: &'a mut [T],
}

impl<T: Exact> Kernel for DestinationBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: Isa) {
        let Columns { width, heads } = self.columns;
        let outs = self
            .info
            .chunks_exact_mut(INFO * heads)
            .zip(self.slopes.chunks_exact_mut(heads));
        for (row, (info, slopes)) in outs.enumerate() {
            let items = row * width..(row + 1) * width;
            let grad = &self.grad[items.clone()];
            let (out, bent) = (&self.out[items.clone()], &self.bent[items]);
            let stats = &self.stats[row * STATS * heads..][..STATS * heads];
            info[..heads].copy_from_slice(&self.destination[row * heads..][..heads]);
            info[heads..3 * heads].copy_from_slice(&stats[..2 * heads]);
            for head in 0..heads {
                let lost = head_dot(self.columns, head, grad, out);
                info[3 * heads + head] = lost;
                slopes[head] = head_dot(self.columns, head, grad, bent) - lost * stats[2 * heads + head];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Csc;
    use crate::rng::Stream;

    /// Edges into few rows, one of which has more than a chunk.
    fn edges() -> (Aggregator, Vec<usize>, Vec<i32>) {
        let degrees = [0, 3, 2100, 1, 0, 40];
        let mut stream = Stream::new(3);
        let targets: Vec<usize> = (0..degrees.len()).flat_map(|row| vec![row; degrees[row]]).collect();
        let sources: Vec<i32> = targets.iter().map(|_| stream.below(9) as i32).collect();
        let mut indptr = vec![0];
        indptr.extend(degrees.iter().scan(0, |sum, &degree| {
            *sum += degree as i64;
            Some(*sum)
        }));
        let csc = Csc::new(&indptr, &sources, 9).unwrap();
        (Aggregator::new(csc).unwrap(), targets, sources)
    }

    fn random(len: usize, key: u64) -> Vec<f64> {
        let mut stream = Stream::new(key);
        (0..len).map(|_| 4.0 * stream.next_f64() - 2.0).collect()
    }

    #[test]
    fn sums_follow_the_definition_with_the_same_bits_everywhere() {
        let (edges, targets, sources) = edges();
        let transposed = edges.transpose().unwrap();
        for (heads, each) in [(1, 1), (1, 16), (2, 5), (3, 4), (8, 16), (11, 3)] {
            let width = heads * each;
            let (x, source, destination) = (random(9 * width, 1), random(9 * heads, 2), random(6 * heads, 3));
            let of_edges = random(targets.len() * heads, 4);
            let attention = Attention {
                columns: Columns::new(width, heads).unwrap(),
                slope: 0.2,
                x: &x,
                source: &source,
                edge: Some(&of_edges),
                dropout: None,
            };
            let mut expected = vec![0.0; 6 * width];
            for head in 0..heads {
                let score = |edge: usize| {
                    let (u, v) = (sources[edge] as usize, targets[edge]);
                    let z = source[u * heads + head] + destination[v * heads + head] + of_edges[edge * heads + head];
                    (if z > 0.0 { z } else { 0.2 * z }).exp()
                };
                for v in 0..6 {
                    let own: Vec<usize> = (0..targets.len()).filter(|&edge| targets[edge] == v).collect();
                    let total: f64 = own.iter().map(|&edge| score(edge)).sum();
                    for (edge, column) in own.iter().flat_map(|&edge| (0..each).map(move |column| (edge, column))) {
                        let value = x[sources[edge] as usize * width + head * each + column];
                        expected[v * width + head * each + column] += score(edge) / total * value;
                    }
                }
            }
            let mut results = Vec::new();
            for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                let (mut out, mut bent) = (vec![7.0; 6 * width], vec![7.0; 6 * width]);
                let mut stats = vec![7.0; 6 * heads * STATS];
                let outs = (&mut out[..], Some(&mut bent[..]));
                attention
                    .forward_on(isa, &edges, &destination, outs, &mut stats, threads)
                    .unwrap();
                let (mut info, mut slopes) = (vec![0.0; 6 * heads * INFO], vec![0.0; 6 * heads]);
                let (grad, rows) = (random(6 * width, 5), attention.columns);
                destination_backward(
                    rows,
                    &destination,
                    [&grad, &out, &bent],
                    &stats,
                    &mut info,
                    &mut slopes,
                    threads,
                )
                .unwrap();
                let (mut to_x, mut to_source) = (vec![7.0; 9 * width], vec![7.0; 9 * heads]);
                let back = (&mut to_x[..], &mut to_source[..]);
                attention
                    .backward_on(isa, &transposed, &grad, &info, back, threads)
                    .unwrap();
                for (found, expected) in out.iter().zip(&expected) {
                    assert!((found - expected).abs() <= 1e-12, "{isa:?}: {found}, {expected}");
                }
                results.push((out, bent, stats, slopes, to_x, to_source));
            }
            assert!(
                results.windows(2).all(|pair| pair[0] == pair[1]),
                "{heads} heads of {each}"
            );
        }
    }

    #[test]
    fn arrays_of_another_length_and_edges_of_another_direction_are_refused() {
        let (edges, ..) = edges();
        let (x, source) = (vec![0f32; 9 * 4], vec![0f32; 9 * 2]);
        let attention = Attention {
            columns: Columns::new(4, 2).unwrap(),
            slope: 0.2,
            x: &x,
            source: &source,
            edge: None,
            dropout: None,
        };
        let mut out = [0f32; 24];
        let error = attention.forward(&edges, &[0.0; 12], &mut out, None, &mut [0.0; 35], 1);
        assert_eq!(error.unwrap_err().to_string(), "stats has 35 entries, expected 36");
        let error = attention.backward(&edges, &[0.0; 24], &[0.0; 48], &mut [0.0; 36], &mut [0.0; 18], 1);
        assert!(
            error
                .unwrap_err()
                .to_string()
                .contains("needs the transposed aggregator")
        );
    }
}
