//! Faults on purpose: a device around a device.
//!
//! [`Odds`] are faults that a device may show at any time: a post that takes only the first part
//! of a list, a poll that finds nothing, completions that are seen late. [`Plant`] are mistakes
//! that no device may make; a simulation that does not find each of them is no good.
#![expect(unsafe_code, reason = "passes posts on")]

use core::slice;

use doorbell_alloc::Mapping;
use spin::Mutex;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::wake::{Bell, WakeFds};
use super::{
    Access, AddressVector, Caps, Datagrams, GRH_BYTES, Polled, Poller, Provider, Qp, QpCaps,
    Sharing, Srq,
};
use crate::error::SetupError;
use crate::prng::Prng;
use crate::wc::{Status, Wc, WcOpcode};
use crate::wr::{PostCause, PostError, RecvWr, SendFlags, SendWr};

/// Polls that find nothing in a row at most, besides those that do by chance.
pub const DOZE_MAX: u64 = 200;

/// Completions held back in one queue at most.
const HELD_MAX: usize = 64;

/// How often what a device may do happens, in 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    /// A post takes a part of its list, or none, and says that the queue is full.
    pub partial_post: u32,
    /// A poll finds nothing, whatever there is.
    pub empty_poll: u32,
    /// A poll hands out fewer completions than there are; the others are seen later.
    pub short_poll: u32,
    /// A poll finds nothing, and so do up to [`DOZE_MAX`] after it.
    pub doze: u32,
}

/// A mistake to be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A send's success is reported before the peer has taken it.
    EarlySlot,
    /// A post says that it took the whole list, and lost the end of it.
    LostTail,
    /// A receive is posted a second time.
    DoubleRepost,
}

/// How often a planted mistake is made where it can be, in 1024.
const PLANT_ODDS: u32 = 64;

/// What all parts of one device share.
struct Dice {
    prng: Prng,
    odds: Odds,
    plant: Option<Plant>,
}

impl Dice {
    fn plants(&mut self, plant: Plant) -> bool {
        self.plant == Some(plant) && self.prng.chance(PLANT_ODDS)
    }
}

/// The device with faults. Clones share their dice.
#[derive(Clone)]
pub struct Fault<P> {
    inner: P,
    dice: Arc<Mutex<Dice>>,
}

impl<P: Provider> Fault<P> {
    /// Wraps a device. What goes wrong, and when, comes from `prng` alone.
    pub fn new(inner: P, prng: Prng, odds: Odds, plant: Option<Plant>) -> Fault<P> {
        Fault { inner, dice: Arc::new(Mutex::new(Dice { prng, odds, plant })) }
    }

    /// The device inside.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Changes the odds of what a device may do.
    pub fn set_odds(&self, odds: Odds) {
        self.dice.lock().odds = odds;
    }

    /// Wraps a queue pair of the device inside, whose sends complete in `cq`.
    pub fn wrap(&self, qp: P::Qp, cq: &FaultCq<P>) -> FaultQp<P> {
        FaultQp { inner: qp, dice: self.dice.clone(), early: cq.early.clone() }
    }
}

impl<P: Provider> Datagrams for Fault<P> {
    type Ah = P::Ah;

    fn create_ah(&self, to: &AddressVector) -> Result<P::Ah, SetupError> {
        self.inner.create_ah(to)
    }

    fn sender_of(&self, wc: &Wc, header: &[u8; GRH_BYTES]) -> Result<AddressVector, SetupError> {
        self.inner.sender_of(wc, header)
    }
}

impl<P: Provider> Provider for Fault<P> {
    type Region = P::Region;
    type Cq = FaultCq<P>;
    type Poller = FaultPoller<P>;
    type Srq = FaultSrq<P>;
    type Qp = FaultQp<P>;

    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn register(&self, memory: Mapping, access: Access) -> Result<P::Region, SetupError> {
        self.inner.register(memory, access)
    }

    fn create_cq(
        &self,
        depth: u32,
        sharing: Sharing,
    ) -> Result<(Self::Cq, Self::Poller), SetupError> {
        let (cq, poller) = self.inner.create_cq(depth, sharing)?;
        let early = Arc::default();
        let cq = FaultCq { inner: cq, early };
        let (dice, early) = (self.dice.clone(), cq.early.clone());
        Ok((cq, FaultPoller { inner: poller, held: VecDeque::new(), doze: 0, dice, early }))
    }

    fn create_srq(&self, depth: u32) -> Result<Self::Srq, SetupError> {
        let inner = self.inner.create_srq(depth)?;
        Ok(FaultSrq { inner, dice: self.dice.clone() })
    }

    fn peer_memory(&self, len: usize) -> Result<Mapping, SetupError> {
        self.inner.peer_memory(len)
    }

    unsafe fn for_one_thread(&self) -> Result<Option<Fault<P>>, SetupError> {
        // SAFETY: the caller's promise, passed on.
        let inner = unsafe { self.inner.for_one_thread() }?;
        Ok(inner.map(|inner| Fault { inner, dice: self.dice.clone() }))
    }
}

/// Completions of sends that were reported early.
#[derive(Default)]
struct Early {
    /// Not yet polled.
    due: VecDeque<Wc>,
    /// Whose real completion must not be seen.
    known: Vec<(u32, u64)>,
}

/// A completion queue of a device with faults.
pub struct FaultCq<P: Provider> {
    inner: P::Cq,
    early: Arc<Mutex<Early>>,
}

impl<P: Provider> Clone for FaultCq<P> {
    fn clone(&self) -> Self {
        FaultCq { inner: self.inner.clone(), early: self.early.clone() }
    }
}

impl<P: Provider> FaultCq<P> {
    /// The queue inside.
    pub fn inner(&self) -> &P::Cq {
        &self.inner
    }
}

/// The reader of a [`FaultCq`].
pub struct FaultPoller<P: Provider> {
    inner: P::Poller,
    /// Polled inside, not yet seen outside, in order.
    held: VecDeque<Wc>,
    /// Polls that will find nothing.
    doze: u64,
    dice: Arc<Mutex<Dice>>,
    early: Arc<Mutex<Early>>,
}

impl<P: Provider> Poller for FaultPoller<P> {
    /// A short poll may be one for a single completion, whichever it is.
    fn poll_one(&mut self) -> Polled {
        let single = {
            let mut dice = self.dice.lock();
            let odds = dice.odds.short_poll;
            dice.prng.chance(odds)
        };
        let mut one = Wc::default();
        match single {
            false => Polled::More,
            true if self.poll(slice::from_mut(&mut one)) == 0 => Polled::Nothing,
            true => Polled::One(one),
        }
    }

    fn poll(&mut self, out: &mut [Wc]) -> usize {
        let (empty, short, part) = {
            let mut dice = self.dice.lock();
            let Odds { empty_poll, short_poll, doze, .. } = dice.odds;
            if dice.prng.chance(doze) {
                self.doze = dice.prng.range(1, DOZE_MAX);
            }
            (dice.prng.chance(empty_poll), dice.prng.chance(short_poll), dice.prng.word())
        };
        if empty {
            return 0;
        }
        // The device works on meanwhile; only what it has done is not seen.
        let dozes = self.doze > 0;
        self.doze = self.doze.saturating_sub(1);
        let mut fresh = [Wc::default(); HELD_MAX];
        let room = HELD_MAX - self.held.len().min(HELD_MAX);
        let count = self.inner.poll(&mut fresh[..room.min(out.len())]);
        {
            let mut early = self.early.lock();
            let sooner = early.due.drain(..).collect::<Vec<_>>();
            self.held.extend(sooner);
            for wc in &fresh[..count] {
                let known = early.known.iter().position(|k| *k == (wc.qp_num, wc.wr_id));
                if let Some(known) = known {
                    early.known.swap_remove(known);
                    if wc.status.is_ok() {
                        continue;
                    }
                }
                self.held.push_back(*wc);
            }
        }
        let all = if dozes { 0 } else { self.held.len().min(out.len()) };
        let seen = if short { part as usize % (all + 1) } else { all };
        for (place, wc) in out.iter_mut().zip(self.held.drain(..seen)) {
            *place = wc;
        }
        seen
    }

    fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        self.inner.arm(solicited)
    }

    fn wake_fds(&self) -> Option<WakeFds> {
        self.inner.wake_fds()
    }

    fn woken(&mut self) -> bool {
        self.inner.woken()
    }

    fn bell(&self) -> Option<Bell> {
        self.inner.bell()
    }
}

/// A shared receive queue of a device with faults.
pub struct FaultSrq<P: Provider> {
    inner: P::Srq,
    dice: Arc<Mutex<Dice>>,
}

impl<P: Provider> Clone for FaultSrq<P> {
    fn clone(&self) -> Self {
        FaultSrq { inner: self.inner.clone(), dice: self.dice.clone() }
    }
}

impl<P: Provider> FaultSrq<P> {
    /// The queue inside.
    pub fn inner(&self) -> &P::Srq {
        &self.inner
    }
}

impl<P: Provider> Srq for FaultSrq<P> {
    fn depth(&self) -> u32 {
        self.inner.depth()
    }

    unsafe fn post(&self, list: &[RecvWr]) -> Result<(), PostError> {
        let twice = self.dice.lock().plants(Plant::DoubleRepost);
        // SAFETY: the caller's promise, passed on.
        let result = unsafe { self.inner.post(list) };
        if let (true, Some(first)) = (twice && result.is_ok(), list.first()) {
            // SAFETY: none: this is the mistake. The memory is still the device's to write to.
            let _ = unsafe { self.inner.post(core::slice::from_ref(first)) };
        }
        result
    }
}

/// A queue pair of a device with faults.
pub struct FaultQp<P: Provider> {
    inner: P::Qp,
    dice: Arc<Mutex<Dice>>,
    early: Arc<Mutex<Early>>,
}

impl<P: Provider> FaultQp<P> {
    /// The queue pair inside.
    pub fn inner(&self) -> &P::Qp {
        &self.inner
    }

    /// Reports some signalled requests of a list that was just posted as done.
    fn report_early(&self, list: &[SendWr<'_>]) {
        let signaled = list.iter().filter(|wr| wr.flags.contains(SendFlags::SIGNALED));
        for wr in signaled {
            if self.dice.lock().plants(Plant::EarlySlot) {
                let (wr_id, qp_num) = (wr.wr_id, self.inner.num());
                let (status, opcode) = (Status::Success, WcOpcode::Send);
                let mut early = self.early.lock();
                early.due.push_back(Wc { wr_id, qp_num, status, opcode, ..Wc::default() });
                early.known.push((qp_num, wr_id));
            }
        }
    }
}

impl<P: Provider> Qp for FaultQp<P> {
    fn num(&self) -> u32 {
        self.inner.num()
    }

    fn caps(&self) -> QpCaps {
        self.inner.caps()
    }

    unsafe fn post(&mut self, list: &[SendWr<'_>]) -> Result<(), PostError> {
        let (part, lost) = {
            let mut dice = self.dice.lock();
            let partial = dice.odds.partial_post;
            let part = dice.prng.chance(partial).then(|| dice.prng.below(list.len() as u64));
            let lost = list.len() > 1 && dice.plants(Plant::LostTail);
            (part.unwrap_or(list.len() as u64) as usize, lost)
        };
        let taken = list.get(..part).unwrap_or(list);
        let sent = if lost { &taken[..taken.len() / 2] } else { taken };
        if !sent.is_empty() {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.inner.post(sent) }?;
            self.report_early(sent);
        }
        if part < list.len() {
            return Err(PostError { accepted: part, cause: PostCause::Full });
        }
        Ok(())
    }

    unsafe fn post_recv(&mut self, list: &[RecvWr]) -> Result<(), PostError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.post_recv(list) }
    }

    fn fail(&mut self) {
        self.inner.fail();
    }

    fn recover(&mut self) {
        self.inner.recover();
    }
}
