//! What is compared, and how.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

/// Places and times.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Doorbell's benchmark program.
    pub(crate) bench: PathBuf,
    /// The cores: of the side that sends first, and of the other.
    pub(crate) cores: [usize; 2],
    /// Time of one figure of one round.
    pub(crate) time: Duration,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Half a round trip, one message in flight.
    Latency,
    /// Messages a second, one way.
    Rate,
}

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Peer {
    Doorbell,
    Ucx,
    Iceoryx2,
    Libfabric,
}

/// An entry: a program with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) peer: Peer,
    /// Messages per doorbell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u32>,
}

/// One row: a test at one size, and its entries.
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) entries: Vec<Entry>,
}

impl Contest {
    /// Both tests at each size.
    pub(crate) fn all(sizes: &[u32]) -> Vec<Contest> {
        let of = |test| sizes.iter().map(move |size| Contest::new(test, *size));
        of(Test::Latency).chain(of(Test::Rate)).collect()
    }

    fn new(test: Test, size: u32) -> Contest {
        let entry = |peer, batch| Entry { peer, batch };
        let entries = match test {
            Test::Latency => vec![
                entry(Peer::Doorbell, None),
                entry(Peer::Ucx, None),
                entry(Peer::Iceoryx2, None),
                entry(Peer::Libfabric, None),
            ],
            // libfabric has no program for this.
            Test::Rate => vec![
                entry(Peer::Doorbell, Some(1)),
                entry(Peer::Ucx, None),
                entry(Peer::Doorbell, Some(16)),
                entry(Peer::Iceoryx2, None),
            ],
        };
        Contest { test, size, entries }
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let test = match self.test {
            Test::Latency => "latency",
            Test::Rate => "rate",
        };
        write!(f, "{test}, {} B", self.size)
    }
}
