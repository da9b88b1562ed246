//! Answers of the serving side to words with immediate data. A send may be refused at any time, for
//! want of room or credit: the answer then waits for the next idle turn.

use doorbell::Fabric;
use doorbell::worker::{Outbox, PeerId};

use crate::meet::wire;

/// The answers that have not been sent yet.
pub(crate) struct Answers(Vec<(PeerId, [u8; wire::WORD_BYTES])>);

impl Answers {
    /// There is at most one for each peer, because a peer waits for its answer.
    pub(crate) fn new(peers: usize) -> Answers {
        Answers(Vec::with_capacity(peers))
    }

    pub(crate) fn owe(&mut self, peer: PeerId, words: [u8; wire::WORD_BYTES]) {
        self.0.push((peer, words));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends those that there is room for. A peer that is gone gets none.
    #[cold]
    #[inline(never)]
    pub(crate) fn send<F: Fabric>(&mut self, out: &mut Outbox<'_, F>) {
        self.0.retain(|(peer, words)| {
            out.send_imm(*peer, words, wire::ACK).is_err_and(|error| error.is_back_pressure())
        });
        // A turn may leave the doorbell to the next turn, and something else may be served first.
        out.flush();
    }
}
