//! Local ids in order of first occurrence, for samplers that bring their own draws.

use super::table::{Hashed, Table};
use crate::Error;
use crate::csc::Id;
use crate::memory::reserve;

/// The nodes of a batch that grows hop by hop, the seeds first.
#[derive(Debug)]
pub struct Numbering {
    table: Hashed,
    nodes: Vec<i64>,
    num_nodes: usize,
}

impl Numbering {
    /// A batch that holds `seeds`, distinct ids below `num_nodes`.
    pub fn new(seeds: &[i64], num_nodes: usize) -> Result<Self, Error> {
        let mut table = Hashed::default();
        number_seeds(seeds, num_nodes, table.start(num_nodes))?;
        Ok(Self {
            table,
            nodes: seeds.to_vec(),
            num_nodes,
        })
    }

    /// The local id of each of `ids`. New ids get the next local ids.
    pub fn add(&mut self, ids: &[i64]) -> Result<Vec<i64>, Error> {
        self.table.reserve(ids.len().min(self.num_nodes));
        let mut locals = Vec::new();
        reserve(&mut locals, Some(ids.len()), "sources", ids.len())?;
        for (position, &id) in ids.iter().enumerate() {
            let next = self.nodes.len();
            let local = self.table.insert(id.index(), next as u32).ok_or(Error::OutOfRange {
                name: "sources",
                position,
                value: id,
                bound: self.num_nodes,
                of: "nodes",
            })?;
            if local as usize == next {
                self.nodes.push(id);
            }
            locals.push(i64::from(local));
        }
        Ok(locals)
    }

    /// Global ids in order of first occurrence.
    pub fn nodes(&self) -> &[i64] {
        &self.nodes
    }
}

/// The seeds as the first nodes of a batch.
pub(crate) fn number_seeds<I: Id>(seeds: &[I], num_nodes: usize, table: &mut impl Table) -> Result<(), Error> {
    table.reserve(seeds.len());
    for (position, &seed) in seeds.iter().enumerate() {
        let local = table.insert(seed.index(), position as u32).ok_or(Error::OutOfRange {
            name: "seeds",
            position,
            value: seed.signed(),
            bound: num_nodes,
            of: "nodes",
        })?;
        if local as usize != position {
            return Err(Error::Repeated {
                name: "seeds",
                position,
                first: local as usize,
                value: seed.signed(),
            });
        }
    }
    Ok(())
}
