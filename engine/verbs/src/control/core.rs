//! An id of librdmacm, shared by its handle and its queue pair.
#![expect(unsafe_code, reason = "librdmacm's ids are raw pointers")]

use std::ffi::{c_int, c_void};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::rdma_core::*;
use doorbell_fabric::{Depths, Join, PortSpace, UdParam};
use doorbell_fabric::{EventKind, IdKey};
use doorbell_seam::provider::QpType;

use super::addr::{self, Raw};
use super::line::{Deadline, Line, RawEvent};
use crate::QpHome;

/// Locks a state that is consistent between calls, also after a panic elsewhere.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
    fn new() -> Record {
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
        // Relaxed, here and below: the flags order no other memory.
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

/// An id of librdmacm, shared by its handle and its queue pair: destroyed after both.
pub(super) struct Core {
    id: NonNull<rdma_cm_id>,
    sync: AtomicBool,
    // Dropped after the id was destroyed. The record is apart from this struct, because an event
    // that is just being taken may still read it while `drop` has this struct to itself.
    record: Arc<Record>,
    /// The line of its channel; another one after it has migrated.
    line: Mutex<Arc<Line>>,
    groups: Mutex<Vec<IpAddr>>,
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
        let (sync, line) = (AtomicBool::new(sync), Mutex::new(line));
        Ok(Arc::new(Core { id, sync, record, line, groups: Mutex::default() }))
    }

    pub(super) fn record(&self) -> &Record {
        &self.record
    }

    pub(super) fn is_sync(&self) -> bool {
        self.sync.load(Ordering::Relaxed)
    }

    pub(super) fn line(&self) -> Arc<Line> {
        lock(&self.line).clone()
    }

    /// Calls `look` with the id, under its channel's lock.
    pub(super) fn with<T>(&self, look: impl FnOnce(*mut rdma_cm_id) -> T) -> T {
        loop {
            let line = self.line();
            let _entered = line.enter();
            // Otherwise the id migrated while this thread waited for the lock.
            if Arc::ptr_eq(&line, &self.line()) {
                return look(self.id.as_ptr());
            }
        }
    }

    /// Moves the id to another channel, or makes it synchronous (MG-1, MG-2). librdmacm waits for
    /// events of the id that were handed out (MG-4); those are acknowledged under the lock of the
    /// channel, which is held here: there are none.
    pub(super) fn migrate(&self, to: Option<&Arc<Line>>) -> io::Result<()> {
        /// Nobody else holds the locks of two channels, so two migrations in opposite directions
        /// are the only way to a deadlock.
        static ONE: Mutex<()> = Mutex::new(());
        let _one = lock(&ONE);
        let from = self.line();
        let _from = from.enter();
        let _to = to.filter(|to| !Arc::ptr_eq(to, &from)).map(|to| to.enter());
        let channel = to.map_or(ptr::null_mut(), |to| to.as_ptr());
        // SAFETY: the id is alive and the locks of both its channels held; the new one is alive
        // as long as its line. The call destroys the channel of a synchronous id, of which the
        // line of old keeps nothing but the lock.
        if unsafe { rdma_migrate_id(self.id.as_ptr(), channel) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let line = match to {
            Some(to) => to.clone(),
            // SAFETY: the id is alive and synchronous by now, and the core keeps the line until
            // it migrates again.
            None => Arc::new(unsafe { Line::of(self.id) }?),
        };
        *lock(&self.line) = line;
        self.sync.store(to.is_none(), Ordering::Relaxed);
        Ok(())
    }

    /// The multicast groups it has joined.
    pub(super) fn groups(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        lock(&self.groups)
    }

    /// The context of its device; null before it is bound.
    pub(super) fn context(&self) -> *mut ibv_context {
        // SAFETY: the id is alive.
        self.with(|id| unsafe { (*id).verbs })
    }

    /// Its queue pair, if it has one. Only under the channel's lock is it sure to live.
    pub(super) fn qp(&self) -> Option<NonNull<ibv_qp>> {
        // SAFETY: the id is alive.
        self.with(|id| unsafe { NonNull::new((*id).qp) })
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive, and its route holds room for an address of each kind.
        self.with(|id| unsafe { addr::read((&raw const (*id).route.addr.src_addr_union).cast()) })
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        // SAFETY: the id is alive, and its route holds room for an address of each kind.
        self.with(|id| unsafe { addr::read((&raw const (*id).route.addr.dst_addr_union).cast()) })
    }

    /// `rdma_join_multicast_ex`.
    pub(super) fn join_group(&self, group: IpAddr, how: Join) -> io::Result<Option<Told>> {
        let mut addr = Raw::new(SocketAddr::new(group, 0));
        let mask = rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_ADDRESS
            | rdma_cm_join_mc_attr_mask::RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        let mut attr = rdma_cm_join_mc_attr_ex {
            comp_mask: mask.0,
            join_flags: how as u32,
            addr: addr.as_mut_ptr().cast(),
        };
        let none = ptr::null_mut();
        // SAFETY: the id is alive, and so are attributes and address; no context.
        self.call(|id| unsafe { rdma_join_multicast_ex(id, &raw mut attr, none) })
    }

    /// `rdma_leave_multicast`.
    pub(super) fn leave_group(&self, group: IpAddr) -> io::Result<()> {
        let mut addr = Raw::new(SocketAddr::new(group, 0));
        self.with(|id| {
            // SAFETY: id and address are alive. The call waits for events of the group that were
            // handed out. There are none: each was acknowledged under the lock that is held here.
            match unsafe { rdma_leave_multicast(id, addr.as_mut_ptr()) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    }

    /// Leaves all groups before the queue pair is destroyed: in a group it would never be freed
    /// (QP-18).
    fn leave_groups(&self) {
        let groups = std::mem::take(&mut *self.groups());
        for group in groups {
            // This fails for a group that was never joined in the end; nothing is lost then.
            let _ = self.leave_group(group);
        }
    }

    /// The port space.
    pub(super) fn space(&self) -> PortSpace {
        // SAFETY: the id is alive.
        let raw = self.with(|id| unsafe { (*id).ps });
        [PortSpace::Udp, PortSpace::Ipoib, PortSpace::Ib]
            .into_iter()
            .find(|space| *space as u32 == raw)
            .unwrap_or(PortSpace::Tcp)
    }

    /// The type of its queue pair.
    pub(super) fn qp_type(&self) -> QpType {
        // SAFETY: the id is alive.
        let raw = self.with(|id| unsafe { (*id).qp_type });
        [QpType::Ud, QpType::XrcSend, QpType::XrcRecv]
            .into_iter()
            .find(|kind| *kind as u32 == raw)
            .unwrap_or(QpType::Rc)
    }

    /// Sets an option of the id to a value of the option's own type.
    pub(super) fn set_option<T>(
        &self,
        level: c_int,
        option: c_int,
        value: &mut T,
    ) -> io::Result<Option<Told>> {
        let value: *mut c_void = (&raw mut *value).cast();
        // SAFETY: the id is alive; the value is, for the call, and has the size that is named.
        self.call(|id| unsafe { rdma_set_option(id, level, option, value, size_of::<T>()) })
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
            if answer == 0 || (self.is_sync() && error.kind() == io::ErrorKind::WouldBlock) {
                return Ok(None);
            }
            Err(error)
        })
    }

    /// The next event of a synchronous id; `None` if the time is up.
    pub(super) fn next(&self, deadline: Deadline) -> io::Result<Option<Told>> {
        let line = self.line();
        while line.wait(deadline)? {
            let entered = line.enter();
            if let Some(event) = line.get(&entered)? {
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
        self.leave_groups();
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
