//! One side of a connection: its numbers, its memory, and the loop that waits for the other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use doorbell::alloc::Mapping;
use doorbell::provider::Caps;
use doorbell::worker::{
    Config, DownReason, Handler, Message, Outbox, PeerId, SendError, SharedRecv, Stats, Verdict,
    Worker,
};
use doorbell::{Dialer, Fabric};

use crate::count;
use crate::error::Failure;
use crate::latency::Echoes;
use crate::limits;
use crate::wire::{self, Request, Tally, Test};

/// Largest message, in bytes, on a device that has no smaller limit.
const SIZE_MAX: u32 = 16 << 20;

/// Memory of one kind of blocks, in bytes, as far as their least number allows.
const BLOCKS_BYTES: u32 = 64 << 20;

/// Sends outstanding where many round trips are in flight.
const SEND_QUEUE_DEEP: u32 = 1024;

/// True for what ends by itself: turn, and try again.
#[inline(always)]
fn is_pressure(error: SendError) -> bool {
    matches!(error, SendError::Full | SendError::NoCredit | SendError::NoBlock)
}

/// Turns without a completion after which the control plane gets a look: some milliseconds, so
/// that no measured message ever waits for it.
pub(crate) const COLD_TURNS: u32 = 1 << 18;

/// How long a side waits for the other to say anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How long an ended run waits for the other side to hang up.
pub(crate) const FAREWELL: Duration = Duration::from_secs(2);

/// How long so many connections may take, to come or to go.
pub(crate) fn patience(connections: u32) -> Duration {
    PATIENCE + Duration::from_millis(20) * connections
}

/// Largest message on a device, in bytes.
pub(crate) fn size_max(caps: &Caps) -> u32 {
    SIZE_MAX.min(caps.message_max)
}

/// The numbers of a run with so many connections, the same on both sides: blocks that fit the
/// message (small ones lie close together in the caches), and enough of them for every send that
/// may be on its way.
pub(crate) fn config(request: &Request, peers: u32, caps: &Caps) -> Result<Config, Failure> {
    let (size, limit) = (request.size, size_max(caps));
    if size == 0 || size > limit {
        return Err(Failure::new(format!(
            "--size {size}: a message has 1 to {limit} bytes on {}",
            caps.device
        )));
    }
    let block_bytes = size.max(wire::WORD_BYTES as u32).next_multiple_of(64);
    let most = BLOCKS_BYTES / block_bytes;
    // A peer is promised a quarter of the receives at most.
    let (send_queue, window, times) = match request.test {
        Test::Load | Test::Sweep => (SEND_QUEUE_DEEP, SEND_QUEUE_DEEP, 4),
        // Words of credit are doorbells too: one for half a window.
        Test::Rate => (Config::DEFAULT.send_queue, 4 * Config::DEFAULT.window, 8),
        _ => (Config::DEFAULT.send_queue, Config::DEFAULT.window, 2),
    };
    let streams = request.qps.saturating_mul(times).saturating_mul(send_queue);
    let recv_blocks = match request.receives {
        0 => streams.min(most).min(caps.srq_wr_max).max(16),
        asked => asked,
    };
    Ok(Config {
        peers,
        send_queue,
        block_bytes,
        recv_blocks,
        send_blocks: Config::DEFAULT.send_blocks.min(most).max(4),
        signal_every: request.signal_every,
        refill: Config::DEFAULT.refill.min(recv_blocks / 4),
        window,
        // There is no receive for each of thousands of connections that never use one.
        overcommit: match request.idle_qps {
            0 => 1,
            _ => 1 + (peers.saturating_mul(window) / recv_blocks).min(1 << 15),
        },
        ..Config::DEFAULT
    })
}

/// Maps memory, in huge pages if there are, and notes in `tally` what came out.
pub(crate) fn memory(bytes: usize, tally: &mut Tally) -> Result<Mapping, Failure> {
    let memory = Mapping::huge(bytes)?;
    let notes = memory.report().notes().iter().map(ToString::to_string).collect();
    tally.add(Tally { pages: memory.pages().to_string(), notes, ..Tally::default() });
    Ok(memory)
}

/// Counters of a worker at the mark.
pub(crate) struct Since {
    stats: Stats,
    allocations: u64,
}

impl Since {
    /// Now, on the worker's thread.
    pub(crate) fn now(stats: &Stats) -> Since {
        Since { stats: *stats, allocations: count::allocations() }
    }

    /// What was done since, but for `excluded` allocations of the control plane.
    pub(crate) fn tally(&self, stats: &Stats, excluded: u64) -> Tally {
        let busy = |stats: &Stats| stats.turns - stats.idle_turns;
        Tally {
            completions: stats.completions - self.stats.completions,
            busy_turns: busy(stats) - busy(&self.stats),
            doorbells: stats.doorbells - self.stats.doorbells,
            allocations: (count::allocations() - self.allocations).saturating_sub(excluded),
            credit_stalls: stats.credit_stalls - self.stats.credit_stalls,
            errors: stats.errors - self.stats.errors,
            receives_out_most: stats.receives_out_most,
            ..Tally::default()
        }
    }
}

/// Which echo is the next one.
pub(crate) trait Order {
    /// True if an echo of a message of `size` bytes is the one that must come now; `echoes` have
    /// come before it, of all peers.
    fn is_next(&mut self, peer: PeerId, bytes: &[u8], size: usize, echoes: u64) -> bool;
}

/// One stream of messages.
pub(crate) struct Stream;

impl Order for Stream {
    #[inline(always)]
    fn is_next(&mut self, _peer: PeerId, bytes: &[u8], size: usize, echoes: u64) -> bool {
        wire::is_stamped(bytes, size, echoes)
    }
}

/// The handler of the connecting side: takes echoes and acknowledgements.
pub(crate) struct Caller<O = Stream> {
    size: usize,
    pub(crate) order: O,
    pub(crate) peers: Vec<PeerId>,
    /// How many of them carry messages: the first ones.
    active: usize,
    down: Option<DownReason>,
    /// Echoes that came; the next one has this number.
    pub(crate) echoes: u64,
    /// Echoes that were not what was sent.
    pub(crate) wrong: u64,
    acks: u32,
    /// Sums of what the acknowledgements say: messages received, messages wrong.
    received: u64,
    received_wrong: u64,
}

impl<F: Fabric, O: Order> Handler<F> for Caller<O> {
    #[inline(always)]
    fn on_message(&mut self, message: Message<'_>, _out: &mut Outbox<'_, F>) -> Verdict {
        if message.imm().is_none() {
            let (peer, bytes) = (message.peer(), message.bytes());
            if !self.order.is_next(peer, bytes, self.size, self.echoes) {
                self.wrong += 1;
            }
            self.echoes += 1;
        } else {
            let (received, wrong) = wire::read_words(message.bytes());
            self.acks += 1;
            self.received += received;
            self.received_wrong += wrong;
        }
        Verdict::Done
    }

    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, F>) {
        self.peers.push(peer);
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, F>) {
        self.down = Some(why);
    }
}

/// The connecting side of a run: one worker with its connections.
pub(crate) struct Session<F: Fabric, O: Order = Stream> {
    pub(crate) worker: Worker<F, Caller<O>>,
    dialer: Dialer<F>,
    /// What is known of this side's memory.
    pub(crate) tally: Tally,
    idle: u32,
    /// Allocations of the control plane, which are not the data plane's.
    excluded: u64,
    seen: (u64, Instant),
    /// The mark: what is counted is counted from here.
    since: Since,
}

impl<F: Fabric> Session<F> {
    /// [`Session::join`] for one stream.
    pub(crate) fn connect(
        fabric: &F,
        request: &Request,
        peers: u32,
        addr: SocketAddr,
    ) -> Result<Session<F>, Failure> {
        Session::join(fabric, request, peers, addr, Stream)
    }
}

impl<F: Fabric, O: Order> Session<F, O> {
    /// Makes a worker on the calling thread and gives it that many connections: first those that
    /// carry messages, then the idle ones.
    pub(crate) fn join(
        fabric: &F,
        request: &Request,
        peers: u32,
        addr: SocketAddr,
        order: O,
    ) -> Result<Session<F, O>, Failure> {
        let config = config(request, peers, fabric.caps())?;
        let before = limits::resident();
        let mut tally = Tally::default();
        let shared = SharedRecv::new(fabric, memory(config.recv_bytes(), &mut tally)?, &config)?;
        let caller = Caller {
            size: request.size as usize,
            order,
            peers: Vec::with_capacity(config.peers as usize),
            active: request.qps as usize,
            down: None,
            echoes: 0,
            wrong: 0,
            acks: 0,
            received: 0,
            received_wrong: 0,
        };
        let memory = memory(config.send_bytes(), &mut tally)?;
        let (worker, intake) = Worker::new(fabric, &shared, memory, caller, &config)?;
        let mut dialer = Dialer::new(fabric)?;
        for _ in 0..config.peers {
            dialer.dial(addr, &intake, PATIENCE)?;
        }
        let seen = (0, Instant::now());
        let since = Since::now(worker.stats());
        let mut session = Session { worker, dialer, tally, idle: 0, excluded: 0, seen, since };
        while session.worker.handler().peers.len() < config.peers as usize {
            session.turn()?;
        }
        // The other side's workers have taken every connection in when this is answered.
        session.settle(wire::MARK)?;
        session.tally.resident = limits::resident().saturating_sub(before);
        Ok(session)
    }

    /// One turn; now and then, while nothing comes, a look at the connections.
    #[inline(always)]
    pub(crate) fn turn(&mut self) -> Result<usize, Failure> {
        let taken = self.worker.turn();
        if taken != 0 {
            self.idle = 0;
            return Ok(taken);
        }
        self.idle += 1;
        if self.idle >= COLD_TURNS {
            self.look()?;
        }
        Ok(0)
    }

    #[cold]
    #[inline(never)]
    fn look(&mut self) -> Result<(), Failure> {
        self.idle = 0;
        let before = count::allocations();
        while self.dialer.step(Duration::ZERO)? {}
        self.excluded += count::allocations() - before;
        if let Some(why) = self.worker.handler().down {
            return Err(Failure::new(format!(
                "the connection broke off ({why:?}); see what the other side says"
            )));
        }
        let completions = self.worker.stats().completions;
        if completions != self.seen.0 {
            self.seen = (completions, Instant::now());
        } else if self.seen.1.elapsed() > PATIENCE {
            return Err(Failure::new(format!(
                "nothing has come back for {} s; is the other side still running?",
                PATIENCE.as_secs()
            )));
        }
        Ok(())
    }

    /// Sends at once, with a doorbell of its own; turns while there is no room.
    #[inline(always)]
    pub(crate) fn send_now(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), Failure> {
        match self.worker.outbox().send_now(peer, bytes) {
            Ok(()) => Ok(()),
            Err(error) if is_pressure(error) => self.send(peer, bytes),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Sends to the first peer, at once or with the next flush; false if there is no room now.
    #[inline(always)]
    pub(crate) fn try_send(&mut self, bytes: &[u8], now: bool) -> Result<bool, Failure> {
        let first = self.worker.handler().peers[0];
        self.try_send_to(first, bytes, now)
    }

    /// The same to that peer.
    #[inline(always)]
    pub(crate) fn try_send_to(
        &mut self,
        peer: PeerId,
        bytes: &[u8],
        now: bool,
    ) -> Result<bool, Failure> {
        let mut out = self.worker.outbox();
        match if now { out.send_now(peer, bytes) } else { out.send(peer, bytes) } {
            Ok(()) => Ok(true),
            Err(error) if is_pressure(error) => Ok(false),
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Sends with the next flush; turns while there is no room.
    #[inline(always)]
    pub(crate) fn send(&mut self, peer: PeerId, bytes: &[u8]) -> Result<(), Failure> {
        loop {
            match self.worker.outbox().send(peer, bytes) {
                Ok(()) => return Ok(()),
                Err(error) if is_pressure(error) => self.turn()?,
                Err(error) => return Err(self.refused(error)),
            };
        }
    }

    /// Sends a list of messages with the next flush; turns while there is no room.
    #[inline(always)]
    pub(crate) fn send_list(&mut self, peer: PeerId, mut list: &[&[u8]]) -> Result<(), Failure> {
        while let Err(error) = self.worker.outbox().send_list(peer, list) {
            if !is_pressure(error.cause) {
                return Err(self.refused(error.cause));
            }
            list = &list[error.accepted..];
            self.turn()?;
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn refused(&mut self, error: SendError) -> Failure {
        match self.worker.handler().down {
            Some(why) => Failure::new(format!(
                "the connection broke off ({why:?}); see what the other side says"
            )),
            None => error.into(),
        }
    }

    /// Says `imm` to every peer that carries messages and waits until each has answered, and so
    /// has everything that was sent before. The sums of what they say: messages received, messages
    /// wrong.
    pub(crate) fn settle(&mut self, imm: u32) -> Result<(u64, u64), Failure> {
        let caller = self.worker.handler();
        (caller.acks, caller.received, caller.received_wrong) = (0, 0, 0);
        let peers = caller.active;
        let word = wire::words(0, 0);
        for n in 0..peers {
            let peer = self.worker.handler().peers[n];
            loop {
                match self.worker.outbox().send_imm(peer, &word, imm) {
                    Ok(()) => break,
                    Err(error) if is_pressure(error) => self.turn()?,
                    Err(error) => return Err(self.refused(error)),
                };
            }
        }
        self.worker.outbox().flush();
        while (self.worker.handler().acks as usize) < peers {
            self.turn()?;
        }
        let caller = self.worker.handler();
        Ok((caller.received, caller.received_wrong))
    }

    /// What is counted is counted from here.
    pub(crate) fn mark(&mut self) {
        self.excluded = 0;
        self.since = Since::now(self.worker.stats());
    }

    /// What this side did since the mark.
    pub(crate) fn tally(&self) -> Tally {
        self.since.tally(self.worker.stats(), self.excluded)
    }
}

/// A worker's echoes: each message rings at once, or with the end of the turn as a batch does.
pub(crate) struct Ping<'a, F: Fabric> {
    pub(crate) session: &'a mut Session<F>,
    pub(crate) batching: bool,
}

impl<F: Fabric> Echoes for Ping<'_, F> {
    #[inline(always)]
    fn echoes(&mut self) -> u64 {
        self.session.worker.handler().echoes
    }

    fn wrong(&mut self) -> u64 {
        self.session.worker.handler().wrong
    }

    #[inline(always)]
    fn round(&mut self, payload: &[u8], number: u64) -> Result<(), Failure> {
        let peer = self.session.worker.handler().peers[0];
        match self.batching {
            true => self.session.send(peer, payload)?,
            false => self.session.send_now(peer, payload)?,
        }
        while self.session.worker.handler().echoes == number {
            self.session.turn()?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), Failure> {
        self.session.settle(wire::MARK)?;
        self.session.mark();
        Ok(())
    }

    fn end(&mut self) -> Result<Tally, Failure> {
        let tally = self.session.tally();
        self.session.settle(wire::END)?;
        Ok(tally)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(size: u32, qps: u32) -> Request {
        Request { qps, ..Request::new(Test::Rate, size) }
    }

    #[test]
    fn every_size_and_number_of_connections_gives_numbers_that_hold() {
        let device = doorbell::soft::SoftDevice::open().unwrap();
        let caps = doorbell::provider::Provider::caps(&device);
        for size in [1, 8, 64, 65, 200, 4096, 1 << 20, SIZE_MAX] {
            for qps in [1, 2, 1000] {
                let config = config(&request(size, qps), qps, caps).unwrap();
                assert_eq!(config.check(), Ok(()), "{size} {qps}");
                assert!(config.block_bytes >= size);
            }
        }
        for size in [0, SIZE_MAX + 1] {
            let text = config(&request(size, 1), 1, caps).unwrap_err().to_string();
            assert!(text.contains("1 to 16777216 bytes"), "{text}");
        }
    }
}
