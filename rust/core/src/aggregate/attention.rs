//! Attention over in-edges: a softmax of scores, and the sum of rows with its weights.
//!
//! The score of the edge e = u -> v is `leaky(z)` of `z = source[u] + destination[v] +
//! edge[e]`. Let `a` be the softmax of the scores over the edges into v, `f` the factor
//! of dropout and `l` the slope of the leaky ReLU at z. All have heads. Then
//!
//!     out[v] = sum of a f x[u]        bent[v] = sum of a f l x[u]
//!
//! With g, the gradient of `out`, and D[v] = g[v] . out[v], the gradient of z is `a l (f
//! x[u] . g[v] - D[v])`. So its sums need no product of rows for each edge:
//!
//!     by destination     g[v] . bent[v] - D[v] (sum of a l)
//!     by source          x[u] . (sum of a f l g[v]) - sum of a l D[v]
//!
//! Nothing is kept for an edge. Both passes read a row for each edge once, and compute
//! the weights of some edges from the scores of the two ends.

use std::mem::swap;
use std::ops::Range;

use super::dot::dot;
use super::rows::{Pass, Reduce, Rows, Split, plan};
use super::{AHEAD, Aggregator, Columns};
use crate::dropout::Dropout;
use crate::error::check_length;
use crate::isa::{Isa, Kernel, at, at_mut, prefetch};
use crate::{Error, Float, Number, pool};

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

/// Runs the body with a constant number of heads, 0 for those without a loop of their
/// own.
macro_rules! by_heads {
    ($heads:expr, $constant:ident => $body:expr) => {
        match $heads {
            1 => by_heads!(1, $constant, $body),
            2 => by_heads!(2, $constant, $body),
            4 => by_heads!(4, $constant, $body),
            8 => by_heads!(8, $constant, $body),
            _ => by_heads!(0, $constant, $body),
        }
    };
    ($number:literal, $constant:ident, $body:expr) => {{
        const $constant: usize = $number;
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
        if heads == 0 {
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
        let panels = &plan::<T, [T; N]>(self.columns, isa);
        let out = out.map(|out| Strided { items: out, row: width });
        let stats = Strided {
            items: stats,
            row: STATS * heads,
        };
        let tasks = edges.tasks(width, threads, |row| row, (out, stats));
        pool::for_each(threads, tasks, |(rows, (out, stats))| {
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
        if heads == 0 {
            return Ok(());
        }
        let panels = &plan::<T, [T; 2]>(self.columns, isa);
        let out = Strided { items: out, row: width };
        let slopes = Strided {
            items: slopes,
            row: heads,
        };
        let tasks = edges.tasks(width, threads, |row| row, (out, slopes));
        pool::for_each(threads, tasks, |(rows, (out, slopes))| {
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
        if heads == 0 {
            return Ok(());
        }
        let tasks = edges.tasks(heads, threads, |row| edges.indptr[row] * heads, out);
        pool::for_each(threads, tasks, |(rows, out)| {
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

    /// The parts of an edge's score that are the source's and the edge's, before the
    /// destination's is added.
    #[inline(always)]
    fn score(&self, own: T, other: T, position: usize, heads: usize, head: usize) -> T {
        let score = own + other;
        match self.edge {
            None => score,
            Some(edge) => score + edge[position * heads + head],
        }
    }

    /// The scores of the edges `part` into one row to `scratch`, and the slopes of the
    /// leaky ReLU. `own` [heads] is the destination's.
    #[inline(always)]
    fn scores<const H: usize>(&self, edges: &Aggregator, part: Range<usize>, own: &[T], scratch: &mut Scratch<T>) {
        let heads = heads::<H>(self.columns);
        let own = &own[..heads];
        let rows = scratch.power.chunks_exact_mut(heads);
        for (edge, (power, bend)) in part.zip(rows.zip(scratch.bend.chunks_exact_mut(heads))) {
            if let Some(&later) = edges.sources.get(edge + AHEAD) {
                prefetch(&self.source[later as usize * heads..][..heads]);
            }
            let source = &self.source[edges.sources[edge] as usize * heads..][..heads];
            for head in 0..heads {
                let score = self.score(source[head], own[head], edge, heads, head);
                bend[head] = self.bend(score);
                power[head] = score * bend[head];
            }
        }
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
    if heads == 0 {
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
    pool::for_each(
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

/// Heads as a number that the compiler knows, where `H` is not 0.
#[inline(always)]
fn heads<const H: usize>(columns: Columns) -> usize {
    if H > 0 { H } else { columns.heads }
}

/// Edges whose weights are computed together.
fn chunk(heads: usize) -> usize {
    (CHUNK / heads).max(1)
}

/// Output whose rows have `row` items.
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

    /// Turns the scores of `count` edges into powers.
    #[inline(always)]
    fn exp(&mut self, count: usize) {
        let items = count.next_multiple_of(LANES);
        for powers in self.power[..items].as_chunks_mut::<LANES>().0 {
            for power in powers {
                *power = power.exp_of_negative();
            }
        }
    }

    /// Drops `count` weights, and multiplies these by l.
    #[inline(always)]
    fn drop(&mut self, isa: Isa, dropout: Option<(Dropout, &[i64])>, heads: usize, count: usize) {
        let (power, kept) = (&self.power[..count], &mut self.kept[..count]);
        match dropout {
            None => kept.copy_from_slice(power),
            Some((dropout, ids)) => dropout.apply_within(isa, ids, heads, power, kept),
        }
        for ((bent, &kept), &bend) in self.bent[..count].iter_mut().zip(&*kept).zip(&self.bend) {
            *bent = kept * bend;
        }
    }
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
    /// By value, so that the sums stay in registers.
    #[inline(always)]
    fn add<const D: usize, const K: usize>(&self, pass: Pass, mut sums: [[[T; D]; K]; N]) -> [[[T; D]; K]; N] {
        let Columns { width, heads } = self.columns;
        for (place, edge) in self.part.clone().enumerate() {
            let x: &[[T; D]; K] = self.edges.row(self.x, width, edge, pass.start);
            for (sums, weights) in sums.iter_mut().zip(self.weights) {
                let [weights]: &[[T; K]; 1] = at(weights, place * heads + pass.head);
                for ((sums, x), &weight) in sums.iter_mut().zip(x).zip(weights) {
                    for (sum, &x) in sums.iter_mut().zip(x) {
                        *sum = *sum + weight * x;
                    }
                }
            }
        }
        sums
    }
}

impl<T: Exact, const N: usize> Reduce for Weighted<'_, T, N> {
    const HEADS: bool = true;
    type Item = T;
    type Out<'o> = [&'o mut [T]; N];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, _: usize, pass: Pass, out: &mut [&mut [T]; N], place: usize) {
        let mut sums = [[[<T as Float>::ZERO; D]; K]; N];
        for (sums, so_far) in sums.iter_mut().zip(self.so_far) {
            *sums = *at(so_far, pass.start);
        }
        for (out, sums) in out.iter_mut().zip(self.add(pass, sums)) {
            *at_mut(out, place) = sums;
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
                let count = part.len() * heads;
                by_heads!(heads, H => attention.scores::<H>(edges, part.clone(), own, &mut scratch));
                by_heads!(heads, H => raise::<T, H>(largest, &scratch.power[..count], heads));
            }
            for part in parts(&all, chunk(heads)) {
                if all.len() > chunk(heads) {
                    by_heads!(heads, H => attention.scores::<H>(edges, part.clone(), own, &mut scratch));
                }
                let count = part.len() * heads;
                for power in scratch.power[..count].chunks_exact_mut(heads) {
                    for (power, &largest) in power.iter_mut().zip(&largest[..heads]) {
                        *power = *power - largest;
                    }
                }
                scratch.exp(count);
                let (power, bend) = (&scratch.power[..count], &scratch.bend[..count]);
                by_heads!(heads, H => add::<T, H>(total, steepness, power, bend, heads));
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

/// Raises `largest` [heads] to the largest of `values` [edges, heads].
#[inline(always)]
fn raise<T: Exact, const H: usize>(largest: &mut [T], values: &[T], heads: usize) {
    if H > 0 {
        let mut best = [T::NEG_INFINITY; H];
        best.copy_from_slice(largest);
        for values in values.chunks_exact(heads) {
            for (best, &value) in best.iter_mut().zip(values) {
                *best = if value > *best { value } else { *best };
            }
        }
        return largest.copy_from_slice(&best);
    }
    for values in values.chunks_exact(heads) {
        for (best, &value) in largest.iter_mut().zip(values) {
            *best = if value > *best { value } else { *best };
        }
    }
}

/// Adds `values` [edges, heads] to `total` [heads], and these times `factors` to `other`.
#[inline(always)]
fn add<T: Exact, const H: usize>(total: &mut [T], other: &mut [T], values: &[T], factors: &[T], heads: usize) {
    let rows = values.chunks_exact(heads).zip(factors.chunks_exact(heads));
    if H > 0 {
        let (mut sums, mut others) = ([<T as Float>::ZERO; H], [<T as Float>::ZERO; H]);
        sums.copy_from_slice(total);
        others.copy_from_slice(other);
        for (values, factors) in rows {
            for head in 0..H {
                sums[head] = sums[head] + values[head];
                others[head] = others[head] + values[head] * factors[head];
            }
        }
        total.copy_from_slice(&sums);
        return other.copy_from_slice(&others);
    }
    for (values, factors) in rows {
        for head in 0..heads {
            total[head] = total[head] + values[head];
            other[head] = other[head] + values[head] * factors[head];
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
                by_heads!(heads, H => self.scores::<H>(part.clone(), row, &mut scratch));
                scratch.exp(count);
                for (place, power) in scratch.power[..count].iter_mut().enumerate() {
                    *power = *power * scratch.share[place];
                    scratch.lost[place] = scratch.lost[place] * scratch.bend[place];
                }
                let (power, factors) = (&scratch.power[..count], &scratch.lost[..count]);
                by_heads!(heads, H => add::<T, H>(&mut total, &mut lost, power, factors, heads));
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
    fn scores<const H: usize>(&self, part: Range<usize>, row: usize, scratch: &mut Scratch<T>) {
        let (attention, edges) = (self.attention, self.edges);
        let heads = heads::<H>(attention.columns);
        let source = &attention.source[row * heads..][..heads];
        for (place, edge) in part.enumerate() {
            if let Some(&later) = edges.sources.get(edge + AHEAD) {
                prefetch(&self.info[later as usize * INFO * heads..][..INFO * heads]);
            }
            let info = &self.info[edges.sources[edge] as usize * INFO * heads..][..INFO * heads];
            let (own, info) = info.split_at(heads);
            let (largest, info) = info.split_at(heads);
            let (share, lost) = info.split_at(heads);
            let place = place * heads..(place + 1) * heads;
            scratch.share[place.clone()].copy_from_slice(share);
            scratch.lost[place.clone()].copy_from_slice(lost);
            let (power, bend) = (&mut scratch.power[place.clone()], &mut scratch.bend[place]);
            let position = if attention.edge.is_some() { edges.position(edge) } else { 0 };
            for head in 0..heads {
                let score = attention.score(source[head], own[head], position, heads, head);
                bend[head] = attention.bend(score);
                power[head] = score * bend[head] - largest[head];
            }
        }
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

/// The dot product of one head of two rows.
#[inline(always)]
fn head_dot<T: Exact>(columns: Columns, head: usize, a: &[T], b: &[T]) -> T {
    let each = columns.of_head();
    let (a, b) = (&a[head * each..][..each], &b[head * each..][..each]);
    match each {
        0..8 => dot::<T, 1>(a, b),
        8..32 => dot::<T, 8>(a, b),
        _ => dot::<T, 32>(a, b),
    }
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
        let mut scratch = Scratch::new(heads);
        let first = edges.indptr[self.rows.start];
        for row in self.rows.clone() {
            let info = &self.info[row * INFO * heads..][..INFO * heads];
            let (own, info) = info.split_at(heads);
            let (largest, info) = info.split_at(heads);
            let (share, lost) = info.split_at(heads);
            for part in parts(&edges.edges(row), chunk(heads)) {
                let count = part.len() * heads;
                attention.scores::<0>(edges, part.clone(), own, &mut scratch);
                for power in scratch.power[..count].chunks_exact_mut(heads) {
                    for (power, &largest) in power.iter_mut().zip(largest) {
                        *power = *power - largest;
                    }
                }
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
