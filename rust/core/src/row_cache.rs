//! Which rows of a table stay in memory. This follows from ids alone, so a dry run
//! counts what a run will read.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::take;

use crate::csc::{Id, check_ids};
use crate::error::Error;
use crate::memory::filled;

/// No row, slot, request or batch.
const NONE: u32 = u32::MAX;

/// Requests count modulo this number, so that each has one below `NONE`.
const REQUESTS: u64 = NONE as u64;

/// The rule that says which rows stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The rows that announced batches read soonest (Belady, IBM Systems Journal 1966).
    /// A row that no announced batch reads goes first, longest unread before others.
    Exact,
    /// The rows read last.
    Lru,
    /// The rows of `RowCache::fill`.
    Static,
}

/// The rows in memory, by slot. Batches are announced in the order in which they are
/// taken.
#[derive(Debug)]
pub struct RowCache {
    policy: Policy,
    num_rows: usize,
    slot: Numbers,    // of each row that is kept
    pending: Numbers, // the last announced request of each row
    slots: Vec<Slot>, // those in use, at most `capacity`
    capacity: usize,
    batches: VecDeque<Batch>, // announced and not taken
    first_batch: u32,         // number of the first of these
    first_request: u64,       // number of the first request of that batch
    idle: List,               // slots of rows that no announced batch reads
}

/// A row that is kept, and its neighbours in a list of slots.
#[derive(Debug, Clone, Copy)]
struct Slot {
    row: u32,
    before: u32,
    after: u32,
}

/// A list of slots, linked by `before` and `after`.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Debug)]
struct Batch {
    rows: Vec<u32>,
    next: Vec<u32>, // the announced batch that reads each row again
    due: List,      // slots of rows that this batch reads next
}

/// A row and its place in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number of the row, or of the slot that holds it.
    pub row: u32,
    /// Position in the batch.
    pub position: u32,
}

/// What one batch reads, and what stays of it. Rows of `hits` and `kept` are slots. A
/// slot of `hits` may be given away in `kept`.
#[derive(Debug, Default)]
pub struct Step {
    /// Rows in memory, by slot.
    pub hits: Vec<Place>,
    /// Rows that are not in memory.
    pub misses: Vec<Place>,
    /// The misses that stay, by slot.
    pub kept: Vec<Place>,
}

/// Rows for each one that is kept, up to which a number for every row takes less memory
/// than a table of those that are kept.
const DENSE: usize = 5;

/// A number of each of some rows, and `NONE` of the others.
#[derive(Debug)]
enum Numbers {
    /// [num_rows]
    OfAll(Vec<u32>),
    /// By row.
    OfSome(HashMap<u32, u32, BuildHasherDefault<Spread>>),
}

impl Numbers {
    /// No numbers yet, for rows of which about `most` have one.
    fn new(num_rows: usize, most: usize) -> Result<Self, Error> {
        if num_rows / DENSE <= most {
            return Ok(Self::OfAll(filled(NONE, Some(num_rows), "num_rows", num_rows)?));
        }
        Ok(Self::OfSome(HashMap::default()))
    }

    fn get(&self, row: u32) -> u32 {
        match self {
            Self::OfAll(numbers) => numbers.get(row as usize).copied().unwrap_or(NONE),
            Self::OfSome(numbers) => numbers.get(&row).copied().unwrap_or(NONE),
        }
    }

    fn set(&mut self, row: u32, number: u32) {
        match self {
            Self::OfAll(numbers) => {
                if let Some(own) = numbers.get_mut(row as usize) {
                    *own = number;
                }
            }
            Self::OfSome(numbers) if number == NONE => {
                numbers.remove(&row);
            }
            Self::OfSome(numbers) => {
                numbers.insert(row, number);
            }
        }
    }
}

/// Multiplicative hashing of a row.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, row: u32) {
        let product = (self.0 ^ u64::from(row)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

const EMPTY: List = List {
    first: NONE,
    last: NONE,
};

impl RowCache {
    /// An empty cache for `capacity` of `num_rows` rows.
    pub fn new(policy: Policy, num_rows: usize, capacity: usize) -> Result<Self, Error> {
        if num_rows >= NONE as usize {
            let (name, actual, limit) = ("rows", num_rows, NONE as usize - 1);
            return Err(Error::TooMany { name, actual, limit });
        }
        let capacity = capacity.min(num_rows);
        Ok(Self {
            policy,
            num_rows,
            slot: Numbers::new(num_rows, capacity)?,
            pending: Numbers::new(if policy == Policy::Exact { num_rows } else { 0 }, capacity)?,
            slots: Vec::new(),
            capacity,
            batches: VecDeque::new(),
            first_batch: 0,
            first_request: 0,
            idle: EMPTY,
        })
    }

    /// The most rows that are kept.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Tells the rows of a further batch, each once.
    pub fn announce<I: Id>(&mut self, rows: &[I]) -> Result<(), Error> {
        check_ids("rows", rows, self.num_rows, "rows")?;
        let mut batch = Batch {
            rows: rows.iter().map(|row| row.index() as u32).collect(),
            next: Vec::new(),
            due: EMPTY,
        };
        if self.policy == Policy::Exact {
            self.link_requests(&mut batch)?;
        }
        self.batches.push_back(batch);
        Ok(())
    }

    /// Notes with the announced requests of the same rows that `batch` reads them again.
    fn link_requests(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let number = self.first_batch + self.batches.len() as u32;
        let begins: Vec<u64> = self.begins();
        let first = begins[self.batches.len()];
        batch.next = vec![NONE; batch.rows.len()];
        for (position, &row) in batch.rows.iter().enumerate() {
            let earlier = self.pending.get(row);
            if earlier == NONE {
                let slot = self.slot.get(row);
                if slot != NONE {
                    unlink(&mut self.slots, &mut self.idle, slot);
                    link(&mut self.slots, &mut batch.due, slot);
                }
            } else {
                let request = self.request(earlier);
                if request >= first {
                    let found = (request - first) as usize;
                    return Err(self.repeated(batch, found, position));
                }
                let holder = begins.partition_point(|&begin| begin <= request) - 1;
                self.batches[holder].next[(request - begins[holder]) as usize] = number;
            }
            self.pending.set(row, ((first + position as u64) % REQUESTS) as u32);
        }
        Ok(())
    }

    /// The error for a row that stands twice in a batch, which is forgotten.
    fn repeated(&mut self, batch: &mut Batch, first: usize, position: usize) -> Error {
        let value = i64::from(batch.rows[position]);
        self.batches.push_back(Batch {
            rows: take(&mut batch.rows),
            next: Vec::new(),
            due: batch.due,
        });
        self.forget();
        Error::Repeated {
            name: "rows",
            position,
            first,
            value,
        }
    }

    /// Number of the first request of each announced batch, and of the next one.
    fn begins(&self) -> Vec<u64> {
        let mut begin = self.first_request;
        let mut begins = vec![begin];
        for batch in &self.batches {
            begin += batch.rows.len() as u64;
            begins.push(begin);
        }
        begins
    }

    /// The number of a request of an announced batch, from the number modulo `REQUESTS`.
    fn request(&self, number: u32) -> u64 {
        let first = self.first_request % REQUESTS;
        self.first_request + (u64::from(number) + REQUESTS - first) % REQUESTS
    }

    /// Takes the first announced batch, and decides which of its rows stay. None: no
    /// batch is announced.
    pub fn take(&mut self) -> Option<Step> {
        let batch = self.batches.pop_front()?;
        self.first_batch += 1;
        self.first_request += batch.rows.len() as u64;
        let mut step = Step::default();
        for (position, &row) in batch.rows.iter().enumerate() {
            let (slot, position) = (self.slot.get(row), position as u32);
            let (found, row) = match slot {
                NONE => (&mut step.misses, row),
                slot => (&mut step.hits, slot),
            };
            found.push(Place { row, position });
        }
        match self.policy {
            Policy::Exact => self.keep_soonest(&batch, &mut step),
            Policy::Lru => self.keep_latest(&mut step),
            Policy::Static => {}
        }
        Some(step)
    }

    fn keep_soonest(&mut self, batch: &Batch, step: &mut Step) {
        for (&row, &next) in batch.rows.iter().zip(&batch.next) {
            if next == NONE {
                self.pending.set(row, NONE);
            }
        }
        // All hits are in `batch.due`, and nothing else is: no slot need leave it.
        for hit in &step.hits {
            self.place(hit.row, batch.next[hit.position as usize]);
        }
        let next = |miss: &Place| batch.next[miss.position as usize];
        let mut by_next: Vec<Place> = step.misses.clone();
        by_next.sort_unstable_by_key(|miss| (next(miss), miss.position));
        let mut farthest = self.batches.len();
        for miss in by_next {
            let due = next(&miss);
            let Some(slot) = self.free_slot().or_else(|| self.evict_after(due, &mut farthest)) else {
                break; // later misses are read later still
            };
            self.hold(slot, miss.row);
            self.place(slot, due);
            step.kept.push(Place { row: slot, ..miss });
        }
    }

    fn keep_latest(&mut self, step: &mut Step) {
        for hit in &step.hits {
            unlink(&mut self.slots, &mut self.idle, hit.row);
            link(&mut self.slots, &mut self.idle, hit.row);
        }
        let num_kept = step.misses.len().min(self.capacity);
        for miss in &step.misses[step.misses.len() - num_kept..] {
            let slot = self.free_slot().unwrap_or_else(|| self.evict_idle());
            self.hold(slot, miss.row);
            self.place(slot, NONE);
            step.kept.push(Place { row: slot, ..*miss });
        }
    }

    /// Begins with rows that stay, at most `capacity`. Returns the slot of each.
    pub fn fill<I: Id>(&mut self, rows: &[I]) -> Result<Vec<Place>, Error> {
        check_ids("rows", rows, self.num_rows, "rows")?;
        if rows.len() > self.capacity - self.slots.len() {
            let (name, actual, limit) = ("rows", rows.len(), self.capacity - self.slots.len());
            return Err(Error::TooMany { name, actual, limit });
        }
        let mut filled = Vec::with_capacity(rows.len());
        for (position, row) in rows.iter().enumerate() {
            let slot = self.free_slot().expect("there is room");
            self.hold(slot, row.index() as u32);
            self.place(slot, NONE);
            filled.push(Place {
                row: slot,
                position: position as u32,
            });
        }
        Ok(filled)
    }

    /// Forgets the announced batches, which nobody will take. The rows stay.
    pub fn forget(&mut self) {
        for batch in take(&mut self.batches) {
            self.first_batch += 1;
            self.first_request += batch.rows.len() as u64;
            let mut due = batch.due;
            while due.first != NONE {
                let slot = due.first;
                unlink(&mut self.slots, &mut due, slot);
                link(&mut self.slots, &mut self.idle, slot);
            }
            for row in batch.rows {
                self.pending.set(row, NONE);
            }
        }
    }

    /// A slot that was never used.
    fn free_slot(&mut self) -> Option<u32> {
        (self.slots.len() < self.capacity).then(|| {
            self.slots.push(Slot {
                row: NONE,
                before: NONE,
                after: NONE,
            });
            self.slots.len() as u32 - 1
        })
    }

    /// Evicts the row with the farthest next use, if no announced batch up to `due`
    /// reads it. Batches from `farthest` on no longer hold slots.
    fn evict_after(&mut self, due: u32, farthest: &mut usize) -> Option<u32> {
        if due == NONE {
            return None; // a row that was read once does not replace one that was read before
        }
        if self.idle.first != NONE {
            return Some(self.evict_idle());
        }
        while *farthest > 0 {
            let number = self.first_batch + *farthest as u32 - 1;
            if number <= due {
                return None;
            }
            let list = &mut self.batches[*farthest - 1].due;
            if list.last != NONE {
                let slot = list.last;
                unlink(&mut self.slots, list, slot);
                return Some(slot);
            }
            *farthest -= 1;
        }
        None
    }

    fn evict_idle(&mut self) -> u32 {
        let slot = self.idle.first;
        unlink(&mut self.slots, &mut self.idle, slot);
        slot
    }

    /// Gives a slot, which is in no list, to a row.
    fn hold(&mut self, slot: u32, row: u32) {
        let before = self.slots[slot as usize].row;
        if before != NONE {
            self.slot.set(before, NONE);
        }
        self.slots[slot as usize].row = row;
        self.slot.set(row, slot);
    }

    /// Puts a slot into the list of the batch that reads it next.
    fn place(&mut self, slot: u32, due: u32) {
        let list = match due {
            NONE => &mut self.idle,
            due => &mut self.batches[(due - self.first_batch) as usize].due,
        };
        link(&mut self.slots, list, slot);
    }
}

/// Puts a slot at the end of a list.
fn link(slots: &mut [Slot], list: &mut List, slot: u32) {
    let before = list.last;
    match before {
        NONE => list.first = slot,
        before => slots[before as usize].after = slot,
    }
    list.last = slot;
    let own = &mut slots[slot as usize];
    (own.before, own.after) = (before, NONE);
}

/// Takes a slot out of its list.
fn unlink(slots: &mut [Slot], list: &mut List, slot: u32) {
    let Slot { before, after, .. } = slots[slot as usize];
    match before {
        NONE => list.first = after,
        before => slots[before as usize].after = after,
    }
    match after {
        NONE => list.last = before,
        after => slots[after as usize].before = before,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Draws numbers below `bound`, small ones more often.
    fn draws(seed: &mut u64, count: usize, bound: u64) -> Vec<i32> {
        let mut found = HashSet::new();
        while found.len() < count {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (a, b) = ((*seed >> 33) % bound, (*seed >> 13) % bound);
            found.insert((a.min(b)) as i32);
        }
        let mut found: Vec<i32> = found.into_iter().collect();
        found.sort_unstable();
        found
    }

    fn batches(seed: u64, count: usize, size: usize, bound: u64) -> Vec<Vec<i32>> {
        let mut seed = seed;
        (0..count).map(|_| draws(&mut seed, size, bound)).collect()
    }

    /// Takes all batches, `ahead` of them announced, and checks hits against a table of
    /// slots. Returns the number of misses.
    fn misses(policy: Policy, batches: &[Vec<i32>], num_rows: usize, capacity: usize, ahead: usize) -> usize {
        let mut cache = RowCache::new(policy, num_rows, capacity).unwrap();
        let (mut held, mut announced, mut count) = (vec![None; capacity], 0, 0);
        for (number, rows) in batches.iter().enumerate() {
            while announced < batches.len().min(number + 1 + ahead) {
                cache.announce(&batches[announced]).unwrap();
                announced += 1;
            }
            let step = cache.take().unwrap();
            for hit in &step.hits {
                assert_eq!(held[hit.row as usize], Some(rows[hit.position as usize]));
            }
            for miss in &step.misses {
                assert_eq!(miss.row as i32, rows[miss.position as usize]);
                assert!(!held.contains(&Some(miss.row as i32)));
            }
            let slots: HashSet<u32> = step.kept.iter().map(|kept| kept.row).collect();
            assert_eq!(slots.len(), step.kept.len());
            for kept in &step.kept {
                held[kept.row as usize] = Some(rows[kept.position as usize]);
            }
            assert_eq!(step.hits.len() + step.misses.len(), rows.len());
            count += step.misses.len();
        }
        assert!(cache.take().is_none());
        count
    }

    /// The fewest misses of any rule, by trying each set of rows that may stay.
    fn fewest(batches: &[Vec<i32>], held: u32, capacity: u32) -> usize {
        let Some((rows, rest)) = batches.split_first() else {
            return 0;
        };
        let wanted = rows.iter().fold(0u32, |set, row| set | 1 << row);
        let (missed, there) = ((wanted & !held).count_ones() as usize, wanted | held);
        let mut subset = there;
        let mut best = usize::MAX;
        loop {
            let most = capacity.min(there.count_ones());
            if subset.count_ones() == most {
                best = best.min(fewest(rest, subset, capacity));
            }
            if subset == 0 {
                return missed + best;
            }
            subset = (subset - 1) & there;
        }
    }

    #[test]
    fn exact_misses_as_few_rows_as_can_be() {
        for seed in 0..40 {
            let batches = batches(seed, 5, 3, 7);
            for capacity in 1..5 {
                let found = misses(Policy::Exact, &batches, 7, capacity, batches.len());
                assert_eq!(
                    found,
                    fewest(&batches, 0, capacity as u32),
                    "{seed} {capacity} {batches:?}"
                );
            }
        }
    }

    #[test]
    fn more_announced_batches_never_cost_much_and_exact_beats_lru() {
        let batches = batches(7, 200, 40, 400);
        let counts = [0, 1, 4, 16, 200].map(|ahead| misses(Policy::Exact, &batches, 400, 80, ahead));
        let lru = misses(Policy::Lru, &batches, 400, 80, 0);
        assert!(counts[4] <= counts[3] && counts[3] <= counts[2], "{counts:?}");
        assert!(counts[3] < lru, "{counts:?} {lru}");
    }

    #[test]
    fn rows_of_a_large_table_are_kept_as_those_of_a_small_one() {
        let batches = batches(3, 60, 20, 200);
        let spread: Vec<Vec<i32>> = batches
            .iter()
            .map(|rows| rows.iter().map(|row| row * 1_000_003).collect())
            .collect();
        for policy in [Policy::Exact, Policy::Lru] {
            for ahead in [0, 8] {
                let small = misses(policy, &batches, 200, 50, ahead);
                assert_eq!(small, misses(policy, &spread, 300_000_000, 50, ahead));
            }
        }
    }

    #[test]
    fn lru_keeps_the_latest_rows_also_where_a_batch_is_larger() {
        let mut cache = RowCache::new(Policy::Lru, 10, 2).unwrap();
        let mut missed = |rows: &[i32]| {
            cache.announce(rows).unwrap();
            let step = cache.take().unwrap();
            step.misses.iter().map(|miss| miss.row).collect::<Vec<_>>()
        };
        assert_eq!(missed(&[1, 2, 3]), [1, 2, 3]);
        assert_eq!(missed(&[3, 2]), [] as [u32; 0]);
        assert_eq!(missed(&[4]), [4]);
        assert_eq!(missed(&[2, 3]), [3]);
    }

    #[test]
    fn filled_rows_stay() {
        let mut cache = RowCache::new(Policy::Static, 10, 3).unwrap();
        assert_eq!(cache.fill(&[7, 2]).unwrap().len(), 2);
        for _ in 0..2 {
            cache.announce(&[1, 2, 7, 8]).unwrap();
            let step = cache.take().unwrap();
            assert_eq!(step.misses.iter().map(|miss| miss.row).collect::<Vec<_>>(), [1, 8]);
            assert!(step.kept.is_empty());
        }
        assert!(cache.fill(&[1, 2]).is_err());
    }

    #[test]
    fn batches_that_nobody_takes_are_forgotten() {
        let mut cache = RowCache::new(Policy::Exact, 10, 2).unwrap();
        for rows in [[1, 2], [3, 4], [1, 5], [2, 6]] {
            cache.announce(&rows).unwrap();
        }
        assert_eq!(cache.take().unwrap().kept.len(), 2);
        cache.forget();
        assert!(cache.take().is_none());
        cache.announce(&[1, 2]).unwrap();
        cache.announce(&[3, 4]).unwrap();
        assert_eq!(cache.take().unwrap().hits.len(), 2);
        assert_eq!(cache.take().unwrap().misses.len(), 2);
    }

    #[test]
    fn bad_rows_are_refused_by_name() {
        let mut cache = RowCache::new(Policy::Exact, 10, 2).unwrap();
        let text = |cache: &mut RowCache, rows: &[i64]| cache.announce(rows).unwrap_err().to_string();
        assert_eq!(text(&mut cache, &[3, 10]), "rows[1] = 10 is out of range for 10 rows");
        assert!(text(&mut cache, &[3, 4, 3]).contains("rows[2]"));
        cache.announce(&[3, 4]).unwrap();
        assert_eq!(cache.take().unwrap().misses.len(), 2);
    }
}
