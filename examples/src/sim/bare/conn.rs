//! A connection and its two ends.

use doorbell::soft::QpControl;

use super::super::device::{DeviceQp, DeviceWindow};
use super::direction::Direction;

/// How requests are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Path {
    /// [`Qp::post`](doorbell::provider::Qp::post).
    #[default]
    List,
    /// One by one, each with a doorbell of its own.
    Now,
    /// One by one; a doorbell follows later.
    Later,
    /// As a list without a doorbell.
    InlineList,
}

/// A window through which the peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowState {
    Shut,
    Opening,
    Open(u32),
    /// A message that closes it is on its way.
    Shutting,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) desk: usize,
    pub(super) qp: Option<DeviceQp>,
    /// How it posted last.
    pub(super) path: Path,
    /// A message waits for a doorbell.
    pub(super) pending: bool,
    pub(super) control: QpControl,
    /// Every request completes.
    pub(super) signal_all: bool,
    pub(super) window: DeviceWindow,
    pub(super) window_state: WindowState,
    /// Its latest key.
    pub(super) rkey: u32,
    /// A key that was valid before.
    pub(super) old_key: Option<u32>,
    /// Receives that it has posted itself.
    pub(super) receives: usize,
}

/// A connection.
pub(super) struct Conn {
    pub(super) ends: [End; 2],
    /// By sending side.
    pub(super) directions: [Direction; 2],
    /// Side 0 begins at that time.
    pub(super) begins: Option<u64>,
    /// Something has happened that may end it, besides refused requests.
    pub(super) excused: bool,
    /// A request of that side was flushed, and the wire has not yet told why.
    pub(super) flushed: Option<(usize, u64)>,
    pub(super) ending: bool,
    /// Everything is over; and the empty polls by then, by side.
    pub(super) over: Option<[u64; 2]>,
    pub(super) closed: bool,
}

impl Conn {
    /// True if something other than its own refused requests may end that side's sends.
    pub(super) fn excuses(&self, side: usize) -> bool {
        self.excused || self.directions[1 - side].wrong.is_some()
    }

    /// True if that side may post.
    pub(super) fn may_post(&self, side: usize) -> bool {
        !self.ending && !self.closed && (side == 1 || self.begins.is_none())
    }
}

/// The text of a failure at one end of a connection.
pub(super) fn at_end((conn, side): (usize, usize), what: &str) -> String {
    format!("connection {conn}, side {side}: {what}")
}
