//! The worker: one core's loop, from completion to doorbell.
//!
//! [`Worker::turn`] is one bounded step: poll, admit, dispatch, flush, refill. Threads, pinning,
//! clocks and sleeping belong to the caller. In data order: [`SharedRecv`] holds the receive
//! memory, the control plane hands peers over through an [`Intake`], a [`Handler`] gets each
//! [`Message`], an [`Outbox`] takes the sends.

mod batch;
mod config;
mod core;
mod credit;
mod datagram;
mod dispatch;
mod finish;
mod handler;
mod inline;
mod kept;
mod mailbox;
#[cfg(test)]
#[cfg(loom)]
mod models;
mod outbox;
mod peers;
mod qp_domain;
mod reply;
mod request;
mod shared_recv;
mod shared_state;
mod stats;
#[cfg(test)]
mod tests;
mod timers;
mod wr_id;

use ::core::sync::atomic::{AtomicBool, Ordering};
use doorbell_alloc::{BlockPool, Mapping};
use std_alloc::format;
use std_alloc::sync::Arc;
use std_alloc::vec;
use std_alloc::vec::Vec;

pub use self::config::{Config, DIRTY_PEERS, INLINE_MAX, POLL_BATCH, Retry, SEND_BATCH};
pub use self::credit::{CreditGrant, HANDSHAKE_BYTES};
pub use self::datagram::{Datagram, DestinationId};
pub use self::handler::{DownReason, Handler, Message, PeerId, Verdict};
pub use self::kept::Token;
pub use self::mailbox::Intake;
#[cfg(test)]
#[cfg(loom)]
pub(crate) use self::models::MODELS;
pub use self::outbox::{ListError, Outbox, SendError};
pub use self::request::{PIECES_MAX, Piece, RegionId, Request};
pub use self::shared_recv::SharedRecv;
pub use self::shared_state::{Handle, Waker};
pub use self::stats::Stats;
pub use self::timers::TimerId;

use self::core::Core;
use self::credit::CreditWords;
use self::datagram::Datagrams;
use self::mailbox::{Mail, Mailbox};
use self::peers::PeerState;
use self::qp_domain::QpDomain;
use self::request::Ended;
use crate::error::{Code, SetupError};
use crate::provider::wake::{Bell, WakeFds};
use crate::provider::{Access, Caps, Polled, Poller, Provider, Qp, Sharing};
use crate::room::Take;
use crate::wc::{Status, Wc};

/// Every so many idle turns even a few released blocks go back to the shared queue.
const REFILL_IDLE_TURNS: u64 = 64;

/// Every so many turns other threads see new counters.
const PUBLISH_TURNS: u64 = 1 << 12;

/// Of turns that find nothing, one in so many looks at everything. All the other numbers of idle
/// turns are multiples of it.
const FULL_IDLE_TURNS: u64 = 16;

/// Of turns of a conversation that leave nothing to do, one in so many does everything.
const FULL_BUSY_TURNS: u64 = 16;

/// After so many idle turns in a row as well: not between the messages of a lively conversation.
const PUBLISH_IDLE_TURNS: u64 = 64;

/// Every so many busy turns the clock is read.
const CLOCK_TURNS: u64 = 16;

/// Idle turns after which peers are told of all they may send. Many: it looks at every peer.
const SETTLE_IDLE_TURNS: u64 = 16384;

/// Every so many idle turns the completion queue is asked whether it still works.
const HEALTH_IDLE_TURNS: u64 = 1 << 16;

/// One core's datapath. Not shared: it moves to its thread and stays there.
pub struct Worker<P: Provider, H: Handler<P>> {
    // The core first: its queue pairs are gone before the completion queue they report to.
    core: Core<P>,
    poller: P::Poller,
    /// Places for the completions of a poll, `POLL_BATCH` of them.
    wcs: Vec<Wc>,
    /// Those of them, the first ones, that a handler's panic has left to be dispatched.
    left: usize,
    /// Turns in a row that found nothing; and those of them that are not counted yet.
    idle: u64,
    uncounted: u64,
    /// Turns of a conversation that are not counted yet.
    alone: u64,
    /// Nothing is left to do: another turn that finds nothing may be a short one.
    settled: bool,
    /// The turn in which other threads see new counters.
    publish_at: u64,
    handler: H,
}

/// What every queue pair of this worker will ask for must be within the device's limits, so that it
/// is said here and not connection by connection.
fn check_caps(caps: &Caps, config: &Config) -> Result<(), SetupError> {
    let want = config.qp_caps();
    let over = if want.inline > caps.inline_max {
        ("inline_bytes", config.inline_bytes, caps.inline_max)
    } else if want.send_wr > caps.qp_wr_max {
        ("send_queue", config.send_queue, caps.qp_wr_max - 1)
    } else {
        return Ok(());
    };
    let (name, value, max) = over;
    let asked = format!("a worker with {name} = {value} on {}", caps.device);
    Err(SetupError::new(Code::Invalid, asked, format!("the device allows {max}")))
}

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// Makes a worker on a shared receive queue, with `memory` of at least
    /// [`Config::send_bytes`] for sends that are not inline, and the intake by which the control
    /// plane gives it peers. Everything it will ever need is allocated here.
    ///
    /// # Errors
    /// A configuration that does not hold, memory that is too short, or the device's refusal.
    pub fn new(
        nic: &P,
        shared: &SharedRecv<P>,
        memory: Mapping,
        handler: H,
        config: &Config,
    ) -> Result<(Self, Intake<P>), SetupError> {
        config.check()?;
        if shared.block_bytes() != config.block_bytes {
            return Err(SetupError::new(
                Code::Invalid,
                format!("a worker with blocks of {} bytes", config.block_bytes),
                format!("the shared receive queue has blocks of {} bytes", shared.block_bytes()),
            ));
        }
        shared_recv::check_length("send", memory.len(), config.send_bytes())?;
        check_caps(nic.caps(), config)?;
        let pool = BlockPool::new(config.send_blocks, config.stride())
            .map_err(|error| SetupError::new(Code::Invalid, "a pool", format!("{error}")))?;
        let region = nic.register(memory, Access::LOCAL_WRITE)?;
        let words = Arc::new(CreditWords::new(nic, config.peers)?);
        shared.set_aside(config.refill)?;
        let (cq, poller) =
            nic.create_cq(config.cq_depth(nic.caps().cqe_max), Sharing::Exclusive)?;
        let domain = QpDomain::new(nic, config)?;
        let mailbox = Arc::new(Mailbox::new(config.peers, config.work));
        let datagrams = Datagrams::new(nic, config);
        let memory = (region, pool);
        let mut core = Core::new(mailbox.clone(), shared.clone(), memory, datagrams, config);
        core.message_max = nic.caps().message_max;
        let caps = [config.qp_caps(), config.datagram_caps()];
        let intake = Intake {
            mailbox,
            cq,
            shared: shared.clone(),
            words,
            caps,
            retry: config.retry,
            domain,
        };
        let wcs = vec![Wc::default(); POLL_BATCH];
        let (idle, uncounted, alone, settled, publish_at) = (0, 0, 0, false, PUBLISH_TURNS);
        let worker = Worker {
            core,
            poller,
            wcs,
            left: 0,
            idle,
            uncounted,
            alone,
            settled,
            publish_at,
            handler,
        };
        Ok((worker, intake))
    }

    /// One bounded step; the number of completions it handled, or 1 where a handler's panic in the
    /// turn before had left some for it.
    ///
    /// Poll comes before admit: a peer is put in the mailbox before it may send, so after a poll
    /// every queue pair it named is known. Flush comes before refill: no reply waits for
    /// housekeeping. Only behind a full poll may bells wait, for [`Config::hold_turns`] turns: who
    /// stops turning calls [`Outbox::flush`], or turns until a turn finds nothing.
    #[inline(always)]
    pub fn turn(&mut self) -> usize {
        match self.poller.poll_one() {
            Polled::Nothing if self.is_short_idle_turn() => 0,
            Polled::Nothing => self.work(0),
            Polled::One(wc) => self.turn_one(&wc),
            Polled::More => self.turn_full(),
        }
    }

    /// A turn with a poll for a list.
    #[inline(never)]
    fn turn_full(&mut self) -> usize {
        if self.left > 0 {
            return self.work(0);
        }
        let taken = self.poller.poll_more(&mut self.wcs);
        if taken == 0 && self.is_short_idle_turn() {
            return 0;
        }
        self.work(taken)
    }

    /// The turn of a worker that has nothing to do but to wait: the shorter it is, the sooner the
    /// next message is seen. One in 16 is a whole one. False: this has to be one.
    #[inline(always)]
    fn is_short_idle_turn(&mut self) -> bool {
        let called = self.core.mailbox.has_mail() || self.core.mailbox.state.has_work();
        if !(self.settled || self.settles())
            || called
            || (self.idle + 1).is_multiple_of(FULL_IDLE_TURNS)
        {
            return false;
        }
        self.idle += 1;
        self.uncounted += 1;
        self.handler.on_idle(&mut Outbox { core: &mut self.core });
        if self.core.has_sends() {
            self.core.flush();
            self.settled = false;
        }
        true
    }

    /// True if nothing is left to do after all: what was sent between turns has had its bell.
    #[inline(never)]
    fn settles(&mut self) -> bool {
        self.core.count_singles();
        self.settled = self.core.is_settled() && !self.core.is_refill_due();
        self.settled
    }

    /// The turn of a conversation: one completion, and where it leaves nothing to do, no more than
    /// that. One in 16 is a whole one.
    #[inline(always)]
    fn turn_one(&mut self, wc: &Wc) -> usize {
        if self.core.mailbox.has_mail() {
            if self.left > 0 {
                // Behind what is left of the turn before. Here and not in a function of its own:
                // that would want the completion in memory, in every turn.
                if let Some(place) = self.wcs.get_mut(self.left) {
                    *place = *wc;
                    self.left += 1;
                    self.work(0);
                    return 1;
                }
                self.work(0);
            }
            self.admit();
        }
        self.core.ring_at_once = true;
        self.dispatch(wc);
        self.alone += 1;
        if self.alone == FULL_BUSY_TURNS || self.core.is_refill_due() || !self.core.is_settled() {
            self.alone -= 1;
            self.finish(1);
            return 1;
        }
        (self.idle, self.settled) = (0, true);
        1
    }

    /// What a turn does after its completions.
    #[inline(never)]
    fn finish(&mut self, taken: usize) {
        self.count(taken);
        if self.core.mailbox.state.has_work() {
            self.do_work();
        }
        if self.core.requests.has_ended() {
            self.report_requests();
        }
        if !self.core.finishing.is_empty() {
            self.core.progress_finishing();
        }
        if !self.core.closing.is_empty() {
            self.finish_closing();
        }
        if !self.core.credit_due.is_empty() {
            self.core.return_credits();
        }
        // There is more where a full poll came from: batches may grow, for a while.
        if taken < POLL_BATCH || self.core.held_turns >= self.core.config.hold_turns {
            self.core.held_turns = 0;
            self.core.flush();
        } else {
            self.core.held_turns += 1;
        }
        self.core.refill(self.idle != 0 && self.idle.is_multiple_of(REFILL_IDLE_TURNS));
        self.settled = self.core.is_settled();
    }

    /// Counts a turn, and those before it that were not.
    #[inline(always)]
    fn count(&mut self, taken: usize) {
        let idle = ::core::mem::take(&mut self.uncounted);
        let alone = ::core::mem::take(&mut self.alone);
        let turns = 1 + idle + alone;
        self.core.turn += turns;
        self.core.stats.turns += turns;
        self.core.stats.idle_turns += idle;
        self.core.stats.count_polls(1, alone);
        self.core.count_singles();
        if self.core.turn >= self.publish_at {
            self.publish_stats();
        }
        if taken == 0 {
            self.rest();
        } else {
            self.idle = 0;
            self.core.stats.count_polls(taken, 1);
        }
    }

    /// Turns until `stop` is true.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.turn();
        }
    }

    /// Turns until `stop` is true, with a clock for the timers: it is read in every turn that finds
    /// nothing, and in one of 16 that find something.
    pub fn run_by(&mut self, stop: &AtomicBool, mut clock: impl FnMut() -> u64) {
        let mut busy = 0;
        while !stop.load(Ordering::Relaxed) {
            busy += 1;
            if self.turn() == 0 || busy >= CLOCK_TURNS {
                busy = 0;
                self.advance(clock());
            }
        }
    }

    /// Turns until `stop` is true, and rests after `spin` turns in a row that find nothing: `rest`
    /// is called in a loop until there is something. It should return when one of the descriptors
    /// it is given is readable, for which the device is armed then (CP-6), when the waker of
    /// [`Worker::set_waker`] is called, or after a time it chooses. That time bounds how late
    /// `stop` is seen, and a completion where nobody can be woken on the device: there are no
    /// descriptors then. `doorbell_cm::run_sleeping` does this for threads.
    pub fn run_resting(
        &mut self,
        stop: &AtomicBool,
        spin: u64,
        mut rest: impl FnMut(Option<WakeFds>),
    ) {
        while !stop.load(Ordering::Relaxed) {
            if self.turn() == 0 && self.idle >= spin {
                self.rest_armed(|fds| {
                    if !stop.load(Ordering::Relaxed) {
                        rest(fds);
                    }
                });
            }
        }
    }

    /// One such rest, for who turns by a loop of its own: no longer than to [`Worker::next_timer`],
    /// if there are timers. `rest` is not called if something is there by now.
    #[inline(never)]
    pub fn rest_armed(&mut self, rest: impl FnOnce(Option<WakeFds>)) {
        // Announce, arm, look again, rest: what comes or is left from here on wakes the worker.
        self.core.refill(true);
        self.core.settle_credits();
        self.settled = false;
        self.publish_stats();
        self.check_health();
        let stalls = self.core.stats.credit_stalls;
        self.core.mailbox.state.begin_rest();
        let fds = self.poller.wake_fds().filter(|_| self.poller.arm(false).is_ok());
        // What came before it was armed wakes nobody.
        let taken = self.turn_full();
        let left = self.core.mailbox.has_mail() || self.core.mailbox.state.has_work();
        // Credit comes without a completion: who waits for it, or for turns, stays awake.
        let waits = self.core.stats.credit_stalls != stalls || !self.core.is_settled();
        if taken == 0 && !left && !waits {
            rest(fds);
        }
        if fds.is_some() {
            self.poller.woken();
        }
        self.core.mailbox.state.end_rest();
    }

    /// What wakes the thread this worker rests on; the first one stays.
    pub fn set_waker(&self, waker: Waker) {
        self.core.mailbox.state.set_waker(waker);
    }

    /// What makes the descriptors readable that this worker rests on, for its waker; `None` where
    /// nobody can be woken on the device.
    pub fn bell(&self) -> Option<Bell> {
        self.poller.bell()
    }

    /// A handle for other threads.
    pub fn handle(&self) -> Handle {
        Handle(self.core.mailbox.state.clone())
    }

    /// Tells the worker the time, which must not go back, and calls the handler for each timer
    /// that is due; how many were. What the handler sends goes out with the next turn.
    pub fn advance(&mut self, now: u64) -> usize {
        self.core.timers.now = self.core.timers.now.max(now);
        let mut fired = 0;
        // A handler that sets a timer that is due at once is called for it with the next advance.
        let most = self.core.timers.len();
        while fired < most
            && let Some(key) = self.core.timers.fire()
        {
            fired += 1;
            self.settled = false;
            self.handler.on_timer(key, &mut Outbox { core: &mut self.core });
        }
        fired
    }

    /// When the next timer is due, if one is set: so long the caller may sleep.
    pub fn next_timer(&self) -> Option<u64> {
        self.core.timers.next_at()
    }

    /// The outbox, between turns: what is sent goes out with the next one, or with its flush.
    pub fn outbox(&mut self) -> Outbox<'_, P> {
        self.settled = false;
        Outbox { core: &mut self.core }
    }

    /// Takes registered memory in, for requests of this worker, and of its peers as far as it is
    /// registered for them. It stays until the worker is gone: no device reads or writes memory
    /// that is not there.
    pub fn adopt(&mut self, region: P::Region) -> RegionId {
        self.core.regions.push(region);
        RegionId(self.core.regions.len() as u32 - 1)
    }

    /// The handler.
    pub fn handler(&mut self) -> &mut H {
        &mut self.handler
    }

    /// What the worker has done, up to its last turn; of turns in a row that found nothing, or took
    /// one completion each, the last few may be missing.
    pub fn stats(&self) -> &Stats {
        &self.core.stats
    }

    /// Peers it has now, up or not.
    pub fn peers(&self) -> usize {
        self.core.peers.len()
    }

    /// Blocks in this worker's own hands: (of the shared receive memory, of its send memory).
    /// With no peer left, and after the shared queue was drained, all are accounted for.
    pub fn blocks_home(&self) -> (usize, usize) {
        self.core.blocks_home()
    }

    /// Receives of datagrams that are not with the device: a quarter of them at most.
    pub fn datagrams_home(&self) -> usize {
        self.core.datagrams_home()
    }

    /// Requests that are not yet answered.
    pub fn pending(&self) -> usize {
        self.core.requests.pending()
    }

    /// Requests that are posted and not over.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight() as usize
    }

    /// Messages the handler keeps now.
    pub fn kept(&self) -> usize {
        self.core.kept.len()
    }

    /// A completion queue that gives nothing more ends all peers.
    fn check_health(&mut self) {
        if self.poller.is_broken() {
            self.core.fail_all(DownReason::Failed(Status::Fatal));
        }
    }

    #[inline(always)]
    fn rest(&mut self) {
        self.idle += 1;
        self.core.stats.idle_turns += 1;
        if self.idle == PUBLISH_IDLE_TURNS {
            self.publish_stats();
        }
        if self.idle == SETTLE_IDLE_TURNS {
            self.core.settle_credits();
        }
        if self.idle.is_multiple_of(HEALTH_IDLE_TURNS) {
            self.check_health();
        }
        self.handler.on_idle(&mut Outbox { core: &mut self.core });
    }

    /// Reads the mailbox.
    #[cold]
    #[inline(never)]
    fn admit(&mut self) {
        while let Some(mail) = self.core.mailbox.take() {
            match mail {
                Mail::Admit(qp, grant, data) => {
                    let num = qp.num();
                    match self.core.peers.insert(num, qp, grant) {
                        Ok(slot) => self.core.set_handshake(slot, data),
                        Err(qp) => {
                            drop(qp);
                            if !self.core.mailbox.close(num) {
                                self.core.stats.close_lost += 1;
                            }
                        }
                    }
                }
                Mail::Datagrams(qp) => self.core.open_datagrams(qp),
                Mail::NoDatagrams(num) => self.core.close_datagrams(num),
                Mail::Up(num, data) => {
                    if let Some(slot) = self.core.peers.find(num) {
                        self.core.set_handshake(slot, data);
                        self.bring_up(slot);
                    }
                }
                Mail::Gone(num) => {
                    if let Some(slot) = self.core.peers.find(num) {
                        self.core.fail(slot, DownReason::Disconnected);
                    }
                }
            }
        }
    }

    /// Tells the handler of a peer, once: at its first message, if that comes before the word of
    /// the control plane.
    #[cold]
    #[inline(never)]
    fn bring_up(&mut self, slot: u32) {
        let id = self.core.peers.id(slot);
        let Some(peer) = self.core.peers.at(slot) else { return };
        if peer.state == PeerState::Admitted {
            peer.state = PeerState::Up;
            self.handler.on_peer_up(id, &mut Outbox { core: &mut self.core });
        }
    }

    /// Does what other threads have submitted.
    #[cold]
    #[inline(never)]
    fn do_work(&mut self) {
        // As much as may wait: who submits all the time does not keep the worker from its peers.
        for _ in 0..self.core.config.work.max(1) {
            let Some(key) = self.core.mailbox.state.take() else { return };
            self.handler.on_work(key, &mut Outbox { core: &mut self.core });
        }
    }

    #[cold]
    #[inline(never)]
    fn publish_stats(&mut self) {
        self.publish_at = self.core.turn + PUBLISH_TURNS;
        self.core.mailbox.state.published.publish(&self.core.stats);
    }

    /// Tells the handler of requests that are over.
    #[inline(never)]
    fn report_requests(&mut self) {
        while let Some(Ended { peer, token, result }) = self.core.requests.next_ended() {
            let out = &mut Outbox { core: &mut self.core };
            self.handler.on_send_done(peer, token, result, out);
        }
    }

    /// Peers that have drained, or took too long, are reported and their slots freed.
    #[cold]
    #[inline(never)]
    fn finish_closing(&mut self) {
        let mut at = 0;
        while let Some(slot) = self.core.closing.get(at).copied() {
            let limit = self.core.drain_limit();
            let Some(peer) = self.core.peers.at(slot) else { return };
            let PeerState::Closing { why, known, since } = peer.state else {
                self.core.closing.take_at(at);
                continue;
            };
            let drained = peer.retired == peer.posted();
            if !drained && self.core.turn - since < limit {
                at += 1;
                continue;
            }
            self.core.closing.take_at(at);
            let id = self.core.peers.id(slot);
            // The queue pair goes first: then no device reads the blocks that come home.
            let qp = self.core.take_qp(slot);
            drop(qp);
            self.core.retire_all(slot);
            self.report_requests();
            if known {
                self.handler.on_peer_down(id, why, &mut Outbox { core: &mut self.core });
            }
            self.core.drop_kept(id);
            self.core.drop_deferred(id);
            self.core.credit_due.retain(|credit_due| *credit_due != slot);
            self.core.peers.remove(slot);
        }
    }
}
