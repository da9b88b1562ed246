//! What is compared, and how.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Serialize, Serializer};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Test {
    /// Half a round trip, one message in flight.
    Latency,
    /// Messages a second, one way.
    Rate,
    /// Half a round trip of a WRITE that the other side sees in its memory.
    Put,
    /// WRITEs a second.
    PutRate,
    /// READs a second.
    GetRate,
    /// Half of the time from a call to its answer.
    Rpc,
    /// Messages larger than a block, one way, a second.
    Large,
    /// The same, both ways at once: the sum.
    LargeBoth,
}

impl Test {
    pub(crate) const ALL: [Test; 8] = [
        Test::Latency,
        Test::Rate,
        Test::Put,
        Test::PutRate,
        Test::GetRate,
        Test::Rpc,
        Test::Large,
        Test::LargeBoth,
    ];

    /// True if the figures are times, and less is better; the others are rates.
    pub(crate) fn is_time(self) -> bool {
        matches!(self, Test::Latency | Test::Put | Test::Rpc)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::Latency => "latency",
            Test::Rate => "rate",
            Test::Put => "put latency",
            Test::PutRate => "put rate",
            Test::GetRate => "get rate",
            Test::Rpc => "rpc",
            Test::Large => "large",
            Test::LargeBoth => "large both ways",
        }
    }
}

/// A way to send by UCX's protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Tag,
    Am,
    Put,
    Get,
}

/// A program that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Doorbell,
    /// Doorbell, with messages that neither side writes or reads: ucx_perftest and fi_pingpong do
    /// not either.
    Untouched,
    /// UCX's transport alone, active messages.
    Uct,
    /// UCX's protocols over shared memory.
    Ucx {
        api: Api,
        /// With the kernel's copy from process to process.
        cma: bool,
    },
    Iceoryx2,
    Libfabric,
    /// The copy of lines that the other core has just written.
    Copy,
    Memcpy,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Doorbell => "doorbell",
            Peer::Untouched => "doorbell untouched",
            Peer::Uct => "UCX uct am",
            Peer::Ucx { api: Api::Tag, cma: false } => "UCX tag",
            Peer::Ucx { api: Api::Tag, cma: true } => "UCX tag cma",
            Peer::Ucx { api: Api::Am, cma: false } => "UCX am",
            Peer::Ucx { api: Api::Am, cma: true } => "UCX am cma",
            Peer::Ucx { api: Api::Put, cma: false } => "UCX put",
            Peer::Ucx { api: Api::Put, cma: true } => "UCX put cma",
            Peer::Ucx { api: Api::Get, cma: false } => "UCX get",
            Peer::Ucx { api: Api::Get, cma: true } => "UCX get cma",
            Peer::Iceoryx2 => "iceoryx2",
            Peer::Libfabric => "libfabric",
            Peer::Copy => "copy of the other core's lines",
            Peer::Memcpy => "memcpy",
        }
    }

    /// True if it is Doorbell's own side.
    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Peer::Doorbell | Peer::Untouched)
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// An entry: a program with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    pub(crate) peer: Peer,
    /// Messages per doorbell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u32>,
    /// `UCX_POSIX_FIFO_ELEM_SIZE`, in bytes, if it is not UCX's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fifo_elem_size: Option<u32>,
}

impl Entry {
    pub(crate) fn new(peer: Peer) -> Entry {
        Entry { peer, batch: None, fifo_elem_size: None }
    }

    /// How the tables name it.
    pub(crate) fn name(&self) -> String {
        match self.batch {
            Some(batch) => format!("{} b{batch}", self.peer.name()),
            None => self.peer.name().to_owned(),
        }
    }
}

/// One row: a test at one size, and its entries.
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    pub(crate) entries: Vec<Entry>,
}

/// The sizes of messages, in bytes.
pub(crate) const SIZES: [u32; 11] =
    [8, 64, 200, 208, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const SIZES_QUICK: [u32; 6] = [8, 208, 1 << 10, 16 << 10, 64 << 10, 1 << 20];

/// The sizes of one-sided requests, of calls, and of messages larger than a block.
const PUT_SIZES: [u32; 5] = [8, 512, 4 << 10, 64 << 10, 1 << 20];
const PUT_SIZES_QUICK: [u32; 1] = [64 << 10];
const RPC_SIZES: [u32; 1] = [32];
const LARGE_SIZES: [u32; 3] = [256 << 10, 1 << 20, 16 << 20];
const LARGE_SIZES_QUICK: [u32; 1] = [1 << 20];

/// Longest message that Doorbell sends inline: up to here its entries touch all of it anyway.
const INLINE_MAX: u32 = 220;

/// Longest message of UCX's transport that is compared: the next size is longer than its segments.
const UCT_MAX: u32 = 4096;

/// From here on UCX may use the kernel's copy.
const CMA_FROM: u32 = 4096;

/// Doorbell's batches.
const BATCH: u32 = 16;
/// Longest message for which batches of one are measured too.
const SINGLE_MAX: u32 = 200;

impl Contest {
    /// All that is compared. `sizes` are of two-sided messages; none are the usual ones, with the
    /// other tests.
    pub(crate) fn all(sizes: &[u32], quick: bool) -> Vec<Contest> {
        let of = |test: Test, sizes: &[u32]| -> Vec<Contest> {
            sizes.iter().map(|size| Contest::new(test, *size)).collect()
        };
        if !sizes.is_empty() {
            return [of(Test::Latency, sizes), of(Test::Rate, sizes)].concat();
        }
        let pick = |all: &'static [u32], few: &'static [u32]| if quick { few } else { all };
        let all = Test::ALL.map(|test| {
            let sizes = match test {
                Test::Latency | Test::Rate => pick(&SIZES, &SIZES_QUICK),
                Test::Put | Test::PutRate | Test::GetRate => pick(&PUT_SIZES, &PUT_SIZES_QUICK),
                Test::Rpc => &RPC_SIZES,
                Test::Large | Test::LargeBoth => pick(&LARGE_SIZES, &LARGE_SIZES_QUICK),
            };
            of(test, sizes)
        });
        all.concat()
    }

    fn new(test: Test, size: u32) -> Contest {
        let ucx = |api| {
            let cma = Entry::new(Peer::Ucx { api, cma: true });
            let plain = Entry::new(Peer::Ucx { api, cma: false });
            [Some(plain), (size >= CMA_FROM).then_some(cma)].into_iter().flatten()
        };
        let ours = |peer, batch| Entry { batch: Some(batch), ..Entry::new(peer) };
        let mut entries = Vec::new();
        match test {
            Test::Latency => {
                entries.push(Entry::new(Peer::Doorbell));
                entries.extend((size > INLINE_MAX).then(|| Entry::new(Peer::Untouched)));
                entries.extend((size <= UCT_MAX).then(|| Entry::new(Peer::Uct)));
                entries.extend(ucx(Api::Tag).chain(ucx(Api::Am)));
                entries.extend([Peer::Iceoryx2, Peer::Libfabric, Peer::Copy].map(Entry::new));
            }
            // libfabric has no program for this.
            Test::Rate => {
                entries.extend((size <= SINGLE_MAX).then(|| ours(Peer::Doorbell, 1)));
                entries.push(ours(Peer::Doorbell, BATCH));
                entries.extend((size > INLINE_MAX).then(|| ours(Peer::Untouched, BATCH)));
                entries.extend((size <= UCT_MAX).then(|| Entry::new(Peer::Uct)));
                entries.extend(ucx(Api::Tag).chain(ucx(Api::Am)));
                entries.extend([Peer::Iceoryx2, Peer::Copy, Peer::Memcpy].map(Entry::new));
            }
            Test::Put => {
                entries.push(Entry::new(Peer::Doorbell));
                entries.extend(ucx(Api::Put));
            }
            Test::PutRate | Test::GetRate => {
                entries.push(Entry::new(Peer::Doorbell));
                entries.extend(ucx(if test == Test::PutRate { Api::Put } else { Api::Get }));
                entries.push(Entry::new(Peer::Memcpy));
            }
            Test::Rpc => {
                entries.push(Entry::new(Peer::Doorbell));
                entries.extend(ucx(Api::Am));
            }
            Test::Large | Test::LargeBoth => {
                entries.extend([Peer::Doorbell, Peer::Memcpy].map(Entry::new));
            }
        }
        Contest { test, size, entries }
    }
}

/// A number of bytes, short.
pub(crate) fn bytes(size: u32) -> String {
    match size {
        0x10_0000.. if size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        0x400.. if size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.test.name(), bytes(self.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(test: Test, size: u32) -> Vec<String> {
        Contest::new(test, size).entries.iter().map(Entry::name).collect()
    }

    #[test]
    fn entries_fit_the_size() {
        let small = names(Test::Latency, 64);
        assert_eq!(small[..2], ["doorbell", "UCX uct am"]);
        assert!(!small.iter().any(|name| name.contains("cma") || name.contains("untouched")));
        let large = names(Test::Latency, 64 << 10);
        assert!(!large.contains(&"UCX uct am".to_owned()));
        for name in ["doorbell untouched", "UCX tag", "UCX tag cma", "UCX am", "UCX am cma"] {
            assert!(large.contains(&name.to_owned()), "{name}");
        }
        assert_eq!(names(Test::Rate, 200)[..2], ["doorbell b1", "doorbell b16"]);
        assert_eq!(names(Test::Rate, 208)[..2], ["doorbell b16", "UCX uct am"]);
        assert_eq!(names(Test::Rpc, 32), ["doorbell", "UCX am"]);
        assert_eq!(names(Test::LargeBoth, 1 << 20), ["doorbell", "memcpy"]);
    }

    #[test]
    fn each_test_has_sizes_and_asked_sizes_are_for_messages_alone() {
        for quick in [false, true] {
            let all = Contest::all(&[], quick);
            for test in Test::ALL {
                assert!(all.iter().any(|contest| contest.test == test), "{test:?}");
            }
        }
        assert_eq!(Contest::all(&[], false).len(), 44);
        let asked: Vec<_> =
            Contest::all(&[96], true).iter().map(|contest| (contest.test, contest.size)).collect();
        assert_eq!(asked, [(Test::Latency, 96), (Test::Rate, 96)]);
        assert_eq!(Contest::new(Test::Rate, 64 << 10).to_string(), "rate, 64 KiB");
    }
}
