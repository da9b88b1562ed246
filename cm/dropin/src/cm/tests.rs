//! Ids, by the C interface.
#![expect(unsafe_code, reason = "the C interface")]
#![expect(clippy::undocumented_unsafe_blocks, reason = "our own calls, with what they gave")]

use std::net::{Ipv4Addr, SocketAddr};
use std::ptr::{null_mut, without_provenance_mut};

use libc::{sockaddr, sockaddr_storage};

use super::abi::*;
use super::addr::storage;
use super::channel::rdma_create_event_channel;
use super::event::{rdma_ack_cm_event, rdma_get_cm_event};
use super::id::*;

const UDP: i32 = 0x111;
const MULTICAST_JOIN: i32 = 12;

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
