//! The element types of features, and numbers of either type.

use std::fmt::Debug;
use std::ops::{Add, Mul};

/// float32 or float64.
pub trait Float: Copy + Send + Sync + Debug + PartialOrd + Add<Output = Self> + Mul<Output = Self> + 'static {
    /// 0.
    const ZERO: Self;
    /// The maximum of nothing.
    const NEG_INFINITY: Self;
    /// Not a number.
    const NAN: Self;

    /// The nearest value.
    fn of(value: f64) -> Self;
}

impl Float for f32 {
    const ZERO: Self = 0.0;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;
    const NAN: Self = Self::NAN;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value as Self
    }
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    const NEG_INFINITY: Self = Self::NEG_INFINITY;
    const NAN: Self = Self::NAN;

    #[inline(always)]
    fn of(value: f64) -> Self {
        value
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
