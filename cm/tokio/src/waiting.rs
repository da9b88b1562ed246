//! The jobs that a worker holds: called and not answered, or waiting for room.

use std::collections::VecDeque;

use doorbell::rpc::CallId;
use doorbell::worker::{PeerId, TimerId};

use crate::job::Job;

const NONE: u32 = u32::MAX;

/// Where a held job stands.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// It waits for room, with a timer for its deadline.
    Stalled(Option<TimerId>),
    /// It waits for its answer.
    Called(CallId),
}

/// A held job, and its neighbours among those that wait for room at the same peer.
pub(crate) struct Held {
    pub(crate) job: Box<Job>,
    pub(crate) stage: Stage,
    before: u32,
    after: u32,
}

/// The jobs that wait for room at one peer, oldest first.
#[derive(Clone, Copy)]
struct Queue {
    up: Option<PeerId>,
    first: u32,
    last: u32,
    /// It is in `stalled`.
    listed: bool,
}

/// All held jobs. It allocates nothing after it was made.
pub(crate) struct Waiting {
    /// By slot.
    held: Vec<Option<Held>>,
    /// By [`PeerId::index`].
    queues: Vec<Queue>,
    /// The peers with jobs that wait for room.
    stalled: VecDeque<u32>,
}

impl Waiting {
    pub(crate) fn new(jobs: u32, peers: u32) -> Waiting {
        let queue = Queue { up: None, first: NONE, last: NONE, listed: false };
        Waiting {
            held: (0..jobs).map(|_| None).collect(),
            queues: vec![queue; peers as usize],
            stalled: VecDeque::with_capacity(peers as usize),
        }
    }

    fn queue(&mut self, peer: PeerId) -> Option<&mut Queue> {
        self.queues.get_mut(peer.index()).filter(|queue| queue.up == Some(peer))
    }

    pub(crate) fn peer_up(&mut self, peer: PeerId) {
        if let Some(queue) = self.queues.get_mut(peer.index()) {
            *queue = Queue { up: Some(peer), first: NONE, last: NONE, listed: queue.listed };
        }
    }

    /// Take its jobs first.
    pub(crate) fn peer_down(&mut self, peer: PeerId) {
        if let Some(queue) = self.queue(peer) {
            queue.up = None;
        }
    }

    pub(crate) fn is_up(&mut self, peer: PeerId) -> bool {
        self.queue(peer).is_some()
    }

    /// The oldest job that waits for room at a peer.
    pub(crate) fn first(&mut self, peer: PeerId) -> Option<u32> {
        self.queue(peer).map(|queue| queue.first).filter(|first| *first != NONE)
    }

    /// The number of peers with jobs that wait for room. Some may have none left.
    pub(crate) fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// The next of those peers, which leaves the list.
    pub(crate) fn next_stalled(&mut self) -> Option<PeerId> {
        let queue = self.queues.get_mut(self.stalled.pop_front()? as usize)?;
        queue.listed = false;
        queue.up
    }

    /// A job of this peer still waits for room.
    pub(crate) fn list(&mut self, peer: PeerId) {
        if let Some(queue) = self.queue(peer)
            && !queue.listed
        {
            queue.listed = true;
            self.stalled.push_back(peer.index() as u32);
        }
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&Held> {
        self.held.get(slot as usize)?.as_ref()
    }

    /// Holds a job until its answer.
    pub(crate) fn called(&mut self, job: Box<Job>, id: CallId) {
        let slot = job.slot as usize;
        if let Some(place) = self.held.get_mut(slot) {
            *place = Some(Held { job, stage: Stage::Called(id), before: NONE, after: NONE });
        }
    }

    /// Holds a job behind all others that wait for room at its peer.
    pub(crate) fn stall(&mut self, job: Box<Job>, peer: PeerId, timer: Option<TimerId>) {
        let slot = job.slot;
        let Some(queue) = self.queue(peer) else { return };
        let before = std::mem::replace(&mut queue.last, slot);
        if before == NONE {
            queue.first = slot;
        }
        if let Some(Some(held)) = self.held.get_mut(before as usize) {
            held.after = slot;
        }
        if let Some(place) = self.held.get_mut(slot as usize) {
            *place = Some(Held { job, stage: Stage::Stalled(timer), before, after: NONE });
        }
        self.list(peer);
    }

    /// Takes a job out, wherever it stands.
    pub(crate) fn take(&mut self, slot: u32) -> Option<Held> {
        let held = self.held.get_mut(slot as usize)?.take()?;
        if let (Stage::Stalled(_), Some(peer)) = (held.stage, held.job.peer) {
            if let Some(Some(before)) = self.held.get_mut(held.before as usize) {
                before.after = held.after;
            }
            if let Some(Some(after)) = self.held.get_mut(held.after as usize) {
                after.before = held.before;
            }
            if let Some(queue) = self.queue(peer) {
                if queue.first == slot {
                    queue.first = held.after;
                }
                if queue.last == slot {
                    queue.last = held.before;
                }
            }
        }
        Some(held)
    }

    /// Takes all jobs out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Box<Job>> {
        self.held.iter_mut().filter_map(|place| place.take().map(|held| held.job))
    }
}
