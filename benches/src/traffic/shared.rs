//! Memory that both sides map, and in it the lanes of the naive ring: for each slot a flag alone on
//! its cache line, and the bytes behind it.
#![expect(unsafe_code, reason = "maps memory that two processes share")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ask::request::MemoryAt;
use crate::error::Failure;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The memory. Its first word is for whoever has nothing better; lanes begin at [`Memory::LANES`].
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// Keeps the name below `/proc` alive for the other side.
    file: File,
}

// SAFETY: the pointer is to a mapping that belongs to this value, and all access goes through
// atomic words or through lanes, each of which has one writer and one reader.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Where the first lane begins.
    pub(crate) const LANES: usize = 2 * LINE;

    /// New memory, all zeros.
    pub(crate) fn new(bytes: usize) -> Result<Memory, Failure> {
        // SAFETY: the name is a C string; the call returns a new descriptor or an error.
        let fd = unsafe { libc::memfd_create(c"doorbell-bench".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(refused(&io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new, and nobody else closes it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes as u64).map_err(|error| refused(&error))?;
        Memory::map(file, bytes)
    }

    /// The memory that the other side has made.
    pub(crate) fn open(at: &MemoryAt) -> Result<Memory, Failure> {
        let path = format!("/proc/{}/fd/{}", at.process, at.file);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| refused(&error))?;
        match file.metadata() {
            Ok(about) if about.len() == at.bytes as u64 => Memory::map(file, at.bytes),
            _ => Err(Failure::new("the shared memory of the naive ring has another size")),
        }
    }

    fn map(file: File, bytes: usize) -> Result<Memory, Failure> {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if !ptr::eq(start.as_ptr().cast(), libc::MAP_FAILED) => {
                Ok(Memory { start, bytes, file })
            }
            _ => Err(refused(&io::Error::last_os_error())),
        }
    }

    /// How the other side finds it.
    pub(crate) fn at(&self) -> MemoryAt {
        MemoryAt { process: std::process::id(), file: self.file.as_raw_fd(), bytes: self.bytes }
    }

    /// A word that both sides read and write by atomics alone.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes, "inside the memory");
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned. Both sides touch
        // words by atomics alone: lanes keep their bytes apart from their words.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no lane outlives it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn refused(error: &io::Error) -> Failure {
    Failure::system("share memory for the naive ring", error, "is /proc mounted, is memory free?")
}

/// Slots one way, from one writer to one reader. A slot is a line with a flag and a length, and the
/// lines of its bytes. A single slot is free again when the answer is there, so nothing else tells;
/// with more slots the reader publishes how far it is.
pub(crate) struct Lane {
    memory: Arc<Memory>,
    start: usize,
    /// A power of two.
    slots: u64,
    bytes_max: usize,
    stride: usize,
    /// Messages written, or taken.
    next: u64,
    /// As far as the writer knows, the messages that the reader has taken.
    taken: u64,
}

impl Lane {
    /// Bytes of memory that a lane takes.
    pub(crate) fn bytes(slots: u64, bytes_max: usize) -> usize {
        2 * LINE + slots as usize * Lane::stride(bytes_max)
    }

    fn stride(bytes_max: usize) -> usize {
        LINE + bytes_max.next_multiple_of(LINE)
    }

    /// One end of the lane number `n` of a memory whose lanes are all alike. The caller makes one
    /// writer and one reader of each.
    pub(crate) fn new(memory: &Arc<Memory>, n: usize, slots: u64, bytes_max: usize) -> Lane {
        let bytes = Lane::bytes(slots, bytes_max);
        let start = Memory::LANES + n * bytes;
        assert!(start + bytes <= memory.bytes, "inside the memory");
        assert!(slots.is_power_of_two(), "a slot is chosen by a mask");
        let (memory, stride) = (Arc::clone(memory), Lane::stride(bytes_max));
        Lane { memory, start, slots, bytes_max, stride, next: 0, taken: 0 }
    }

    /// A word of the lane: the one that the reader publishes, or the first two of a slot.
    #[inline(always)]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= self.memory.bytes);
        // SAFETY: the lane is inside the memory and begins at a multiple of a line (checked by
        // `new`), and these words are apart from the bytes of messages. Both sides touch them by
        // atomics alone.
        unsafe { AtomicU64::from_ptr(self.memory.start.as_ptr().add(offset).cast()) }
    }

    #[inline(always)]
    fn slot(&self) -> usize {
        let slot = self.next & (self.slots - 1);
        self.start + 2 * LINE + slot as usize * self.stride
    }

    /// Writes a message. False if every slot is taken.
    #[inline(always)]
    pub(crate) fn put(&mut self, bytes: &[u8]) -> bool {
        assert!(bytes.len() <= self.bytes_max, "inside a slot");
        if self.slots > 1 && self.next - self.taken == self.slots {
            // Acquire: the reader has read the slot before it is written again.
            self.taken = self.word(self.start).load(Ordering::Acquire);
            if self.next - self.taken == self.slots {
                return false;
            }
        }
        let slot = self.slot();
        // SAFETY: the slot is inside the memory (checked by `new`), and it is free: the reader has
        // published that, or has answered the message in it. So nobody else touches its bytes. They
        // overlap nothing that the caller borrows, which is another lane or no shared memory.
        unsafe {
            let to = self.memory.start.as_ptr().add(slot + LINE);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.word(slot + 8).store(bytes.len() as u64, Ordering::Relaxed);
        self.next += 1;
        // Release: whoever sees the flag sees the length and the bytes.
        self.word(slot).store(self.next, Ordering::Release);
        true
    }

    /// The next message, if it is there. It stays until [`Lane::done`].
    #[inline(always)]
    pub(crate) fn get(&self) -> Option<&[u8]> {
        let slot = self.slot();
        // Acquire: pairs with the flag's store in `put`.
        if self.word(slot).load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        let length = self.word(slot + 8).load(Ordering::Relaxed) as usize;
        // SAFETY: the bytes are inside the slot, and the writer leaves them alone until `done`,
        // which needs `&mut self` and so ends this borrow.
        Some(unsafe {
            let from = self.memory.start.as_ptr().add(slot + LINE);
            std::slice::from_raw_parts(from, length.min(self.bytes_max))
        })
    }

    /// The message of [`Lane::get`] has been read.
    #[inline(always)]
    pub(crate) fn done(&mut self) {
        self.next += 1;
        if self.slots > 1 {
            // Release: the bytes have been read before the slot is free.
            self.word(self.start).store(self.next, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_a_full_lane_refuses() {
        let memory = Memory::new(Memory::LANES + 2 * Lane::bytes(4, 100)).unwrap();
        let other = Arc::new(Memory::open(&memory.at()).unwrap());
        let memory = Arc::new(memory);
        // The second lane, so that a wrong place would be outside the memory or in the first.
        let (mut to, mut from) = (Lane::new(&memory, 1, 4, 100), Lane::new(&other, 1, 4, 100));
        let mut first = Lane::new(&memory, 0, 4, 100);
        for round in 0..10_u8 {
            assert!(first.put(&[0xff; 100]) || round >= 4);
            assert!(from.get().is_none());
            for n in 0..4 {
                assert!(to.put(&vec![round * 4 + n; usize::from(n) * 33]));
            }
            assert!(!to.put(&[1]), "four slots");
            for n in 0..4 {
                assert_eq!(from.get().unwrap(), vec![round * 4 + n; usize::from(n) * 33]);
                from.done();
            }
        }
    }

    #[test]
    fn a_single_slot_is_free_when_its_message_was_answered() {
        let memory = Arc::new(Memory::new(Memory::LANES + Lane::bytes(1, 64)).unwrap());
        let (mut to, mut from) = (Lane::new(&memory, 0, 1, 64), Lane::new(&memory, 0, 1, 64));
        for n in 0..5_u8 {
            assert!(to.put(&[n; 64]));
            assert_eq!(from.get().unwrap(), [n; 64]);
            from.done();
            assert!(from.get().is_none());
        }
    }
}
