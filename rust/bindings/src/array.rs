//! Arrays of the caller: C-contiguous, aligned, and the written ones apart from the
//! read ones.

use gnnkit_core::{Bf16, Number};
use numpy::{Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use numpy::{PyUntypedArrayMethods, dtype};
use pyo3::prelude::*;

use crate::arg::refuse;

/// An array to read, with its name for errors.
pub(crate) struct Input<'py, T: Element> {
    name: &'static str,
    array: PyReadonlyArrayDyn<'py, T>,
}

/// An array to write, with its name for errors.
pub(crate) struct Output<'py, T: Element> {
    name: &'static str,
    array: PyReadwriteArrayDyn<'py, T>,
}

impl<'py, T: Element> Input<'py, T> {
    pub(crate) fn new(name: &'static str, array: &Bound<'py, PyAny>) -> PyResult<Self> {
        let array = cast(name, array)?.try_readonly().map_err(|error| refuse(name, error))?;
        Ok(Self { name, array })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(crate) fn as_slice(&self) -> PyResult<&[T]> {
        self.array.as_slice().map_err(|error| refuse(self.name, error))
    }
}

impl<T: Element> Input<'_, T> {
    /// The number of rows of a table, and the elements of each.
    pub(crate) fn rows(&self) -> PyResult<(usize, usize)> {
        match self.shape() {
            &[num_rows, row] => Ok((num_rows, row)),
            shape => Err(refuse(self.name, format_args!("has {} axes, expected 2", shape.len()))),
        }
    }
}

impl<'py, T: Element> Output<'py, T> {
    pub(crate) fn new(name: &'static str, array: &Bound<'py, PyAny>) -> PyResult<Self> {
        let array = cast(name, array)?
            .try_readwrite()
            .map_err(|error| refuse(name, error))?;
        Ok(Self { name, array })
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.array.shape()
    }

    pub(crate) fn as_slice(&mut self) -> PyResult<&mut [T]> {
        self.array.as_slice_mut().map_err(|error| refuse(self.name, error))
    }

    /// Checks that no byte of `input` is written: NumPy's own bookkeeping does not see
    /// through tensors.
    pub(crate) fn apart_from<U: Element>(&self, input: &Input<'py, U>) -> PyResult<()> {
        let (own, read) = (bytes(&self.array), bytes(&input.array));
        if own.start < read.end && read.start < own.end {
            return Err(refuse(self.name, format_args!("shares memory with {}", input.name)));
        }
        Ok(())
    }

    /// As `apart_from`, of two arrays that are written.
    pub(crate) fn apart_from_output<U: Element>(&self, other: &Output<'py, U>) -> PyResult<()> {
        let (own, written) = (bytes(&self.array), bytes(&other.array));
        if own.start < written.end && written.start < own.end {
            return Err(refuse(self.name, format_args!("shares memory with {}", other.name)));
        }
        Ok(())
    }
}

fn bytes<T: Element>(array: &Bound<'_, PyArrayDyn<T>>) -> std::ops::Range<usize> {
    let start = array.data() as usize;
    start..start + array.len() * size_of::<T>()
}

/// `array` as an array of `T`, of which a slice may be taken.
fn cast<'a, 'py, T: Element>(name: &str, array: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    let Ok(typed) = array.cast::<PyArrayDyn<T>>() else {
        return Err(refuse(
            name,
            format_args!("must be a NumPy array of {}", dtype::<T>(array.py()).repr()?),
        ));
    };
    if !typed.is_c_contiguous() {
        return Err(refuse(name, "must be C-contiguous"));
    }
    Ok(typed)
}

/// An element type of rows, and the type of NumPy's arrays of such elements.
pub(crate) trait Item: Number<Wide: Element> {
    /// NumPy has no bfloat16. Its bits are held as uint16.
    type Held: Element;
    const NAME: &'static str;

    fn of(held: &[Self::Held]) -> &[Self];

    fn of_mut(held: &mut [Self::Held]) -> &mut [Self];
}

macro_rules! held_as_itself {
    ($type:ty, $name:literal) => {
        impl Item for $type {
            type Held = Self;
            const NAME: &'static str = $name;

            fn of(held: &[Self]) -> &[Self] {
                held
            }

            fn of_mut(held: &mut [Self]) -> &mut [Self] {
                held
            }
        }
    };
}

held_as_itself!(f32, "float32");
held_as_itself!(f64, "float64");

impl Item for Bf16 {
    type Held = u16;
    const NAME: &'static str = "uint16 (bits of bfloat16)";

    fn of(held: &[u16]) -> &[Self] {
        Self::of_bits(held)
    }

    fn of_mut(held: &mut [u16]) -> &mut [Self] {
        Self::of_bits_mut(held)
    }
}

/// Whether `array` holds items of type `T`.
pub(crate) fn holds<T: Item>(array: &Bound<'_, PyAny>) -> bool {
    array.cast::<PyArrayDyn<T::Held>>().is_ok()
}

/// Returns `function::<T>(arguments)` for the type T of `array`, one of `types`. All
/// rows of a call have one type.
macro_rules! by_type {
    ($name:literal, $array:expr, [$($type:ty),+], $function:ident $arguments:tt) => {{
        $(if $crate::array::holds::<$type>(&$array) {
            return $function::<$type> $arguments;
        })+
        let names = [$(<$type as $crate::array::Item>::NAME),+].join(" or ");
        Err($crate::arg::refuse($name, format_args!("must be a NumPy array of {names}")))
    }};
}
pub(crate) use by_type;

/// Columns of a row: the product of all axes of `shape` but the first.
pub(crate) fn width(name: &str, shape: &[usize]) -> PyResult<usize> {
    match shape {
        [] => Err(refuse(name, "must have at least one axis")),
        [_, columns @ ..] => Ok(columns.iter().fold(1, |all, &axis| all.saturating_mul(axis))),
    }
}

/// The width of two arrays of rows, which must have the same axes but the first.
pub(crate) fn same_rows(a: (&str, &[usize]), b: (&str, &[usize])) -> PyResult<usize> {
    let (columns, others) = (width(a.0, a.1)?, width(b.0, b.1)?);
    if columns != others {
        return Err(refuse(b.0, format_args!("has {others} columns, {} has {columns}", a.0)));
    }
    Ok(columns)
}
