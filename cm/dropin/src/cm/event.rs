//! The events of the connection manager.
#![expect(unsafe_code, reason = "the C interface")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::Duration;

use doorbell_fabric::{Channel as _, Event, EventKind, QpState};
use doorbell_soft::SoftDevice;
use libc::c_int;

use crate::attr::address_attr;
use crate::border::{Errno, Noun, Object, lock, number, object, put, take};

use super::abi::*;
use super::channel::Channel;
use super::id::{IDS, give, id_at, note_state, show_device};

/// What an event points to: the private data of the peer.
struct Taken {
    _data: Box<[u8]>,
}

impl Noun for Taken {
    type C = rdma_cm_event;
    const TAG: u64 = 0x6462_5f65_7600_000b;
}

/// A program that waits for ever is woken so often, to see whether it still wants to.
const STEP: Duration = Duration::from_secs(1);

/// The next event of a channel. Waits, unless the program has made the descriptor not block.
fn next(channel: &Channel) -> Result<Event<SoftDevice>, Errno> {
    let fd = channel.channel.as_fd().as_raw_fd();
    loop {
        // SAFETY: takes numbers only.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let waits = flags & libc::O_NONBLOCK == 0;
        let limit = if waits { STEP } else { Duration::ZERO };
        match channel.channel.next(limit)? {
            Some(event) => return Ok(event),
            None if waits => {}
            None => return Err(Errno(libc::EAGAIN)),
        }
    }
}

/// The parameters of an event.
fn param(event: &Event<SoftDevice>, data: &[u8]) -> event_param {
    let private_data = if data.is_empty() { ptr::null() } else { data.as_ptr().cast() };
    let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    if let Some(ud) = event.ud {
        return event_param {
            ud: rdma_ud_param {
                private_data,
                private_data_len,
                ah_attr: address_attr(&ud.to),
                qp_num: ud.qp_num,
                qkey: ud.qkey,
            },
        };
    }
    let depths = event.depths.unwrap_or_default();
    let conn = rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: depths.responder,
        initiator_depth: depths.initiator,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    };
    // All of the larger one is set, as a program may look at either.
    let mut all = event_param {
        ud: rdma_ud_param {
            private_data: ptr::null(),
            private_data_len: 0,
            ah_attr: Default::default(),
            qp_num: 0,
            qkey: 0,
        },
    };
    all.conn = conn;
    all
}

/// Turns an event into one of C; `None` if its id is gone.
fn translate(mut event: Event<SoftDevice>) -> Option<*mut rdma_cm_event> {
    let at = {
        let ids = lock(&IDS);
        *ids.get(&event.key)? as *mut rdma_cm_id
    };
    let data = std::mem::take(&mut event.private_data).into_boxed_slice();
    let mut all = param(&event, &data);
    let (mut id, mut listener) = (at, ptr::null_mut());
    // SAFETY: the program does not destroy an id while it waits for its events.
    unsafe {
        match event.kind {
            EventKind::ConnectRequest => {
                let request = event.request.take()?;
                (id, listener) = (give(request, (*at).channel, (*at).context), at);
                show_device(id);
            }
            EventKind::Established => note_state(at, QpState::Rts),
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                note_state(at, QpState::Err);
            }
            EventKind::MulticastJoin | EventKind::MulticastError => {
                let user = id_at(at).map_or(0, |id| *lock(&id.own.joined));
                all.ud.private_data = ptr::with_exposed_provenance(user);
            }
            _ => {}
        }
    }
    let c = rdma_cm_event {
        id,
        listen_id: listener,
        event: event.kind as c_int,
        status: event.status,
        param: all,
    };
    Some(Object::give(c, Taken { _data: data }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    number(|| {
        // SAFETY: the program's channel.
        let channel = unsafe { object::<Channel>(channel) }?;
        loop {
            if let Some(made) = translate(next(&channel.own)?) {
                // SAFETY: room for a pointer.
                unsafe { put(event, made) }?;
                return Ok(0);
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: the program's event, which it no longer uses.
    number(|| unsafe { take::<Taken>(event) }.map(|_| 0))
}
