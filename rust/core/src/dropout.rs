//! Dropout that derives each choice from a key, a row id and a column, so that choices
//! are the same for any layout of the rows over ranks.
//!
//! Element j of the row with id i is kept iff `lane >= threshold`, where `threshold =
//! floor(65536 p + 1/2)` and `lane` is the (j mod 4)-th group of 16 bits, the lowest
//! one first, of `Stream::new(derive(key, i)).word(j / 4)`. The id i is taken as 64
//! bits in two's complement. Kept elements are multiplied by `65536 / (65536 -
//! threshold)`, rounded to their own type, so that the expected value is exact. All
//! others become 0, infinities and NaN too.

use std::hint::select_unpredictable;

use crate::csc::Id;
use crate::error::check_length;
use crate::isa::{Isa, Kernel, at, at_mut};
use crate::rng::{Stream, derive};
use crate::{Error, Float, Number, team};

/// Lanes of a word.
const LANES: usize = 4;
/// Number of columns that share a word, one bit per choice.
pub(crate) const BITS: usize = 32;
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

    /// Writes the kept elements of `x` [ids, width], scaled, to `out`. Where `gate` is
    /// given, elements whose gate is 0 or less become 0 too. So `gate = x` is a ReLU
    /// before the dropout. The gradient is the same function of the gradient, with the
    /// same gate.
    pub fn apply<T: Number, I: Id>(
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
            check_length(name, actual, ids.len().saturating_mul(width))?;
        }
        if self.threshold == LANE_VALUES {
            out.fill(T::ZERO);
        } else if width > 0 {
            self.apply_on(Isa::best(), ids, width, x, gate, out, threads);
        }
        Ok(())
    }

    /// Writes ReLU and then dropout of `x` [ids, width] to `out`. Bit j % 32 of
    /// `kept[row, j / 32]` says whether element j of the row is kept: [ids, words of a
    /// row], see [`words`].
    pub fn rectify<T: Number, I: Id>(
        self,
        ids: &[I],
        width: usize,
        x: &[T],
        out: &mut [T],
        kept: &mut [u32],
        threads: usize,
    ) -> Result<(), Error> {
        self.rectify_on(Isa::best(), ids, width, x, out, kept, threads)
    }

    #[allow(clippy::too_many_arguments)]
    fn rectify_on<T: Number, I: Id>(
        self,
        isa: Isa,
        ids: &[I],
        width: usize,
        x: &[T],
        out: &mut [T],
        kept: &mut [u32],
        threads: usize,
    ) -> Result<(), Error> {
        check_rectified(ids.len(), width, [("x", x.len()), ("out", out.len())], kept.len())?;
        if width == 0 {
            return Ok(());
        }
        let rows = (TASK_ELEMENTS / width).max(1);
        let outs = out.chunks_mut(rows * width).zip(kept.chunks_mut(rows * words(width)));
        let ins = ids.chunks(rows).zip(x.chunks(rows * width));
        team::for_each(threads, ins.zip(outs).collect(), |((ids, x), (out, kept))| {
            isa.run(Rectify {
                dropout: self,
                scale: self.scale(),
                ids,
                width,
                x,
                out,
                kept,
            });
        });
        Ok(())
    }

    /// Writes the gradient of [`Self::rectify`] to `out`: kept elements of `grad`
    /// [rows, width], scaled.
    pub fn rectify_backward<T: Number>(
        self,
        width: usize,
        grad: &[T],
        kept: &[u32],
        out: &mut [T],
        threads: usize,
    ) -> Result<(), Error> {
        let rows = grad.len().checked_div(width).unwrap_or(0);
        check_rectified(rows, width, [("grad", grad.len()), ("out", out.len())], kept.len())?;
        if width == 0 {
            return Ok(());
        }
        let rows = (TASK_ELEMENTS / width).max(1);
        let ins = grad.chunks(rows * width).zip(kept.chunks(rows * words(width)));
        let tasks = ins.zip(out.chunks_mut(rows * width)).collect();
        team::for_each(threads, tasks, |((grad, kept), out)| {
            Isa::best().run(Unrectify {
                scale: self.scale(),
                width,
                grad,
                kept,
                out,
            });
        });
        Ok(())
    }

    /// Says of each element of the rows `ids` whether it is kept: bits as in
    /// [`Self::rectify`].
    pub fn kept<I: Id>(self, ids: &[I], width: usize, kept: &mut [u32], threads: usize) -> Result<(), Error> {
        check_length("kept", kept.len(), ids.len().saturating_mul(words(width)))?;
        if width == 0 {
            return Ok(());
        }
        let rows = (TASK_ELEMENTS / width).max(1);
        let tasks = ids.chunks(rows).zip(kept.chunks_mut(rows * words(width))).collect();
        team::for_each(threads, tasks, |(ids, kept)| {
            Isa::best().run(Choose {
                dropout: self,
                ids,
                width,
                kept,
            });
        });
        Ok(())
    }

    pub(crate) fn key(self) -> u64 {
        self.key
    }

    /// The element in a column of the row with this stream, kept and scaled, or 0.
    #[inline(always)]
    pub(crate) fn element<T: Number>(self, stream: &Stream, column: usize, x: T) -> T {
        let lane = (stream.word((column / LANES) as u64) >> (16 * (column % LANES))) as u16;
        let dropped = u32::from(lane) < self.threshold;
        select_unpredictable(dropped, T::ZERO, T::nearest(x.wide() * self.scale()))
    }

    /// Writes the kept elements of `x` [ids, width], scaled, to `out`: a part of another
    /// kernel.
    #[inline(always)]
    pub(crate) fn apply_within<T: Number, I: Id>(self, isa: Isa, ids: &[I], width: usize, x: &[T], out: &mut [T]) {
        if self.threshold == LANE_VALUES {
            return out.fill(T::ZERO);
        }
        let rows = Rows {
            key: self.key,
            threshold: self.threshold as u16,
            scale: self.scale(),
            ids,
            width,
            x,
            gate: x,
            limit: T::Wide::NAN,
            out,
        };
        rows.run(isa);
    }

    /// The factor of kept elements. Infinite where none is kept, and never used then.
    pub(crate) fn scale<W: Float>(self) -> W {
        W::of(f64::from(LANE_VALUES) / f64::from(LANE_VALUES - self.threshold))
    }

    #[allow(clippy::too_many_arguments)]
    fn apply_on<T: Number, I: Id>(
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
        let (gate, limit) = gate.map_or((x, T::Wide::NAN), |gate| (gate, T::Wide::ZERO));
        let scale = self.scale();
        let rows = (TASK_ELEMENTS / width).max(1);
        let tasks = out.chunks_mut(rows * width).enumerate().collect();
        team::for_each(threads, tasks, |(task, out): (usize, &mut [T])| {
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

struct Rows<'a, T: Number, I> {
    key: u64,
    threshold: u16,
    scale: T::Wide,
    ids: &'a [I],
    width: usize,
    x: &'a [T],
    gate: &'a [T],
    limit: T::Wide,
    out: &'a mut [T],
}

impl<T: Number, I: Id> Kernel for Rows<'_, T, I> {
    type Output = ();

    #[inline(always)]
    fn run(mut self, _: Isa) {
        match self.width {
            1 => self.narrow::<1, 8>(),
            2 => self.narrow::<2, 8>(),
            3 => self.narrow::<3, 8>(),
            4 => self.narrow::<4, 8>(),
            8 => self.narrow::<8, 4>(),
            16 => self.narrow::<16, 2>(),
            _ => self.wide(),
        }
    }
}

impl<T: Number, I: Id> Rows<'_, T, I> {
    /// Rows of D columns: K rows together.
    #[inline(always)]
    fn narrow<const D: usize, const K: usize>(&mut self) {
        let whole = self.ids.len() - self.ids.len() % K;
        for row in (0..whole).step_by(K) {
            self.narrow_rows::<D, K>(row);
        }
        for row in whole..self.ids.len() {
            self.narrow_rows::<D, 1>(row);
        }
    }

    #[inline(always)]
    fn narrow_rows<const D: usize, const K: usize>(&mut self, row: usize) {
        let mut lanes = [[0; D]; K];
        for (lanes, &id) in lanes.iter_mut().zip(&self.ids[row..row + K]) {
            *lanes = lanes_of(&self.stream(id), 0);
        }
        *at_mut(self.out, row * D) = self.keep(lanes, at(self.x, row * D), at(self.gate, row * D));
    }

    /// Rows of any number of columns: as many columns together as there are, up to 32.
    #[inline(always)]
    fn wide(&mut self) {
        for row in 0..self.ids.len() {
            let (stream, start, end) = (self.stream(self.ids[row]), row * self.width, (row + 1) * self.width);
            let whole = end - self.width % 32;
            for next in (start..whole).step_by(32) {
                let lanes = [lanes_of::<32>(&stream, next - start)];
                *at_mut(self.out, next) = self.keep(lanes, at(self.x, next), at(self.gate, next));
            }
            match end - whole {
                0 => {}
                1..=16 => self.rest::<16>(&stream, start, whole, end),
                _ => self.rest::<32>(&stream, start, whole, end),
            }
        }
    }

    /// The elements `next..end`, at most `N`, of the row that starts at `start`.
    #[inline(always)]
    fn rest<const N: usize>(&mut self, stream: &Stream, start: usize, next: usize, end: usize) {
        let (mut x, mut gate) = ([[T::ZERO; N]], [[T::ZERO; N]]);
        x[0][..end - next].copy_from_slice(&self.x[next..end]);
        gate[0][..end - next].copy_from_slice(&self.gate[next..end]);
        let [out] = self.keep([lanes_of(stream, next - start)], &x, &gate);
        self.out[next..end].copy_from_slice(&out[..end - next]);
    }

    #[inline(always)]
    fn stream(&self, id: I) -> Stream {
        Stream::new(derive(self.key, id.signed() as u64))
    }

    /// By value, so that the compiler knows the result apart from x.
    #[inline(always)]
    fn keep<const D: usize, const K: usize>(
        &self,
        lanes: [[u16; D]; K],
        x: &[[T; D]; K],
        gate: &[[T; D]; K],
    ) -> [[T; D]; K] {
        let mut out = [[T::ZERO; D]; K];
        let (lanes, x, gate) = (lanes.as_flattened(), x.as_flattened(), gate.as_flattened());
        for (column, out) in out.as_flattened_mut().iter_mut().enumerate() {
            let dropped = (lanes[column] < self.threshold) | (gate[column].wide() <= self.limit);
            *out = select_unpredictable(dropped, T::ZERO, T::nearest(x[column].wide() * self.scale));
        }
        out
    }
}

/// Words that hold a bit for each of `width` columns.
pub fn words(width: usize) -> usize {
    width.div_ceil(BITS)
}

fn check_rectified(rows: usize, width: usize, all: [(&'static str, usize); 2], kept: usize) -> Result<(), Error> {
    for (name, actual) in all {
        check_length(name, actual, rows.saturating_mul(width))?;
    }
    check_length("kept", kept, rows.saturating_mul(words(width)))
}

/// ReLU and dropout of some rows.
struct Rectify<'a, T: Number, I> {
    dropout: Dropout,
    scale: T::Wide,
    ids: &'a [I],
    width: usize,
    x: &'a [T],
    out: &'a mut [T],
    kept: &'a mut [u32],
}

impl<T: Number, I: Id> Kernel for Rectify<'_, T, I> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: Isa) {
        let words = words(self.width);
        let (threshold, scale) = (self.dropout.threshold, self.scale);
        let rows = self
            .x
            .chunks_exact(self.width)
            .zip(self.out.chunks_exact_mut(self.width));
        for (((x, out), kept), id) in rows.zip(self.kept.chunks_exact_mut(words)).zip(self.ids) {
            let stream = Stream::new(derive(self.dropout.key, id.signed() as u64));
            let parts = x.chunks(BITS).zip(out.chunks_mut(BITS)).zip(kept);
            for (word, ((x, out), kept)) in parts.enumerate() {
                let lanes = lanes_of::<BITS>(&stream, word * BITS);
                let (values, bits) = rectified(&padded(x), &lanes, threshold, scale);
                *kept = bits;
                copy_first(&values, out);
            }
        }
    }
}

/// The choices of some rows.
struct Choose<'a, I> {
    dropout: Dropout,
    ids: &'a [I],
    width: usize,
    kept: &'a mut [u32],
}

impl<I: Id> Kernel for Choose<'_, I> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: Isa) {
        let threshold = self.dropout.threshold;
        for (id, kept) in self.ids.iter().zip(self.kept.chunks_exact_mut(words(self.width))) {
            let stream = Stream::new(derive(self.dropout.key, id.signed() as u64));
            for (word, kept) in kept.iter_mut().enumerate() {
                *kept = match self.width - word * BITS {
                    ..5 => chosen_bits::<1>(&stream, word, threshold),
                    5..=16 => chosen_bits::<4>(&stream, word, threshold),
                    _ => chosen_bits::<8>(&stream, word, threshold),
                };
            }
        }
    }
}

/// A bit for each column of the first `N` draws of a word: whether it is kept.
#[inline(always)]
fn chosen_bits<const N: usize>(stream: &Stream, word: usize, threshold: u32) -> u32 {
    let mut bits = [0; N];
    let rest = u64::from(LANE_VALUES - threshold);
    for (number, bits) in bits.iter_mut().enumerate() {
        let drawn = stream.word((word * BITS / LANES + number) as u64);
        for lane in 0..LANES {
            // The sum has a 17th bit iff the lane is at least the threshold.
            let sum = (drawn >> (16 * lane) & 0xffff) + rest;
            *bits |= (sum >> 16) << (LANES * number + lane);
        }
    }
    let mut all = 0;
    for bits in bits {
        all |= bits;
    }
    all as u32
}

/// The gradient of some rows.
struct Unrectify<'a, T: Number> {
    scale: T::Wide,
    width: usize,
    grad: &'a [T],
    kept: &'a [u32],
    out: &'a mut [T],
}

impl<T: Number> Kernel for Unrectify<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: Isa) {
        let rows = self
            .grad
            .chunks_exact(self.width)
            .zip(self.out.chunks_exact_mut(self.width));
        for ((grad, out), kept) in rows.zip(self.kept.chunks_exact(words(self.width))) {
            for ((grad, out), &bits) in grad.chunks(BITS).zip(out.chunks_mut(BITS)).zip(kept) {
                copy_first(&chosen(&padded(grad), bits, self.scale), out);
            }
        }
    }
}

/// The kept ones of 32 elements, scaled, and a bit for each. By value, so that the
/// compiler knows the result apart from x.
#[inline(always)]
fn rectified<T: Number>(x: &[T; BITS], lanes: &[u16; BITS], threshold: u32, scale: T::Wide) -> ([T; BITS], u32) {
    let (mut out, mut bits) = ([T::ZERO; BITS], 0);
    for column in 0..BITS {
        let dropped = (u32::from(lanes[column]) < threshold) | (x[column].wide() <= T::Wide::ZERO);
        out[column] = select_unpredictable(dropped, T::ZERO, T::nearest(x[column].wide() * scale));
        bits |= u32::from(!dropped) << column;
    }
    (out, bits)
}

/// The elements of which `bits` has a bit, scaled. 0 for all others.
#[inline(always)]
fn chosen<T: Number>(grad: &[T; BITS], bits: u32, scale: T::Wide) -> [T; BITS] {
    let mut out = [T::ZERO; BITS];
    for column in 0..BITS {
        out[column] = select_unpredictable(
            bits >> column & 1 == 0,
            T::ZERO,
            T::nearest(grad[column].wide() * scale),
        );
    }
    out
}

/// `items`, at most 32, and zeros after them.
#[inline(always)]
fn padded<T: Number>(items: &[T]) -> [T; BITS] {
    match items.try_into() {
        Ok(whole) => whole,
        Err(_) => {
            let mut padded = [T::ZERO; BITS];
            padded[..items.len()].copy_from_slice(items);
            padded
        }
    }
}

/// Writes the first elements of `values` to `out`.
#[inline(always)]
fn copy_first<T: Number>(values: &[T; BITS], out: &mut [T]) {
    match <&mut [T; BITS]>::try_from(&mut *out) {
        Ok(whole) => *whole = *values,
        Err(_) => out.copy_from_slice(&values[..out.len()]),
    }
}

/// The lanes of the columns from `column` on, a multiple of `LANES`.
#[inline(always)]
fn lanes_of<const D: usize>(stream: &Stream, column: usize) -> [u16; D] {
    let mut lanes = [0; D];
    for (number, lanes) in lanes.chunks_mut(LANES).enumerate() {
        let word = stream.word((column / LANES + number) as u64);
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = (word >> (16 * i)) as u16;
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bf16;

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
    fn rectified_rows_follow_the_definition_and_bits_say_which_elements_stay() {
        let ids = [5i64, -1, 1 << 40, 0, 5];
        for width in (0..70).chain([128, 20_000]) {
            let x: Vec<f64> = (0..ids.len() * width).map(|i| (i % 7) as f64 - 3.0).collect();
            for (key, p) in [(1, 0.3), (u64::MAX, 0.0), (3, 0.99), (4, 1.0)] {
                let dropout = Dropout::new(key, p).unwrap();
                let (mut expected, mut out) = (vec![7.0; x.len()], vec![7.0; x.len()]);
                dropout.apply(&ids, width, &x, Some(&x), &mut expected, 1).unwrap();
                let mut kept = vec![7; ids.len() * words(width)];
                for isa in Isa::available() {
                    dropout
                        .rectify_on(isa, &ids, width, &x, &mut out, &mut kept, 3)
                        .unwrap();
                    assert_eq!(out, expected, "{isa:?}, {width} columns, p = {p}");
                }
                let ones = vec![1.0; x.len()];
                let scale = 65536.0 / (65536.0 - (65536.0 * p + 0.5).floor());
                let gradient: Vec<f64> = expected.iter().map(|&y| if y > 0.0 { scale } else { 0.0 }).collect();
                dropout.rectify_backward(width, &ones, &kept, &mut out, 2).unwrap();
                assert_eq!(out, gradient, "{width} columns, p = {p}");
            }
        }
    }

    #[test]
    fn bits_say_which_elements_are_kept() {
        let (ids, dropout) = ([5i64, -1, 1 << 40], Dropout::new(3, 0.3).unwrap());
        for width in [0, 1, 4, 5, 16, 17, 31, 32, 33, 100] {
            let (ones, mut expected) = (vec![1.0; 3 * width], vec![0.0; 3 * width]);
            dropout.apply(&ids, width, &ones, None, &mut expected, 1).unwrap();
            let mut kept = vec![0; 3 * words(width)];
            dropout.kept(&ids, width, &mut kept, 2).unwrap();
            let bit = |i: usize| kept[i / width * words(width) + i % width / 32] >> (i % width % 32) & 1;
            let ours: Vec<bool> = (0..3 * width).map(|i| bit(i) == 1).collect();
            assert_eq!(
                ours,
                expected.iter().map(|&x| x > 0.0).collect::<Vec<_>>(),
                "{width} columns"
            );
        }
        assert!(dropout.kept(&ids, 33, &mut [0; 3], 1).is_err());
    }

    #[test]
    fn rows_of_bfloat16_are_rows_of_float32_rounded_once() {
        let (ids, dropout) = ([5i64, -1, 1 << 40], Dropout::new(3, 0.3).unwrap());
        for width in [1, 3, 4, 16, 31, 64, 100] {
            let x: Vec<Bf16> = (0..3 * width).map(|i| Bf16::nearest(i as f32 - 50.0)).collect();
            let wide: Vec<f32> = x.iter().map(|x| x.wide()).collect();
            let mut expected = vec![0.0; x.len()];
            let mut out = vec![Bf16::ZERO; x.len()];
            let rounded = |values: &[f32]| -> Vec<Bf16> { values.iter().map(|&value| Bf16::nearest(value)).collect() };
            dropout.apply(&ids, width, &wide, None, &mut expected, 1).unwrap();
            dropout.apply(&ids, width, &x, None, &mut out, 2).unwrap();
            assert_eq!(out, rounded(&expected));
            let mut kept = vec![0; 3 * words(width)];
            dropout
                .rectify(&ids, width, &wide, &mut expected, &mut kept, 1)
                .unwrap();
            let mut bits = vec![0; kept.len()];
            dropout.rectify(&ids, width, &x, &mut out, &mut bits, 2).unwrap();
            assert_eq!((&out, &bits), (&rounded(&expected), &kept));
            dropout.rectify_backward(width, &wide, &kept, &mut expected, 1).unwrap();
            dropout.rectify_backward(width, &x, &kept, &mut out, 2).unwrap();
            assert_eq!(out, rounded(&expected));
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
