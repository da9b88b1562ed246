//! The poll of a conversation: on the one link there is, nothing is to be done but to wait for the
//! next message, and it comes alone.
//!
//! What of the checks of a message does not depend on its bytes is done while waiting for it: which
//! queue pair it is likely to be for, and where its receive lies. When it comes, its header is
//! compared with what was expected, and its length with the room there is. All else is for the poll
//! for a list.
#![expect(unsafe_code, reason = "writes to posted receive buffers")]

use core::ptr;

use super::domain::Inside;
use super::layout::{BELL_MAX, BELL_PAYLOAD, Header, LINE, RecordFlags};
use super::link::Link;
use super::recvq::Stash;
use super::responder::{open_on, recv_wc};
use super::ring::claim_line;
use super::sync::{Ordering, fence};
use crate::provider::Polled;
use crate::wc::Wc;

/// Of polls in which nothing came in, the first and every such-and-such after it look at the peer's
/// own line where no completion is waited for.
const LOOK_IDLE: u32 = 64;

/// Steps of [`Link::patience`], each some cycle, at most: some 200 ns. What comes from a queue pair
/// that has no part in a conversation may have to wait so long.
const PATIENCE_MAX: u32 = 800;

/// Steps more after a first look that was too early.
const IMPATIENT: u32 = 3;

/// Steps that first looks which are too early one after the other, with as many as there may be,
/// are short of when waiting is given up: 64 of them.
const DESPAIR: u32 = PATIENCE_MAX + 64 * IMPATIENT;

/// For so many answers.
const RESIGNED: u32 = 1024;

/// A peer whose answers are waited for no longer than that is nearby.
const NEARBY: u32 = PATIENCE_MAX / 2;

/// The next message, as far as it is known before it comes. Nothing it says may have changed: every
/// way to serve the link but this one, and every command, begins with [`Inside::expect_nothing`].
pub(super) struct Expected {
    /// Its header, but for its length.
    like: Header,
    /// Where its bytes go.
    to: u64,
    /// How many fit there, and in the bell.
    room: u32,
    wr_id: u64,
    /// Where that receive is the first.
    stash: *mut Stash,
    /// [`super::memory::Memory::removals`] when the key of the receive was looked up; [`NOTHING`]
    /// if no message is expected. (No header can say that: a peer may write any.)
    removals: u64,
}

/// More regions than ever go.
const NOTHING: u64 = u64::MAX;

impl Expected {
    pub(super) const fn nothing() -> Expected {
        let (like, stash) = (Header(0), ptr::null_mut());
        Expected { like, to: 0, room: 0, wr_id: 0, stash, removals: NOTHING }
    }
}

impl Inside {
    /// One poll of a domain whose poller is its thread, for at most one completion.
    #[inline(always)]
    pub(super) fn poll_one(&mut self) -> Polled {
        let Some(mut link) = self.rounds.only() else { return Polled::More };
        // SAFETY: links go in commands, after which this is another; nobody else refers to it, as
        // in `serve`.
        let link = unsafe { link.as_mut() };
        if !self.todo.is_empty() || link.is_busy() {
            return Polled::More;
        }
        if link.converses {
            self.give_time(link);
        }
        if !link.rx.has_seen_written() {
            return Polled::More;
        }
        let word = link.rx.peek();
        if link.rx.has_seen(word) {
            return self.wait(link);
        }
        match self.receive_expected(link, word) {
            Some(wc) => Polled::One(wc),
            None => Polled::More,
        }
    }

    /// The expected message came, and the first poll since then begins. If it was answered the peer
    /// has the bell now, and will write to it: a look would take the lines away from it, which
    /// costs two transfers, and a message is one. So they are left alone for as long as answers
    /// lately took: longer after a first look that came too early, shorter after one that did not,
    /// until three of four find something. Meanwhile what the next message and its answer need is
    /// looked up. Where it takes too long for that, waiting is given up for a while.
    ///
    /// Time begins when the answer is visible. If it began before, an answer that took long to be
    /// so, because the peer had just looked at the line in vain, would be waited for too short a
    /// time, and be looked for in vain in turn.
    #[inline(never)]
    fn give_time(&mut self, link: &mut Link) {
        link.converses = false;
        // One that was not expected has been noted before; twice does no harm.
        link.note_followed();
        if self.rounds.has_resting() {
            self.look_at_resting();
        }
        if !link.rx.has_told() {
            return;
        }
        if link.resigned > 0 {
            link.resigned -= 1;
            return;
        }
        // The last receive may just have been taken. Not for a queue pair that is gone: nobody
        // would give those back that are fetched.
        if open_on(&self.qps, link.talker, link.index).is_some() {
            self.fetch_ahead(link.rq);
        }
        self.prepare(link);
        // A conversation goes through the whole ring, which is more than the nearest cache holds.
        link.tx.claim(BELL_MAX);
        // So do its receives, and an answer waits until what it answers is written there.
        for line in 0..=link.rx.behind {
            claim_line((self.expected.to as *const u8).wrapping_add(line * LINE));
        }
        link.quiet = 1;
        fence(Ordering::SeqCst);
        let steps = link.patience.min(PATIENCE_MAX);
        for _ in 0..steps {
            core::hint::black_box(());
        }
        link.patience = match link.rx.has_news() {
            true => steps.saturating_sub(1),
            false => link.patience + IMPATIENT,
        };
        link.rx.is_near = link.patience < NEARBY;
        if link.patience > DESPAIR {
            (link.patience, link.resigned) = (0, RESIGNED);
        }
    }

    /// Nothing has come: prepares for what will.
    #[inline(always)]
    fn wait(&mut self, link: &mut Link) -> Polled {
        link.quiet = link.quiet.wrapping_add(1);
        if link.quiet % LOOK_IDLE == 1 {
            self.prepare(link);
        }
        let came = self.rounds.has_resting() && self.look_at_resting().is_some();
        if self.todo.is_empty() && !came { Polled::Nothing } else { Polled::More }
    }

    /// The first poll in which nothing came, and one in [`LOOK_IDLE`].
    #[inline(never)]
    fn prepare(&mut self, link: &mut Link) {
        self.look_around(link);
        self.expect(link);
    }

    /// From here on nothing is known of the next message.
    #[inline(always)]
    pub(super) fn expect_nothing(&mut self) {
        self.expected.removals = NOTHING;
    }

    /// True if the next message is known as far as it can be.
    #[cfg(test)]
    pub(super) fn is_expecting(&self) -> bool {
        self.expected.removals != NOTHING
    }

    /// Looks up what a message for the queue pair of the last one will need.
    fn expect(&mut self, link: &Link) {
        let Some(rq) = self.rqs.get_mut(link.rq) else { return };
        let Some((wr, recent)) = rq.stash.ready_first() else { return };
        let memory = &self.nic.memory;
        recent.renew(memory);
        let open = open_on(&self.qps, link.talker, link.index).is_some();
        // Other buffers, of which only a part may be written, are for the way with all checks.
        if open && recent.writable(memory, wr.sge, wr.sge.length) {
            let (like, removals) = (Header::plain_for(link.talker), recent.removals());
            let (to, room, wr_id) = (wr.sge.addr, wr.sge.length.min(BELL_PAYLOAD), wr.wr_id);
            let stash = &raw mut rq.stash;
            self.expected = Expected { like, to, room, wr_id, stash, removals };
        }
    }

    /// Takes the message in the bell, whose first word that is, if it is the expected one, from a
    /// peer that had heard everything. `None`: nothing was done.
    #[inline(always)]
    fn receive_expected(&mut self, link: &mut Link, word: u64) -> Option<Wc> {
        // Each of its fields where it is used: there are more than registers.
        let expected = &mut self.expected;
        let lone = link.rx.lone_like(word, expected.like, link.tx.published())?;
        let length = lone.header.length();
        if length > expected.room || expected.removals != self.nic.memory.removals() {
            return None;
        }
        // SAFETY: the poster of the receive vouches for the buffer; key, bounds and right were
        // checked when it was looked up, for as many bytes as there is room, and no region has gone
        // since. There is no more room than the bell holds.
        if !unsafe { link.rx.take_lone(lone, expected.to as *mut u8) } {
            return None;
        }
        // SAFETY: receive queues come, go and move by commands, and since then there was none.
        unsafe { (*expected.stash).advance(1) };
        expected.removals = NOTHING;
        link.quiet = 0;
        link.converses = true;
        Some(recv_wc(expected.wr_id, expected.like.qp(), length, RecordFlags::empty(), 0))
    }
}
