//! Reports to the handler: ended requests, and peers that have drained. And the end of a whole
//! worker in order.

use super::core::Core;
use super::dispatch;
use super::handler::Handler;
use super::message::{DownReason, PeerId};
use super::outbox::Outbox;
use super::peers::PeerState;
use super::probes;
use super::requests::Ended;
use crate::provider::Provider;
use crate::room::RemoveAt;

/// Turns in which closed peers get their last completions.
pub(super) const CLOSE_TURNS: u32 = 1 << 12;

/// Tells the handler of requests that are over.
#[inline(never)]
pub(super) fn report_requests<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H) {
    while let Some(Ended { peer, token, result }) = core.sender.accounts.requests.next_ended() {
        probes::request_done(peer.slot, token, result.is_err());
        handler.on_send_done(peer, token, result, &mut Outbox { core });
    }
}

/// Reports the peers that have drained or took too long, and frees their slots.
#[cold]
#[inline(never)]
pub(super) fn report_drained<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H) {
    let mut at = 0;
    while let Some(slot) = core.closing.get(at).copied() {
        let Some(peer) = core.sender.peers.at(slot) else { return };
        let PeerState::Closing { known, since, marked } = peer.state else {
            core.closing.swap_remove_at(at);
            continue;
        };
        let drained = peer.sq.retired == peer.sq.posted();
        if !drained && !marked {
            core.sender.accounts.mark_end(peer);
        }
        if !drained && core.turn - since < core.config.drain_turns {
            at += 1;
            continue;
        }
        let id = peer.id(slot);
        // The queue pair goes first, so that no device reads the blocks that come home.
        drop(peer.qp.take());
        core.sender.accounts.retire_all(slot, peer);
        // It stays in the list meanwhile: if the handler panics, the next turn reports the rest.
        report_requests(core, handler);
        core.closing.swap_remove_at(at);
        if known {
            probes::peer_down(slot);
            let why = core.sender.peers.conduct(slot).and_then(|(_, conduct)| conduct.why);
            let why = why.unwrap_or(DownReason::Closed);
            let back = |core: &mut Core<P>| core.free_slot(id);
            dispatch::lend(core, back, |out| handler.on_peer_down(id, why, out));
        }
        core.free_slot(id);
    }
}

impl<P: Provider> Core<P> {
    /// Takes home everything of a peer that has ended, and frees its slot.
    fn free_slot(&mut self, id: PeerId) {
        self.drop_kept(id);
        self.replies.drop_of(&mut self.sender, id);
        self.sender.accounts.credit_due.retain(|due| *due != id.slot);
        self.sender.accounts.broken.remove(id.slot);
        self.sender.peers.remove(id.slot);
    }

    /// Says goodbye to every peer that is up. Those that are not up yet get theirs by a later call.
    #[cold]
    pub(super) fn finish_all(&mut self) {
        self.draining = true;
        for slot in 0..self.config.peers {
            if let Some(peer) = self.sender.peers.up_at(slot) {
                self.finish(peer);
            }
        }
    }

    /// Closes every peer now.
    #[cold]
    pub(super) fn close_all(&mut self) {
        for slot in 0..self.config.peers {
            let peer: PeerId = self.sender.peers.id(slot);
            self.close(peer);
        }
    }
}
