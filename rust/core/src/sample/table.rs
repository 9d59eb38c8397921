//! Which local id a node has in the batch at hand.

use std::hint::select_unpredictable;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest number of nodes for which a thread keeps the dense table (8 bytes a node, 256 MiB here); above it, the hashed one.
pub const DENSE_NODES: usize = 1 << 25;

/// From ids of the graph to positions in the batch, in order of first occurrence.
pub(crate) trait Table {
    /// A hint that `id` is inserted soon.
    fn prefetch(&self, id: usize);

    /// The local id of `id`, which becomes `next` if it has none yet. `None`: there is no such node.
    fn insert(&mut self, id: usize, next: u32) -> Option<u32>;

    /// Gives `id`, which was inserted, another local id.
    fn renumber(&mut self, id: usize, local: u32);

    /// Makes room for `additional` more nodes.
    fn reserve(&mut self, additional: usize);
}

/// A table that several threads fill, each with the ids of one part ([`part_of`]).
pub(crate) trait Divisible: Table {
    type Part<'a>: Table + Send
    where
        Self: 'a;

    /// One table for each part, as many as the batch was started with.
    fn parts(&mut self) -> Vec<Self::Part<'_>>;
}

/// The part that `id` belongs to. Ids whose dense slots share a cache line belong to the same one.
#[inline(always)]
pub(crate) fn part_of(id: usize, num_parts: usize) -> usize {
    let hash = (id as u64 >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    ((hash * num_parts as u64) >> 32) as usize
}

/// One slot per node: batch << 32 | local id. It is never cleared: a slot of an older batch counts as empty.
///
/// No two threads use the same slot at a time; that slots are atomic says so without `unsafe`, and costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Dense {
    slots: Vec<AtomicU64>,
    epoch: u32,
}

impl Dense {
    /// An empty table of `num_parts` for ids below `num_nodes`.
    pub fn start(&mut self, num_nodes: usize, num_parts: usize) -> DenseBatch<'_> {
        if self.slots.len() < num_nodes {
            self.slots = super::pages::zeroed(num_nodes);
            self.epoch = 0;
        }
        if self.epoch == u32::MAX {
            self.slots.fill_with(AtomicU64::default);
            self.epoch = 0;
        }
        self.epoch += 1;
        DenseBatch {
            slots: &self.slots[..num_nodes],
            epoch: u64::from(self.epoch) << 32,
            num_parts,
        }
    }
}

/// A [`Dense`] table during one batch.
#[derive(Clone, Copy)]
pub(crate) struct DenseBatch<'a> {
    slots: &'a [AtomicU64],
    epoch: u64,
    num_parts: usize,
}

impl Table for DenseBatch<'_> {
    #[inline(always)]
    fn prefetch(&self, id: usize) {
        super::view::prefetch(self.slots, id);
    }

    #[inline(always)]
    fn insert(&mut self, id: usize, next: u32) -> Option<u32> {
        let slot = self.slots.get(id)?;
        let held = slot.load(Ordering::Relaxed);
        // Half of the nodes are new and nothing predicts which: a branch here costs a quarter of the batch.
        let is_new = held & !0xffff_ffff != self.epoch;
        let local = select_unpredictable(is_new, next, held as u32);
        slot.store(self.epoch | u64::from(local), Ordering::Relaxed);
        Some(local)
    }

    #[inline(always)]
    fn renumber(&mut self, id: usize, local: u32) {
        self.slots[id].store(self.epoch | u64::from(local), Ordering::Relaxed);
    }

    #[inline(always)]
    fn reserve(&mut self, _additional: usize) {}
}

impl<'b> Divisible for DenseBatch<'b> {
    type Part<'a>
        = DenseBatch<'b>
    where
        Self: 'a;

    fn parts(&mut self) -> Vec<DenseBatch<'b>> {
        vec![*self; self.num_parts]
    }
}

/// Open addressing for graphs too large for a slot per node; its size follows the batch.
#[derive(Debug, Default)]
pub(crate) struct Hashed {
    slots: Vec<Slot>,
    epoch: u32,
    used: usize,
    num_nodes: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    id: u64,
    local: u32,
    epoch: u32,
}

impl Hashed {
    /// An empty table for ids below `num_nodes`.
    pub fn start(&mut self, num_nodes: usize) -> &mut Self {
        if self.epoch == u32::MAX {
            self.slots.fill(Slot::default());
            self.epoch = 0;
        }
        self.epoch += 1;
        self.used = 0;
        self.num_nodes = num_nodes;
        self
    }

    /// The slot that holds `id`, or the empty one where it belongs.
    #[inline(always)]
    fn find(&self, id: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = home(id, self.slots.len());
        while self.slots[at].epoch == self.epoch && self.slots[at].id != id {
            at = (at + 1) & mask;
        }
        at
    }

    #[cold]
    fn grow(&mut self, least: usize) {
        let size = least.next_power_of_two().max(1024);
        let old = std::mem::replace(&mut self.slots, super::pages::zeroed(size));
        for slot in old.into_iter().filter(|slot| slot.epoch == self.epoch) {
            let at = self.find(slot.id);
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
        super::view::prefetch(&self.slots, home(id as u64, self.slots.len().max(1)));
    }

    #[inline(always)]
    fn insert(&mut self, id: usize, next: u32) -> Option<u32> {
        if id >= self.num_nodes {
            return None;
        }
        let at = self.find(id as u64);
        let slot = &mut self.slots[at];
        if slot.epoch != self.epoch {
            self.used += 1;
            *slot = Slot {
                id: id as u64,
                local: next,
                epoch: self.epoch,
            };
        }
        Some(slot.local)
    }

    #[inline(always)]
    fn renumber(&mut self, id: usize, local: u32) {
        let at = self.find(id as u64);
        self.slots[at].local = local;
    }

    #[inline(always)]
    fn reserve(&mut self, additional: usize) {
        // At most half full, so that searches stay short.
        let least = 2 * (self.used + additional);
        if self.slots.len() < least {
            self.grow(least);
        }
    }
}

/// A [`Hashed`] table per part.
#[derive(Debug, Default)]
pub(crate) struct Sharded {
    parts: Vec<Hashed>,
}

impl Sharded {
    /// An empty table of `num_parts` for ids below `num_nodes`.
    pub fn start(&mut self, num_nodes: usize, num_parts: usize) -> &mut Self {
        self.parts.resize_with(num_parts, Hashed::default);
        self.parts.iter_mut().for_each(|part| _ = part.start(num_nodes));
        self
    }
}

impl Table for Sharded {
    #[inline(always)]
    fn prefetch(&self, id: usize) {
        self.parts[part_of(id, self.parts.len())].prefetch(id);
    }

    #[inline(always)]
    fn insert(&mut self, id: usize, next: u32) -> Option<u32> {
        let part = part_of(id, self.parts.len());
        self.parts[part].insert(id, next)
    }

    #[inline(always)]
    fn renumber(&mut self, id: usize, local: u32) {
        let part = part_of(id, self.parts.len());
        self.parts[part].renumber(id, local);
    }

    #[inline(always)]
    fn reserve(&mut self, additional: usize) {
        self.parts.iter_mut().for_each(|part| part.reserve(additional));
    }
}

impl Divisible for Sharded {
    type Part<'a> = &'a mut Hashed;

    fn parts(&mut self) -> Vec<&mut Hashed> {
        self.parts.iter_mut().collect()
    }
}

impl Table for &mut Hashed {
    #[inline(always)]
    fn prefetch(&self, id: usize) {
        (**self).prefetch(id);
    }

    #[inline(always)]
    fn insert(&mut self, id: usize, next: u32) -> Option<u32> {
        (**self).insert(id, next)
    }

    #[inline(always)]
    fn renumber(&mut self, id: usize, local: u32) {
        (**self).renumber(id, local);
    }

    #[inline(always)]
    fn reserve(&mut self, additional: usize) {
        (**self).reserve(additional);
    }
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
        let (mut dense, mut hashed, mut sharded) = (Dense::default(), Hashed::default(), Sharded::default());
        let mut stream = Stream::new(3);
        for batch in 0..4 {
            let ids: Vec<usize> = (0..5000).map(|_| stream.below(1000 + 500 * batch) as usize).collect();
            let a = first_occurrences(&mut dense.start(2500, 1), &ids);
            let b = first_occurrences(hashed.start(2500), &ids);
            let c = first_occurrences(sharded.start(2500, 1 + batch as usize), &ids);
            assert_eq!(a, b);
            assert_eq!(a, c);
            assert_eq!(a[0], 0);
        }
    }

    #[test]
    fn nodes_that_do_not_exist_are_refused() {
        let (mut dense, mut hashed) = (Dense::default(), Hashed::default());
        let _ = dense.start(10, 1); // a table that is longer than this graph needs
        assert_eq!(dense.start(5, 1).insert(5, 0), None);
        let batch = hashed.start(5);
        batch.reserve(1);
        assert_eq!(batch.insert(5, 0), None);
        assert_eq!(batch.insert(usize::MAX, 0), None);
    }

    #[test]
    fn epochs_wrap_without_mixing_batches() {
        let mut dense = Dense {
            slots: (0..4).map(AtomicU64::new).collect(),
            epoch: u32::MAX - 1,
        };
        assert_eq!(dense.start(4, 1).insert(2, 0), Some(0));
        let mut batch = dense.start(4, 1);
        assert_eq!(batch.insert(1, 0), Some(0));
        assert_eq!(batch.insert(2, 1), Some(1));
    }
}
