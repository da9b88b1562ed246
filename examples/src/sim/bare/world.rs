//! The world of one seed: two devices, their queue pairs, and the wire between them.

use doorbell::error::{Code, SetupError};
use doorbell::provider::trace::Passed;
use doorbell::provider::{QpCaps, QpType, Window, Windows};
use doorbell::soft::sim::{self, Event, Prng, Wire, mix};
use doorbell::soft::{SoftQpEx, SoftQpInit, Wiring};
use doorbell::wc::{Status, Wc, WcFlags};
use doorbell::wr::RecvWr;

use super::super::book::Counts;
use super::super::device::{Planted, memory, wrapped};
use super::super::trace::{Trace, now, set_now};
use super::conn::{Conn, End, Path, WindowState, at_end};
use super::direction::{Direction, What};
use super::field::post_recv;
use super::mail::{MAIL, Mail, RECV};
use super::neighbours;
use super::plan::Plan;
use super::side::Side;
use super::sizes::{INLINE, PIECE};

/// Events, besides those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it; they are printed as they are")]
pub enum Step {
    Dial { conn: usize, desks: [usize; 2] },
    Begin { conn: usize },
    Post { conn: usize, side: usize, number: u64, what: What, length: usize },
    Sent { conn: usize, side: usize, number: u64, status: u8 },
    Came { conn: usize, side: usize, status: u8, bytes: u32 },
    Mail { from: usize, to: Option<usize>, length: usize },
    Mailed { side: usize, number: u64 },
    Cut { conn: usize, until: u64 },
    Jump { to: u64 },
    End { conn: usize },
    Closed { conn: usize },
    Passed { side: usize, passed: Passed },
    Phase(&'static str),
}

/// The world of one seed.
pub struct World {
    // Queue pairs first: they are gone before the memory that their requests name.
    pub(super) conns: Vec<Conn>,
    pub(super) mail: Mail,
    pub(super) sides: [Side; 2],
    pub(super) wire: Wire,
    pub(super) plan: Plan,
    pub(super) prng: Prng,
    pub(super) trace: Trace,
    pub(super) counts: Counts,
    pub(super) failure: Option<String>,
    seed: u64,
}

impl World {
    /// Builds what a seed asks for.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(seed: u64, planted: Option<Planted>, tell: bool) -> Result<World, SetupError> {
        set_now(0);
        neighbours::clear();
        let mut prng = Prng::new(mix(seed ^ 0x6261_7265));
        let rare = &mut Prng::new(mix(seed ^ 0x7261_7265));
        let plan = Plan::draw(&mut prng).with_rare(rare);
        let mut wire = Wire::new(prng.fork(), plan.weather, plan.patience, memory);
        if let Some(Planted::Wire(mistake)) = planted {
            wire.plant(mistake);
        }
        let dice = [prng.fork(), prng.fork()];
        let [one, two] = dice;
        let sides = [Side::new(&plan, 0, one, planted)?, Side::new(&plan, 1, two, planted)?];
        let mut at = Vec::new();
        for (number, side) in sides.iter().enumerate() {
            for mailer in 0..plan.sides[number].mailers {
                let desk = mailer % side.desks.len();
                at.push((number, desk, &side.device, &side.desks[desk].cq));
            }
        }
        let most = if plan.weather.double > 0 { 2 } else { 1 };
        let devices = sides.each_ref().map(|side| &side.device);
        let mail = Mail::new(seed, most, &mut prng, &at, devices)?;
        Ok(World {
            conns: Vec::new(),
            mail,
            sides,
            wire,
            plan,
            prng,
            trace: Trace::new(tell),
            counts: Counts::default(),
            failure: None,
            seed,
        })
    }

    /// Records an event.
    pub(super) fn note(&mut self, step: Step) {
        self.trace.note(now(), &step);
    }

    /// A rule was broken.
    pub(super) fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(what.into());
        }
    }

    /// A rule was broken at one end of a connection.
    pub(super) fn fail_at(&mut self, (conn, side): (usize, usize), what: &str) {
        self.fail(at_end((conn, side), what));
    }

    /// Begins a connection, if there is room for one more.
    ///
    /// # Errors
    /// The device's refusal.
    pub(super) fn dial(&mut self) -> Result<(), SetupError> {
        let alive = self.conns.iter().filter(|conn| !conn.closed).count();
        if alive >= self.plan.conns || self.conns.len() >= self.plan.conns_max {
            return Ok(());
        }
        let conn = self.conns.len();
        let (one, two) = (self.end(0)?, self.end(1)?);
        let Plan { rnr_retry, rnr_timer_ns, asks, .. } = self.plan;
        let wiring = Wiring {
            peer: 0,
            peer_rnr_retry: rnr_retry,
            rnr_timer_ns,
            initiator_depth: asks,
            responder_depth: asks,
        };
        let number = self.wire.connect([&one.control, &two.control], [wiring; 2])?;
        if number != conn {
            let answer = format!("the wire calls connection {conn} {number}");
            return Err(SetupError::new(Code::Invalid, "a connection", answer));
        }
        let desks = [one.desk, two.desk];
        let delay = self.prng.pick(&[0, 1000, 20_000]);
        self.conns.push(Conn {
            ends: [one, two],
            directions: [0, 1].map(|side| Direction::new(self.seed, (conn, side))),
            begins: Some(now() + delay),
            excused: false,
            flushed: None,
            ending: false,
            over: None,
            closed: false,
        });
        self.counts.conns += 1;
        self.note(Step::Dial { conn, desks });
        Ok(())
    }

    fn end(&mut self, side: usize) -> Result<End, SetupError> {
        let (nic, Side { desks, srq, device, .. }) = (self.sides[side].nic(), &self.sides[side]);
        let plan = &self.plan.sides[side];
        let desk = self.prng.below(desks.len() as u64) as usize;
        let signal_all = self.prng.chance(128);
        let cq = &desks[desk].cq;
        let qp = nic.create_qp(&SoftQpInit {
            kind: QpType::Rc,
            send_cq: cq.inner().inner(),
            recv_cq: cq.inner().inner(),
            srq: srq.as_ref().map(|srq| srq.inner().inner()),
            caps: QpCaps {
                send_wr: plan.depth as u32,
                recv_wr: plan.receives as u32,
                send_sge: 2,
                recv_sge: 1,
                inline: INLINE as u32,
            },
            signal_all,
            ex: SoftQpEx::default(),
        })?;
        let window = device.create_window(plan.windows)?;
        Ok(End {
            desk,
            control: qp.control(),
            qp: Some(wrapped(device, qp, cq)),
            path: Path::List,
            pending: false,
            signal_all,
            window_state: WindowState::Shut,
            rkey: window.rkey(),
            old_key: None,
            window,
            receives: 0,
        })
    }

    /// Posts receives at one end, as many as there is room for; with a shared queue, for all ends.
    pub(super) fn stock(&mut self, conn: usize, side: usize) {
        let Conn { ends, ending, closed, .. } = &mut self.conns[conn];
        let (here, end) = (&mut self.sides[side], &mut ends[side]);
        let most = self.plan.sides[side].receives;
        let shared = here.srq.is_some();
        let posted = match shared {
            true => here.places.iter().flatten().count(),
            false => end.receives,
        };
        if posted >= most || *ending || *closed {
            return;
        }
        let Some(qp) = &mut end.qp else { return };
        let owner = if shared { usize::MAX } else { conn };
        for _ in posted..most {
            let Some(place) = here.places.iter().position(Option::is_none) else { return };
            let sge = here.local.sge(here.place(place), PIECE);
            let wr = RecvWr { wr_id: RECV | place as u64, sge };
            here.places[place] = Some(owner);
            end.receives += usize::from(!shared);
            if let Err(error) = post_recv(qp, here.srq.as_ref(), wr) {
                return self.fail_at((conn, side), &format!("a receive is refused: {error:?}"));
            }
        }
    }

    /// Polls one completion queue once.
    pub(super) fn poll(&mut self, side: usize, desk: usize) -> usize {
        let mut out = [Wc::default(); 8];
        let most = self.prng.range(1, 8) as usize;
        let one = self.prng.chance(700);
        let desk = &mut self.sides[side].desks[desk];
        let count = desk.reader.take(&mut out[..most], one);
        desk.empty += u64::from(count == 0);
        for wc in &out[..count] {
            self.completed(side, wc);
        }
        count
    }

    fn completed(&mut self, side: usize, wc: &Wc) {
        if wc.wr_id & MAIL != 0 {
            self.note(Step::Mailed { side, number: wc.wr_id });
            let devices = self.sides.each_ref().map(|side| &side.device);
            if let Err(what) = self.mail.completed(side, devices, wc) {
                self.fail(what);
            }
            return;
        }
        let of = |conn: &Conn| !conn.closed && conn.ends[side].control.num() == wc.qp_num;
        let Some(conn) = self.conns.iter().rposition(of) else {
            let num = wc.qp_num;
            return self.fail(format!("side {side}: a completion of queue pair {num}, now gone"));
        };
        let status = wc.status as u8;
        let result = if wc.wr_id & RECV != 0 {
            self.note(Step::Came {
                conn,
                side,
                status,
                bytes: wc.byte_len * u32::from(status == 0),
            });
            self.received(conn, side, wc)
        } else {
            self.note(Step::Sent { conn, side, number: wc.wr_id, status });
            self.sent(conn, side, wc)
        };
        if let Err(what) = result {
            self.fail_at((conn, side), &what);
        }
    }

    fn sent(&mut self, number: usize, side: usize, wc: &Wc) -> Result<(), String> {
        let conn = &mut self.conns[number];
        let excused = conn.excuses(side);
        // A device may refuse a message and flush its own requests in one poll.
        let early =
            !excused && wc.status == Status::Flushed && conn.directions[side].over.is_none();
        if early {
            conn.flushed = Some((side, wc.wr_id));
        }
        let [one, two] = &mut self.sides;
        let (here, there) = if side == 0 { (one, two) } else { (two, one) };
        let at = [&here.local, &there.field];
        let done = conn.directions[side].completed(wc, excused || early, at, &mut there.adds)?;
        if let Some(What::Bind { key }) = done {
            conn.ends[side].window_state = WindowState::Open(key);
        }
        self.counts.requests += u64::from(done.is_some());
        self.counts.downs += u64::from(conn.directions[side].over.is_some() && !conn.ending);
        Ok(())
    }

    fn received(&mut self, number: usize, side: usize, wc: &Wc) -> Result<(), String> {
        let place = (wc.wr_id & !RECV) as usize;
        let here = &mut self.sides[side];
        let at = here.place(place);
        let Some(owner) = here.places[place].take() else {
            return Err(format!("the receive at place {place} completes twice"));
        };
        if owner != usize::MAX && owner != number {
            return Err(format!("a receive of connection {owner} was taken"));
        }
        let conn = &mut self.conns[number];
        conn.ends[side].receives -= usize::from(owner == number);
        let excused = conn.excuses(1 - side);
        conn.directions[1 - side].came(wc, at, excused, [&here.local, &here.field])?;
        if wc.flags.contains(WcFlags::WITH_INV) {
            let end = &mut conn.ends[side];
            (end.window_state, end.old_key) = (WindowState::Shut, Some(wc.imm));
        }
        self.counts.messages += u64::from(wc.status.is_ok());
        Ok(())
    }

    /// Advances the time to `to`.
    pub(super) fn advance(&mut self, to: u64) {
        for side in 0..2 {
            for passed in self.sides[side].device.inner().take_passed() {
                self.counts.pass(passed);
                self.note(Step::Passed { side, passed });
            }
        }
        set_now(to.max(now()));
        for relay in neighbours::relays() {
            self.wire.relay(relay);
        }
        self.wire.advance(now());
        for (at, event) in self.wire.events() {
            self.hear(at, &event);
        }
        for conn in 0..self.conns.len() {
            self.explain(conn);
            self.tend(conn);
        }
        if let Some(rule) = self.wire.broken() {
            self.fail(format!("a device breaks its own rules: {rule}"));
        }
    }

    fn hear(&mut self, at: u64, event: &Event) {
        self.trace.note(at, event);
        match *event {
            Event::TimedOut { .. } => self.counts.timeouts += 1,
            Event::Exhausted { conn, .. } => {
                self.counts.exhausted += 1;
                self.conns[conn].excused = true;
            }
            Event::Refused { conn, from, status, .. } => {
                self.counts.refused += 1;
                let status = Status::from_raw(status.into());
                let known = &mut self.conns[conn];
                let patience_over = status == Status::RnrRetryExceeded && self.plan.rnr_retry < 7;
                known.excused |= patience_over;
                let wrong =
                    known.directions[from].wrong.is_some_and(|(_, how)| how.status() == status);
                let doomed = known.excused
                    || known.directions.iter().any(|direction| direction.wrong.is_some());
                let gone = status == Status::RetryExceeded && doomed;
                if !patience_over && !wrong && !gone {
                    self.fail_at((conn, from), &format!("is refused with {status:?}"));
                }
            }
            Event::Datagram { .. }
            | Event::Sent { .. }
            | Event::Arrived { .. }
            | Event::Taken { .. } => {}
        }
    }

    /// The wire has told everything: a request that was flushed before needs a reason now.
    fn explain(&mut self, number: usize) {
        let conn = &mut self.conns[number];
        let Some((side, request)) = conn.flushed.take() else { return };
        if !conn.excuses(side) {
            self.fail_at((number, side), &format!("request {request} is flushed for no reason"));
        }
    }

    /// Advances one connection: it begins, it ends where a side has failed, and it is removed when
    /// everything posted is over.
    fn tend(&mut self, number: usize) {
        let conn = &mut self.conns[number];
        if conn.closed {
            return;
        }
        if conn.begins.is_some_and(|at| at <= now()) {
            conn.begins = None;
            let Plan { rnr_retry, rnr_timer_ns, asks, .. } = self.plan;
            let wiring = Wiring {
                peer: 0,
                peer_rnr_retry: rnr_retry,
                rnr_timer_ns,
                initiator_depth: asks,
                responder_depth: asks,
            };
            self.wire.start(number, &conn.ends[0].control, wiring);
            return self.note(Step::Begin { conn: number });
        }
        if !conn.ending && conn.directions.iter().any(|direction| direction.over.is_some()) {
            return self.end_conn(number, false);
        }
        let quiet = |side: usize| {
            let direction = &conn.directions[side];
            direction.is_over() && direction.has_come() && conn.ends[side].receives == 0
        };
        if !conn.ending || conn.begins.is_some() || !quiet(0) || !quiet(1) {
            return;
        }
        // Anything left of it arrives before a poll finds nothing.
        let empty = [0, 1].map(|side| self.sides[side].desks[conn.ends[side].desk].empty);
        let Some(over) = conn.over else {
            conn.over = Some(empty);
            return;
        };
        if empty[0] > over[0] && empty[1] > over[1] {
            conn.closed = true;
            conn.ends.iter_mut().for_each(|end| drop(end.qp.take()));
            for (direction, there) in conn.directions.iter_mut().zip([1, 0]) {
                direction.forget(&mut self.sides[there].adds);
            }
            self.wire.close(number);
            self.note(Step::Closed { conn: number });
        }
    }

    /// The control plane ends a connection.
    pub(super) fn end_conn(&mut self, number: usize, lost: bool) {
        let conn = &mut self.conns[number];
        (conn.ending, conn.excused) = (true, true);
        match lost {
            true => conn.ends[0].control.fail_lost(),
            false => conn.ends[0].control.fail(),
        }
        conn.ends[1].control.fail();
        self.note(Step::End { conn: number });
    }

    /// Receives in a shared queue, besides those that the world knows to be posted.
    pub(super) fn strays(&self, side: usize) -> Option<(usize, usize)> {
        let Side { srq, places, .. } = &self.sides[side];
        let posted = sim::posted(srq.as_ref()?.inner().inner()) as usize;
        let known = places.iter().flatten().count();
        (posted != known).then_some((posted, known))
    }
}
