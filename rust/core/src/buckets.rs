//! Edges by buckets of destinations: what an import of more than memory holds sorts
//! piece by piece. And a table that finds the numbers of ids.

use std::mem::take;
use std::ops::Range;

use crate::csc::{Id, check_ids};
use crate::error::Error;
use crate::memory::{copied, filled};
use crate::pool::for_each;
use crate::read::prefetch;
use crate::rng::mix;

/// Below this many ids per thread, starting the thread costs more than it saves.
const MIN_WORK: usize = 1 << 14;

/// Bytes that are hashed at once.
const WORD: usize = 8;

/// Number of texts that are prefetched together.
const AHEAD: usize = 32;

/// Number of an empty entry.
const EMPTY: u32 = u32::MAX;

/// How many ids fall in each bin: bin b holds the ids `b << shift` to
/// `((b + 1) << shift) - 1`.
pub fn count_bins<I: Id>(ids: &[I], shift: u32, num_bins: usize, threads: usize) -> Result<Vec<i64>, Error> {
    check_bins(ids, shift, num_bins)?;
    let parts = parts(ids.len(), threads);
    let mut counts: Vec<Vec<i64>> = Vec::new();
    for _ in &parts {
        counts.push(filled(0, Some(num_bins), "num_bins", num_bins)?);
    }
    let work: Vec<_> = parts.into_iter().zip(&mut counts).collect();
    for_each(work.len(), work, |(part, counts)| {
        ids[part].iter().for_each(|id| counts[id.index() >> shift] += 1);
    });
    let mut total = counts.pop().unwrap_or_default();
    for part in counts {
        total.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
    }
    Ok(total)
}

/// The positions of ids in the order of (bucket, position), and the size of each
/// bucket. The bucket of an id is `buckets[id >> shift]`.
pub fn bucket_order<I: Id>(
    ids: &[I],
    shift: u32,
    buckets: &[i32],
    num_buckets: usize,
    threads: usize,
) -> Result<(Vec<i64>, Vec<i64>), Error> {
    check_bins(ids, shift, buckets.len())?;
    check_ids("buckets", buckets, num_buckets, "buckets")?;
    let parts = parts(ids.len(), threads);
    let mut counts: Vec<Vec<usize>> = Vec::new();
    for _ in &parts {
        counts.push(filled(0, Some(num_buckets), "num_buckets", num_buckets)?);
    }
    let bucket = |id: &I| buckets[id.index() >> shift].index();
    let work: Vec<_> = parts.iter().cloned().zip(&mut counts).collect();
    for_each(work.len(), work, |(part, counts)| {
        ids[part].iter().for_each(|id| counts[bucket(id)] += 1);
    });
    let mut order = filled(0i64, Some(ids.len()), "ids", ids.len())?;
    let mut rest = &mut order[..];
    let mut stretches: Vec<Vec<_>> = parts.iter().map(|_| Vec::new()).collect();
    for bucket in 0..num_buckets {
        for (sizes, stretches) in counts.iter().zip(&mut stretches) {
            let (stretch, more) = take(&mut rest).split_at_mut(sizes[bucket]);
            stretches.push(stretch.iter_mut());
            rest = more;
        }
    }
    let work: Vec<_> = parts.into_iter().zip(stretches).collect();
    for_each(work.len(), work, |(part, mut stretches)| {
        for position in part {
            *stretches[bucket(&ids[position])].next().expect("counted above") = position as i64;
        }
    });
    let sizes = (0..num_buckets).map(|bucket| counts.iter().map(|part| part[bucket] as i64).sum());
    Ok((order, sizes.collect()))
}

fn check_bins<I: Id>(ids: &[I], shift: u32, num_bins: usize) -> Result<(), Error> {
    if shift >= i64::BITS {
        let (name, value, low, high) = ("shift", shift as usize, 0, i64::BITS as usize - 1);
        return Err(Error::Count { name, value, low, high });
    }
    let bound = (num_bins as u128) << shift;
    check_ids("ids", ids, bound.min(i64::MAX as u128) as usize, "nodes")
}

fn parts(len: usize, threads: usize) -> Vec<Range<usize>> {
    let parts = threads.clamp(1, len / MIN_WORK + 1);
    (0..parts)
        .map(|part| len * part / parts..len * (part + 1) / parts)
        .collect()
}

/// Texts one behind the other: text i is `data[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    data: &'a [u8],
    offsets: &'a [i64],
}

impl<'a> Texts<'a> {
    /// Checks that the offsets are those of texts in `data`.
    pub fn new(data: &'a [u8], offsets: &'a [i64]) -> Result<Self, Error> {
        if offsets.is_empty() {
            return Err(Error::Length {
                name: "offsets",
                actual: 0,
                expected: 1,
            });
        }
        check_ids("offsets", offsets, data.len() + 1, "bytes")?;
        if let Some(at) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
            return Err(Error::OffsetsDecrease {
                position: at + 1,
                value: offsets[at + 1],
                previous: offsets[at],
            });
        }
        Ok(Self { data, offsets })
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, at: usize) -> &'a [u8] {
        &self.data[self.offsets[at] as usize..self.offsets[at + 1] as usize]
    }
}

/// Finds the number of each of many distinct texts: a hash table with open places.
#[derive(Debug)]
pub struct IdTable {
    data: Vec<u8>,
    offsets: Vec<i64>,
    entries: Vec<Entry>,
}

/// A text's number, and a part of its hash, which differs for most other texts. Texts
/// elsewhere in memory are therefore read only to confirm a match.
#[derive(Debug, Clone, Copy)]
struct Entry {
    tag: u32,
    number: u32,
}

impl IdTable {
    /// A table of distinct texts, which it copies. The error names the first text that
    /// is there a second time.
    pub fn new(texts: Texts<'_>) -> Result<Self, Error> {
        if texts.len() >= EMPTY as usize {
            let (name, actual, limit) = ("offsets", texts.len(), EMPTY as usize - 1);
            return Err(Error::TooMany { name, actual, limit });
        }
        let room = (4 * texts.len() / 3 + 2).next_power_of_two(); // at most three quarters are taken
        let empty = Entry { tag: 0, number: EMPTY };
        let mut table = Self {
            data: copied(texts.data),
            offsets: copied(texts.offsets),
            entries: filled(empty, Some(room), "offsets", texts.len())?,
        };
        for first in (0..texts.len()).step_by(AHEAD) {
            let len = AHEAD.min(texts.len() - first);
            let keys = table.fetch(texts, first, len);
            for (number, (start, tag)) in (first..first + len).zip(keys) {
                let place = table.place(start, tag, texts.get(number));
                let entry = &mut table.entries[place];
                if entry.number != EMPTY {
                    return Err(Error::Repeated {
                        name: "data",
                        position: number,
                        first: entry.number as usize,
                        value: number as i64,
                    });
                }
                *entry = Entry {
                    tag,
                    number: number as u32,
                };
            }
        }
        Ok(table)
    }

    /// Returns the number of each text, or -1 for a text that is not in the table.
    pub fn find(&self, texts: Texts<'_>, threads: usize) -> Result<Vec<i64>, Error> {
        let mut found = filled(-1i64, Some(texts.len()), "offsets", texts.len())?;
        let mut rest = &mut found[..];
        let mut work = Vec::new();
        for part in parts(texts.len(), threads) {
            let (own, more) = take(&mut rest).split_at_mut(part.len());
            work.push((part, own));
            rest = more;
        }
        for_each(work.len(), work, |(part, own)| {
            for (first, own) in part.step_by(AHEAD).zip(own.chunks_mut(AHEAD)) {
                let keys = self.fetch(texts, first, own.len());
                for ((number, at), (start, tag)) in own.iter_mut().zip(first..).zip(keys) {
                    let found = self.entries[self.place(start, tag, texts.get(at))].number;
                    *number = if found == EMPTY { -1 } else { i64::from(found) };
                }
            }
        });
        Ok(found)
    }

    /// Returns where some texts are likely to be found, and their tags. Prefetches the
    /// memory that is compared next, each step for all of them.
    fn fetch(&self, texts: Texts<'_>, first: usize, len: usize) -> [(usize, u32); AHEAD] {
        let mut keys = [(0, 0); AHEAD];
        for (key, text) in keys.iter_mut().zip(first..first + len) {
            *key = self.key(texts.get(text));
            prefetch(&self.entries, key.0);
        }
        for key in &mut keys[..len] {
            key.0 = self.candidate(key.0, key.1);
            prefetch(&self.offsets, self.entries[key.0].number as usize);
        }
        for key in &keys[..len] {
            if let Some(&start) = self.offsets.get(self.entries[key.0].number as usize) {
                prefetch(&self.data, start as usize);
            }
        }
        keys
    }

    /// The first place that a text may have, and its tag.
    fn key(&self, text: &[u8]) -> (usize, u32) {
        let hash = hash(text);
        (hash as usize & (self.entries.len() - 1), (hash >> 32) as u32)
    }

    /// The next place, from `place` on, that is empty or has the tag.
    fn candidate(&self, mut place: usize, tag: u32) -> usize {
        while self.entries[place].number != EMPTY && self.entries[place].tag != tag {
            place = (place + 1) & (self.entries.len() - 1);
        }
        place
    }

    /// The place of a text, or the empty place where it would be, from `start` on.
    fn place(&self, start: usize, tag: u32, text: &[u8]) -> usize {
        let own = Texts {
            data: &self.data,
            offsets: &self.offsets,
        };
        let mut place = self.candidate(start, tag);
        while self.entries[place].number != EMPTY && own.get(self.entries[place].number as usize) != text {
            place = self.candidate((place + 1) & (self.entries.len() - 1), tag);
        }
        place
    }
}

fn hash(text: &[u8]) -> u64 {
    let mut state = mix(text.len() as u64);
    for word in text.chunks(WORD) {
        let mut bytes = [0; WORD];
        bytes[..word.len()].copy_from_slice(word);
        state = mix(state ^ u64::from_le_bytes(bytes));
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Stream;

    #[test]
    fn any_number_of_threads_gives_the_stable_order() {
        let mut stream = Stream::new(7);
        let ids: Vec<i64> = (0..100_000).map(|_| stream.below(1000) as i64).collect();
        let buckets: Vec<i32> = (0..125).map(|bin| bin / 20).collect();
        let mut expected: Vec<i64> = (0..ids.len() as i64).collect();
        expected.sort_by_key(|&position| ids[position as usize] / 160);
        for threads in [1, 2, 8] {
            let (order, sizes) = bucket_order(&ids, 3, &buckets, 7, threads).unwrap();
            assert_eq!(order, expected);
            assert_eq!(sizes.iter().sum::<i64>(), 100_000);
            let bins = count_bins(&ids, 3, 125, threads).unwrap();
            assert_eq!(bins[..20].iter().sum::<i64>(), sizes[0]);
        }
    }

    #[test]
    fn texts_are_found_by_number() {
        let texts = Texts::new(b"catdogcategory", &[0, 3, 6, 6, 14]).unwrap();
        let table = IdTable::new(texts).unwrap();
        let asked = Texts::new(b"categorydogcow", &[0, 8, 11, 11, 14]).unwrap();
        for threads in [1, 2] {
            assert_eq!(table.find(asked, threads).unwrap(), [3, 1, 2, -1]);
        }
        let numbers: Vec<u8> = (0..10_000u64).flat_map(u64::to_le_bytes).collect();
        let offsets: Vec<i64> = (0..=10_000).map(|number| 8 * number).collect();
        let texts = Texts::new(&numbers, &offsets).unwrap();
        let found = IdTable::new(texts).unwrap().find(texts, 2).unwrap();
        assert!(found.into_iter().eq(0..10_000));
        let twice = Texts::new(b"aba", &[0, 1, 2, 3]).unwrap();
        let told = IdTable::new(twice).unwrap_err().to_string();
        assert_eq!(told, "data[2] = 2 repeats data[0]");
    }

    #[test]
    fn errors_name_the_place() {
        let text = |ids: &[i32], shift, num_bins| count_bins(ids, shift, num_bins, 1).unwrap_err().to_string();
        assert_eq!(text(&[0, 8], 2, 2), "ids[1] = 8 is out of range for 8 nodes");
        assert_eq!(text(&[-1], 2, 2), "ids[0] = -1 is out of range for 8 nodes");
        assert_eq!(text(&[0], 64, 2), "shift = 64 must be within 0..=63");
        let told = bucket_order(&[0], 0, &[2], 2, 1).unwrap_err().to_string();
        assert_eq!(told, "buckets[0] = 2 is out of range for 2 buckets");
        let told = Texts::new(b"ab", &[0, 3]).unwrap_err().to_string();
        assert_eq!(told, "offsets[1] = 3 is out of range for 3 bytes");
    }
}
