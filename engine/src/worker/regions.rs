//! Registered memory that a worker has adopted: requests read and write it without a copy.
#![expect(unsafe_code, reason = "memory of its own that devices read and write")]

use arrayvec::ArrayVec;
use std_alloc::vec::Vec;

use super::config::PIECES_MAX;
use super::send_error::SendError;
use crate::provider::{Provider, Region};
use crate::wr::{Remote, Sge};

/// Names registered memory of a worker: see [`super::Worker::adopt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(pub(super) u32);

/// Some bytes of a worker's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The region.
    pub region: RegionId,
    /// First byte.
    pub offset: usize,
    /// How many bytes.
    pub length: u32,
}

/// The regions. A region stays until the worker is gone.
pub(super) struct Regions<P: Provider>(Vec<P::Region>);

impl<P: Provider> Regions<P> {
    pub(super) fn new() -> Regions<P> {
        Regions(Vec::new())
    }

    /// Adds a region. It allocates: a call for the control plane.
    pub(super) fn adopt(&mut self, region: P::Region) -> RegionId {
        self.0.push(region);
        RegionId(self.0.len() as u32 - 1)
    }

    fn get(&self, id: RegionId) -> Result<&P::Region, SendError> {
        self.0.get(id.0 as usize).ok_or(SendError::OutOfBounds)
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
        for (n, byte) in bytes.iter().enumerate() {
            // SAFETY: within the region, as was just checked. Volatile: a device may read there.
            unsafe { to.add(n).write_volatile(*byte) };
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
        for (n, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the region, as was just checked. Volatile: a device may write there.
            *byte = unsafe { from.add(n).read_volatile() };
        }
        Ok(())
    }
}
