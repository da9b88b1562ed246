//! From completions to the handler. Consecutive messages of one peer are a *run*, for which
//! everything they have in common is looked up once.
//!
//! If a handler panics and the caller of the turn catches that, its message counts as done.

use core::mem;

use super::accounts::SendStatus;
use super::core::Core;
use super::credit::{FINISHED_IMM, PeerCredit};
use super::datagrams::{RECEIVES, SLOT};
use super::handler::Handler;
use super::message::{DownReason, PeerId, Verdict};
use super::outbox::Outbox;
use super::peer_resources::PeerResources;
use super::peers::{Peer, PeerState};
use super::probes;
use super::wr_id::{self, WrId};
use crate::provider::Provider;
use crate::wc::{Status, Wc, WcFlags, WcOpcode};

/// A run that is being dispatched; it is counted when it is over.
struct Run<'a, P: Provider> {
    core: &'a mut Core<P>,
    slot: u32,
    /// Messages given to the handler, and the number of those that did not leave their blocks at
    /// once.
    given: u32,
    others: u32,
    /// The next completion.
    next: &'a mut usize,
}

impl<P: Provider> Drop for Run<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.next += self.given as usize;
        let sender = &mut self.core.sender;
        sender.accounts.stats.received += u64::from(self.given);
        sender.count_done(self.slot, self.given - self.others);
    }
}

/// Gives back what a handler was lent, unless it returns and does so itself.
struct Lent<'a, P: Provider, F: FnMut(&mut Core<P>)> {
    core: &'a mut Core<P>,
    back: F,
}

impl<P: Provider, F: FnMut(&mut Core<P>)> Drop for Lent<'_, P, F> {
    fn drop(&mut self) {
        (self.back)(self.core);
    }
}

/// Calls a handler that was lent something; `back` takes it back if the handler panics.
#[inline(always)]
pub(super) fn lend<P: Provider, T>(
    core: &mut Core<P>,
    back: impl FnMut(&mut Core<P>),
    call: impl FnOnce(&mut Outbox<'_, P>) -> T,
) -> T {
    let lent = Lent { core, back };
    let result = call(&mut Outbox { core: &mut *lent.core });
    mem::forget(lent);
    result
}

/// Dispatches consecutive plain messages of one peer, from the first completion on. It is a
/// function of its own so that everything it looks at stays in registers.
///
/// No handler call can change what was looked up: peers come and go only before and after a
/// dispatch, and a closed peer is served until it has gone.
#[inline(never)]
pub(super) fn run<P: Provider, H: Handler<P>>(
    core: &mut Core<P>,
    handler: &mut H,
    wcs: &[Wc],
    next: &mut usize,
) {
    let Some(num) = wcs.first().map(|wc| wc.qp_num) else { return };
    let id = match core.sender.peers.of(num) {
        Some((slot, peer)) if peer.state == PeerState::Up => peer.id(slot),
        _ => return,
    };
    let blocks = u64::from(core.sender.accounts.recv.shared.blocks());
    let mut run = Run { core, slot: id.slot, given: 0, others: 0, next };
    for wc in wcs {
        // The number of a send exceeds that of any block.
        if wc.qp_num != num || wc.wr_id >= blocks || !wc.is_plain_receive() {
            break;
        }
        run.given += 1;
        probes::message(id.slot, wc.byte_len);
        let block = wc.wr_id as u32;
        let message = run.core.sender.accounts.recv.plain_message(id, block, wc.byte_len);
        let give = |out: &mut Outbox<'_, P>| handler.on_message(message, out);
        match lend(run.core, |core| core.sender.accounts.recv.free(block), give) {
            Verdict::Done => run.core.sender.accounts.recv.free(block),
            verdict => {
                run.others += 1;
                end(run.core, id.slot, block, verdict);
            }
        }
    }
}

/// Carries out a verdict. It is a function of its own so that a run of `Done` stays short.
#[inline(never)]
fn end<P: Provider>(core: &mut Core<P>, slot: u32, block: u32, verdict: Verdict) {
    match verdict {
        Verdict::Done => core.sender.done_with(slot, block),
        Verdict::Reply { len } => core.replies.reply(&mut core.sender, slot, block, len),
        Verdict::Keep(token) => core.keep(slot, block, token),
    }
}

/// Dispatches one completion. The compiler splits it into its words, so it need not be in memory.
#[inline(always)]
pub(super) fn dispatch<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H, wc: &Wc) {
    if !wc.status.is_ok() {
        return failed(core, wc.wr_id, wc.qp_num, wc.status);
    }
    match wr_id::parse(wc.wr_id) {
        WrId::Recv { block } => receive(core, handler, wc, block),
        WrId::Send { slot, generation, index } => {
            core.retire(slot, generation, index, SendStatus::WELL);
            core.sender.doorbells.polled_no_message();
        }
    }
}

/// Calls the handler with a message, and carries out its verdict.
#[inline(always)]
fn receive<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H, wc: &Wc, block: u32) {
    let id = match core.sender.peers.of(wc.qp_num) {
        Some((slot, peer)) if peer.state == PeerState::Up => peer.id(slot),
        _ => match bring_up_by_message(core, handler, wc.qp_num, block) {
            Some(id) => id,
            None => {
                let Wc { qp_num, byte_len, imm, opcode, flags, src_qp, .. } = *wc;
                let other = Other { block, qp_num, src_qp, byte_len, imm, opcode, flags };
                return early_or_datagram(core, handler, other);
            }
        },
    };
    let recv = &core.sender.accounts.recv;
    if block >= recv.shared.blocks() {
        core.sender.accounts.stats.strays += 1;
        return;
    }
    if wc.flags.contains(WcFlags::WITH_IMM) && wc.imm == FINISHED_IMM && is_last_word(core, id, wc)
    {
        return finished_sending(core, handler, id, block);
    }
    let message = core.sender.accounts.recv.message(id, block, wc);
    core.sender.accounts.stats.received += 1;
    probes::message(id.slot, wc.byte_len);
    let back = |core: &mut Core<P>| core.sender.done_with(id.slot, block);
    match lend(core, back, |out| handler.on_message(message, out)) {
        Verdict::Done => core.sender.done_with(id.slot, block),
        Verdict::Reply { len } => core.replies.reply(&mut core.sender, id.slot, block, len),
        Verdict::Keep(token) => core.keep(id.slot, block, token),
    }
}

/// True if a message with that immediate data is the word of its peer that it sends no more, and
/// not the program's: then the credit word says the same.
#[cold]
#[inline(never)]
fn is_last_word<P: Provider>(core: &mut Core<P>, id: PeerId, wc: &Wc) -> bool {
    wc.opcode == WcOpcode::RecvWriteWithImm
        && wc.byte_len == size_of::<u64>() as u32
        && core.sender.peers.at(id.slot).is_some_and(|peer| {
            !peer.has_finished && peer.grant.as_ref().is_some_and(PeerResources::has_finished)
        })
}

/// Tells the handler that a peer sends no more.
#[cold]
#[inline(never)]
fn finished_sending<P: Provider, H: Handler<P>>(
    core: &mut Core<P>,
    handler: &mut H,
    id: PeerId,
    block: u32,
) {
    if core.sender.accounts.recv.reclaim(block) {
        core.sender.count_done(id.slot, 1);
    }
    if let Some(peer) = core.sender.peers.at(id.slot) {
        peer.has_finished = true;
    }
    core.finish_both(id);
    handler.on_finished_sending(id, &mut Outbox { core });
}

/// The peer with that queue pair, whose message is in that block, if the handler knows the peer or
/// learns of it by this message. The handler never hears of a peer that failed before it was up,
/// and not yet of one whose handshake has not come.
#[cold]
#[inline(never)]
fn bring_up_by_message<P: Provider, H: Handler<P>>(
    core: &mut Core<P>,
    handler: &mut H,
    num: u32,
    block: u32,
) -> Option<PeerId> {
    let (slot, peer) = core.sender.peers.of(num)?;
    let id = peer.id(slot);
    match peer.state {
        PeerState::Up | PeerState::Closing { known: true, .. } => Some(id),
        PeerState::Admitted if peer.credit.flow != PeerCredit::Unknown => {
            peer.state = PeerState::Up;
            let back = |core: &mut Core<P>| {
                if core.sender.accounts.recv.reclaim(block) {
                    core.sender.count_done(slot, 1);
                }
            };
            probes::peer_up(slot);
            lend(core, back, |out| handler.on_peer_up(id, out));
            Some(id)
        }
        PeerState::Admitted | PeerState::Closing { .. } | PeerState::Free => None,
    }
}

/// The messages that waited for a peer's handshake, in order.
#[cold]
#[inline(never)]
pub(super) fn early<P: Provider, H: Handler<P>>(core: &mut Core<P>, handler: &mut H, num: u32) {
    while let Some(wc) = core.early.take_of(num) {
        receive(core, handler, &wc, wc.wr_id as u32);
    }
}

/// The words of a completion that belongs to no peer that is up.
struct Other {
    block: u32,
    qp_num: u32,
    src_qp: u32,
    byte_len: u32,
    imm: u32,
    opcode: WcOpcode,
    flags: WcFlags,
}

/// A message that came before its peer's handshake; a datagram; or a message whose peer went while
/// it was on its way.
#[cold]
#[inline(never)]
fn early_or_datagram<P: Provider, H: Handler<P>>(
    core: &mut Core<P>,
    handler: &mut H,
    other: Other,
) {
    let Other { block, qp_num, src_qp, byte_len, imm, opcode, flags } = other;
    let wr_id = block.into();
    let wc = Wc { wr_id, qp_num, src_qp, byte_len, imm, opcode, flags, ..Wc::default() };
    let is_ours = block < core.sender.accounts.recv.shared.blocks();
    let admitted = |peer: &Peer<P>| peer.state == PeerState::Admitted;
    if is_ours
        && core.sender.peers.of(qp_num).is_some_and(|(_, peer)| admitted(peer))
        && core.early.put(wc)
    {
        return;
    }
    let accounts = &mut core.sender.accounts;
    if let Some(number) = block.checked_sub(RECEIVES)
        && let Some(datagram) = core.datagrams.datagram(&wc, number, accounts)
    {
        accounts.stats.datagrams_received += 1;
        let back = |core: &mut Core<P>| core.datagrams.done(number, &core.sender.accounts);
        lend(core, back, |out| handler.on_datagram(datagram, out));
        back(core);
        return;
    }
    accounts.stats.strays += 1;
    let _ = accounts.recv.reclaim(block);
}

/// Handles an error completion: the block comes home, and the peer drains.
#[cold]
#[inline(never)]
fn failed<P: Provider>(core: &mut Core<P>, wr_id: u64, num: u32, status: Status) {
    let Core { sender, datagrams, .. } = core;
    sender.accounts.stats.errors += 1;
    if let Some(count) = sender.accounts.stats.errors_by_status.get_mut(status as usize) {
        *count += 1;
    }
    match wr_id::parse(wr_id) {
        WrId::Recv { block } => {
            if !sender.accounts.recv.reclaim(block) && datagrams.is_of(num) {
                datagrams.end(&mut sender.accounts);
            }
            if let Some(slot) = sender.peers.find(num) {
                core.fail(slot, DownReason::Failed(status));
            }
        }
        WrId::Send { slot, generation, index } => {
            core.retire(slot, generation, index, SendStatus::with(status));
            if slot == SLOT {
                core.datagrams.recover();
            }
            let mut peer = core.sender.peers.at(slot);
            if peer.as_mut().is_some_and(|peer| peer.generation == generation) {
                core.fail(slot, DownReason::Failed(status));
            }
        }
    }
}
