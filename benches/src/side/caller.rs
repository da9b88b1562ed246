//! The handler of the connecting side: takes echoes and answers.

use doorbell::Fabric;
use doorbell::worker::{DownReason, Handler, Message, Outbox, PeerId, Verdict};

use crate::meet::wire;

/// Knows which echo comes next.
pub(crate) trait Order {
    /// True if this is the echo that must come now, of a message of `size` bytes. `echoes` came
    /// before it, from all peers.
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

/// The handler of the connecting side.
pub(crate) struct Caller<O = Stream> {
    size: usize,
    pub(crate) order: O,
    pub(crate) peers: Vec<PeerId>,
    /// The first this many peers carry messages.
    pub(crate) active: usize,
    pub(crate) down: Option<DownReason>,
    /// Echoes received so far; the next one has this number.
    pub(crate) echoes: u64,
    /// Echoes that differ from what was sent.
    pub(crate) wrong: u64,
    /// Answers since [`Caller::expect_answers`].
    pub(crate) acks: u32,
    /// Messages that the answers say were received, summed.
    received: u64,
    /// Messages that the answers say were wrong, summed.
    received_wrong: u64,
}

impl<O> Caller<O> {
    /// For messages of that size to `peers` connections, of which the first `active` carry them.
    pub(crate) fn new(size: usize, order: O, peers: usize, active: usize) -> Caller<O> {
        Caller {
            size,
            order,
            peers: Vec::with_capacity(peers),
            active,
            down: None,
            echoes: 0,
            wrong: 0,
            acks: 0,
            received: 0,
            received_wrong: 0,
        }
    }

    /// Forgets the answers so far.
    pub(crate) fn expect_answers(&mut self) {
        (self.acks, self.received, self.received_wrong) = (0, 0, 0);
    }

    /// Messages received and messages wrong, by the answers since then.
    pub(crate) fn answers(&self) -> (u64, u64) {
        (self.received, self.received_wrong)
    }
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
