//! Graphs, randomness, sampling and aggregation for gnnkit: slices in, `Result` out.

pub mod aggregate;
pub mod balance;
pub mod border;
pub mod buckets;
pub mod buffer_nodes;
pub mod cover;
pub mod crossing;
pub mod csc;
pub mod dropout;
pub mod edges;
pub mod error;
pub mod float;
pub mod gather;
pub mod generate;
pub mod isa;
pub mod links;
pub mod loader;
pub mod memory;
pub mod order;
pub mod pool;
mod ring;
pub mod rng;
pub mod row_cache;
pub mod row_file;
pub mod sample;
pub mod similarity;
pub mod stream_edges;
pub mod stream_nodes;
pub mod team;
pub mod view;
pub mod walk;

pub use aggregate::Aggregator;
pub use csc::Csc;
pub use dropout::Dropout;
pub use error::Error;
pub use float::{Bf16, Float, Number};
