//! The task of a child, as words in its environment.

use std::fmt;
use std::net::SocketAddr;

use doorbell::worker::STORE_BATCH;

/// The environment variable with the task; and the mark before each line of the answer.
pub(crate) const VARIABLE: &str = "DOORBELL_HOTPATH";
pub(crate) const MARK: &str = "hotpath: ";

/// Bytes of the messages; and of messages in several fragments.
pub(crate) const SIZES: [usize; 4] = [8, 64, 200, 1024];
pub(crate) const LONG_SIZES: [usize; 2] = [5000, 20_000];

/// Messages of a batch of a stream: twice as many as ring first if they are sent one by one.
pub(crate) const STREAM_BATCH: u64 = 2 * STORE_BATCH as u64;

/// Messages of each size before the threads are sealed: every queue wraps several times.
const WARM: u64 = 160 * STREAM_BATCH;

/// Messages of each size while sealed; fewer if they are long or something is planted.
const SEALED: u64 = 12_500 * STREAM_BATCH;
const SEALED_LONG: u64 = 625 * STREAM_BATCH;
const SEALED_FEW: u64 = 20 * STREAM_BATCH;

/// Which way the messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Each message comes back in its block; one in flight.
    Echo,
    /// One way, in batches; the last one comes back.
    Stream,
    /// Echoes of several fragments each.
    Long,
    /// A stream of several fragments each.
    LongStream,
}

impl Path {
    pub(crate) const ALL: [Path; 4] = [Path::Echo, Path::Stream, Path::Long, Path::LongStream];

    /// Bytes of its messages.
    pub(crate) fn sizes(self) -> &'static [usize] {
        if self.is_long() { &LONG_SIZES } else { &SIZES }
    }

    pub(crate) fn is_long(self) -> bool {
        matches!(self, Path::Long | Path::LongStream)
    }

    /// True if each message comes back before the next.
    pub(crate) fn echoes(self) -> bool {
        matches!(self, Path::Echo | Path::Long)
    }
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Caller,
}

/// The role of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Both sides, a thread each.
    Both,
    Server,
    /// The caller of a server that listens there.
    Caller(SocketAddr),
}

/// What is planted once while the threads are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    Nothing,
    /// A system call that seccomp's strict mode would find too.
    Yield,
    /// A system call that strict mode lets pass.
    Write,
    Allocation,
}

/// A task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) path: Path,
    pub(crate) role: Role,
    /// Messages of each size while sealed.
    count: u64,
    plant: Plant,
    at: Side,
}

impl Task {
    /// Both sides, nothing planted.
    pub(crate) fn new(path: Path) -> Task {
        let (plant, count) = (Plant::Nothing, if path.is_long() { SEALED_LONG } else { SEALED });
        Task { path, role: Role::Both, count, plant, at: Side::Server }
    }

    /// Both sides, with something planted in one of them.
    pub(crate) fn planted(path: Path, plant: Plant, at: Side) -> Task {
        Task { path, role: Role::Both, count: SEALED_FEW, plant, at }
    }

    /// The same for a process that has another role.
    pub(crate) fn of(self, role: Role) -> Task {
        Task { role, ..self }
    }

    /// What is planted in a side.
    pub(crate) fn plant(&self, side: Side) -> Plant {
        if side == self.at { self.plant } else { Plant::Nothing }
    }

    /// Messages of each size, before and after sealing.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [WARM, self.count]
    }

    /// Messages of all sizes before sealing.
    pub(crate) fn warm_messages(&self) -> u64 {
        WARM * self.path.sizes().len() as u64
    }

    /// Messages of all sizes while sealed.
    pub(crate) fn sealed_messages(&self) -> u64 {
        self.count * self.path.sizes().len() as u64
    }

    /// The task of this process, if it has one.
    pub(crate) fn from_environment() -> Option<Task> {
        let text = std::env::var(VARIABLE).ok()?;
        let words: Vec<&str> = text.split(' ').collect();
        let path = Path::ALL.into_iter().find(|path| format!("{path:?}") == words[0]).unwrap();
        let role = match words[1] {
            "Both" => Role::Both,
            "Server" => Role::Server,
            addr => Role::Caller(addr.parse().unwrap()),
        };
        let plants = [Plant::Nothing, Plant::Yield, Plant::Write, Plant::Allocation];
        let plant = plants.into_iter().find(|plant| format!("{plant:?}") == words[3]).unwrap();
        let at = if words[4] == "Server" { Side::Server } else { Side::Caller };
        Some(Task { path, role, count: words[2].parse().unwrap(), plant, at })
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ", self.path)?;
        match self.role {
            Role::Caller(addr) => write!(f, "{addr}")?,
            role => write!(f, "{role:?}")?,
        }
        write!(f, " {} {:?} {}", self.count, self.plant, self.at)
    }
}
