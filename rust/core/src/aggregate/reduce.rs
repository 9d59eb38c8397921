//! Sums and maxima of the in-edges of a row.

use std::hint::select_unpredictable;

use super::rows::{Pass, Reduce};
use super::{AHEAD, Aggregator};
use crate::dropout::{BITS, words};
use crate::isa::{at, at_mut, prefetch};
use crate::{Float, Number};

/// The factor of an edge.
pub(super) trait Scale<T>: Sync {
    /// Whether heads have factors of their own.
    const HEADS: bool = true;
    type Value: Copy;

    fn of(&self, edge: usize, head: usize) -> Self::Value;

    fn times(value: Self::Value, x: T) -> T;
}

pub(super) struct Unit;

impl<T> Scale<T> for Unit {
    const HEADS: bool = false;
    type Value = ();

    #[inline(always)]
    fn of(&self, _: usize, _: usize) {}

    #[inline(always)]
    fn times((): (), x: T) -> T {
        x
    }
}

pub(super) struct InOrder<'a, T> {
    pub(super) weight: &'a [T],
    pub(super) heads: usize,
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

pub(super) struct Placed<'a, T> {
    pub(super) weight: &'a [T],
    pub(super) heads: usize,
    pub(super) position: &'a [u32],
}

impl<T: Float> Scale<T> for Placed<'_, T> {
    type Value = T;

    #[inline(always)]
    fn of(&self, edge: usize, head: usize) -> T {
        if let Some(&later) = self.position.get(edge + AHEAD) {
            prefetch(&self.weight[later as usize * self.heads + head..][..1]);
        }
        self.weight[self.position[edge] as usize * self.heads + head]
    }

    #[inline(always)]
    fn times(value: T, x: T) -> T {
        value * x
    }
}

/// The factor of an edge's source.
pub(super) struct OfSource<'a, T> {
    pub(super) factor: &'a [T], // [sources]
    pub(super) sources: &'a [u32],
}

impl<T: Float> Scale<T> for OfSource<'_, T> {
    const HEADS: bool = false;
    type Value = T;

    #[inline(always)]
    fn of(&self, edge: usize, _: usize) -> T {
        if let Some(&later) = self.sources.get(edge + AHEAD) {
            prefetch(&self.factor[later as usize..][..1]);
        }
        self.factor[self.sources[edge] as usize]
    }

    #[inline(always)]
    fn times(value: T, x: T) -> T {
        value * x
    }
}

pub(super) struct Sum<'a, T: Number, S> {
    pub(super) edges: &'a Aggregator,
    pub(super) x: &'a [T],
    pub(super) stride: usize, // items of x from a row to the next
    pub(super) scale: S,
    pub(super) rest: Rest<'a, T::Wide>,
}

/// What becomes of the sum of a row.
#[derive(Clone, Copy)]
pub(super) struct Rest<'a, W> {
    /// [destinations] a factor of each sum.
    pub(super) destination: Option<&'a [W]>,
    /// A factor of the row of x that has the destination's number. The product is added.
    pub(super) own: W,
    /// Whether the sum is added to what is there.
    pub(super) add: bool,
}

impl<T: Number, S: Scale<T::Wide>> Sum<'_, T, S> {
    /// Adds the in-edges of `row` to `sums`, which is returned by value, so that it
    /// stays in registers.
    #[inline(always)]
    fn add<const D: usize, const K: usize>(
        &self,
        row: usize,
        pass: Pass,
        mut sums: [[T::Wide; D]; K],
    ) -> [[T::Wide; D]; K] {
        for edge in self.edges.edges(row) {
            let x: &[[T; D]; K] = self.edges.row(self.x, self.stride, edge, pass.start);
            for (head, (sums, x)) in sums.iter_mut().zip(x).enumerate() {
                let value = self.scale.of(edge, pass.head + head);
                for (sum, &x) in sums.iter_mut().zip(x) {
                    *sum = *sum + S::times(value, x.wide());
                }
            }
        }
        sums
    }

    /// Adds up the in-edges of `row`, times the factor of the row.
    #[inline(always)]
    fn scaled<const D: usize, const K: usize>(&self, row: usize, pass: Pass) -> [[T::Wide; D]; K] {
        let sums = self.add(row, pass, [[T::Wide::ZERO; D]; K]);
        times(sums, self.rest.destination.map_or(T::Wide::ONE, |factor| factor[row]))
    }

    /// Adds `factor` times the columns of x from `start` on.
    #[inline(always)]
    fn plus<const D: usize, const K: usize>(&self, sums: &mut [[T::Wide; D]; K], factor: T::Wide, start: usize) {
        let x: &[[T; D]; K] = at(self.x, start);
        for (sum, &x) in sums.as_flattened_mut().iter_mut().zip(x.as_flattened()) {
            *sum = *sum + factor * x.wide();
        }
    }
}

#[inline(always)]
fn times<W: Float, const D: usize, const K: usize>(mut sums: [[W; D]; K], factor: W) -> [[W; D]; K] {
    for sum in sums.as_flattened_mut() {
        *sum = *sum * factor;
    }
    sums
}

/// The nearest numbers.
#[inline(always)]
fn nearest<T: Number, const D: usize, const K: usize>(sums: [[T::Wide; D]; K]) -> [[T; D]; K] {
    let mut out = [[T::ZERO; D]; K];
    for (out, &sum) in out.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        *out = T::nearest(sum);
    }
    out
}

impl<T: Number, S: Scale<T::Wide>> Reduce for Sum<'_, T, S> {
    const HEADS: bool = S::HEADS;
    type Item = T;
    type Out<'o> = &'o mut [T];

    fn adds(&self) -> bool {
        self.rest.add
    }

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], place: usize) {
        let mut sums = self.scaled::<D, K>(row, pass);
        let Rest { own, add, .. } = self.rest;
        if own == T::Wide::ZERO && !add {
            *at_mut(out, place) = nearest::<T, D, K>(sums); // apart, so that sums stay in registers
            return;
        }
        if own != T::Wide::ZERO {
            self.plus(&mut sums, own, row * self.stride + pass.start);
        }
        let out = at_mut::<T, D, K>(out, place);
        if add {
            for (sum, &there) in sums.as_flattened_mut().iter_mut().zip(out.as_flattened()) {
                *sum = *sum + there.wide();
            }
        }
        *out = nearest::<T, D, K>(sums);
    }
}

/// The sum of a row, followed by the row with the same number in x.
pub(super) struct Beside<'a, T: Number, S> {
    pub(super) sum: Sum<'a, T, S>,
}

impl<T: Number, S: Scale<T::Wide>> Reduce for Beside<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], place: usize) {
        let Sum { x, stride, .. } = self.sum;
        *at_mut(out, place) = nearest::<T, D, K>(self.sum.scaled(row, pass));
        *at_mut::<T, D, K>(out, place + stride) = *at(x, row * stride + pass.start);
    }
}

/// [`Beside`] of rows of which dropout keeps some elements.
pub(super) struct BesideKept<'a, T: Number, S> {
    pub(super) sum: Sum<'a, T, S>,
    pub(super) kept: &'a [u32], // [sources, words of a row] a bit for each element
    pub(super) factor: T::Wide, // of kept elements
}

impl<T: Number, S: Scale<T::Wide>> BesideKept<'_, T, S> {
    /// The columns from `start` on of a row of x after dropout.
    #[inline(always)]
    fn dropped<const D: usize, const K: usize>(&self, x: &[[T; D]; K], source: usize, start: usize) -> [[T; D]; K] {
        let words = words(self.sum.stride);
        let kept = &self.kept[source * words..][..words];
        let mut out = *x;
        for (part, out) in out.as_flattened_mut().chunks_mut(BITS).enumerate() {
            let bits = bits_from(kept, start + part * BITS);
            for (column, out) in out.iter_mut().enumerate() {
                let scaled = T::nearest(out.wide() * self.factor);
                *out = select_unpredictable(bits >> column & 1 == 0, T::ZERO, scaled);
            }
        }
        out
    }
}

/// The bits from `start` on, at most 32.
#[inline(always)]
fn bits_from(kept: &[u32], start: usize) -> u32 {
    let (word, shift) = (start / BITS, start % BITS);
    let next = kept.get(word + 1).copied().unwrap_or(0);
    ((u64::from(next) << BITS | u64::from(kept[word])) >> shift) as u32
}

impl<T: Number, S: Scale<T::Wide>> Reduce for BesideKept<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], place: usize) {
        let Sum {
            edges,
            x,
            stride: width,
            scale,
            rest,
        } = &self.sum;
        let mut sums = [[T::Wide::ZERO; D]; K];
        for edge in edges.edges(row) {
            if let Some(&later) = edges.sources.get(edge + AHEAD) {
                prefetch(&self.kept[later as usize * words(*width)..][..1]);
            }
            let source = edges.sources[edge] as usize;
            let x = self.dropped::<D, K>(edges.row(x, *width, edge, pass.start), source, pass.start);
            let value = scale.of(edge, 0);
            for (sum, &x) in sums.as_flattened_mut().iter_mut().zip(x.as_flattened()) {
                *sum = *sum + S::times(value, x.wide());
            }
        }
        let factor = rest.destination.map_or(T::Wide::ONE, |factor| factor[row]);
        *at_mut(out, place) = nearest::<T, D, K>(times(sums, factor));
        let own = self.dropped::<D, K>(at(x, row * width + pass.start), row, pass.start);
        *at_mut(out, place + width) = own;
    }
}

/// The gradient of [`Beside`]. Its `sum` reads the first half of each row of x.
pub(super) struct Apart<'a, T: Number, S> {
    pub(super) sum: Sum<'a, T, S>,
}

impl<T: Number, S: Scale<T::Wide>> Reduce for Apart<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], place: usize) {
        let Sum { edges, stride, .. } = self.sum;
        let mut sums = self.sum.scaled::<D, K>(row, pass);
        if row < edges.num_sources() {
            self.sum
                .plus(&mut sums, T::Wide::ONE, row * stride + stride / 2 + pass.start);
        }
        *at_mut(out, place) = nearest::<T, D, K>(sums);
    }
}

pub(super) struct Max<'a, T> {
    pub(super) edges: &'a Aggregator,
    pub(super) x: &'a [T],
    pub(super) width: usize,
}

impl<T: Float + Number> Reduce for Max<'_, T> {
    type Item = T;
    type Out<'o> = (&'o mut [T], &'o mut [i64]);

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, (out, arg): &mut Self::Out<'_>, at: usize) {
        let edges = self.edges.edges(row);
        if edges.is_empty() {
            *at_mut(out, at) = [[T::NEG_INFINITY; D]; K];
            *at_mut(arg, at) = [[-1; D]; K];
            return;
        }
        let first = edges.start;
        let mut best: [[T; D]; K] = *self.edges.row(self.x, self.width, first, pass.start);
        let mut chosen = [[0u32; D]; K]; // counted from the row's first edge
        for edge in first + 1..edges.end {
            let x: &[[T; D]; K] = self.edges.row(self.x, self.width, edge, pass.start);
            let number = (edge - first) as u32;
            let columns = best.as_flattened_mut().iter_mut().zip(chosen.as_flattened_mut());
            for ((best, chosen), &x) in columns.zip(x.as_flattened()) {
                let larger = exceeds(x, *best);
                *best = if larger { x } else { *best };
                *chosen = if larger { number } else { *chosen };
            }
        }
        *at_mut(out, at) = best;
        let position = |number| self.edges.position(first + number as usize) as i64;
        *at_mut(arg, at) = chosen.map(|chosen| chosen.map(position));
    }
}

/// Whether `x` is larger than `best`, where NaN is larger than all numbers.
#[inline(always)]
#[allow(clippy::eq_op, clippy::neg_cmp_op_on_partial_ord)]
fn exceeds<T: Float>(x: T, best: T) -> bool {
    !(x <= best) & (best == best)
}
