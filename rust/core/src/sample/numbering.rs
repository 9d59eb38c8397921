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
        check_distinct(seeds, &number_seeds(seeds, &[], num_nodes, table.start(num_nodes))?)?;
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

/// The seeds as the first nodes of a batch, by `trees` unless these are empty. Returns
/// the positions of seeds that repeat. Edges lead to the first of equal seeds.
pub(crate) fn number_seeds<I: Id>(
    seeds: &[I],
    trees: &[u32],
    num_nodes: usize,
    table: &mut impl Table,
) -> Result<Vec<usize>, Error> {
    let mut repeats = Vec::new();
    table.reserve(seeds.len());
    for (position, &seed) in seeds.iter().enumerate() {
        table.enter(trees.get(position).copied().unwrap_or_default());
        let local = table.insert(seed.index(), position as u32).ok_or(Error::OutOfRange {
            name: "seeds",
            position,
            value: seed.signed(),
            bound: num_nodes,
            of: "nodes",
        })?;
        if local as usize != position {
            repeats.push(position);
        }
    }
    Ok(repeats)
}

/// Checks that no seed repeats.
pub(crate) fn check_distinct<I: Id>(seeds: &[I], repeats: &[usize]) -> Result<(), Error> {
    let Some(&position) = repeats.first() else {
        return Ok(());
    };
    Err(Error::Repeated {
        name: "seeds",
        position,
        first: seeds
            .iter()
            .position(|&seed| seed == seeds[position])
            .unwrap_or_default(),
        value: seeds[position].signed(),
    })
}
