//! One simulation of queue pairs from its first step to its final account.

use doorbell::error::SetupError;

use super::super::device::Planted;
use super::super::run::Report;
use super::super::trace::now;
use super::sizes::RECEIVES;
use super::world::{Step, World};

/// An expected event that has not come after this many rounds never comes.
const ROUNDS_MAX: u32 = 20_000;

/// More rounds than a side has receives.
const DRY_ROUNDS: usize = RECEIVES + 10;

/// Runs one seed; `tell` prints every event.
///
/// # Errors
/// The plan could not be built.
pub fn run(seed: u64, planted: Option<Planted>, tell: bool) -> Result<Report, SetupError> {
    let mut run = Run { world: World::new(seed, planted, tell)?, dry: None };
    if tell {
        println!("{:#?}", run.world.plan);
    }
    run.world.note(Step::Phase("busy"));
    run.busy()?;
    run.world.note(Step::Phase("settle"));
    run.settle();
    run.world.note(Step::Phase("probe"));
    run.fair();
    run.probe();
    run.world.note(Step::Phase("dry"));
    run.probe_dry();
    run.world.note(Step::Phase("mail"));
    run.probe_mail();
    run.world.note(Step::Phase("close"));
    run.close_all();
    run.account();
    let mut world = run.world;
    world.counts.datagrams = world.mail.arrived;
    let (failure, history) = (world.failure.take(), world.trace.sum());
    Ok(Report { seed, failure, history, counts: world.counts })
}

/// The phases of a run, one after the other.
struct Run {
    world: World,
    /// The side that posts no receives, if there is one.
    dry: Option<usize>,
}

impl Run {
    fn below(&mut self, bound: usize) -> usize {
        self.world.prng.below(bound as u64) as usize
    }

    /// The main part, in which anything may happen.
    fn busy(&mut self) -> Result<(), SetupError> {
        self.world.dial()?;
        for _ in 0..self.world.plan.steps {
            if self.world.prng.chance(60) {
                self.world.dial()?;
            }
            if self.world.prng.chance(self.world.plan.trouble) {
                self.trouble();
            }
            let (conn, side) = (self.below(self.world.conns.len()), self.below(2));
            if self.world.prng.chance(300) {
                self.world.stock(conn, side);
            }
            if self.world.prng.chance(self.world.plan.pace) {
                self.world.poster(conn, side).burst();
            }
            if self.world.prng.chance(300) {
                self.world.poster(conn, side).ring();
            }
            if self.world.prng.chance(self.world.plan.mail) {
                self.mail_any();
            }
            let desk = self.below(self.world.sides[side].desks.len());
            self.world.poll(side, desk);
            let step = self.world.prng.range(50, 1500);
            self.world.advance(now() + step);
            if self.world.failure.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn mail_any(&mut self) {
        let many = self.world.mail.count_mailers();
        if many == 0 {
            return;
        }
        let from = self.below(many);
        let to = self.below(many + 1);
        let receiver = self.below(many);
        if self.world.prng.chance(512)
            && let Err(what) = self.world.mail.stock(receiver)
        {
            self.world.fail(what);
        }
        self.mail_to(from, (to < many).then_some(to));
    }

    fn mail_to(&mut self, from: usize, to: Option<usize>) {
        match self.world.mail.send(&mut self.world.prng, from, to) {
            Ok(Some(length)) => self.world.note(Step::Mail { from, to, length }),
            Ok(None) => {}
            Err(what) => self.world.fail(what),
        }
    }

    /// Makes one thing go wrong.
    fn trouble(&mut self) {
        let until = now() + 1000 + self.below(600_000) as u64;
        let conn = self.below(self.world.conns.len());
        let what = self.below(4);
        if what == 0 {
            self.world.note(Step::Jump { to: until });
            self.world.advance(until);
        } else if what == 1 && self.world.conns[conn].may_post(0) {
            let lost = self.world.prng.chance(512);
            self.world.end_conn(conn, lost);
        } else if !self.world.conns[conn].closed {
            self.world.note(Step::Cut { conn, until });
            self.world.wire.cut(conn, until);
        }
    }

    /// Everybody polls, everybody but the dry side has receives, and time goes on.
    fn round(&mut self) {
        let mut found = 0;
        for side in 0..2 {
            for desk in 0..self.world.sides[side].desks.len() {
                found += self.world.poll(side, desk);
            }
            for conn in 0..self.world.conns.len() {
                self.world.poster(conn, side).ring();
                if self.dry != Some(side) {
                    self.world.stock(conn, side);
                }
            }
        }
        let soon = now() + 500;
        let next = self.world.wire.next_at().filter(|_| found == 0).unwrap_or(soon);
        self.world.advance(next.clamp(soon, soon + 20_000));
    }

    /// Runs rounds until the condition holds; fails with `what` if it never does.
    fn rounds_until(&mut self, what: &str, holds: impl Fn(&World) -> bool) {
        for _ in 0..ROUNDS_MAX {
            if self.world.failure.is_some() || holds(&self.world) {
                return;
            }
            self.round();
        }
        let rest: Vec<_> =
            self.world.conns.iter().map(|conn| (conn.closed, &conn.directions)).collect();
        let rest = format!("no progress: {what}: {rest:?}");
        self.world.fail(rest);
    }

    /// Runs until everything that was posted is over.
    fn settle(&mut self) {
        for conn in 0..self.world.conns.len() {
            for side in 0..2 {
                self.settle_end(conn, side);
            }
        }
        self.rounds_until("connections do not come to rest", |world| {
            let rests = |conn: &super::conn::Conn| {
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
        let last = self.world.conns[conn].directions[side].queue.back();
        if last.is_some_and(|last| !last.signaled) {
            self.world.poster(conn, side).post_last();
        }
    }

    /// From here on nothing is lost.
    fn fair(&mut self) {
        let weather = self.world.wire.weather();
        (weather.loss, weather.double, weather.reorder) = (0, 0, 0);
        for conn in 0..self.world.conns.len() {
            self.world.wire.cut(conn, 0);
        }
    }

    /// Every connection that is up still works.
    fn probe(&mut self) {
        for conn in 0..self.world.conns.len() {
            for side in 0..2 {
                self.world.poster(conn, side).post_message();
                self.world.poster(conn, side).post_last();
            }
        }
        self.settle();
    }

    /// A side has no receives left for the messages of its peer. Its own requests go well: no
    /// response waits behind a message.
    fn probe_dry(&mut self) {
        let dry = self.below(2);
        self.dry = Some(dry);
        for _ in 0..DRY_ROUNDS {
            for conn in 0..self.world.conns.len() {
                self.world.poster(conn, 1 - dry).post_message();
            }
            self.round();
        }
        for conn in 0..self.world.conns.len() {
            self.world.poster(conn, dry).post_last();
        }
        self.rounds_until("requests wait for receives of their own side", |world| {
            let rests = |conn: &super::conn::Conn| {
                conn.closed || conn.ending || conn.directions[dry].rests()
            };
            world.conns.iter().all(rests)
        });
        self.dry = None;
        self.settle();
    }

    /// If nothing is lost and there are receives, each datagram arrives once.
    fn probe_mail(&mut self) {
        let many = self.world.mail.count_mailers();
        // First, everything that is on its way arrives.
        self.mail_rounds();
        let first = self.world.mail.count();
        for from in 0..many {
            for to in 0..=many {
                self.mail_to(from, (to < many).then_some(to));
            }
        }
        self.mail_rounds();
        if let Err(what) = self.world.mail.all_arrived(first) {
            self.world.fail(what);
        }
    }

    fn mail_rounds(&mut self) {
        for _ in 0..80 {
            for who in 0..self.world.mail.count_mailers() {
                if let Err(what) = self.world.mail.stock(who) {
                    self.world.fail(what);
                }
            }
            self.round();
        }
    }

    /// Ends every connection, and waits until all of them are over.
    fn close_all(&mut self) {
        for conn in 0..self.world.conns.len() {
            if !self.world.conns[conn].ending {
                self.world.end_conn(conn, false);
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
        if self.world.failure.is_some() {
            return;
        }
        for side in 0..2 {
            let there = &self.world.sides[side];
            let word = there.field.word(0);
            if let Err(what) = there.adds.account(word) {
                self.world.fail(format!("side {side}: {what}"));
            }
            self.world.counts.atomics += self.world.sides[side].adds.count();
            if let Some((posted, known)) = self.world.strays(side) {
                self.world
                    .fail(format!("side {side}: {posted} receives are posted, and not {known}"));
            }
        }
        for conn in 0..self.world.conns.len() {
            for side in 0..2 {
                let direction = &self.world.conns[conn].directions[side];
                let word = self.world.sides[1 - side].field.word(direction.word_place());
                let (least, most) = (direction.word_done, direction.word);
                if !(least..=most).contains(&word) {
                    let what = format!("its word is {word}, and not {least} to {most}");
                    self.world.fail_at((conn, side), &what);
                }
            }
        }
    }
}
