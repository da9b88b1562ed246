//! One simulation from its first step to its final account.

use doorbell::error::SetupError;
use doorbell::provider::fault::{DOZE_MAX, Odds};
use doorbell::soft::sim;

use super::book::{Counts, Happening, State};
use super::clerk;
use super::device::Planted;
use super::trace::now;
use super::world::World;

/// If nothing that is expected has come for this many rounds, the rest never comes. A peer may
/// drain for 50 000 turns of its worker, and one that waits for credit gets it after 16 384 idle
/// turns.
const ROUNDS_MAX: u32 = 120_000;

/// Rounds at the end: enough for every device to wake, and for every worker to give its last
/// receives back.
const ROUNDS_LAST: u64 = DOZE_MAX + 400;

/// The result of a seed.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The broken rule, if one was broken.
    pub failure: Option<String>,
    /// The history as one number, and its number of events.
    pub history: (u64, u64),
    /// Counts.
    pub counts: Counts,
}

/// Runs one seed; `tell` prints every event.
///
/// # Errors
/// The plan could not be built.
pub fn run(seed: u64, planted: Option<Planted>, tell: bool) -> Result<Report, SetupError> {
    let mut run = Run { world: World::new(seed, planted, tell)? };
    if tell {
        println!("{:#?}", run.world.plan);
    }
    run.phase("busy");
    run.busy()?;
    run.world.book.borrow_mut().still = true;
    run.phase("settle");
    run.settle();
    run.phase("probe");
    run.probe();
    run.settle();
    run.phase("close");
    run.close_all();
    run.account();
    run.account_words();
    let mut book = run.world.book.borrow_mut();
    for desk in &run.world.desks {
        book.counts.partial += desk.worker.stats().post_full;
        book.counts.deferred += desk.worker.stats().deferred;
    }
    let (failure, history, counts) = (book.failure.take(), book.trace.sum(), book.counts);
    Ok(Report { seed, failure, history, counts })
}

/// How long to wait for what is expected. It counts from the last that came: one end may begin only
/// when another has taken as long as it may.
#[derive(Default)]
struct Wait {
    rounds: u32,
    /// [`Book::came`](super::book::Book::came) at the last look.
    came: u64,
}

impl Wait {
    /// One more round? False if nothing has come for [`ROUNDS_MAX`].
    fn goes_on(&mut self, came: u64) -> bool {
        if came != self.came {
            *self = Wait { rounds: 0, came };
        }
        self.rounds += 1;
        self.rounds <= ROUNDS_MAX
    }
}

/// The phases of a run, one after the other.
struct Run {
    world: World,
}

impl Run {
    fn phase(&self, name: &'static str) {
        self.world.note(Happening::Phase(name));
    }

    fn failed(&self) -> bool {
        self.world.book.borrow().failure.is_some()
    }

    fn fail(&self, what: String) {
        self.world.book.borrow_mut().fail(what);
    }

    fn came(&self) -> u64 {
        self.world.book.borrow().came
    }

    fn conns(&self) -> usize {
        self.world.book.borrow().conns.len()
    }

    /// A number below `bound`.
    fn below(&self, bound: usize) -> usize {
        self.world.book.borrow_mut().prng.below(bound as u64) as usize
    }

    fn chance(&self, odds: u32) -> bool {
        self.world.book.borrow_mut().prng.chance(odds)
    }

    /// The main part, in which anything may happen.
    fn busy(&mut self) -> Result<(), SetupError> {
        self.world.dial()?;
        for _ in 0..self.world.plan.steps {
            if self.chance(if self.world.plan.crowd { 512 } else { 30 }) {
                self.world.dial()?;
            }
            if self.chance(self.world.plan.habits.trouble) {
                self.trouble();
            }
            let desk = self.below(self.world.desks.len());
            if self.world.desks[desk].stalled_until <= now() {
                if self.world.plan.crowd && self.chance(100) {
                    self.shout(desk);
                }
                self.world.turn(desk);
            }
            let step = self.world.book.borrow_mut().prng.range(50, 1500);
            self.world.advance(now() + step);
            if self.failed() {
                break;
            }
        }
        Ok(())
    }

    /// A worker sends to all its peers at once, which are more than it has batches.
    fn shout(&mut self, desk: usize) {
        let side = self.world.desks[desk].side;
        let mut book = self.world.book.borrow_mut();
        let mut out = self.world.desks[desk].worker.outbox();
        for conn in book.up_at(side, desk) {
            clerk::send(&mut book, &mut out, (conn, side));
        }
    }

    /// Makes one thing go wrong.
    fn trouble(&mut self) {
        let until = now() + 1000 + self.below(600_000) as u64;
        match self.below(8) {
            0 => {
                let desk = self.below(self.world.desks.len());
                self.world.desks[desk].stalled_until = until;
                self.world.note(Happening::Stall { desk, until });
                return;
            }
            1 => {
                self.world.note(Happening::Jump { to: until });
                return self.world.advance(until);
            }
            2 => return self.change(),
            _ => {}
        }
        let alive = self.world.alive();
        if alive.is_empty() {
            return;
        }
        let conn = alive[self.below(alive.len())];
        let side = self.below(2);
        match self.below(6) {
            0 => self.close(conn, side),
            1 => {
                self.world.excuse(conn);
                self.world.end(conn, Some(side));
            }
            2 => {
                let lost = self.chance(512);
                self.world.break_end(conn, side, lost);
            }
            3 => {
                self.world.note(Happening::Cut { conn, until });
                self.world.wire.cut(conn, until);
            }
            _ => {
                let mut book = self.world.book.borrow_mut();
                let end = &mut book.conns[conn].ends[side];
                end.quiet = !end.quiet;
            }
        }
    }

    /// Changes the faults of the network and a device. A fault that is never drawn stays off.
    fn change(&mut self) {
        let (times, side) = (self.below(3) as u32, self.below(2));
        self.world.wire.weather().loss = self.world.plan.weather.loss * times;
        self.world.devices[side].set_odds(self.world.plan.odds.times(times));
        self.world.note(Happening::Change { side, times });
    }

    /// A handler closes a connection, at once or when everything is acknowledged.
    fn close(&mut self, conn: usize, side: usize) {
        let (desk, peer) = {
            let book = self.world.book.borrow();
            let end = &book.conns[conn].ends[side];
            (end.desk, end.peer.filter(|_| end.state == State::Up))
        };
        let Some(peer) = peer else { return };
        self.world.excuse(conn);
        self.world.note(Happening::Close { conn, side });
        let gently = self.chance(512);
        let mut out = self.world.desks[desk].worker.outbox();
        if gently { out.finish(peer) } else { out.close(peer) }
    }

    /// Every worker turns, and time goes on.
    fn round(&mut self) {
        let mut taken = 0;
        for desk in 0..self.world.desks.len() {
            taken += self.world.turn(desk);
        }
        let soon = now() + 500;
        // Nothing to do: advances to the next event, but not beyond patience.
        let next = self.world.next_at().filter(|_| taken == 0).unwrap_or(soon);
        self.world.advance(next.clamp(soon, soon + 20_000));
    }

    /// Turns until nothing is missing, or for too long.
    fn settle(&mut self) {
        let (mut wait, mut round) = (Wait::default(), 0u64);
        while wait.goes_on(self.came()) {
            if self.failed() {
                return;
            }
            // Seldom is enough: the question costs more than a round.
            if round % 8 == 0
                && self.world.letters_done()
                && self.world.book.borrow().unsettled().is_none()
            {
                return;
            }
            self.round();
            round += 1;
        }
        let missing = self.world.book.borrow().unsettled();
        let missing = missing.unwrap_or_else(|| String::from("the control plane does not rest"));
        self.fail(format!("no progress: {missing}; {}", self.places()));
    }

    /// The places of the receive blocks.
    fn places(&self) -> String {
        let mut text = String::from("receives posted and at home, by worker:");
        for desk in &self.world.desks {
            let posted = sim::posted(desk.intake.srq().inner().inner());
            let home = desk.worker.recv_blocks_home();
            text.push_str(&format!(" {posted}+{home}"));
        }
        text
    }

    /// Every connection that is up still accepts messages, including one that needs a block.
    fn probe(&mut self) {
        for conn in 0..self.conns() {
            for side in 0..2 {
                self.probe_end(conn, side);
            }
        }
    }

    fn probe_end(&mut self, conn: usize, side: usize) {
        let config = self.world.plan.sides[side].config;
        let inline = config.inline_bytes as usize;
        // Not every stream has a message near that does not go inline.
        let mut left = 4 * config.send_queue;
        let mut wait = Wait::default();
        while wait.goes_on(self.came()) {
            if self.failed() || left == 0 || !self.world.is_up(conn, side) {
                return;
            }
            let book = self.world.book.clone();
            let desk = book.borrow().conns[conn].ends[side].desk;
            let mut out = self.world.desks[desk].worker.outbox();
            let sent = clerk::send(&mut book.borrow_mut(), &mut out, (conn, side));
            match sent {
                Some(length) if length > inline => return,
                Some(_) => left -= 1,
                None => self.round(),
            }
        }
        self.fail(format!("no progress: connection {conn} takes no more at side {side}"));
    }

    /// Ends every connection, from either side, and waits until the workers have released them.
    fn close_all(&mut self) {
        for conn in 0..self.conns() {
            let side = self.below(2);
            self.close(conn, side);
        }
        let mut wait = Wait::default();
        while wait.goes_on(self.came()) {
            if self.failed() {
                return;
            }
            let empty = self.world.desks.iter().all(|desk| desk.worker.peers() == 0);
            if empty && self.world.letters_done() {
                break;
            }
            self.round();
        }
        // Nothing is held back any more, so that the account is complete.
        for device in &self.world.devices {
            device.set_odds(Odds::default());
        }
        for _ in 0..ROUNDS_LAST {
            self.round();
        }
    }

    /// Every successful addition is in its word, and no other.
    fn account_words(&mut self) {
        for number in 0..self.world.desks.len() {
            let mut bytes = [0; 8];
            let out = self.world.desks[number].worker.outbox();
            let places = self.world.book.borrow().places[number].clone();
            let copied = places.region.map(|region| out.copy_out(region, places.word, &mut bytes));
            let account = match copied {
                Some(Ok(())) => places.adds.account(u64::from_le_bytes(bytes)),
                _ => Err(String::from("its word cannot be read")),
            };
            if let Err(what) = account {
                self.fail(format!("desk {number}: {what}"));
            }
        }
    }

    /// Everybody was told, and every block is home.
    fn account(&mut self) {
        if self.failed() {
            return;
        }
        let conns = self.world.book.borrow().conns.clone();
        for (number, conn) in conns.iter().enumerate() {
            if conn.ends.iter().any(|end| end.state == State::Up) {
                self.fail(format!("connection {number} has ended, and a side was not told"));
            }
        }
        for side in 0..2 {
            let config = self.world.plan.sides[side].config;
            for queue in 0..self.world.plan.sides[side].queues {
                let desks = || {
                    let here = move |d: &&super::world::Desk| d.side == side && d.queue == queue;
                    self.world.desks.iter().filter(here)
                };
                let Some(first) = desks().next() else { continue };
                let posted = sim::posted(first.intake.srq().inner().inner()) as usize;
                let held: usize = desks().map(|desk| desk.worker.recv_blocks_home()).sum();
                if posted + held != config.recv_blocks as usize {
                    self.fail(format!(
                        "queue {queue} of side {side} had {} blocks, now {posted} are posted and \
                         {held} with its workers",
                        config.recv_blocks
                    ));
                }
            }
        }
        for (number, desk) in self.world.desks.iter().enumerate() {
            let (have, home) = (
                self.world.plan.sides[desk.side].config.send_blocks,
                desk.worker.send_blocks_home(),
            );
            if home != have as usize {
                self.fail(format!("desk {number} has {home} of its {have} send blocks"));
            }
            if desk.worker.peers() != 0 {
                self.fail(format!("desk {number} still has {} peers", desk.worker.peers()));
            }
            let held = desk.worker.recv_blocks_home();
            if held != 0 {
                self.fail(format!("desk {number} is idle and keeps {held} receive blocks"));
            }
            let full = desk.worker.stats().post_full;
            if full != 0 && self.world.plan.odds.partial_post == 0 {
                self.fail(format!("desk {number} overran its send queues {full} times"));
            }
            if desk.worker.pending() != 0
                || !self.world.book.borrow().places[number].busy.is_empty()
            {
                self.fail(format!("desk {number} has requests that are not answered"));
            }
            let flying = desk.worker.in_flight();
            if flying != 0 {
                self.fail(format!("desk {number} has no peers and {flying} requests in flight"));
            }
            if desk.worker.stats().close_lost != 0 {
                self.fail(format!("desk {number} could not report a connection as closing"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that are up.
    fn up(run: &Run) -> Vec<usize> {
        let both = |conn: &usize| run.world.is_up(*conn, 0) && run.world.is_up(*conn, 1);
        (0..run.conns()).filter(both).collect()
    }

    /// A run with three connections and few workers, in which nothing is sent.
    fn three_are_up() -> Run {
        let runs = (0..1000).filter_map(|seed| {
            let mut run = Run { world: World::new(seed, None, false).expect("it can be made") };
            let plan = run.world.plan;
            if plan.crowd || plan.conns < 3 || run.world.desks.len() > 2 {
                return None;
            }
            run.world.book.borrow_mut().still = true;
            for _ in 0..3 {
                run.world.dial().expect("it can be made");
                run.settle();
            }
            (up(&run).len() == 3).then_some(run)
        });
        runs.into_iter().next().expect("a seed has them")
    }

    /// Three ends take more rounds together than one may. None of them alone does.
    #[test]
    fn a_wait_counts_from_the_last_end() {
        let mut run = three_are_up();
        // An idle round passes 20 500 ns at most.
        let apart = u64::from(ROUNDS_MAX) / 2 * 20_500;
        for (n, conn) in (1..).zip(up(&run)) {
            run.world.excuse(conn);
            run.world.end_after(conn, [n * apart; 2]);
        }
        run.settle();
        assert_eq!(run.world.book.borrow().failure, None);
        assert!(up(&run).is_empty());
    }

    /// The second side never learns of an end.
    #[test]
    fn an_end_that_is_lost_is_missed() {
        let mut run = three_are_up();
        let conn = up(&run)[1];
        run.world.excuse(conn);
        run.world.end_one_side(conn, 0);
        run.settle();
        let failure = run.world.book.borrow_mut().failure.take().expect("it is noticed");
        let expected = format!("no progress: connection {conn} is gone, side 1 was not told");
        assert!(failure.starts_with(&expected), "{failure}");
    }
}
