//! The registered buffers of one queue.

use doorbell::{Buffer, CmError, Fabric, error::Code, message_memory};

use crate::store::REGIONS;
use crate::wire::response::RESPONSE_BYTES;
use crate::wire::{PAGE_BYTES, TRANSFER_BYTES};

/// Buffers for the longest transfers; commands that find none wait for one.
const LARGE: usize = 8;

/// The buffers that no request has.
pub(super) struct Pool<F: Fabric> {
    small: Vec<Buffer<F>>,
    large: Vec<Buffer<F>>,
    responses: Vec<Buffer<F>>,
    /// Commands of the queue.
    depth: usize,
    /// Address and length of what the small and the large ones are cut from.
    regions: [(usize, usize); REGIONS],
}

impl<F: Fabric> Pool<F> {
    /// The buffers for a queue of `depth` commands.
    pub(super) fn new(fabric: &F, depth: usize) -> Result<Pool<F>, CmError> {
        let many = |count: usize, len: usize| {
            let memory = message_memory(fabric, count * len.next_multiple_of(64));
            let memory = memory.map_err(|error| {
                let asked = format!("{count} buffers of {len} bytes for a queue");
                CmError::new(Code::from_errno(error.errno()), asked, error.to_string())
            })?;
            Buffer::over(fabric, memory, count, len)
        };
        let (small, large) = (many(depth, PAGE_BYTES)?, many(LARGE, TRANSFER_BYTES)?);
        let region = |buffers: &[Buffer<F>]| {
            let start = buffers.first().map_or(0, |buffer| buffer.as_ptr() as usize);
            (start, buffers.iter().map(|buffer| buffer.len()).sum())
        };
        Ok(Pool {
            depth,
            regions: [region(&small), region(&large)],
            small,
            large,
            // A host may send the next command before this side hears that its device has the
            // last response, so there are more responses than commands.
            responses: many(depth * 2, RESPONSE_BYTES)?,
        })
    }

    /// Address and length of the regions that data is in.
    pub(super) fn regions(&self) -> [(usize, usize); REGIONS] {
        self.regions
    }

    /// The number of the region that a buffer for data is cut from.
    pub(super) fn region_of(buffer: &Buffer<F>) -> u16 {
        u16::from(buffer.len() != PAGE_BYTES)
    }

    /// A buffer of at least `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<Buffer<F>> {
        let small = if len <= PAGE_BYTES { self.small.pop() } else { None };
        small.or_else(|| self.large.pop().filter(|buffer| len <= buffer.len()))
    }

    /// True if a kind of buffer is scarce.
    pub(super) fn is_low(&self) -> bool {
        let half = self.depth / 2;
        self.small.len() <= half || self.large.len() <= LARGE / 2 || self.responses.len() <= half
    }

    /// A buffer for a response.
    pub(super) fn response(&mut self) -> Option<Buffer<F>> {
        self.responses.pop()
    }

    /// Takes back a buffer of any kind.
    pub(super) fn give(&mut self, buffer: Buffer<F>) {
        match buffer.len() {
            RESPONSE_BYTES => self.responses.push(buffer),
            PAGE_BYTES => self.small.push(buffer),
            _ => self.large.push(buffer),
        }
    }
}
