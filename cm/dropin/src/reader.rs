//! Readers of completion queues, plain and extended.

use std::sync::{Condvar, Mutex};

use doorbell_seam::error::SetupError;
use doorbell_seam::provider::wake::WakeFds;
use doorbell_seam::provider::{Poller as _, PollerEx, WcEx};
use doorbell_seam::wc::Wc;
use doorbell_soft::{SoftPoller, SoftPollerEx};

/// The reader of a completion queue, plain or extended.
pub(crate) enum Reader {
    Plain(SoftPoller),
    Extended(SoftPollerEx),
}

impl Reader {
    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> usize {
        match self {
            Reader::Plain(poller) => poller.poll(out),
            Reader::Extended(poller) => poller.poll(out),
        }
    }

    pub(crate) fn arm(&mut self, solicited: bool) -> Result<(), SetupError> {
        match self {
            Reader::Plain(poller) => poller.arm(solicited),
            Reader::Extended(poller) => poller.arm(solicited),
        }
    }

    pub(crate) fn woken(&mut self) -> bool {
        match self {
            Reader::Plain(poller) => poller.woken(),
            Reader::Extended(poller) => poller.woken(),
        }
    }

    pub(crate) fn wake_fds(&self) -> Option<WakeFds> {
        match self {
            Reader::Plain(poller) => poller.wake_fds(),
            Reader::Extended(poller) => poller.wake_fds(),
        }
    }

    pub(crate) fn next(&mut self) -> Option<WcEx> {
        match self {
            Reader::Plain(_) => None,
            Reader::Extended(poller) => poller.next(),
        }
    }
}

/// The completion of the poll under way (`ibv_start_poll` to `ibv_end_poll`), if there is one. Two
/// threads may poll a queue: the second waits until the first has ended.
#[derive(Default)]
pub(crate) struct Current {
    pub(crate) wc: Mutex<Option<WcEx>>,
    pub(crate) ended: Condvar,
}
