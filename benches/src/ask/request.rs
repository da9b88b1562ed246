//! One run, as the connecting side asks the serving side for it.

use clap::ValueEnum;
use doorbell::worker::Config;
use serde::{Deserialize, Serialize};

/// Version of the protocol between the two sides.
pub(crate) const VERSION: u32 = 5;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Round trips of one message.
    Latency,
    /// A stream one way.
    Rate,
    /// Round trips of messages that are due at fixed times.
    Load,
    /// Round trips with few and many messages in flight.
    Sweep,
    /// Round trips of a few busy connections among many idle ones.
    Crowd,
    /// Bytes one way, between queue pairs without workers.
    Bandwidth,
    /// Instructions of a message.
    Overhead,
    /// A row of traffic, in turn with a naive ring.
    Traffic,
}

/// How bytes travel between the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA WRITE into memory that the other side exposes
    Write,
    /// RDMA READ from memory that the other side exposes
    Read,
    /// SEND into receives that the other side posts
    Send,
}

/// The type of the queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// Reliable connection
    #[default]
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagrams
    Ud,
}

/// One run, as the connecting side wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Connections that carry messages.
    pub(crate) qps: u32,
    /// Connections that carry none.
    pub(crate) idle_qps: u32,
    /// Receives of the shared queue; 0 means as many as the busy connections can use.
    pub(crate) receives: u32,
    /// Workers of the serving side, on one shared receive queue.
    pub(crate) workers: u32,
    /// One send in this many asks for a completion.
    pub(crate) signal_every: u32,
    /// True for a device in software.
    pub(crate) soft: bool,
    /// Queue pairs alone, without worker and handler.
    pub(crate) bare: bool,
    /// The type of those.
    pub(crate) transport: Transport,
    /// Whether their receives come from a shared receive queue.
    pub(crate) srq: bool,
    /// How many times measuring begins and ends.
    pub(crate) pieces: u32,
    /// The operation of [`Test::Bandwidth`].
    pub(crate) op: Op,
    /// How many of those operations may be outstanding.
    pub(crate) window: u32,
    /// The row of [`Test::Traffic`].
    pub(crate) traffic: Option<RowRequest>,
}

/// A row of traffic, as the serving side must know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowRequest {
    /// The memory of the naive ring.
    pub(crate) memory: MemoryAt,
    /// Slots of each of its lanes.
    pub(crate) slots: u64,
    /// The time to handle a message.
    pub(crate) handling_ns: u32,
    /// The seed of the times, if each is random, from 0 to `handling_ns`.
    pub(crate) random: Option<u64>,
}

/// Memory that both sides map: a file that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemoryAt {
    pub(crate) process: u32,
    pub(crate) file: i32,
    pub(crate) bytes: usize,
}

impl Request {
    /// Messages of that size over one connection, between workers of a device in software.
    pub(crate) fn new(test: Test, size: u32) -> Request {
        Request {
            version: VERSION,
            test,
            size,
            qps: 1,
            idle_qps: 0,
            receives: 0,
            workers: 1,
            signal_every: Config::DEFAULT.signal_every,
            soft: true,
            bare: false,
            transport: Transport::Rc,
            srq: true,
            pieces: 1,
            op: Op::Write,
            window: 1,
            traffic: None,
        }
    }

    /// The connections of each lot. Lots are measured in turn. With idle connections there are two:
    /// one without them, for comparison, and one with them.
    pub(crate) fn lots(&self) -> Vec<u32> {
        match self.idle_qps {
            0 => vec![self.qps],
            idle => vec![self.qps, self.qps.saturating_add(idle)],
        }
    }

    /// True for queue pairs of datagrams, or with receives of their own.
    pub(crate) fn is_other(&self) -> bool {
        self.transport == Transport::Ud || !self.srq
    }

    /// How many of the busy connections worker `n` of the serving side gets. The listener deals
    /// them out in turn.
    pub(crate) fn active(&self, n: u32) -> u32 {
        self.qps / self.workers + u32::from(n < self.qps % self.workers)
    }

    /// True if the serving side sends every message back.
    pub(crate) fn is_echo(&self) -> bool {
        match self.test {
            Test::Latency | Test::Load | Test::Sweep | Test::Crowd | Test::Traffic => true,
            Test::Rate | Test::Bandwidth | Test::Overhead => false,
        }
    }
}
