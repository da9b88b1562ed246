//! Takes what the control plane and other threads have left for a worker.

use super::core::Core;
use super::handler::Handler;
use super::mailbox::{Mail, PeerData};
use super::message::DownReason;
use super::outbox::Outbox;
use super::peers::PeerState;
use crate::provider::{Provider, Qp};

/// Reads the mailbox.
#[cold]
#[inline(never)]
pub(super) fn admit<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H) {
    while let Some(mail) = core.mailbox.take() {
        match mail {
            Mail::Admit(qp, grant, data) => {
                let num = qp.num();
                match core.sender.peers.insert(num, qp, grant) {
                    Ok(slot) => set_handshake(core, slot, data),
                    Err(qp) => {
                        drop(qp);
                        if !core.mailbox.close(num) {
                            core.sender.accounts.stats.close_lost += 1;
                        }
                    }
                }
            }
            Mail::Datagrams(qp) => core.datagrams.open(qp, &core.sender.accounts),
            Mail::NoDatagrams(num) => core.datagrams.close(num, &mut core.sender.accounts),
            Mail::Up(num, data) => {
                if let Some(slot) = core.sender.peers.find(num) {
                    set_handshake(core, slot, data);
                    bring_up(core, handler, slot);
                }
            }
            Mail::Gone(num) => {
                if let Some(slot) = core.sender.peers.find(num) {
                    core.fail(slot, DownReason::Disconnected);
                }
            }
        }
    }
}

/// Sets the peer's handshake from the first bytes of its private data, if they have come.
fn set_handshake<P: Provider>(core: &mut Core<P>, slot: u32, data: PeerData) {
    if let (Some(peer), Some(data)) = (core.sender.peers.at(slot), data) {
        peer.credit.set_handshake(&data);
    }
}

/// Tells the handler of a new peer, unless the peer's first message came before the control plane's
/// notice and has done so.
#[cold]
#[inline(never)]
fn bring_up<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H, slot: u32) {
    let Some(peer) = core.sender.peers.at(slot) else { return };
    if peer.state == PeerState::Admitted {
        peer.state = PeerState::Up;
        let id = peer.id(slot);
        handler.on_peer_up(id, &mut Outbox { core });
    }
}

/// Runs the work that other threads have submitted, at most `Config::work` keys, so that a thread
/// that submits all the time does not keep the worker from its peers.
#[cold]
#[inline(never)]
pub(super) fn do_work<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H) {
    for _ in 0..core.config.work.max(1) {
        let Some(key) = core.mailbox.state.take() else { return };
        handler.on_work(key, &mut Outbox { core });
    }
}
