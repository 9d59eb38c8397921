//! `gnnkit._core`: NumPy arrays in, NumPy arrays out, the interpreter released in
//! between.

use pyo3::prelude::*;

#[macro_use]
mod arg;

mod aggregate;
mod array;
mod attention;
mod balance;
mod border;
mod buckets;
mod dropout;
mod gather;
mod generate;
mod graph;
mod links;
mod loader;
mod row_file;
mod sample;
mod streaming;

pyo3::import_exception!(gnnkit.errors, UserError);

/// Converts an error of the core to an error that users can fix.
fn user_error(error: gnnkit_core::Error) -> PyErr {
    UserError::new_err(error.to_string())
}

/// The native core. Every function takes and returns NumPy arrays. Bad input raises
/// `UserError`, and an argument of another type raises `TypeError`.
#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    generate::register(m)?;
    aggregate::register(m)?;
    attention::register(m)?;
    balance::register(m)?;
    border::register(m)?;
    buckets::register(m)?;
    dropout::register(m)?;
    gather::register(m)?;
    graph::register(m)?;
    links::register(m)?;
    loader::register(m)?;
    row_file::register(m)?;
    sample::register(m)?;
    streaming::register(m)
}
