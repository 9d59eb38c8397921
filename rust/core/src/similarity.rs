//! Similarity of nodes, for walks that prefer nodes like their start.

use crate::float::Floats;
use crate::{Error, isa};

/// Bytes of a row that are prefetched. The processor streams the rest of a long row by
/// itself.
const AHEAD_BYTES: usize = 512;

/// Rows of nodes to compare, and the weight of a node unlike the start.
///
/// Walks from s want v in proportion to floor + max(0, cosine of the rows of v and s). A
/// row of zeros is similar to no row. All sums are float64 and added in one order, so a
/// weight has the same bits on every machine.
#[derive(Debug, Clone, Copy)]
pub struct Similarity<'a> {
    rows: Floats<'a>,
    width: usize,
    floor: f64,
}

impl<'a> Similarity<'a> {
    /// `rows` are [num_nodes, width], one after the other.
    pub fn new(rows: Floats<'a>, width: usize, floor: f64) -> Result<Self, Error> {
        if (0.0..f64::INFINITY).contains(&floor) {
            return Ok(Self { rows, width, floor });
        }
        Err(Error::Floor(floor))
    }

    /// Checks that there is a row for each of `num_nodes`.
    pub(crate) fn check_len(&self, num_nodes: usize) -> Result<(), Error> {
        let (actual, expected) = (self.rows.len(), num_nodes.saturating_mul(self.width));
        if actual == expected {
            return Ok(());
        }
        let name = "features";
        Err(Error::Length { name, actual, expected })
    }

    /// The similarity to `start`, which must be one of the nodes.
    pub(crate) fn to(self, start: usize) -> Like<'a> {
        let (square, _) = self.products(start, start);
        Like {
            to: self,
            start,
            length: square.sqrt(),
        }
    }

    /// Prefetches the row of `node`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, node: usize) {
        let start = node * self.width;
        match self.rows {
            Floats::F32(values) => isa::prefetch(&values[start..start + self.width.min(AHEAD_BYTES / 4)]),
            Floats::F64(values) => isa::prefetch(&values[start..start + self.width.min(AHEAD_BYTES / 8)]),
        }
    }

    /// The products of the row of `node` with the row of `start` and with itself.
    fn products(&self, node: usize, start: usize) -> (f64, f64) {
        let row = |node: usize| node * self.width..(node + 1) * self.width;
        match self.rows {
            Floats::F32(values) => products(&values[row(node)], &values[row(start)]),
            Floats::F64(values) => products(&values[row(node)], &values[row(start)]),
        }
    }
}

/// The similarity to one node, the start of walks.
pub(crate) struct Like<'a> {
    to: Similarity<'a>,
    start: usize,
    /// Of the row of the start.
    length: f64,
}

impl Like<'_> {
    /// By how much walks want `node`.
    pub(crate) fn weight(&self, node: usize) -> Result<f64, Error> {
        let (product, square) = self.to.products(node, self.start);
        let lengths = square.sqrt() * self.length;
        let cosine = if lengths == 0.0 { 0.0 } else { product / lengths };
        if cosine.is_nan() {
            return Err(Error::NotFinite {
                name: "similarity",
                position: node,
                value: cosine,
            });
        }
        Ok(self.to.floor + cosine.max(0.0))
    }

    /// Prefetches the row of `node`.
    #[inline(always)]
    pub(crate) fn prefetch(&self, node: usize) {
        self.to.prefetch(node);
    }
}

/// Sums that are added side by side.
const LANES: usize = 8;

/// The products of `x` with `y` and with itself.
fn products<T: Copy + Into<f64>>(x: &[T], y: &[T]) -> (f64, f64) {
    let (mut product, mut square) = ([0.0; LANES], [0.0; LANES]);
    let mut add = |lane: usize, x: T, y: T| {
        let (x, y): (f64, f64) = (x.into(), y.into());
        product[lane] += x * y;
        square[lane] += x * x;
    };
    let ((xs, last_x), (ys, last_y)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        (0..LANES).for_each(|lane| add(lane, x[lane], y[lane]));
    }
    for (lane, (&x, &y)) in last_x.iter().zip(last_y).enumerate() {
        add(lane, x, y);
    }
    (product.iter().sum(), square.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight<'a>(rows: Floats<'a>, width: usize, node: usize, start: usize) -> Result<f64, Error> {
        Similarity::new(rows, width, 0.25).unwrap().to(start).weight(node)
    }

    #[test]
    fn the_weight_is_the_floor_plus_the_cosine_unless_that_is_negative() {
        let rows = [3.0, 4.0, 4.0, 3.0, -3.0, -4.0, 0.0, 0.0, 300.0, 400.0, -4.0, 3.0];
        let narrow = rows.map(|value| value as f32);
        for (node, cosine) in [(0, 1.0), (1, 0.96), (2, 0.0), (3, 0.0), (4, 1.0), (5, 0.0)] {
            assert_eq!(weight(Floats::F64(&rows), 2, node, 0), Ok(0.25 + cosine));
            assert_eq!(weight(Floats::F32(&narrow), 2, node, 0), Ok(0.25 + cosine));
            assert_eq!(weight(Floats::F64(&rows), 2, 0, node), Ok(0.25 + cosine));
            assert_eq!(weight(Floats::F64(&rows), 2, node, 3), Ok(0.25), "no row is like zeros");
        }
    }

    #[test]
    fn rows_of_every_width_are_summed_whole() {
        for width in 0..40 {
            let rows: Vec<f32> = (0..2 * width).map(|at| (at % 7) as f32 - 1.0).collect();
            let (x, y) = rows.split_at(width);
            let expected: f32 = x.iter().zip(y).map(|(x, y)| x * y).sum();
            let squares: f32 = x.iter().map(|x| x * x).sum();
            assert_eq!(products(x, y), (f64::from(expected), f64::from(squares)), "{width}");
        }
    }

    #[test]
    fn numbers_at_the_ends_of_float32_neither_vanish_nor_overflow() {
        for size in [f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1)] {
            let rows = [size, 0.0, size, 0.0, 0.0, size];
            assert_eq!(weight(Floats::F32(&rows), 2, 1, 0), Ok(1.25));
            assert_eq!(weight(Floats::F32(&rows), 2, 2, 0), Ok(0.25));
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_errors() {
        for odd in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let rows = [1.0, 0.0, 1.0, odd];
            let error = weight(Floats::F64(&rows), 2, 1, 0).unwrap_err();
            assert_eq!(error.to_string(), "similarity[1] = NaN is not finite");
        }
        for floor in [-0.5, f64::NAN, f64::INFINITY] {
            assert!(Similarity::new(Floats::F64(&[]), 2, floor).is_err());
        }
    }
}
