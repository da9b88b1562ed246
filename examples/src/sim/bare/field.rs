//! Registered memory that the simulation reads, writes and posts: all of its unsafe code.
#![expect(unsafe_code, reason = "memory that a device writes, and posts that name it")]

use doorbell::alloc::{Ask, MapRequest};
use doorbell::error::{Code, SetupError};
use doorbell::provider::call::Call;
use doorbell::provider::{Access, Provider, Qp, Region, Srq, Window};
use doorbell::soft::sim::mix;
use doorbell::soft::{Soft, SoftRegion};
use doorbell::wr::{Binding, PostError, RecvWr, Remote, SendFlags, Sge};

/// Registered memory. There is one thread, and a device writes only while it is polled or posted
/// to, so nobody writes while this reads.
pub struct Field(SoftRegion);

impl Field {
    /// Registers that many bytes.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(nic: &Soft, bytes: usize, access: Access) -> Result<Field, SetupError> {
        // Most of it is never touched.
        let request = MapRequest::new(bytes).pages(Ask::Plain).lock(false).prefault(false);
        let memory = request.map().map_err(|error| {
            SetupError::new(Code::NoMemory, format!("{bytes} bytes"), error.to_string())
        })?;
        Ok(Field(nic.register(memory, access)?))
    }

    /// A piece of it, to send from or to read into.
    pub fn sge(&self, at: usize, length: usize) -> Sge {
        Sge { addr: self.remote(at).addr, length: length as u32, lkey: self.0.lkey() }
    }

    /// The address and key for a peer.
    pub fn remote(&self, at: usize) -> Remote {
        self.0.remote(at)
    }

    /// The handle by which a binding names it.
    pub fn handle(&self) -> u64 {
        self.0.handle()
    }

    /// Its length in bytes.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// Writes to it.
    pub fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.size());
        // SAFETY: inside the region, which is mapped; the type says who else writes.
        unsafe { self.0.as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// True if it holds those bytes.
    pub fn holds(&self, at: usize, bytes: &[u8]) -> bool {
        self.bytes(at, bytes.len()) == bytes
    }

    /// Its bytes.
    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= self.size());
        let mut bytes = vec![0; length];
        // SAFETY: as in `fill`.
        unsafe { self.0.as_ptr().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    /// Eight of them as a number.
    pub fn word(&self, at: usize) -> u64 {
        let bytes = self.bytes(at, 8);
        bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }
}

/// Posts requests whose memory belongs to a [`Field`] that lives as long as the world. Returns how
/// many the device took.
///
/// # Errors
/// The device's error.
pub fn send<Q: Qp>(qp: &mut Q, call: Call<'_>) -> Result<usize, PostError> {
    // SAFETY: fields are dropped after queue pairs, and nobody touches a piece of one that is in
    // flight; one thread does everything. Datagram handles live as long as their queue pairs.
    // Requests that are posted one by one are inline and within a queue pair's limit.
    unsafe { call.make(qp) }
}

/// Posts a receive to a queue pair, or to its shared queue.
///
/// # Errors
/// The device's error.
pub fn post_recv<Q: Qp, S: Srq>(qp: &mut Q, srq: Option<&S>, wr: RecvWr) -> Result<(), PostError> {
    // SAFETY: as in `send`.
    unsafe {
        match srq {
            Some(srq) => srq.post(&[wr]),
            None => qp.post_recv(&[wr]),
        }
    }
}

/// Binds a window of type 1 to a part of a [`Field`], and returns its key.
///
/// # Errors
/// The device's error.
pub fn bind<W: Window>(
    window: &mut W,
    qp: &mut W::Qp,
    binding: Binding,
    wr_id: u64,
    flags: SendFlags,
) -> Result<u32, PostError> {
    // SAFETY: fields are dropped after queue pairs.
    unsafe { window.bind(qp, binding, wr_id, flags) }
}

/// Bytes that belong to that key alone.
pub fn pattern(key: u64, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8) as u64).flat_map(|n| mix(key ^ mix(n)).to_le_bytes());
    words.take(length).collect()
}
