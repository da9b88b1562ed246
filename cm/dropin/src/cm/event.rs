//! The events of the connection manager.
#![expect(unsafe_code, reason = "the C interface")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::Duration;

use doorbell_fabric::{Channel as _, Event, EventKind, QpState};
use doorbell_soft::SoftDevice;
use libc::c_int;

use crate::border::{Errno, lock, number, object, put, take};

use super::abi::*;
use super::channel::Channel;
use super::id::{IDS, give, id_at, note_state, show_device};
use super::told::{Taken, Told, tell};

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

/// Turns an event into one of C; `None` if its id is gone.
fn translate(mut event: Event<SoftDevice>) -> Option<*mut rdma_cm_event> {
    let at = {
        let ids = lock(&IDS);
        *ids.get(&event.key)? as *mut rdma_cm_id
    };
    let told =
        Told { ud: event.ud, depths: event.depths, data: std::mem::take(&mut event.private_data) };
    let mut user = None;
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
                user = id_at(at).ok().map(|id| *lock(&id.own.joined));
            }
            _ => {}
        }
    }
    Some(tell((id, listener), (event.kind, event.status), told, user))
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
