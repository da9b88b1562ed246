//! Event channels and events of librdmacm: called one at a time per channel, never blocking, each
//! event acknowledged once.
#![expect(unsafe_code, reason = "librdmacm's channels and events are raw pointers")]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::rdma_core::*;
use doorbell_fabric::EventKind;
use doorbell_fabric::{Depths, UdParam};

use crate::address_of;

/// An event channel and the lock of the calls on it. librdmacm looks at an id's queue pair when it
/// hands out an event of that id, and nobody knows beforehand which id that is. So there is one
/// lock per channel.
pub(super) struct Line {
    lock: Mutex<()>,
    channel: NonNull<rdma_event_channel>,
    /// False for the channel of a synchronous id, which goes with the id.
    ours: bool,
}

// SAFETY: librdmacm's calls may be made from any thread; those on one channel are serialised.
unsafe impl Send for Line {}
// SAFETY: as above.
unsafe impl Sync for Line {}

impl Line {
    /// A channel of our own.
    pub(super) fn open() -> io::Result<Line> {
        // SAFETY: the call takes nothing.
        let channel = unsafe { rdma_create_event_channel() };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let line = Line { lock: Mutex::new(()), channel, ours: true };
        line.never_block()?;
        Ok(line)
    }

    /// The channel of a synchronous id.
    ///
    /// # Safety
    /// `id` is alive, synchronous, and stays so as long as this value.
    pub(super) unsafe fn of(id: NonNull<rdma_cm_id>) -> io::Result<Line> {
        // SAFETY: the caller vouches for the id.
        let channel = unsafe { (*id.as_ptr()).channel };
        let channel = NonNull::new(channel).ok_or(io::ErrorKind::InvalidInput)?;
        let line = Line { lock: Mutex::new(()), channel, ours: false };
        line.never_block()?;
        Ok(line)
    }

    pub(super) fn fd(&self) -> c_int {
        // SAFETY: the channel is alive: our own, or that of an id that outlives this value.
        unsafe { (*self.channel.as_ptr()).fd }
    }

    fn never_block(&self) -> io::Result<()> {
        // SAFETY: fcntl(2) on an open file descriptor, flags only.
        let answer = unsafe {
            match libc::fcntl(self.fd(), libc::F_GETFL) {
                -1 => -1,
                flags => libc::fcntl(self.fd(), libc::F_SETFL, flags | libc::O_NONBLOCK),
            }
        };
        if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.channel.as_ptr()
    }

    pub(super) fn enter(&self) -> MutexGuard<'_, ()> {
        // It guards calls, not data: a panic has left nothing half-made.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an event may be there; false if the time is up.
    pub(super) fn wait(&self, deadline: Deadline) -> io::Result<bool> {
        loop {
            let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, ours.
            match unsafe { libc::poll(&raw mut poll, 1, deadline.left_ms()) } {
                0 if deadline.is_over() => return Ok(false),
                0 => {}
                -1 => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
                _ => return Ok(true),
            }
        }
    }

    /// The next event, unacknowledged, if there is one. `_entered` shows that the lock is held.
    pub(super) fn get(&self, _entered: &MutexGuard<'_, ()>) -> io::Result<Option<RawEvent>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive and its descriptor does not block.
        if unsafe { rdma_get_cm_event(self.as_ptr(), &raw mut event) } == 0 {
            return Ok(NonNull::new(event).map(RawEvent));
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which is alive, as in `fd`.
        unsafe { BorrowedFd::borrow_raw(self.fd()) }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.ours {
            // SAFETY: every id on this channel held this value and is gone.
            unsafe { rdma_destroy_event_channel(self.as_ptr()) }
        }
    }
}

/// An event that librdmacm handed out; acknowledged when dropped.
pub(super) struct RawEvent(NonNull<rdma_cm_event>);

impl RawEvent {
    /// The event that librdmacm parked in a synchronous id, if there is one.
    ///
    /// # Safety
    /// `id` is alive and the lock of its channel is held.
    pub(super) unsafe fn parked(id: *mut rdma_cm_id) -> Option<RawEvent> {
        // SAFETY: the caller vouches for the id. Taken out, librdmacm will not acknowledge it.
        let event = unsafe { std::mem::replace(&mut (*id).event, ptr::null_mut()) };
        NonNull::new(event).map(RawEvent)
    }

    fn raw(&self) -> &rdma_cm_event {
        // SAFETY: librdmacm keeps the event until it is acknowledged, by `drop`.
        unsafe { self.0.as_ref() }
    }

    /// The id it happened to; of a connection request the new id.
    pub(super) fn id(&self) -> *mut rdma_cm_id {
        self.raw().id
    }

    /// The listener of a connection request.
    pub(super) fn listener(&self) -> *mut rdma_cm_id {
        self.raw().listen_id
    }

    /// `None` for a kind newer than we know.
    pub(super) fn kind(&self) -> Option<EventKind> {
        EventKind::from_raw(self.raw().event)
    }

    pub(super) fn status(&self) -> i32 {
        self.raw().status
    }

    /// What the peer sent along; empty for kinds that carry nothing.
    pub(super) fn private_data(&self) -> Vec<u8> {
        use EventKind::{ConnectRequest, ConnectResponse, Established, Rejected};
        match self.kind() {
            Some(ConnectRequest | ConnectResponse | Established | Rejected) => {}
            _ => return Vec::new(),
        }
        // SAFETY: events of these kinds carry the parameters of a connection, or on ids of
        // datagrams theirs; the data, if any, lies in the event.
        unsafe {
            let (data, len) = match self.is_datagram() {
                true => (self.raw().param.ud.private_data, self.raw().param.ud.private_data_len),
                false => {
                    (self.raw().param.conn.private_data, self.raw().param.conn.private_data_len)
                }
            };
            if data.is_null() {
                return Vec::new();
            }
            slice::from_raw_parts(data.cast::<u8>(), len.into()).to_vec()
        }
    }

    /// True of an event of an id of datagrams.
    fn is_datagram(&self) -> bool {
        // SAFETY: the id is alive as long as its event is not acknowledged; its type never changes.
        unsafe { (*self.id()).qp_type == ibv_qp_type::IBV_QPT_UD }
    }

    /// Where to send datagrams, where the event says so.
    pub(super) fn ud(&self) -> Option<UdParam> {
        use EventKind::{Established, MulticastJoin};
        let says = matches!(self.kind(), Some(Established | MulticastJoin));
        if !says || !self.is_datagram() || self.status() != 0 {
            return None;
        }
        // SAFETY: events of these kinds on ids of datagrams carry these parameters.
        let param = unsafe { &self.raw().param.ud };
        let to = address_of(&param.ah_attr);
        Some(UdParam { to, qp_num: param.qp_num, qkey: param.qkey })
    }
}

impl RawEvent {
    /// The depths the peer asks for or grants, as this side sees them (CM-9).
    pub(super) fn depths(&self) -> Option<Depths> {
        use EventKind::{ConnectRequest, ConnectResponse, Established};
        match self.kind() {
            Some(ConnectRequest | ConnectResponse | Established) => {}
            _ => return None,
        }
        if self.is_datagram() {
            return None;
        }
        // SAFETY: events of these kinds on ids of connections carry their parameters.
        let param = unsafe { &self.raw().param.conn };
        let (responder, initiator) = (param.responder_resources, param.initiator_depth);
        Some(Depths { responder, initiator })
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        // SAFETY: acknowledged once, here. It can only fail for NULL.
        unsafe { rdma_ack_cm_event(self.0.as_ptr()) };
    }
}

/// When to give up.
#[derive(Clone, Copy)]
pub(super) struct Deadline(Option<Instant>);

impl Deadline {
    /// After that time; `None`, or more than a clock holds, is never.
    pub(super) fn after(limit: Option<Duration>) -> Deadline {
        Deadline(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// For poll(2): rounded up, so that it does not spin at the end; -1 is for ever.
    fn left_ms(self) -> c_int {
        let Some(end) = self.0 else { return -1 };
        let left = end.saturating_duration_since(Instant::now());
        c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    }
}
