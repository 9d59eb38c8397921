//! The element types of features, and the types that compute with these.

use std::fmt::Debug;
use std::hint::select_unpredictable;
use std::ops::{Add, Div, Mul, Sub};

/// float32 or float64.
pub trait Float:
    Copy
    + Send
    + Sync
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + 'static
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The maximum of nothing.
    const NEG_INFINITY: Self;
    /// Not a number.
    const NAN: Self;

    /// The nearest value.
    fn of(value: f64) -> Self;

    /// e to the power of a number of at most 0, within two units of the last place.
    /// Powers below the smallest normal number are 0. Without branches, so that loops
    /// become vector instructions, and with the same bits on every instruction set.
    fn exp_of_negative(self) -> Self;
}

/// Implements [`Float`]. e^x is 2^n e^r for the whole number n nearest to x / ln 2, and
/// the Taylor series of e^r has as many terms as the rounding leaves visible.
macro_rules! float {
    ($type:ty, $mantissa:literal, $bias:literal, $ln2:expr, $least:literal, [$last:literal $(, $factorial:literal)*]) => {
        impl Float for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = Self::NEG_INFINITY;
            const NAN: Self = Self::NAN;

            #[inline(always)]
            fn of(value: f64) -> Self {
                value as Self
            }

            #[inline(always)]
            fn exp_of_negative(self) -> Self {
                // The sum with 1.5 * 2^mantissa has n in its lowest bits.
                const SHIFT: $type = (3u64 << ($mantissa - 1)) as $type;
                // ln 2 in two parts. The product of n and the first part is exact.
                const LN2: [$type; 2] = $ln2;
                let shifted = self * std::f64::consts::LOG2_E as $type + SHIFT;
                let n = shifted - SHIFT;
                let r = self - n * LN2[0] - n * LN2[1];
                let mut series: $type = 1.0 / $last;
                $(series = series * r + 1.0 / $factorial;)*
                let power = Self::from_bits((shifted.to_bits() << $mantissa).wrapping_add($bias << $mantissa));
                select_unpredictable(self < $least, 0.0, series * power)
            }
        }
    };
}

float!(
    f32,
    23,
    127,
    [0.693_359_4, -2.121_944_4e-4],
    -87.336,
    [5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0]
);
float!(
    f64,
    52,
    1023,
    [6.931_471_803_691_238e-1, 1.908_214_929_270_587_7e-10],
    -708.39,
    [
        6_227_020_800.0,
        479_001_600.0,
        39_916_800.0,
        3_628_800.0,
        362_880.0,
        40_320.0,
        5_040.0,
        720.0,
        120.0,
        24.0,
        6.0,
        2.0,
        1.0,
        1.0
    ]
);

/// An element type of rows: float32, float64 or bfloat16.
pub trait Number: Copy + Send + Sync + Debug + 'static {
    /// The type that computes with such elements. A result is rounded once.
    type Wide: Float;
    /// 0.
    const ZERO: Self;

    /// The same value.
    fn wide(self) -> Self::Wide;

    /// The nearest value, the even one of two.
    fn nearest(value: Self::Wide) -> Self;
}

macro_rules! wide {
    ($type:ty) => {
        impl Number for $type {
            type Wide = Self;
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn wide(self) -> Self {
                self
            }

            #[inline(always)]
            fn nearest(value: Self) -> Self {
                value
            }
        }
    };
}

wide!(f32);
wide!(f64);

/// The upper half of a float32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    /// The numbers with these bits.
    pub fn of_bits(bits: &[u16]) -> &[Self] {
        // SAFETY: `Bf16` is a transparent `u16`, of which every value is one.
        unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
    }

    /// As [`Self::of_bits`], to be written.
    pub fn of_bits_mut(bits: &mut [u16]) -> &mut [Self] {
        // SAFETY: as in `of_bits`, and the result borrows `bits` alone.
        unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
    }
}

impl Number for Bf16 {
    type Wide = f32;
    const ZERO: Self = Self(0);

    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40; // not an infinity, whatever bits are cut off
        Self(select_unpredictable(value.is_nan(), quiet, rounded) as u16)
    }
}

/// Numbers in either width.
#[derive(Debug, Clone, Copy)]
pub enum Floats<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Double precision.
    F64(&'a [f64]),
}

impl Floats<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_e_are_within_two_units_of_the_last_place() {
        for step in 0..200_000 {
            let x = -f64::from(step) * 0.003_5;
            let (found, exact) = (x.exp_of_negative(), x.exp());
            assert!(
                (found - exact).abs() <= 2.0 * f64::EPSILON * exact,
                "{x}: {found}, {exact}"
            );
            let x = -(step as f32) * 4.3e-4;
            let (found, exact) = (x.exp_of_negative(), f64::from(x).exp());
            let error = (f64::from(found) - exact).abs();
            assert!(error <= 2.0 * f64::from(f32::EPSILON) * exact, "{x}: {found}, {exact}");
        }
        for (x, exact) in [(0.0, 1.0), (-800.0, 0.0), (f64::NEG_INFINITY, 0.0)] {
            assert_eq!(
                (x.exp_of_negative(), (x as f32).exp_of_negative()),
                (exact, exact as f32)
            );
        }
        assert!(f64::NAN.exp_of_negative().is_nan() && f32::NAN.exp_of_negative().is_nan());
    }

    #[test]
    fn bfloat16_is_the_nearest_value_and_the_even_one_of_two() {
        let bits = |value: f32| Bf16::nearest(value).0;
        for upper in 0..=u16::MAX {
            let value = Bf16(upper).wide();
            assert_eq!(bits(value), if value.is_nan() { upper | 0x40 } else { upper });
        }
        let between = |lower: u32| bits(f32::from_bits(0x3f80_0000 + lower));
        assert_eq!(
            [0x7fff, 0x8000, 0x8001, 0x1_8000].map(between),
            [0x3f80, 0x3f80, 0x3f81, 0x3f82]
        );
        assert_eq!(bits(f32::MAX), 0x7f80, "beyond the largest number");
        assert_eq!(bits(f32::from_bits(0x7f80_0001)), 0x7fc0, "a NaN of low bits only");
    }
}
