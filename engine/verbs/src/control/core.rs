//! An id of librdmacm, shared by its handle and its queue pair, and the calls on it.
#![expect(unsafe_code, reason = "librdmacm's ids are raw pointers")]

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use doorbell_fabric::{Join, PortSpace};
use doorbell_seam::provider::{QpCaps, QpType};

use super::addr::Raw;
use super::line::{Deadline, Line, NewId, RawEvent};
use super::record::{Record, Told, lock};
use crate::handles::{Context, Owned, zero};
use crate::qp_calls::{NewQp, query};
use crate::rdma_core::*;

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
    pub(super) fn adopt(new: NewId) -> io::Result<Arc<Core>> {
        let sync = new.line().is_none();
        let line = match new.line() {
            Some(line) => line.clone(),
            // SAFETY: the id is alive and synchronous; the core keeps it until it drops the line.
            None => Arc::new(unsafe { Line::of(new.id()) }?),
        };
        let id = new.into_id();
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
    fn with<T>(&self, look: impl FnOnce(*mut rdma_cm_id) -> T) -> T {
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
        // as long as its line. The call destroys the channel of a synchronous id; its line is not
        // used after that but for the lock, and for a wait that then fails.
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

    /// Its device, once it is bound to one.
    pub(super) fn context(&self) -> Option<Context> {
        // SAFETY: the id is alive; its context, if it has one, is one of librdmacm's.
        self.with(|id| unsafe { Context::new((*id).verbs) })
    }

    pub(super) fn has_qp(&self) -> bool {
        // SAFETY: the id is alive.
        self.with(|id| unsafe { !(*id).qp.is_null() })
    }

    pub(super) fn local_addr(&self) -> Option<SocketAddr> {
        self.with(|id| {
            // SAFETY: the id is alive, and its route holds room for an address of each kind.
            unsafe { read_addr((&raw const (*id).route.addr.src_addr_union).cast()) }
        })
    }

    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        self.with(|id| {
            // SAFETY: the id is alive, and its route holds room for an address of each kind.
            unsafe { read_addr((&raw const (*id).route.addr.dst_addr_union).cast()) }
        })
    }

    /// `rdma_bind_addr`.
    pub(super) fn bind_addr(&self, addr: SocketAddr) -> io::Result<Option<Told>> {
        let mut addr = Raw::new(addr);
        // SAFETY: id and address are alive.
        self.call(|id| unsafe { rdma_bind_addr(id, addr.as_mut_ptr()) })
    }

    /// `rdma_resolve_addr`.
    pub(super) fn resolve_addr(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        limit_ms: c_int,
    ) -> io::Result<Option<Told>> {
        let (mut from, mut to) = (from.map(Raw::new), Raw::new(to));
        let source = from.as_mut().map_or(ptr::null_mut(), Raw::as_mut_ptr);
        // SAFETY: the id is alive, and so are the addresses.
        self.call(|id| unsafe { rdma_resolve_addr(id, source, to.as_mut_ptr(), limit_ms) })
    }

    /// `rdma_resolve_route`.
    pub(super) fn resolve_route(&self, limit_ms: c_int) -> io::Result<Option<Told>> {
        // SAFETY: the id is alive and bound.
        self.bound_call(|id| unsafe { rdma_resolve_route(id, limit_ms) })
    }

    /// `rdma_listen`.
    pub(super) fn listen(&self, backlog: c_int) -> io::Result<Option<Told>> {
        // SAFETY: the id is alive.
        self.call(|id| unsafe { rdma_listen(id, backlog) })
    }

    /// `rdma_get_request`, once, on a synchronous listener: the new id and the event that made it.
    pub(super) fn try_request(&self) -> io::Result<Option<(NewId, RawEvent)>> {
        self.with(|listener| {
            let mut new = ptr::null_mut();
            // SAFETY: the listener is alive, and its descriptor does not block. librdmacm leaves
            // the event with the new id, or with the listener if it was no request.
            unsafe {
                let answer = rdma_get_request(listener, &raw mut new);
                let error = io::Error::last_os_error();
                let holder = if answer == 0 { new } else { listener };
                match (answer, RawEvent::parked(holder), NonNull::new(new)) {
                    // It is synchronous as its listener, and nobody else has it.
                    (0, Some(event), Some(id)) => Ok(Some((NewId::synchronous(id), event))),
                    (_, _, _) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    (_, _, _) => Err(error),
                }
            }
        })
    }

    /// `rdma_connect`, with that private data.
    pub(super) fn connect(&self, param: rdma_conn_param, data: &[u8]) -> io::Result<Option<Told>> {
        let mut param = with_data(param, data)?;
        // SAFETY: the id is alive and bound, and the private data is for the call.
        self.bound_call(|id| unsafe { rdma_connect(id, &raw mut param) })
    }

    /// `rdma_accept`, with that private data.
    pub(super) fn accept(&self, param: rdma_conn_param, data: &[u8]) -> io::Result<Option<Told>> {
        let mut param = with_data(param, data)?;
        // SAFETY: the id is alive and bound, and the private data is for the call.
        self.bound_call(|id| unsafe { rdma_accept(id, &raw mut param) })
    }

    /// `rdma_reject`, with that private data.
    pub(super) fn reject(&self, data: &[u8]) -> io::Result<Option<Told>> {
        let len = u8::try_from(data.len()).map_err(|_| invalid())?;
        // SAFETY: the id is alive, and the data for the call.
        self.call(|id| unsafe { rdma_reject(id, data.as_ptr().cast(), len) })
    }

    /// `rdma_disconnect`.
    pub(super) fn disconnect(&self) -> io::Result<Option<Told>> {
        // SAFETY: the id is alive and bound.
        self.bound_call(|id| unsafe { rdma_disconnect(id) })
    }

    /// `rdma_establish`.
    pub(super) fn establish(&self) -> io::Result<Option<Told>> {
        // SAFETY: the id is alive.
        self.call(|id| unsafe { rdma_establish(id) })
    }

    /// `rdma_init_qp_attr` for that state: what a queue pair needs, and the mask that names it.
    pub(super) fn init_qp_attr(&self, state: u32) -> io::Result<(ibv_qp_attr, u32)> {
        let mut attr = ibv_qp_attr { qp_state: state, ..zero() };
        let mut mask = 0;
        // SAFETY: the id is alive, and so are structure and mask.
        self.call(|id| unsafe { rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) })?;
        Ok((attr, mask.cast_unsigned()))
    }

    /// `rdma_create_qp`, or the extended call if that is needed. The queue pair keeps the id.
    pub(super) fn create_qp(
        self: &Arc<Core>,
        new: &NewQp<'_>,
    ) -> io::Result<(Owned<ibv_qp>, QpCaps)> {
        let context = self.context().ok_or_else(invalid)?;
        let mut init = new.raw(context).map_err(io::Error::from_raw_os_error)?;
        let mut made = None;
        self.call(|id| {
            let raw = &raw mut init;
            // SAFETY: id, domain and queues are alive and of one device. The extended attributes
            // begin with the plain ones. The call refuses an id that has a queue pair.
            unsafe {
                let answer = match new.plain_pd() {
                    Some(pd) => rdma_create_qp(id, pd.as_ptr(), raw.cast()),
                    None => rdma_create_qp_ex(id, raw),
                };
                if answer == 0 {
                    made = NonNull::new((*id).qp);
                }
                answer
            }
        })?;
        let qp = made.ok_or_else(invalid)?;
        // SAFETY: made just now, with what `new` names; only `IdQp` destroys it.
        let qp = unsafe { Owned::lent(context, qp, (IdQp(self.clone()), new.uses())) };
        Ok((qp, new.granted(&init)))
    }

    /// `ibv_modify_qp` of its queue pair: 0, or an errno. The lock keeps the queue pair from being
    /// destroyed on its thread.
    pub(super) fn modify_qp(&self, mut attr: ibv_qp_attr, mask: ibv_qp_attr_mask) -> i32 {
        // SAFETY: the id is alive, and so is its queue pair if it has one.
        self.with(|id| unsafe {
            match (*id).qp {
                qp if qp.is_null() => libc::EINVAL,
                qp => ibv_modify_qp(qp, &raw mut attr, mask.0.cast_signed()),
            }
        })
    }

    /// `ibv_query_qp` of its queue pair, if it has one. The lock is as above.
    pub(super) fn query_qp(&self, mask: ibv_qp_attr_mask) -> Option<Result<ibv_qp_attr, i32>> {
        // SAFETY: the id is alive, and so is its queue pair if it has one.
        self.with(|id| unsafe { NonNull::new((*id).qp).map(|qp| query(qp.as_ptr(), mask)) })
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
        // SAFETY: the id is bound; it, the attributes and the address are alive; no context.
        self.bound_call(|id| unsafe { rdma_join_multicast_ex(id, &raw mut attr, none) })
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

    /// `rdma_set_option`: sets an option of the id to a value of the option's own type.
    pub(super) fn set_option(
        &self,
        level: c_int,
        option: c_int,
        value: &[u8],
    ) -> io::Result<Option<Told>> {
        let (from, len) = (value.as_ptr().cast_mut().cast(), value.len());
        // SAFETY: the id is alive; the value is, for the call, which reads it.
        self.call(|id| unsafe { rdma_set_option(id, level, option, from, len) })
    }

    /// Makes a call that looks at the device of the id; EINVAL if it is not bound to one.
    fn bound_call(&self, call: impl FnOnce(*mut rdma_cm_id) -> c_int) -> io::Result<Option<Told>> {
        if self.context().is_none() {
            return Err(invalid());
        }
        self.call(call)
    }

    /// Calls a function of librdmacm that answers 0, or -1 with errno. On a synchronous id it also
    /// returns the event, if that is already there.
    fn call(&self, call: impl FnOnce(*mut rdma_cm_id) -> c_int) -> io::Result<Option<Told>> {
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
        while self.line().wait(deadline)? {
            // SAFETY: the id is alive, and with it its channel, whose lock is held.
            let event = self.with(|id| unsafe { RawEvent::get((*id).channel) })?;
            if let Some(event) = event {
                return Ok(Some(self.record.note(&event)));
            }
        }
        Ok(None)
    }

    /// The handle is gone. A queue pair that is not keeps the id; its connection ends now.
    pub(super) fn close(&self) {
        self.record.close();
        if self.has_qp() {
            // An id that was not connected answers EINVAL, and there is nothing to end.
            let _ = self.disconnect();
        }
    }
}

/// The queue pair of an id: destroyed when this is dropped.
struct IdQp(Arc<Core>);

impl Drop for IdQp {
    fn drop(&mut self) {
        self.0.leave_groups();
        // SAFETY: the id is alive, and the queue pair is destroyed nowhere else.
        self.0.with(|id| unsafe {
            if !(*id).qp.is_null() {
                rdma_destroy_qp(id);
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

impl RawEvent {
    /// The record of the id it happened to; of a connection request, the listener's.
    pub(super) fn record(&self) -> Option<&Record> {
        // SAFETY: the event is not acknowledged. That keeps the id from being destroyed, and its
        // record with it; the context is NULL or set by `Core::adopt`.
        unsafe { (*self.happened_to()?.as_ptr()).context.cast::<Record>().as_ref() }
    }
}

fn invalid() -> io::Error {
    io::Error::from_raw_os_error(libc::EINVAL)
}

/// The parameters with private data. They point to it.
fn with_data(mut param: rdma_conn_param, data: &[u8]) -> io::Result<rdma_conn_param> {
    param.private_data = if data.is_empty() { ptr::null() } else { data.as_ptr().cast() };
    param.private_data_len = u8::try_from(data.len()).map_err(|_| invalid())?;
    Ok(param)
}

/// The address in C's form behind a pointer; `None` if there is none, or of another family.
///
/// # Safety
/// `from` points to room for a `sockaddr_storage`, initialised.
unsafe fn read_addr(from: *const libc::sockaddr_storage) -> Option<SocketAddr> {
    // SAFETY: the caller vouches for the bytes; the family says which kind they are.
    unsafe {
        match c_int::from((*from).ss_family) {
            libc::AF_INET => Some(Raw::V4(from.cast::<libc::sockaddr_in>().read()).addr()),
            libc::AF_INET6 => Some(Raw::V6(from.cast::<libc::sockaddr_in6>().read()).addr()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_goes_along_with_its_length() {
        // SAFETY: zero is a valid value of each field.
        let param: rdma_conn_param = unsafe { std::mem::zeroed() };
        let data = [7; 255];
        let with = with_data(param, &data).unwrap();
        assert_eq!((with.private_data.cast(), with.private_data_len), (data.as_ptr(), 255));
        assert!(with_data(param, &[]).unwrap().private_data.is_null());
        assert!(with_data(param, &[7; 256]).is_err(), "C cannot name that length");
    }
}
