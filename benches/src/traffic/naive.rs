//! The naive ring, both sides: the simplest way to exchange messages over shared memory. Each peer
//! has a lane of one slot each way, or of many slots where many messages are in flight.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::error::Failure;
use crate::machine::clock;
use crate::meet::patience::{COLD_TURNS, PATIENCE};
use crate::traffic::drive::Carrier;
use crate::traffic::ledger::Ledger;
use crate::traffic::shared::{Lane, Memory};
use crate::traffic::work::Work;

/// Slots of a lane with many messages in flight.
pub(crate) const SLOTS: u64 = 64;

/// The serving side checks whether it must end after this many polls in vain.
const LOOK_EVERY: u32 = 1 << 10;

/// Where the first word of the memory is: the runs that the connecting side has ended.
const ENDED: usize = 0;

/// The lanes of all peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) links: usize,
    pub(crate) slots: u64,
    pub(crate) bytes_max: usize,
}

impl Layout {
    /// Bytes of memory for them.
    pub(crate) fn bytes(&self) -> usize {
        Memory::LANES + 2 * self.links * Lane::bytes(self.slots, self.bytes_max)
    }

    /// Every second lane: the ones to the serving side, or those that lead back.
    fn lanes(&self, memory: &Arc<Memory>, back: bool) -> Vec<Lane> {
        let lane =
            |link| Lane::new(memory, 2 * link + usize::from(back), self.slots, self.bytes_max);
        (0..self.links).map(lane).collect()
    }
}

/// The connecting side.
pub(crate) struct Naive {
    memory: Arc<Memory>,
    to: Vec<Lane>,
    from: Vec<Lane>,
    ledger: Ledger,
    in_vain: u32,
    /// Since when this side has waited in vain for a message.
    idle_since: Option<Instant>,
}

impl Naive {
    pub(crate) fn new(memory: &Arc<Memory>, layout: &Layout, ledger: Ledger) -> Naive {
        let (to, from) = (layout.lanes(memory, false), layout.lanes(memory, true));
        Naive { memory: Arc::clone(memory), to, from, ledger, in_vain: 0, idle_since: None }
    }

    /// Tells the serving side that this run is over.
    pub(crate) fn end(&mut self) {
        // While the other contestant is measured, nobody waits for this one.
        (self.in_vain, self.idle_since) = (0, None);
        self.memory.word(ENDED).fetch_add(1, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        self.in_vain = 0;
        if self.ledger.back == self.ledger.sent {
            self.idle_since = None;
            return Ok(());
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        if since.elapsed() > PATIENCE {
            let seconds = PATIENCE.as_secs();
            return Err(Failure::new(format!("the naive ring brought nothing for {seconds} s")));
        }
        Ok(())
    }
}

impl Carrier for Naive {
    #[inline(always)]
    fn send(&mut self, link: usize, bytes: &[u8], _now: bool) -> Result<bool, Failure> {
        Ok(self.to[link].put(bytes))
    }

    #[inline(always)]
    fn poll(&mut self) -> Result<(), Failure> {
        let mut is_idle = true;
        for link in self.ledger.to_poll() {
            let lane = &mut self.from[link];
            while let Some(bytes) = lane.get() {
                self.ledger.came(link, bytes, clock::ticks);
                lane.done();
                is_idle = false;
            }
        }
        if is_idle {
            self.in_vain += 1;
            if self.in_vain >= COLD_TURNS {
                self.look()?;
            }
        } else {
            (self.in_vain, self.idle_since) = (0, None);
        }
        Ok(())
    }

    #[inline(always)]
    fn poll_resting(&mut self, link: usize) -> Result<(), Failure> {
        black_box(self.from[link].get());
        Ok(())
    }

    fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }
}

/// The serving side.
pub(crate) struct Server {
    memory: Arc<Memory>,
    from: Vec<Lane>,
    to: Vec<Lane>,
    pub(crate) work: Work,
    /// Runs served.
    runs: u64,
}

impl Server {
    pub(crate) fn new(memory: &Arc<Memory>, layout: &Layout, work: Work) -> Server {
        let (from, to) = (layout.lanes(memory, false), layout.lanes(memory, true));
        Server { memory: Arc::clone(memory), from, to, work, runs: 0 }
    }

    /// Sends every message back until the connecting side ends the run.
    pub(crate) fn run(&mut self) {
        let mut in_vain = 0;
        loop {
            if self.poll() {
                in_vain = 0;
                continue;
            }
            in_vain += 1;
            if in_vain == LOOK_EVERY {
                in_vain = 0;
                if self.memory.word(ENDED).load(Ordering::Acquire) > self.runs {
                    self.runs += 1;
                    return;
                }
            }
        }
    }

    /// Takes what is there. False if there is nothing.
    #[inline(always)]
    fn poll(&mut self) -> bool {
        let mut is_busy = false;
        for (link, (from, to)) in self.from.iter_mut().zip(&mut self.to).enumerate() {
            while let Some(bytes) = from.get() {
                self.work.take(link, bytes);
                // The other side makes room whenever it polls, and it never waits for this one.
                while !to.put(bytes) {}
                from.done();
                is_busy = true;
            }
        }
        is_busy
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::clock::Clock;
    use crate::traffic::drive::Driver;
    use crate::traffic::payload;
    use crate::traffic::random::Random;
    use crate::traffic::rows::Turns;
    use crate::traffic::schedule::Trace;

    fn pair(links: usize, slots: u64) -> (Naive, Server) {
        let layout = Layout { links, slots, bytes_max: 200 };
        let memory = Arc::new(Memory::new(layout.bytes()).unwrap());
        let ledger = Ledger::new(links, &Clock { tick_ns: 1.0, step_ns: 1.0 }).unwrap();
        (
            Naive::new(&memory, &layout, ledger),
            Server::new(&memory, &layout, Work::new(links, 0, None)),
        )
    }

    /// Both sides count a byte that changes on the way, and no other.
    #[test]
    fn a_planted_byte_is_counted_on_both_sides() {
        for (links, turns) in [(1, Turns::InTurn), (5, Turns::AtOnce)] {
            let (mut naive, mut server) = pair(links, 1);
            std::thread::scope(|scope| {
                let serving = scope.spawn(|| server.run());
                let payload = &mut [0; 200];
                let spoiled = Some(payload::number(0, 3));
                let carrier = &mut naive;
                let mut driver = Driver { carrier, now: clock::ticks, payload, spoiled };
                let random = &mut Random::new(1, 1);
                for _ in 0..20 {
                    driver.ping(200, (turns, links), random, 1).unwrap();
                }
                naive.end();
                serving.join().unwrap();
            });
            let sent = naive.ledger.sent;
            assert!(sent >= 10 && naive.ledger.back == sent);
            assert_eq!((naive.ledger.wrong, server.work.take_counts()), (1, (sent, 1)));
        }
    }

    #[test]
    fn many_messages_are_in_flight_and_each_run_ends() {
        let (mut naive, mut server) = pair(1, SLOTS);
        for _ in 0..3 {
            std::thread::scope(|scope| {
                let serving = scope.spawn(|| server.run());
                let payload = &mut [0; 200];
                let carrier = &mut naive;
                let mut driver = Driver { carrier, now: clock::ticks, payload, spoiled: None };
                let trace = Trace::Fixed(200);
                driver.peak(trace, 2 * SLOTS, &mut Random::new(1, 1), 1_000_000).unwrap();
                naive.end();
                serving.join().unwrap();
            });
            assert_eq!((naive.ledger.wrong, server.work.take_counts().1), (0, 0));
        }
        assert!(naive.ledger.back > 0);
    }

    #[test]
    fn a_ring_that_brings_nothing_is_an_error() {
        let long = PATIENCE + Duration::from_secs(1);
        let (mut naive, _server) = pair(1, 1);
        naive.ledger.sent(0, Some(0), 8);
        assert!(naive.look().is_ok());
        naive.idle_since = naive.idle_since.map(|since| since - long);
        assert!(naive.look().unwrap_err().to_string().contains("brought nothing"));
        // The time of the other contestant does not count.
        naive.end();
        assert!(naive.look().is_ok());
        // Nobody waits for a ring whose messages are all back.
        naive.idle_since = naive.idle_since.map(|since| since - long);
        naive.ledger.back = naive.ledger.sent;
        assert!(naive.look().is_ok());
    }
}
