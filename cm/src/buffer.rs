//! Buffers: registered memory with one owner. Posting moves a buffer to the device, its completion
//! returns it, so nobody can touch or free memory that a device may still write to.
#![expect(unsafe_code, reason = "bytes of a region, each in exactly one buffer")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use doorbell_alloc::{Ask, MapRequest, Mapping};
use doorbell_fabric::CmError;
use doorbell_seam::error::Code;
use doorbell_seam::provider::{Access, Provider, Region};
use doorbell_seam::wr::Sge;

/// Bytes in registered memory, for sends and receives.
pub struct Buffer<P: Provider> {
    /// Alive as long as any piece of it.
    region: Arc<P::Region>,
    offset: usize,
    len: u32,
}

/// How memory is cut into buffers.
struct Cut {
    length: u32,
    stride: usize,
    bytes: usize,
}

impl Cut {
    fn new(count: usize, len: usize) -> Result<Cut, CmError> {
        let too_much = || {
            CmError::new(
                Code::Invalid,
                asked(count, len),
                "that many bytes do not fit into the address space",
            )
            .cure("ask for fewer or shorter buffers")
        };
        let length = u32::try_from(len).map_err(|_| {
            CmError::new(Code::Invalid, asked(count, len), "a buffer has less than 4 GiB")
                .cure("use several")
        })?;
        // Whole cache lines, so that neighbours do not share one.
        let stride = len.max(1).checked_next_multiple_of(64).ok_or_else(too_much)?;
        // The last one need not be followed by anything.
        let most = stride.checked_mul(count).ok_or_else(too_much)?;
        Ok(Cut { length, stride, bytes: most.saturating_sub(stride - len) })
    }
}

fn asked(count: usize, len: usize) -> String {
    format!("{count} buffers of {len} bytes")
}

impl<P: Provider> Buffer<P> {
    /// A buffer of `len` bytes, zeroed, in a region of its own.
    ///
    /// # Errors
    /// See [`Buffer::many`].
    pub fn new(device: &P, len: usize) -> Result<Buffer<P>, CmError> {
        let mut one = Buffer::many(device, 1, len)?;
        one.pop().ok_or_else(|| CmError::new(Code::NoMemory, "a buffer", "none was made"))
    }

    /// `count` buffers of `len` bytes each, zeroed, all in one region.
    ///
    /// # Errors
    /// `Invalid`: 4 GiB or more each, or more in all than the address space holds. The system's
    /// error for the memory, or the device's for the region.
    pub fn many(device: &P, count: usize, len: usize) -> Result<Vec<Buffer<P>>, CmError> {
        let Cut { stride, bytes, .. } = Cut::new(count, len)?;
        let memory = MapRequest::new(bytes.max(stride)).pages(Ask::Plain).map();
        let memory = memory.map_err(|error| {
            CmError::new(Code::from_errno(error.errno()), asked(count, len), error.to_string())
        })?;
        Buffer::over(device, memory, count, len)
    }

    /// `count` buffers of `len` bytes each, cut from memory of your own. Each begins at a multiple
    /// of 64 bytes. They keep the bytes that the memory has, for example a copy of a file
    /// ([`Mapping::file`]).
    ///
    /// # Errors
    /// `Invalid`: the memory is too short, or another process may write what is lent here as a
    /// slice. Otherwise the device's error for the region.
    pub fn over(
        device: &P,
        memory: Mapping,
        count: usize,
        len: usize,
    ) -> Result<Vec<Buffer<P>>, CmError> {
        let Cut { length, stride, bytes } = Cut::new(count, len)?;
        if memory.report().shared() {
            let answer = "other processes may write to the memory";
            return Err(CmError::new(Code::Invalid, asked(count, len), answer)
                .cure("map it private, or use Exposed"));
        }
        if memory.len() < bytes {
            let answer = format!("they take {bytes} bytes, the memory has {}", memory.len());
            return Err(CmError::new(Code::Invalid, asked(count, len), answer)
                .cure("give more memory: each buffer begins at a multiple of 64 bytes"));
        }
        let region = Arc::new(device.register(memory, Access::LOCAL_WRITE)?);
        let piece = |index| Buffer { region: region.clone(), offset: index * stride, len: length };
        Ok((0..count).map(piece).collect())
    }

    /// The piece as the device sees it: its first `len` bytes.
    pub(crate) fn sge(&self, len: u32) -> Sge {
        debug_assert!(len <= self.len);
        let addr = self.region.as_ptr() as u64 + self.offset as u64;
        Sge { addr, length: len.min(self.len), lkey: self.region.lkey() }
    }
}

impl<P: Provider> Deref for Buffer<P> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region is valid for its whole length at one address (`Region`), the piece
        // lies inside it and in no other buffer, the bytes were zeroed, and no device has it:
        // while one does, the buffer is in this crate's tables and nobody can borrow it. Peers
        // cannot reach it by themselves: it is registered for local use only.
        unsafe {
            let start = self.region.as_ptr().add(self.offset);
            std::slice::from_raw_parts(start, self.len as usize)
        }
    }
}

impl<P: Provider> DerefMut for Buffer<P> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` is the only way to these bytes.
        unsafe {
            let start = self.region.as_ptr().add(self.offset);
            std::slice::from_raw_parts_mut(start, self.len as usize)
        }
    }
}

impl<P: Provider> fmt::Debug for Buffer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Cut;

    #[test]
    fn what_is_too_large_says_which_limit_it_is_over() {
        let refused = |count, len| Cut::new(count, len).err().map(|error| error.to_string());
        let long = refused(1, 5 << 30).unwrap();
        assert!(long.contains("less than 4 GiB") && long.contains("use several"), "{long}");
        let many = refused(usize::MAX, 64).unwrap();
        assert!(many.contains("address space"), "{many}");
        assert!(refused(0, 0).is_none() && refused(1, u32::MAX as usize).is_none());
    }
}
