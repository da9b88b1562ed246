//! The flush: sends everything that waits.

use super::core::Core;
use super::message::DownReason;
use crate::provider::Provider;
use crate::wc::Status;

impl<P: Provider> Core<P> {
    /// Rings the pending doorbells, posts the batches, and sends the replies that have room by now.
    /// Ends peers whose queue pair refused a post, whose reply was too long, that broke the rules
    /// of credit, or that said goodbye and did not disconnect.
    #[inline(always)]
    pub(super) fn flush(&mut self) {
        self.sender.post_batches();
        if !self.replies.is_empty() {
            self.replies.retry(&mut self.sender);
            self.sender.post_batches();
        }
        if !self.sender.accounts.broken.is_empty() {
            self.fail_broken();
        }
    }

    #[cold]
    fn fail_broken(&mut self) {
        while let Some(slot) = self.sender.accounts.broken.pop() {
            let overlong = self.sender.peers.is_overlong(slot);
            let breach = self.sender.peers.conduct(slot).and_then(|(_, conduct)| conduct.breach);
            let why = match breach {
                Some(breach) => DownReason::BrokeProtocol(breach),
                None if overlong => DownReason::ReplyTooLong,
                // After a goodbye, `fail` makes this `Finished`.
                None => DownReason::Failed(Status::LocalQpOperation),
            };
            self.fail(slot, why);
        }
    }
}
