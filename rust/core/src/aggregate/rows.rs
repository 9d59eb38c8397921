//! How the columns of a row are divided among the accumulators.

use std::ops::Range;

use super::Columns;
use crate::Number;
use crate::isa::{Isa, Kernel};

/// Columns that are worked through together are at most this many bytes of a row, so
/// that the rows asked for stay in L1.
const PANEL_BYTES: usize = 512;
/// The most columns of a pass.
const MAX_WIDTH: usize = 128;
/// The most columns of a pass over several heads.
const MAX_HEADS_WIDTH: usize = 64;

/// Columns that are accumulated in registers: `heads` heads of `each`, a power of two
/// that may be a part of the head where there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) start: usize,
    pub(super) head: usize,
    each: usize,
    heads: usize,
}

/// The passes over a row, in panels.
///
/// Sums of `T` are accumulated in `W`. Passes that may `overlap` are fewer, and may write
/// a column twice.
pub(super) fn plan<T, W>(columns: Columns, isa: Isa, overlap: bool) -> Vec<Vec<Pass>> {
    let mut panels: Vec<Vec<Pass>> = Vec::new();
    let mut room = 0;
    for pass in passes(columns, isa.accumulator_bytes() / size_of::<W>(), overlap) {
        let width = pass.each * pass.heads;
        if room < width {
            panels.push(Vec::new());
            room = PANEL_BYTES / size_of::<T>();
        }
        room = room.saturating_sub(width);
        panels.last_mut().expect("room").push(pass);
    }
    panels
}

/// The passes over a row with registers for `widest` columns.
fn passes(columns: Columns, widest: usize, overlap: bool) -> Vec<Pass> {
    let (each, mut passes, mut head) = (columns.of_head(), Vec::new(), 0);
    while head < columns.heads {
        let heads = heads_of_pass(each, columns.heads - head, widest);
        if heads > 1 {
            passes.push(Pass {
                start: head * each,
                head,
                each,
                heads,
            });
        } else {
            parts(head, each, widest, overlap, &mut passes);
        }
        head += heads;
    }
    passes
}

/// How many of the heads `left` one pass takes: as many as there are loops for.
fn heads_of_pass(each: usize, left: usize, widest: usize) -> usize {
    match each {
        4 | 8 | 16 | 32 => (1 << left.ilog2()).min(MAX_HEADS_WIDTH.min(widest) / each).max(1),
        _ => 1,
    }
}

/// The passes over one head. Columns left over at its end may be covered by one that
/// overlaps the one before, as a column's result is the same in any pass.
fn parts(head: usize, each: usize, widest: usize, overlap: bool, passes: &mut Vec<Pass>) {
    let mut next = 0;
    while next < each {
        let (left, widest) = (each - next, widest.min(MAX_WIDTH));
        let width = part_width(left, if overlap { each } else { left }, widest);
        let start = next.min(each - width);
        passes.push(Pass {
            start: head * each + start,
            head,
            each: width,
            heads: 1,
        });
        next = start + width;
    }
}

/// The smallest power of two that covers the columns `left`, or the largest one that
/// the head has room for.
fn part_width(left: usize, all: usize, widest: usize) -> usize {
    let cover = left.next_power_of_two();
    if cover <= all.min(widest) {
        cover
    } else {
        widest.min(1 << left.ilog2())
    }
}

/// Output that is cut where rows are.
pub(super) trait Split: Send + Sized {
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

impl<A: Split, const N: usize> Split for [A; N] {
    fn split(self, at: usize) -> (Self, Self) {
        let mut rest = Vec::with_capacity(N);
        let own = self.map(|part| {
            let (own, other) = part.split(at);
            rest.push(other);
            own
        });
        let Ok(rest) = rest.try_into() else {
            unreachable!("as many as parts")
        };
        (own, rest)
    }
}

/// The reduction of the in-edges of a row.
pub(super) trait Reduce: Sync {
    /// Whether rows may have several heads. Fewer loops are compiled without these.
    const HEADS: bool = false;
    /// Bytes of the accumulators of a column, as in [`plan`].
    const COLUMN_BYTES: usize = size_of::<<Self::Item as Number>::Wide>();
    type Item: Number;
    type Out<'o>: Split;

    /// Whether results are added to what is there.
    fn adds(&self) -> bool {
        false
    }

    /// Writes the K heads of D columns in `pass` of `row` to `out`, starting at item
    /// `at`.
    fn write<const D: usize, const K: usize>(&self, row: usize, pass: Pass, out: &mut Self::Out<'_>, at: usize);
}

/// The reduction of a range of rows.
pub(super) struct Rows<'a, 'o, R: Reduce> {
    pub(super) reduce: &'a R,
    pub(super) panels: &'a [Vec<Pass>],
    pub(super) stride: usize, // items of `out` from a row to the next
    pub(super) rows: Range<usize>,
    pub(super) out: R::Out<'o>,
}

impl<R: Reduce> Kernel for Rows<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, isa: Isa) {
        for panel in self.panels {
            for row in self.rows.clone() {
                for &pass in panel {
                    self.write(isa, row, pass);
                }
            }
        }
    }
}

impl<R: Reduce> Rows<'_, '_, R> {
    /// Loops that are wider than the registers of `isa` are in no plan. The compiler
    /// knows `isa`, and leaves them out.
    #[inline(always)]
    fn write(&mut self, isa: Isa, row: usize, pass: Pass) {
        let at = (row - self.rows.start) * self.stride + pass.start;
        let (reduce, out) = (self.reduce, &mut self.out);
        let widest = isa.accumulator_bytes() / R::COLUMN_BYTES;
        macro_rules! loops {
            ($of:expr, $($case:pat => $each:literal, $heads:literal;)*) => {
                match $of {
                    $($case if $each * $heads <= widest => reduce.write::<$each, $heads>(row, pass, out, at),)*
                    _ => unreachable!("no plan has such a pass"),
                }
            };
        }
        if R::HEADS && pass.heads > 1 {
            loops!((pass.each, pass.heads),
                (4, 2) => 4, 2;
                (4, 4) => 4, 4;
                (4, 8) => 4, 8;
                (4, 16) => 4, 16;
                (8, 2) => 8, 2;
                (8, 4) => 8, 4;
                (8, 8) => 8, 8;
                (16, 2) => 16, 2;
                (16, 4) => 16, 4;
                (32, 2) => 32, 2;
            )
        } else {
            loops!(pass.each,
                1 => 1, 1;
                2 => 2, 1;
                4 => 4, 1;
                8 => 8, 1;
                16 => 16, 1;
                32 => 32, 1;
                64 => 64, 1;
                MAX_WIDTH => 128, 1;
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_cover_each_head_and_stay_in_it() {
        for width in 0..300usize {
            for heads in (1..=width.max(1)).filter(|&heads| width.is_multiple_of(heads)) {
                let columns = Columns::new(width, heads).unwrap();
                let mut covered = vec![false; width];
                for pass in plan::<f32, f32>(columns, Isa::Portable, true).concat() {
                    let (first, each) = (pass.head * columns.of_head(), columns.of_head());
                    let end = pass.start + pass.each * pass.heads;
                    assert!(first <= pass.start && end <= first + pass.heads * each);
                    assert!(pass.heads == 1 || pass.each == each);
                    covered[pass.start..end].fill(true);
                }
                assert!(
                    covered.into_iter().all(|column| column),
                    "{width} columns, {heads} heads"
                );
                let apart = plan::<f32, f32>(columns, Isa::Portable, false).concat();
                let all: usize = apart.iter().map(|pass| pass.each * pass.heads).sum();
                assert_eq!(all, width, "{heads} heads");
            }
        }
    }
}
