//! One simulation of queue pairs from its first step to its final account.

use doorbell::error::SetupError;

use super::super::device::Planted;
use super::super::run::Report;
use super::super::trace::now;
use super::world::{Step, World};

/// An expected event that has not come after this many rounds never comes.
const ROUNDS_MAX: u32 = 20_000;

/// Runs one seed; `tell` prints every event.
///
/// # Errors
/// The plan could not be built.
pub fn run(seed: u64, planted: Option<Planted>, tell: bool) -> Result<Report, SetupError> {
    let mut world = World::new(seed, planted, tell)?;
    if tell {
        println!("{:#?}", world.plan);
    }
    world.note(Step::Phase("busy"));
    world.busy()?;
    world.note(Step::Phase("settle"));
    world.settle();
    world.note(Step::Phase("probe"));
    world.fair();
    world.probe();
    world.note(Step::Phase("mail"));
    world.probe_mail();
    world.note(Step::Phase("close"));
    world.close_all();
    world.account();
    world.counts.datagrams = world.mail.arrived;
    let (failure, history) = (world.failure.take(), world.trace.sum());
    Ok(Report { seed, failure, history, counts: world.counts })
}

impl World {
    fn below(&mut self, bound: usize) -> usize {
        self.prng.below(bound as u64) as usize
    }

    /// The main part, in which anything may happen.
    fn busy(&mut self) -> Result<(), SetupError> {
        self.dial()?;
        for _ in 0..self.plan.steps {
            if self.prng.chance(60) {
                self.dial()?;
            }
            if self.prng.chance(self.plan.trouble) {
                self.trouble();
            }
            let (conn, side) = (self.below(self.conns.len()), self.below(2));
            if self.prng.chance(300) {
                self.stock(conn, side);
            }
            if self.prng.chance(self.plan.pace) {
                self.burst(conn, side);
            }
            if self.prng.chance(300) {
                self.ring(conn, side);
            }
            if self.prng.chance(self.plan.mail) {
                self.mail_any();
            }
            let desk = self.below(self.sides[side].desks.len());
            self.poll(side, desk);
            let step = self.prng.range(50, 1500);
            self.advance(now() + step);
            if self.failure.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn mail_any(&mut self) {
        let many = self.mail.count_mailers();
        if many == 0 {
            return;
        }
        let from = self.below(many);
        let to = self.below(many + 1);
        let receiver = self.below(many);
        if self.prng.chance(512)
            && let Err(what) = self.mail.stock(receiver)
        {
            self.fail(what);
        }
        self.mail_to(from, (to < many).then_some(to));
    }

    fn mail_to(&mut self, from: usize, to: Option<usize>) {
        match self.mail.send(&mut self.prng, from, to) {
            Ok(Some(length)) => self.note(Step::Mail { from, to, length }),
            Ok(None) => {}
            Err(what) => self.fail(what),
        }
    }

    /// Makes one thing go wrong.
    fn trouble(&mut self) {
        let until = now() + 1000 + self.below(600_000) as u64;
        let conn = self.below(self.conns.len());
        let what = self.below(4);
        if what == 0 {
            self.note(Step::Jump { to: until });
            self.advance(until);
        } else if what == 1 && self.conns[conn].may_post(0) {
            let lost = self.prng.chance(512);
            self.end_conn(conn, lost);
        } else if !self.conns[conn].closed {
            self.note(Step::Cut { conn, until });
            self.wire.cut(conn, until);
        }
    }

    /// Everybody polls, everybody has receives, and time goes on.
    fn round(&mut self) {
        let mut found = 0;
        for side in 0..2 {
            for desk in 0..self.sides[side].desks.len() {
                found += self.poll(side, desk);
            }
            for conn in 0..self.conns.len() {
                self.ring(conn, side);
                self.stock(conn, side);
            }
        }
        let soon = now() + 500;
        let next = self.wire.next_at().filter(|_| found == 0).unwrap_or(soon);
        self.advance(next.clamp(soon, soon + 20_000));
    }

    /// Runs rounds until the condition holds; fails with `what` if it never does.
    fn rounds_until(&mut self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if self.failure.is_some() || holds(self) {
                return;
            }
            self.round();
        }
        let rest: Vec<_> = self.conns.iter().map(|conn| (conn.closed, &conn.directions)).collect();
        let rest = format!("no progress: {what}: {rest:?}");
        self.fail(rest);
    }

    /// Runs until everything that was posted is over.
    fn settle(&mut self) {
        for conn in 0..self.conns.len() {
            for side in 0..2 {
                self.settle_end(conn, side);
            }
        }
        self.rounds_until("connections do not come to rest", |world| {
            let rests = |conn: &super::world::Conn| {
                conn.closed
                    || !conn.ending
                        && conn.directions.iter().all(super::direction::Direction::rests)
            };
            world.conns.iter().all(rests)
        });
    }

    /// If the last request of an end does not complete, posts one behind it that does.
    fn settle_end(&mut self, conn: usize, side: usize) {
        self.rounds_until("a connection does not begin, or has no room", |world| {
            let known = &world.conns[conn];
            let room = known.directions[side].queue.len() < world.plan.sides[side].depth;
            known.ending || known.closed || known.may_post(side) && room
        });
        let last = self.conns[conn].directions[side].queue.back();
        if last.is_some_and(|last| !last.signaled) {
            self.post_last(conn, side);
        }
    }

    /// From here on nothing is lost.
    fn fair(&mut self) {
        let weather = self.wire.weather();
        (weather.loss, weather.double, weather.reorder) = (0, 0, 0);
        for conn in 0..self.conns.len() {
            self.wire.cut(conn, 0);
        }
    }

    /// Every connection that is up still works.
    fn probe(&mut self) {
        for conn in 0..self.conns.len() {
            for side in 0..2 {
                self.post_message(conn, side);
                self.post_last(conn, side);
            }
        }
        self.settle();
    }

    /// If nothing is lost and there are receives, each datagram arrives once.
    fn probe_mail(&mut self) {
        let many = self.mail.count_mailers();
        // First, everything that is on its way arrives.
        self.mail_rounds();
        let first = self.mail.count();
        for from in 0..many {
            for to in 0..=many {
                self.mail_to(from, (to < many).then_some(to));
            }
        }
        self.mail_rounds();
        if let Err(what) = self.mail.all_arrived(first) {
            self.fail(what);
        }
    }

    fn mail_rounds(&mut self) {
        for _ in 0..80 {
            for who in 0..self.mail.count_mailers() {
                if let Err(what) = self.mail.stock(who) {
                    self.fail(what);
                }
            }
            self.round();
        }
    }

    /// Ends every connection, and waits until all of them are over.
    fn close_all(&mut self) {
        for conn in 0..self.conns.len() {
            if !self.conns[conn].ending {
                self.end_conn(conn, false);
            }
        }
        self.rounds_until("connections do not end", |world| {
            world.conns.iter().all(|conn| conn.closed)
        });
        for _ in 0..8 {
            self.round();
        }
    }

    /// Checks the words and the queues at the end.
    fn account(&mut self) {
        if self.failure.is_some() {
            return;
        }
        for side in 0..2 {
            let there = &self.sides[side];
            let word = there.field.word(0);
            if let Err(what) = there.adds.account(word) {
                self.fail(format!("side {side}: {what}"));
            }
            self.counts.atomics += self.sides[side].adds.count();
            if let Some((posted, known)) = self.strays(side) {
                self.fail(format!("side {side}: {posted} receives are posted, and not {known}"));
            }
        }
        for conn in 0..self.conns.len() {
            for side in 0..2 {
                let direction = &self.conns[conn].directions[side];
                let word = self.sides[1 - side].field.word(direction.word_place());
                let (least, most) = (direction.word_done, direction.word);
                if !(least..=most).contains(&word) {
                    let what = format!("its word is {word}, and not {least} to {most}");
                    self.fail_at((conn, side), &what);
                }
            }
        }
    }
}
