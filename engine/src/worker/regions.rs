//! Registered memory that a worker has adopted: requests read and write it without a copy.
#![expect(unsafe_code, reason = "memory of its own that devices read and write")]

use core::slice;

use arrayvec::ArrayVec;
use doorbell_alloc::Mapping;
use std_alloc::format;
use std_alloc::vec::Vec;

use super::config::PIECES_MAX;
use super::piece::{OwnRegion, Piece, RegionId};
use super::requests::{Requests, Touch};
use super::send_error::{LendError, SendError};
use crate::error::{Code, SetupError};
use crate::provider::{Access, Provider, Region};
use crate::remote::{RemoteError, RemoteMemory};
use crate::wr::{Remote, Sge};

/// Bytes that are copied at once.
const WORD: usize = 8;

/// A word at any alignment.
#[repr(C, packed)]
struct Word(u64);

/// A region, and whether it was registered for this worker's own requests alone.
struct Adopted<R> {
    region: R,
    own: bool,
}

/// The regions. A region stays until the worker is gone.
pub(super) struct Regions<P: Provider>(Vec<Adopted<P::Region>>);

impl<P: Provider> Regions<P> {
    pub(super) fn new() -> Regions<P> {
        Regions(Vec::new())
    }

    /// Adds a region. It allocates: a call for the control plane.
    pub(super) fn adopt(&mut self, region: P::Region) -> RegionId {
        self.0.push(Adopted { region, own: false });
        RegionId(self.0.len() as u32 - 1)
    }

    /// Registers memory for this worker's own requests alone, and takes it in.
    pub(super) fn adopt_own(&mut self, nic: &P, memory: Mapping) -> Result<OwnRegion, SetupError> {
        if memory.report().shared() {
            let asked = format!("{} bytes as a worker's own memory", memory.len());
            let answer = "other processes may write to it";
            return Err(SetupError::new(Code::Invalid, asked, answer)
                .cure("map it private, or register it and use Worker::adopt"));
        }
        let region = nic.register(memory, Access::LOCAL_WRITE)?;
        let id = self.adopt(region);
        if let Some(adopted) = self.0.last_mut() {
            adopted.own = true;
        }
        Ok(OwnRegion(id))
    }

    fn get(&self, id: RegionId) -> Result<&P::Region, SendError> {
        self.0.get(id.0 as usize).map(|adopted| &adopted.region).ok_or(SendError::OutOfBounds)
    }

    /// Where some bytes of the worker's own memory are.
    fn own_bytes(&self, piece: Piece) -> Result<*mut u8, LendError> {
        // The id may come from another worker, so the region here may be one that peers write to.
        if !self.0.get(piece.region.0 as usize).is_some_and(|adopted| adopted.own) {
            return Err(LendError::OutOfBounds);
        }
        let bytes = self.bytes(piece.region, piece.offset, piece.length as usize);
        bytes.map_err(|_| LendError::OutOfBounds)
    }

    /// Lends bytes of the worker's own memory, if no request in flight writes them.
    pub(super) fn lend(&self, requests: &Requests, piece: Piece) -> Result<&[u8], LendError> {
        let start = self.own_bytes(piece)?;
        if requests.touch(&piece, Touch::Write) {
            return Err(LendError::InFlight);
        }
        // SAFETY: inside a region that stays until the worker is gone, in private memory that was
        // zeroed, filled or read when it was mapped. Nobody writes these bytes during the borrow:
        // peers may not (it was registered for local use only), no request in flight does
        // (checked above: the caller passes this worker's requests), and none can be posted, for
        // that needs the worker's core by `&mut`, and the loan borrows it.
        Ok(unsafe { slice::from_raw_parts(start, piece.length as usize) })
    }

    /// Lends bytes of the worker's own memory to write, if no request in flight uses them.
    pub(super) fn lend_mut(
        &mut self,
        requests: &Requests,
        piece: Piece,
    ) -> Result<&mut [u8], LendError> {
        let start = self.own_bytes(piece)?;
        if requests.touch(&piece, Touch::Any) {
            return Err(LendError::InFlight);
        }
        // SAFETY: as in `lend`; and nobody reads them either, because no request in flight does,
        // and `&mut self` excludes every other loan.
        Ok(unsafe { slice::from_raw_parts_mut(start, piece.length as usize) })
    }

    /// The pieces, as the device knows them.
    pub(super) fn sges(&self, pieces: &[Piece]) -> Result<ArrayVec<Sge, PIECES_MAX>, SendError> {
        let mut sges = ArrayVec::new();
        for piece in pieces {
            let region = self.get(piece.region)?;
            let end = piece.offset.checked_add(piece.length as usize);
            if end.is_none_or(|end| end > region.len()) {
                return Err(SendError::OutOfBounds);
            }
            let addr = region.as_ptr() as u64 + piece.offset as u64;
            let sge = Sge { addr, length: piece.length, lkey: region.lkey() };
            sges.try_push(sge).map_err(|_| SendError::OutOfBounds)?;
        }
        Ok(sges)
    }

    /// Address and key for a peer's one-sided requests to a worker's memory.
    pub(super) fn remote(&self, region: RegionId, offset: usize) -> Option<Remote> {
        let region = self.get(region).ok()?;
        (offset < region.len()).then(|| region.remote(offset))
    }

    /// What to tell peers about some bytes, so that they can use them.
    pub(super) fn remote_memory(&self, piece: Piece) -> Result<RemoteMemory, RemoteError> {
        let (offset, length) = (piece.offset as u64, u64::from(piece.length));
        let unknown = RemoteError::OutOfBounds { offset, length, len: 0 };
        let region = self.get(piece.region).map_err(|_| unknown)?;
        region.remote_memory(piece.offset, piece.length as usize)
    }

    fn bytes(&self, region: RegionId, offset: usize, length: usize) -> Result<*mut u8, SendError> {
        let region = self.get(region)?;
        match offset.checked_add(length) {
            // SAFETY: the offset lies in the region.
            Some(end) if end <= region.len() => Ok(unsafe { region.as_ptr().add(offset) }),
            _ => Err(SendError::OutOfBounds),
        }
    }

    /// Copies bytes into a worker's memory, while others may read it.
    pub(super) fn copy_in(
        &mut self,
        region: RegionId,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), SendError> {
        let to = self.bytes(region, offset, bytes.len())?;
        let (words, rest) = bytes.as_chunks::<WORD>();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: within the region, as was just checked; a `Word` may lie anywhere. Volatile:
            // a device may read there.
            unsafe {
                to.add(n * WORD).cast::<Word>().write_volatile(Word(u64::from_ne_bytes(*word)))
            };
        }
        for (byte, at) in rest.iter().zip(words.len() * WORD..) {
            // SAFETY: as above.
            unsafe { to.add(at).write_volatile(*byte) };
        }
        Ok(())
    }

    /// Copies bytes out of a worker's memory, while others may write it.
    pub(super) fn copy_out(
        &self,
        region: RegionId,
        offset: usize,
        bytes: &mut [u8],
    ) -> Result<(), SendError> {
        let from = self.bytes(region, offset, bytes.len())?;
        let (words, rest) = bytes.as_chunks_mut::<WORD>();
        let done = words.len() * WORD;
        for (n, to) in words.iter_mut().enumerate() {
            // SAFETY: within the region, as was just checked; a `Word` may lie anywhere. Volatile:
            // a device may write there.
            let Word(word) = unsafe { from.add(n * WORD).cast::<Word>().read_volatile() };
            *to = word.to_ne_bytes();
        }
        for (byte, at) in rest.iter_mut().zip(done..) {
            // SAFETY: as above.
            *byte = unsafe { from.add(at).read_volatile() };
        }
        Ok(())
    }
}
