//! Trees of times: a node that an edge leads to sees what was there before this edge.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::Error;
use crate::error::check_count;
use crate::read::load;

/// Trees of a batch: a node that several trees find is in the batch once per tree.
#[derive(Debug, Clone, Copy)]
pub struct Trees<'a> {
    /// [num_trees] numbers that key the draws in each tree together with the node.
    pub keys: &'a [i64],
    /// [num_trees] the latest time that each tree sees. `None`: all times.
    pub bounds: Option<&'a [i64]>,
    /// How trees follow from the times of edges. `None`: sources are of their row's tree.
    pub paths: Option<Paths<'a>>,
}

/// Assigns a node to the tree that has the time of the edge to the node.
#[derive(Debug, Clone, Copy)]
pub struct Paths<'a> {
    /// [num_trees] the time of each tree.
    pub times: &'a [i64],
    /// A tree sees times up to this much before its own.
    pub lag: i64,
    /// The key of a tree is its time by this number.
    pub spread: i64,
    /// Whether trees of different seeds are apart, also those of equal times.
    pub apart: bool,
}

impl Trees<'_> {
    /// Whether all nodes of a batch are of one tree.
    pub(crate) fn are_one(&self) -> bool {
        self.keys.len() <= 1 && self.paths.is_none()
    }
}

/// The trees of a batch, to which paths add.
#[derive(Debug)]
pub(crate) struct PathTrees {
    pub keys: Vec<i64>,
    pub bounds: Vec<i64>,
    pub times: Vec<i64>,
    /// The number of the seeds that may share a tree.
    roots: Vec<u32>,
    numbers: HashMap<(u32, i64), u32>, // by root and time
    lag: i64,
    spread: i64,
}

impl PathTrees {
    /// The trees of seeds.
    pub fn new(trees: &Trees<'_>, paths: &Paths<'_>) -> Self {
        let all = |values: &[i64]| values.iter().map(load).collect::<Vec<_>>();
        let (times, roots) = (all(paths.times), 0..trees.keys.len() as u32);
        let roots: Vec<u32> = roots.map(|tree| if paths.apart { tree } else { 0 }).collect();
        let of_seeds = roots.iter().zip(&times).zip(0..);
        Self {
            keys: all(trees.keys),
            bounds: all(trees.bounds.unwrap_or_default()),
            numbers: of_seeds.map(|((&root, &time), tree)| ((root, time), tree)).collect(),
            times,
            roots,
            lag: paths.lag,
            spread: paths.spread,
        }
    }

    /// The tree of a node that `tree` reaches by an edge visible from `time` on.
    #[inline]
    pub fn enter(&mut self, tree: u32, time: i64) -> Result<u32, Error> {
        if time == i64::MIN {
            return Ok(tree); // visible at all times, so no path passes a time
        }
        let (root, next) = (self.roots[tree as usize], self.times.len());
        match self.numbers.entry((root, time)) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => {
                check_count("trees of a batch", next, u32::MAX as usize)?;
                new.insert(next as u32);
                self.times.push(time);
                self.keys.push(time.wrapping_mul(self.spread));
                self.bounds.push(time.saturating_sub(self.lag));
                self.roots.push(root);
                Ok(next as u32)
            }
        }
    }
}
