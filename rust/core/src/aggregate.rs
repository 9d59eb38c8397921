//! Sums, maxima and dot products over the in-edges of each destination.
//!
//! A row of the result is computed by one thread, its edges in the order in which they are given, each product rounded
//! before it is added: the bits depend neither on the number of threads nor on the instruction set.

use std::fmt::Debug;
use std::ops::{Add, Mul, Range};

use crate::csc::{Csc, Id};
use crate::isa::{Isa, Kernel, prefetch};
use crate::{Error, pool};

/// How many edges ahead the rows of x are asked for; 16 to 32 were equally good, 8 and 64 slower.
const AHEAD: usize = 24;
/// Columns that are worked through together are at most this many bytes of a row, so that `AHEAD` rows stay in L1.
const PANEL_BYTES: usize = 512;
/// Fewer operations than this are not worth a second thread.
const TASK_OPERATIONS: usize = 1 << 16;
/// More tasks than threads, so that a thread which lost its core does not keep the others waiting.
const TASKS_PER_THREAD: usize = 8;
/// Partial sums of a dot product.
const LANES: usize = 32;

/// The element types of features.
pub trait Float: Copy + Send + Sync + Debug + PartialOrd + Add<Output = Self> + Mul<Output = Self> + 'static {
    /// 0.
    const ZERO: Self;
    /// The maximum of nothing.
    const NEG_INFINITY: Self;
    /// Not a number.
    const NAN: Self;

    /// The nearest value.
    fn of(value: f64) -> Self;
}

impl Float for f32 {
    const ZERO: Self = 0.0;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;
    const NAN: Self = Self::NAN;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as Self
    }
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;
    const NAN: Self = Self::NAN;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }
}

/// How the columns of x and of the result divide into heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Columns {
    width: usize,
    heads: usize,
}

impl Columns {
    /// `heads` times `width / heads` columns.
    pub fn new(width: usize, heads: usize) -> Result<Self, Error> {
        match heads {
            0 if width > 0 => Err(Error::Heads { width, heads }),
            1.. if !width.is_multiple_of(heads) => Err(Error::Heads { width, heads }),
            _ => Ok(Self { width, heads }),
        }
    }

    /// The columns of each head.
    fn of_heads(self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let each = self.width.checked_div(self.heads).unwrap_or(0);
        (0..self.heads).map(move |head| (head, head * each..(head + 1) * each))
    }
}

/// The in-edges of a graph, ready to aggregate over: an own copy, validated, so that nobody can change it in between.
#[derive(Debug, Clone)]
pub struct Aggregator {
    indptr: Box<[usize]>,         // [num_destinations + 1]
    sources: Box<[u32]>,          // [num_edges]
    position: Option<Box<[u32]>>, // [num_edges] which weight is the edge's own, where they are in another order
    num_sources: usize,
}

impl Aggregator {
    /// Copies the edges of `csc`; at most 2^32 - 1 sources, destinations and edges.
    pub fn new<I: Id>(csc: Csc<'_, I>) -> Result<Self, Error> {
        for (name, actual) in [
            ("sources", csc.num_sources()),
            ("destinations", csc.num_nodes()),
            ("edges", csc.num_edges()),
        ] {
            if actual > u32::MAX as usize {
                return Err(Error::TooMany {
                    name,
                    actual,
                    limit: u32::MAX as usize,
                });
            }
        }
        Ok(Self {
            indptr: csc.indptr().iter().map(|&at| at as usize).collect(),
            sources: csc.indices().iter().map(|source| source.index() as u32).collect(),
            position: None,
            num_sources: csc.num_sources(),
        })
    }

    /// Rows of the result.
    pub fn num_destinations(&self) -> usize {
        self.indptr.len() - 1
    }

    /// Rows of x.
    pub fn num_sources(&self) -> usize {
        self.num_sources
    }

    /// Number of edges.
    pub fn num_edges(&self) -> usize {
        self.sources.len()
    }

    /// The same edges by source, each keeping its weight's place: what the backward pass aggregates over. The edges of a
    /// source are in the order of their destinations here.
    pub fn transpose(&self) -> Self {
        let mut indptr = vec![0; self.num_sources + 1];
        for &source in &self.sources {
            indptr[source as usize + 1] += 1;
        }
        for node in 0..self.num_sources {
            indptr[node + 1] += indptr[node];
        }
        let mut free = indptr.clone();
        let mut sources = vec![0; self.num_edges()].into_boxed_slice();
        let mut position = vec![0; self.num_edges()].into_boxed_slice();
        for row in 0..self.num_destinations() {
            for edge in self.edges(row) {
                let slot = &mut free[self.sources[edge] as usize];
                sources[*slot] = row as u32;
                position[*slot] = self.position(edge) as u32;
                *slot += 1;
            }
        }
        Self {
            indptr: indptr.into_boxed_slice(),
            sources,
            position: Some(position),
            num_sources: self.num_destinations(),
        }
    }

    /// `out[v] = sum of x[u]` over the edges u -> v.
    pub fn sum<T: Float>(&self, width: usize, x: &[T], out: &mut [T], threads: usize) -> Result<(), Error> {
        self.sum_on(Isa::best(), width, x, out, threads)
    }

    fn sum_on<T: Float>(&self, isa: Isa, width: usize, x: &[T], out: &mut [T], threads: usize) -> Result<(), Error> {
        let columns = Columns::new(width, 1)?;
        self.check("x", x, "out", out, width)?;
        let scale = Unit;
        self.for_rows(
            isa,
            columns,
            &Sum {
                edges: self,
                x,
                width,
                scale,
            },
            out,
            threads,
        );
        Ok(())
    }

    /// `out[v, h] = sum of weight[e, h] * x[u, h]` over the edges e = u -> v, for each head h. `weight` [edges, heads] is in
    /// the order of the edges that this aggregator, or the one it is the transpose of, was made from.
    pub fn weighted_sum<T: Float>(
        &self,
        columns: Columns,
        weight: &[T],
        x: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        self.weighted_sum_on(Isa::best(), columns, weight, x, out, threads)
    }

    fn weighted_sum_on<T: Float>(
        &self,
        isa: Isa,
        columns: Columns,
        weight: &[T],
        x: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let Columns { width, heads } = columns;
        self.check("x", x, "out", out, width)?;
        check_length("weight", weight.len(), self.num_edges() * heads)?;
        match &self.position {
            None => {
                let scale = InOrder { weight, heads };
                self.for_rows(
                    isa,
                    columns,
                    &Sum {
                        edges: self,
                        x,
                        width,
                        scale,
                    },
                    out,
                    threads,
                );
            }
            Some(position) => {
                let scale = Placed {
                    weight,
                    heads,
                    position,
                };
                self.for_rows(
                    isa,
                    columns,
                    &Sum {
                        edges: self,
                        x,
                        width,
                        scale,
                    },
                    out,
                    threads,
                );
            }
        }
        Ok(())
    }

    /// `out[e, h] = x[u, h] . grad[v, h]` over the edges e = u -> v: the gradient of the weights of [`Self::weighted_sum`].
    pub fn edge_dot<T: Float>(
        &self,
        columns: Columns,
        x: &[T],
        grad: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        self.edge_dot_on(Isa::best(), columns, x, grad, out, threads)
    }

    fn edge_dot_on<T: Float>(
        &self,
        isa: Isa,
        columns: Columns,
        x: &[T],
        grad: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        if self.position.is_some() {
            return Err(Error::Transposed);
        }
        let Columns { width, heads } = columns;
        self.check("x", x, "grad", grad, width)?;
        check_length("out", out.len(), self.num_edges() * heads)?;
        let tasks = self.tasks(width, threads, |row| self.indptr[row] * heads, out);
        pool::for_each(threads, tasks, |(rows, out)| {
            isa.run(EdgeDot {
                edges: self,
                columns,
                x,
                grad,
                rows,
                out,
            });
        });
        Ok(())
    }

    /// `out[v] = max of x[u]` over the edges u -> v, and in `arg[v]` the place of the first edge that has it, in the order of
    /// [`Self::weighted_sum`]'s weights. Without edges: negative infinity and -1. NaN is larger than any number.
    pub fn max<T: Float>(
        &self,
        width: usize,
        x: &[T],
        out: &mut [T],
        arg: &mut [i64],
        threads: usize,
    ) -> Result<(), Error> {
        self.max_on(Isa::best(), width, x, out, arg, threads)
    }

    fn max_on<T: Float>(
        &self,
        isa: Isa,
        width: usize,
        x: &[T],
        out: &mut [T],
        arg: &mut [i64],
        threads: usize,
    ) -> Result<(), Error> {
        let columns = Columns::new(width, 1)?;
        self.check("x", x, "out", out, width)?;
        check_length("arg", arg.len(), out.len())?;
        self.for_rows(isa, columns, &Max { edges: self, x, width }, (out, arg), threads);
        Ok(())
    }

    /// On the transpose: `out[u] = sum of grad[v]` over the edges e = u -> v, in the columns where `arg[v]` is e. The
    /// gradient of [`Self::max`].
    pub fn max_backward<T: Float>(
        &self,
        width: usize,
        grad: &[T],
        arg: &[i64],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let columns = Columns::new(width, 1)?;
        self.check("grad", grad, "out", out, width)?;
        check_length("arg", arg.len(), grad.len())?;
        self.for_rows(
            Isa::best(),
            columns,
            &Chosen {
                edges: self,
                grad,
                arg,
                width,
            },
            out,
            threads,
        );
        Ok(())
    }

    #[inline(always)]
    fn edges(&self, row: usize) -> Range<usize> {
        self.indptr[row]..self.indptr[row + 1]
    }

    #[inline(always)]
    fn position(&self, edge: usize) -> usize {
        self.position.as_ref().map_or(edge, |position| position[edge] as usize)
    }

    /// Columns `start..start + W` of the row of x that `edge` reads; asks for those of a later edge.
    #[inline(always)]
    fn row<'a, T, const W: usize>(&self, x: &'a [T], width: usize, edge: usize, start: usize) -> &'a [T; W] {
        if let Some(&later) = self.sources.get(edge + AHEAD) {
            prefetch(at::<T, W>(x, later as usize * width + start));
        }
        at(x, self.sources[edge] as usize * width + start)
    }

    /// That `sources` has a row of `width` per source and `destinations` one per destination.
    fn check<T>(
        &self,
        source_name: &'static str,
        sources: &[T],
        destination_name: &'static str,
        destinations: &[T],
        width: usize,
    ) -> Result<(), Error> {
        check_length(source_name, sources.len(), self.num_sources * width)?;
        check_length(destination_name, destinations.len(), self.num_destinations() * width)
    }

    fn for_rows<R: Reduce>(&self, isa: Isa, columns: Columns, reduce: &R, out: R::Out<'_>, threads: usize) {
        let width = columns.width;
        let panels = &plan::<R::Item>(columns, isa);
        let tasks = self.tasks(width, threads, |row| row * width, out);
        pool::for_each(threads, tasks, |(rows, out)| {
            isa.run(Rows {
                reduce,
                panels,
                width,
                rows,
                out,
            });
        });
    }

    /// Cuts the rows into ranges of about equal numbers of edges, and `out` with them: `offset` is where a row starts in it.
    fn tasks<O: Split>(
        &self,
        width: usize,
        threads: usize,
        offset: impl Fn(usize) -> usize,
        mut out: O,
    ) -> Vec<(Range<usize>, O)> {
        let rows = self.num_destinations();
        let operations = (self.num_edges() + rows) * width.max(1);
        let most = if threads > 1 {
            threads.saturating_mul(TASKS_PER_THREAD)
        } else {
            1
        };
        let count = (operations / TASK_OPERATIONS).clamp(1, most);
        let mut tasks = Vec::with_capacity(count);
        let mut start = 0;
        for task in 1..=count {
            let end = self.row_after(task, count).max(start);
            let (own, rest) = out.split(offset(end) - offset(start));
            tasks.push((start..end, own));
            (start, out) = (end, rest);
        }
        tasks
    }

    /// The row at which `task` of `count` tasks of equal work ends; a row costs as much as an edge, besides its edges.
    fn row_after(&self, task: usize, count: usize) -> usize {
        let rows = self.num_destinations();
        let goal = ((self.num_edges() + rows) as u128 * task as u128).div_ceil(count as u128) as usize;
        let (mut low, mut high) = (0, rows);
        while low < high {
            let middle = low.midpoint(high);
            if self.indptr[middle] + middle < goal {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

pub(crate) fn check_length(name: &'static str, actual: usize, expected: usize) -> Result<(), Error> {
    if actual == expected {
        return Ok(());
    }
    Err(Error::Length { name, actual, expected })
}

#[inline(always)]
pub(crate) fn at<T, const W: usize>(x: &[T], start: usize) -> &[T; W] {
    x[start..].first_chunk().expect("rows are as long as checked")
}

/// Columns of one head that are accumulated in registers: `width` is a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    start: usize,
    width: usize,
    head: usize,
}

/// Which columns to accumulate together, panel by panel. Columns left over at the end of a head are covered by a pass that
/// overlaps the one before, as each column's sum is the same in any pass.
fn plan<T>(columns: Columns, isa: Isa) -> Vec<Vec<Pass>> {
    let widest = (isa.accumulator_bytes() / size_of::<T>()).min(MAX_WIDTH);
    let mut panels: Vec<Vec<Pass>> = Vec::new();
    let mut room = 0;
    for (head, range) in columns.of_heads() {
        let mut next = range.start;
        while next < range.end {
            let width = pass_width(range.end - next, range.len(), widest);
            if room < width {
                panels.push(Vec::new());
                room = PANEL_BYTES / size_of::<T>();
            }
            room = room.saturating_sub(width);
            let start = next.min(range.end - width);
            panels.last_mut().expect("room").push(Pass { start, width, head });
            next = start + width;
        }
    }
    panels
}

/// The smallest power of two that covers the columns `left`, or the largest one that the head has room for.
fn pass_width(left: usize, all: usize, widest: usize) -> usize {
    let cover = left.next_power_of_two();
    if cover <= all.min(widest) {
        cover
    } else {
        widest.min(1 << left.ilog2())
    }
}

/// The widest pass.
const MAX_WIDTH: usize = 128;

/// Output that is cut where rows are.
trait Split: Send + Sized {
    fn split(self, at: usize) -> (Self, Self);
}

impl<T: Send> Split for &mut [T] {
    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

impl<A: Split, B: Split> Split for (A, B) {
    fn split(self, at: usize) -> (Self, Self) {
        let (a, b) = (self.0.split(at), self.1.split(at));
        ((a.0, b.0), (a.1, b.1))
    }
}

/// What becomes of the in-edges of a row.
trait Reduce: Sync {
    type Item;
    type Out<'o>: Split;

    /// Writes the `W` columns of `pass` of `row` to `out`, whose item `at` is the first of them.
    fn write<const W: usize>(&self, row: usize, pass: Pass, out: &mut Self::Out<'_>, at: usize);
}

struct Rows<'a, 'o, R: Reduce> {
    reduce: &'a R,
    panels: &'a [Vec<Pass>],
    width: usize,
    rows: Range<usize>,
    out: R::Out<'o>,
}

impl<R: Reduce> Kernel for Rows<'_, '_, R> {
    #[inline(always)]
    fn run(mut self, _: Isa) {
        for panel in self.panels {
            for row in self.rows.clone() {
                for &pass in panel {
                    self.write(row, pass);
                }
            }
        }
    }
}

impl<R: Reduce> Rows<'_, '_, R> {
    #[inline(always)]
    fn write(&mut self, row: usize, pass: Pass) {
        let at = (row - self.rows.start) * self.width + pass.start;
        let (reduce, out) = (self.reduce, &mut self.out);
        match pass.width {
            1 => reduce.write::<1>(row, pass, out, at),
            2 => reduce.write::<2>(row, pass, out, at),
            4 => reduce.write::<4>(row, pass, out, at),
            8 => reduce.write::<8>(row, pass, out, at),
            16 => reduce.write::<16>(row, pass, out, at),
            32 => reduce.write::<32>(row, pass, out, at),
            64 => reduce.write::<64>(row, pass, out, at),
            _ => reduce.write::<MAX_WIDTH>(row, pass, out, at),
        }
    }
}

#[inline(always)]
pub(crate) fn at_mut<T, const W: usize>(out: &mut [T], start: usize) -> &mut [T; W] {
    out[start..].first_chunk_mut().expect("rows are as long as checked")
}

/// What an edge multiplies a row with.
trait Scale<T>: Sync {
    type Value: Copy;

    fn of(&self, edge: usize, head: usize) -> Self::Value;

    fn times(value: Self::Value, x: T) -> T;
}

struct Unit;

impl<T> Scale<T> for Unit {
    type Value = ();

    #[inline(always)]
    fn of(&self, _: usize, _: usize) {}

    #[inline(always)]
    fn times((): (), x: T) -> T {
        x
    }
}

struct InOrder<'a, T> {
    weight: &'a [T],
    heads: usize,
}

impl<T: Float> Scale<T> for InOrder<'_, T> {
    type Value = T;

    #[inline(always)]
    fn of(&self, edge: usize, head: usize) -> T {
        self.weight[edge * self.heads + head]
    }

    #[inline(always)]
    fn times(value: T, x: T) -> T {
        value * x
    }
}

struct Placed<'a, T> {
    weight: &'a [T],
    heads: usize,
    position: &'a [u32],
}

impl<T: Float> Scale<T> for Placed<'_, T> {
    type Value = T;

    #[inline(always)]
    fn of(&self, edge: usize, head: usize) -> T {
        if let Some(&later) = self.position.get(edge + AHEAD) {
            prefetch(at::<T, 1>(self.weight, later as usize * self.heads + head));
        }
        self.weight[self.position[edge] as usize * self.heads + head]
    }

    #[inline(always)]
    fn times(value: T, x: T) -> T {
        value * x
    }
}

struct Sum<'a, T, S> {
    edges: &'a Aggregator,
    x: &'a [T],
    width: usize,
    scale: S,
}

impl<T: Float, S: Scale<T>> Reduce for Sum<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const W: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], at: usize) {
        let mut sum = [T::ZERO; W];
        for edge in self.edges.edges(row) {
            let value = self.scale.of(edge, pass.head);
            let x: &[T; W] = self.edges.row(self.x, self.width, edge, pass.start);
            for column in 0..W {
                sum[column] = sum[column] + S::times(value, x[column]);
            }
        }
        *at_mut(out, at) = sum;
    }
}

struct Max<'a, T> {
    edges: &'a Aggregator,
    x: &'a [T],
    width: usize,
}

impl<T: Float> Reduce for Max<'_, T> {
    type Item = T;
    type Out<'o> = (&'o mut [T], &'o mut [i64]);

    #[inline(always)]
    fn write<const W: usize>(&self, row: usize, pass: Pass, (out, arg): &mut Self::Out<'_>, at: usize) {
        let edges = self.edges.edges(row);
        if edges.is_empty() {
            *at_mut(out, at) = [T::NEG_INFINITY; W];
            *at_mut(arg, at) = [-1; W];
            return;
        }
        let first = edges.start;
        let mut best: [T; W] = *self.edges.row(self.x, self.width, first, pass.start);
        let mut chosen = [0u32; W]; // counted from the row's first edge
        for edge in first + 1..edges.end {
            let x: &[T; W] = self.edges.row(self.x, self.width, edge, pass.start);
            let number = (edge - first) as u32;
            for column in 0..W {
                let larger = exceeds(x[column], best[column]);
                best[column] = if larger { x[column] } else { best[column] };
                chosen[column] = if larger { number } else { chosen[column] };
            }
        }
        *at_mut(out, at) = best;
        *at_mut(arg, at) = chosen.map(|number| self.edges.position(first + number as usize) as i64);
    }
}

/// Whether `x` is larger than `best`, where NaN is larger than all numbers.
#[inline(always)]
#[allow(clippy::eq_op, clippy::neg_cmp_op_on_partial_ord)]
fn exceeds<T: Float>(x: T, best: T) -> bool {
    !(x <= best) & (best == best)
}

struct Chosen<'a, T> {
    edges: &'a Aggregator,
    grad: &'a [T],
    arg: &'a [i64],
    width: usize,
}

impl<T: Float> Reduce for Chosen<'_, T> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const W: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], at: usize) {
        let mut sum = [T::ZERO; W];
        for edge in self.edges.edges(row) {
            let own = self.edges.position(edge) as i64;
            let arg: &[i64; W] = self.edges.row(self.arg, self.width, edge, pass.start);
            let grad: &[T; W] = self.edges.row(self.grad, self.width, edge, pass.start);
            for column in 0..W {
                sum[column] = sum[column] + if arg[column] == own { grad[column] } else { T::ZERO };
            }
        }
        *at_mut(out, at) = sum;
    }
}

struct EdgeDot<'a, T> {
    edges: &'a Aggregator,
    columns: Columns,
    x: &'a [T],
    grad: &'a [T],
    rows: Range<usize>,
    out: &'a mut [T],
}

impl<T: Float> Kernel for EdgeDot<'_, T> {
    #[inline(always)]
    fn run(self, _: Isa) {
        let Columns { width, heads } = self.columns;
        let first = self.edges.indptr[self.rows.start];
        for row in self.rows {
            let grad = &self.grad[row * width..][..width];
            for edge in self.edges.edges(row) {
                if let Some(&later) = self.edges.sources.get(edge + AHEAD) {
                    prefetch(&self.x[later as usize * width..][..width]);
                }
                let x = &self.x[self.edges.sources[edge] as usize * width..][..width];
                for (head, columns) in self.columns.of_heads() {
                    self.out[(edge - first) * heads + head] = dot(&x[columns.clone()], &grad[columns]);
                }
            }
        }
    }
}

/// Column j is added to partial sum j % `LANES`, and these are added pairwise: an order that no register size changes.
#[inline(always)]
fn dot<T: Float>(a: &[T], b: &[T]) -> T {
    let mut sums = [T::ZERO; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] = sums[lane] + a[lane] * b[lane];
        }
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum = *sum + a * b;
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            sums[lane] = sums[lane] + sums[lane + half];
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    fn random(num_sources: usize, degrees: &[usize]) -> Aggregator {
        let mut indptr = vec![0];
        indptr.extend(degrees.iter().scan(0, |sum, &degree| {
            *sum += degree as i64;
            Some(*sum)
        }));
        let mut stream = Stream::new(1);
        let edges = indptr[degrees.len()] as usize;
        let indices: Vec<i64> = (0..edges).map(|_| stream.below(num_sources as u64) as i64).collect();
        Aggregator::new(Csc::new(&indptr, &indices, num_sources).unwrap()).unwrap()
    }

    fn values(count: usize) -> Vec<f32> {
        let mut stream = Stream::new(2);
        (0..count).map(|_| stream.next_f64() as f32 - 0.5).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let edges = random(30, &[0, 1, 40, 7, 0, 90, 3]);
        let (forward, backward) = (&edges, &edges.transpose());
        for width in (0..40).chain([63, 100, 128, 131, 300]) {
            let columns = Columns::new(width, 1).unwrap();
            let (x, grad, weight) = (values(30 * width), values(7 * width), values(edges.num_edges()));
            let all = |isa| {
                let (mut sum, mut back, mut max) = (grad.clone(), x.clone(), grad.clone());
                let (mut dots, mut arg) = (weight.clone(), vec![0; max.len()]);
                forward.weighted_sum_on(isa, columns, &weight, &x, &mut sum, 1).unwrap();
                backward
                    .weighted_sum_on(isa, columns, &weight, &grad, &mut back, 1)
                    .unwrap();
                forward.edge_dot_on(isa, columns, &x, &grad, &mut dots, 1).unwrap();
                forward.max_on(isa, width, &x, &mut max, &mut arg, 1).unwrap();
                ([sum, back, dots, max].map(|result| bits(&result)), arg)
            };
            let expected = all(Isa::Portable);
            for isa in Isa::available() {
                assert_eq!(all(isa), expected, "{isa:?}, {width} columns");
            }
        }
    }

    #[test]
    fn passes_cover_each_head_and_stay_in_it() {
        for width in 0..300usize {
            for heads in (1..=width.max(1)).filter(|&heads| width.is_multiple_of(heads)) {
                let columns = Columns::new(width, heads).unwrap();
                let passes: Vec<Pass> = plan::<f32>(columns, Isa::Portable).concat();
                let mut covered = vec![false; width];
                for pass in &passes {
                    let head = columns.of_heads().nth(pass.head).unwrap().1;
                    assert!(head.start <= pass.start && pass.start + pass.width <= head.end);
                    covered[pass.start..pass.start + pass.width].fill(true);
                }
                assert!(
                    covered.into_iter().all(|column| column),
                    "{width} columns, {heads} heads"
                );
            }
        }
    }

    #[test]
    fn tasks_have_equal_numbers_of_edges() {
        let edges = random(10, &(0..20_000).map(|row| row % 40).collect::<Vec<_>>());
        let mut out = vec![0f32; 20_000 * 8];
        let tasks = edges.tasks(8, 2, |row| row * 8, &mut out[..]);
        assert_eq!(tasks.len(), 16);
        let counts: Vec<usize> = tasks
            .iter()
            .map(|(rows, _)| edges.indptr[rows.end] - edges.indptr[rows.start])
            .collect();
        assert_eq!(counts.iter().sum::<usize>(), edges.num_edges());
        assert!(
            counts.iter().all(|&count| count.abs_diff(edges.num_edges() / 16) < 50),
            "{counts:?}"
        );
    }

    #[test]
    fn impossible_heads_are_refused() {
        assert!(Columns::new(0, 0).is_ok() && Columns::new(0, 3).is_ok() && Columns::new(6, 3).is_ok());
        let text = |width, heads| Columns::new(width, heads).unwrap_err().to_string();
        assert_eq!(text(6, 4), "6 columns do not divide into 4 heads");
        assert_eq!(text(6, 0), "6 columns do not divide into 0 heads");
    }
}
