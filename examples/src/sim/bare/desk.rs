//! A completion queue and its reader.

use doorbell::provider::{Polled, Poller, PollerEx};
use doorbell::wc::Wc;

use super::super::device::{DeviceCq, DevicePoller, DevicePollerEx};

/// A completion queue and its reader.
pub(super) struct Desk {
    pub(super) cq: DeviceCq,
    pub(super) reader: Reader,
    /// Polls that found nothing.
    pub(super) empty: u64,
}

/// The reader of a completion queue.
pub(super) enum Reader {
    Plain(DevicePoller),
    Extended(DevicePollerEx),
}

impl Reader {
    /// Takes completions in one way or another, and returns how many.
    pub(super) fn take(&mut self, out: &mut [Wc], one: bool) -> usize {
        match self {
            Reader::Plain(poller) if one => match poller.poll_one() {
                Polled::More => poller.poll_more(out),
                Polled::Nothing => 0,
                Polled::One(wc) => {
                    out[0] = wc;
                    1
                }
            },
            Reader::Plain(poller) => poller.poll(out),
            Reader::Extended(poller) if one => poller.next().map_or(0, |wc| {
                out[0] = wc.plain();
                1
            }),
            Reader::Extended(poller) => poller.poll(out),
        }
    }
}
