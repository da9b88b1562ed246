//! Ids, by the C interface.
#![expect(unsafe_code, reason = "the C interface")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "our own calls, with what they gave")]

use std::net::{Ipv4Addr, SocketAddr};
use std::ptr::{null, null_mut, without_provenance_mut};

use std::mem::zeroed;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use libc::{sockaddr, sockaddr_storage};

use super::abi::*;
use super::addr::{rdma_getaddrinfo, storage};
use super::channel::rdma_create_event_channel;
use super::ep::{rdma_create_ep, rdma_get_request};
use super::event::{rdma_ack_cm_event, rdma_get_cm_event};
use super::id::*;
use super::qp::{rdma_create_qp, rdma_create_qp_ex};
use crate::abi::{ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr};

use crate::abi_context::ibv_qp_init_attr_ex;
use crate::cq::ibv_create_cq;
use crate::memory::ibv_alloc_pd;
use crate::qp::{ibv_create_qp, ibv_query_qp};

const TCP: i32 = 0x106;
const UDP: i32 = 0x111;
const ADDR_RESOLVED: i32 = 0;
const ROUTE_RESOLVED: i32 = 2;
const CONNECT_REQUEST: i32 = 4;
const CONNECT_RESPONSE: i32 = 5;
const REJECTED: i32 = 8;
const ESTABLISHED: i32 = 9;
const DISCONNECTED: i32 = 10;
const MULTICAST_JOIN: i32 = 12;
/// States of `ibv_qp_state`.
const INIT: i32 = 1;
const ERR: i32 = 6;

/// The longest wait, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// An address, for calls.
struct Addr(sockaddr_storage);

impl Addr {
    fn new(ip: [u8; 4], port: u16) -> Addr {
        Addr(storage(SocketAddr::new(Ipv4Addr::from(ip).into(), port)).0)
    }

    fn at(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }
}

const HERE: [u8; 4] = [127, 0, 0, 1];

/// An id that is bound to this machine; synchronous without a channel.
fn bound(channel: *mut rdma_event_channel, space: i32) -> *mut rdma_cm_id {
    let mut id = null_mut();
    unsafe {
        assert_eq!(rdma_create_id(channel, &raw mut id, null_mut(), space), 0);
        assert_eq!(rdma_bind_addr(id, Addr::new(HERE, 0).at()), 0);
    }
    id
}

fn join(id: *mut rdma_cm_id, group: u8, user: usize) {
    let mut group = Addr::new([239, 9, 9, group], 0);
    let user = without_provenance_mut(user);
    assert_eq!(unsafe { rdma_join_multicast(id, group.at(), user) }, 0);
}

#[test]
fn each_join_has_the_pointer_that_the_program_gave_to_it() {
    let channel = rdma_create_event_channel();
    let id = bound(channel, UDP);
    join(id, 1, 101);
    join(id, 2, 102);
    let mut group = Addr::new(HERE, 0);
    assert_eq!(unsafe { rdma_join_multicast(id, group.at(), without_provenance_mut(103)) }, -1);
    join(id, 3, 104);
    for user in [101, 102, 104] {
        let mut event = null_mut();
        unsafe {
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
            assert_eq!((*event).event, MULTICAST_JOIN);
            assert_eq!((*event).param.ud.private_data.addr(), user);
            assert_eq!(rdma_ack_cm_event(event), 0);
        }
    }
}

#[test]
fn a_synchronous_join_keeps_its_event() {
    let id = bound(null_mut(), UDP);
    for user in [7, 8] {
        join(id, user as u8, user);
        unsafe {
            let event = (*id).event;
            assert_eq!(((*event).event, (*event).status), (MULTICAST_JOIN, 0));
            assert_eq!((*event).param.ud.private_data.addr(), user);
            assert_eq!((*event).param.ud.qp_num, 0xff_ffff);
        }
    }
}

/// A synchronous id with a route to a listener.
fn routed(to: *mut rdma_cm_id) -> *mut rdma_cm_id {
    let id = bound(null_mut(), TCP);
    unsafe {
        let mut to = Addr::new(HERE, u16::from_be(rdma_get_src_port(to)));
        assert_eq!(rdma_resolve_addr(id, null_mut(), to.at(), 1000), 0);
        assert_eq!(kept(id), (ADDR_RESOLVED, 0));
        // A call that does not begin leaves the event of the last one.
        assert_eq!(errno(rdma_resolve_route(id, 0)), libc::EINVAL);
        assert_eq!(kept(id), (ADDR_RESOLVED, 0));
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        assert_eq!(kept(id), (ROUTE_RESOLVED, 0));
    }
    id
}

/// Which event a synchronous id has, and its status.
fn kept(id: *mut rdma_cm_id) -> (i32, i32) {
    unsafe { ((*(*id).event).event, (*(*id).event).status) }
}

/// A synchronous id that listens.
fn listener() -> *mut rdma_cm_id {
    let id = bound(null_mut(), TCP);
    assert_eq!(unsafe { rdma_listen(id, 4) }, 0);
    id
}

/// Takes a request, runs `before` and rejects it with these bytes.
unsafe fn reject_one(listener: usize, bytes: &[u8], before: impl FnOnce(*mut rdma_cm_id)) {
    let mut request = null_mut();
    unsafe {
        assert_eq!(rdma_get_request(listener as *mut rdma_cm_id, &raw mut request), 0);
        before(request);
        assert_eq!(rdma_reject(request, bytes.as_ptr().cast(), bytes.len() as u8), 0);
    }
}

fn small_rc() -> ibv_qp_init_attr {
    let mut attr: ibv_qp_init_attr = unsafe { zeroed() };
    (attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.qp_type) = (1, 1, 2);
    attr
}

/// The state that a query of an id's queue pair shows.
fn qp_state(id: *mut rdma_cm_id) -> i32 {
    unsafe {
        let (mut attr, mut init) = (ibv_qp_attr::default(), zeroed::<ibv_qp_init_attr>());
        assert_eq!(ibv_query_qp((*id).qp, &raw mut attr, 1, &raw mut init), 0);
        attr.qp_state
    }
}

#[test]
fn a_rejected_synchronous_connect_keeps_the_event_with_its_data() {
    let listener = listener();
    let id = routed(listener);
    unsafe {
        let mut attr = small_rc();
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut attr), 0);
        let at = listener as usize;
        let rejecter = thread::spawn(move || reject_one(at, b"why", |_| ()));
        assert_eq!(rdma_connect(id, null_mut()), -1);
        assert_eq!(*libc::__errno_location(), libc::ECONNREFUSED);
        rejecter.join().unwrap();
        let event = &*(*id).event;
        assert_eq!((event.event, event.status, qp_state(id)), (REJECTED, 28, ERR));
        let data = event.param.conn.private_data.cast::<[u8; 3]>();
        assert_eq!(&*data, b"why");
    }
}

#[test]
fn a_queue_pair_stays_in_init_if_there_is_nothing_to_accept() {
    let id = bound(null_mut(), TCP);
    unsafe {
        let mut attr = small_rc();
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut attr), 0);
        assert_eq!((rdma_accept(id, null_mut()), qp_state(id)), (-1, INIT));
    }
}

/// The errno of a call that returns -1.
fn errno(answer: i32) -> i32 {
    assert_eq!(answer, -1);
    unsafe { *libc::__errno_location() }
}

#[test]
fn what_is_not_valid_has_the_errno_of_librdmacm() {
    let id = bound(null_mut(), UDP);
    let (mut value, mut group) = (8_u32, Addr::new([239, 9, 9, 9], 0));
    unsafe {
        let value = (&raw mut value).cast();
        // TOS and ACK_TIMEOUT are one byte.
        for name in [0, 3] {
            assert_eq!(rdma_set_option(id, 0, name, value, 1), 0);
            assert_eq!(errno(rdma_set_option(id, 0, name, value, 4)), libc::EINVAL);
            assert_eq!(errno(rdma_set_option(id, 0, name, value, 0)), libc::EINVAL);
        }
        for (comp_mask, expected) in [(1, libc::EINVAL), (2, libc::EINVAL), (7, libc::ENOTSUP)] {
            let mut attr = rdma_cm_join_mc_attr_ex { comp_mask, join_flags: 0, addr: group.at() };
            let answer = rdma_join_multicast_ex(id, &raw mut attr, null_mut());
            assert_eq!(errno(answer), expected, "{comp_mask}");
        }
        (*group.at()).sa_family = libc::AF_UNIX as libc::sa_family_t;
        assert_eq!(errno(rdma_bind_addr(id, group.at())), libc::EINVAL);
        let mut found = null_mut();
        let answer = rdma_getaddrinfo(null(), null(), null(), &raw mut found);
        assert_eq!(errno(answer), libc::EINVAL);
    }
}

/// A queue pair that belongs to no id.
unsafe fn free_qp(id: *mut rdma_cm_id) -> *mut ibv_qp {
    let mut attr = small_rc();
    unsafe {
        attr.send_cq = ibv_create_cq((*id).verbs, 4, null_mut(), null_mut(), 0);
        attr.recv_cq = attr.send_cq;
        let qp = ibv_create_qp(ibv_alloc_pd((*id).verbs), &raw mut attr);
        assert!(!qp.is_null());
        qp
    }
}

/// One side connects a queue pair by number, and waits. The other side is a thread of the same
/// process, and makes its queue pair meanwhile.
#[test]
fn both_sides_of_a_synchronous_connection_are_in_one_process() {
    let listener = listener();
    let id = routed(listener);
    unsafe {
        let mut param = rdma_conn_param { qp_num: (*free_qp(id)).qp_num, ..zeroed() };
        let at = listener as usize;
        let make = |id| {
            free_qp(id);
        };
        let rejecter = thread::spawn(move || reject_one(at, b"", make));
        assert_eq!(errno(rdma_connect(id, &raw mut param)), libc::ECONNREFUSED);
        rejecter.join().unwrap();
    }
}

#[test]
fn a_synchronous_connect_by_number_keeps_the_response() {
    let listener = listener();
    let id = routed(listener);
    unsafe {
        let mut param = rdma_conn_param { qp_num: (*free_qp(id)).qp_num, ..zeroed() };
        let at = listener as usize;
        let (number, numbers) = mpsc::channel();
        let accepter = thread::spawn(move || {
            let mut request = null_mut();
            assert_eq!(rdma_get_request(at as *mut rdma_cm_id, &raw mut request), 0);
            let asks = (*(*request).event).param.conn.qp_num;
            let mut attr = small_rc();
            assert_eq!(rdma_create_qp(request, null_mut(), &raw mut attr), 0);
            let _ = number.send(((*(*request).qp).qp_num, asks, request as usize));
            // It waits until the connection is established, which never happens.
            assert_eq!(rdma_accept(request, null_mut()), -1);
            assert_eq!((*(*request).event).event, REJECTED);
        });
        assert_eq!(rdma_connect(id, &raw mut param), 0);
        assert_eq!(((*(*id).event).event, (*(*id).event).status), (CONNECT_RESPONSE, 0));
        // Each side has the number of the other's queue pair.
        let told = ((*(*id).event).param.conn.qp_num, param.qp_num);
        let (theirs, ours, request) = numbers.recv().unwrap();
        assert_eq!((theirs, ours), told);
        // The other thread waits for its connection: nobody ends that behind its back.
        assert_eq!(errno(rdma_disconnect(request as *mut rdma_cm_id)), libc::EBUSY);
        assert_eq!(rdma_destroy_id(id), 0);
        accepter.join().unwrap();
    }
}

#[test]
fn a_listener_can_be_used_while_a_thread_waits_for_its_request() {
    let listener = listener();
    let at = listener as usize;
    let rejecter = thread::spawn(move || unsafe { reject_one(at, b"", |_| ()) });
    // It waits by then. If it does not, this test cannot fail.
    thread::sleep(Duration::from_millis(100));
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(unsafe { rdma_get_src_port(at as *mut rdma_cm_id) }));
    assert!(ended.recv_timeout(LIMIT).is_ok(), "it waits too");
    let id = routed(listener);
    unsafe {
        let mut attr = small_rc();
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut attr), 0);
        assert_eq!(errno(rdma_connect(id, null_mut())), libc::ECONNREFUSED);
    }
    rejecter.join().unwrap();
}

#[test]
fn the_queue_pair_of_an_id_may_have_the_extended_post() {
    // Send operations: sends; what RC does not have.
    const SENDS: u64 = 1 << 2;
    const BEYOND: u64 = 1 << 40;
    let cap = small_rc().cap;
    let attr = |comp_mask, send_ops_flags| unsafe {
        ibv_qp_init_attr_ex { cap, qp_type: 2, comp_mask, send_ops_flags, ..zeroed() }
    };
    let id = bound(null_mut(), TCP);
    unsafe {
        // TSO, and an operation that there is not.
        for mut attr in [attr(1 << 3, 0), attr(1 << 6, BEYOND)] {
            assert_eq!(errno(rdma_create_qp_ex(id, &raw mut attr)), libc::EOPNOTSUPP);
        }
        let mut attr = attr(1 << 6, SENDS);
        assert_eq!(rdma_create_qp_ex(id, &raw mut attr), 0);
        assert!((*(*id).qp.cast::<ibv_qp_ex>()).wr_start.is_some());
    }
}

#[test]
fn events_have_what_the_peer_says_of_its_queue_pair() {
    let channel = rdma_create_event_channel();
    let listener = bound(channel, TCP);
    assert_eq!(unsafe { rdma_listen(listener, 4) }, 0);
    let id = routed(listener);
    let said = |event: *mut rdma_cm_event| unsafe {
        let said = (*event).param.conn;
        ((*event).event, said.qp_num, said.retry_count, said.rnr_retry_count)
    };
    let param = |retry_count, rnr_retry_count| unsafe {
        rdma_conn_param { retry_count, rnr_retry_count, ..zeroed() }
    };
    unsafe {
        let mut attr = small_rc();
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut attr), 0);
        let (at, num) = (id as usize, (*(*id).qp).qp_num);
        let connecter = thread::spawn(move || {
            let mut asks = param(3, 2);
            rdma_connect(at as *mut rdma_cm_id, &raw mut asks)
        });
        let mut event = null_mut();
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
        assert_eq!(said(event), (CONNECT_REQUEST, num, 3, 2));
        let request = (*event).id;
        assert_eq!(rdma_ack_cm_event(event), 0);
        assert_eq!(rdma_create_qp(request, null_mut(), &raw mut attr), 0);
        let mut grants = param(5, 6);
        assert_eq!(rdma_accept(request, &raw mut grants), 0);
        assert_eq!(connecter.join().unwrap(), 0);
        // An answer has no retry count, and what says that the peer is up has nothing.
        assert_eq!(said((*id).event), (ESTABLISHED, (*(*request).qp).qp_num, 0, 6));
        assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
        assert_eq!(said(event), (ESTABLISHED, 0, 0, 0));
    }
}

/// Both sides of a connection are synchronous. Each call leaves its own event, with what the peer
/// has said by that event alone.
#[test]
fn each_synchronous_call_leaves_its_event() {
    let listener = listener();
    let id = routed(listener);
    let connect = |id: usize| unsafe {
        let mut param = rdma_conn_param { responder_resources: 1, ..zeroed() };
        rdma_connect(id as *mut rdma_cm_id, &raw mut param)
    };
    let has_param = |id: *mut rdma_cm_id| unsafe {
        let said = (*(*id).event).param.conn;
        (said.qp_num != 0, said.initiator_depth, !said.private_data.is_null())
    };
    unsafe {
        let mut attr = small_rc();
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut attr), 0);
        let at = id as usize;
        let connecter = thread::spawn(move || connect(at));
        let mut request = null_mut();
        assert_eq!(rdma_get_request(listener, &raw mut request), 0);
        assert_eq!(((*(*request).event).id, (*(*request).event).listen_id), (request, listener));
        assert_eq!((kept(request), has_param(request)), ((CONNECT_REQUEST, 0), (true, 1, true)));
        assert_eq!(rdma_create_qp(request, null_mut(), &raw mut attr), 0);
        assert_eq!(rdma_accept(request, null_mut()), 0);
        assert_eq!((kept(request), has_param(request)), ((ESTABLISHED, 0), (false, 0, false)));
        assert_eq!(connecter.join().unwrap(), 0);
        assert_eq!((kept(id), has_param(id)), ((ESTABLISHED, 0), (true, 0, true)));
        for id in [id, request] {
            assert_eq!(rdma_disconnect(id), 0);
            assert_eq!((kept(id), has_param(id)), ((DISCONNECTED, 0), (false, 0, false)));
        }
        // An id with a channel has its events there.
        assert_eq!(rdma_migrate_id(id, rdma_create_event_channel()), 0);
        assert!((*id).event.is_null());
        assert_eq!(rdma_destroy_id(request), 0);
    }
}

#[test]
fn a_synchronous_accept_of_datagrams_leaves_no_event() {
    let listener = bound(null_mut(), UDP);
    let id = bound(null_mut(), UDP);
    unsafe {
        assert_eq!(rdma_listen(listener, 4), 0);
        let mut to = Addr::new(HERE, u16::from_be(rdma_get_src_port(listener)));
        assert_eq!(rdma_resolve_addr(id, null_mut(), to.at(), 1000), 0);
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        let at = id as usize;
        let connecter = thread::spawn(move || rdma_connect(at as *mut rdma_cm_id, null_mut()));
        let mut request = null_mut();
        assert_eq!(rdma_get_request(listener, &raw mut request), 0);
        assert_eq!(kept(request), (CONNECT_REQUEST, 0));
        let mut param = rdma_conn_param { qp_num: 7, ..zeroed() };
        assert_eq!(rdma_accept(request, &raw mut param), 0);
        assert!((*request).event.is_null());
        assert_eq!(connecter.join().unwrap(), 0);
        assert_eq!((kept(id), (*(*id).event).param.ud.qp_num), ((ESTABLISHED, 0), 7));
    }
}

#[test]
fn an_active_endpoint_has_the_event_of_its_route() {
    let mut to = Addr::new(HERE, u16::from_be(unsafe { rdma_get_src_port(listener()) }));
    let mut id = null_mut();
    unsafe {
        let (ai_dst_addr, ai_port_space) = (to.at(), TCP);
        let mut info = rdma_addrinfo { ai_dst_addr, ai_port_space, ai_qp_type: 2, ..zeroed() };
        assert_eq!(rdma_create_ep(&raw mut id, &raw mut info, null_mut(), null_mut()), 0);
        assert_eq!(kept(id), (ROUTE_RESOLVED, 0));
    }
}
