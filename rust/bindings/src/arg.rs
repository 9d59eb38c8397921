//! Arguments by name: whole numbers within bounds, numbers, lists of them and
//! one-dimensional arrays. Every error names its argument.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use gnnkit_core::float;
use numpy::{Element, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyUntypedArrayMethods, dtype};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::UserError;

/// An argument as Python gives it.
pub(crate) type Arg<'a, 'py> = &'a Bound<'py, PyAny>;

/// Characters of a value that an error shows.
const SHOWN: usize = 60;

/// The error for a bad value of the argument `name`.
pub(crate) fn refuse(name: &str, what: impl Display) -> PyErr {
    UserError::new_err(format!("{name}: {what}"))
}

/// The error for an argument of another type than `wanted`.
fn mistyped(name: &str, wanted: impl Display, value: Arg<'_, '_>) -> PyErr {
    let found = value.get_type().to_string();
    PyTypeError::new_err(format!("{name} must be {wanted}, got {found}"))
}

/// The text of `value`, cut to a length that fits into a message.
fn shown(value: Arg<'_, '_>) -> String {
    match value.repr() {
        Ok(text) => text.to_string_lossy().chars().take(SHOWN).collect(),
        Err(_) => "a number of very many digits".into(),
    }
}

/// A whole number within `bounds`.
fn whole(name: &str, value: Arg<'_, '_>, bounds: RangeInclusive<i128>) -> PyResult<i128> {
    let number = match value.extract::<i128>() {
        Ok(number) => Some(number),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => None,
        Err(_) => return Err(mistyped(name, "a whole number", value)),
    };
    if let Some(number) = number.filter(|number| bounds.contains(number)) {
        return Ok(number);
    }
    let bound = match number.map_or_else(|| value.lt(0), |number| Ok(number < *bounds.start()))? {
        true => format!("least {}", bounds.start()),
        false => format!("most {}", bounds.end()),
    };
    Err(UserError::new_err(format!(
        "{name}={} must be at {bound}",
        shown(value)
    )))
}

/// A number of things in memory.
pub(crate) fn count(name: &str, value: Arg<'_, '_>) -> PyResult<usize> {
    within(name, value, 0..=isize::MAX as usize)
}

/// A number of things within `bounds`.
pub(crate) fn within(name: &str, value: Arg<'_, '_>, bounds: RangeInclusive<usize>) -> PyResult<usize> {
    let bounds = *bounds.start() as i128..=*bounds.end() as i128;
    whole(name, value, bounds).map(|number| number as usize)
}

/// What `read` makes of `value`, which may be `None`.
pub(crate) fn optional<'a, 'py, T>(
    value: Arg<'a, 'py>,
    read: impl FnOnce(Arg<'a, 'py>) -> PyResult<T>,
) -> PyResult<Option<T>> {
    if value.is_none() {
        Ok(None)
    } else {
        read(value).map(Some)
    }
}

/// A key of 64 bits.
pub(crate) fn key(name: &str, value: Arg<'_, '_>) -> PyResult<u64> {
    whole(name, value, 0..=i128::from(u64::MAX)).map(|number| number as u64)
}

/// A real number.
pub(crate) fn real(name: &str, value: Arg<'_, '_>) -> PyResult<f64> {
    match value.extract() {
        Ok(number) => Ok(number),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            Err(refuse(name, format_args!("{} is out of range", shown(value))))
        }
        Err(_) => Err(mistyped(name, "a number", value)),
    }
}

/// True or false.
pub(crate) fn flag(name: &str, value: Arg<'_, '_>) -> PyResult<bool> {
    value.extract().map_err(|_| mistyped(name, "True or False", value))
}

/// A text.
pub(crate) fn text(name: &str, value: Arg<'_, '_>) -> PyResult<String> {
    value.extract().map_err(|_| mistyped(name, "a text", value))
}

/// The path of a file.
pub(crate) fn path(name: &str, value: Arg<'_, '_>) -> PyResult<PathBuf> {
    value.extract().map_err(|_| mistyped(name, "a path", value))
}

/// The items of a sequence.
pub(crate) fn items<'py>(name: &str, value: Arg<'_, 'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    value.extract().map_err(|_| mistyped(name, "a sequence", value))
}

/// The N items of a sequence.
pub(crate) fn exactly<'py, const N: usize>(name: &str, value: Arg<'_, 'py>) -> PyResult<[Bound<'py, PyAny>; N]> {
    <[_; N]>::try_from(items(name, value)?)
        .map_err(|items| refuse(name, format_args!("has {} items, expected {N}", items.len())))
}

/// Signed numbers of 64 bits, of which an error names the place.
pub(crate) fn numbers(name: &str, value: Arg<'_, '_>) -> PyResult<Vec<i64>> {
    let bounds = i128::from(i64::MIN)..=i128::from(i64::MAX);
    let items = items(name, value)?.into_iter().enumerate();
    items
        .map(|(at, item)| whole(&format!("{name}[{at}]"), &item, bounds.clone()).map(|number| number as i64))
        .collect()
}

/// An attribute of the argument `name`.
pub(crate) fn attribute<'py>(name: &str, value: Arg<'_, 'py>, attribute: &str) -> PyResult<Bound<'py, PyAny>> {
    value.getattr(attribute).map_err(|_| {
        let wanted = format!("an object with the attribute {attribute}");
        mistyped(name, wanted, value)
    })
}

/// A one-dimensional, C-contiguous, aligned array to read.
pub(crate) struct Slice<'py, T: Element>(PyReadonlyArray1<'py, T>);

impl<'py, T: Element> Slice<'py, T> {
    pub(crate) fn new(name: &str, value: Arg<'_, 'py>) -> PyResult<Self> {
        let Ok(array) = value.cast::<PyArray1<T>>() else {
            let wanted = dtype::<T>(value.py()).repr()?;
            let wanted = format!("a one-dimensional NumPy array of {wanted}");
            return Err(mistyped(name, wanted, value));
        };
        let array = array.try_readonly().map_err(|error| refuse(name, error))?;
        match array.as_slice() {
            Ok(_) => Ok(Self(array)),
            Err(_) => Err(refuse(name, "must be C-contiguous and aligned")),
        }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        self.0.as_slice().expect("checked when it was made")
    }

    pub(crate) fn as_any(&self) -> &Bound<'py, PyAny> {
        self.0.as_any()
    }
}

/// Ids in either width that NumPy users have.
pub(crate) enum Ids<'py> {
    I32(Slice<'py, i32>),
    I64(Slice<'py, i64>),
}

impl<'py> Ids<'py> {
    pub(crate) fn new(name: &str, value: Arg<'_, 'py>) -> PyResult<Self> {
        if value.cast::<PyArray1<i32>>().is_ok() {
            return Slice::new(name, value).map(Self::I32);
        }
        if value.cast::<PyArray1<i64>>().is_ok() {
            return Slice::new(name, value).map(Self::I64);
        }
        let wanted = "a one-dimensional NumPy array of int32 or int64";
        Err(mistyped(name, wanted, value))
    }

    pub(crate) fn as_i32(&self) -> Option<&[i32]> {
        if let Self::I32(ids) = self {
            Some(ids.as_slice())
        } else {
            None
        }
    }

    pub(crate) fn as_i64(&self) -> Option<&[i64]> {
        if let Self::I64(ids) = self {
            Some(ids.as_slice())
        } else {
            None
        }
    }
}

/// Numbers in either width.
pub(crate) enum Floats<'py> {
    F32(Slice<'py, f32>),
    F64(Slice<'py, f64>),
}

impl<'py> Floats<'py> {
    pub(crate) fn new(name: &str, value: Arg<'_, 'py>) -> PyResult<Self> {
        if value.cast::<PyArray1<f32>>().is_ok() {
            return Slice::new(name, value).map(Self::F32);
        }
        if value.cast::<PyArray1<f64>>().is_ok() {
            return Slice::new(name, value).map(Self::F64);
        }
        let wanted = "a one-dimensional NumPy array of float32 or float64";
        Err(mistyped(name, wanted, value))
    }

    pub(crate) fn view(&self) -> float::Floats<'_> {
        match self {
            Self::F32(values) => float::Floats::F32(values.as_slice()),
            Self::F64(values) => float::Floats::F64(values.as_slice()),
        }
    }
}

/// A table of numbers in either width, row by row.
pub(crate) struct Table<'py> {
    pub(crate) values: Floats<'py>,
    pub(crate) width: usize,
}

impl<'py> Table<'py> {
    pub(crate) fn new(name: &str, value: Arg<'_, 'py>) -> PyResult<Self> {
        let narrow = value.cast::<PyArray2<f32>>().map(|table| table.as_untyped());
        let Ok(table) = narrow.or_else(|_| value.cast::<PyArray2<f64>>().map(|table| table.as_untyped())) else {
            let wanted = "a two-dimensional NumPy array of float32 or float64";
            return Err(mistyped(name, wanted, value));
        };
        if !table.is_c_contiguous() {
            return Err(refuse(name, "must be C-contiguous and aligned"));
        }
        // A view of all numbers, which keeps the table alive.
        let values = Floats::new(name, &value.call_method1("reshape", (-1,))?)?;
        let width = table.shape()[1];
        Ok(Self { values, width })
    }
}

/// Runs the body with the ids as a slice, whichever width they have.
macro_rules! with_ids {
    ($ids:expr, $slice:ident => $body:expr) => {
        match &$ids {
            $crate::arg::Ids::I32(array) => {
                let $slice = array.as_slice();
                $body
            }
            $crate::arg::Ids::I64(array) => {
                let $slice = array.as_slice();
                $body
            }
        }
    };
}
