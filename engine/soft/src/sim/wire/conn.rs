//! Connections over the wire, and the lines that they share.

use std_alloc::collections::VecDeque;

use super::super::super::wire::{Port, Psn};
use super::super::flow::{Receiver, Sender};

/// The flows of a connection. No response waits for a record of another kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Messages and one-sided requests.
    Requests,
    /// Responses to one-sided requests.
    Responses,
}

/// A flow each way, by sending side.
pub(super) struct Flows {
    pub(super) senders: [Sender; 2],
    pub(super) receivers: [Receiver; 2],
}

impl Flows {
    pub(super) fn new(firsts: [Psn; 2]) -> Flows {
        Flows { senders: firsts.map(Sender::new), receivers: firsts.map(Receiver::new) }
    }
}

/// One connection: two queue pairs and their flows.
pub(super) struct Conn {
    pub(super) line: usize,
    pub(super) nums: [u32; 2],
    pub(super) requests: Flows,
    pub(super) responses: Flows,
    /// READs and atomics that the other side has taken and whose response was not brought back, by
    /// asking side. Negative where a response came first.
    pub(super) asks: [i32; 2],
    /// By asking side: for each response that the other side owes, whether it is a replay.
    pub(super) owed: [VecDeque<bool>; 2],
    /// By sending side: all retries have failed.
    pub(super) exhausted: [bool; 2],
    /// The network is cut for this connection until then.
    pub(super) cut_until: u64,
}

impl Conn {
    pub(super) fn flows(&mut self, lane: Lane) -> &mut Flows {
        match lane {
            Lane::Requests => &mut self.requests,
            Lane::Responses => &mut self.responses,
        }
    }
}

/// Two joined ports: what the soft device's link is without a network.
pub(super) struct Line {
    pub(super) places: [(u32, u32); 2],
    pub(super) ports: [Port; 2],
    /// By receiving side: the connection whose message is written there without its end.
    pub(super) amid: [Option<usize>; 2],
}

/// The one of the `open` connections on that line whose queue pair at the far end of `side` has
/// that number.
pub(super) fn open_to(
    conns: &[Conn],
    open: &[usize],
    line: usize,
    side: usize,
    qp: u32,
) -> Option<usize> {
    let is_it = |number: &&usize| {
        let conn = &conns[**number];
        conn.line == line && conn.nums[1 - side] == qp
    };
    open.iter().rfind(is_it).copied()
}
