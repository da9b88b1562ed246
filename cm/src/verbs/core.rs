//! An id of librdmacm and who shares it.
#![expect(unsafe_code, reason = "librdmacm's ids are raw pointers")]

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use doorbell_engine::provider::verbs::QpHome;
use rdma_sys::*;

use super::line::{Deadline, Line, RawEvent};
use crate::fabric::{EventKind, IdKey};

/// What events find out about an id and tell it, wherever they are taken: the id's context
/// points here.
pub(super) struct Record {
    key: IdKey,
    /// The handle is gone: what still happens to the id interests nobody.
    closed: AtomicBool,
    /// The peer has ended the connection.
    left: AtomicBool,
    answer: OnceLock<Vec<u8>>,
}

impl Record {
    fn new() -> Record {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Record {
            // Relaxed: the number need only be unique.
            key: IdKey(NEXT.fetch_add(1, Ordering::Relaxed)),
            closed: AtomicBool::new(false),
            left: AtomicBool::new(false),
            answer: OnceLock::new(),
        }
    }

    /// The record of an id.
    ///
    /// # Safety
    /// An event that is not yet acknowledged names the id, and stays so for as long as the
    /// reference is used: that keeps the id from being destroyed, and its record with it.
    pub(super) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Option<&'a Record> {
        // SAFETY: the caller vouches for the id; its context is NULL or set by `Core::adopt`.
        unsafe { (*id).context.cast::<Record>().as_ref() }
    }

    pub(super) fn key(&self) -> IdKey {
        self.key
    }

    pub(super) fn is_closed(&self) -> bool {
        // Relaxed, here and below: flags that say nothing about other memory.
        self.closed.load(Ordering::Relaxed)
    }

    /// True once the peer's goodbye was taken.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
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

    /// What an event of this id means to it, and to who waits.
    pub(super) fn note(&self, event: &RawEvent) -> Told {
        let kind = event.kind();
        match kind {
            Some(EventKind::Established | EventKind::Rejected) => {
                self.set_private_data(event.private_data());
            }
            Some(EventKind::Disconnected) => self.left.store(true, Ordering::Relaxed),
            _ => {}
        }
        Told { kind, status: event.status() }
    }
}

/// What an event told a synchronous id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) kind: Option<EventKind>,
    pub(super) status: i32,
}

/// An id of librdmacm, shared by its handle and its queue pair: destroyed after both.
pub(super) struct Core {
    id: NonNull<rdma_cm_id>,
    sync: bool,
    // Dropped after the id was destroyed. The record is apart from this struct, because an event
    // that is just being taken may still read it while `drop` has this struct to itself.
    record: Arc<Record>,
    line: Arc<Line>,
}

// SAFETY: the id is used only by librdmacm's calls, which any thread may make, under the lock of
// its channel where they touch what another call changes.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

impl Core {
    /// Takes charge of an id, and ties it to its record by its context.
    ///
    /// # Safety
    /// `id` is alive, nobody else destroys it, and no event of it has been handed out. With no
    /// `line` given it is synchronous, otherwise that is its channel.
    pub(super) unsafe fn adopt(
        id: NonNull<rdma_cm_id>,
        line: Option<&Arc<Line>>,
    ) -> io::Result<Arc<Core>> {
        let sync = line.is_none();
        let line = match line {
            Some(line) => Ok(line.clone()),
            // SAFETY: the caller vouches for the id; the core keeps it until it drops the line.
            None => unsafe { Line::of(id) }.map(Arc::new),
        };
        let line = line.inspect_err(|_| {
            // SAFETY: the id is ours, and without a core nobody else destroys it.
            unsafe { rdma_destroy_id(id.as_ptr()) };
        })?;
        let record = Arc::new(Record::new());
        // SAFETY: the id is alive. The pointer is good until `drop` has destroyed the id.
        unsafe { (*id.as_ptr()).context = Arc::as_ptr(&record).cast_mut().cast() };
        Ok(Arc::new(Core { id, sync, record, line }))
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Looks at the id under its channel's lock.
    pub(super) fn with<T>(&self, look: impl FnOnce(*mut rdma_cm_id) -> T) -> T {
        let _entered = self.line.enter();
        look(self.id.as_ptr())
    }

    /// Makes a call that answers 0 or -1. On a synchronous id the event may have come already.
    pub(super) fn call(
        &self,
        call: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> io::Result<Option<Told>> {
        self.with(|id| {
            let answer = call(id);
            let error = io::Error::last_os_error();
            // SAFETY: the id is alive and the lock held.
            if let Some(event) = unsafe { RawEvent::parked(id) } {
                return Ok(Some(self.record.note(&event)));
            }
            // A synchronous id that would have to wait for its event says so.
            if answer == 0 || (self.sync && error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(None);
            }
            Err(error)
        })
    }

    /// The next event of a synchronous id; `None` if the time is up.
    pub(super) fn next(&self, deadline: Deadline) -> io::Result<Option<Told>> {
        while self.line.wait(deadline)? {
            let entered = self.line.enter();
            if let Some(event) = self.line.get(&entered)? {
                return Ok(Some(self.record.note(&event)));
            }
        }
        Ok(None)
    }

    /// The handle is gone. A queue pair that is not keeps the id; its connection ends now.
    pub(super) fn close(&self) {
        self.record.closed.store(true, Ordering::Relaxed);
        // An id that was not connected answers EINVAL, and there is nothing to end.
        let _ = self.call(|id| {
            // SAFETY: the id is alive.
            unsafe { if (*id).qp.is_null() { 0 } else { rdma_disconnect(id) } }
        });
    }
}

impl QpHome for Core {
    fn destroy_qp(&self) {
        self.with(|id| {
            // SAFETY: the id is alive, and the queue pair is destroyed nowhere else.
            unsafe {
                if !(*id).qp.is_null() {
                    rdma_destroy_qp(id);
                }
            }
        });
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // SAFETY: handle and queue pair are gone, so this is the only use. The call waits for an
        // event of this id that another thread is just taking; that one needs the record only.
        unsafe { rdma_destroy_id(self.id.as_ptr()) };
    }
}
