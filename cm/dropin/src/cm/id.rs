//! Communication identifiers.
#![expect(unsafe_code, reason = "the C interface")]

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use doorbell_fabric::{
    CmError, CmId, ConnParam, Fabric, IdKey, IdOption, Join, PortSpace, QpFields, QpState,
};
use doorbell_soft::{QpControl, SoftChannel, SoftId, Waiter};
use libc::{c_int, sockaddr};

use crate::abi::{ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_init_attr};
use crate::attr::attributes;
use crate::border::{
    ABSENT, Errno, INVALID, Noun, Object, given, lock, number, object, put, take, zeroed,
};
use crate::context::device;
use crate::device::ibv_get_device_list;
use crate::memory::ibv_alloc_pd;
use crate::open::ibv_open_device;
use crate::per_process::PerProcess;
use crate::qp::qp_at;

use super::abi::*;
use super::addr::{bytes, read, storage};
use super::channel::{LEAVES, channel_at, drop_private, private};
use super::told::{Reports, Taken, Told, tell};

/// An id.
pub(crate) struct Id {
    pub(crate) id: Mutex<SoftId>,
    pub(crate) key: IdKey,
    /// A thread waits for a request of this listener.
    pub(crate) asking: Mutex<()>,
    /// What an endpoint that listens gives its requests.
    pub(crate) saved: Mutex<Option<Saved>>,
    /// The program's own pointers of its joins, in the order of their events.
    pub(crate) joined: Mutex<VecDeque<usize>>,
    pub(crate) reports: Arc<Reports>,
}

impl Noun for Id {
    type C = cma_id_private;
    const TAG: u64 = 0x6462_5f69_6400_0009;
}

/// The domain and attributes of the queue pairs of requests.
#[derive(Clone, Copy)]
pub(crate) struct Saved {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) attr: ibv_qp_init_attr,
}

// SAFETY: pointers of the program, which it may use on any thread.
unsafe impl Send for Saved {}

/// All ids, by key: events name them so.
pub(crate) static IDS: LazyLock<Mutex<HashMap<IdKey, usize>>> = LazyLock::new(Mutex::default);

/// The device of all ids, and its default protection domain.
pub(crate) struct Home {
    context: usize,
    pd: usize,
}

impl Home {
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context as *mut ibv_context
    }

    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd as *mut ibv_pd
    }
}

/// Opened once and kept, as in librdmacm.
pub(crate) fn home() -> Result<&'static Home, Errno> {
    static HOME: PerProcess<Home> = PerProcess::new();
    HOME.get_or_make(|| {
        // SAFETY: our own calls, with what they gave.
        let (context, pd) = unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            let context = ibv_open_device(*list);
            (context, ibv_alloc_pd(context))
        };
        if context.is_null() || pd.is_null() {
            return Err(Errno(libc::ENODEV));
        }
        Ok(Home { context: context as usize, pd: pd as usize })
    })
}

pub(crate) fn space_of(raw: c_int) -> Result<PortSpace, Errno> {
    match raw {
        0x106 => Ok(PortSpace::Tcp),
        0x111 => Ok(PortSpace::Udp),
        0x2 => Ok(PortSpace::Ipoib),
        0x13f => Ok(PortSpace::Ib),
        _ => Err(INVALID),
    }
}

/// Gives an id to the program. It is known by its key from then on.
pub(crate) fn give(
    id: SoftId,
    channel: *mut rdma_event_channel,
    user: *mut c_void,
) -> *mut rdma_cm_id {
    let channel = if channel.is_null() { private(id.as_fd()) } else { channel };
    let key = id.key();
    let (local, remote) = (id.local_addr(), id.peer_addr());
    let c = rdma_cm_id {
        channel,
        context: user,
        ps: id.space() as c_int,
        qp_type: id.qp_type() as c_int,
        ..zeroed()
    };
    let own = Id {
        id: Mutex::new(id),
        key,
        asking: Mutex::default(),
        saved: Mutex::default(),
        joined: Mutex::default(),
        reports: Arc::default(),
    };
    let c = cma_id_private { id: c, none: [0; 32] };
    let at = Object::give(c, own).cast();
    // SAFETY: new.
    unsafe { show_addresses(at, local, remote) };
    lock(&IDS).insert(key, at as usize);
    at
}

/// Shows the program where an id is bound, and to which device.
///
/// # Safety
/// The id is alive.
unsafe fn show_addresses(
    at: *mut rdma_cm_id,
    local: Option<std::net::SocketAddr>,
    remote: Option<std::net::SocketAddr>,
) {
    // SAFETY: as the caller says.
    unsafe {
        if let Some(local) = local {
            (*at).route.addr.src = storage(local).0;
            if !local.ip().is_unspecified() {
                show_device(at);
            }
        }
        if let Some(remote) = remote {
            (*at).route.addr.dst = storage(remote).0;
        }
    }
}

/// An id is bound to the device now.
///
/// # Safety
/// The id is alive.
pub(crate) unsafe fn show_device(at: *mut rdma_cm_id) {
    if let Ok(home) = home() {
        // SAFETY: as the caller says.
        unsafe {
            (*at).verbs = home.context();
            (*at).port_num = 1;
            if (*at).pd.is_null() {
                (*at).pd = home.pd();
            }
        }
    }
}

/// The id at an address that the program gave.
///
/// # Safety
/// As for [`object`].
pub(crate) unsafe fn id_at<'a>(at: *mut rdma_cm_id) -> Result<&'a Object<Id>, Errno> {
    // SAFETY: the caller vouches for the pointer; the id is the first field of its object.
    unsafe { object::<Id>(at.cast()) }
}

/// Keeps the event of the last call of a synchronous id in it, where programs look for the peer's
/// private data; false if there is none. `user` is the program's own pointer, of a join.
///
/// # Safety
/// The id is alive.
pub(crate) unsafe fn keep_event(
    at: *mut rdma_cm_id,
    listener: *mut rdma_cm_id,
    user: Option<usize>,
) -> Result<bool, Errno> {
    // SAFETY: as the caller says; the event before is ours.
    unsafe {
        let (event, told) = {
            let mut id = lock(&id_at(at)?.own.id);
            let Some(mut event) = id.taken_event() else { return Ok(false) };
            ((event.kind, event.status), Told::with(&mut event, &id))
        };
        drop_event(at);
        (*at).event = tell((at, listener), event, told, (user, None));
    }
    Ok(true)
}

/// Frees that event.
unsafe fn drop_event(at: *mut rdma_cm_id) {
    // SAFETY: the id is alive. Its event is none or ours, unless the program has taken it.
    unsafe {
        let _ = take::<Taken>((*at).event);
        (*at).event = ptr::null_mut();
    }
}

/// Runs a call on an id, and shows its addresses.
unsafe fn on_id(
    at: *mut rdma_cm_id,
    call: impl FnOnce(&mut SoftId) -> Result<(), CmError>,
) -> Result<(), Errno> {
    // SAFETY: the program's id.
    let id = unsafe { id_at(at) }?;
    let (local, remote) = {
        let mut id = lock(&id.own.id);
        call(&mut id)?;
        (id.local_addr(), id.peer_addr())
    };
    // SAFETY: alive.
    unsafe { show_addresses(at, local, remote) };
    Ok(())
}

/// The same, for a call that has an event.
unsafe fn on_id_with_event(
    at: *mut rdma_cm_id,
    call: impl FnOnce(&mut SoftId) -> Result<(), CmError>,
) -> Result<(), Errno> {
    // SAFETY: the program's id.
    unsafe {
        on_id(at, call)?;
        keep_event(at, ptr::null_mut(), None)?;
    }
    Ok(())
}

fn limit(millis: c_int) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or_default())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    to: *mut *mut rdma_cm_id,
    user: *mut c_void,
    space: c_int,
) -> c_int {
    number(|| {
        let soft: Option<&SoftChannel> = match channel.is_null() {
            true => None,
            // SAFETY: the program's channel.
            false => Some(&unsafe { channel_at(channel) }?.channel),
        };
        let id = device()?.device.create_id(soft, space_of(space)?)?;
        // SAFETY: room for a pointer.
        unsafe { put(to, give(id, channel, user)) }?;
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_id(at: *mut rdma_cm_id) -> c_int {
    number(|| {
        // SAFETY: the program's id, which it no longer uses.
        unsafe {
            let id = id_at(at)?;
            lock(&IDS).remove(&id.own.key);
            drop_event(at);
            // Nobody gets further events of it. Another thread may still look at it by one that it
            // has got, so this waits, as librdmacm does.
            id.own.reports.wait();
            let channel = (*at).channel;
            drop(take::<Id>(at.cast())?);
            drop_private(channel);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_bind_addr(at: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program's id and address.
    number(|| unsafe {
        let addr = read(addr)?;
        on_id(at, |id| id.bind(addr)).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_addr(
    at: *mut rdma_cm_id,
    src: *mut sockaddr,
    dst: *mut sockaddr,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program's id and addresses.
    number(|| unsafe {
        let from = if src.is_null() { None } else { Some(read(src)?) };
        let to = read(dst)?;
        on_id_with_event(at, |id| id.resolve_addr(from, to, limit(timeout_ms)))?;
        show_device(at);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_resolve_route(
    at: *mut rdma_cm_id,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program's id.
    number(|| unsafe { on_id_with_event(at, |id| id.resolve_route(limit(timeout_ms))).map(|()| 0) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_listen(at: *mut rdma_cm_id, backlog: c_int) -> c_int {
    let backlog = u32::try_from(backlog).unwrap_or_default();
    // SAFETY: the program's id.
    number(|| unsafe { on_id(at, |id| id.listen(backlog)).map(|()| 0) })
}

/// What the program says about a connection; without, the usual.
///
/// # Safety
/// It is NULL, or the private data are there.
unsafe fn param_of<'a>(param: *const rdma_conn_param) -> ConnParam<'a> {
    // SAFETY: as the caller says.
    unsafe {
        param.as_ref().map_or(ConnParam::default(), |param| ConnParam {
            private_data: bytes(param.private_data, param.private_data_len),
            qp_num: param.qp_num,
            responder_resources: param.responder_resources,
            initiator_depth: param.initiator_depth,
            retry_count: param.retry_count & 7,
            rnr_retry: param.rnr_retry_count & 7,
        })
    }
}

/// Connects or accepts: for the id's own queue pair, or for the one that the program names.
unsafe fn meet(
    at: *mut rdma_cm_id,
    param: *const rdma_conn_param,
    begin: Begin,
) -> Result<(), Errno> {
    // SAFETY: the program's id and parameters.
    let (id, param, has_qp) = unsafe { (id_at(at)?, param_of(param), !(*at).qp.is_null()) };
    let waiter = {
        let mut id = lock(&id.own.id);
        let qp = match has_qp || id.space().is_datagram() {
            true => None,
            false => Some(control_of(param.qp_num)?),
        };
        begin(&mut id, &param, qp)?
    };
    // Nothing is locked: another thread may use the id, and make the queue pair of the other side.
    waiter.map_or(Ok(()), |waiter| Ok(waiter.wait()?))
}

/// [`SoftId::begin_connect`] or [`SoftId::begin_accept`].
type Begin = fn(&mut SoftId, &ConnParam<'_>, Option<QpControl>) -> Result<Option<Waiter>, CmError>;

/// The handle of the queue pair of that number.
fn control_of(num: u32) -> Result<QpControl, Errno> {
    let qps = lock(&device()?.qps);
    let found = qps.get(&num).ok_or(INVALID)?;
    // SAFETY: in the list, which is locked, so it is alive.
    let qp = unsafe { qp_at(found.at as *mut ibv_qp) }?;
    Ok(qp.own.inner.lock().qp.control())
}

/// The queue pair of an id has changed its state.
///
/// # Safety
/// The id is alive.
pub(crate) unsafe fn note_state(at: *mut rdma_cm_id, state: QpState) {
    // SAFETY: as the caller says; its queue pair is NULL or alive.
    unsafe {
        let qp = (*at).qp;
        if let (Ok(own), Ok(id)) = (qp_at(qp), id_at(at)) {
            let fields = lock(&id.own.id).query_qp().unwrap_or_default();
            own.own.moved(Some(state), fields);
            (*qp).state = state as c_int;
        }
    }
}

/// A call that changes the state of an id's queue pair has ended, and may have failed.
///
/// # Safety
/// The id is alive.
unsafe fn note_known_state(at: *mut rdma_cm_id) {
    // SAFETY: as the caller says.
    unsafe {
        let known = id_at(at).ok().and_then(|id| lock(&id.own.id).query_qp().ok());
        if let Some(state) = known.and_then(|fields| fields.state) {
            note_state(at, state);
        }
    }
}

/// The queue pair of an id has its fields by now; another thread may have changed its state since.
///
/// # Safety
/// The id is alive.
unsafe fn note_fields(at: *mut rdma_cm_id) {
    // SAFETY: as the caller says; its queue pair is NULL or alive.
    unsafe {
        if let (Ok(own), Ok(id)) = (qp_at((*at).qp), id_at(at)) {
            own.own.moved(None, lock(&id.own.id).query_qp().unwrap_or_default());
        }
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_connect(
    at: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the program's id and parameters.
    number(|| unsafe {
        let done = meet(at, param, SoftId::begin_connect);
        if keep_event(at, ptr::null_mut(), None)? {
            note_known_state(at);
        }
        done.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_accept(
    at: *mut rdma_cm_id,
    param: *mut rdma_conn_param,
) -> c_int {
    // SAFETY: the program's id and parameters.
    number(|| unsafe {
        // Its queue pair may send as soon as the peer knows, and another thread may hear of that.
        note_state(at, QpState::Rts);
        let done = meet(at, param, SoftId::begin_accept);
        if done.is_ok() {
            note_fields(at)
        } else {
            note_known_state(at)
        };
        if done.is_ok() && lock(&id_at(at)?.own.id).space().is_datagram() {
            // No event follows (CM-14), and that of the request goes.
            drop_event(at);
        } else {
            keep_event(at, ptr::null_mut(), None)?;
        }
        done.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_reject(
    at: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: the program's id and data.
    number(|| unsafe { on_id(at, |id| id.reject(bytes(private_data, length))).map(|()| 0) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject_ece(
    at: *mut rdma_cm_id,
    private_data: *const c_void,
    length: u8,
) -> c_int {
    // SAFETY: as the program vouches.
    unsafe { rdma_reject(at, private_data, length) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_disconnect(at: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's id.
    number(|| unsafe {
        device()?.settle();
        on_id_with_event(at, SoftId::disconnect)?;
        note_state(at, QpState::Err);
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(at: *mut rdma_cm_id) -> c_int {
    // SAFETY: the program's id.
    number(|| unsafe { on_id(at, SoftId::establish).map(|()| 0) })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_migrate_id(
    at: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    // SAFETY: the program's id and channel.
    number(|| unsafe {
        let soft = match channel.is_null() {
            true => None,
            false => Some(&*channel_at(channel)?.channel),
        };
        let id = id_at(at)?;
        let leaves = lock(&LEAVES);
        let mut soft_id = lock(&id.own.id);
        soft_id.migrate(soft)?;
        drop_event(at);
        drop_private((*at).channel);
        (*at).channel = if channel.is_null() { private(soft_id.as_fd()) } else { channel };
        drop((soft_id, leaves));
        // As in librdmacm: when this returns, no thread handles an event from the old channel.
        id.own.reports.wait();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_set_option(
    at: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: usize,
) -> c_int {
    // SAFETY: the program's id and value.
    number(|| unsafe {
        let byte = || match length {
            1 => Ok(*given(value.cast::<u8>())?),
            _ => Err(INVALID),
        };
        let switch = || match length {
            4 => Ok(*given(value.cast::<c_int>())? != 0),
            _ => Err(INVALID),
        };
        let option = match (level, name) {
            (0, 0) => IdOption::Tos(byte()?),
            (0, 1) => IdOption::ReuseAddr(switch()?),
            (0, 2) => IdOption::AfOnly(switch()?),
            (0, 3) => IdOption::AckTimeout(byte()?),
            _ => return Err(Errno(libc::ENOSYS)),
        };
        on_id(at, |id| id.set_option(option)).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    at: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: the program's id, and room for the answers.
    number(|| unsafe {
        let state = given(attr)?.qp_state.cast_unsigned();
        let state = QpState::from_raw(state).ok_or(INVALID)?;
        let fields = lock(&id_at(at)?.own.id).init_qp_attr(state)?;
        let fields = QpFields { state: Some(state), ..fields };
        put(attr, attributes(&fields))?;
        put(mask, fields.mask().bits().cast_signed())?;
        Ok(0)
    })
}

unsafe fn join(at: *mut rdma_cm_id, addr: *const sockaddr, how: Join, user: *mut c_void) -> c_int {
    // SAFETY: the program's id and address.
    number(|| unsafe {
        let group = read(addr)?.ip();
        // Locked until the pointer is there: another thread may take the event before.
        let own = &id_at(at)?.own;
        let mut joined = lock(&own.joined);
        lock(&own.id).join_multicast(group, how)?;
        if !keep_event(at, ptr::null_mut(), Some(user as usize))? {
            joined.push_back(user as usize);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_join_multicast(
    at: *mut rdma_cm_id,
    addr: *mut sockaddr,
    user: *mut c_void,
) -> c_int {
    // SAFETY: as the program vouches.
    unsafe { join(at, addr, Join::FullMember, user) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_join_multicast_ex(
    at: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    user: *mut c_void,
) -> c_int {
    // SAFETY: as the program vouches.
    unsafe {
        let Some(attr) = attr.as_ref() else { return number(|| Err(INVALID)) };
        let how = match (attr.comp_mask, attr.join_flags) {
            (3, 0) => Join::FullMember,
            (3, 1) => Join::SendOnly,
            // A field of a later version.
            (4.., _) => return number(|| Err(ABSENT)),
            _ => return number(|| Err(INVALID)),
        };
        join(at, attr.addr, how, user)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_leave_multicast(at: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    // SAFETY: the program's id and address.
    number(|| unsafe {
        let group = read(addr)?.ip();
        on_id(at, |id| id.leave_multicast(group)).map(|()| 0)
    })
}

/// A port, in network byte order.
unsafe fn port(at: *mut rdma_cm_id, of: fn(&SoftId) -> Option<std::net::SocketAddr>) -> u16 {
    // SAFETY: the program's id.
    let Ok(id) = (unsafe { id_at(at) }) else { return 0 };
    of(&lock(&id.own.id)).map_or(0, |addr| addr.port().to_be())
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_get_src_port(at: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the program vouches.
    unsafe { port(at, SoftId::local_addr) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_dst_port(at: *mut rdma_cm_id) -> u16 {
    // SAFETY: as the program vouches.
    unsafe { port(at, SoftId::peer_addr) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    crate::border::pointer(|| {
        let list = Box::new([home()?.context(), ptr::null_mut()]);
        if !count.is_null() {
            // SAFETY: room for a number.
            unsafe { count.write(1) };
        }
        Ok(Box::into_raw(list).cast())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    if !list.is_null() {
        // SAFETY: it is from `rdma_get_devices`.
        drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_context; 2]>()) });
    }
}
