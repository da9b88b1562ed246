//! `load`: an open loop. Messages are due at fixed times, whether or not earlier ones are back. A
//! time counts from when the message was due, not from when there was room to send it. So a stall
//! shows in every message that was due meanwhile; a closed loop would never have sent those.

use std::time::Duration;

use doorbell::Fabric;

use crate::error::Failure;
use crate::machine::clock::{self, Clock};
use crate::measure::piece::Piece;
use crate::measure::times::{self, Times};
use crate::meet::wire;
use crate::side::session::Session;

/// The most messages that go out between two turns.
const BURST: u64 = 16;

/// The figures.
pub(crate) struct Measured {
    pub(crate) piece: Piece,
    /// Messages that were due and never found room. The time they waited counts.
    pub(crate) unsent: u64,
}

/// Sends `rate` messages a second for `time`, and waits for their echoes.
pub(crate) fn measure<F: Fabric>(
    session: &mut Session<F>,
    size: usize,
    rate: f64,
    clock: &Clock,
    time: Duration,
) -> Result<Measured, Failure> {
    let mut payload = wire::filled(size);
    let mut warm = Schedule::new(rate, clock, time / 5)?;
    let mut done = Schedule::new(rate, clock, time)?;
    let wrong_before = session.worker.handler().wrong;
    warm.run(session, &mut payload)?;
    session.settle(wire::MARK)?;
    session.mark();
    done.run(session, &mut payload)?;
    let tally = session.tally();
    session.settle(wire::END)?;
    let lost = session.worker.handler().wrong - wrong_before;
    let passed = Duration::from_nanos((done.passed as f64 * clock.tick_ns) as u64);
    let piece = Piece {
        half_rtt_ns: Some(done.times.half()),
        passed: Some(passed),
        messages: done.sent,
        lost,
        tally,
        parts: done.times.parts(),
    };
    Ok(Measured { piece, unsent: done.count - done.sent })
}

/// When messages are due, and how far they got. Times are in ticks.
struct Schedule {
    /// Time between two messages.
    step: f64,
    /// Messages that will be due.
    count: u64,
    /// For how long messages are due.
    time: u64,
    first: u64,
    sent: u64,
    back: u64,
    times: Times,
    /// Length of a part.
    part: u64,
    /// When the next part begins.
    next_part: u64,
    /// From the first due time to the last echo.
    passed: u64,
}

impl Schedule {
    fn new(rate: f64, clock: &Clock, time: Duration) -> Result<Schedule, Failure> {
        let parts = times::parts(time);
        let time = clock.ticks_in(time);
        let step = 1e9 / rate / clock.tick_ns;
        Ok(Schedule {
            step,
            count: ((time as f64 / step).round() as u64).max(1),
            time,
            first: 0,
            sent: 0,
            back: 0,
            times: Times::in_parts(clock, parts)?,
            part: time / u64::from(parts),
            next_part: 0,
            passed: 0,
        })
    }

    /// When that message is due.
    #[inline(always)]
    fn due(&self, number: u64) -> u64 {
        self.first + (number as f64 * self.step) as u64
    }

    /// How many messages are due by then.
    #[inline(always)]
    fn due_by(&self, now: u64) -> u64 {
        let steps = now.saturating_sub(self.first) as f64 / self.step;
        (steps as u64 + 1).min(self.count)
    }

    fn run<F: Fabric>(
        &mut self,
        session: &mut Session<F>,
        payload: &mut [u8],
    ) -> Result<(), Failure> {
        let before = session.worker.handler().echoes;
        self.first = clock::ticks();
        let mut now = self.first;
        self.next_part = now + self.part;
        while self.back < self.count && (now - self.first < self.time || self.back < self.sent) {
            if now - self.first < self.time {
                self.send(session, payload, before, self.due_by(now))?;
            }
            session.turn()?;
            let echoes = session.worker.handler().echoes - before;
            now = clock::ticks();
            if now >= self.next_part {
                self.next_part += self.part;
                self.times.next_part();
            }
            while self.back < echoes {
                self.times.enter(now.saturating_sub(self.due(self.back)));
                self.back += 1;
            }
        }
        self.passed = now - self.first;
        for number in self.sent..self.count {
            self.times.enter(now.saturating_sub(self.due(number)));
        }
        Ok(())
    }

    /// Sends what is due as far as there is room: a lone message now, several as a batch.
    #[inline(always)]
    fn send<F: Fabric>(
        &mut self,
        session: &mut Session<F>,
        payload: &mut [u8],
        before: u64,
        due: u64,
    ) -> Result<(), Failure> {
        let lone = due - self.sent == 1;
        let until = due.min(self.sent + BURST);
        while self.sent < until {
            wire::stamp(payload, before + self.sent);
            if !session.try_send(payload, lone)? {
                return Ok(());
            }
            self.sent += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_due_at_the_rate_from_the_start() {
        let clock = Clock { tick_ns: 0.5, step_ns: 10.0 };
        let mut schedule = Schedule::new(1e6, &clock, Duration::from_millis(1)).unwrap();
        schedule.first = 100;
        assert_eq!((schedule.count, schedule.due(0), schedule.due(3)), (1000, 100, 6100));
        // The first message is due at once. None is due before its time, and none after the last.
        assert_eq!(schedule.due_by(100), 1);
        assert_eq!(schedule.due_by(2099), 1);
        assert_eq!(schedule.due_by(2100), 2);
        assert_eq!(schedule.due_by(u64::MAX / 2), 1000);
        assert_eq!(Schedule::new(0.1, &clock, Duration::from_secs(1)).unwrap().count, 1);
    }
}
