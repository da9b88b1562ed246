//! The worker without its handler.

use std_alloc::sync::Arc;
use std_alloc::vec;
use std_alloc::vec::Vec;

use super::accounts::{Accounts, SendStatus};
use super::config::{Config, POLL_BATCH};
use super::credit_return::CreditReturns;
use super::datagrams::Datagrams;
use super::early::Early;
use super::kept::{Kept, KeptMessage};
use super::mailbox::{Mailbox, OwnMailbox};
use super::message::{Message, PeerId, Token};
use super::recv_blocks::Refill;
use super::regions::Regions;
use super::replies::Replies;
use super::send_error::SendError;
use super::sender::Sender;
use super::timers::Timers;
use super::undone::Undone;
use crate::provider::{Caps, Provider};
use crate::wc::Wc;

/// What a sleep counts on [`Core::clock`] if no completion has come since the sleep before: some
/// 1.5 ms of turns. Nobody tells the worker how long it slept; in `run_sleeping` it is 100 ms at
/// most.
pub(super) const SLEEP_TURNS: u64 = 1 << 17;

/// What a sleep counts if a completion has come since the sleep before, which was then short: some
/// 20 µs of turns.
const SHORT_SLEEP_TURNS: u64 = 1 << 11;

/// What an end in order does when everything that was accepted for the peer has gone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The peer is told that this side sends no more.
    Tell,
    /// It is told goodbye, and closed when all is acknowledged.
    Close,
    /// Both sides have finished: closed when each knows that the other has everything.
    CloseBoth,
}

/// A peer that ends in order.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    pub(super) peer: PeerId,
    pub(super) goal: Goal,
    /// The turn in which that began.
    pub(super) since: u64,
    /// Its goodbye was posted.
    pub(super) told: bool,
}

/// All of a worker except its handler. When it is dropped, it gives back the receives that it has:
/// see [`super::last_turns`].
pub(super) struct Core<P: Provider> {
    // Before the sender, which owns the memory that datagrams are received in.
    pub(super) datagrams: Datagrams<P>,
    pub(super) sender: Sender<P>,
    // After the queue pairs: when the control plane hears of the end, they are gone.
    pub(super) mailbox: OwnMailbox<P>,
    // After the sender, whose queue pairs read and write it.
    pub(super) regions: Regions<P>,
    pub(super) replies: Replies,
    pub(super) credit_returns: CreditReturns,
    pub(super) kept: Kept,
    pub(super) early: Early,
    /// The queue pair whose peer comes up now, or next if the handler panicked at that.
    pub(super) early_due: Option<u32>,
    pub(super) timers: Timers,
    /// Peers that are draining.
    pub(super) closing: Vec<u32>,
    /// Ends in order that are under way: at most one with [`Goal::Tell`] for each peer, and one
    /// with another goal.
    pub(super) finishing: Vec<Finish>,
    /// The whole worker drains: it also waits for messages that the handler keeps.
    pub(super) draining: bool,
    /// The peers that were cut off, for the result of a drain.
    pub(super) undone: Undone,
    pub(super) turn: u64,
    /// What the sleeps so far count on [`Core::clock`].
    pub(super) slept: u64,
    /// The completions that had come before the last sleep.
    completions_at_sleep: u64,
    /// Bytes of the longest one-sided request.
    pub(super) message_max: u32,
    pub(super) config: Config,
    /// Room for the completions of one poll: `POLL_BATCH`, and more if a handler's panic left
    /// completions here.
    pub(super) wcs: Vec<Wc>,
    /// Completions at the front of `wcs` that are not dispatched yet, because a handler panicked.
    pub(super) left: usize,
    // Last: the queue pairs report to its completion queue.
    pub(super) poller: P::Poller,
}

impl<P: Provider> Core<P> {
    pub(super) fn new(
        mailbox: Arc<Mailbox<P>>,
        poller: P::Poller,
        accounts: Accounts<P>,
        datagrams: Datagrams<P>,
        caps: &Caps,
        config: &Config,
    ) -> Core<P> {
        let blocks = accounts.recv.shared.blocks();
        Core {
            datagrams,
            sender: Sender::new(accounts, config, config.inline_on::<P>(caps)),
            mailbox: OwnMailbox(mailbox),
            regions: Regions::new(),
            replies: Replies::new(blocks),
            credit_returns: CreditReturns::new(),
            kept: Kept::new(config.keeps),
            early: Early::new(blocks),
            early_due: None,
            timers: Timers::new(config.timers),
            closing: Vec::with_capacity(config.peers as usize),
            finishing: Vec::with_capacity(2 * config.peers as usize),
            draining: false,
            undone: Undone::default(),
            turn: 0,
            slept: 0,
            completions_at_sleep: 0,
            message_max: caps.message_max,
            config: *config,
            wcs: vec![Wc::default(); POLL_BATCH],
            left: 0,
            poller,
        }
    }

    /// The worker's measure of time: its turns, and what its sleeps count.
    pub(super) fn clock(&self) -> u64 {
        self.turn + self.slept
    }

    /// Counts a sleep that begins.
    pub(super) fn count_sleep(&mut self) {
        let now = self.sender.accounts.stats.completions;
        let before = core::mem::replace(&mut self.completions_at_sleep, now);
        self.slept += if now == before { SLEEP_TURNS } else { SHORT_SLEEP_TURNS };
    }

    /// True if nothing waits: no doorbell, no message for room, no peer for credit, no ended
    /// request for the handler, no peer for its end.
    #[inline(always)]
    pub(super) fn is_settled(&self) -> bool {
        self.has_nothing_left::<true>()
    }

    /// The same, except that replies may wait for room.
    #[cold]
    pub(super) fn is_settled_but_for_replies(&self) -> bool {
        self.has_nothing_left::<false>()
    }

    /// Both. One condition after the other in this order: in another one they cost each turn two
    /// instructions.
    #[inline(always)]
    fn has_nothing_left<const REPLIES: bool>(&self) -> bool {
        let accounts = &self.sender.accounts;
        let sent = !self.sender.has_unsent() && (!REPLIES || self.replies.is_empty());
        let told = accounts.credit_due.is_empty() && !accounts.requests.has_ended();
        sent && told && self.closing.is_empty() && self.finishing.is_empty()
    }

    /// True if something waits for credit: a reply, or a program that has been told since the last
    /// review that there is not the room that there was in the beginning.
    #[cold]
    pub(super) fn waits_for_credit(&mut self) -> bool {
        let peers = &mut self.sender.peers;
        let mut slots = 0..peers.slots();
        !self.replies.is_empty()
            || slots.any(|slot| {
                peers.at(slot).is_some_and(|peer| peer.is_up() && peer.credit.lacks_room())
            })
    }

    /// A completion for a send: that send and all before it on its queue pair are over.
    #[inline(always)]
    pub(super) fn retire(&mut self, slot: u32, generation: u16, low: u32, status: SendStatus) {
        if !self.sender.retire(slot, generation, low, status) {
            self.datagrams.retire(generation, low, &mut self.sender.accounts);
        }
    }

    /// Gives free receive blocks back to the shared queue, if it is time.
    #[inline(always)]
    pub(super) fn refill(&mut self, when: Refill) {
        let accounts = &mut self.sender.accounts;
        accounts.recv.refill(when, &mut accounts.stats);
    }

    /// A token for the message that the handler is looking at.
    pub(super) fn ask_keep(&mut self, message: &Message<'_>) -> Option<Token> {
        let block = self.sender.accounts.recv.block_of(message)?;
        let Message { peer, length, imm, written, .. } = *message;
        let keeping = KeptMessage { peer, block, length: length as u32, imm, written };
        self.kept.ask(keeping, self.sender.accounts.stats.refilled)
    }

    /// Keeps the block, by the handler's verdict.
    #[cold]
    pub(super) fn keep(&mut self, slot: u32, block: u32, token: Token) {
        if !self.kept.keep(block, token, self.sender.accounts.stats.refilled) {
            self.sender.done_with(slot, block);
        } else if let Some(peer) = self.sender.peers.at(slot) {
            peer.kept += 1;
        }
    }

    /// Takes a kept message out: the token is used up.
    fn take_kept(&mut self, token: Token) -> Option<KeptMessage> {
        let kept = self.kept.take(token)?;
        if let Some(peer) = self.sender.peers.get(kept.peer) {
            peer.kept -= 1;
        }
        Some(kept)
    }

    /// Lends a kept message out again.
    pub(super) fn kept_message(&mut self, token: Token) -> Option<Message<'_>> {
        let kept = self.kept.get(token)?;
        Some(self.sender.accounts.recv.kept_message(kept))
    }

    /// Replies in a kept block.
    pub(super) fn reply_kept(&mut self, token: Token, length: usize) -> Result<(), SendError> {
        let peer = self.kept.get(token).ok_or(SendError::NotConnected)?.peer;
        let sent = length.min(self.config.block_bytes as usize) as u64;
        self.sender.peers.check_length(peer.slot, sent)?;
        if self.sender.peers.get(peer).is_some_and(|peer| peer.is_up() && peer.sends_ended) {
            return Err(SendError::FinishedSending);
        }
        let KeptMessage { peer, block, .. } =
            self.take_kept(token).ok_or(SendError::NotConnected)?;
        if self.sender.peers.get(peer).is_some_and(|peer| peer.is_up()) {
            self.replies.reply(&mut self.sender, peer.slot, block, length);
            return Ok(());
        }
        self.sender.accounts.recv.free(block);
        Err(SendError::NotConnected)
    }

    /// Takes a kept block home.
    pub(super) fn give_back(&mut self, token: Token) -> bool {
        let kept = self.take_kept(token);
        if let Some(KeptMessage { peer, block, .. }) = kept {
            self.sender.done_with(peer.slot, block);
        }
        kept.is_some()
    }

    /// Takes home everything that is kept of a peer.
    #[cold]
    pub(super) fn drop_kept(&mut self, peer: PeerId) {
        let count = self.sender.peers.get(peer).map_or(0, |peer| core::mem::take(&mut peer.kept));
        for _ in 0..count {
            if let Some(kept) = self.kept.take_of(peer) {
                self.sender.accounts.recv.free(kept.block);
            }
        }
    }

    /// Takes home the early messages of a queue pair: its peer never came up.
    #[cold]
    pub(super) fn drop_early(&mut self, num: u32) {
        while let Some(wc) = self.early.take_of(num) {
            // The number of a receive is that of its block.
            self.sender.accounts.recv.reclaim(wc.wr_id as u32);
        }
    }
}
