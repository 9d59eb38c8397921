//! Uniform draws.

use super::floyd::{Bits, distinct};
use super::law::{Law, Most, Row};
use crate::Error;
use crate::memory::reserve;
use crate::rng::{Stream, derive};

/// Every in-edge equally likely, none twice. A row of at most `fanout` edges draws all.
pub(crate) struct Uniform<'a> {
    pub key: u64,
    pub most: Most<'a>,
}

impl Law for Uniform<'_> {
    type Room = Bits;

    #[inline(always)]
    fn draw(&self, row: &Row, bits: &mut Bits, out: &mut Vec<i64>) -> Result<(), Error> {
        draw_distinct(self.key, self.most.of(row.relation), row, bits, out);
        Ok(())
    }
}

/// `count` distinct in-edges of `row`, or all.
#[inline(always)]
pub(crate) fn draw_distinct(key: u64, count: usize, row: &Row, bits: &mut Bits, out: &mut Vec<i64>) {
    if row.degree <= count {
        out.extend(row.start as i64..(row.start + row.degree) as i64);
    } else {
        let stream = Stream::new(derive(key, row.id));
        distinct(stream, row.degree, count, bits, |pick| {
            out.push((row.start + pick) as i64)
        });
    }
}

/// Exactly the fanout for every row that has edges, with equal expectations. A row of
/// fewer edges takes all of them as often as the fanout allows, and draws the rest
/// without repetition.
pub(crate) struct Equal<'a> {
    pub key: u64,
    pub most: Most<'a>,
}

impl Law for Equal<'_> {
    type Room = Bits;

    #[inline(always)]
    fn draw(&self, row: &Row, bits: &mut Bits, out: &mut Vec<i64>) -> Result<(), Error> {
        if row.degree == 0 {
            return Ok(());
        }
        let fanout = draws_of(self.most.of(row.relation), row);
        reserve(out, Some(fanout), "fanout", fanout)?;
        let edges = row.start as i64..(row.start + row.degree) as i64;
        (0..fanout / row.degree).for_each(|_| out.extend(edges.clone()));
        draw_distinct(self.key, fanout % row.degree, row, bits, out);
        Ok(())
    }
}

/// The draws of a row that repeats edges: the fanout, or each edge once for all.
#[inline(always)]
fn draws_of(fanout: usize, row: &Row) -> usize {
    if fanout == usize::MAX { row.degree } else { fanout }
}

/// As many independent draws as the fanout, each in-edge equally likely. A row without
/// edges draws none. All in-edges are drawn once each.
pub(crate) struct UniformWithReplacement<'a> {
    pub key: u64,
    pub most: Most<'a>,
}

impl Law for UniformWithReplacement<'_> {
    type Room = ();

    #[inline(always)]
    fn draw(&self, row: &Row, _room: &mut (), out: &mut Vec<i64>) -> Result<(), Error> {
        let fanout = self.most.of(row.relation);
        if fanout == usize::MAX {
            out.extend(row.start as i64..(row.start + row.degree) as i64);
        } else if row.degree > 0 {
            reserve(out, Some(fanout), "fanout", fanout)?;
            let mut stream = Stream::new(derive(self.key, row.id));
            out.extend((0..fanout).map(|_| row.start as i64 + stream.below(row.degree as u64) as i64));
        }
        Ok(())
    }
}
