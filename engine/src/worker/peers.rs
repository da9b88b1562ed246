//! The worker's peers: one slot a connection, found by queue pair number.

use core::net::SocketAddr;

use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::breach::Breach;
use super::config::Config;
use super::credit::Credit;
use super::handshake::{Greeting, PeerInfo};
use super::message::{DownReason, PeerId};
use super::peer_resources::PeerResources;
use super::send_error::SendError;
use super::send_queue::SendQueue;
use super::slot_map::{EMPTY, SlotMap};
use super::watch::Closings;
use crate::prefetch;
use crate::provider::Provider;
use crate::room::FixedCapacity;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerState {
    /// The slot is free.
    Free,
    /// It may receive; the handler does not know of it yet.
    Admitted,
    /// The handler knows it.
    Up,
    /// It has failed and drains since that turn. The handler is told at the end, if it knows the
    /// peer.
    Closing {
        /// The handler was told that it was up.
        known: bool,
        /// The turn in which it began.
        since: u64,
        /// The request that marks the end of its sends was posted.
        marked: bool,
    },
}

/// The most peers whose state is prefetched while they rest: each has some 30 lines.
const FETCHED_MAX: usize = 256;

/// The most slots that [`Peers::fetch_ahead`] looks at.
const FREE_PASSED: usize = 8;

/// One peer, or a free slot.
pub(super) struct Peer<P: Provider> {
    // The queue pair before its grant: then nobody writes to a word that is given back.
    pub(super) qp: Option<P::Qp>,
    pub(super) grant: Option<PeerResources<P>>,
    pub(super) num: u32,
    pub(super) generation: u16,
    pub(super) state: PeerState,
    pub(super) sq: SendQueue,
    pub(super) credit: Credit,
    /// Its batch of unsent messages, or [`super::batch::NO_BATCH`].
    pub(super) batch: u32,
    /// Nothing new is accepted for it: it is closed when the rest is acknowledged.
    pub(super) finishing: bool,
    /// Nothing new is accepted for it, and it is told so behind the rest. It may still send.
    pub(super) sends_ended: bool,
    /// It has finished sending, and the handler was told.
    pub(super) has_finished: bool,
    /// Both sides have finished, and everything that was accepted for it has arrived.
    pub(super) all_over: bool,
    /// Replies that wait for room in the send queue, or for credit.
    pub(super) deferred: u32,
    /// Its messages that the handler keeps.
    pub(super) kept: u32,
    /// The last pass over the deferred replies in which a reply to this peer had to stay.
    pub(super) blocked_in: u64,
}

impl<P: Provider> Peer<P> {
    /// Its current name, in that slot.
    #[inline(always)]
    pub(super) fn id(&self, slot: u32) -> PeerId {
        PeerId { slot, generation: self.generation }
    }

    /// True if the handler knows it and it has not ended.
    #[inline(always)]
    pub(super) fn is_up(&self) -> bool {
        self.state == PeerState::Up
    }

    /// True if it has said goodbye: it has ended the connection in order, or is about to.
    pub(super) fn said_goodbye(&self) -> bool {
        self.grant.as_ref().is_some_and(PeerResources::has_goodbye)
    }

    /// True if both sides have said that they send no more.
    pub(super) fn both_finished(&self) -> bool {
        self.has_finished && self.credit.has_said_finished()
    }

    /// Whether it has ended the connection in order, or both sides have.
    pub(super) fn ended_in_order(&self) -> bool {
        self.all_over || self.said_goodbye()
    }

    /// Why no fresh message and no request is accepted for it, whatever room there is.
    ///
    /// # Errors
    /// `NotConnected`, `FinishedSending`.
    pub(super) fn accepts(&self) -> Result<(), SendError> {
        match self.is_up() && !self.finishing {
            true if self.sends_ended => Err(SendError::FinishedSending),
            true => Ok(()),
            false => Err(SendError::NotConnected),
        }
    }

    /// True if nothing that was accepted for it waits here.
    pub(super) fn has_sent_all(&self) -> bool {
        self.is_up() && self.deferred == 0 && self.sq.waiting == 0 && !self.finishing
    }

    /// True if a message to it overtakes nothing and may be accepted.
    pub(super) fn is_clear(&self) -> bool {
        self.has_sent_all() && !self.sends_ended
    }

    /// Reads again the free slots of the send queue and the credit, in this order.
    #[cold]
    pub(super) fn measure(&mut self) -> (u32, u32) {
        let slots = self.sq.free_slots();
        let word = self.grant.as_ref().map_or(0, PeerResources::word);
        let credits = self.credit.left(self.sq.messages(), word);
        // While it finishes, room is at most 1: a reply needs 1, a fresh message needs 2, so only
        // replies pass.
        let most = if self.finishing || self.sends_ended { 1 } else { u32::MAX };
        self.sq.set_room(slots.min(credits).min(most));
        (slots, credits)
    }

    /// Counts `count` of its messages whose blocks are free. True if credit becomes due.
    #[inline(always)]
    pub(super) fn count_done(&mut self, count: u32) -> bool {
        let due = self.credit.until_return <= count;
        // Below zero until the step that follows, if it is due.
        self.credit.until_return = self.credit.until_return.wrapping_sub(count);
        due && self.credit_falls_due()
    }

    /// Ends a credit step. True if credit becomes due.
    #[cold]
    pub(super) fn credit_falls_due(&mut self) -> bool {
        self.credit.step(self.deferred > 0)
    }
}

/// How a peer behaves, and why it ends.
#[derive(Clone, Copy, Default)]
pub(super) struct Conduct {
    /// What its credit word granted at the last review.
    pub(super) granted: u32,
    /// Requests posted to it at the last review, and since when there were as many.
    pub(super) posted: Option<(u32, u64)>,
    /// When a review first found its goodbye.
    pub(super) goodbye_at: Option<u64>,
    /// It broke a rule, and is about to be ended.
    pub(super) breach: Option<Breach>,
    /// Why it closes, for the handler.
    pub(super) why: Option<DownReason>,
}

/// All slots, the free ones, and the map from queue pair numbers to slots.
pub(super) struct Peers<P: Provider> {
    slots: Vec<Peer<P>>,
    // A message needs nothing of the next three, so they are not in the slots, which are smaller.
    /// Who each peer is.
    infos: Vec<PeerInfo>,
    /// How each peer behaves, and why it ends.
    conducts: Vec<Conduct>,
    /// Where the control plane of each peer looks for connections to end.
    closings: Vec<Option<Arc<Closings>>>,
    /// The free slots, in the order in which they became free: a name is used again late.
    free: VecDeque<u32>,
    map: SlotMap,
    /// The slot of the last lookup: the next one is often the same.
    recent: u32,
    /// The slot whose state was prefetched last.
    fetched: u32,
    pub(super) block_bytes: u32,
    /// The length of the shortest blocks that any peer has had.
    pub(super) shortest_blocks: u32,
}

impl<P: Provider> Peers<P> {
    pub(super) fn new(config: &Config) -> Self {
        let peers = config.peers;
        let slots = (0..peers)
            .map(|_| Peer {
                qp: None,
                grant: None,
                num: EMPTY,
                generation: 0,
                state: PeerState::Free,
                sq: SendQueue::new(config),
                credit: Credit::new(0),
                batch: u32::MAX,
                finishing: false,
                sends_ended: false,
                has_finished: false,
                all_over: false,
                deferred: 0,
                kept: 0,
                blocked_in: 0,
            })
            .collect();
        let free = (0..peers).collect();
        let map = SlotMap::new(peers);
        let infos = (0..peers).map(|_| PeerInfo::default()).collect();
        let conducts = (0..peers).map(|_| Conduct::default()).collect();
        let closings = (0..peers).map(|_| None).collect();
        Peers {
            slots,
            infos,
            conducts,
            closings,
            free,
            map,
            recent: 0,
            fetched: 0,
            block_bytes: config.block_bytes,
            shortest_blocks: u32::MAX,
        }
    }

    /// Takes a slot for a queue pair; gives it back if all are taken.
    pub(super) fn insert(
        &mut self,
        num: u32,
        qp: P::Qp,
        grant: PeerResources<P>,
        addr: Option<SocketAddr>,
    ) -> Result<u32, P::Qp> {
        let Some(slot) = self.free.pop_front() else { return Err(qp) };
        let Some(peer) = self.slots.get_mut(slot as usize) else { return Err(qp) };
        self.map.insert(num, slot);
        peer.qp = Some(qp);
        peer.credit = Credit::new(grant.window());
        grant.watch().is_now(peer.id(slot));
        if let Some(info) = self.infos.get_mut(slot as usize) {
            *info = PeerInfo { addr, message_max: self.block_bytes, ..PeerInfo::default() };
        }
        if let Some(conduct) = self.conducts.get_mut(slot as usize) {
            *conduct = Conduct::default();
        }
        peer.grant = Some(grant);
        peer.num = num;
        peer.state = PeerState::Admitted;
        (peer.deferred, peer.kept, peer.blocked_in, peer.finishing) = (0, 0, 0, false);
        (peer.sends_ended, peer.has_finished, peer.all_over) = (false, false, false);
        peer.sq.reset(slot, peer.generation);
        Ok(slot)
    }

    /// The control plane of a peer looks there for connections to end.
    pub(super) fn set_closings(&mut self, slot: u32, closings: Arc<Closings>) {
        if let Some(place) = self.closings.get_mut(slot as usize) {
            *place = Some(closings);
        }
    }

    /// Asks the control plane of a peer to end its connection. False if too many such requests
    /// wait.
    pub(super) fn ask_for_end(&self, slot: u32) -> bool {
        let (at, num) = (slot as usize, self.get_ref(slot).map_or(EMPTY, |peer| peer.num));
        self.closings.get(at).and_then(Option::as_ref).is_some_and(|closings| closings.put(num))
    }

    /// Frees a slot; its next user gets another generation.
    pub(super) fn remove(&mut self, slot: u32) -> Option<P::Qp> {
        let peer = self.slots.get_mut(slot as usize)?;
        let qp = peer.qp.take();
        drop(peer.grant.take());
        self.closings.get_mut(slot as usize).and_then(Option::take);
        self.map.remove(core::mem::replace(&mut peer.num, EMPTY));
        peer.state = PeerState::Free;
        peer.generation = peer.generation.wrapping_add(1);
        self.free.put(slot);
        qp
    }

    /// The slot of a queue pair number.
    #[inline(always)]
    pub(super) fn find(&self, num: u32) -> Option<u32> {
        self.map.find(num)
    }

    /// The slot of a queue pair number, and the peer there.
    #[inline(always)]
    pub(super) fn of(&mut self, num: u32) -> Option<(u32, &mut Peer<P>)> {
        let slot = self.recent;
        if self.slots.get(slot as usize).is_some_and(|peer| peer.num == num) {
            return self.slots.get_mut(slot as usize).map(|peer| (slot, peer));
        }
        self.recent = self.map.find(num)?;
        Some((self.recent, self.slots.get_mut(self.recent as usize)?))
    }

    /// Prefetches what the next message of one peer needs, each time of another one, so that the
    /// first message after a rest finds it in a near cache. It passes over free slots, a few at a
    /// time. With more than [`FETCHED_MAX`] peers it does nothing: they do not fit there.
    ///
    /// One of 64 links has rested for some 10 ms while another one was busy, and both workers have
    /// turned meanwhile. Half a round trip of its first message then takes 521 ns, and of a naive
    /// ring 223 (near cores, on a machine whose caches others share). With 8 links and far cores it
    /// is 476 and 326 ns.
    #[cold]
    #[inline(never)]
    pub(super) fn fetch_ahead(&mut self) {
        if self.len() > FETCHED_MAX {
            return;
        }
        for _ in 0..FREE_PASSED {
            self.fetched = self.slot_after(self.fetched);
            // The next one's slot, which its turn reads.
            if let Some(next) = self.slots.get(self.slot_after(self.fetched) as usize) {
                prefetch::fetch(core::ptr::from_ref(next).cast(), size_of::<Peer<P>>());
            }
            let Some(peer) = self.slots.get_mut(self.fetched as usize) else { return };
            if peer.fetch_queue_pair() {
                peer.grant.iter().for_each(PeerResources::fetch_ahead);
                self.map.fetch_ahead(peer.num);
                return;
            }
        }
    }

    /// The slot behind that one; the first behind the last.
    #[inline(always)]
    fn slot_after(&self, slot: u32) -> u32 {
        if (slot as usize) + 1 < self.slots.len() { slot + 1 } else { 0 }
    }

    /// The peer in a slot.
    #[inline(always)]
    pub(super) fn at(&mut self, slot: u32) -> Option<&mut Peer<P>> {
        self.slots.get_mut(slot as usize)
    }

    /// The peer in a slot, and how it behaves.
    pub(super) fn conduct(&mut self, slot: u32) -> Option<(&mut Peer<P>, &mut Conduct)> {
        self.slots.get_mut(slot as usize).zip(self.conducts.get_mut(slot as usize))
    }

    /// The peer in a slot, shared.
    pub(super) fn get_ref(&self, slot: u32) -> Option<&Peer<P>> {
        self.slots.get(slot as usize)
    }

    /// The peer that a `PeerId` names, if it is still that one.
    #[inline(always)]
    pub(super) fn get(&mut self, id: PeerId) -> Option<&mut Peer<P>> {
        self.slots
            .get_mut(id.slot as usize)
            .filter(|peer| peer.generation == id.generation && peer.state != PeerState::Free)
    }

    /// The first peer that is up, from this slot on.
    pub(super) fn up_from(&self, slot: u32) -> Option<PeerId> {
        let rest = self.slots.get(slot as usize..)?;
        let at = rest.iter().position(Peer::is_up)?;
        Some(self.id(slot + at as u32))
    }

    /// What is known of a peer, if it still is that one.
    pub(super) fn info(&self, id: PeerId) -> Option<&PeerInfo> {
        let current =
            |peer: &&Peer<P>| peer.generation == id.generation && peer.state != PeerState::Free;
        self.slots.get(id.slot as usize).filter(current)?;
        self.infos.get(id.slot as usize)
    }

    /// A reply was longer than the blocks of the peer in a slot.
    pub(super) fn set_overlong(&mut self, slot: u32) {
        if let Some(info) = self.infos.get_mut(slot as usize) {
            info.overlong = true;
        }
    }

    /// True if that was so.
    pub(super) fn is_overlong(&self, slot: u32) -> bool {
        self.infos.get(slot as usize).is_some_and(|info| info.overlong)
    }

    /// Whether the blocks of both sides hold a message of that length.
    pub(super) fn check_length(&self, slot: u32, length: u64) -> Result<(), SendError> {
        let most = self.infos.get(slot as usize).map_or(0, PeerInfo::message_max);
        if length <= u64::from(most) {
            return Ok(());
        }
        Err(if length > u64::from(self.block_bytes) {
            SendError::TooLong
        } else {
            SendError::TooLongForPeer
        })
    }

    /// Sets what a peer said of itself. Only the first call counts.
    pub(super) fn set_greeting(&mut self, slot: u32, greeting: Greeting) {
        let at = slot as usize;
        if let (Some(peer), Some(info)) = (self.slots.get_mut(at), self.infos.get_mut(at))
            && peer.credit.set_handshake(greeting.handshake)
        {
            let most = greeting.block_bytes().unwrap_or(u32::MAX);
            info.message_max = info.message_max.min(most);
            self.shortest_blocks = self.shortest_blocks.min(most);
            info.greeting = greeting;
        }
    }

    /// This side dialed the peer.
    pub(super) fn set_dialed(&mut self, slot: u32) {
        if let Some(info) = self.infos.get_mut(slot as usize) {
            info.dialed = true;
        }
    }

    /// The current name of a slot's peer.
    #[inline(always)]
    pub(super) fn id(&self, slot: u32) -> PeerId {
        let generation = self.slots.get(slot as usize).map_or(0, |peer| peer.generation);
        PeerId { slot, generation }
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The peer in a slot, if it is up.
    pub(super) fn up_at(&self, slot: u32) -> Option<PeerId> {
        self.get_ref(slot).filter(|peer| peer.is_up()).map(|peer| peer.id(slot))
    }

    /// The number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
