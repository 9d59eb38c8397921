//! Dropout whose choices follow from a key, a row's id and a column: the same for any layout of the rows over ranks.
//!
//! Element j of the row with id i is kept iff `lane >= threshold`, where `threshold = floor(65536 p + 1/2)` and `lane` is
//! the (j mod 4)-th group of 16 bits, the lowest one first, of `Stream::new(derive(key, i)).word(j / 4)`; i is taken as
//! 64 bits in two's complement. Kept elements are multiplied by `65536 / (65536 - threshold)`, rounded to their own type,
//! so that the expected value is exact; all others become 0, infinities and NaN too.

use std::hint::select_unpredictable;

use crate::aggregate::{Float, at, at_mut, check_length};
use crate::csc::Id;
use crate::isa::{Isa, Kernel};
use crate::rng::{Stream, derive};
use crate::{Error, pool};

/// Lanes of a word.
const LANES: usize = 4;
/// Columns that share a word.
type Lanes<T> = [T; LANES];
/// Values of a lane.
const LANE_VALUES: u32 = 1 << 16;
/// Fewer elements than this are not worth a second thread.
const TASK_ELEMENTS: usize = 1 << 15;

/// Which elements are kept, and the factor that makes up for the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    key: u64,
    threshold: u32,
}

impl Dropout {
    /// Drops each element with probability `p`, in steps of 2^-16.
    pub fn new(key: u64, p: f64) -> Result<Self, Error> {
        if !(0.0..=1.0).contains(&p) {
            return Err(Error::Probability(p));
        }
        let threshold = (p * f64::from(LANE_VALUES) + 0.5) as u32;
        Ok(Self { key, threshold })
    }

    /// Writes the kept elements of `x` [ids, width], scaled, to `out`. Where `gate` is given, elements whose gate is 0 or
    /// less become 0 too; so `gate = x` is a ReLU before the dropout. The gradient is the same function of the gradient,
    /// with the same gate.
    pub fn apply<T: Float, I: Id>(
        self,
        ids: &[I],
        width: usize,
        x: &[T],
        gate: Option<&[T]>,
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let gate_len = gate.map_or(x.len(), <[T]>::len);
        for (name, actual) in [("x", x.len()), ("gate", gate_len), ("out", out.len())] {
            check_length(name, actual, ids.len() * width)?;
        }
        if self.threshold == LANE_VALUES {
            out.fill(T::ZERO);
        } else if width > 0 {
            self.apply_on(Isa::best(), ids, width, x, gate, out, threads);
        }
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn apply_on<T: Float, I: Id>(
        self,
        isa: Isa,
        ids: &[I],
        width: usize,
        x: &[T],
        gate: Option<&[T]>,
        out: &mut [T],
        threads: usize,
    ) {
        // Nothing is at most NaN: no gate costs nothing.
        let (gate, limit) = gate.map_or((x, T::NAN), |gate| (gate, T::ZERO));
        let scale = T::of(f64::from(LANE_VALUES) / f64::from(LANE_VALUES - self.threshold));
        let rows = (TASK_ELEMENTS / width).max(1);
        let tasks = out.chunks_mut(rows * width).enumerate().collect();
        pool::for_each(threads, tasks, |(task, out): (usize, &mut [T])| {
            let rows = task * rows..task * rows + out.len() / width;
            let elements = rows.start * width..rows.end * width;
            isa.run(Rows {
                key: self.key,
                threshold: self.threshold as u16,
                scale,
                ids: &ids[rows],
                width,
                x: &x[elements.clone()],
                gate: &gate[elements],
                limit,
                out,
            });
        });
    }
}

struct Rows<'a, T, I> {
    key: u64,
    threshold: u16,
    scale: T,
    ids: &'a [I],
    width: usize,
    x: &'a [T],
    gate: &'a [T],
    limit: T,
    out: &'a mut [T],
}

impl<T: Float, I: Id> Kernel for Rows<'_, T, I> {
    #[inline(always)]
    fn run(self, _: Isa) {
        let rows = self.x.chunks_exact(self.width).zip(self.gate.chunks_exact(self.width));
        let rows = rows.zip(self.out.chunks_exact_mut(self.width));
        for (&id, ((x, gate), out)) in self.ids.iter().zip(rows) {
            let stream = Stream::new(derive(self.key, id.signed() as u64));
            let Self {
                threshold,
                scale,
                limit,
                ..
            } = self;
            Row {
                stream,
                threshold,
                scale,
                limit,
            }
            .apply(x, gate, out);
        }
    }
}

struct Row<T> {
    stream: Stream,
    threshold: u16,
    scale: T,
    limit: T,
}

impl<T: Float> Row<T> {
    #[inline(always)]
    fn apply(&self, x: &[T], gate: &[T], out: &mut [T]) {
        let (x, x_rest) = x.as_chunks();
        let (gate, gate_rest) = gate.as_chunks();
        let (out, out_rest) = out.as_chunks_mut();
        let done = self.words::<8>(0, x, gate, out);
        let done = self.words::<4>(done, x, gate, out);
        let done = self.words::<1>(done, x, gate, out);
        if !out_rest.is_empty() {
            let mut padded = [[[T::ZERO; LANES]]; 2];
            padded[0][0][..x_rest.len()].copy_from_slice(x_rest);
            padded[1][0][..x_rest.len()].copy_from_slice(gate_rest);
            let [out] = self.block(done, &padded[0], &padded[1]);
            out_rest.copy_from_slice(&out[..x_rest.len()]);
        }
    }

    /// Does the columns of the words from `start` on, `W` words at a time; returns where it had to stop.
    #[inline(always)]
    fn words<const W: usize>(&self, start: usize, x: &[Lanes<T>], gate: &[Lanes<T>], out: &mut [Lanes<T>]) -> usize {
        let end = x.len() - (x.len() - start) % W;
        for word in (start..end).step_by(W) {
            *at_mut(out, word) = self.block::<W>(word, at(x, word), at(gate, word));
        }
        end
    }

    /// What becomes of the columns of `W` words; by value, so that the compiler knows it apart from x.
    #[inline(always)]
    fn block<const W: usize>(&self, start: usize, x: &[Lanes<T>; W], gate: &[Lanes<T>; W]) -> [Lanes<T>; W] {
        let mut lanes = [[0; LANES]; W];
        for (number, lanes) in lanes.iter_mut().enumerate() {
            let word = self.stream.word((start + number) as u64);
            *lanes = [
                word as u16,
                (word >> 16) as u16,
                (word >> 32) as u16,
                (word >> 48) as u16,
            ];
        }
        let mut out = [[T::ZERO; LANES]; W];
        let (lanes, x, gate) = (lanes.as_flattened(), x.as_flattened(), gate.as_flattened());
        for (column, out) in out.as_flattened_mut().iter_mut().enumerate() {
            let dropped = (lanes[column] < self.threshold) | (gate[column] <= self.limit);
            *out = select_unpredictable(dropped, T::ZERO, x[column] * self.scale);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, one element at a time.
    fn reference(key: u64, p: f64, id: i64, column: usize, x: f64) -> f64 {
        let word = Stream::new(derive(key, id as u64)).word(column as u64 / 4);
        let threshold = (65536.0 * p + 0.5).floor();
        let dropped = f64::from((word >> (16 * (column % 4))) as u16) < threshold;
        if dropped {
            0.0
        } else {
            x * (65536.0 / (65536.0 - threshold))
        }
    }

    #[test]
    fn all_widths_instruction_sets_and_thread_counts_follow_the_definition() {
        let ids = [5, -1, 1 << 40, 0, 5];
        for width in (0..70).chain([128, 20_000]) {
            let x: Vec<f64> = (0..ids.len() * width).map(|i| i as f64 - 50.0).collect();
            for (key, p) in [(1, 0.3), (u64::MAX, 0.0), (3, 0.99)] {
                let dropout = Dropout::new(key, p).unwrap();
                let expected: Vec<f64> = (0..x.len())
                    .map(|i| reference(key, p, ids[i / width], i % width, x[i]))
                    .collect();
                let mut out = vec![7.0; x.len()];
                for isa in Isa::available().into_iter().filter(|_| width > 0) {
                    dropout.apply_on(isa, &ids, width, &x, None, &mut out, 1);
                    assert_eq!(out, expected, "{isa:?}, {width} columns");
                }
                for threads in [1, 2, 5] {
                    dropout.apply(&ids, width, &x, None, &mut out, threads).unwrap();
                    assert_eq!(out, expected, "{threads} threads, {width} columns");
                }
            }
        }
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        for p in [-0.1, 1.1, f64::NAN] {
            assert_eq!(
                Dropout::new(0, p).unwrap_err().to_string(),
                format!("p = {p} is not a probability")
            );
        }
    }
}
