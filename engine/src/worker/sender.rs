//! A worker's sending side: its peers, their batches, and what they share. A message leaves inline
//! ([`super::inline`]), or in a list of requests ([`super::post`]).

use std_alloc::vec::Vec;

use super::accounts::{Accounts, SendStatus};
use super::batch::Batches;
use super::config::Config;
use super::doorbell_policy::DoorbellPolicy;
use super::message::PeerId;
use super::peers::Peers;
use crate::provider::{Provider, Qp};

/// A worker's sending side.
pub(super) struct Sender<P: Provider> {
    // Peers first: their queue pairs are gone before the memory they read.
    pub(super) peers: Peers<P>,
    pub(super) batches: Batches,
    /// Peers with messages that wait for a doorbell, or with a reservation.
    pub(super) pending: Vec<u32>,
    pub(super) accounts: Accounts<P>,
    pub(super) doorbells: DoorbellPolicy,
    /// The longest payload that goes inline to every peer.
    pub(super) inline_max: u32,
    /// The longest that goes inline to a peer whose blocks hold it: see [`Config::inline_on`].
    copied_max: u32,
}

impl<P: Provider> Sender<P> {
    pub(super) fn new(accounts: Accounts<P>, config: &Config, copied_max: u32) -> Sender<P> {
        Sender {
            peers: Peers::new(config),
            batches: Batches::new(config),
            pending: Vec::with_capacity(config.peers as usize),
            accounts,
            doorbells: DoorbellPolicy::new(config),
            // No message is longer than a block.
            inline_max: config.inline_bytes.min(config.block_bytes),
            copied_max: copied_max.min(config.block_bytes),
        }
    }

    /// True if a payload of that length goes inline to the peer in a slot.
    #[inline(always)]
    pub(super) fn goes_inline(&self, slot: u32, length: usize) -> bool {
        length <= self.inline_max as usize || self.is_copied(slot, length)
    }

    /// As [`Sender::goes_inline`], for a payload longer than `inline_max`. The handshake has not
    /// compared that length with the peer's blocks.
    #[cold]
    #[inline(never)]
    fn is_copied(&self, slot: u32, length: usize) -> bool {
        P::Qp::POSTS_INLINE
            && length <= self.copied_max as usize
            && self.peers.check_length(slot, length as u64).is_ok()
    }

    /// The messages at the front of a list that go inline to any peer. The device looks at their
    /// lengths too, but does not know the peers' blocks.
    #[inline(always)]
    pub(super) fn inline_front<'a>(&self, list: &'a [&'a [u8]]) -> &'a [&'a [u8]] {
        match self.copied_max <= self.peers.shortest_blocks {
            true => list,
            false => self.shorter_front(list),
        }
    }

    #[cold]
    #[inline(never)]
    fn shorter_front<'a>(&self, list: &'a [&'a [u8]]) -> &'a [&'a [u8]] {
        let longer = |bytes: &&[u8]| bytes.len() > self.inline_max as usize;
        let front = list.iter().position(longer).unwrap_or(list.len());
        list.get(..front).unwrap_or_default()
    }

    /// True if something waits for a doorbell.
    #[inline(always)]
    pub(super) fn has_unsent(&self) -> bool {
        !self.pending.is_empty() || !self.batches.are_idle()
    }

    /// A completion for a send of the peer in a slot: that send and all before it are over. False:
    /// there is no such slot.
    #[inline(always)]
    pub(super) fn retire(
        &mut self,
        slot: u32,
        generation: u16,
        low: u32,
        status: SendStatus,
    ) -> bool {
        let Some(peer) = self.peers.at(slot) else { return false };
        if peer.generation == generation
            && let Some(index) = peer.sq.in_flight(low)
        {
            self.accounts.retire(slot, peer, index, status);
            peer.renew_budget();
        }
        true
    }

    /// The handler is done with a message of that peer.
    #[inline(always)]
    pub(super) fn done_with(&mut self, slot: u32, block: u32) {
        self.accounts.recv.free(block);
        self.count_done(slot, 1);
    }

    /// Counts `count` messages of a peer whose blocks are free again.
    #[inline(always)]
    pub(super) fn count_done(&mut self, slot: u32, count: u32) {
        if let Some(peer) = self.peers.at(slot) {
            self.accounts.count_done(slot, peer, count);
        }
    }

    /// The number of messages for which a peer has slots and credit.
    pub(super) fn room(&mut self, id: PeerId) -> u32 {
        match self.peers.get(id) {
            Some(peer) if peer.deferred == 0 && peer.accepts().is_ok() => {
                let (slots, credits) = peer.measure();
                peer.credit.note_room(credits);
                let credits = credits.saturating_sub(peer.credit.spare());
                // A caller that gets 0 waits for credit.
                self.accounts.stats.credit_stalls += u64::from(credits == 0);
                slots.min(credits)
            }
            _ => 0,
        }
    }
}
