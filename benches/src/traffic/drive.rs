//! What the connecting side does: sends a row's messages over either contestant and waits until
//! they are back. Both contestants run this same code.

use crate::error::Failure;
use crate::traffic::ledger::Ledger;
use crate::traffic::payload;
use crate::traffic::random::Random;
use crate::traffic::rows::Turns;
use crate::traffic::schedule::{Due, Trace};

/// A contestant: takes messages to the serving side and brings them back.
pub(crate) trait Carrier {
    /// Sends a message. It may wait for more of its link unless `now`. False if there is no room.
    fn send(&mut self, link: usize, bytes: &[u8], now: bool) -> Result<bool, Failure>;

    /// Takes what has come back on the links that the ledger waits for, into the ledger.
    fn poll(&mut self) -> Result<(), Failure>;

    /// Looks in vain for a message on a link that waits for none.
    fn poll_resting(&mut self, link: usize) -> Result<(), Failure>;

    fn ledger(&mut self) -> &mut Ledger;
}

/// Every message of that number goes to a link that has rested.
const REST: usize = 1000;

/// The most messages that go out between two polls.
const BURST: usize = 16;

/// Sends messages over one contestant.
pub(crate) struct Driver<'a, C, N> {
    pub(crate) carrier: &'a mut C,
    /// The clock, in ticks.
    pub(crate) now: N,
    pub(crate) payload: &'a mut [u8],
    /// The message with this number gets a wrong byte, to show that it is noticed.
    pub(crate) spoiled: Option<u64>,
}

impl<C: Carrier, N: FnMut() -> u64> Driver<'_, C, N> {
    /// Writes the next message of a link.
    #[inline(always)]
    fn fill(&mut self, link: usize, size: usize) {
        let number = self.carrier.ledger().next(link);
        payload::fill(&mut self.payload[..size], number);
        if self.spoiled == Some(number) {
            self.payload[size - 1] ^= 1;
        }
    }

    /// Sends the message that was written. False if there is no room. Without `due` its time does
    /// not count.
    #[inline(always)]
    fn try_send(
        &mut self,
        link: usize,
        size: usize,
        due: Option<u64>,
        now: bool,
    ) -> Result<bool, Failure> {
        let is_sent = self.carrier.send(link, &self.payload[..size], now)?;
        if is_sent {
            self.carrier.ledger().sent(link, due, size);
        }
        Ok(is_sent)
    }

    /// Waits until all are back.
    #[inline(always)]
    pub(crate) fn drain(&mut self) -> Result<(), Failure> {
        while self.carrier.ledger().back < self.carrier.ledger().sent {
            self.carrier.poll()?;
        }
        Ok(())
    }

    /// Sends one message and waits for it, or one to each peer and waits for all, again and again
    /// for that many ticks.
    pub(crate) fn ping(
        &mut self,
        size: usize,
        (turns, links): (Turns, usize),
        random: &mut Random,
        ticks: u64,
    ) -> Result<(), Failure> {
        let first = (self.now)();
        for step in 0.. {
            let link = match turns {
                Turns::InTurn => step % links,
                Turns::Random => random.below(links as u64) as usize,
                Turns::Rested if step % REST == 0 => 1 + step / REST % (links - 1),
                Turns::OneBusy | Turns::AtOnce | Turns::Rested => 0,
            };
            let is_timed = turns != Turns::Rested || link > 0;
            let due = match turns {
                Turns::AtOnce => {
                    let due = (self.now)();
                    // Each link has one message, so it has none to wait for.
                    for link in 0..links {
                        self.fill(link, size);
                        while !self.try_send(link, size, Some(due), true)? {
                            self.carrier.poll()?;
                        }
                    }
                    due
                }
                _ => {
                    // The message exists before its time begins.
                    self.fill(link, size);
                    let due = (self.now)();
                    while !self.try_send(link, size, is_timed.then_some(due), true)? {
                        self.carrier.poll()?;
                    }
                    due
                }
            };
            self.drain()?;
            if turns == Turns::Rested {
                // The peers have loops of their own, which go on while there is nothing to do.
                self.carrier.poll_resting(1 + step % (links - 1))?;
            }
            if due.saturating_sub(first) >= ticks {
                break;
            }
        }
        Ok(())
    }

    /// Keeps `depth` messages in flight for that many ticks. Returns messages per tick.
    pub(crate) fn peak(
        &mut self,
        trace: Trace,
        depth: u64,
        random: &mut Random,
        ticks: u64,
    ) -> Result<f64, Failure> {
        let before = self.carrier.ledger().back;
        let first = (self.now)();
        let mut written = None;
        let mut passed = 0;
        while passed < ticks {
            let now = (self.now)();
            passed = now.saturating_sub(first);
            while self.carrier.ledger().sent - self.carrier.ledger().back < depth {
                let size = *written.get_or_insert_with(|| {
                    let size = trace.size(random) as usize;
                    let number = self.carrier.ledger().next(0);
                    payload::fill(&mut self.payload[..size], number);
                    size
                });
                if !self.try_send(0, size, Some(now), false)? {
                    break;
                }
                written = None;
            }
            self.carrier.poll()?;
        }
        self.drain()?;
        let passed = (self.now)().saturating_sub(first).max(1);
        Ok((self.carrier.ledger().back - before) as f64 / passed as f64)
    }

    /// Sends each message when it is due, whether or not earlier ones are back. What is late goes
    /// out as soon as there is room, and its time counts from when it was due.
    pub(crate) fn open(&mut self, dues: &[Due]) -> Result<(), Failure> {
        let first = (self.now)();
        let (mut sent, mut is_written) = (0, false);
        while sent < dues.len() {
            let passed = (self.now)().saturating_sub(first);
            let until = dues.len().min(sent + BURST);
            while let Some(due) = dues[sent..until].first()
                && due.at <= passed
            {
                let size = due.size as usize;
                if !is_written {
                    self.fill(0, size);
                }
                let is_lone = dues.get(sent + 1).is_none_or(|next| next.at > passed);
                if !self.try_send(0, size, Some(first + due.at), is_lone)? {
                    is_written = true;
                    break;
                }
                (sent, is_written) = (sent + 1, false);
            }
            self.carrier.poll()?;
        }
        self.drain()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;

    use super::*;
    use crate::machine::clock::Clock;

    /// Brings each message back after `delay` ticks, and nothing at all during a stall. Its clock
    /// goes on by one tick at each look and each poll.
    struct Fake<'a> {
        clock: &'a Cell<u64>,
        ledger: Ledger,
        on_their_way: VecDeque<(u64, usize, Vec<u8>)>,
        room: usize,
        stall: std::ops::Range<u64>,
        resting_polled: Vec<usize>,
    }

    const DELAY: u64 = 10;

    impl Fake<'_> {
        fn new(clock: &Cell<u64>, stall: std::ops::Range<u64>, room: usize) -> Fake<'_> {
            let ledger = Ledger::new(4, &Clock { tick_ns: 1.0, step_ns: 1.0 }).unwrap();
            Fake {
                clock,
                ledger,
                on_their_way: VecDeque::new(),
                room,
                stall,
                resting_polled: Vec::new(),
            }
        }
    }

    impl Carrier for Fake<'_> {
        fn send(&mut self, link: usize, bytes: &[u8], _now: bool) -> Result<bool, Failure> {
            if self.on_their_way.len() == self.room {
                return Ok(false);
            }
            self.on_their_way.push_back((self.clock.get(), link, bytes.to_vec()));
            Ok(true)
        }

        fn poll(&mut self) -> Result<(), Failure> {
            let now = self.clock.replace(self.clock.get() + 1);
            while let Some((at, link, bytes)) = self.on_their_way.front() {
                if at + DELAY > now || self.stall.contains(&now) {
                    break;
                }
                self.ledger.came(*link, bytes, || now);
                self.on_their_way.pop_front();
            }
            Ok(())
        }

        fn poll_resting(&mut self, link: usize) -> Result<(), Failure> {
            self.resting_polled.push(link);
            Ok(())
        }

        fn ledger(&mut self) -> &mut Ledger {
            &mut self.ledger
        }
    }

    /// Runs `drive` over a contestant that stalls for that long and has that much room.
    fn with(
        stall: std::ops::Range<u64>,
        room: usize,
        spoiled: Option<u64>,
        drive: impl FnOnce(&mut Driver<'_, Fake<'_>, &dyn Fn() -> u64>),
    ) -> Ledger {
        let clock = Cell::new(1_000_000);
        let tick = || clock.replace(clock.get() + 1);
        let stall = stall.start + 1_000_000..stall.end + 1_000_000;
        let mut carrier = Fake::new(&clock, stall, room);
        let now: &dyn Fn() -> u64 = &tick;
        let payload = &mut [0; 256];
        drive(&mut Driver { carrier: &mut carrier, now, payload, spoiled });
        carrier.ledger
    }

    fn every_hundred(count: u64) -> Vec<Due> {
        (0..count).map(|n| Due { at: n * 100, size: 64 }).collect()
    }

    /// A receiver that stalls for 1000 ticks delays ten messages. Only the first one was sent
    /// before; the others could not be, for want of room. Counted from when it went out, each of
    /// them would have taken no time.
    #[test]
    fn a_stall_counts_in_every_message_that_was_due_meanwhile() {
        let calm = with(0..0, 1, None, |driver| driver.open(&every_hundred(100)).unwrap());
        assert!(calm.times.ns_at(1.0) < 20.0, "{}", calm.times.ns_at(1.0));
        for room in [1, 100] {
            let ledger = with(3000..4000, room, None, |driver| {
                driver.open(&every_hundred(100)).unwrap();
            });
            assert_eq!((ledger.back, ledger.wrong), (100, 0));
            // The messages due at 3000, 3100, ... 3900 waited for 1000, 900, ... 100 ticks.
            assert!((990.0..1100.0).contains(&ledger.times.ns_at(1.0)), "{room}");
            assert!(ledger.times.ns_at(0.905) >= 95.0, "{room}: {}", ledger.times.ns_at(0.905));
            let middle = ledger.times.ns_at(0.95);
            assert!((450.0..700.0).contains(&middle), "{room}: {middle}");
            assert!(ledger.times.ns_at(0.85) < 40.0, "{room}: {}", ledger.times.ns_at(0.85));
        }
    }

    #[test]
    fn each_way_of_taking_turns_reaches_its_peers() {
        for (turns, all) in [
            (Turns::InTurn, true),
            (Turns::Random, true),
            (Turns::AtOnce, true),
            (Turns::OneBusy, false),
            (Turns::Rested, true),
        ] {
            let ticks = if turns == Turns::Rested { 60_000 } else { 4000 };
            let ledger = with(0..0, 4, None, |driver| {
                driver.ping(64, (turns, 4), &mut Random::new(1, 1), ticks).unwrap();
                let polled = &driver.carrier.resting_polled;
                let is_polled = |link: usize| polled.contains(&link);
                let rests = turns == Turns::Rested;
                assert_eq!([0, 1, 2, 3].map(is_polled), [false, rests, rests, rests], "{turns:?}");
            });
            assert!(ledger.back > 100 && ledger.wrong == 0, "{turns:?}");
            let timed =
                if turns == Turns::Rested { ledger.back.div_ceil(1000) } else { ledger.back };
            let count: u64 = ledger.times.counts().iter().map(|(_, count)| count).sum();
            assert_eq!(count, timed, "{turns:?}");
            let used = (0..4).filter(|&link| ledger.next(link) > link as u64).count();
            assert_eq!(used, if all { 4 } else { 1 }, "{turns:?}");
        }
    }

    #[test]
    fn a_planted_byte_is_counted() {
        fn ping(driver: &mut Driver<'_, Fake<'_>, &dyn Fn() -> u64>) {
            driver.ping(64, (Turns::InTurn, 1), &mut Random::new(1, 1), 1000).unwrap();
        }
        assert_eq!(with(0..0, 4, Some(payload::number(0, 5)), ping).wrong, 1);
        assert_eq!(with(0..0, 4, None, ping).wrong, 0);
    }

    #[test]
    fn the_peak_is_what_comes_back_in_a_tick() {
        let mut peak = 0.0;
        let ledger = with(0..0, 32, None, |driver| {
            peak = driver.peak(Trace::Fixed(64), 8, &mut Random::new(1, 1), 10_000).unwrap();
        });
        assert_eq!((ledger.sent, ledger.wrong), (ledger.back, 0));
        // Eight in flight, each for ten ticks or one more.
        assert!((0.6..0.85).contains(&peak), "{peak}");
    }
}
