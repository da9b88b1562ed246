//! The book: what was sent, what arrived, who was told. It knows what is allowed, and reports what
//! is not.

use std::collections::BTreeMap;
use std::hash::Hash;

use doorbell::provider::call::Lane;
use doorbell::provider::trace::Passed;
use doorbell::soft::sim::{Prng, mix};
use doorbell::wc::Status;
use doorbell::worker::{DownReason, PeerId, RegionId};
use doorbell::wr::Remote;

use super::bare::adds::Adds;
use super::bare::field::pattern;
use super::plan::Plan;
use super::text::{Stream, Text};
use super::trace::{Trace, now};

/// Events, besides those of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it; they are printed as they are")]
pub enum Happening {
    Dial { conn: usize, desks: [usize; 2] },
    Reject { conn: usize },
    Turn { desk: usize, taken: usize },
    Up { conn: usize, side: usize },
    Down { conn: usize, side: usize, why: &'static str },
    Send { conn: usize, from: usize, number: u32, length: usize },
    Reply { conn: usize, from: usize, number: u32, length: usize },
    Back { conn: usize, from: usize },
    Got { conn: usize, from: usize, stream: Stream, number: u32 },
    Ask { conn: usize, from: usize, errand: Errand },
    Close { conn: usize, side: usize },
    Gone { conn: usize, side: usize },
    Fail { conn: usize, side: usize, lost: bool },
    Cut { conn: usize, until: u64 },
    Stall { desk: usize, until: u64 },
    Jump { to: u64 },
    Change { side: usize, times: u32 },
    Passed { side: usize, passed: Passed },
    Phase(&'static str),
}

impl Happening {
    /// True if somebody may have waited for it. When nothing new is sent, only finitely many come.
    fn is_expected(&self) -> bool {
        use Happening::{Down, Gone, Got, Reject, Send, Up};
        matches!(
            self,
            Reject { .. } | Up { .. } | Down { .. } | Send { .. } | Got { .. } | Gone { .. }
        )
    }
}

/// What a handler knows of one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not heard of it.
    Never,
    /// It was told that it is up.
    Up,
    /// It was told that it is down.
    Down,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct End {
    /// Its worker.
    pub desk: usize,
    /// What its handler knows.
    pub state: State,
    /// Its name there, while it is up.
    pub peer: Option<PeerId>,
    /// Messages handed to the worker, by stream.
    pub sent: [u32; 2],
    /// Messages received here.
    pub got: [u32; 2],
    /// Whether its handler withholds replies for now.
    pub quiet: bool,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct Conn {
    /// Both ends, by side.
    pub ends: [End; 2],
    /// Something has happened that may end it.
    pub excused: bool,
}

/// Counts for the last line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Messages received and checked.
    pub messages: u64,
    /// Connections.
    pub conns: u64,
    /// Ends of connections that were reported down before the end of the run.
    pub downs: u64,
    /// Packets sent again because no acknowledgement came.
    pub timeouts: u64,
    /// Connections that failed for that reason.
    pub exhausted: u64,
    /// Messages refused by the receiving device.
    pub refused: u64,
    /// Posts the device cut short.
    pub partial: u64,
    /// Replies that had to wait.
    pub deferred: u64,
    /// Successful requests of queue pairs without workers.
    pub requests: u64,
    /// Additions to a word at the far side, with workers or without.
    pub atomics: u64,
    /// Datagrams that arrived.
    pub datagrams: u64,
    /// Messages, completions and doorbells by the path of the seam they took.
    pub lanes: Lanes,
    /// Messages for which a device may have prepared, see [`Passed::repeats`].
    pub repeats: Lanes,
}

/// A count for each [`Lane`].
pub type Lanes = [u64; Lane::ALL.len()];

impl Counts {
    /// Counts a message at the device.
    pub fn pass(&mut self, passed: Passed) {
        self.lanes[passed.lane as usize] += passed.count.max(1) as u64;
        self.repeats[passed.lane as usize] += u64::from(passed.repeats);
    }

    /// Adds up two runs.
    pub fn add(&mut self, other: &Counts) {
        self.messages += other.messages;
        self.conns += other.conns;
        self.downs += other.downs;
        self.timeouts += other.timeouts;
        self.exhausted += other.exhausted;
        self.refused += other.refused;
        self.partial += other.partial;
        self.deferred += other.deferred;
        self.requests += other.requests;
        self.atomics += other.atomics;
        self.datagrams += other.datagrams;
        let sums = self.lanes.iter_mut().chain(&mut self.repeats);
        for (sum, more) in sums.zip(other.lanes.into_iter().chain(other.repeats)) {
            *sum += more;
        }
    }

    /// True if on each inline path some messages repeat the previous one, and some do not.
    pub fn inline_both_ways(&self) -> bool {
        [Lane::InlineNow, Lane::InlineLater].into_iter().all(|lane| {
            let (all, repeats) = (self.lanes[lane as usize], self.repeats[lane as usize]);
            repeats > 0 && repeats < all
        })
    }

    /// The paths that no message took, except the named ones.
    pub fn unused(&self, but: &[Lane]) -> Vec<Lane> {
        let unused = |lane: &Lane| self.lanes[*lane as usize] == 0 && !but.contains(lane);
        Lane::ALL.into_iter().filter(unused).collect()
    }
}

/// The operation of a request with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Errand {
    /// It sends a message.
    Message,
    /// It adds one to the word of that desk.
    Add(usize),
    /// It reads this many bytes of that desk's shelf.
    Read(usize, usize),
}

/// Bytes of a desk that others read, behind the word that they add to.
pub const SHELF: usize = 5000;

/// Memory of a worker. It sends messages from it without a copy, and its peers read it and add to
/// it: places of a block each, then a word, then a shelf.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The memory.
    pub region: Option<RegionId>,
    /// Where the word lies in it.
    pub word: usize,
    /// The address and key of the word for peers.
    pub remote: Option<Remote>,
    /// Free places.
    pub free: Vec<u64>,
    /// By place: the connection whose request uses its bytes.
    pub busy: BTreeMap<u64, (usize, Errand)>,
    /// What peers have added to the word.
    pub adds: Adds,
}

/// The content of a desk's shelf, which never changes.
pub fn shelf(desk: usize, length: usize) -> Vec<u8> {
    pattern(mix(desk as u64 + 77), length)
}

/// The book.
pub struct Book {
    /// The only source of chance for handlers and schedule.
    pub prng: Prng,
    /// The history.
    pub trace: Trace,
    /// The plan of the seed.
    pub plan: Plan,
    /// By number.
    pub conns: Vec<Conn>,
    /// By desk: the connection that is expected to come up.
    pub pending: Vec<Option<usize>>,
    /// By desk.
    pub places: Vec<Places>,
    /// Nothing new is sent any more.
    pub still: bool,
    /// Everything that came and that somebody may have waited for.
    pub came: u64,
    /// The first rule that was broken.
    pub failure: Option<String>,
    /// Counts.
    pub counts: Counts,
    seed: u64,
}

impl Book {
    /// An empty book.
    pub fn new(seed: u64, prng: Prng, plan: Plan, trace: Trace) -> Book {
        let desks = plan.sides.iter().map(|side| side.workers).sum();
        Book {
            prng,
            trace,
            plan,
            conns: Vec::new(),
            pending: vec![None; desks],
            places: vec![Places::default(); desks],
            still: false,
            came: 0,
            failure: None,
            counts: Counts::default(),
            seed,
        }
    }

    /// Records an event.
    pub fn note(&mut self, happening: Happening) {
        self.came += u64::from(happening.is_expected());
        self.trace.note(now(), &happening);
    }

    /// A rule was broken.
    pub fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(what.into());
        }
    }

    /// Message `number` of a side.
    pub fn text(&self, conn: usize, from: usize, stream: Stream, number: u32) -> Text {
        let way = mix(self.seed ^ mix((conn as u64) << 1 | from as u64));
        let config = &self.plan.sides[from].config;
        Text::of(way, stream, number, (config.block_bytes, config.inline_bytes))
    }

    /// The connection that a desk knows by that name.
    pub fn known(&self, side: usize, desk: usize, peer: PeerId) -> Option<usize> {
        self.conns.iter().position(|conn| {
            let end = &conn.ends[side];
            end.desk == desk && end.state == State::Up && end.peer == Some(peer)
        })
    }

    /// Connections that are up at a desk.
    pub fn up_at(&self, side: usize, desk: usize) -> Vec<usize> {
        let up = |conn: &Conn| conn.ends[side].desk == desk && conn.ends[side].state == State::Up;
        (0..self.conns.len()).filter(|conn| up(&self.conns[*conn])).collect()
    }

    /// A handler is told of a peer.
    pub fn up(&mut self, side: usize, desk: usize, peer: PeerId) -> Option<usize> {
        if self.known(side, desk, peer).is_some() {
            self.fail(format!("desk {desk} is told twice that {peer:?} is up"));
            return None;
        }
        let Some(conn) = self.pending[desk].take() else {
            self.fail(format!("desk {desk} is told of {peer:?}, but no connection waits for it"));
            return None;
        };
        let end = &mut self.conns[conn].ends[side];
        end.state = State::Up;
        end.peer = Some(peer);
        self.note(Happening::Up { conn, side });
        Some(conn)
    }

    /// A handler is told that a peer is gone.
    pub fn down(&mut self, side: usize, desk: usize, peer: PeerId, why: DownReason) {
        let Some(conn) = self.known(side, desk, peer) else {
            return self.fail(format!("desk {desk} is told that {peer:?} is down; it was not up"));
        };
        self.conns[conn].ends[side].state = State::Down;
        if self.places[desk].busy.values().any(|(busy, _)| *busy == conn) {
            self.fail(format!("desk {desk}: {peer:?} is down, and a request is not answered"));
        }
        self.counts.downs += u64::from(!self.still);
        // Both sides are honest, so no fault of the network excuses this end.
        let accused = matches!(why, DownReason::BrokeProtocol(_));
        if !self.conns[conn].excused || accused {
            self.fail(format!("connection {conn} goes down at side {side} without cause: {why:?}"));
        }
        let why = match why {
            DownReason::Closed => "closed",
            DownReason::CutOff => "cut off",
            DownReason::Finished => "finished",
            DownReason::Disconnected => "disconnected",
            DownReason::Failed(_) => "failed",
            DownReason::ReplyTooLong => "reply too long",
            DownReason::BrokeProtocol(_) => "broke the protocol",
        };
        self.note(Happening::Down { conn, side, why });
    }

    /// A request has ended. It must have been in flight, and an error needs a cause. `bytes` gives
    /// the first bytes of its place, which must hold the right result.
    pub fn answered(
        &mut self,
        desk: usize,
        token: u64,
        result: Result<(), Status>,
        bytes: impl FnOnce(usize) -> Vec<u8>,
    ) {
        let Some((conn, errand)) = self.places[desk].busy.remove(&token) else {
            return self
                .fail(format!("desk {desk}: request {token} is answered twice, or was none"));
        };
        self.places[desk].free.push(token);
        self.came += 1;
        if result.is_err() && !self.conns[conn].excused {
            self.fail(format!("connection {conn}: a request fails without cause: {result:?}"));
        }
        match (errand, result) {
            (Errand::Add(to), Ok(())) => {
                self.counts.atomics += 1;
                let word = bytes(8).iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                if let Err(what) = self.places[to].adds.returned(word) {
                    self.fail(format!("desk {to}: {what}"));
                }
            }
            (Errand::Add(to), Err(_)) => self.places[to].adds.uncertain += 1,
            (Errand::Read(of, length), Ok(())) if bytes(length) != shelf(of, length) => {
                self.fail(format!("connection {conn}: a READ does not bring what is there"));
            }
            (Errand::Read(..) | Errand::Message, _) => {}
        }
    }

    /// A message has arrived: it must be the next of its stream, unaltered.
    pub fn got(
        &mut self,
        (side, desk): (usize, usize),
        peer: PeerId,
        bytes: &[u8],
        imm: Option<u32>,
    ) -> Option<(usize, Stream)> {
        let Some(conn) = self.known(side, desk, peer) else {
            self.fail(format!("desk {desk} gets a message of {peer:?}, which is not up there"));
            return None;
        };
        let from = 1 - side;
        let Some(stream) = Stream::of(bytes) else {
            self.fail(format!("connection {conn}: side {side} gets bytes that nobody sent"));
            return None;
        };
        let number = self.conns[conn].ends[side].got[stream as usize];
        let sent = self.conns[conn].ends[from].sent[stream as usize];
        let text = self.text(conn, from, stream, number);
        if number >= sent {
            self.fail(format!(
                "connection {conn}: side {side} gets {stream:?} {number} of only {sent}"
            ));
            return None;
        }
        if !text.is(bytes, imm) {
            self.fail(format!(
                "connection {conn}: side {side} waits for {stream:?} {number} of {} bytes, and \
                 gets {} bytes that say {:?}",
                text.length,
                bytes.len(),
                Text::number_in(bytes),
            ));
            return None;
        }
        self.conns[conn].ends[side].got[stream as usize] += 1;
        self.counts.messages += 1;
        self.note(Happening::Got { conn, from, stream, number });
        Some((conn, stream))
    }

    /// True if replies of a side hold too many of its receive blocks for one more. With credits
    /// that never happens. Without credits, two sides whose receives are all in replies to each
    /// other wait for ever. Handlers that reply on both sides must keep some back, as these do:
    /// they count replies that have not arrived.
    pub fn replies_out(&self, side: usize) -> bool {
        if self.plan.counted() {
            return false;
        }
        let reply = Stream::Reply as usize;
        let up = self.conns.iter().filter(|conn| conn.ends[side].state == State::Up);
        let out = up.map(|conn| conn.ends[side].sent[reply] - conn.ends[1 - side].got[reply]);
        out.sum::<u32>() >= self.plan.sides[side].config.recv_blocks / 4
    }

    /// What is still missing at the end. `None` if every connection is either up with everything
    /// arrived, or down at both ends.
    pub fn unsettled(&self) -> Option<String> {
        if let Some(desk) = self.pending.iter().position(Option::is_some) {
            return Some(format!("desk {desk} still waits for a connection to come up"));
        }
        for (number, Conn { ends, .. }) in self.conns.iter().enumerate() {
            let up = [0, 1].map(|side| ends[side].state == State::Up);
            if up[0] != up[1] {
                let side = usize::from(up[1]);
                return Some(format!("connection {number} is gone, side {side} was not told"));
            }
            for side in 0..2 {
                let (sent, got) = (ends[1 - side].sent, ends[side].got);
                if up[0] && sent != got {
                    return Some(format!(
                        "connection {number}: side {side} got {got:?} of {sent:?} messages and \
                         replies, and its sender was told of no failure"
                    ));
                }
            }
        }
        None
    }
}
