//! The resources that a worker gives a connection: receives for the peer, and the word of memory
//! that the peer writes its credit to.
#![expect(unsafe_code, reason = "memory of its own for a device to write to")]

use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam::queue::ArrayQueue;
use std_alloc::format;
use std_alloc::sync::Arc;

use super::config::Config;
use super::credit::{FINISHED, GOODBYE};
use super::handshake::{Handshake, PeerData, PrivateData, Refusal};
use super::message::PeerId;
use super::promises::{Base, Promises};
use super::shared_recv::SharedRecv;
use crate::error::{Code, SetupError};
use crate::prefetch::fetch_line;
use crate::provider::{Access, Provider, Region};

const WORD: usize = size_of::<u64>();

/// The credit words of a worker, one for each connection. Peers may write to them.
pub(super) struct CreditWords<P: Provider> {
    region: P::Region,
    free: ArrayQueue<u32>,
    /// Which peer has each word: see [`PeerWatch`].
    holders: Arc<[AtomicU64]>,
    shared: SharedRecv<P>,
    /// [`Config::peers`].
    peers: u32,
    /// The longest window: [`Config::window`].
    most: u32,
    /// The base window: [`Config::window_min`], or 0 without credits.
    base: u32,
}

impl<P: Provider> CreditWords<P> {
    /// Registers words for the peers' connections. A connection has its word from before it is made
    /// until its slot is free, so a worker never gets more queue pairs than it has slots.
    pub(super) fn new(
        nic: &P,
        shared: &SharedRecv<P>,
        config: &Config,
    ) -> Result<CreditWords<P>, SetupError> {
        let Config { peers, window: most, window_min, .. } = *config;
        let memory = nic.peer_memory(peers as usize * WORD)?;
        let region = nic.register(memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let free = ArrayQueue::new(peers as usize);
        for index in 0..peers {
            let _ = free.push(index);
        }
        let holders = (0..peers).map(|_| AtomicU64::new(0)).collect();
        let base = if most == 0 { 0 } else { window_min };
        Ok(CreditWords { region, free, holders, shared: shared.clone(), peers, most, base })
    }

    /// The number of words.
    pub(super) fn peers(&self) -> u32 {
        self.peers
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
pub struct PeerResources<P: Provider> {
    words: Arc<CreditWords<P>>,
    index: u32,
    window: u32,
    base: Base,
    /// The peer shares the surplus.
    is_borrower: bool,
}

impl<P: Provider> PeerResources<P> {
    pub(super) fn new(words: &Arc<CreditWords<P>>) -> Result<Self, SetupError> {
        let index = words.free.pop().ok_or_else(|| {
            let answer = format!("the worker has slots for {}, and all are taken", words.peers);
            SetupError::new(Code::NoMemory, "one more peer", answer).cure(
                "raise Config::peers; or let the worker turn, if some of its peers have ended",
            )
        })?;
        let base = words.shared.promises().take_base(words.base).map_err(|spare| {
            let _ = words.free.push(index);
            let asked = format!("receives for one more peer, {} at least", words.base);
            SetupError::new(Code::NoMemory, asked, words.shared.unpromised(spare))
                .cure("raise Config::recv_blocks or Config::overcommit, or lower Config::window")
        })?;
        // The last peer's queue pair is gone. A late word from it, or one from a peer that writes
        // where it should not, costs no more than the connection.
        words.at(index).store(0, Ordering::Relaxed);
        PeerWatch::begin(&words.holders, index);
        // A quarter of what nobody has: a first burst need not wait until the peer is known to use
        // its window. If others need it, it is asked back.
        let loan = (words.shared.promises().spare() / 4).min(words.most - words.base);
        let window = words.base + words.shared.promises().take_up_to(loan);
        let words = words.clone();
        Ok(PeerResources { words, index, window, base, is_borrower: false })
    }

    /// Why a grant was refused just now.
    pub(super) fn refusal(words: &CreditWords<P>) -> Refusal {
        let shared = &words.shared;
        match words.free.is_empty() {
            true => Refusal::no_slot(words.peers),
            false => Refusal::no_receives(shared.blocks(), shared.promises().spare()),
        }
    }

    /// The private data that the peer must get with the connect or the accept, with the program's
    /// own bytes.
    pub fn handshake(&self, data: &PeerData) -> PrivateData {
        let word = self.words.region.remote(self.index as usize * WORD);
        let block_bytes = self.words.shared.block_bytes();
        Handshake { window: self.window, word, block_bytes }.to_private_data(data)
    }

    /// Tells other threads which peer this becomes.
    pub fn watch(&self) -> PeerWatch {
        PeerWatch::now(&self.words.holders, self.index)
    }

    /// Receives that are promised to the peer now; 0 if this worker's peers have no credits.
    pub fn window(&self) -> u32 {
        self.window
    }

    /// True if the peer has said goodbye in the credit word.
    pub(super) fn has_goodbye(&self) -> bool {
        self.word() & GOODBYE != 0
    }

    /// True if the peer says there that it sends no more messages.
    pub(super) fn has_finished(&self) -> bool {
        self.word() & FINISHED != 0
    }

    /// The credit word, see [`super::credit`]; 0 before the peer's first write.
    pub(super) fn word(&self) -> u64 {
        // Acquire: nothing is read because of it, but sends come after it.
        self.words.at(self.index).load(Ordering::Acquire)
    }

    /// Prefetches the credit word.
    pub(super) fn fetch_ahead(&self) {
        fetch_line(core::ptr::from_ref(self.words.at(self.index)).cast());
    }

    fn promises(&self) -> &Promises {
        self.words.shared.promises()
    }

    /// The peer uses its window, or has fallen idle.
    pub(super) fn set_borrower(&mut self, uses: bool) {
        match (core::mem::replace(&mut self.is_borrower, uses), uses) {
            (false, true) => self.promises().join(),
            (true, false) => self.promises().leave(),
            _ => {}
        }
    }

    /// What the window should be: the base, and for a borrower a share of the surplus.
    pub(super) fn target(&self) -> u32 {
        let share = if self.is_borrower { self.promises().share() } else { 0 };
        self.words.base.saturating_add(share).min(self.words.most)
    }

    /// True if the window is longer than the base, and others need what this peer does not use.
    pub(super) fn is_wanted(&self) -> bool {
        self.window > self.words.base && self.promises().are_wanted(self.words.most)
    }

    /// How much shorter the window is than it should be.
    pub(super) fn missing(&self) -> u32 {
        self.target().saturating_sub(self.window)
    }

    /// Grows the window by `count`, or by what there is: by how much.
    pub(super) fn grow(&mut self, count: u32) -> u32 {
        let count = self.promises().take_up_to(count);
        self.window += count;
        count
    }

    /// Shrinks the window, down to the base at most: by how much.
    pub(super) fn shrink(&mut self, count: u32) -> u32 {
        let count = count.min(self.window - self.words.base);
        self.window -= count;
        self.promises().give_back(count);
        count
    }
}

impl<P: Provider> Drop for PeerResources<P> {
    fn drop(&mut self) {
        self.watch().end();
        self.set_borrower(false);
        self.shrink(u32::MAX);
        self.promises().put_base(self.window, self.base);
        let _ = self.words.free.push(self.index);
    }
}

/// Which peer of a worker a connection is, for threads other than the worker's. It holds no
/// connection open.
#[derive(Clone, Debug)]
pub struct PeerWatch {
    holders: Arc<[AtomicU64]>,
    index: u32,
    /// Counts the connections that had this word. In the upper half of the value.
    serial: u32,
}

impl PeerWatch {
    /// Set while the connection is a peer.
    const PRESENT: u64 = 1 << 63;
    const SERIAL_MAX: u32 = u32::MAX >> 1;

    /// The next connection with that word begins.
    fn begin(holders: &Arc<[AtomicU64]>, index: u32) -> PeerWatch {
        let last = PeerWatch::now(holders, index);
        let watch = PeerWatch { serial: (last.serial + 1) & Self::SERIAL_MAX, ..last };
        watch.end();
        watch
    }

    /// The connection that has that word now. A call for its owner.
    fn now(holders: &Arc<[AtomicU64]>, index: u32) -> PeerWatch {
        let watch = PeerWatch { holders: holders.clone(), index, serial: 0 };
        // Relaxed, here and below: one word that says everything, written by the grant's owner
        // alone. A grant passes from one owner to the next by a queue, which orders them.
        let value = watch.cell().map_or(0, |cell| cell.load(Ordering::Relaxed));
        PeerWatch { serial: (value >> 32) as u32 & Self::SERIAL_MAX, ..watch }
    }

    fn cell(&self) -> Option<&AtomicU64> {
        self.holders.get(self.index as usize)
    }

    fn set(&self, value: u64) {
        if let Some(cell) = self.cell() {
            cell.store(u64::from(self.serial) << 32 | value, Ordering::Relaxed);
        }
    }

    /// The connection is that peer from now on. A worker has at most 65 536 slots.
    pub(super) fn is_now(&self, peer: PeerId) {
        let slot = u64::from(peer.slot & 0xffff);
        self.set(Self::PRESENT | u64::from(peer.generation) << 16 | slot);
    }

    fn end(&self) {
        self.set(0);
    }

    /// The peer, from when the worker has admitted the connection until it has freed the slot.
    pub fn peer(&self) -> Option<PeerId> {
        let value = self.cell()?.load(Ordering::Relaxed);
        let ours = value >> 32 == (Self::PRESENT >> 32) | u64::from(self.serial);
        ours.then_some(PeerId { slot: value as u32 & 0xffff, generation: (value >> 16) as u16 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_shows_its_own_connection_only() {
        let holders: Arc<[AtomicU64]> = (0..2).map(|_| AtomicU64::new(0)).collect();
        let first = PeerWatch::begin(&holders, 1);
        assert_eq!(first.peer(), None);
        let peer = PeerId { slot: 65535, generation: 65535 };
        first.is_now(peer);
        assert_eq!((first.peer(), first.clone().peer()), (Some(peer), Some(peer)));
        first.end();
        assert_eq!(first.peer(), None);
        let second = PeerWatch::begin(&holders, 1);
        second.is_now(PeerId { slot: 0, generation: 0 });
        assert_eq!(first.peer(), None, "the next one has the same word");
        assert_eq!(second.peer(), Some(PeerId { slot: 0, generation: 0 }));
        holders[1].store(u64::from(PeerWatch::SERIAL_MAX) << 32, Ordering::Relaxed);
        let wrapped = PeerWatch::begin(&holders, 1);
        assert_eq!((wrapped.serial, wrapped.peer()), (0, None));
    }
}
