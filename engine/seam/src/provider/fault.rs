//! Fault injection: a device that wraps another device.
//!
//! [`Odds`] covers behaviour that is legal at any time: an inline path refuses a message, a post
//! takes only the first part of a list, a doorbell rings early, a poll finds nothing, completions
//! arrive late. [`Plant`] covers mistakes that no device may make; a simulation must find each of
//! them.
#![expect(unsafe_code, reason = "passes posts on")]

use core::{mem, slice};

use spin::Mutex;
use std_alloc::collections::VecDeque;
use std_alloc::sync::Arc;
use std_alloc::vec::Vec;

use super::call::{Call, Command, Lane, Look};
use super::wrap::{Hook, Posted, Wrapped, WrappedCq, WrappedQp};
use super::{Doorbell, InlineSend, Poller, PollerEx, Provider, Qp, WcEx, WcFields};
use crate::error::{Code, SetupError};
use crate::prng::Prng;
use crate::wc::{Status, Wc, WcOpcode};
use crate::wr::{PostCause, PostError, RecvWr, Sge};

/// Maximum number of empty polls in one run, besides those that happen by chance.
pub const DOZE_MAX: u64 = 200;

/// Maximum number of completions held back in one queue.
const HELD_MAX: usize = 64;

/// How often each legal fault happens, out of 1024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    /// A post takes a part of its list, or none, and says that the queue is full. So does a request
    /// that binds a window.
    pub partial_post: u32,
    /// A path that may refuse takes nothing, or only a part of its list.
    pub refuse: u32,
    /// A message posted without a doorbell rings at once.
    pub early_doorbell: u32,
    /// A poll for one completion asks the caller to poll for a list.
    pub more: u32,
    /// A poll finds nothing, even if there are completions.
    pub empty_poll: u32,
    /// A poll returns fewer completions than there are; the others come later.
    pub short_poll: u32,
    /// A poll finds nothing, and so do up to [`DOZE_MAX`] polls after it.
    pub doze: u32,
    /// A command of the control plane changes nothing, and says that memory is short.
    pub refuse_command: u32,
}

impl Odds {
    /// Makes every fault `times` times as likely.
    #[must_use]
    pub fn times(self, times: u32) -> Odds {
        Odds {
            partial_post: self.partial_post * times,
            refuse: self.refuse * times,
            early_doorbell: self.early_doorbell * times,
            more: self.more * times,
            empty_poll: self.empty_poll * times,
            short_poll: self.short_poll * times,
            doze: self.doze * times,
            refuse_command: self.refuse_command * times,
        }
    }
}

/// A planted mistake that the simulation must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The device reports a send's success before the peer has taken it.
    EarlySlot,
    /// A receive is posted a second time.
    DoubleRepost,
    /// `post` says that it took the whole list, but loses the end of it.
    LostTail,
    /// `post_inline` with a doorbell at once changes a byte.
    AlteredNow,
    /// `post_inline` with a later doorbell says that it took a message, but loses it.
    LostLater,
    /// `post_inline_list` swaps the first two messages.
    SwappedList,
    /// `ring_doorbell` does not ring.
    LostDoorbell,
    /// `poll_one` gives a completion that the next poll gives again.
    DoubledOne,
    /// `poll` or `poll_more` swaps two messages of a queue pair.
    SwappedPoll,
    /// `next` of an extended queue gives a completion twice.
    DoubledNext,
    /// `bind` of a window returns another key than the window's.
    WrongKey,
    /// A command of the control plane says that it was carried out, and was not.
    LostCommand,
}

impl Plant {
    /// The mistake that fits a call that sends.
    fn of(call: Call<'_>) -> Option<Plant> {
        match call.lane() {
            Lane::PostList => Some(Plant::LostTail),
            Lane::InlineNow => Some(Plant::AlteredNow),
            // A lost completion would be noticed too easily.
            Lane::InlineLater if call.signaled(1).count() == 0 => Some(Plant::LostLater),
            Lane::InlineList if call.len() > 1 => Some(Plant::SwappedList),
            Lane::Doorbell => Some(Plant::LostDoorbell),
            _ => None,
        }
    }
}

/// How often a planted mistake happens where it can, out of 1024.
const PLANT_ODDS: u32 = 64;

/// State that all parts of one device share.
struct Dice {
    prng: Prng,
    odds: Odds,
    plant: Option<Plant>,
}

impl Dice {
    fn plants(&mut self, plant: Plant) -> bool {
        self.plant == Some(plant) && self.prng.chance(PLANT_ODDS)
    }

    /// How many requests of a call to pass on to the device.
    fn part(&mut self, call: Call<'_>) -> usize {
        let odds = match call.lane() {
            Lane::Post | Lane::PostList => self.odds.partial_post,
            _ => self.odds.refuse,
        };
        match self.prng.chance(odds) {
            true => self.prng.below(call.len() as u64) as usize,
            false => call.len(),
        }
    }
}

/// Makes the faults.
#[derive(Clone)]
pub struct Faults(Arc<Mutex<Dice>>);

/// The device with faults. Clones share their dice.
pub type Fault<P> = Wrapped<P, Faults>;
/// A completion queue of a device with faults.
pub type FaultCq<P> = WrappedCq<P, Faults>;
/// A queue pair of a device with faults.
pub type FaultQp<P> = WrappedQp<P, Faults>;

impl<P: Provider> Fault<P> {
    /// Wraps a device. The same `prng` and the same calls give the same faults.
    pub fn new(inner: P, prng: Prng, odds: Odds, plant: Option<Plant>) -> Fault<P> {
        Wrapped::around(inner, Faults(Arc::new(Mutex::new(Dice { prng, odds, plant }))))
    }

    /// Changes the odds of the legal faults.
    pub fn set_odds(&self, odds: Odds) {
        self.hook.0.lock().odds = odds;
    }
}

/// State of one completion queue.
#[derive(Default)]
pub struct Seen {
    /// Completions polled from the inner device but not yet handed out, in order.
    held: VecDeque<Wc>,
    /// Number of polls still to find nothing.
    doze: u64,
    /// The last poll for one completion asked for a list without asking the inner device.
    skipped: bool,
    /// Sends reported early; their real completions must not be handed out.
    known: Vec<(u32, u64)>,
    /// A completion that [`PollerEx::next`] will give a second time.
    doubled: Option<WcEx>,
    /// The places for one poll of the inner device.
    places: Vec<Wc>,
}

impl Seen {
    /// Stores the `count` completions that the inner device gave.
    fn put(&mut self, count: usize) {
        for at in 0..count {
            let wc = self.places[at];
            if !self.was_reported(&wc) {
                self.held.push_back(wc);
            }
        }
    }

    /// Swaps the first two consecutive messages of one queue pair among the `count` completions.
    fn swap(&mut self, count: usize) {
        let message = |wc: &Wc| wc.status.is_ok() && wc.opcode == WcOpcode::Recv;
        let pair = |two: &[Wc]| two.iter().all(message) && two[0].qp_num == two[1].qp_num;
        if let Some(at) = self.places[..count].windows(2).position(pair) {
            self.places.swap(at, at + 1);
        }
    }

    /// True for the success of a send that was reported early.
    fn was_reported(&mut self, wc: &Wc) -> bool {
        let known = self.known.iter().position(|known| *known == (wc.qp_num, wc.wr_id));
        known.is_some_and(|known| {
            self.known.swap_remove(known);
            wc.status.is_ok()
        })
    }

    /// Polls the inner device, as far as there is room. Returns how many completions it has put in
    /// `places`. `None`: the caller has to poll for a list.
    fn look<Q: Poller>(&mut self, poller: &mut Q, look: Look, room: usize) -> Option<usize> {
        self.places.resize(HELD_MAX, Wc::default());
        let skipped = mem::take(&mut self.skipped);
        let room = room.min(HELD_MAX - self.held.len().min(HELD_MAX));
        match look {
            // Completions held back come first.
            Look::One if !self.held.is_empty() => Some(0),
            Look::More if skipped => Look::List.make(poller, &mut self.places[..room]),
            look => look.make(poller, &mut self.places[..room]),
        }
    }

    /// Hands out the oldest completions, up to `most` of them.
    fn give(&mut self, out: &mut [Wc], most: usize) -> usize {
        let count = most.min(self.held.len()).min(out.len());
        for (place, wc) in out.iter_mut().zip(self.held.drain(..count)) {
            *place = wc;
        }
        count
    }
}

impl Hook for Faults {
    type Queue = Arc<Mutex<Seen>>;

    unsafe fn send<Q: Qp>(
        &self,
        queue: &Arc<Mutex<Seen>>,
        qp: &mut Q,
        call: Call<'_>,
    ) -> Result<usize, PostError> {
        // A part of a list may be too short for the mistake that fits the whole list.
        let (seen, plants) = {
            let mut dice = self.0.lock();
            let seen = call.first(dice.part(call));
            (seen, Plant::of(seen).is_some_and(|plant| dice.plants(plant)))
        };
        let taken = match plants {
            _ if seen.is_empty() && call.lane() != Lane::Doorbell => 0,
            // SAFETY: the caller's promise, passed on.
            true => unsafe { spoil(qp, seen) }?,
            // SAFETY: as above.
            false => unsafe { seen.make(qp) }?,
        };
        self.report_early(queue, qp.num(), seen.signaled(taken));
        match call {
            Call::Post(_) if taken < call.len() => {
                return Err(PostError { accepted: taken, cause: PostCause::Full });
            }
            Call::Inline(_, Doorbell::Later) | Call::InlineList(..) if taken > 0 => {
                let mut dice = self.0.lock();
                let odds = dice.odds.early_doorbell;
                if dice.prng.chance(odds) {
                    // SAFETY: the caller's promise, passed on.
                    unsafe { qp.ring_doorbell() };
                }
            }
            _ => {}
        }
        Ok(taken)
    }

    fn poll<Q: Poller>(
        &self,
        queue: &Arc<Mutex<Seen>>,
        poller: &mut Q,
        look: Look,
        out: &mut [Wc],
    ) -> Option<usize> {
        let mut seen = queue.lock();
        let mut dice = self.0.lock();
        let Odds { empty_poll, short_poll, doze, more, .. } = dice.odds;
        if look == Look::One && dice.prng.chance(more) {
            seen.skipped = true;
            return None;
        }
        if dice.prng.chance(doze) {
            seen.doze = dice.prng.range(1, DOZE_MAX);
        }
        if dice.prng.chance(empty_poll) {
            return Some(0);
        }
        let count = seen.look(poller, look, out.len())?;
        if look != Look::One && dice.plants(Plant::SwappedPoll) {
            seen.swap(count);
        }
        seen.put(count);
        if look == Look::One && count > 0 && dice.plants(Plant::DoubledOne) {
            let Seen { held, places, .. } = &mut *seen;
            held.extend(places[..count].iter());
        }
        // The device keeps working meanwhile; only its completions are not seen.
        let dozes = seen.doze > 0;
        seen.doze = seen.doze.saturating_sub(1);
        let all = if dozes { 0 } else { seen.held.len().min(out.len()) };
        let most = match dice.prng.chance(short_poll) {
            true => dice.prng.below(all as u64 + 1) as usize,
            false => all,
        };
        Some(seen.give(out, most))
    }

    fn receive(&self, list: &[RecvWr], mut post: impl FnMut(&[RecvWr]) -> Posted) -> Posted {
        let twice = self.0.lock().plants(Plant::DoubleRepost);
        post(list)?;
        if let (true, Some(first)) = (twice, list.first()) {
            // This is the mistake: the memory is still the device's to write to.
            let _ = post(slice::from_ref(first));
        }
        Ok(())
    }

    fn bind(
        &self,
        _: &Arc<Mutex<Seen>>,
        post: impl FnOnce() -> Result<u32, PostError>,
    ) -> Result<u32, PostError> {
        let (refuses, plants) = {
            let mut dice = self.0.lock();
            let odds = dice.odds.partial_post;
            (dice.prng.chance(odds), dice.plants(Plant::WrongKey))
        };
        match refuses {
            true => Err(PostError { accepted: 0, cause: PostCause::Full }),
            false => post().map(|key| key ^ u32::from(plants)),
        }
    }

    /// A completion that a poll held back comes first, without timestamps.
    fn next<Q: PollerEx>(
        &self,
        queue: &Arc<Mutex<Seen>>,
        poller: &mut Q,
        fields: WcFields,
    ) -> Option<WcEx> {
        let mut seen = queue.lock();
        let mut dice = self.0.lock();
        let Odds { empty_poll, doze, .. } = dice.odds;
        if dice.prng.chance(doze) {
            seen.doze = dice.prng.range(1, DOZE_MAX);
        }
        let dozes = seen.doze > 0;
        seen.doze = seen.doze.saturating_sub(1);
        if dozes || dice.prng.chance(empty_poll) {
            return None;
        }
        let held = seen.held.pop_front().map(|wc| WcEx::of(&wc, fields));
        if let Some(wc) = held.or_else(|| seen.doubled.take()) {
            return Some(wc);
        }
        let wc = poller.next().filter(|wc| !seen.was_reported(&wc.plain()))?;
        seen.doubled = dice.plants(Plant::DoubledNext).then_some(wc);
        Some(wc)
    }

    fn command(&self, command: Command) -> Result<bool, SetupError> {
        let mut dice = self.0.lock();
        let odds = dice.odds.refuse_command;
        if dice.prng.chance(odds) {
            let asked = std_alloc::format!("{command:?}");
            return Err(SetupError::new(Code::NoMemory, asked, "a fault was injected"));
        }
        Ok(!dice.plants(Plant::LostCommand))
    }
}

impl Faults {
    /// Reports some of the requests that were just posted as done.
    fn report_early(&self, queue: &Mutex<Seen>, qp_num: u32, signaled: impl Iterator<Item = u64>) {
        for wr_id in signaled {
            if self.0.lock().plants(Plant::EarlySlot) {
                let (status, opcode) = (Status::Success, WcOpcode::Send);
                let mut seen = queue.lock();
                seen.held.push_back(Wc { wr_id, qp_num, status, opcode, ..Wc::default() });
                seen.known.push((qp_num, wr_id));
            }
        }
    }
}

/// Makes a call with the mistake planted in its path. Returns how many requests seem to be taken.
///
/// # Safety
/// As for [`Call::make`].
unsafe fn spoil<Q: Qp>(qp: &mut Q, call: Call<'_>) -> Result<usize, PostError> {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        match call {
            Call::Post(list) => {
                Call::Post(&list[..list.len() / 2]).make(qp)?;
                Ok(list.len())
            }
            Call::Inline(send, Doorbell::Now) => {
                let bytes = altered(send.sge);
                let send = InlineSend { sge: Sge::inline(&bytes), ..send };
                Call::Inline(send, Doorbell::Now).make(qp)
            }
            Call::InlineList(first, list) => {
                let mut list = list.to_vec();
                list.swap(0, 1);
                Call::InlineList(first, &list).make(qp)
            }
            Call::Inline(_, Doorbell::Later) | Call::Doorbell => Ok(call.len()),
        }
    }
}

/// The bytes of an inline payload with the last byte changed.
///
/// # Safety
/// The payload can be read.
unsafe fn altered(sge: Sge) -> Vec<u8> {
    // SAFETY: as the caller vouches.
    let bytes = unsafe { slice::from_raw_parts(sge.addr as *const u8, sge.length as usize) };
    let mut bytes = bytes.to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::QpCaps;
    use crate::wr::SendWr;

    /// Takes all lists of messages, and remembers them.
    #[derive(Default)]
    struct Taker(Vec<Vec<u8>>);

    impl Qp for Taker {
        fn num(&self) -> u32 {
            1
        }
        fn caps(&self) -> QpCaps {
            QpCaps::default()
        }
        unsafe fn post(&mut self, _: &[SendWr<'_>]) -> Result<(), PostError> {
            Ok(())
        }
        unsafe fn post_inline_list(&mut self, _: u64, list: &[&[u8]]) -> usize {
            self.0.push(list.concat());
            list.len()
        }
        unsafe fn post_recv(&mut self, _: &[RecvWr]) -> Result<(), PostError> {
            Ok(())
        }
        fn fail(&mut self) {}
    }

    /// The mistake that swaps two messages leaves a list alone of which only one message goes on.
    #[test]
    fn a_list_of_one_message_is_not_swapped() {
        let odds = Odds { refuse: 512, ..Odds::default() };
        let (prng, plant) = (Prng::new(7), Some(Plant::SwappedList));
        let faults = Faults(Arc::new(Mutex::new(Dice { prng, odds, plant })));
        let (queue, mut qp) = (Arc::default(), Taker::default());
        for _ in 0..1000 {
            let call = Call::InlineList(0, &[b"a", b"b"]);
            // SAFETY: this queue pair reads the messages during the call only.
            let taken = unsafe { faults.send(&queue, &mut qp, call) };
            assert!(taken.is_ok_and(|taken| taken <= 2));
        }
        let seen = |bytes: &[u8]| qp.0.iter().any(|list| list == bytes);
        assert_eq!([seen(b"ab"), seen(b"ba"), seen(b"a"), seen(b"b")], [true, true, true, false]);
        assert_eq!(qp.0.iter().filter(|list| list.is_empty()).count(), 0);
    }
}
