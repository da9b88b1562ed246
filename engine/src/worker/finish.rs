//! A graceful end: what was accepted goes first.

use super::core::Core;
use super::handler::PeerId;
use super::peers::{NO_BLOCK, PeerState};
use crate::provider::Provider;
use crate::room::Room;
use crate::wr::{Remote, SendFlags, SendOp, SendWr, Sge};

/// A peer that is to be closed when all that was accepted for it is acknowledged.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    peer: PeerId,
    /// Turn in which it began.
    since: u64,
}

impl<P: Provider> Core<P> {
    /// Takes nothing new for a peer, and closes it when the rest is acknowledged.
    #[cold]
    pub(super) fn finish(&mut self, id: PeerId) {
        self.end_reservation(id.slot);
        let Some(peer) = self.peers.get(id) else { return };
        if peer.state == PeerState::Up && !peer.finishing {
            peer.finishing = true;
            peer.measure(self.config.send_queue);
            peer.close_budget();
            self.finishing.put(Finish { peer: id, since: self.turn });
        }
    }

    /// Closes the peers for which nothing is left to do, or that took too long.
    #[cold]
    #[inline(never)]
    pub(super) fn progress_finishing(&mut self) {
        let mut kept = 0;
        for n in 0..self.finishing.len() {
            let Some(finish) = self.finishing.get(n).copied() else { break };
            let late = self.turn - finish.since > self.config.drain_turns;
            if late || self.is_finished(finish.peer) {
                self.close(finish.peer);
            } else if let Some(place) = self.finishing.get_mut(kept) {
                *place = finish;
                kept += 1;
            }
        }
        self.finishing.truncate(kept);
    }

    /// True if nothing accepted for a peer is outstanding; asks for word of the last of it.
    fn is_finished(&mut self, id: PeerId) -> bool {
        let signal_every = self.config.signal_every;
        let Some(peer) = self.peers.get(id).filter(|peer| peer.state == PeerState::Up) else {
            return true;
        };
        if peer.deferred > 0 || peer.waiting > 0 {
            return false;
        }
        if peer.pushed == peer.retired {
            return true;
        }
        if !peer.last_signals(signal_every) {
            // The last did not ask for a completion: a WRITE of nothing does, behind it.
            peer.want_signal();
            let (op, flags, sge) =
                (SendOp::Write(Remote::default()), SendFlags::INLINE, Sge::default());
            if self.post_one(id.slot, SendWr { wr_id: 0, op, flags, sge, more: &[] }, NO_BLOCK)
                && let Some(peer) = self.peers.at(id.slot)
            {
                peer.count_non_message();
            }
        }
        false
    }
}
