//! The resources that a worker gives a connection: receives for the peer, and the word of memory
//! that the peer writes its credit to.
#![expect(unsafe_code, reason = "memory of its own for a device to write to")]

use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use std_alloc::sync::Arc;

use super::credit::{HANDSHAKE_BYTES, Handshake};
use super::shared_recv::SharedRecv;
use crate::error::{Code, SetupError};
use crate::provider::{Access, Provider, Region};

const WORD: usize = size_of::<u64>();

/// The credit words of a worker, one for each connection. Peers may write to them.
pub(super) struct CreditWords<P: Provider> {
    region: P::Region,
    free: ArrayQueue<u32>,
}

impl<P: Provider> CreditWords<P> {
    /// Registers words for `peers` connections, and a few more for those that come and go.
    pub(super) fn new(nic: &P, peers: u32) -> Result<CreditWords<P>, SetupError> {
        let count = peers + 16;
        let memory = nic.peer_memory(count as usize * WORD)?;
        let region = nic.register(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let free = ArrayQueue::new(count as usize);
        for index in 0..count {
            let _ = free.push(index);
        }
        Ok(CreditWords { region, free })
    }

    fn at(&self, index: u32) -> &AtomicU64 {
        debug_assert!(index as usize * WORD < self.region.len());
        // SAFETY: indexes come from `free` and lie in the region, whose words are aligned. A
        // device's write there is as good as an atomic store.
        unsafe { &*self.region.as_ptr().add(index as usize * WORD).cast::<AtomicU64>() }
    }
}

/// The resources that a worker gives a connection: a window of its receives, and a word for its
/// credit. Make it before the connection, and hand it over with the queue pair. It gives both back
/// when it is dropped.
pub struct CreditGrant<P: Provider> {
    shared: SharedRecv<P>,
    words: Arc<CreditWords<P>>,
    index: u32,
    window: u32,
}

impl<P: Provider> CreditGrant<P> {
    pub(super) fn new(
        shared: &SharedRecv<P>,
        words: &Arc<CreditWords<P>>,
    ) -> Result<Self, SetupError> {
        let index = words.free.pop().ok_or_else(|| {
            SetupError::new(Code::NoMemory, "one more peer", "the worker has all it has slots for")
                .cure("raise Config::peers")
        })?;
        let window = match shared.promise() {
            Ok(window) => window,
            Err(error) => {
                let _ = words.free.push(index);
                return Err(error);
            }
        };
        // The last peer's queue pair is gone. A late word from it, or one from a peer that writes
        // where it should not, gives no more than the window.
        words.at(index).store(0, Ordering::Relaxed);
        Ok(CreditGrant { shared: shared.clone(), words: words.clone(), index, window })
    }

    /// The bytes that the peer must get, in front of any private data of the connection.
    pub fn handshake(&self) -> [u8; HANDSHAKE_BYTES] {
        let word = self.words.region.remote(self.index as usize * WORD);
        Handshake { window: self.window, word }.to_bytes()
    }

    /// Receives that are promised to the peer; 0 if this worker's peers have no credits.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// The credit word: the number of messages that the peer has allowed so far; 0 before its first
    /// write.
    pub(super) fn allowed(&self) -> u64 {
        // Acquire: nothing is read because of it, but sends come after it.
        self.words.at(self.index).load(Ordering::Acquire)
    }
}

impl<P: Provider> Drop for CreditGrant<P> {
    fn drop(&mut self) {
        self.shared.take_back(self.window);
        let _ = self.words.free.push(self.index);
    }
}
