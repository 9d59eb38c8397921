//! Reads of a file by io_uring: many at a time, from one thread.

#[cfg(target_os = "linux")]
pub(crate) use linux::{check, read};
#[cfg(not(target_os = "linux"))]
pub(crate) use other::{check, read};

/// Reads begin and end at multiples of this, as drives and the system's cache do.
pub(crate) const PAGE: u64 = 4096;

/// Whole pages that hold `bytes`.
pub(crate) fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE
}

/// A place in the file, and why it cannot be read.
pub(crate) type Failed = (u64, String);

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::File;
    use std::io;
    use std::mem::forget;
    use std::ops::Range;
    use std::os::fd::AsRawFd;
    use std::slice;

    use io_uring::{IoUring, opcode, types};

    use super::{Failed, PAGE, pages};
    use crate::memory::filled;

    /// Reads that are under way at a time.
    const DEPTH: usize = 128;

    /// Bytes of the buffer, if pieces are not so large that few would be under way.
    const BUFFER: usize = 1 << 22;

    /// Fails where the system has no io_uring, or lets this process have none.
    pub(crate) fn check() -> io::Result<()> {
        IoUring::new(1).map(drop)
    }

    /// The read that a part of the buffer is for.
    #[derive(Clone, Copy, Default)]
    struct Slot {
        piece: usize,
        found: usize, // bytes
    }

    /// Reads `pieces`, and hands out the bytes of each as it arrives, with its number.
    pub(crate) fn read(
        file: &File,
        pieces: &[Range<u64>],
        mut arrived: impl FnMut(usize, &[u8]),
    ) -> Result<(), Failed> {
        let size = |piece: usize| (pieces[piece].end - pieces[piece].start) as usize;
        let room = pages((0..pieces.len()).map(size).max().unwrap_or(0) as u64) as usize; // of a slot
        let depth = DEPTH.min(pieces.len()).min((BUFFER / room.max(1)).max(16));
        let of_system = |error: io::Error| (0, error.to_string());
        let mut ring = IoUring::new(depth.max(1) as u32).map_err(of_system)?;
        let mut buffer = filled(
            0u8,
            depth.checked_mul(room).and_then(|all| all.checked_add(PAGE as usize)),
            "row_bytes",
            room,
        )
        .map_err(|error| (0, error.to_string()))?;
        // SAFETY: the buffer has a page more than its slots.
        let base = unsafe { buffer.as_mut_ptr().add(buffer.as_ptr().align_offset(PAGE as usize)) };
        let mut slots = vec![Slot::default(); depth];
        let mut free: Vec<usize> = (0..depth).collect();
        let mut asking: Vec<usize> = Vec::new(); // slots whose read is to begin, or to go on
        let (mut next, mut under_way, mut failed) = (0, 0, None);
        loop {
            while failed.is_none() && next < pieces.len() && !free.is_empty() {
                let slot = free.pop().expect("one is free");
                slots[slot] = Slot { piece: next, found: 0 };
                (next, under_way) = (next + 1, under_way + 1);
                asking.push(slot);
            }
            for number in asking.drain(..) {
                let Slot { piece, found } = slots[number];
                // SAFETY: a slot has room for the pages of its piece.
                let into = unsafe { base.add(number * room + found) };
                let asked = pages(size(piece) as u64) as usize - found;
                let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), into, asked as u32)
                    .offset(pieces[piece].start + found as u64)
                    .build()
                    .user_data(number as u64);
                // SAFETY: file and buffer live until the read is done, and a slot has one at a time.
                unsafe { ring.submission().push(&entry) }.expect("there is an entry for each slot");
            }
            if under_way == 0 {
                break;
            }
            if let Err(error) = ring.submit_and_wait(1)
                && !matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ResourceBusy)
            {
                forget(buffer); // the system may still write to it
                return Err(of_system(error));
            }
            let done: Vec<_> = ring
                .completion()
                .map(|entry| (entry.user_data() as usize, entry.result()))
                .collect();
            for (number, result) in done {
                let slot = &mut slots[number];
                let at = pieces[slot.piece].start + slot.found as u64;
                match result {
                    0 => failed = Some((at, "the file ends here".to_owned())),
                    1.. => slot.found += result as usize,
                    _ if [-libc::EINTR, -libc::EAGAIN].contains(&result) => {}
                    _ => failed = Some((at, io::Error::from_raw_os_error(-result).to_string())),
                }
                if slot.found >= size(slot.piece) {
                    // SAFETY: the slot is within the buffer, and no read of it is under way.
                    arrived(slot.piece, unsafe {
                        slice::from_raw_parts(base.add(number * room), size(slot.piece))
                    });
                } else if failed.is_none() {
                    asking.push(number);
                    continue;
                }
                under_way -= 1;
                free.push(number);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::fs::File;
    use std::io;
    use std::ops::Range;

    use super::Failed;

    pub(crate) fn check() -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    pub(crate) fn read(_: &File, _: &[Range<u64>], _: impl FnMut(usize, &[u8])) -> Result<(), Failed> {
        Err((0, "only Linux has io_uring".to_owned()))
    }
}
