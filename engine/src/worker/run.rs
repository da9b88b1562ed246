//! Loops around the turn: until told to stop, and with a clock.

use core::sync::atomic::{AtomicBool, Ordering};

use super::drain::CLOSE_TURNS;
use super::handler::Handler;
use super::message::DownReason;
use super::outbox::Outbox;
use super::peers::PeerState;
use super::turn::Worker;
use super::undone::Undone;
use crate::provider::Provider;

/// While busy, read the clock on every 16th turn.
const CLOCK_TURNS: u64 = 16;

impl<P: Provider, H: Handler<P>> Worker<P, H> {
    /// Turns until `stop` is true. It reads no clock, so timers never fire: use
    /// [`Worker::run_by`] if the handler sets timers or makes calls with deadlines.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            self.turn();
        }
    }

    /// Turns until `stop` is true, with a clock for the timers. It reads the clock after every turn
    /// that finds nothing, and after every 16th that finds something.
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

    /// Ends all connections in order, and turns meanwhile. The worker takes no new peers from now
    /// on. Each peer gets everything that was accepted for it, and the answers to messages that the
    /// handler keeps ([`super::Outbox::keep`]). Then it gets a goodbye, after which its handler
    /// sees [`DownReason::Finished`]. This side's handler sees `Closed`, after every request of
    /// that peer has ended.
    ///
    /// `more` is called after every turn and says whether there is time left. If it returns false,
    /// the remaining connections are closed at once. A program without a clock can count the calls.
    /// A peer that has not acknowledged everything after
    /// [`Config::drain_turns`](super::Config::drain_turns) turns is cut off even if there is time.
    /// Returns what did not end in order, those peers too.
    ///
    /// A worker that is dropped without this call closes its connections at once, and what waits
    /// for its peers may be lost. Its handler is not called. The receives that it has go back to
    /// the [`SharedRecv`](super::SharedRecv) in any case.
    ///
    /// ```
    /// # use doorbell_engine::worker::{Handler, Worker};
    /// # use doorbell_seam::provider::Provider;
    /// use std::time::{Duration, Instant};
    ///
    /// # fn stop<P: Provider, H: Handler<P>>(mut worker: Worker<P, H>) {
    /// let end = Instant::now() + Duration::from_secs(1);
    /// let left = worker.drain(|| Instant::now() < end);
    /// if left.peers > 0 {
    ///     eprintln!("{} peers did not take everything in time", left.peers);
    /// }
    /// # }
    /// ```
    pub fn drain(&mut self, mut more: impl FnMut() -> bool) -> Undone {
        self.core.mailbox.close_to_peers();
        self.count_cut_off();
        loop {
            // Peers that were admitted before come up now.
            self.core.finish_all();
            self.settled = false;
            self.turn_full();
            if self.peers() == 0 && !self.core.mailbox.has_mail() {
                break;
            }
            if !more() {
                self.count_undone();
                break;
            }
        }
        self.core.close_all();
        for _ in 0..CLOSE_TURNS {
            if self.peers() == 0 {
                break;
            }
            self.settled = false;
            self.turn_full();
        }
        // The peers' control planes learn of the end from this side's, stepped or not.
        self.core.mailbox.watches.look_now();
        self.core.undone
    }

    /// When a drain begins: counts the peers that were cut off before, and whose end the handler
    /// has not been told yet.
    fn count_cut_off(&mut self) {
        let mut undone = Undone::default();
        for slot in 0..self.core.config.peers {
            let Some((peer, conduct)) = self.core.sender.peers.conduct(slot) else { continue };
            let is_closing = matches!(peer.state, PeerState::Closing { .. });
            if is_closing && conduct.why == Some(DownReason::CutOff) {
                undone.add(peer.kept);
            }
        }
        self.core.undone = undone;
    }

    /// When the time of a drain is over: adds what is left. Peers that close were counted when they
    /// were cut off, or have failed, or ended in order.
    pub(super) fn count_undone(&mut self) {
        self.core.undone.requests = self.pending();
        for slot in 0..self.core.config.peers {
            let Some(peer) = self.core.sender.peers.at(slot) else { continue };
            if matches!(peer.state, PeerState::Admitted | PeerState::Up) {
                self.core.undone.add(peer.kept);
            }
        }
    }

    /// Tells the worker the time, calls the handler for each timer that is due, and returns their
    /// number. `now` is in the unit of the caller's clock; a time before the last one counts as the
    /// last one. Sends of the handler go out with the next turn.
    pub fn advance(&mut self, now: u64) -> usize {
        self.core.timers.now = self.core.timers.now.max(now);
        let mut fired = 0;
        // Timers that handlers set meanwhile wait for the next call, so this one ends.
        let set = self.core.timers.set_so_far();
        while let Some(key) = self.core.timers.fire(set) {
            fired += 1;
            self.settled = false;
            self.handler.on_timer(key, &mut Outbox { core: &mut self.core });
        }
        fired
    }
}
