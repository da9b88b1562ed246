//! The end of a peer, until its queue pair drains: at once, or after everything that was accepted.

use super::batch::request;
use super::core::{Core, Finish};
use super::credit::GOODBYE;
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
            self.finishing.put(Finish { peer: id, since: self.turn, told: false });
        }
    }

    /// Closes the peers for which nothing is left to do, or that took too long.
    #[cold]
    #[inline(never)]
    pub(super) fn progress_finishing(&mut self) {
        let mut kept = 0;
        let mut n = 0;
        while let Some(mut finish) = self.finishing.get(n).copied() {
            n += 1;
            let late = self.turn - finish.since > self.config.drain_turns;
            let owed = self.draining && self.kept.has_of(finish.peer);
            if late || !owed && self.sender.is_finished(&mut finish) {
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
        let ended = if peer.said_goodbye() { why.after_goodbye() } else { why };
        peer.state = PeerState::Closing { why: ended, known, since };
        self.sender.end(slot);
        self.closing.put(slot);
        if why != DownReason::Disconnected && !self.sender.peers.ask_for_end(slot) {
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

    /// True if nothing accepted for a peer is outstanding, and the peer has the goodbye. Otherwise
    /// says goodbye, or asks for a completion of the last send: by a WRITE behind that send.
    fn is_finished(&mut self, finish: &mut Finish) -> bool {
        let slot = finish.peer.slot;
        let Some(peer) = self.peers.get(finish.peer).filter(|peer| peer.is_up()) else {
            return true;
        };
        if peer.deferred > 0 || peer.sq.waiting > 0 {
            return false;
        }
        let word = peer.credit.peer_word;
        let told = finish.told || word.is_none();
        if peer.sq.outstanding() == 0 && told {
            return true;
        }
        if !told || !peer.sq.last_signals() {
            peer.sq.want_signal();
            let bytes = (peer.credit.word() | GOODBYE).to_ne_bytes();
            let (op, sge) = match word {
                Some(word) => (SendOp::Write(word), Sge::inline(&bytes)),
                // It is no worker. An empty WRITE names no memory.
                None => (SendOp::Write(Remote::default()), Sge::default()),
            };
            if self.post_one(slot, request(op, SendFlags::INLINE, sge), Held::NOTHING)
                && let Some(peer) = self.peers.at(slot)
            {
                peer.sq.count_non_message();
                peer.credit.say_goodbye();
                finish.told = true;
            }
        }
        false
    }
}
