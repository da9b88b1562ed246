//! From completions to the handler. Messages of one peer that follow each other are a *run*: what
//! is the same for all of them is looked up once.
//!
//! A handler that panics, where the caller of the turn catches that, is done with its message; what
//! came behind it is for the next turn.

use core::mem;

use std_alloc::vec::Vec;

use super::Worker;
use super::config::POLL_BATCH;
use super::core::{Core, SendStatus};
use super::datagram::{RECEIVES, SLOT};
use super::handler::{DownReason, Handler, PeerId, Verdict};
use super::outbox::Outbox;
use super::peers::PeerState;
use super::wr_id::{self, WrId};
use crate::provider::{Provider, Qp};
use crate::wc::{Status, Wc, WcFlags};

/// Completions that are being dispatched.
struct Round<'a, P: Provider, H: Handler<P>> {
    worker: &'a mut Worker<P, H>,
    wcs: Vec<Wc>,
    /// The next of them, and the one behind the last.
    next: usize,
    end: usize,
}

impl<P: Provider, H: Handler<P>> Drop for Round<'_, P, H> {
    #[inline(always)]
    fn drop(&mut self) {
        self.worker.wcs = mem::take(&mut self.wcs);
        if self.next < self.end {
            self.worker.leave(self.next, self.end);
        }
    }
}

/// A run that is being dispatched; counted when it is over.
struct Run<'a, P: Provider> {
    core: &'a mut Core<P>,
    slot: u32,
    /// Messages that the handler was given, and those of them that did not leave their blocks then.
    given: u32,
    others: u32,
    /// The next completion.
    next: &'a mut usize,
}

impl<P: Provider> Drop for Run<'_, P> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.next += self.given as usize;
        self.core.stats.received += u64::from(self.given);
        self.core.count_done(self.slot, self.given - self.others);
    }
}

/// Gives back what a handler has in its hands, if it does not come to do so itself.
struct Lent<'a, P: Provider, F: FnMut(&mut Core<P>)> {
    core: &'a mut Core<P>,
    back: F,
}

impl<P: Provider, F: FnMut(&mut Core<P>)> Drop for Lent<'_, P, F> {
    fn drop(&mut self) {
        (self.back)(self.core);
    }
}

/// Calls a handler, which has something in its hands; `back` takes it from one that panics.
#[inline(always)]
fn lend<P: Provider, T>(
    core: &mut Core<P>,
    back: impl FnMut(&mut Core<P>),
    call: impl FnOnce(&mut Outbox<'_, P>) -> T,
) -> T {
    let lent = Lent { core, back };
    let result = call(&mut Outbox { core: &mut *lent.core });
    mem::forget(lent);
    result
}

/// Dispatches plain messages of one peer, as many as follow each other from the first completion
/// on. By itself, so that all it looks at stays in registers.
///
/// What a handler may do in between changes nothing of what was looked up: peers come and go only
/// before and after a dispatch, and one that is closed is heard until it has gone.
#[inline(never)]
fn run<P: Provider, H: Handler<P>>(
    core: &mut Core<P>,
    handler: &mut H,
    wcs: &[Wc],
    next: &mut usize,
) {
    let Some(num) = wcs.first().map(|wc| wc.qp_num) else { return };
    let id = match core.peers.of(num) {
        Some((slot, peer)) if peer.state == PeerState::Up => peer.id(slot),
        _ => return,
    };
    let blocks = u64::from(core.shared.blocks());
    let mut run = Run { core, slot: id.slot, given: 0, others: 0, next };
    for wc in wcs {
        // The number of a send is larger than that of any block.
        if wc.qp_num != num || wc.wr_id >= blocks || !wc.is_plain_receive() {
            break;
        }
        run.given += 1;
        let block = wc.wr_id as u32;
        let message = run.core.plain_message(id, block, wc.byte_len);
        let give = |out: &mut Outbox<'_, P>| handler.on_message(message, out);
        match lend(run.core, |core| core.free(block), give) {
            Verdict::Done => run.core.free(block),
            verdict => {
                run.others += 1;
                end(run.core, id.slot, block, verdict);
            }
        }
    }
}

/// Does what a handler says of a message, apart from the way of those that it is done with.
#[inline(never)]
fn end<P: Provider>(core: &mut Core<P>, slot: u32, block: u32, verdict: Verdict) {
    match verdict {
        Verdict::Done => core.done_with(slot, block),
        Verdict::Reply { len } => core.reply(slot, block, len),
        Verdict::Keep => core.keep(slot, block),
    }
}

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// The turn after a poll for a list.
    #[inline(never)]
    pub(super) fn work(&mut self, taken: usize) -> usize {
        let wcs = mem::take(&mut self.wcs);
        let mut round = Round { worker: self, wcs, next: 0, end: taken };
        if round.worker.core.mailbox.has_mail() {
            round.end += mem::take(&mut round.worker.left);
            round.worker.admit();
        }
        let taken = round.end;
        // A device that rings for the price of a store rings for the first of several, too.
        round.worker.core.ring_at_once =
            taken == 1 || (P::Qp::POSTS_INLINE && (1..POLL_BATCH).contains(&taken));
        // Read in place: a copy of what was just written, by wider loads, would wait for it.
        while round.next < round.end {
            let Round { worker, wcs, next, end } = &mut round;
            let (before, rest) = (*next, wcs.get(*next..*end).unwrap_or_default());
            if rest.len() > 1 {
                run(&mut worker.core, &mut worker.handler, rest, next);
            }
            if *next == before {
                *next += 1;
                rest.first().into_iter().for_each(|wc| worker.dispatch(wc));
            }
        }
        drop(round);
        self.finish(taken);
        taken
    }

    /// A handler has panicked, and its caller may catch that: the completions from `next` on are
    /// for the next turn, which looks after mail first.
    #[cold]
    #[inline(never)]
    fn leave(&mut self, next: usize, end: usize) {
        self.core.stats.completions += next as u64;
        for at in next..end {
            let wc = self.wcs.get(at).copied();
            if let (Some(place), Some(wc)) = (self.wcs.get_mut(at - next), wc) {
                *place = wc;
            }
        }
        self.left = end - next;
        self.settled = false;
        self.core.mailbox.call();
    }

    /// What is rare is given numbers and not the completion, which need not be in memory then.
    #[inline(always)]
    pub(super) fn dispatch(&mut self, wc: &Wc) {
        if !wc.status.is_ok() {
            return self.failed(wc.wr_id, wc.qp_num, wc.status);
        }
        match wr_id::parse(wc.wr_id) {
            WrId::Recv { block } => self.receive(wc, block),
            WrId::Send { slot, generation, index } => {
                self.core.retire((slot, generation, index), SendStatus::WELL);
                // Not a message: nothing answers it.
                self.core.ring_at_once = false;
            }
        }
    }

    /// A message: to the handler, and on as it says.
    #[inline(always)]
    fn receive(&mut self, wc: &Wc, block: u32) {
        let id = match self.core.peers.of(wc.qp_num) {
            Some((slot, peer)) if peer.state == PeerState::Up => peer.id(slot),
            _ => match self.bring_up_by_message(wc.qp_num, block) {
                Some(id) => id,
                None => {
                    let Wc { qp_num, byte_len, imm, flags, src_qp, .. } = *wc;
                    return self.datagram_or_stray(block, (qp_num, src_qp), byte_len, (imm, flags));
                }
            },
        };
        if block >= self.core.shared.blocks() {
            self.core.stats.strays += 1;
            return;
        }
        self.core.stats.received += 1;
        let message = self.core.message(id, block, wc);
        let back = |core: &mut Core<P>| core.done_with(id.slot, block);
        match lend(&mut self.core, back, |out| self.handler.on_message(message, out)) {
            Verdict::Done => self.core.done_with(id.slot, block),
            Verdict::Reply { len } => self.core.reply(id.slot, block, len),
            Verdict::Keep => self.core.keep(id.slot, block),
        }
    }

    /// The peer with that queue pair, a message of which is in that block, if the handler knows it,
    /// which may be from now on. One that failed before it was up is never heard of.
    #[cold]
    #[inline(never)]
    fn bring_up_by_message(&mut self, num: u32, block: u32) -> Option<PeerId> {
        let (slot, peer) = self.core.peers.of(num)?;
        let id = peer.id(slot);
        match peer.state {
            PeerState::Up | PeerState::Closing { known: true, .. } => Some(id),
            PeerState::Admitted => {
                peer.state = PeerState::Up;
                let back = |core: &mut Core<P>| {
                    if core.take_back(block) {
                        core.count_done(slot, 1);
                    }
                };
                lend(&mut self.core, back, |out| self.handler.on_peer_up(id, out));
                Some(id)
            }
            PeerState::Closing { .. } | PeerState::Free => None,
        }
    }

    /// A datagram; or a message whose peer went while it was on its way.
    #[cold]
    #[inline(never)]
    fn datagram_or_stray(
        &mut self,
        block: u32,
        (qp_num, src_qp): (u32, u32),
        byte_len: u32,
        (imm, flags): (u32, WcFlags),
    ) {
        let wc = Wc { qp_num, src_qp, byte_len, imm, flags, ..Wc::default() };
        if let Some(number) = block.checked_sub(RECEIVES)
            && let Some(datagram) = self.core.datagram(&wc, number)
        {
            self.core.stats.datagrams_received += 1;
            let back = |core: &mut Core<P>| core.datagram_done(number);
            lend(&mut self.core, back, |out| self.handler.on_datagram(datagram, out));
            self.core.datagram_done(number);
            return;
        }
        self.core.stats.strays += 1;
        let _ = self.core.take_back(block);
    }

    /// An error completion: the block comes home, and the peer is drained.
    #[cold]
    #[inline(never)]
    fn failed(&mut self, wr_id: u64, num: u32, status: Status) {
        self.core.stats.errors += 1;
        if let Some(count) = self.core.stats.errors_by_status.get_mut(status as usize) {
            *count += 1;
        }
        match wr_id::parse(wr_id) {
            WrId::Recv { block } => {
                if !self.core.take_back(block) && self.core.is_datagrams(num) {
                    self.core.end_datagrams();
                }
                if let Some(slot) = self.core.peers.find(num) {
                    self.core.fail(slot, DownReason::Failed(status));
                }
            }
            WrId::Send { slot, generation, index } => {
                self.core.retire((slot, generation, index), SendStatus::with(status));
                if slot == SLOT {
                    self.core.recover_datagrams();
                }
                let known = self.core.peers.at(slot).is_some_and(|p| p.generation == generation);
                if known {
                    self.core.fail(slot, DownReason::Failed(status));
                }
            }
        }
    }
}
