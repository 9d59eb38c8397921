//! Sums, maxima and dot products over the in-edges of each destination.
//!
//! A row of the result is computed by one thread, its edges in the order in which they
//! are given, each product rounded before it is added: the bits depend neither on the
//! number of threads nor on the instruction set.

use std::ops::Range;

use crate::csc::{Csc, Id};
use crate::dropout::{Dropout, words};
use crate::error::check_length;
use crate::isa::{Isa, at, prefetch};
use crate::memory::filled;
use crate::{Error, Float, Number, team};

mod attention;
mod dot;
mod reduce;
mod rows;
mod stored;

pub use attention::{Attention, Exact, destination_backward};
use dot::EdgeDot;
use reduce::{Apart, Beside, BesideKept, InOrder, Max, OfSource, Placed, Rest, Sum, Unit};
use rows::{Reduce, Rows, Split, plan};

/// Number of edges between prefetching a row of x and using the row. 16 to 32 were
/// equally good, 8 and 64 slower.
const AHEAD: usize = 24;
/// Fewer operations than this are not worth a second thread.
const TASK_OPERATIONS: usize = 1 << 16;
/// More tasks than threads, so that a thread which lost its core does not keep the
/// others waiting.
const TASKS_PER_THREAD: usize = 8;

/// The factors of the rows that are added up.
#[derive(Debug, Clone, Copy)]
pub enum Factor<'a, W> {
    /// 1 each.
    One,
    /// [edges, heads] in the order of the edges that the aggregator, or the one it is
    /// the transpose of, was made from.
    Edge(&'a [W]),
    /// [sources] one factor for all edges that leave a source.
    Source(&'a [W]),
}

/// How a row of the result follows from the rows that are added up.
#[derive(Debug, Clone, Copy)]
pub struct How<'a, W> {
    /// Of each edge's row.
    pub factor: Factor<'a, W>,
    /// [destinations] a factor of each sum.
    pub destination: Option<&'a [W]>,
    /// A factor of the destination's own row, which is added where the factor is not
    /// 0. The destinations are the first sources then.
    pub own: W,
    /// Whether the result is added to what `out` has.
    pub add: bool,
}

impl<'a, W: Float> How<'a, W> {
    /// A sum with these factors.
    pub fn by(factor: Factor<'a, W>) -> Self {
        Self {
            factor,
            destination: None,
            own: W::ZERO,
            add: false,
        }
    }
}

/// Rows of a matrix, of which the first columns may be meant.
#[derive(Debug)]
pub struct Matrix<V> {
    /// All rows.
    pub values: V,
    /// Numbers from a row to the next.
    pub stride: usize,
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

    /// Columns of one head.
    fn of_head(self) -> usize {
        self.width.checked_div(self.heads).unwrap_or(0)
    }
}

/// The in-edges of a graph, ready to aggregate over: an own copy, validated, so that
/// nobody can change it in between.
#[derive(Debug, Clone)]
pub struct Aggregator {
    indptr: Box<[usize]>, // [num_destinations + 1]
    sources: Box<[u32]>,  // [num_edges]
    /// [num_edges] the weight of each edge, where weights are in another order.
    position: Option<Box<[u32]>>,
    num_sources: usize,
}

impl Aggregator {
    /// Copies the edges of `csc`. There are at most 2^32 - 1 sources, destinations and
    /// edges.
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

    /// Turns the edges around for the backward pass. Each edge keeps the place of its
    /// weight. The edges of a source are in the order of their destinations here.
    pub fn transpose(&self) -> Result<Self, Error> {
        let len = self.num_sources + 1; // at most 2^32
        let mut indptr = filled(0, Some(len), "num_sources", self.num_sources)?;
        for &source in &self.sources {
            indptr[source as usize + 1] += 1;
        }
        for node in 0..self.num_sources {
            indptr[node + 1] += indptr[node];
        }
        let mut free = filled(0, Some(len), "num_sources", self.num_sources)?;
        free.copy_from_slice(&indptr);
        let num_edges = self.num_edges();
        let mut sources = filled(0, Some(num_edges), "num_edges", num_edges)?;
        let mut position = filled(0, Some(num_edges), "num_edges", num_edges)?;
        for row in 0..self.num_destinations() {
            for edge in self.edges(row) {
                let slot = &mut free[self.sources[edge] as usize];
                sources[*slot] = row as u32;
                position[*slot] = self.position(edge) as u32;
                *slot += 1;
            }
        }
        Ok(Self {
            indptr: indptr.into_boxed_slice(),
            sources: sources.into_boxed_slice(),
            position: Some(position.into_boxed_slice()),
            num_sources: self.num_destinations(),
        })
    }

    /// Computes `out[v, h] = sum of factor * x[u, h]` over the edges u -> v for each
    /// head h, with the additional terms of `how`.
    pub fn sum<T: Number>(
        &self,
        columns: Columns,
        how: How<'_, T::Wide>,
        x: Matrix<&[T]>,
        out: Matrix<&mut [T]>,
        threads: usize,
    ) -> Result<(), Error> {
        self.sum_on(Isa::best(), columns, how, x, out, threads)
    }

    fn sum_on<T: Number>(
        &self,
        isa: Isa,
        columns: Columns,
        how: How<'_, T::Wide>,
        Matrix { values: x, stride }: Matrix<&[T]>,
        out: Matrix<&mut [T]>,
        threads: usize,
    ) -> Result<(), Error> {
        for (name, stride) in [("x", stride), ("out", out.stride)] {
            if stride < columns.width {
                return Err(Error::Narrow {
                    name,
                    columns: stride,
                    width: columns.width,
                });
            }
        }
        if how.own != T::Wide::ZERO {
            self.check_prefix(self.num_destinations(), self.num_sources)?;
        }
        check_length("x", x.len(), self.num_sources.saturating_mul(stride))?;
        check_length(
            "out",
            out.values.len(),
            self.num_destinations().saturating_mul(out.stride),
        )?;
        let rest = self.rest(how, columns.heads)?;
        macro_rules! by {
            ($scale:expr) => {{
                let sum = Sum {
                    edges: self,
                    x,
                    stride,
                    scale: $scale,
                    rest,
                };
                self.for_strided_rows(isa, columns, out.stride, &sum, out.values, threads)
            }};
        }
        let heads = columns.heads;
        match (how.factor, &self.position) {
            (Factor::One, _) => by!(Unit),
            (Factor::Edge(weight), None) => by!(InOrder { weight, heads }),
            (Factor::Edge(weight), Some(position)) => by!(Placed {
                weight,
                heads,
                position
            }),
            (Factor::Source(factor), _) => by!(OfSource {
                factor,
                sources: &self.sources
            }),
        }
        Ok(())
    }

    /// Checks the factors.
    fn rest<'a, W: Float>(&self, how: How<'a, W>, heads: usize) -> Result<Rest<'a, W>, Error> {
        match how.factor {
            Factor::One => {}
            Factor::Edge(weight) => check_length("weight", weight.len(), self.num_edges().saturating_mul(heads))?,
            Factor::Source(factor) => check_length("source", factor.len(), self.num_sources)?,
        }
        if let Some(factor) = how.destination {
            check_length("destination", factor.len(), self.num_destinations())?;
        }
        Ok(Rest {
            destination: how.destination,
            own: how.own,
            add: how.add,
        })
    }

    /// Writes [destinations, 2 width] rows: `out[v] = [sum | x[v]]`, with the sums of
    /// [`Self::sum`]. `how` has no `own` and no `add`. The destinations are the first
    /// sources. So one product serves a layer that reads a node's neighbours and the
    /// node itself.
    ///
    /// Where `kept` [sources, words of a row] of [`Dropout::kept`] is given, the rows
    /// are those that dropout makes of x, without a pass over these.
    pub fn sum_beside<T: Number>(
        &self,
        width: usize,
        how: How<'_, T::Wide>,
        x: &[T],
        kept: Option<(&[u32], Dropout)>,
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        self.sum_beside_on(Isa::best(), width, how, x, kept, out, threads)
    }

    #[allow(clippy::too_many_arguments)]
    fn sum_beside_on<T: Number>(
        &self,
        isa: Isa,
        width: usize,
        how: How<'_, T::Wide>,
        x: &[T],
        kept: Option<(&[u32], Dropout)>,
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        if self.position.is_some() {
            return Err(Error::Direction {
                function: "sum_beside",
                name: "x",
                wanted: "original",
            });
        }
        self.check_prefix(self.num_destinations(), self.num_sources)?;
        check_length("x", x.len(), self.num_sources.saturating_mul(width))?;
        let twice = width.saturating_mul(2);
        check_length("out", out.len(), self.num_destinations().saturating_mul(twice))?;
        if let Some((kept, _)) = kept {
            check_length("kept", kept.len(), self.num_sources.saturating_mul(words(width)))?;
        }
        let (rest, columns) = (self.rest(how, 1)?, Columns::new(width, 1)?);
        macro_rules! by {
            ($scale:expr) => {{
                let sum = Sum {
                    edges: self,
                    x,
                    stride: width,
                    scale: $scale,
                    rest,
                };
                match kept {
                    None => self.for_strided_rows(isa, columns, twice, &Beside { sum }, out, threads),
                    Some((kept, dropout)) => {
                        let factor = dropout.scale();
                        self.for_strided_rows(
                            isa,
                            columns,
                            twice,
                            &BesideKept { sum, kept, factor },
                            out,
                            threads,
                        )
                    }
                }
            }};
        }
        match how.factor {
            Factor::One => by!(Unit),
            Factor::Edge(weight) => by!(InOrder { weight, heads: 1 }),
            Factor::Source(factor) => by!(OfSource {
                factor,
                sources: &self.sources
            }),
        }
        Ok(())
    }

    /// The gradient of [`Self::sum_beside`], by the transpose of the edges: `out[u] =
    /// b[u] + sum of factor * a[v]` where `grad[v] = [a[v] | b[v]]`. Rows of `out`
    /// beyond those of `grad` have no b. `how` has no `own` and no `add`.
    pub fn sum_beside_backward<T: Number>(
        &self,
        width: usize,
        how: How<'_, T::Wide>,
        grad: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        self.sum_beside_backward_on(Isa::best(), width, how, grad, out, threads)
    }

    fn sum_beside_backward_on<T: Number>(
        &self,
        isa: Isa,
        width: usize,
        how: How<'_, T::Wide>,
        grad: &[T],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let Some(position) = &self.position else {
            return Err(Error::Direction {
                function: "sum_beside_backward",
                name: "grad",
                wanted: "transposed",
            });
        };
        self.check_prefix(self.num_sources, self.num_destinations())?;
        let twice = width.saturating_mul(2);
        check_length("grad", grad.len(), self.num_sources.saturating_mul(twice))?;
        check_length("out", out.len(), self.num_destinations().saturating_mul(width))?;
        let (rest, columns) = (self.rest(how, 1)?, Columns::new(width, 1)?);
        macro_rules! by {
            ($scale:expr) => {{
                let sum = Sum {
                    edges: self,
                    x: grad,
                    stride: twice,
                    scale: $scale,
                    rest,
                };
                self.for_strided_rows(isa, columns, width, &Apart { sum }, out, threads)
            }};
        }
        match how.factor {
            Factor::One => by!(Unit),
            Factor::Edge(weight) => by!(Placed {
                weight,
                heads: 1,
                position
            }),
            Factor::Source(factor) => by!(OfSource {
                factor,
                sources: &self.sources
            }),
        }
        Ok(())
    }

    /// `out[e, h] = x[u, h] . grad[v, h]` over the edges e = u -> v: the gradient of
    /// the weights of [`Self::weighted_sum`].
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
        check_length("out", out.len(), self.num_edges().saturating_mul(heads))?;
        let tasks = self.tasks(width, threads, |row| self.indptr[row] * heads, out);
        team::for_each(threads, tasks, |(rows, out)| {
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

    /// `out[v] = max of x[u]` over the edges u -> v, and in `arg[v]` the place of the
    /// first edge that has it, in the order of [`Self::weighted_sum`]'s weights.
    /// Without edges: negative infinity and -1. NaN is larger than any number.
    pub fn max<T: Float + Number>(
        &self,
        width: usize,
        x: &[T],
        out: &mut [T],
        arg: &mut [i64],
        threads: usize,
    ) -> Result<(), Error> {
        self.max_on(Isa::best(), width, x, out, arg, threads)
    }

    fn max_on<T: Float + Number>(
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

    /// `out[u] = sum of grad[v]` over the edges e = u -> v, in the columns where
    /// `arg[v]` is e: the gradient of [`Self::max`]. An `arg` that names no edge adds
    /// nothing.
    pub fn max_backward<T: Float>(
        &self,
        width: usize,
        grad: &[T],
        arg: &[i64],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        if self.position.is_some() {
            return Err(Error::Transposed);
        }
        self.check("out", out, "grad", grad, width)?;
        check_length("arg", arg.len(), grad.len())?;
        out.fill(T::ZERO);
        if width == 0 {
            return Ok(());
        }
        // Each task reads all and adds to its own rows of `out`, so that every sum has
        // the same order on any number of threads.
        let count = (grad.len() / TASK_OPERATIONS).clamp(1, threads.max(1));
        let rows = self.num_sources.div_ceil(count).max(1);
        let tasks = out.chunks_mut(rows * width).enumerate().collect();
        team::for_each(threads, tasks, |(task, out): (usize, &mut [T])| {
            let chosen = grad.chunks_exact(width).zip(arg.chunks_exact(width));
            for (grad, arg) in chosen {
                for (column, (&grad, &edge)) in grad.iter().zip(arg).enumerate() {
                    let row = self.sources.get(edge as usize).map(|&source| source as usize);
                    let own = row.and_then(|row| row.checked_sub(task * rows));
                    if let Some(sum) = own.and_then(|row| out.get_mut(row * width + column)) {
                        *sum = *sum + grad;
                    }
                }
            }
        });
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

    /// Returns the columns from `start` on of the row of x that `edge` reads, as K
    /// heads of D. Prefetches the same columns for a later edge.
    #[inline(always)]
    fn row<'a, T, const D: usize, const K: usize>(
        &self,
        x: &'a [T],
        width: usize,
        edge: usize,
        start: usize,
    ) -> &'a [[T; D]; K] {
        if let Some(&later) = self.sources.get(edge + AHEAD) {
            prefetch(at::<T, D, K>(x, later as usize * width + start).as_flattened());
        }
        at(x, self.sources[edge] as usize * width + start)
    }

    /// That `sources` has a row of `width` per source and `destinations` one per
    /// destination.
    fn check<T>(
        &self,
        source_name: &'static str,
        sources: &[T],
        destination_name: &'static str,
        destinations: &[T],
        width: usize,
    ) -> Result<(), Error> {
        check_length(source_name, sources.len(), self.num_sources.saturating_mul(width))?;
        check_length(
            destination_name,
            destinations.len(),
            self.num_destinations().saturating_mul(width),
        )
    }

    /// That rows of the destinations are among the first of the sources.
    fn check_prefix(&self, num_destinations: usize, num_sources: usize) -> Result<(), Error> {
        if num_destinations <= num_sources {
            return Ok(());
        }
        Err(Error::NotPrefix {
            num_destinations,
            num_sources,
        })
    }

    fn for_rows<R: Reduce>(&self, isa: Isa, columns: Columns, reduce: &R, out: R::Out<'_>, threads: usize) {
        self.for_strided_rows(isa, columns, columns.width, reduce, out, threads);
    }

    /// As `for_rows`, where rows of `out` begin every `stride` items.
    fn for_strided_rows<R: Reduce>(
        &self,
        isa: Isa,
        columns: Columns,
        stride: usize,
        reduce: &R,
        out: R::Out<'_>,
        threads: usize,
    ) {
        let panels = &plan::<R::Item, <R::Item as Number>::Wide>(columns, isa, !reduce.adds());
        let tasks = self.tasks(columns.width, threads, |row| row * stride, out);
        team::for_each(threads, tasks, |(rows, out)| {
            isa.run(Rows {
                reduce,
                panels,
                stride,
                rows,
                out,
            });
        });
    }

    /// Cuts the rows into ranges of about equal numbers of edges, and `out` with them:
    /// `offset` is where a row starts in it.
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

    /// The row at which `task` of `count` tasks of equal work ends. A row costs as much
    /// as an edge, besides its edges.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bf16;
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

    /// Plain rows of `width` columns.
    fn matrix<V>(values: V, stride: usize) -> Matrix<V> {
        Matrix { values, stride }
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn all_instruction_sets_give_the_same_bits() {
        let edges = random(30, &[0, 1, 40, 7, 0, 90, 3]);
        let (forward, backward) = (&edges, &edges.transpose().unwrap());
        let one_head = (0..40).chain([63, 100, 128, 131, 300]).map(|width| (width, 1));
        for (width, heads) in one_head.chain([(24, 6), (64, 8), (48, 3), (96, 3), (70, 7)]) {
            let columns = Columns::new(width, heads).unwrap();
            let (x, grad, weight) = (values(30 * width), values(7 * width), values(edges.num_edges() * heads));
            let all = |isa| {
                let (mut sum, mut back, mut max) = (grad.clone(), x.clone(), grad.clone());
                let (mut dots, mut arg) = (weight.clone(), vec![0; max.len()]);
                let how = How::by(Factor::Edge(&weight[..]));
                let out = matrix(&mut sum[..], width);
                forward.sum_on(isa, columns, how, matrix(&x, width), out, 1).unwrap();
                let out = matrix(&mut back[..], width);
                backward
                    .sum_on(isa, columns, how, matrix(&grad, width), out, 1)
                    .unwrap();
                forward.edge_dot_on(isa, columns, &x, &grad, &mut dots, 1).unwrap();
                forward.max_on(isa, width, &x, &mut max, &mut arg, 1).unwrap();
                ([sum, back, dots, max].map(|result| bits(&result)), arg)
            };
            let expected = all(Isa::Portable);
            for isa in Isa::available() {
                assert_eq!(all(isa), expected, "{isa:?}, {width} columns, {heads} heads");
            }
        }
    }

    #[test]
    fn sums_beside_rows_and_their_gradients_have_the_same_bits_on_all_instruction_sets() {
        let edges = random(30, &[0, 1, 40, 7, 0, 90, 3]);
        let (back, weight) = (edges.transpose().unwrap(), values(edges.num_edges()));
        for width in (0..40).chain([63, 100, 128, 131, 300]) {
            let (x, grad) = (values(30 * width), values(7 * 2 * width));
            let mut sum = vec![0.0; 7 * width];
            let (columns, how) = (Columns::new(width, 1).unwrap(), How::by(Factor::Edge(&weight[..])));
            edges
                .sum(columns, how, matrix(&x, width), matrix(&mut sum, width), 1)
                .unwrap();
            let expected: Vec<f32> = (0..7 * width)
                .step_by(width.max(1))
                .flat_map(|row| [&sum[row..row + width], &x[row..row + width]].concat())
                .collect();
            let mut gradients = Vec::new();
            for isa in Isa::available() {
                let (mut out, mut gradient) = (vec![7.0; 7 * 2 * width], vec![7.0; 30 * width]);
                edges.sum_beside_on(isa, width, how, &x, None, &mut out, 1).unwrap();
                assert_eq!(bits(&out), bits(&expected), "{isa:?}, {width} columns");
                back.sum_beside_backward_on(isa, width, how, &grad, &mut gradient, 1)
                    .unwrap();
                gradients.push(bits(&gradient));
            }
            assert!(gradients.iter().all(|other| *other == gradients[0]), "{width} columns");
        }
    }

    #[test]
    fn sums_of_bfloat16_are_sums_of_float32_rounded_once() {
        let edges = random(30, &[0, 1, 40, 7, 0, 90, 3]);
        let (back, weight) = (edges.transpose().unwrap(), values(edges.num_edges()));
        let rounded = |values: &[f32]| -> Vec<Bf16> { values.iter().map(|&value| Bf16::nearest(value)).collect() };
        for width in (0..40).chain([63, 100, 128, 131, 300]) {
            let (x, grad) = (rounded(&values(30 * width)), rounded(&values(14 * width)));
            let (wide_x, wide_grad) = (wide(&x), wide(&grad));
            let (mut sum, mut beside, mut gradient) =
                (vec![0.0; 7 * width], vec![0.0; 14 * width], vec![0.0; 30 * width]);
            let (columns, how) = (Columns::new(width, 1).unwrap(), How::by(Factor::Edge(&weight[..])));
            let plain = How::by(Factor::One);
            edges
                .sum(columns, plain, matrix(&wide_x, width), matrix(&mut sum, width), 1)
                .unwrap();
            edges.sum_beside(width, how, &wide_x, None, &mut beside, 1).unwrap();
            back.sum_beside_backward(width, how, &wide_grad, &mut gradient, 1)
                .unwrap();
            for (isa, threads) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
                let mut out = [7, 14, 30].map(|rows| vec![Bf16::ZERO; rows * width]);
                let first = matrix(&mut out[0][..], width);
                edges
                    .sum_on(isa, columns, plain, matrix(&x, width), first, threads)
                    .unwrap();
                edges
                    .sum_beside_on(isa, width, how, &x, None, &mut out[1], threads)
                    .unwrap();
                back.sum_beside_backward_on(isa, width, how, &grad, &mut out[2], threads)
                    .unwrap();
                let expected = [rounded(&sum), rounded(&beside), rounded(&gradient)];
                assert_eq!(out, expected, "{isa:?}, {width} columns");
            }
        }
    }

    #[test]
    fn sums_of_kept_elements_are_sums_after_dropout() {
        let edges = random(30, &[0, 1, 40, 7, 0, 90, 3]);
        let (ids, weight) = ((0..30).map(|i| i * 7).collect::<Vec<i64>>(), values(edges.num_edges()));
        for (width, p) in (0..40)
            .chain([63, 100, 128, 131, 300])
            .flat_map(|width| [(width, 0.5), (width, 0.3)])
        {
            let (dropout, mut kept) = (Dropout::new(5, p).unwrap(), vec![0; 30 * words(width)]);
            dropout.kept(&ids, width, &mut kept, 1).unwrap();
            let x: Vec<Bf16> = values(30 * width).into_iter().map(Bf16::nearest).collect();
            same_as_dropped(&edges, (width, &weight), &x, Bf16::ZERO, (&ids, dropout, &kept));
            same_as_dropped(
                &edges,
                (width, &weight),
                &values(30 * width),
                0.0,
                (&ids, dropout, &kept),
            );
        }
        let (dropout, x) = (Dropout::new(5, 0.5).unwrap(), values(30));
        let kept = edges.sum_beside(
            1,
            How::by(Factor::Edge(&weight)),
            &x,
            Some((&[0; 29], dropout)),
            &mut values(14),
            1,
        );
        assert_eq!(kept.unwrap_err().to_string(), "kept has 29 entries, expected 30");
    }

    /// Compares with dropout first, for every instruction set.
    fn same_as_dropped<T: Number<Wide = f32> + PartialEq>(
        edges: &Aggregator,
        (width, weight): (usize, &[f32]),
        x: &[T],
        zero: T,
        (ids, dropout, kept): (&[i64], Dropout, &[u32]),
    ) {
        let (mut dropped, mut expected) = (vec![zero; x.len()], vec![zero; 14 * width]);
        dropout.apply(ids, width, x, None, &mut dropped, 1).unwrap();
        let how = How::by(Factor::Edge(weight));
        edges.sum_beside(width, how, &dropped, None, &mut expected, 1).unwrap();
        for isa in Isa::available() {
            let (mut out, kept) = (vec![zero; 14 * width], Some((kept, dropout)));
            edges.sum_beside_on(isa, width, how, x, kept, &mut out, 3).unwrap();
            assert!(out == expected, "{isa:?}, {width} columns");
        }
    }

    fn wide(values: &[Bf16]) -> Vec<f32> {
        values.iter().map(|value| value.wide()).collect()
    }

    #[test]
    fn sums_beside_rows_need_the_edges_in_one_direction_and_rows_of_destinations() {
        let edges = random(7, &[1, 2, 3]);
        let (back, few) = (edges.transpose().unwrap(), random(2, &[1, 2, 3]));
        let text = |result: Result<(), Error>| result.unwrap_err().to_string();
        let (weight, x) = (values(6), values(7));
        let how = How::by(Factor::Edge(&weight[..]));
        assert_eq!(
            text(back.sum_beside(1, how, &x, None, &mut values(6), 1)),
            "sum_beside of x needs the original aggregator"
        );
        assert_eq!(
            text(edges.sum_beside_backward(1, how, &x, &mut values(7), 1)),
            "sum_beside_backward of grad needs the transposed aggregator"
        );
        assert_eq!(
            text(few.sum_beside(1, how, &x, None, &mut values(6), 1)),
            "out: the 3 destinations are not the first of 2 sources"
        );
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
