//! The end of a peer, until its queue pair drains: at once, or after everything that was accepted.

use super::batch::request;
use super::core::{Core, Finish};
use super::held::Held;
use super::message::{DownReason, PeerId};
use super::peers::PeerState;
use super::sender::Sender;
use crate::provider::Provider;
use crate::room::Room;
use crate::wr::{Remote, SendFlags, SendOp, Sge};

impl<P: Provider> Core<P> {
    /// Accepts nothing more for a peer, and closes it when the rest is acknowledged.
    #[cold]
    pub(super) fn finish(&mut self, id: PeerId) {
        self.sender.end_reservation(id.slot);
        let Some(peer) = self.sender.peers.get(id) else { return };
        if peer.is_up() && !peer.finishing {
            peer.finishing = true;
            peer.measure();
            peer.sq.close_budget();
            self.finishing.put(Finish { peer: id, since: self.turn });
        }
    }

    /// Closes the peers for which nothing is left to do, or that took too long.
    #[cold]
    #[inline(never)]
    pub(super) fn progress_finishing(&mut self) {
        let mut kept = 0;
        let mut n = 0;
        while let Some(finish) = self.finishing.get(n).copied() {
            n += 1;
            let late = self.turn - finish.since > self.config.drain_turns;
            if late || self.sender.is_finished(finish.peer) {
                self.close(finish.peer);
            } else if let Some(place) = self.finishing.get_mut(kept) {
                *place = finish;
                kept += 1;
            }
        }
        self.finishing.truncate(kept);
    }

    /// The handler closes a peer: asks the control plane to tell the other side.
    pub(super) fn close(&mut self, id: PeerId) {
        if self.sender.peers.get(id).is_some() {
            self.fail(id.slot, DownReason::Closed);
        }
    }

    /// Moves a peer to ERR and begins to drain it.
    #[cold]
    pub(super) fn fail(&mut self, slot: u32, why: DownReason) {
        let since = self.turn;
        let Some(peer) = self.sender.peers.at(slot) else { return };
        let known = match peer.state {
            PeerState::Admitted => false,
            PeerState::Up => true,
            PeerState::Free | PeerState::Closing { .. } => return,
        };
        peer.state = PeerState::Closing { why, known, since };
        let num = peer.num;
        self.sender.end(slot);
        self.closing.put(slot);
        if why != DownReason::Disconnected && !self.mailbox.close(num) {
            self.sender.accounts.stats.close_lost += 1;
        }
    }

    /// Every peer fails: the completion queue is broken.
    #[cold]
    pub(super) fn fail_all(&mut self, why: DownReason) {
        self.datagrams.end(&mut self.sender.accounts);
        for slot in 0..self.config.peers {
            self.fail(slot, why);
            self.sender.retire_all(slot);
        }
    }
}

impl<P: Provider> Sender<P> {
    /// Ends sending to a peer: drops what waits, and posts the marker.
    fn end(&mut self, slot: u32) {
        self.ring_doorbell(slot);
        if let Some(peer) = self.peers.at(slot) {
            peer.sq.close_budget();
        }
        self.pending.retain(|pending| *pending != slot);
        self.abandon_batch(slot);
        if let Some(peer) = self.peers.at(slot) {
            self.accounts.mark_end(peer);
        }
    }

    /// True if nothing accepted for a peer is outstanding. Otherwise asks for a completion of the
    /// last send.
    fn is_finished(&mut self, id: PeerId) -> bool {
        let Some(peer) = self.peers.get(id).filter(|peer| peer.is_up()) else {
            return true;
        };
        if peer.deferred > 0 || peer.sq.waiting > 0 {
            return false;
        }
        if peer.sq.outstanding() == 0 {
            return true;
        }
        if !peer.sq.last_signals() {
            // The last send did not ask for a completion, so an empty WRITE behind it does.
            peer.sq.want_signal();
            let write = SendOp::Write(Remote::default());
            let wr = request(write, SendFlags::INLINE, Sge::default());
            if self.post_one(id.slot, wr, Held::NOTHING)
                && let Some(peer) = self.peers.at(id.slot)
            {
                peer.sq.count_non_message();
            }
        }
        false
    }
}
