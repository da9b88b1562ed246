//! What is known of an id, beside what librdmacm knows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use doorbell_fabric::{Depths, EventKind, IdKey, UdParam};

use super::line::RawEvent;

/// Locks a state that is consistent between calls, also after a panic elsewhere.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What events have told about an id, on whatever thread they are taken. The id's context points
/// here.
pub(super) struct Record {
    key: IdKey,
    /// The handle is dropped: events of the id are not handed out any more.
    closed: AtomicBool,
    /// The peer has ended the connection.
    left: AtomicBool,
    /// The peer has answered, and waits to hear that the connection is up.
    waits: AtomicBool,
    answer: OnceLock<Vec<u8>>,
    depths: OnceLock<Depths>,
    ud: Mutex<Option<UdParam>>,
    /// User data.
    context: AtomicU64,
}

impl Record {
    pub(super) fn new() -> Record {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Record {
            // Relaxed: the number need only be unique.
            key: IdKey(NEXT.fetch_add(1, Ordering::Relaxed)),
            closed: AtomicBool::new(false),
            left: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            answer: OnceLock::new(),
            depths: OnceLock::new(),
            ud: Mutex::new(None),
            context: AtomicU64::new(0),
        }
    }

    pub(super) fn key(&self) -> IdKey {
        self.key
    }

    pub(super) fn close(&self) {
        // Relaxed, here and below: the flags order no other memory.
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// True once DISCONNECTED was taken.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// True once if the peer has answered and waits.
    pub(super) fn take_wait(&self) -> bool {
        self.waits.swap(false, Ordering::Relaxed)
    }

    /// Private data of the peer: of its request, or of its answer.
    pub(super) fn private_data(&self) -> &[u8] {
        self.answer.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn set_private_data(&self, data: Vec<u8>) {
        if !data.is_empty() {
            // The first stays: a peer sends its data once.
            self.answer.get_or_init(|| data);
        }
    }

    pub(super) fn context(&self) -> u64 {
        self.context.load(Ordering::Relaxed)
    }

    pub(super) fn set_context(&self, context: u64) {
        self.context.store(context, Ordering::Relaxed);
    }

    /// Where to send datagrams, by the last event that said so.
    pub(super) fn ud(&self) -> Option<UdParam> {
        *lock(&self.ud)
    }

    /// The depths of the peer's request or answer.
    pub(super) fn depths(&self) -> Option<Depths> {
        self.depths.get().copied()
    }

    /// Notes depths that came with an event, and returns them if they are the first. The accepting
    /// side has those of the request already when ESTABLISHED comes.
    pub(super) fn set_depths(&self, depths: Depths) -> Option<Depths> {
        self.depths.set(depths).ok().map(|()| depths)
    }

    /// Notes an event of this id. Returns what a waiting call needs to know of it.
    pub(super) fn note(&self, event: &RawEvent) -> Told {
        let kind = event.kind();
        match kind {
            Some(EventKind::Established | EventKind::Rejected | EventKind::ConnectResponse) => {
                self.set_private_data(event.private_data());
            }
            Some(EventKind::Disconnected) => self.left.store(true, Ordering::Relaxed),
            _ => {}
        }
        if kind == Some(EventKind::ConnectResponse) {
            self.waits.store(true, Ordering::Relaxed);
        }
        if let Some(ud) = event.ud() {
            *lock(&self.ud) = Some(ud);
        }
        let depths = event.depths().and_then(|depths| self.set_depths(depths));
        Told { kind, status: event.status(), depths }
    }
}

/// What an event told a synchronous id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) kind: Option<EventKind>,
    pub(super) status: i32,
    /// What the peer grants, if it says so for the first time.
    pub(super) depths: Option<Depths>,
}
