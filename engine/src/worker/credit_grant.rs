//! What a connection takes of a worker: receives for the peer, and a word of memory that the peer
//! writes its credit to.
#![expect(unsafe_code, reason = "memory of its own for a device to write to")]

use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use std_alloc::sync::Arc;

use super::credit::{HANDSHAKE_BYTES, Handshake};
use super::shared_recv::SharedRecv;
use crate::error::{Code, SetupError};
use crate::provider::{Access, Provider, Region};

const WORD: usize = size_of::<u64>();

/// The words of a worker, one for each connection: peers may write to them.
pub(super) struct CreditWords<P: Provider> {
    region: P::Region,
    free: ArrayQueue<u32>,
}

impl<P: Provider> CreditWords<P> {
    /// Registers words for `peers` connections and a few that are on their way in or out.
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
        // SAFETY: indexes come from `free` and lie in the region, whose words are aligned; what a
        // device writes there is as good as an atomic store.
        unsafe { &*self.region.as_ptr().add(index as usize * WORD).cast::<AtomicU64>() }
    }
}

/// What a connection takes of a worker: a window of its receives, and a word to be told of credit.
/// Made before the connection is, handed over with it; dropped, it gives both back.
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
        // Its last peer's queue pair is gone. A last word of that peer which is still on its way,
        // or one of a peer that writes where it should not, gives no more than the window.
        words.at(index).store(0, Ordering::Relaxed);
        Ok(CreditGrant { shared: shared.clone(), words: words.clone(), index, window })
    }

    /// What the peer must be told, in front of any private data of the connection.
    pub fn handshake(&self) -> [u8; HANDSHAKE_BYTES] {
        let word = self.words.region.remote(self.index as usize * WORD);
        Handshake { window: self.window, word }.to_bytes()
    }

    /// Receives that are promised to the peer; 0 if this worker's peers have no credits.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// The peer's word: how many messages it has allowed so far; 0 before it said so.
    pub(super) fn allowed(&self) -> u64 {
        // Acquire: nothing else is read because of it, but what is sent comes after.
        self.words.at(self.index).load(Ordering::Acquire)
    }
}

impl<P: Provider> Drop for CreditGrant<P> {
    fn drop(&mut self) {
        self.shared.take_back(self.window);
        let _ = self.words.free.push(self.index);
    }
}
