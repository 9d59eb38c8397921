//! Sums and maxima of the in-edges of a row.

use super::rows::{Pass, Reduce};
use super::{AHEAD, Aggregator};
use crate::Float;
use crate::isa::{at, at_mut, prefetch};

/// The factor of an edge.
pub(super) trait Scale<T>: Sync {
    type Value: Copy;

    fn of(&self, edge: usize, head: usize) -> Self::Value;

    fn times(value: Self::Value, x: T) -> T;
}

pub(super) struct Unit;

impl<T> Scale<T> for Unit {
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

pub(super) struct Sum<'a, T, S> {
    pub(super) edges: &'a Aggregator,
    pub(super) x: &'a [T],
    pub(super) width: usize,
    pub(super) scale: S,
}

impl<T: Float, S: Scale<T>> Sum<'_, T, S> {
    /// Adds the in-edges of `row` to `sums`, which is returned by value, so that it
    /// stays in registers.
    #[inline(always)]
    fn add<const D: usize, const K: usize>(&self, row: usize, pass: Pass, mut sums: [[T; D]; K]) -> [[T; D]; K] {
        for edge in self.edges.edges(row) {
            let x: &[[T; D]; K] = self.edges.row(self.x, self.width, edge, pass.start);
            for (head, (sums, x)) in sums.iter_mut().zip(x).enumerate() {
                let value = self.scale.of(edge, pass.head + head);
                for (sum, &x) in sums.iter_mut().zip(x) {
                    *sum = *sum + S::times(value, x);
                }
            }
        }
        sums
    }
}

impl<T: Float, S: Scale<T>> Reduce for Sum<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], at: usize) {
        *at_mut(out, at) = self.add(row, pass, [[T::ZERO; D]; K]);
    }
}

/// The sum of a row, and beside it the row of the same number in x.
pub(super) struct Beside<'a, T, S> {
    pub(super) sum: Sum<'a, T, S>,
}

impl<T: Float, S: Scale<T>> Reduce for Beside<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], place: usize) {
        let Sum { x, width, .. } = self.sum;
        *at_mut(out, place) = self.sum.add(row, pass, [[T::ZERO; D]; K]);
        *at_mut::<T, D, K>(out, place + width) = *at(x, row * width + pass.start);
    }
}

/// The gradient of [`Beside`], whose `sum` reads the first halves of the rows of x.
pub(super) struct Apart<'a, T, S> {
    pub(super) sum: Sum<'a, T, S>,
}

impl<T: Float, S: Scale<T>> Reduce for Apart<'_, T, S> {
    type Item = T;
    type Out<'o> = &'o mut [T];

    #[inline(always)]
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut &mut [T], place: usize) {
        let Sum { edges, x, width, .. } = self.sum;
        let own = if row < edges.num_sources() {
            *at(x, row * width + width / 2 + pass.start)
        } else {
            [[T::ZERO; D]; K]
        };
        *at_mut(out, place) = self.sum.add(row, pass, own);
    }
}

pub(super) struct Max<'a, T> {
    pub(super) edges: &'a Aggregator,
    pub(super) x: &'a [T],
    pub(super) width: usize,
}

impl<T: Float> Reduce for Max<'_, T> {
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
