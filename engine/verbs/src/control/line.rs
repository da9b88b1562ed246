//! Event channels and events of librdmacm, and the ids that it makes. The calls on a channel come
//! one at a time and never block; each event is acknowledged once.
#![expect(unsafe_code, reason = "librdmacm's channels and events are raw pointers")]

use std::ffi::c_int;
use std::io;
use std::mem::{ManuallyDrop, zeroed};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use doorbell_fabric::{AddrInfo, Depths, EventKind, PortSpace, UdParam};

use super::addr::Raw;
use crate::ah::address_of;
use crate::handles::Context;
use crate::rdma_core::*;
use crate::sys::{never_block, wait_readable};

/// An event channel and the lock of the calls on it. librdmacm looks at an id's queue pair when it
/// hands out an event of that id, and nobody knows beforehand which id that is. So there is one
/// lock per channel.
pub(super) struct Line {
    lock: Mutex<()>,
    channel: NonNull<rdma_event_channel>,
    fd: c_int,
    /// False for the channel of a synchronous id, which goes with the id.
    ours: bool,
}

// SAFETY: librdmacm's calls may be made from any thread; those on one channel are serialised.
unsafe impl Send for Line {}
// SAFETY: as above.
unsafe impl Sync for Line {}

impl Line {
    /// A channel of our own. librdmacm must be loaded.
    pub(super) fn open() -> io::Result<Line> {
        // SAFETY: the call takes nothing.
        let channel = unsafe { rdma_create_event_channel() };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the channel was just made, for this value.
        unsafe { Line::over(channel, true) }
    }

    /// The channel of a synchronous id.
    ///
    /// # Safety
    /// `id` is alive and synchronous. Once it is not, the caller makes no call with the pointer.
    pub(super) unsafe fn of(id: NonNull<rdma_cm_id>) -> io::Result<Line> {
        // SAFETY: the caller vouches for the id.
        let channel = unsafe { (*id.as_ptr()).channel };
        let channel = NonNull::new(channel).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: as above.
        unsafe { Line::over(channel, false) }
    }

    /// # Safety
    /// The channel is alive; if it is `ours`, nobody else destroys it.
    unsafe fn over(channel: NonNull<rdma_event_channel>, ours: bool) -> io::Result<Line> {
        // SAFETY: the caller vouches for the channel; the descriptor never changes.
        let fd = unsafe { (*channel.as_ptr()).fd };
        let line = Line { lock: Mutex::new(()), channel, fd, ours };
        if never_block(fd) { Ok(line) } else { Err(io::Error::last_os_error()) }
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
        while !wait_readable(self.fd, deadline.left_ms())? {
            if deadline.is_over() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next event of a channel of our own, unacknowledged, if there is one. `_entered` shows
    /// that the lock is held.
    pub(super) fn get(&self, _entered: &MutexGuard<'_, ()>) -> io::Result<Option<RawEvent>> {
        if !self.ours {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the channel is our own, so it is alive.
        unsafe { RawEvent::get(self.as_ptr()) }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel, which lives as long as this value
        // if it is our own. Nobody asks for that of another.
        unsafe { BorrowedFd::borrow_raw(self.fd) }
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
pub(super) struct RawEvent {
    event: NonNull<rdma_cm_event>,
    /// It is of an id of datagrams.
    datagram: bool,
    /// It brings a new id, which was not taken yet.
    brings_id: bool,
}

impl RawEvent {
    /// # Safety
    /// An event that was just handed out, to be acknowledged by this value alone.
    unsafe fn new(event: NonNull<rdma_cm_event>) -> RawEvent {
        let mut event = RawEvent { event, datagram: false, brings_id: false };
        if let Some(id) = NonNull::new(event.raw().id) {
            // SAFETY: the id is alive: the event is not acknowledged, and nobody has a new id yet.
            event.datagram = unsafe { (*id.as_ptr()).qp_type == ibv_qp_type::IBV_QPT_UD };
        }
        event.brings_id = event.kind() == Some(EventKind::ConnectRequest);
        event
    }

    /// `rdma_get_cm_event`, if an event is there.
    ///
    /// # Safety
    /// The channel is alive, its descriptor does not block, and its lock is held.
    pub(super) unsafe fn get(channel: *mut rdma_event_channel) -> io::Result<Option<RawEvent>> {
        let mut event = ptr::null_mut();
        // SAFETY: the caller vouches for the channel; the call writes the event.
        if unsafe { rdma_get_cm_event(channel, &raw mut event) } == 0 {
            // SAFETY: just handed out.
            return Ok(NonNull::new(event).map(|event| unsafe { RawEvent::new(event) }));
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) }
    }

    /// The event that librdmacm parked in a synchronous id, if there is one. A new id that it
    /// brings is not the event's to give.
    ///
    /// # Safety
    /// `id` is alive and the lock of its channel is held.
    pub(super) unsafe fn parked(id: *mut rdma_cm_id) -> Option<RawEvent> {
        // SAFETY: the caller vouches for the id. Taken out, librdmacm will not acknowledge it.
        let event = unsafe { std::mem::replace(&mut (*id).event, ptr::null_mut()) };
        // SAFETY: the event is not acknowledged, and now nobody else does that.
        let mut event = NonNull::new(event).map(|event| unsafe { RawEvent::new(event) })?;
        event.brings_id = false;
        Some(event)
    }

    fn raw(&self) -> &rdma_cm_event {
        // SAFETY: librdmacm keeps the event until it is acknowledged, by `drop`.
        unsafe { self.event.as_ref() }
    }

    /// The id it happened to, which lives as long as this value: of a connection request the
    /// listener.
    pub(super) fn happened_to(&self) -> Option<NonNull<rdma_cm_id>> {
        match self.kind() {
            Some(EventKind::ConnectRequest) => NonNull::new(self.raw().listen_id),
            _ => NonNull::new(self.raw().id),
        }
    }

    /// The id of a connection request that came on that channel; `None` if it was taken before.
    pub(super) fn request(&mut self, line: &Arc<Line>) -> Option<NewId> {
        let brings = std::mem::replace(&mut self.brings_id, false);
        let id = NonNull::new(self.raw().id).filter(|_| brings)?;
        // SAFETY: librdmacm made the id for this event, and only this call gets it.
        let channel = unsafe { (*id.as_ptr()).channel };
        // Another one would have another lock.
        (channel == line.as_ptr()).then(|| NewId { id, line: Some(line.clone()) })
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
            let (data, len) = match self.datagram {
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

    /// Where to send datagrams, where the event says so.
    pub(super) fn ud(&self) -> Option<UdParam> {
        use EventKind::{Established, MulticastJoin};
        let says = matches!(self.kind(), Some(Established | MulticastJoin));
        if !says || !self.datagram || self.status() != 0 {
            return None;
        }
        // SAFETY: events of these kinds on ids of datagrams carry these parameters.
        let param = unsafe { &self.raw().param.ud };
        let to = address_of(&param.ah_attr);
        Some(UdParam { to, qp_num: param.qp_num, qkey: param.qkey })
    }

    /// The depths the peer asks for or grants, as this side sees them (CM-9).
    pub(super) fn depths(&self) -> Option<Depths> {
        use EventKind::{ConnectRequest, ConnectResponse, Established};
        match self.kind() {
            Some(ConnectRequest | ConnectResponse | Established) => {}
            _ => return None,
        }
        if self.datagram {
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
        unsafe { rdma_ack_cm_event(self.event.as_ptr()) };
    }
}

/// The address is to be listened on: rdma-sys lacks the constant of `<rdma/rdma_cma.h>`.
const RAI_PASSIVE: c_int = 1;

/// An id of librdmacm that nobody has taken charge of yet. Dropping it destroys it.
pub(super) struct NewId {
    id: NonNull<rdma_cm_id>,
    line: Option<Arc<Line>>,
}

impl NewId {
    /// `rdma_create_id`, on that channel or synchronous.
    pub(super) fn create(line: Option<&Arc<Line>>, space: PortSpace) -> io::Result<NewId> {
        let channel = line.map_or(ptr::null_mut(), |line| line.as_ptr());
        let mut id = ptr::null_mut();
        // SAFETY: the channel is NULL or alive; the call writes the id.
        let answer = unsafe { rdma_create_id(channel, &raw mut id, ptr::null_mut(), space as u32) };
        NewId::made(answer, id, line)
    }

    /// `rdma_create_ep` without a queue pair, for the first address of each.
    pub(super) fn endpoint(info: &AddrInfo) -> io::Result<NewId> {
        let (mut local, mut remote) = (info.local().map(Raw::new), info.remote().map(Raw::new));
        // SAFETY: zero is a valid value of each field.
        let mut raw: rdma_addrinfo = unsafe { zeroed() };
        raw.ai_flags = if info.is_passive() { RAI_PASSIVE } else { 0 };
        raw.ai_qp_type = info.qp_type() as c_int;
        raw.ai_port_space = info.space() as c_int;
        if let Some(local) = &mut local {
            raw.ai_family = local.family();
            raw.ai_src_len = local.len();
            raw.ai_src_addr = local.as_mut_ptr();
        }
        if let Some(remote) = &mut remote {
            raw.ai_family = remote.family();
            raw.ai_dst_len = remote.len();
            raw.ai_dst_addr = remote.as_mut_ptr();
        }
        let (mut id, no_pd, no_qp) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: the structure and the addresses it points to live through the call, which keeps
        // none of them; no domain and no queue pair attributes.
        let answer = unsafe { rdma_create_ep(&raw mut id, &raw mut raw, no_pd, no_qp) };
        let new = NewId::made(answer, id, None)?;
        // The call leaves ROUTE_RESOLVED there, and the next call would take it for its own event.
        // SAFETY: the id is alive, and nobody else has it.
        drop(unsafe { RawEvent::parked(new.id.as_ptr()) });
        Ok(new)
    }

    /// What a call has made that answered so.
    fn made(answer: c_int, id: *mut rdma_cm_id, line: Option<&Arc<Line>>) -> io::Result<NewId> {
        match NonNull::new(id) {
            Some(id) if answer == 0 => Ok(NewId { id, line: line.cloned() }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// # Safety
    /// The id is alive and synchronous, and nobody else has it.
    pub(super) unsafe fn synchronous(id: NonNull<rdma_cm_id>) -> NewId {
        NewId { id, line: None }
    }

    pub(super) fn id(&self) -> NonNull<rdma_cm_id> {
        self.id
    }

    /// The line of its channel; `None` if it is synchronous.
    pub(super) fn line(&self) -> Option<&Arc<Line>> {
        self.line.as_ref()
    }

    /// The id, for somebody who destroys it.
    pub(super) fn into_id(mut self) -> NonNull<rdma_cm_id> {
        self.line = None;
        ManuallyDrop::new(self).id
    }

    /// True if it is bound to that device.
    pub(super) fn is_of(&self, context: Context) -> bool {
        // SAFETY: the id is alive.
        unsafe { (*self.id.as_ptr()).verbs == context.as_ptr() }
    }

    /// Rejects the request that made it.
    pub(super) fn reject(self) {
        // SAFETY: the id is alive; no private data.
        unsafe { rdma_reject(self.id.as_ptr(), ptr::null(), 0) };
    }
}

impl Drop for NewId {
    fn drop(&mut self) {
        // SAFETY: nobody else has the id, and no event of it has been handed out.
        unsafe { rdma_destroy_id(self.id.as_ptr()) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_request_is_given_once_and_with_its_own_channel() {
        // SAFETY: zero is a valid value of each field that is read.
        let (mut new, mut listener, mut event): (rdma_cm_id, rdma_cm_id, rdma_cm_event) =
            unsafe { (zeroed(), zeroed(), zeroed()) };
        let (mut channel, mut another) =
            (rdma_event_channel { fd: 0 }, rdma_event_channel { fd: 0 });
        let line = |channel: &mut rdma_event_channel| {
            let channel = NonNull::from(channel);
            Arc::new(Line { lock: Mutex::new(()), channel, fd: -1, ours: false })
        };
        let (own, other) = (line(&mut channel), line(&mut another));
        (new.channel, new.qp_type) = (own.as_ptr(), ibv_qp_type::IBV_QPT_UD);
        (event.id, event.listen_id) = (&raw mut new, &raw mut listener);
        event.event = rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST;
        // Neither the event nor the ids are librdmacm's, so none is dropped.
        // SAFETY: they live until the end of the test.
        let make = |event| ManuallyDrop::new(unsafe { RawEvent::new(event) });
        let event = NonNull::from(&mut event);
        let mut request = make(event);
        assert!(request.datagram);
        assert_eq!(request.happened_to().map(NonNull::as_ptr), Some(&raw mut listener));
        let taken = request.request(&own).map(ManuallyDrop::new).expect("it brings one");
        assert_eq!(taken.id.as_ptr(), &raw mut new);
        assert!(taken.line().is_some_and(|line| Arc::ptr_eq(line, &own)));
        assert!(request.request(&own).map(ManuallyDrop::new).is_none(), "it was taken");
        let elsewhere = make(event).request(&other).map(ManuallyDrop::new);
        assert!(elsewhere.is_none(), "it is on another channel");
    }
}
