//! Counter-based randomness: every draw is a hash of its purpose, so no draw depends on
//! threads or order.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64: a bijection of 64 bits in which every input bit moves
/// every output bit.
#[inline(always)]
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The key of `value` under `key`: chain it to key by seed, epoch, hop, node.
#[inline(always)]
pub const fn derive(key: u64, value: u64) -> u64 {
    mix(key ^ mix(value.wrapping_add(GOLDEN)))
}

/// The draws of one key. They are splitmix64 by counter, so `word(i)` needs no history.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// The stream of `key`.
    #[inline(always)]
    pub const fn new(key: u64) -> Self {
        Self { state: key }
    }

    /// Draw number `index` of this stream, counted from its current position.
    #[inline(always)]
    pub const fn word(&self, index: u64) -> u64 {
        mix(self.state.wrapping_add(GOLDEN.wrapping_mul(index.wrapping_add(1))))
    }

    /// The next 64 random bits.
    #[inline(always)]
    pub const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// Uniform in `0..bound`, exactly (Lemire's multiply-shift with rejection). `bound`
    /// must not be 0.
    #[inline(always)]
    pub const fn below(&mut self, bound: u64) -> u64 {
        let mut product = self.next_u64() as u128 * bound as u128;
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = self.next_u64() as u128 * bound as u128;
            }
        }
        (product >> 64) as u64
    }

    /// Uniform in [0, 1), 53 bits.
    #[inline(always)]
    pub const fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_the_draw_that_next_reaches() {
        let mut stream = Stream::new(derive(7, 3));
        let ahead = stream;
        for index in 0..100 {
            assert_eq!(stream.next_u64(), ahead.word(index));
        }
    }

    #[test]
    fn below_is_uniform() {
        let mut counts = [0u32; 7];
        let mut stream = Stream::new(1);
        for _ in 0..70_000 {
            counts[stream.below(7) as usize] += 1;
        }
        let chi: f64 = counts.iter().map(|&c| (f64::from(c) - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 22.5, "chi-square {chi} at 6 degrees of freedom"); // p = 0.001
    }
}
