//! Credit on its way to the peers: how long each peer's window is, and the word of its memory that
//! says how much it may send.

use super::batch::request;
use super::breach::Breach;
use super::credit::{Credit, PeerCredit};
use super::held::Held;
use super::peers::{Conduct, Peer, PeerState};
use super::recv_blocks::Refill;
use super::sender::Sender;
use crate::provider::Provider;
use crate::room::FixedCapacity;
use crate::wr::{SendFlags, SendOp, Sge};

/// A review of all peers takes this many calls of [`CreditReturns::review_some`].
const REVIEW_CALLS: u32 = 256;

/// A peer is closed this long after its goodbye, by [`Core::clock`](super::core::Core::clock): some
/// 0.4 s of idle turns, or 256 sleeps. The connection manager is usually far quicker; but a process
/// that ends does not repeat its request to disconnect, and the network may lose it. A worker that
/// spins takes longer than `Retry::DEFAULT` takes to repeat a packet, so the peer has the
/// acknowledgement of its goodbye. If it has not, it ends with `Disconnected` in place of `Closed`.
/// A thread that yields in each turn may take 10 µs a turn, and 6 minutes for this.
pub(super) const GOODBYE_TURNS: u64 = 1 << 25;

/// A peer to which nothing was posted for this long gets a credit word, on a device over a network:
/// 3 s of idle turns, or 2048 sleeps, which are 205 s at most in `run_sleeping`. A worker that only
/// receives posts nothing else that could fail. If the peer is gone the word fails after the
/// retries of `Config::retry`, some 2 s.
const QUIET_TURNS: u64 = 1 << 28;

impl<P: Provider> Peer<P> {
    /// Before the peer is told: how long its window is from now on.
    fn adjust_window(&mut self) -> Result<(), Breach> {
        let Some(grant) = &mut self.grant else { return Ok(()) };
        let untold = self.credit.begin_return();
        // What the peer has given back of its base window it gets again.
        let held = || self.kept + self.deferred + self.sq.held_recv_blocks();
        let given = self.credit.take_back(grant.word(), held)?;
        if untold > grant.window() {
            // More is untold than the window holds, so the peer sent more than it was told of.
            self.credit.check_sent(0)?;
        }
        let again = given - grant.shrink(given);
        let window = grant.window();
        if self.credit.uses(window) {
            grant.set_borrower(true);
        }
        let target = grant.target();
        let (mut more, mut less) = (0, 0);
        if target < window {
            // The peer is told of one receive at least: see `credit` for why.
            less = grant.shrink((window - target).min(untold.saturating_sub(1)));
        } else if untold >= (window / 2).max(1) {
            // Twice as long at most, so that a peer that says little borrows little.
            more = grant.grow((target - window).min(window));
        }
        let eager = self.deferred > 0;
        self.credit.change_window(grant.window(), more + again, less, eager);
        Ok(())
    }

    /// Reviews both windows. The peer is asked for what it does not use, or gets what it waits for;
    /// and this side gives back what it does not use, or says that it waits for more. True if the
    /// peer is to be told, and was not to be already.
    fn review_credit(&mut self, conduct: &mut Conduct) -> Result<bool, Breach> {
        let Some(grant) = &mut self.grant else { return Ok(false) };
        let word = grant.word();
        let wants = Credit::is_wanted(word);
        let uses = wants || self.credit.uses(grant.window());
        self.credit.end_review();
        grant.set_borrower(uses);
        // What the peer has given back of its base window it gets again.
        let held = || self.kept + self.deferred + self.sq.held_recv_blocks();
        self.credit.check_sent(held())?;
        self.credit.check_word(self.sq.messages(), word, &mut conduct.granted)?;
        let given = self.credit.take_back(word, held)?;
        let again = given - grant.shrink(given);
        let asks = !uses && grant.is_wanted();
        let gets = if wants { grant.missing() } else { 0 };
        let mut tell = false;
        if asks || given > 0 || gets > 0 {
            // Counting begins anew, so the peer is told of what was counted.
            tell = self.credit.begin_return() > 0;
            let more = grant.grow(gets);
            tell |= again + more > 0;
            if asks {
                tell |= self.credit.ask_back();
            } else if given + more > 0 {
                self.credit.stop_asking();
            }
            self.credit.change_window(grant.window(), again + more, 0, self.deferred > 0);
        }
        if self.sends_ended {
            // It stays closed, however many credit words are sent: their number wraps.
            self.sq.close_budget();
        }
        if self.has_sent_all() && self.credit.review_room(self.sq.messages(), word) {
            // Credit may just have been given back, so the room that was measured is too high.
            self.measure();
            self.sq.close_budget();
            tell = true;
        }
        Ok(tell && self.credit.becomes_due())
    }

    /// True if the peer said goodbye [`GOODBYE_TURNS`] ago, or earlier.
    fn said_goodbye_long_ago(&self, conduct: &mut Conduct, now: u64) -> bool {
        self.said_goodbye() && now - *conduct.goodbye_at.get_or_insert(now) >= GOODBYE_TURNS
    }

    /// For how long reviews have found nothing new posted to the peer, by
    /// [`Core::clock`](super::core::Core::clock). `None`: something was posted since the last one.
    fn quiet_for(&self, conduct: &mut Conduct, now: u64) -> Option<u64> {
        let posted = self.sq.posted();
        let since = match conduct.posted {
            None => Some(now),
            Some((before, since)) if before == posted => Some(since),
            Some(_) => None,
        };
        conduct.posted = Some((posted, since.unwrap_or(now)));
        since.map(|since| now - since)
    }

    /// Sees to it that a completion or a failure shows when all sends are over. True if a credit
    /// word is to be sent for that.
    fn asks_for_completion(&mut self) -> bool {
        let asks = !self.sq.last_signals();
        if asks {
            self.sq.want_signal();
        }
        asks
    }
}

/// The review of the peers' windows.
pub(super) struct CreditReturns {
    /// The peer whose window was reviewed last.
    reviewed: u32,
}

impl CreditReturns {
    pub(super) fn new() -> CreditReturns {
        CreditReturns { reviewed: 0 }
    }

    /// Nothing has come for a while: each peer is to be told of all it may send, if only of a part
    /// of half a window. One that waits for more than half a window would wait for ever.
    #[cold]
    #[inline(never)]
    pub(super) fn settle<P: Provider>(sender: &mut Sender<P>, now: u64) {
        for slot in 0..sender.peers.slots() {
            Self::review(sender, slot, now);
            let Some(peer) = sender.peers.at(slot) else { continue };
            if peer.is_up() && peer.credit_falls_due() {
                sender.accounts.credit_due.put(slot);
            }
        }
    }

    /// Reviews the windows of a few peers: others may need what they do not use.
    pub(super) fn review_some<P: Provider>(&mut self, sender: &mut Sender<P>, now: u64) {
        let slots = sender.peers.slots();
        for _ in 0..slots.div_ceil(REVIEW_CALLS) {
            self.reviewed = if self.reviewed + 1 < slots { self.reviewed + 1 } else { 0 };
            Self::review(sender, self.reviewed, now);
        }
    }

    fn review<P: Provider>(sender: &mut Sender<P>, slot: u32, now: u64) {
        sender.end_reservation(slot);
        let is_high = sender.accounts.in_flight.is_high();
        let Some((peer, conduct)) = sender.peers.conduct(slot) else { return };
        if !peer.is_up() {
            return;
        }
        let quiet = peer.quiet_for(conduct, now);
        let mut tell = P::OVER_NETWORK && quiet.is_some_and(|turns| turns >= QUIET_TURNS);
        tell |= is_high && quiet.is_some() && peer.sq.has_unsignaled();
        if peer.said_goodbye_long_ago(conduct, now) {
            // What is outstanding ends by itself, if the peer is there or not.
            match peer.sq.outstanding() {
                0 => sender.accounts.broken.add(slot),
                _ => tell |= peer.asks_for_completion(),
            }
        }
        match peer.review_credit(conduct) {
            Ok(due) if due || tell && peer.credit.becomes_due() => {
                if quiet.is_some() {
                    // Nothing may follow for long, and until a completion ends the word it counts
                    // as in flight.
                    peer.sq.want_signal();
                }
                sender.accounts.credit_due.put(slot);
            }
            Ok(_) => {}
            Err(breach) => Self::end_for(sender, slot, breach),
        }
    }

    /// A peer that broke a rule ends with the next flush.
    #[cold]
    #[inline(never)]
    fn end_for<P: Provider>(sender: &mut Sender<P>, slot: u32, breach: Breach) {
        let Some((peer, conduct)) = sender.peers.conduct(slot) else { return };
        if peer.is_up() && conduct.breach.replace(breach).is_none() {
            sender.accounts.stats.breaches += 1;
            sender.accounts.broken.add(slot);
        }
    }

    /// Tells peers how much they may send by now.
    #[cold]
    #[inline(never)]
    pub(super) fn tell_due<P: Provider>(sender: &mut Sender<P>) {
        // The receives they are told of must be there: all but those set aside for the refill.
        sender.accounts.recv.refill(Refill::Batch, &mut sender.accounts.stats);
        if sender.accounts.recv.is_refill_due() {
            return;
        }
        let mut kept = 0;
        let mut n = 0;
        while let Some(slot) = sender.accounts.credit_due.get(n).copied() {
            n += 1;
            if !Self::tell(sender, slot)
                && let Some(place) = sender.accounts.credit_due.get_mut(kept)
            {
                *place = slot;
                kept += 1;
            }
        }
        sender.accounts.credit_due.truncate(kept);
    }

    /// Writes the word of one peer. False: later, because its send queue has no slot.
    fn tell<P: Provider>(sender: &mut Sender<P>, slot: u32) -> bool {
        let Some(peer) = sender.peers.at(slot) else { return true };
        if matches!(peer.state, PeerState::Free | PeerState::Closing { .. }) {
            peer.credit.due = false;
            return true;
        }
        let Some(word) = peer.credit.peer_word else {
            // It has not spoken; or it is no worker.
            peer.credit.due = peer.credit.flow == PeerCredit::Unknown;
            return !peer.credit.due;
        };
        if peer.sq.is_full_for_credit() {
            return false;
        }
        if let Err(breach) = peer.adjust_window() {
            peer.credit.due = false;
            Self::end_for(sender, slot, breach);
            return true;
        }
        let bytes = peer.credit.word().to_ne_bytes();
        // The word concerns no message, so it need not wait for those before it.
        let flags = SendFlags::INLINE | SendFlags::UNORDERED;
        let write = |sge| request(SendOp::Write(word), flags, sge);
        if peer.sq.waiting > 0 {
            // It goes with them, with one doorbell.
            let Some(batch) = sender.batches.get(peer.batch) else { return false };
            if batch.list.is_full() {
                return false;
            }
            let Some(sge) = batch.stage(&bytes) else { return false };
            batch.add(peer, write(sge), Held::NOTHING);
        } else if sender.post_one(slot, write(Sge::inline(&bytes)), Held::NOTHING).is_err() {
            return false;
        }
        let Some(peer) = sender.peers.at(slot) else { return true };
        peer.sq.count_non_message();
        peer.credit.was_told();
        sender.accounts.stats.credit_returns += 1;
        true
    }
}
