//! Memory that peers may access by themselves. The local side cannot borrow its bytes but copies
//! them in and out, because a peer may change them at any moment.
#![expect(unsafe_code, reason = "bytes that a peer changes behind Rust's back")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use doorbell_alloc::{Ask, MapRequest, Mapping};
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Provider, Region};
use doorbell_seam::remote::{RemoteError, RemoteMemory};
use doorbell_seam::wr::Remote;

/// Registered memory for one-sided access. Cloning gives another handle; the last one deregisters
/// it, and from then on its key is invalid (MR-3).
pub struct Exposed<P: Provider> {
    pub(crate) region: Arc<P::Region>,
    pub(crate) len: usize,
}

/// Memory for that many bytes, zeroed, that a peer on this machine can map.
pub(crate) fn map(len: usize) -> Result<Mapping, CmError> {
    let asked = || format!("{len} bytes for one-sided access");
    MapRequest::new(len.max(1))
        .pages(Ask::Plain)
        .shared(true)
        .map()
        .map_err(|error| CmError::new(Code::from_errno(error.errno()), asked(), error.to_string()))
}

/// The access to register: `rights`, and `LOCAL_WRITE`.
pub(crate) fn access(rights: Access) -> Access {
    rights | Access::LOCAL_WRITE
}

impl<P: Provider> Clone for Exposed<P> {
    fn clone(&self) -> Self {
        Exposed { region: self.region.clone(), len: self.len }
    }
}

impl<P: Provider> Exposed<P> {
    /// `len` bytes, zeroed, in which peers may do what `rights` says (REMOTE_READ, REMOTE_WRITE,
    /// REMOTE_ATOMIC; LOCAL_WRITE comes with the latter two, MR-1).
    ///
    /// # Errors
    /// `NoMemory`: the system has too little memory, or the device no room for another region.
    pub fn new(device: &P, len: usize, rights: Access) -> Result<Exposed<P>, CmError> {
        Exposed::over(device, map(len)?, len, rights)
    }

    /// The first `len` bytes of memory of your own, such as that of a file ([`Mapping::file`]), as
    /// they are; for `rights` see [`Exposed::new`]. On the device in software a peer's process
    /// maps memory of [`MapRequest::shared`] and reaches it by itself; other memory is served by
    /// the polls of this process.
    ///
    /// # Errors
    /// `Invalid`: the memory is shorter, or its address or length is no multiple of 8. `NoMemory`:
    /// the device has no room for another region.
    pub fn over(
        device: &P,
        memory: Mapping,
        len: usize,
        rights: Access,
    ) -> Result<Exposed<P>, CmError> {
        if memory.len() < len {
            let asked = format!("{len} bytes for one-sided access");
            let answer = format!("the memory has {} bytes", memory.len());
            return Err(CmError::new(Code::Invalid, asked, answer).cure("map that many at least"));
        }
        if !memory.as_ptr().cast::<AtomicU64>().is_aligned() || !memory.len().is_multiple_of(WORD) {
            let answer = "it does not consist of whole words of 8 bytes";
            return Err(CmError::new(Code::Invalid, "expose memory", answer)
                .cure("give memory with an address and a length that are multiples of 8"));
        }
        let region = device.register(memory, access(rights))?;
        Ok(Exposed { region: Arc::new(region), len })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its place, for the device: the region's handle, and an address.
    pub(crate) fn place(&self, offset: usize) -> (u64, u64) {
        (self.region.handle(), self.region.remote(offset).addr)
    }

    pub(crate) fn check(&self, offset: usize, len: usize) -> Result<(), CmError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => {
                let asked = format!("{len} bytes at {offset} of exposed memory");
                Err(CmError::new(Code::Invalid, asked, format!("it has {} bytes", self.len))
                    .cure("stay below its end, or make a longer Exposed"))
            }
        }
    }

    /// The address and key with which a peer reaches the bytes from `offset` on.
    pub fn remote(&self, offset: usize) -> Remote {
        self.region.remote(offset)
    }

    /// What to tell peers about `length` bytes from `offset` on: see [`RemoteMemory`].
    ///
    /// # Errors
    /// `NoRights`: it was made without a right for peers. `OutOfBounds`: past the end.
    pub fn remote_memory(&self, offset: usize, length: usize) -> Result<RemoteMemory, RemoteError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.len => self.region.remote_memory(offset, length),
            _ => {
                let [offset, length, len] = [offset, length, self.len].map(|bytes| bytes as u64);
                Err(RemoteError::OutOfBounds { offset, length, len })
            }
        }
    }

    /// Copies bytes out. It may see part of a peer's concurrent write; it sees all that the peer
    /// wrote before its latest message came (SQ-6).
    ///
    /// # Errors
    /// `Invalid`: past the end.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), CmError> {
        self.check(offset, to.len())?;
        let (head, words, tail) = Self::split(offset, to.len());
        let (first, rest) = to.split_at_mut(head);
        if head > 0 {
            let at = offset % WORD;
            let whole = self.at(offset - at).load(Ordering::Relaxed).to_ne_bytes();
            first.copy_from_slice(&whole[at..at + head]);
        }
        let (middle, last) = rest.split_at_mut(words * WORD);
        for (n, to) in middle.chunks_exact_mut(WORD).enumerate() {
            let word = self.at(offset + head + n * WORD);
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        if tail > 0 {
            let whole = self.at(offset + head + words * WORD).load(Ordering::Relaxed);
            last.copy_from_slice(&whole.to_ne_bytes()[..tail]);
        }
        Ok(())
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `Invalid`: past the end.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), CmError> {
        self.check(offset, from.len())?;
        let (head, words, tail) = Self::split(offset, from.len());
        let (first, rest) = from.split_at(head);
        let (middle, last) = rest.split_at(words * WORD);
        if head > 0 {
            let at = offset % WORD;
            replace(self.at(offset - at), at, first);
        }
        for (n, from) in middle.chunks_exact(WORD).enumerate() {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(from);
            let word = self.at(offset + head + n * WORD);
            word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        if tail > 0 {
            replace(self.at(offset + head + words * WORD), 0, last);
        }
        Ok(())
    }

    /// Eight bytes as one word, in this machine's byte order. On a device whose atomics hold
    /// against the processor too, the soft one among them, a peer's atomics and these add up
    /// (RC-6).
    ///
    /// # Errors
    /// `Invalid`: past the end, or `offset` no multiple of 8.
    pub fn word(&self, offset: usize) -> Result<&AtomicU64, CmError> {
        self.check(offset, 8)?;
        if !offset.is_multiple_of(8) {
            let asked = format!("the word at {offset} of {} bytes", self.len);
            return Err(CmError::new(Code::Invalid, asked, "it is not aligned")
                .cure("choose an offset that is a multiple of 8"));
        }
        Ok(self.at(offset))
    }

    /// How many of `len` bytes from `offset` on lie in the last part of a word, how many whole
    /// words follow, and how many bytes are left.
    fn split(offset: usize, len: usize) -> (usize, usize, usize) {
        let head = len.min(offset.wrapping_neg() % WORD);
        (head, (len - head) / WORD, (len - head) % WORD)
    }

    /// The word at an offset that is a multiple of 8, below `len`. All access on this side is by
    /// these words: atomics of different sizes on the same bytes are a race.
    fn at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset.is_multiple_of(WORD) && offset < self.len, "a word of the memory");
        // SAFETY: inside the region, which lives as long as `self` at one address; `over` has
        // checked that it is aligned and consists of whole words. All access on this side is by
        // these atomics, and a peer's by its device, as on any memory of this kind.
        unsafe { AtomicU64::from_ptr(self.region.as_ptr().add(offset).cast()) }
    }
}

/// Bytes of a word.
const WORD: usize = 8;

/// Writes part of a word. What others write to the rest meanwhile stays.
fn replace(word: &AtomicU64, at: usize, from: &[u8]) {
    let change = |old: u64| {
        let mut bytes = old.to_ne_bytes();
        bytes[at..at + from.len()].copy_from_slice(from);
        Some(u64::from_ne_bytes(bytes))
    };
    let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

impl<P: Provider> fmt::Debug for Exposed<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposed").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use doorbell_soft::SoftDevice;

    use super::*;

    #[test]
    fn memory_of_broken_words_is_refused() {
        let device = SoftDevice::open().unwrap();
        let bytes = Box::leak(vec![0_u64; 8].into_boxed_slice()).as_mut_ptr().cast::<u8>();
        // SAFETY: the bytes are leaked, and nobody else has them.
        let bytes = unsafe { std::slice::from_raw_parts_mut(bytes, 64) };
        let memory = Mapping::from_static(&mut bytes[1..57]);
        let error = Exposed::over(&device, memory, 8, Access::REMOTE_READ).unwrap_err();
        assert!(error.to_string().contains("whole words"), "{error}");
    }

    #[test]
    fn bytes_are_copied_in_and_out_at_any_offset_and_length() {
        let device = SoftDevice::open().unwrap();
        let memory = Exposed::new(&device, 64, Access::REMOTE_READ).unwrap();
        let data: Vec<u8> = (1..=40).collect();
        for offset in 0..17 {
            for len in 0..=40 {
                memory.write(0, &[0xee; 64]).unwrap();
                memory.write(offset, &data[..len]).unwrap();
                let mut whole = [0; 64];
                memory.read(0, &mut whole).unwrap();
                assert_eq!(whole[offset..offset + len], data[..len]);
                assert!(whole[..offset].iter().chain(&whole[offset + len..]).all(|b| *b == 0xee));
                let mut back = vec![0; len];
                memory.read(offset, &mut back).unwrap();
                assert_eq!(back, data[..len]);
            }
        }
        assert!(memory.write(60, &data[..5]).is_err());
    }
}
