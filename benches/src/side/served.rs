//! The handler of the serving side: sends echoes, or counts and checks.

use doorbell::Fabric;
use doorbell::worker::{DownReason, Handler, Message, Outbox, PeerId, Verdict};

use crate::ask::request::Request;
use crate::error::Failure;
use crate::meet::wire;
use crate::side::answers::Answers;

/// What the loop must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    None,
    /// Every busy peer has marked the begin.
    Mark,
    /// Every busy peer has marked the end.
    End,
}

/// The stream of messages from one peer.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The number of the next message.
    next: u64,
    received: u64,
    wrong: u64,
}

impl Stream {
    /// Counts a message that is not the next one. Goes on from the number in it, so that a gap
    /// counts once.
    #[cold]
    #[inline(never)]
    fn miss(&mut self, bytes: &[u8]) {
        self.wrong += 1;
        if bytes.len() >= 8 {
            self.next = wire::sequence(bytes);
        }
    }
}

/// The handler of the serving side.
pub(crate) struct Served {
    echo: bool,
    size: usize,
    /// One for each peer, by its index.
    streams: Box<[Stream]>,
    pub(crate) event: Event,
    /// Busy connections of this worker.
    pub(crate) active: u32,
    /// Busy connections that have marked the begin.
    marks: u32,
    /// Busy connections that have marked the end.
    ends: u32,
    /// What every busy connection has said. The loop hears of it when all have their answers.
    said: Event,
    answers: Answers,
    ups: u32,
    downs: u32,
    why: Option<DownReason>,
}

impl Served {
    pub(crate) fn new(request: &Request, n: u32, peers: usize) -> Served {
        Served {
            echo: request.is_echo(),
            size: request.size as usize,
            streams: vec![Stream::default(); peers].into(),
            event: Event::None,
            active: request.active(n),
            marks: 0,
            ends: 0,
            said: Event::None,
            answers: Answers::new(peers),
            ups: 0,
            downs: 0,
            why: None,
        }
    }

    /// Messages received from the first peer, and how many of them were wrong.
    pub(crate) fn came(&self) -> (u64, u64) {
        self.streams.first().map_or((0, 0), |stream| (stream.received, stream.wrong))
    }

    /// True if every peer that came has gone.
    pub(crate) fn is_left(&self) -> bool {
        self.downs == self.ups
    }

    /// # Errors
    /// A connection is down.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.why {
            Some(why) => Err(Failure::new(format!(
                "the serving side lost a connection ({why:?}) before the end"
            ))),
            None => Ok(()),
        }
    }

    /// Answers a message with immediate data: how many messages came since the last one.
    #[cold]
    #[inline(never)]
    fn word<F: Fabric>(
        &mut self,
        peer: PeerId,
        imm: Option<u32>,
        out: &mut Outbox<'_, F>,
    ) -> Verdict {
        let stream = std::mem::take(&mut self.streams[peer.index()]);
        let (said, event) = match imm {
            Some(wire::MARK) => (&mut self.marks, Event::Mark),
            _ => (&mut self.ends, Event::End),
        };
        *said += 1;
        if *said == self.active {
            (*said, self.said) = (0, event);
        }
        self.answers.owe(peer, wire::words(stream.received, stream.wrong));
        self.answer(out);
        Verdict::Done
    }

    /// Sends the answers that wait.
    fn answer<F: Fabric>(&mut self, out: &mut Outbox<'_, F>) {
        self.answers.send(out);
        if self.answers.is_empty() && self.said != Event::None {
            self.event = std::mem::replace(&mut self.said, Event::None);
        }
    }
}

impl<F: Fabric> Handler<F> for Served {
    #[inline(always)]
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, F>) -> Verdict {
        if message.imm().is_some() {
            return self.word(message.peer(), message.imm(), out);
        }
        if self.echo {
            return Verdict::Reply { len: message.len() };
        }
        let stream = &mut self.streams[message.peer().index()];
        if !wire::is_stamped(message.bytes(), self.size, stream.next) {
            stream.miss(message.bytes());
        }
        stream.next = stream.next.wrapping_add(1);
        stream.received += 1;
        Verdict::Done
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, F>) {
        if !self.answers.is_empty() {
            self.answer(out);
        }
    }

    fn on_peer_up(&mut self, _peer: PeerId, _out: &mut Outbox<'_, F>) {
        self.ups += 1;
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, F>) {
        self.downs += 1;
        self.why = Some(why);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use doorbell::alloc::Mapping;
    use doorbell::soft::SoftDevice;
    use doorbell::worker::{Config, Intake, SharedRecv, Worker};
    use doorbell::{Dialer, Listener};

    use super::*;
    use crate::ask::request::Test;
    use crate::side::caller::{Caller, Stream as InOrder};

    const LIMIT: Duration = Duration::from_secs(60);

    fn worker<H: Handler<SoftDevice>>(
        device: &SoftDevice,
        handler: H,
        window: u32,
    ) -> (Worker<SoftDevice, H>, Intake<SoftDevice>) {
        let numbers = Config {
            peers: 1,
            block_bytes: 64,
            recv_blocks: window + 1,
            refill: 1,
            window,
            window_min: window,
            ..Config::DEFAULT
        };
        let memory = |bytes| Mapping::plain(bytes).unwrap();
        let shared = SharedRecv::new(device, memory(numbers.recv_bytes()), &numbers).unwrap();
        Worker::new(device, &shared, memory(numbers.send_bytes()), handler, &numbers).unwrap()
    }

    /// The peer takes no more echoes than it has receives for. The answer waits behind those, and
    /// comes in the end.
    #[test]
    fn an_answer_without_credit_comes_later() {
        let device = SoftDevice::open().unwrap();
        let request = Request::new(Test::Latency, 8);
        let (mut serving, intake) = worker(&device, Served::new(&request, 0, 1), 32);
        let (mut calling, own) = worker(&device, Caller::new(8, InOrder, 1, 1), 4);
        let mut listener = Listener::bind(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
        listener.feed(intake);
        let mut dialer = Dialer::new(&device).unwrap();
        let begin = Instant::now();
        dialer.start(listener.local_addr().unwrap(), &[], &own, LIMIT).unwrap();
        while calling.handler().peers.is_empty() || serving.handler().ups == 0 {
            assert!(begin.elapsed() < LIMIT, "they do not connect");
            while listener.step(Duration::ZERO).unwrap() || dialer.step(Duration::ZERO).unwrap() {}
            serving.turn();
            calling.turn();
        }
        let peer = calling.handler().peers[0];
        for number in 0..16_u64 {
            calling.outbox().send(peer, &number.to_le_bytes()).unwrap();
        }
        calling.outbox().send_imm(peer, &wire::words(0, 0), wire::MARK).unwrap();
        calling.outbox().flush();
        // The peer makes no turn meanwhile, and so gives no credit back.
        (0..100).for_each(|_| _ = serving.turn());
        assert!(!serving.handler().answers.is_empty() && serving.handler().event == Event::None);
        for _ in 0..10_000 {
            calling.turn();
            serving.turn();
        }
        assert_eq!((calling.handler().echoes, calling.handler().acks), (16, 1));
        assert_eq!(serving.handler().event, Event::Mark);
    }
}
