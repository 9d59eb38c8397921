//! Instruction sets chosen at run time. Rust never fuses or reorders floating-point
//! arithmetic by itself, so one generic body gives the same bits on each of them.

use std::sync::OnceLock;

/// An instruction set that a [`Kernel`] is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The instructions that every machine of the target has.
    Portable,
    /// AVX2, 256-bit registers, and the instructions of its time that count and shift
    /// bits.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ and VL, 512-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

/// A loop to be compiled once per instruction set. `run` and all that it calls must be
/// `#[inline(always)]`, which closures and functions that are passed on are not.
///
/// The other methods are compiled in the module of the type, so that the kernels of
/// several modules are compiled at the same time.
pub trait Kernel: Sized {
    /// The result of the loop.
    type Output;

    /// The loop.
    fn run(self, isa: Isa) -> Self::Output;

    /// The loop for every machine.
    #[inline(never)]
    fn run_portable(self) -> Self::Output {
        self.run(Isa::Portable)
    }

    /// The loop for [`Isa::Avx2`].
    ///
    /// # Safety
    /// The machine has it.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
    unsafe fn run_avx2(self) -> Self::Output {
        self.run(Isa::Avx2)
    }

    /// The loop for [`Isa::Avx512`].
    ///
    /// # Safety
    /// The machine has it.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run_avx512(self) -> Self::Output {
        self.run(Isa::Avx512)
    }
}

impl Isa {
    /// The instruction sets of this machine, the best one last.
    pub fn available() -> Vec<Self> {
        let all = [
            Self::Portable,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512,
        ];
        all.into_iter().filter(|&isa| isa <= Self::best()).collect()
    }

    /// The best one of this machine, which has all before it.
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(Self::find)
    }

    fn find() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let bits = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
            let counts = is_x86_feature_detected!("popcnt") && is_x86_feature_detected!("lzcnt");
            let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
            let whole = wide && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl");
            if is_x86_feature_detected!("avx2") && bits && counts {
                return if whole { Self::Avx512 } else { Self::Avx2 };
            }
        }
        Self::Portable
    }

    /// Runs `kernel` compiled for this instruction set, or for the machine's best one
    /// if this one is unsupported.
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.min(Self::best()) {
            Self::Portable => kernel.run_portable(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                // SAFETY: no set beyond the best one of the machine gets here.
                unsafe { kernel.run_avx2() }
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                // SAFETY: as above.
                unsafe { kernel.run_avx512() }
            }
        }
    }

    /// Bytes of one row that fit into half of the registers, the other half being for
    /// loads.
    #[inline(always)]
    pub const fn accumulator_bytes(self) -> usize {
        match self {
            Self::Portable => 128,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 256,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 512,
        }
    }
}

/// Prefetches the cache lines of `items`, without effect on results.
#[inline(always)]
pub fn prefetch<T>(items: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for line in items.chunks(64 / size_of::<T>()) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads no memory that the program sees and never faults.
        // The pointer is valid. Aggregating 128 columns of 4 M edges takes half the
        // time with it (benchmarks/test_aggregate.py).
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = items;
}

/// The items of `x` from `start` on as K arrays of D: a slice of a length that the
/// compiler knows.
#[inline(always)]
pub fn at<T, const D: usize, const K: usize>(x: &[T], start: usize) -> &[[T; D]; K] {
    x[start..]
        .as_chunks()
        .0
        .first_chunk()
        .expect("lengths are checked before a kernel runs")
}

/// As [`at`], to be written.
#[inline(always)]
pub fn at_mut<T, const D: usize, const K: usize>(x: &mut [T], start: usize) -> &mut [[T; D]; K] {
    x[start..]
        .as_chunks_mut()
        .0
        .first_chunk_mut()
        .expect("lengths are checked before a kernel runs")
}
