//! The end of a peer, until its queue pair drains: at once, or after everything that was accepted;
//! and the end of sending to a peer that may still send.
//!
//! When both sides have finished sending, each waits until all its own sends are acknowledged, and
//! then says goodbye. The side whose own sends are through and that finds the other's goodbye
//! closes. So no side closes before the other knows that its last sends have arrived.

use super::batch::request;
use super::core::{Core, Finish, Goal};
use super::credit::{FINISHED, FINISHED_IMM, GOODBYE};
use super::held::Held;
use super::message::{DownReason, PeerId};
use super::peers::{Peer, PeerState};
use super::sender::Sender;
use crate::provider::Provider;
use crate::room::FixedCapacity;
use crate::wr::{Remote, SendFlags, SendOp, Sge};

impl<P: Provider> Core<P> {
    /// Accepts nothing more for a peer, and closes it when the rest is acknowledged.
    #[cold]
    pub(super) fn finish(&mut self, id: PeerId) {
        self.sender.end_reservation(id.slot);
        let Some(peer) = self.sender.peers.get(id) else { return };
        // If both have finished, it is about to be closed.
        if peer.is_up() && !peer.finishing && !peer.both_finished() {
            peer.finishing = true;
            peer.measure();
            peer.sq.close_budget();
            self.begin_finish(id, Goal::Close);
        }
    }

    /// Accepts nothing more for a peer, and tells it so behind the rest.
    #[cold]
    pub(super) fn finish_sending(&mut self, id: PeerId) {
        self.sender.end_reservation(id.slot);
        let Some(peer) = self.sender.peers.get(id) else { return };
        if peer.accepts().is_ok() {
            peer.sends_ended = true;
            peer.measure();
            peer.sq.close_budget();
            self.begin_finish(id, Goal::Tell);
        }
    }

    /// If both sides have finished sending, the connection is to end.
    pub(super) fn finish_both(&mut self, id: PeerId) {
        let Some(peer) = self.sender.peers.get(id) else { return };
        if peer.is_up() && !peer.finishing && peer.both_finished() {
            self.begin_finish(id, Goal::CloseBoth);
        }
    }

    fn begin_finish(&mut self, peer: PeerId, goal: Goal) {
        self.finishing.put(Finish { peer, goal, since: self.turn, told: false });
    }

    /// Tells or closes the peers for which nothing is left to do, and closes those that took too
    /// long. A peer that is only to be told may take as long as it likes.
    #[cold]
    #[inline(never)]
    pub(super) fn progress_finishing(&mut self) {
        let mut kept = 0;
        let mut n = 0;
        while let Some(mut finish) = self.finishing.get(n).copied() {
            n += 1;
            if self.progress(&mut finish) {
                continue;
            }
            if let Some(place) = self.finishing.get_mut(kept) {
                *place = finish;
                kept += 1;
            }
        }
        self.finishing.truncate(kept);
    }

    /// Goes on with one end. True if it is over.
    fn progress(&mut self, finish: &mut Finish) -> bool {
        let id = finish.peer;
        let late = self.turn - finish.since > self.config.drain_turns;
        match finish.goal {
            Goal::Tell => {
                let told = finish.step_tell(&mut self.sender);
                if told {
                    self.finish_both(id);
                }
                told
            }
            Goal::Close => {
                let done = !self.owes_answer(id) && finish.step_close(&mut self.sender);
                if done {
                    self.close(id);
                } else if late {
                    self.cut_off(id);
                }
                done || late
            }
            Goal::CloseBoth => {
                let over = late || finish.step_close_both(&mut self.sender);
                if over && let Some(peer) = self.sender.peers.get(id) {
                    // A peer that took too long may not have everything.
                    match peer.ended_in_order() {
                        true => self.fail(id.slot, DownReason::Finished),
                        false => self.cut_off(id),
                    }
                }
                over
            }
        }
    }

    /// True if the whole worker drains, and the handler keeps a message of the peer that it may
    /// still answer.
    fn owes_answer(&mut self, id: PeerId) -> bool {
        let owes = |peer: &mut Peer<P>| peer.kept > 0 && !peer.sends_ended;
        self.draining && self.sender.peers.get(id).is_some_and(owes)
    }

    /// The handler closes a peer: asks the control plane to tell the other side.
    pub(super) fn close(&mut self, id: PeerId) {
        if self.sender.peers.get(id).is_some() {
            self.fail(id.slot, DownReason::Closed);
        }
    }

    /// Closes a peer whose end takes too long: it has not taken everything, or the handler keeps a
    /// message of it.
    fn cut_off(&mut self, id: PeerId) {
        if let Some(peer) = self.sender.peers.get(id)
            && peer.is_up()
        {
            self.undone.add(peer.kept);
            self.fail(id.slot, DownReason::CutOff);
        }
    }

    /// Moves a peer to ERR and begins to drain it.
    #[cold]
    pub(super) fn fail(&mut self, slot: u32, why: DownReason) {
        let since = self.turn;
        let Some(peer) = self.sender.peers.at(slot) else { return };
        let num = peer.num;
        let known = match peer.state {
            PeerState::Admitted => false,
            PeerState::Up => true,
            PeerState::Free | PeerState::Closing { .. } => return,
        };
        let ended = if peer.ended_in_order() { why.after_goodbye() } else { why };
        peer.state = PeerState::Closing { known, since, marked: false };
        if let Some((_, conduct)) = self.sender.peers.conduct(slot) {
            conduct.why = Some(ended);
        }
        self.drop_early(num);
        self.sender.end(slot);
        self.closing.put(slot);
        if why != DownReason::Disconnected && !self.sender.peers.ask_for_end(slot) {
            self.sender.accounts.stats.close_lost += 1;
        }
    }

    /// Every peer fails: the completion queue is broken.
    #[cold]
    pub(super) fn fail_all(&mut self, why: DownReason) {
        self.datagrams.end(&mut self.sender.accounts);
        for slot in 0..self.config.peers {
            self.fail(slot, why);
            if let Some(peer) = self.sender.peers.at(slot) {
                // As in `report_drained`: no device uses the bytes whose requests end now.
                drop(peer.qp.take());
                self.sender.accounts.retire_all(slot, peer);
            }
        }
    }
}

impl<P: Provider> Sender<P> {
    /// Ends sending to a peer: drops what waits, and posts the marker.
    fn end(&mut self, slot: u32) {
        self.ring_doorbell(slot);
        if let Some(peer) = self.peers.at(slot) {
            peer.sq.close_budget();
        }
        self.pending.retain(|pending| *pending != slot);
        self.batches.abandon(slot, &mut self.peers, &mut self.accounts);
        if let Some(peer) = self.peers.at(slot) {
            self.accounts.end_sends(peer);
        }
    }
}

impl Finish {
    /// A step of [`Goal::Close`]. True if nothing accepted for the peer is outstanding, and the
    /// peer has the goodbye. Otherwise it says goodbye, or asks for a completion of the last send
    /// by a WRITE behind that send.
    fn step_close<P: Provider>(&mut self, sender: &mut Sender<P>) -> bool {
        let Some(peer) = sender.peers.get(self.peer).filter(|peer| peer.is_up()) else {
            return true;
        };
        if peer.deferred > 0 || peer.sq.waiting > 0 {
            return false;
        }
        let told = self.told || peer.credit.peer_word.is_none();
        if peer.sq.outstanding() == 0 && told {
            return true;
        }
        if !told || !peer.sq.last_signals() {
            self.told |= self.write_word(sender, GOODBYE);
        }
        false
    }

    /// Writes the peer's credit word with `bit` set, and asks for a completion, which acknowledges
    /// everything before it. False: there is no room now.
    fn write_word<P: Provider>(&self, sender: &mut Sender<P>, bit: u64) -> bool {
        let slot = self.peer.slot;
        let Some(peer) = sender.peers.at(slot) else { return false };
        peer.sq.want_signal();
        let bytes = (peer.credit.word() | bit).to_ne_bytes();
        let (op, sge) = match peer.credit.peer_word {
            Some(word) => (SendOp::Write(word), Sge::inline(&bytes)),
            // It is no worker. An empty WRITE names no memory.
            None => (SendOp::Write(Remote::default()), Sge::default()),
        };
        let wr = request(op, SendFlags::INLINE, sge);
        let posted = sender.post_one(slot, wr, Held::NOTHING).is_ok();
        if posted && let Some(peer) = sender.peers.at(slot) {
            peer.sq.count_non_message();
            peer.credit.word_was_written();
            if bit == GOODBYE {
                peer.credit.say_goodbye();
            }
        }
        posted
    }

    /// A step of [`Goal::Tell`]: tells the peer that this side sends no more, if nothing accepted
    /// for it waits, and there is room. The word takes a receive of the peer, as a message does,
    /// and may take the last one, because nothing follows. True if the peer is told, or about to be
    /// closed.
    fn step_tell<P: Provider>(&self, sender: &mut Sender<P>) -> bool {
        let Some(peer) = sender.peers.get(self.peer).filter(|peer| peer.is_up() && !peer.finishing)
        else {
            return true;
        };
        let (slots, credits) = peer.measure();
        if !peer.has_sent_all() || slots == 0 || credits == 0 {
            return false;
        }
        // If it is no worker, nobody there can be told.
        let Some(word) = peer.credit.peer_word else { return true };
        peer.sq.want_signal();
        let bytes = (peer.credit.word() | FINISHED).to_ne_bytes();
        let op = SendOp::WriteWithImm(word, FINISHED_IMM);
        let wr = request(op, SendFlags::INLINE, Sge::inline(&bytes));
        let posted = sender.post_one(self.peer.slot, wr, Held::NOTHING).is_ok();
        if posted && let Some(peer) = sender.peers.at(self.peer.slot) {
            peer.credit.word_was_written();
            peer.credit.say_finished();
            peer.sq.set_room(0);
        }
        posted
    }

    /// A step of [`Goal::CloseBoth`]: says goodbye when the peer has acknowledged everything. True
    /// if both sides have said goodbye.
    fn step_close_both<P: Provider>(&mut self, sender: &mut Sender<P>) -> bool {
        let Some(peer) = sender.peers.get(self.peer).filter(|peer| peer.is_up()) else {
            return true;
        };
        if peer.all_over || peer.sq.outstanding() == 0 {
            peer.all_over = true;
            let peer_is_over = peer.said_goodbye();
            self.told = self.told || self.write_word(sender, GOODBYE);
            return self.told && peer_is_over;
        } else if !peer.sq.last_signals() {
            self.write_word(sender, FINISHED);
        }
        false
    }
}
