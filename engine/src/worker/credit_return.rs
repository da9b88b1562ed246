//! Credit for the peers: the worker writes into a word of each peer's memory how much it may send.

use super::batch::request;
use super::credit::PeerCredit;
use super::held::Held;
use super::peers::PeerState;
use super::recv_blocks::Refill;
use super::sender::Sender;
use crate::provider::Provider;
use crate::room::Room;
use crate::wr::{SendFlags, SendOp, Sge};

impl<P: Provider> Sender<P> {
    /// Nothing has come for a while: makes credit due for every peer that lacks some, even less
    /// than half a window. Otherwise a peer that waits for more would wait for ever.
    #[cold]
    #[inline(never)]
    pub(super) fn settle_credits(&mut self) {
        for slot in 0..self.peers.slots() {
            let Some(peer) = self.peers.at(slot) else { continue };
            if peer.is_up() && peer.credit_falls_due() {
                self.accounts.credit_due.put(slot);
            }
        }
    }

    /// Writes the credit that is due to the peers.
    #[cold]
    #[inline(never)]
    pub(super) fn return_credits(&mut self) {
        // The receives must be posted before they are granted: all but those set aside for the
        // refill.
        self.accounts.recv.refill(Refill::Batch, &mut self.accounts.stats);
        if self.accounts.recv.is_refill_due() {
            return;
        }
        let mut kept = 0;
        let mut n = 0;
        while let Some(slot) = self.accounts.credit_due.get(n).copied() {
            n += 1;
            if !self.return_credit(slot)
                && let Some(place) = self.accounts.credit_due.get_mut(kept)
            {
                *place = slot;
                kept += 1;
            }
        }
        self.accounts.credit_due.truncate(kept);
    }

    /// Writes one peer's word. False: not now, because its send queue has no slot.
    fn return_credit(&mut self, slot: u32) -> bool {
        let Some(peer) = self.peers.at(slot) else { return true };
        if matches!(peer.state, PeerState::Free | PeerState::Closing { .. }) {
            peer.credit.due = false;
            return true;
        }
        let Some(word) = peer.credit.peer_word else {
            // Its handshake has not come, or it is no worker.
            peer.credit.due = peer.credit.flow == PeerCredit::Unknown;
            return !peer.credit.due;
        };
        if peer.sq.is_full_for_credit() {
            return false;
        }
        let bytes = peer.credit.granted.to_ne_bytes();
        // The word concerns no message, so it need not wait for those before it.
        let flags = SendFlags::INLINE | SendFlags::UNORDERED;
        let write = |sge| request(SendOp::Write(word), flags, sge);
        if peer.sq.waiting > 0 {
            // The word goes with them, with one doorbell.
            let Some(batch) = self.batches.get(peer.batch) else { return false };
            if batch.list.is_full() {
                return false;
            }
            let Some(sge) = batch.stage(&bytes) else { return false };
            batch.add(peer, write(sge), Held::NOTHING);
        } else if !self.post_one(slot, write(Sge::inline(&bytes)), Held::NOTHING) {
            return false;
        }
        let Some(peer) = self.peers.at(slot) else { return true };
        peer.sq.count_non_message();
        peer.credit.due = false;
        self.accounts.stats.credit_returns += 1;
        true
    }
}
