//! Dot products of the rows at the two ends of each edge.

use std::ops::Range;

use super::{AHEAD, Aggregator, Columns};
use crate::Float;
use crate::isa::{Isa, Kernel, prefetch};

/// Items of a row that are prefetched. The processor fetches the rest by itself.
const PREFETCHED: usize = 128;

/// The dot products of the edges into a range of rows.
pub(super) struct EdgeDot<'a, T> {
    pub(super) edges: &'a Aggregator,
    pub(super) columns: Columns,
    pub(super) x: &'a [T],
    pub(super) grad: &'a [T],
    pub(super) rows: Range<usize>,
    pub(super) out: &'a mut [T],
}

impl<T: Float> Kernel for EdgeDot<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, _: Isa) {
        match self.columns.of_head() {
            0..8 => self.dots::<1>(),
            8..32 => self.dots::<8>(),
            _ => self.dots::<32>(),
        }
    }
}

impl<T: Float> EdgeDot<'_, T> {
    #[inline(always)]
    fn dots<const LANES: usize>(&mut self) {
        let (Columns { width, heads }, each) = (self.columns, self.columns.of_head());
        let first = self.edges.indptr[self.rows.start];
        for row in self.rows.clone() {
            let grad = &self.grad[row * width..][..width];
            for edge in self.edges.edges(row) {
                if let Some(&later) = self.edges.sources.get(edge + AHEAD) {
                    prefetch(&self.x[later as usize * width..][..width.min(PREFETCHED)]);
                }
                let x = &self.x[self.edges.sources[edge] as usize * width..][..width];
                let out = &mut self.out[(edge - first) * heads..][..heads];
                for (head, out) in out.iter_mut().enumerate() {
                    *out = dot::<T, LANES>(&x[head * each..][..each], &grad[head * each..][..each]);
                }
            }
        }
    }
}

/// Column j is added to partial sum j % `LANES`, and these are added in halves: an
/// order that no register size changes.
#[inline(always)]
fn dot<T: Float, const LANES: usize>(a: &[T], b: &[T]) -> T {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for (a, b) in a.iter().zip(b) {
        sums = add_products(sums, a, b);
    }
    if !a_rest.is_empty() {
        sums = add_products(sums, &padded(a_rest), &padded(b_rest));
    }
    for half in [16, 8, 4, 2, 1] {
        if half < LANES {
            for lane in 0..half {
                sums[lane] = sums[lane] + sums[lane + half];
            }
        }
    }
    sums[0]
}

#[inline(always)]
fn add_products<T: Float, const LANES: usize>(sums: [T; LANES], a: &[T; LANES], b: &[T; LANES]) -> [T; LANES] {
    let mut next = sums;
    for (next, (&a, &b)) in next.iter_mut().zip(a.iter().zip(b)) {
        *next = *next + a * b;
    }
    next
}

#[inline(always)]
fn padded<T: Float, const LANES: usize>(items: &[T]) -> [T; LANES] {
    let mut padded = [T::ZERO; LANES];
    padded[..items.len()].copy_from_slice(items);
    padded
}
