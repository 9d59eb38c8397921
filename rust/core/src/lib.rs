//! Graphs, randomness, sampling and aggregation for gnnkit: slices in, `Result` out.

pub mod csc;
pub mod edges;
pub mod error;
pub mod gather;
pub mod rng;

pub use csc::Csc;
pub use error::Error;
