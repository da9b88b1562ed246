//! The last turns of a worker that is dropped. They give back the receives of the shared queue that
//! it has: in completions, in kept messages, in replies that wait, in sends in flight, and free.
//!
//! They are the steps of other turns, with a handler that does nothing: the program's handler may
//! have panicked, and may borrow what is gone by now. A worker that has drained has little to do.

use core::mem;

use super::admit;
use super::core::Core;
use super::dispatch;
use super::drain::{self, CLOSE_TURNS};
use super::handler::Handler;
use super::message::{DownReason, Message, Verdict};
use super::outbox::Outbox;
use super::recv_blocks::Refill;
use crate::provider::{Poller, Provider};

/// Stands in for the program's handler.
struct Mute;

impl<P: Provider> Handler<P> for Mute {
    fn on_message(&mut self, _: Message<'_>, _: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
}

/// The core implements `Drop`, and the worker does not: else a program could use what its handler
/// has borrowed only after it has dropped the worker.
impl<P: Provider> Drop for Core<P> {
    fn drop(&mut self) {
        self.mailbox.close();
        self.end_peers();
        let mut vain = 0;
        while vain < CLOSE_TURNS {
            if self.mailbox.has_mail() {
                admit::admit(self, &mut Mute);
                self.end_peers();
            }
            let all_gone = self.sender.peers.len() == 0;
            let taken = self.take_completions();
            drain::report_drained(self, &mut Mute);
            self.refill(Refill::All);
            // Counts turns in vain. It ends, because a queue pair in ERR makes only finitely many
            // completions.
            vain = if taken == 0 { vain + 1 } else { 0 };
            let is_over = all_gone && !self.mailbox.has_mail() || self.poller.is_broken();
            if taken == 0 && is_over {
                break;
            }
        }
        // Peers that have not drained go as they are.
        self.config.drain_turns = 0;
        drain::report_drained(self, &mut Mute);
        self.take_completions();
        self.refill(Refill::All);
    }
}

impl<P: Provider> Core<P> {
    /// Moves all queue pairs to ERR. The control planes are not asked for anything: they hear of
    /// the worker's end when its queue pairs are gone.
    fn end_peers(&mut self) {
        self.datagrams.end(&mut self.sender.accounts);
        for slot in 0..self.config.peers {
            self.fail(slot, DownReason::Disconnected);
        }
    }

    /// Dispatches the completions that are left, or else those of one poll: how many.
    fn take_completions(&mut self) -> usize {
        let mut wcs = mem::take(&mut self.wcs);
        let taken = match mem::take(&mut self.left) {
            0 => self.poller.poll_more(&mut wcs),
            left => left,
        };
        for wc in wcs.iter().take(taken) {
            dispatch::dispatch(self, &mut Mute, wc);
        }
        self.wcs = wcs;
        taken
    }
}
