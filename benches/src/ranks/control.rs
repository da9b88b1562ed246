//! What the threads of a rank and its main thread tell each other.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};

use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::meet::tally::Tally;

/// The phases of a run, in order. All ranks change phases together.
pub(crate) mod phase {
    /// Links are made.
    pub(crate) const CONNECT: u32 = 0;
    /// Messages that do not count.
    pub(crate) const WARM: u32 = 1;
    /// The last of those arrive.
    pub(crate) const MARK: u32 = 2;
    /// Messages that count.
    pub(crate) const MEASURE: u32 = 3;
    /// The last of those arrive.
    pub(crate) const END: u32 = 4;
    /// Every rank has its figures.
    pub(crate) const LEAVE: u32 = 5;
}

/// Shared by the threads of a rank.
pub(crate) struct Control {
    phase: AtomicU32,
    /// A thread failed: the others stop.
    broken: AtomicBool,
    /// What the threads have done, in any unit.
    progress: AtomicU64,
}

// Relaxed throughout: each word stands for itself, and a little later is soon enough.
impl Control {
    pub(crate) fn new() -> Control {
        Control {
            phase: AtomicU32::new(phase::CONNECT),
            broken: AtomicBool::new(false),
            progress: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn phase(&self) -> u32 {
        self.phase.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self, phase: u32) {
        self.phase.store(phase, Ordering::Relaxed);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    pub(crate) fn advance(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }
}

/// What a thread tells the main thread.
pub(crate) enum Event {
    /// It listens there.
    Listens(SocketAddr),
    /// It has all its links.
    Connected,
    /// The messages that do not count have arrived.
    Marked,
    /// Its figures.
    Done(Box<Figures>),
    /// It could not go on.
    Failed(Failure),
}

/// The thread's end of both ways.
pub(crate) struct Way {
    pub(crate) thread: u32,
    pub(crate) to: Sender<(u32, Event)>,
    /// Where each of its targets listens.
    pub(crate) targets: Receiver<Vec<SocketAddr>>,
}

impl Way {
    /// Tells the main thread, which waits for it.
    pub(crate) fn tell(&self, event: Event) {
        let _ = self.to.send((self.thread, event));
    }
}

/// The figures of a thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Messages that it sent; for round trips also those that came back.
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Until the last of them had arrived.
    pub(crate) passed_ns: u64,
    /// Messages of others that it received meanwhile.
    pub(crate) received: u64,
    pub(crate) lost: u64,
    pub(crate) tally: Tally,
    /// Round trips: their time in tenths of a nanosecond, and how many took that long.
    pub(crate) counts: Vec<(u64, u64)>,
    pub(crate) parts: Vec<PartSum>,
    /// How often other programs took its core, a second.
    pub(crate) switches: Option<f64>,
}

/// A part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PartSum {
    pub(crate) messages: u64,
    /// The times of round trips, summed, and the longest.
    pub(crate) sum_ns: f64,
    pub(crate) max_ns: f64,
    pub(crate) seconds: f64,
}
