//! The handler of the serving side: sends echoes, or counts and checks.

use doorbell::Fabric;
use doorbell::worker::{DownReason, Handler, Message, Outbox, PeerId, Verdict};

use crate::ask::request::Request;
use crate::error::Failure;
use crate::meet::wire;

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
            (*said, self.event) = (0, event);
        }
        // If this fails the peer is going down, and `check` reports it.
        let _ = out.send_imm(peer, &wire::words(stream.received, stream.wrong), wire::ACK);
        // A turn may leave the doorbell to the next turn, and another lot may be served first.
        out.flush();
        Verdict::Done
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

    fn on_peer_up(&mut self, _peer: PeerId, _out: &mut Outbox<'_, F>) {
        self.ups += 1;
    }

    fn on_peer_down(&mut self, _peer: PeerId, why: DownReason, _out: &mut Outbox<'_, F>) {
        self.downs += 1;
        self.why = Some(why);
    }
}
