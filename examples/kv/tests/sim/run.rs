//! One simulation from its first step to its account.

use std::sync::{Arc, PoisonError};

use doorbell_kv::plant::Mistake;

use crate::clock::now;
use crate::world::{Part, World};

/// Steps in which a client's operations should end.
const STEPS: u64 = 6000;

/// Rounds after which something that has not happened never will.
const ROUNDS_MAX: u32 = 120_000;

/// What happened, over one seed or many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) operations: u64,
    pub(crate) reads: u64,
    pub(crate) torn: u64,
    pub(crate) alone: u64,
    pub(crate) asked: u64,
    pub(crate) growths: u64,
    pub(crate) expired: u64,
    pub(crate) downs: u64,
    pub(crate) lost: u64,
    pub(crate) time_ns: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.operations += other.operations;
        self.reads += other.reads;
        self.torn += other.torn;
        self.alone += other.alone;
        self.asked += other.asked;
        self.growths += other.growths;
        self.expired += other.expired;
        self.downs += other.downs;
        self.lost += other.lost;
        self.time_ns += other.time_ns;
    }
}

/// Runs a seed. Returns what was wrong, and what happened.
pub(crate) fn run(seed: u64, mistake: Option<Mistake>) -> (Option<String>, Totals) {
    let mut world = World::new(seed, mistake);
    world.dial();
    for _ in 0..STEPS {
        if world.book().failure.is_some() || left(&world) == 0 {
            break;
        }
        step(&mut world);
    }
    world.book().still = true;
    settle(&mut world);
    account(world)
}

fn step(world: &mut World) {
    if world.prng.chance(world.plan.trouble) {
        trouble(world);
    }
    if world.prng.chance(30) {
        world.dial();
    }
    let desk = world.prng.below(world.desks.len() as u64) as usize;
    if world.desks[desk].stalled_until <= now() {
        world.turn(desk);
    }
    let step = world.prng.range(50, 1500);
    world.advance(now() + step);
}

/// Makes one thing go wrong.
fn trouble(world: &mut World) {
    let until = now() + world.prng.range(1000, 300_000);
    let alive = world.alive();
    let conn = world.prng.pick(&alive);
    let side = world.prng.below(2) as usize;
    match world.prng.below(6) {
        0 => {
            let desk = world.prng.below(world.desks.len() as u64) as usize;
            world.desks[desk].stalled_until = until;
        }
        1 => world.advance(until),
        _ if alive.is_empty() => {}
        2 => world.end(conn),
        3 => world.wire.cut(conn, until),
        n => world.break_end(conn, side, n == 4),
    }
}

/// Operations that no client has started.
fn left(world: &World) -> u64 {
    let clients = world.desks.iter().filter_map(|desk| match &desk.worker.handler().part {
        Part::Client(part) => Some(part.caller.left + part.client.open() as u64),
        Part::Server(_) => None,
    });
    clients.sum()
}

/// Operations that have not ended.
fn open(world: &World) -> usize {
    let clients = world.desks.iter().filter_map(|desk| match &desk.worker.handler().part {
        Part::Client(part) => Some(part.client.open()),
        Part::Server(_) => None,
    });
    clients.sum()
}

/// Everybody turns until each operation has ended.
fn settle(world: &mut World) {
    for round in 0..ROUNDS_MAX {
        if world.book().failure.is_some() || open(world) == 0 {
            return;
        }
        if round % 64 == 0 {
            world.dial();
        }
        let mut taken = 0;
        for desk in 0..world.desks.len() {
            taken += world.turn(desk);
        }
        let soon = now() + 500;
        let next = world.next_at().filter(|_| taken == 0).unwrap_or(soon);
        world.advance(next.clamp(soon, soon + 20_000));
    }
    let left = open(world);
    world.book().failure = Some(format!("no progress: {left} operations do not end"));
}

/// Counts, and checks the histories.
fn account(world: World) -> (Option<String>, Totals) {
    let mut totals = Totals { downs: world.downs, time_ns: now(), ..Totals::default() };
    for desk in &world.desks {
        match &desk.worker.handler().part {
            Part::Client(part) => {
                let counts = part.client.counts();
                totals.reads += counts.reads;
                totals.torn += counts.torn;
                totals.alone += counts.alone;
                totals.asked += counts.asked;
            }
            Part::Server(server) => totals.growths += server.size().1 - 1,
        }
    }
    let book = world.book.clone();
    drop(world);
    let book = Arc::into_inner(book).expect("the clients are gone").into_inner();
    let book = book.unwrap_or_else(PoisonError::into_inner);
    totals.operations = book.history.len() as u64;
    (totals.expired, totals.lost) = (book.expired, book.lost);
    (book.failure.or(book.history.check().err()), totals)
}
