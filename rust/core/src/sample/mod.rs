//! Sampled neighbourhoods: seeds in, blocks out, the same bits on any number of
//! threads.
//!
//! Every draw is a hash of its purpose (see [`crate::rng`]): the key of the batch, the
//! node that draws and the number of the draw.
//!
//! The files build on each other in this order, and no file imports a later one:
//!
//! 1. `batch` holds the results, `table` finds local ids, `numbering` numbers nodes for
//!    samplers in Python, `paths` finds trees by time, and `floyd` draws distinct numbers.
//! 2. `law` defines the trait of a law. `uniform`, `weighted`, `labor`, `cluster` and
//!    `visits` implement it, and so does `balanced`, which draws like `uniform`.
//! 3. `edges` draws rows by a law, module `crew` does so on several threads, and
//!    `expand` numbers the nodes that a hop finds.
//! 4. `by_law` draws one hop by a law of any crate. `sampler` chooses among the laws
//!    here, and `grow` runs the hops of a batch.

mod balanced;
mod batch;
mod by_law;
mod cluster;
mod crew;
mod edges;
mod expand;
mod floyd;
mod grow;
mod labor;
mod law;
mod numbering;
mod paths;
mod sampler;
mod table;
#[cfg(test)]
mod tests;
mod uniform;
mod visits;
mod weighted;

pub use balanced::water_fill;
pub use batch::{Batch, Hop, Nodes, Subgraph};
pub use by_law::draw_by;
pub use edges::Importance;
pub use grow::{EdgeType, Request, Seeds};
pub use law::{Law, Row};
pub use numbering::Numbering;
pub use paths::{Paths, Trees};
pub use sampler::{Fanout, Kind, MAX_HOPS, Sampler, Scratch};
pub use table::DENSE_NODES;
