//! `gnnkit._core`: NumPy arrays in, NumPy arrays out, the interpreter released in between.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod aggregate;
mod array;
mod balance;
mod border;
mod dropout;
mod gather;
mod generate;
#[macro_use]
mod graph;
mod loader;
mod sample;

/// The core's errors are the user's: `ValueError`.
fn value_error(error: gnnkit_core::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The native core. Every function takes and returns NumPy arrays; bad input raises `ValueError`.
#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    generate::register(m)?;
    aggregate::register(m)?;
    balance::register(m)?;
    border::register(m)?;
    dropout::register(m)?;
    gather::register(m)?;
    graph::register(m)?;
    loader::register(m)?;
    sample::register(m)
}
