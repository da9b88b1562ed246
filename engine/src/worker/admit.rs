//! Takes what the control plane and other threads have left for a worker.

use super::core::Core;
use super::dispatch;
use super::handler::Handler;
use super::mailbox::Mail;
use super::message::DownReason;
use super::outbox::Outbox;
use super::peers::PeerState;
use super::probes;
use crate::provider::{Provider, Qp};

/// Reads the mailbox.
#[cold]
#[inline(never)]
pub(super) fn admit<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H) {
    if let Some(num) = core.early_due {
        come_up(core, handler, num);
    }
    while let Some(mail) = core.mailbox.take() {
        match mail {
            Mail::Admit(qp, grant, addr, greeting, closings) => {
                let num = qp.num();
                match core.sender.peers.insert(num, qp, grant, addr) {
                    Ok(slot) => {
                        core.sender.peers.set_closings(slot, closings);
                        match greeting {
                            Some(greeting) => core.sender.peers.set_greeting(slot, greeting),
                            // A connect has had no answer yet.
                            None => core.sender.peers.set_dialed(slot),
                        }
                    }
                    Err(qp) => {
                        drop(qp);
                        if !closings.put(num) {
                            core.sender.accounts.stats.close_lost += 1;
                        }
                    }
                }
            }
            Mail::Datagrams(qp) => core.datagrams.open(qp, &core.sender.accounts),
            Mail::NoDatagrams(num) => core.datagrams.close(num, &mut core.sender.accounts),
            Mail::Up(num, greeting) => {
                if let Some(slot) = core.sender.peers.find(num) {
                    core.sender.peers.set_greeting(slot, greeting);
                    come_up(core, handler, num);
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

/// Tells the handler of a new peer, and gives it the peer's early messages. If the handler panics,
/// the next turn goes on with that, before it reads more mail.
#[cold]
#[inline(never)]
fn come_up<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H, num: u32) {
    core.early_due = Some(num);
    core.mailbox.call();
    bring_up(core, handler, num);
    dispatch::early(core, handler, num);
    core.early_due = None;
}

/// Tells the handler of a new peer, unless the peer's first message came before the control plane's
/// notice and has done so.
#[cold]
#[inline(never)]
fn bring_up<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H, num: u32) {
    let Some((slot, peer)) = core.sender.peers.of(num) else { return };
    if peer.state == PeerState::Admitted {
        peer.state = PeerState::Up;
        let id = peer.id(slot);
        probes::peer_up(slot);
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
