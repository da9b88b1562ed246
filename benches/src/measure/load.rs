//! `load`: an open loop. Messages are due evenly, independently of each other or as recorded
//! ([`Dues`]), whether or not earlier ones are back. A time counts from when the message was due,
//! not from when there was room to send it, until its echo is back. So a stall shows in every
//! message that was due meanwhile; a closed loop would never have sent those.

use std::time::Duration;

use doorbell::Fabric;

use crate::ask::plan::Step;
use crate::error::Failure;
use crate::machine::clock::{self, Clock};
use crate::machine::interrupt;
use crate::measure::arrivals::Dues;
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
    /// Messages sent a second, divided by those that were due a second.
    pub(crate) times_offered: f64,
}

/// Sends at the rate of the step for its time, and waits for the echoes.
pub(crate) fn measure<F: Fabric>(
    session: &mut Session<F>,
    step: &Step,
    clock: &Clock,
) -> Result<Measured, Failure> {
    let time = step.piece_time();
    let mut payload = wire::filled(step.request.size as usize);
    let mut warm = Schedule::new(step, clock, time / 5)?;
    let mut done = Schedule::new(step, clock, time)?;
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
    let times_offered = done.times_offered();
    Ok(Measured { piece, unsent: done.due - done.sent, times_offered })
}

/// When messages are due, and how far they got. Times are in ticks.
struct Schedule {
    /// The due times, as sending needs them.
    dues: Dues,
    /// The same due times once more, as the echoes need them.
    dues_back: Dues,
    /// For how long messages are due.
    time: u64,
    first: u64,
    /// When the next message is due that is not counted in `due`.
    next: u64,
    /// Messages that were due so far.
    due: u64,
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
    fn new(step: &Step, clock: &Clock, time: Duration) -> Result<Schedule, Failure> {
        let parts = times::parts(time);
        let time = clock.ticks_in(time);
        let apart = 1e9 / step.rate / clock.tick_ns;
        let dues = Dues::new(&step.arrivals, (apart, time), step.seed);
        Ok(Schedule {
            dues_back: dues.clone(),
            dues,
            time,
            first: 0,
            next: 0,
            due: 0,
            sent: 0,
            back: 0,
            times: Times::in_parts(clock, parts)?,
            part: time / u64::from(parts),
            next_part: 0,
            passed: 0,
        })
    }

    /// Counts the messages that are due by then, in ticks after the first. Returns how many were
    /// due at all.
    #[inline(always)]
    fn due_by(&mut self, passed: u64) -> u64 {
        while self.next <= passed {
            self.due += 1;
            self.next = self.dues.next();
        }
        self.due
    }

    /// Enters the time of the message that is next to come back.
    #[inline(always)]
    fn enter(&mut self, now: u64) {
        let due = self.first + self.dues_back.next();
        self.times.enter(now.saturating_sub(due));
        self.back += 1;
    }

    fn run<F: Fabric>(
        &mut self,
        session: &mut Session<F>,
        payload: &mut [u8],
    ) -> Result<(), Failure> {
        let before = session.worker.handler().echoes;
        self.next = self.dues.next();
        self.first = clock::ticks();
        let mut now = self.first;
        self.next_part = now + self.part;
        loop {
            let passed = now - self.first;
            let is_over = passed >= self.time || interrupt::is_asked();
            if !is_over {
                let due = self.due_by(passed);
                self.send(session, payload, before, due)?;
            }
            session.turn()?;
            let echoes = session.worker.handler().echoes - before;
            now = clock::ticks();
            if now >= self.next_part {
                self.next_part += self.part;
                self.times.next_part();
            }
            while self.back < echoes {
                self.enter(now);
            }
            // After the end those that found no room stay unsent.
            if self.back == self.sent && (is_over || self.is_done()) {
                break;
            }
        }
        self.passed = now - self.first;
        // What would have been due after Ctrl-C is not unsent.
        self.due_by(self.passed.min(self.time));
        while self.back < self.due {
            self.enter(now);
        }
        Ok(())
    }

    /// The rate that was reached, divided by the rate at which messages were due. Waiting for the
    /// last echoes beyond the time of the schedule counts against it.
    fn times_offered(&self) -> f64 {
        let sent = self.sent as f64 / self.passed.max(1) as f64;
        let due = self.due as f64 / self.passed.min(self.time).max(1) as f64;
        sent / due
    }

    /// True if every message was sent.
    fn is_done(&self) -> bool {
        self.next == u64::MAX && self.sent == self.due
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
    use crate::ask::request::{Request, Test};
    use crate::ask::values::Arrivals;

    #[test]
    fn messages_are_due_at_the_rate_from_the_start() {
        let clock = Clock { tick_ns: 0.5, step_ns: 10.0 };
        let step = |rate| Step { rate, ..Step::new(Request::new(Test::Load, 8)) };
        let schedule = |rate| {
            let mut schedule =
                Schedule::new(&step(rate), &clock, Duration::from_millis(1)).unwrap();
            schedule.next = schedule.dues.next();
            schedule
        };
        let mut fixed = schedule(1e6);
        // The first message is due at once. None is due before its time, and none after the last.
        assert_eq!([0, 1999, 2000, 2001, 6000].map(|at| fixed.due_by(at)), [1, 1, 2, 2, 4]);
        assert!(!fixed.is_done());
        assert_eq!(fixed.due_by(u64::MAX / 2), 1000);
        fixed.sent = 1000;
        assert!(fixed.is_done());
        assert_eq!(schedule(0.1).due_by(u64::MAX / 2), 1);
        assert_eq!(step(1.0).arrivals, Arrivals::Fixed);
        // Half of the messages in twice the time is a quarter of the rate; an early end is none.
        (fixed.due, fixed.sent, fixed.passed) = (1000, 500, 2 * fixed.time);
        assert_eq!(fixed.times_offered(), 0.25);
        (fixed.due, fixed.sent, fixed.passed) = (10, 10, fixed.time / 2);
        assert_eq!(fixed.times_offered(), 1.0);
        // An echo counts from when its message was due.
        (fixed.first, fixed.back) = (100, 0);
        fixed.enter(100 + 500);
        fixed.enter(100 + 2000 + 500);
        let half = fixed.times.half();
        assert_eq!((half.p50, half.max, fixed.back), (125.0, 125.0, 2));
    }
}
