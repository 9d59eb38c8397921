//! Similarity of nodes, for walks that prefer nodes like their start.

use crate::float::Floats;
use crate::{Error, isa};

/// Bytes of a row that are prefetched. The processor streams the rest of a long row by
/// itself.
const AHEAD_BYTES: usize = 512;

/// By how much walks prefer a node of some cosine to an unlike one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preference {
    floor: f64,
    sharpness: u32,
}

impl Preference {
    /// The largest `sharpness`. With a floor of 1e-9 the least weight is still a normal
    /// number.
    pub const MAX_SHARPNESS: u32 = 32;

    /// Checks both numbers. `floor` is added to the cosine, and the sum is raised to
    /// the power `sharpness`.
    pub fn new(floor: f64, sharpness: usize) -> Result<Self, Error> {
        if !(0.0..f64::INFINITY).contains(&floor) {
            return Err(Error::Amount {
                name: "floor",
                value: floor,
            });
        }
        let high = Self::MAX_SHARPNESS as usize;
        if !(1..=high).contains(&sharpness) {
            return Err(Error::Count {
                name: "sharpness",
                value: sharpness,
                low: 1,
                high,
            });
        }
        let sharpness = sharpness as u32;
        Ok(Self { floor, sharpness })
    }

    /// ((floor + cosine) / (floor + 1))^sharpness: 1 for a twin of the start, so large
    /// floors do not overflow. Multiplied one by one, because `powi` has other bits on
    /// other machines.
    #[inline(always)]
    fn weight(self, cosine: f64) -> f64 {
        let base = (self.floor + cosine.max(0.0)) / (self.floor + 1.0);
        (1..self.sharpness).fold(base, |power, _| power * base)
    }
}

/// Rows of nodes to compare.
///
/// Walks from s want v in proportion to (floor + max(0, cosine of the rows of v and
/// s))^sharpness. A row of zeros is similar to no row. All sums are float64 and added in
/// one order, so a weight has the same bits on every machine.
#[derive(Debug, Clone, Copy)]
pub struct Similarity<'a> {
    rows: Floats<'a>,
    width: usize,
    preference: Preference,
}

impl<'a> Similarity<'a> {
    /// `rows` are [num_nodes, width], one after the other.
    pub fn new(rows: Floats<'a>, width: usize, preference: Preference) -> Self {
        Self {
            rows,
            width,
            preference,
        }
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
    pub(crate) fn to(self, start: usize) -> Result<Like<'a>, Error> {
        let (square, _) = self.products(start, start);
        if !square.is_finite() {
            return Err(not_finite(start));
        }
        Ok(Like {
            to: self,
            start,
            length: square.sqrt(),
            own: 1.0,
        })
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
    /// By how much walks want the start.
    own: f64,
}

fn not_finite(node: usize) -> Error {
    Error::NotFinite {
        name: "similarity",
        position: node,
        value: f64::NAN,
    }
}

impl Like<'_> {
    /// Makes the start weigh as much as the mean of `neighbours`.
    ///
    /// The start is not drawn, so its weight only says how long walks wait there. Its
    /// own likeness of 1 would hold them there: no neighbour is as like the start as
    /// the start itself.
    pub(crate) fn weigh_start(&mut self, neighbours: impl Iterator<Item = usize>) -> Result<(), Error> {
        let (mut sum, mut count) = (0.0, 0);
        for node in neighbours.filter(|&node| node != self.start) {
            sum += self.weight(node)?;
            count += 1;
        }
        if count > 0 {
            self.own = sum / f64::from(count);
        }
        Ok(())
    }

    /// By how much walks want `node`.
    pub(crate) fn weight(&self, node: usize) -> Result<f64, Error> {
        if node == self.start {
            return Ok(self.own);
        }
        let (product, square) = self.to.products(node, self.start);
        let lengths = square.sqrt() * self.length;
        let cosine = if lengths == 0.0 { 0.0 } else { product / lengths };
        if cosine.is_nan() {
            return Err(not_finite(node));
        }
        Ok(self.to.preference.weight(cosine))
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
        let preference = Preference::new(0.25, 1)?;
        let weight = Similarity::new(rows, width, preference).to(start)?.weight(node);
        weight.map(|weight| weight * 1.25)
    }

    #[test]
    fn the_weight_is_the_floor_plus_the_cosine_unless_that_is_negative() {
        let rows = [3.0, 4.0, 4.0, 3.0, -3.0, -4.0, 0.0, 0.0, 300.0, 400.0, -4.0, 3.0];
        let narrow = rows.map(|value| value as f32);
        let close = |found: Result<f64, Error>, cosine: f64| (found.unwrap() - 0.25 - cosine).abs() < 1e-15;
        for (node, cosine) in [(1, 0.96), (2, 0.0), (3, 0.0), (4, 1.0), (5, 0.0)] {
            assert!(close(weight(Floats::F64(&rows), 2, node, 0), cosine), "{node}");
            assert!(close(weight(Floats::F32(&narrow), 2, node, 0), cosine), "{node}");
            assert!(close(weight(Floats::F64(&rows), 2, 0, node), cosine), "{node}");
            assert!(
                node == 3 || close(weight(Floats::F64(&rows), 2, node, 3), 0.0),
                "no row is like zeros"
            );
        }
    }

    #[test]
    fn sharpness_is_the_power_of_that_sum() {
        let rows = [3.0, 4.0, 4.0, 3.0];
        for (floor, sharpness) in [(0.1, 8), (1e-9, 32), (1e300, 32)] {
            let preference = Preference::new(floor, sharpness).unwrap();
            let found = Similarity::new(Floats::F64(&rows), 2, preference).to(0).unwrap();
            let expected = ((floor + 0.96) / (floor + 1.0)).powi(sharpness as i32);
            assert!((found.weight(1).unwrap() / expected - 1.0).abs() < 1e-13);
            assert!(preference.weight(0.0) > 0.0);
        }
    }

    #[test]
    fn the_start_weighs_as_much_as_its_mean_neighbour() {
        let rows = [3.0, 4.0, 4.0, 3.0, -3.0, -4.0];
        let preference = Preference::new(0.25, 1).unwrap();
        let mut like = Similarity::new(Floats::F64(&rows), 2, preference).to(0).unwrap();
        like.weigh_start([0, 0].into_iter()).unwrap();
        assert_eq!(like.weight(0), Ok(1.0), "nobody but itself");
        like.weigh_start([0, 1, 2].into_iter()).unwrap();
        assert_eq!(
            like.weight(0).unwrap(),
            (like.weight(1).unwrap() + like.weight(2).unwrap()) / 2.0
        );
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
            assert!(Preference::new(floor, 1).is_err());
        }
        for sharpness in [0, 33, usize::MAX] {
            assert!(Preference::new(0.1, sharpness).is_err());
        }
    }
}
