//! Distinct numbers below a bound, every subset equally likely (Floyd; Bentley & Floyd,
//! CACM 30(9), 1987).

use crate::rng::Stream;

/// Numbers drawn at once without leaving the stack.
pub(crate) const FEW: usize = 32;

/// The set of numbers seen during one draw. All bits are zero between draws.
#[derive(Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

/// Calls `emit` with `count` distinct numbers below `bound`, where `count < bound`.
#[inline(always)]
pub(crate) fn distinct(stream: Stream, bound: usize, count: usize, bits: &mut Bits, mut emit: impl FnMut(usize)) {
    if bound <= 64 {
        return in_word(stream, bound as u32, count as u32, emit);
    }
    if count <= FEW && bound <= u32::MAX as usize {
        let mut picks = [0; FEW];
        few(stream, bound as u32, count, &mut picks);
        return picks[..count].iter().for_each(|&pick| emit(pick as usize));
    }
    many(stream, bound, count, bits, &mut emit);
}

/// Two draws per 64-bit word, each uniform below its bound (Lemire's multiply-shift
/// with rejection).
struct Halves {
    stream: Stream,
    rest: Option<u32>,
}

impl Halves {
    #[inline(always)]
    fn next(&mut self) -> u32 {
        if let Some(half) = self.rest.take() {
            return half;
        }
        let word = self.stream.next_u64();
        self.rest = Some((word >> 32) as u32);
        word as u32
    }

    #[inline(always)]
    fn below(&mut self, bound: u32) -> u32 {
        let half = self.next();
        self.scale(half, bound)
    }

    /// `half` as a number below `bound`. Takes more of the stream where the result
    /// would be uneven.
    #[inline(always)]
    fn scale(&mut self, half: u32, bound: u32) -> u32 {
        let product = u64::from(half) * u64::from(bound);
        if (product as u32) < bound {
            return self.reject(product, bound);
        }
        (product >> 32) as u32
    }

    #[cold]
    fn reject(&mut self, mut product: u64, bound: u32) -> u32 {
        let threshold = bound.wrapping_neg() % bound;
        while (product as u32) < threshold {
            product = u64::from(self.stream.next_u64() as u32) * u64::from(bound);
        }
        (product >> 32) as u32
    }
}

/// The set is one machine word.
#[inline(always)]
fn in_word(stream: Stream, bound: u32, count: u32, mut emit: impl FnMut(usize)) {
    let mut halves = Halves { stream, rest: None };
    let mut seen = 0u64;
    for last in bound - count..bound {
        let draw = halves.below(last + 1);
        let pick = std::hint::select_unpredictable(seen >> draw & 1 == 1, last, draw);
        seen |= 1 << pick;
        emit(pick as usize);
    }
}

/// Makes all draws first. The draws are the picks unless two are equal.
#[inline(always)]
fn few(stream: Stream, bound: u32, count: usize, picks: &mut [u32; FEW]) {
    let mut halves = Halves { stream, rest: None };
    let first = bound - count as u32;
    for pair in 0..count.div_ceil(2) {
        let word = halves.stream.next_u64();
        // Of an odd count the last half is scaled too, and then not used.
        picks[2 * pair] = halves.scale(word as u32, first + 2 * pair as u32 + 1);
        picks[2 * pair + 1] = halves.scale((word >> 32) as u32, first.saturating_add(2 * pair as u32 + 2));
    }
    if !all_distinct(&picks[..count]) {
        for at in 1..count {
            if picks[..at].contains(&picks[at]) {
                picks[at] = first + at as u32;
            }
        }
    }
}

/// Compares all pairs without a branch.
#[inline(always)]
fn all_distinct(picks: &[u32]) -> bool {
    let mut equal = 0;
    for (at, &pick) in picks.iter().enumerate() {
        equal |= picks[..at].iter().fold(0, |any, &other| any | u32::from(other == pick));
    }
    equal == 0
}

#[inline(never)]
fn many(mut stream: Stream, bound: usize, count: usize, bits: &mut Bits, emit: &mut dyn FnMut(usize)) {
    let words = bound.div_ceil(64);
    if bits.words.len() < words {
        bits.words.resize(words, 0);
    }
    let mut picks = Vec::with_capacity(count);
    for last in bound - count..bound {
        let draw = stream.below(last as u64 + 1) as usize;
        let seen = bits.words[draw / 64] >> (draw % 64) & 1 == 1;
        let pick = if seen { last } else { draw };
        bits.words[pick / 64] |= 1 << (pick % 64);
        picks.push(pick);
    }
    for pick in picks {
        bits.words[pick / 64] = 0;
        emit(pick);
    }
}
