//! Uniform draws.

use super::floyd::{Bits, distinct};
use super::law::{Law, Row};
use crate::Error;
use crate::memory::reserve;
use crate::rng::{Stream, derive};

/// Every in-edge equally likely, none twice. A row of at most `fanout` edges draws all.
pub(crate) struct Uniform {
    pub key: u64,
    pub fanout: usize,
}

impl Law for Uniform {
    type Room = Bits;

    #[inline(always)]
    fn draw(&self, row: &Row, bits: &mut Bits, out: &mut Vec<i64>) -> Result<(), Error> {
        draw_distinct(self.key, self.fanout, row, bits, out);
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

/// Exactly `fanout` draws of every row that has edges, with equal expectations. A row
/// of fewer edges takes all of them as often as the fanout allows, and draws the rest
/// without repetition.
pub(crate) struct Equal {
    pub key: u64,
    pub fanout: usize,
}

impl Law for Equal {
    type Room = Bits;

    #[inline(always)]
    fn draw(&self, row: &Row, bits: &mut Bits, out: &mut Vec<i64>) -> Result<(), Error> {
        if row.degree == 0 {
            return Ok(());
        }
        reserve(out, Some(self.fanout), "fanout", self.fanout)?;
        let edges = row.start as i64..(row.start + row.degree) as i64;
        (0..self.fanout / row.degree).for_each(|_| out.extend(edges.clone()));
        draw_distinct(self.key, self.fanout % row.degree, row, bits, out);
        Ok(())
    }
}

/// `fanout` independent draws, each in-edge equally likely. A row without edges draws
/// none.
pub(crate) struct UniformWithReplacement {
    pub key: u64,
    pub fanout: usize,
}

impl Law for UniformWithReplacement {
    type Room = ();

    #[inline(always)]
    fn draw(&self, row: &Row, _room: &mut (), out: &mut Vec<i64>) -> Result<(), Error> {
        if row.degree > 0 {
            reserve(out, Some(self.fanout), "fanout", self.fanout)?;
            let mut stream = Stream::new(derive(self.key, row.id));
            out.extend((0..self.fanout).map(|_| row.start as i64 + stream.below(row.degree as u64) as i64));
        }
        Ok(())
    }
}
