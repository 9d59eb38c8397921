//! Which local id a node has in the batch at hand.

use std::hint::select_unpredictable;

use crate::csc::Id;
use crate::read::prefetch;

/// Bits of a local id in the dense table. The other bits count batches.
const LOCAL_BITS: u32 = 25;

/// The largest number of nodes for which a thread keeps the dense table (4 bytes per
/// node, 16 MiB here). Larger graphs use the hashed table, which grows with the batch.
pub const DENSE_NODES: usize = 1 << 22;

/// From ids of the graph to positions in the batch, in order of first occurrence.
pub(crate) trait Table {
    /// A hint that `id` is inserted soon.
    fn prefetch(&self, id: usize);

    /// The local id of `id`, which becomes `next` if it has none yet. `None`: there is
    /// no such node.
    fn insert(&mut self, id: usize, next: u32) -> Option<u32>;

    /// Makes ids those of `tree`, which numbers nodes of its own.
    fn enter(&mut self, tree: u32);

    /// Makes room for `additional` more nodes.
    fn reserve(&mut self, additional: usize);

    /// Prepares `seek`, after the last `insert`. The table holds `nodes`.
    fn mark<I: Id>(&mut self, nodes: &[I]);

    /// A hint that `seek` of these follows soon.
    fn prefetch_seeks(&self, ids: impl Iterator<Item = usize>);

    /// Whether `id`, which is a node, has a local id, and what `settle` turns into it.
    fn seek(&self, id: usize) -> (bool, usize);

    /// Replaces what `seek` found by local ids.
    fn settle<I: Id>(&self, found: &mut [I]);
}

/// One slot per node: batch << 25 | local id. A slot of an older batch counts as empty,
/// so it is cleared only once in 127 batches: slots of half the size, which miss the
/// cache less often, are worth more than that.
#[derive(Debug, Default)]
pub(crate) struct Dense {
    slots: Vec<u32>,
    epoch: u32,
    /// One bit per node, set by `mark`: most sources are in no batch, and the bits fit
    /// into a nearer cache than the slots.
    bits: Vec<u64>,
}

impl Dense {
    /// An empty table for ids below `num_nodes`.
    pub fn start(&mut self, num_nodes: usize) -> DenseBatch<'_> {
        if self.slots.len() < num_nodes {
            self.slots = crate::memory::zeroed(num_nodes);
            self.epoch = 0;
        }
        if self.epoch == u32::MAX >> LOCAL_BITS {
            self.slots.fill(0);
            self.epoch = 0;
        }
        self.epoch += 1;
        DenseBatch {
            slots: &mut self.slots[..num_nodes],
            epoch: self.epoch << LOCAL_BITS,
            bits: &mut self.bits,
        }
    }
}

/// A [`Dense`] table during one batch.
pub(crate) struct DenseBatch<'a> {
    slots: &'a mut [u32],
    epoch: u32,
    bits: &'a mut Vec<u64>,
}

impl Table for DenseBatch<'_> {
    #[inline(always)]
    fn prefetch(&self, id: usize) {
        prefetch(self.slots, id);
    }

    #[inline(always)]
    fn insert(&mut self, id: usize, next: u32) -> Option<u32> {
        let slot = self.slots.get_mut(id)?;
        let held = *slot;
        // Half of the nodes are new and nothing predicts which: a branch here costs a
        // quarter of the batch.
        let is_new = held >> LOCAL_BITS << LOCAL_BITS != self.epoch;
        let local = select_unpredictable(is_new, next, held ^ self.epoch);
        *slot = self.epoch | local;
        Some(local)
    }

    /// All nodes are of one tree.
    fn enter(&mut self, tree: u32) {
        debug_assert_eq!(tree, 0);
    }

    #[inline(always)]
    fn reserve(&mut self, _additional: usize) {}

    fn mark<I: Id>(&mut self, nodes: &[I]) {
        self.bits.clear();
        self.bits.resize(self.slots.len().div_ceil(64), 0);
        for node in nodes {
            self.bits[node.index() / 64] |= 1 << (node.index() % 64);
        }
    }

    /// The bits are near enough.
    #[inline(always)]
    fn prefetch_seeks(&self, _ids: impl Iterator<Item = usize>) {}

    #[inline(always)]
    fn seek(&self, id: usize) -> (bool, usize) {
        (self.bits[id / 64] >> (id % 64) & 1 == 1, id)
    }

    fn settle<I: Id>(&self, found: &mut [I]) {
        const AHEAD: usize = 32;
        for at in 0..found.len() {
            if let Some(ahead) = found.get(at + AHEAD) {
                self.prefetch(ahead.index());
            }
            found[at] = I::from_index((self.slots[found[at].index()] ^ self.epoch) as usize);
        }
    }
}

/// Open addressing for graphs too large for a slot per node. The size follows the
/// batch.
#[derive(Debug, Default)]
pub(crate) struct Hashed {
    slots: Vec<Slot>,
    epoch: u32,
    used: usize,
    num_nodes: usize,
    /// Added to ids: the tree times `num_nodes`.
    offset: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    id: u64,
    local: u32,
    epoch: u32,
}

impl Hashed {
    /// An empty table for ids below `num_nodes`, which times the number of trees must be
    /// a number.
    pub fn start(&mut self, num_nodes: usize) -> &mut Self {
        if self.epoch == u32::MAX {
            self.slots.fill(Slot::default());
            self.epoch = 0;
        }
        self.epoch += 1;
        self.used = 0;
        self.num_nodes = num_nodes;
        self.offset = 0;
        self
    }

    /// The slot that holds `id`, or the empty one where it belongs.
    #[inline(always)]
    fn slot(&self, id: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = home(id, self.slots.len());
        while self.slots[at].epoch == self.epoch && self.slots[at].id != id {
            at = (at + 1) & mask;
        }
        at
    }

    fn offset_of(&self, tree: u32) -> u64 {
        u64::from(tree) * self.num_nodes as u64
    }

    #[cold]
    fn grow(&mut self, least: usize) {
        let size = least.next_power_of_two().max(1024);
        let old = std::mem::replace(&mut self.slots, crate::memory::zeroed(size));
        for slot in old.into_iter().filter(|slot| slot.epoch == self.epoch) {
            let at = self.slot(slot.id);
            self.slots[at] = slot;
        }
    }
}

/// Where the search for `id` begins: multiplicative hashing, `size` is a power of two.
#[inline(always)]
fn home(id: u64, size: usize) -> usize {
    let hash = id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 32) as usize & (size - 1)
}

impl Table for Hashed {
    #[inline(always)]
    fn prefetch(&self, id: usize) {
        prefetch(
            &self.slots,
            home(self.offset.wrapping_add(id as u64), self.slots.len().max(1)),
        );
    }

    #[inline(always)]
    fn insert(&mut self, id: usize, next: u32) -> Option<u32> {
        if id >= self.num_nodes {
            return None;
        }
        let id = self.offset + id as u64;
        let at = self.slot(id);
        let slot = &mut self.slots[at];
        if slot.epoch != self.epoch {
            self.used += 1;
            *slot = Slot {
                id,
                local: next,
                epoch: self.epoch,
            };
        }
        Some(slot.local)
    }

    fn enter(&mut self, tree: u32) {
        self.offset = self.offset_of(tree);
    }

    #[inline(always)]
    fn reserve(&mut self, additional: usize) {
        // At most half full, so that searches stay short.
        let least = 2 * (self.used + additional);
        if self.slots.len() < least {
            self.grow(least);
        }
    }

    /// `seek` needs a slot.
    fn mark<I: Id>(&mut self, _nodes: &[I]) {
        self.reserve(1);
    }

    #[inline(always)]
    fn prefetch_seeks(&self, ids: impl Iterator<Item = usize>) {
        ids.for_each(|id| self.prefetch(id));
    }

    #[inline(always)]
    fn seek(&self, id: usize) -> (bool, usize) {
        let slot = self.slots[self.slot(self.offset + id as u64)];
        (slot.epoch == self.epoch, slot.local as usize)
    }

    /// `seek` found local ids.
    fn settle<I: Id>(&self, _found: &mut [I]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    fn first_occurrences(table: &mut impl Table, ids: &[usize]) -> Vec<u32> {
        let mut next = 0;
        ids.iter()
            .map(|&id| {
                table.reserve(1);
                let local = table.insert(id, next).unwrap();
                next += u32::from(local == next);
                local
            })
            .collect()
    }

    #[test]
    fn all_tables_number_nodes_by_first_occurrence() {
        let (mut dense, mut hashed) = (Dense::default(), Hashed::default());
        let mut stream = Stream::new(3);
        for batch in 0..4 {
            let ids: Vec<usize> = (0..5000).map(|_| stream.below(1000 + 500 * batch) as usize).collect();
            let a = first_occurrences(&mut dense.start(2500), &ids);
            let b = first_occurrences(hashed.start(2500), &ids);
            assert_eq!(a, b);
            assert_eq!(a[0], 0);
        }
    }

    fn seeks(table: &mut impl Table, nodes: &[i64]) -> (Vec<bool>, Vec<i64>) {
        first_occurrences(table, &nodes.iter().map(|&node| node as usize).collect::<Vec<_>>());
        table.mark(nodes);
        let known: Vec<bool> = (0..1000).map(|id| table.seek(id).0).collect();
        let found = (0..1000).map(|id| table.seek(id)).filter(|(is_known, _)| *is_known);
        let mut locals: Vec<i64> = found.map(|(_, found)| found as i64).collect();
        table.settle(&mut locals);
        (known, locals)
    }

    #[test]
    fn all_tables_find_the_nodes_of_the_batch() {
        let (mut dense, mut hashed) = (Dense::default(), Hashed::default());
        let mut stream = Stream::new(5);
        for count in [300, 0, 7] {
            let nodes: Vec<i64> = (0..count).map(|_| stream.below(1000) as i64).collect();
            let (known, locals) = seeks(&mut dense.start(1000), &nodes);
            assert_eq!((known.clone(), locals.clone()), seeks(hashed.start(1000), &nodes));
            let mut distinct = Vec::new();
            nodes.iter().for_each(|node| {
                if !distinct.contains(node) {
                    distinct.push(*node)
                }
            });
            let ids: Vec<i64> = (0..1000).filter(|&id| known[id as usize]).collect();
            let by_local: Vec<i64> = locals.iter().map(|&local| distinct[local as usize]).collect();
            assert_eq!(ids, by_local);
            assert_eq!(ids.len(), distinct.len());
        }
    }

    #[test]
    fn nodes_that_do_not_exist_are_refused() {
        let (mut dense, mut hashed) = (Dense::default(), Hashed::default());
        let _ = dense.start(10); // a table that is longer than this graph needs
        assert_eq!(dense.start(5).insert(5, 0), None);
        let batch = hashed.start(5);
        batch.reserve(1);
        assert_eq!(batch.insert(5, 0), None);
        assert_eq!(batch.insert(usize::MAX, 0), None);
    }

    #[test]
    fn epochs_wrap_without_mixing_batches() {
        let mut dense = Dense {
            slots: vec![0, 1, 2, 3],
            epoch: (u32::MAX >> LOCAL_BITS) - 1,
            bits: Vec::new(),
        };
        assert_eq!(dense.start(4).insert(2, 0), Some(0));
        let mut batch = dense.start(4);
        assert_eq!(batch.insert(1, 0), Some(0));
        assert_eq!(batch.insert(2, 1), Some(1));
    }
}
