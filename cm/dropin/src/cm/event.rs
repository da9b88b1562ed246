//! The events of the connection manager.
#![expect(unsafe_code, reason = "the C interface")]

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::Duration;

use doorbell_fabric::{Channel as _, CmError, Event, EventKind, QpState};
use doorbell_soft::SoftDevice;
use libc::c_int;

use crate::border::{Errno, INVALID, explain, lock, may_end, number, put, take, wait_readable};
use crate::queue::NONE;

use super::abi::*;
use super::channel::{ChannelName, LEAVES, channel_at};
use super::id::{IDS, give, id_at, note_state, show_device};
use super::told::{Taken, Told, tell};

/// Turns an event into one of C; `None` if its id is gone. The id waits for its acknowledgement.
fn translate(mut event: Event<SoftDevice>) -> Option<*mut rdma_cm_event> {
    let (at, report) = {
        let ids = lock(&IDS);
        let at = *ids.get(&event.key)? as *mut rdma_cm_id;
        // SAFETY: in the list, which is locked, so it is alive. From here on it waits for `report`.
        (at, unsafe { id_at(at) }.ok()?.own.reports.one())
    };
    let mut user = None;
    let (mut id, mut listener) = (at, ptr::null_mut());
    // SAFETY: alive, see above.
    let told = unsafe {
        match event.kind {
            EventKind::ConnectRequest => {
                let request = event.request.take()?;
                (id, listener) = (give(request, (*at).channel, (*at).context), at);
                show_device(id);
            }
            EventKind::Established => note_state(at, QpState::Rts),
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                note_state(at, QpState::Err);
                explain(&CmError::of_event("connect", event.kind, event.status));
            }
            EventKind::MulticastJoin | EventKind::MulticastError => {
                user = id_at(at).ok().and_then(|id| lock(&id.own.joined).pop_front());
            }
            _ => {}
        }
        Told::with(&mut event, &lock(&id_at(id).ok()?.own.id))
    };
    Some(tell((id, listener), (event.kind, event.status), told, (user, Some(report))))
}

/// Gives the program the next event of a channel, if there is one; if not, [`NONE`], or an error if
/// the program has made the descriptor not block. A destroyed channel has no events: as in
/// librdmacm, a thread that has begun to wait does not notice.
///
/// # Safety
/// There is room for a pointer.
unsafe fn look(name: &mut ChannelName, to: *mut *mut rdma_cm_event) -> Result<c_int, Errno> {
    let Some(channel) = name.channel() else { return Ok(NONE) };
    let _leaves = lock(&LEAVES);
    while let Some(event) = channel.next(Duration::ZERO)? {
        if let Some(made) = translate(event) {
            // SAFETY: as the caller says.
            unsafe { put(to, made) }?;
            return Ok(0);
        }
    }
    // SAFETY: takes numbers only.
    let flags = unsafe { libc::fcntl(channel.as_fd().as_raw_fd(), libc::F_GETFL) };
    if flags & libc::O_NONBLOCK == 0 { Ok(NONE) } else { Err(Errno(libc::EAGAIN)) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    may_end();
    let mut name = None;
    loop {
        let answer = number(|| {
            if event.is_null() {
                return Err(INVALID);
            }
            let mut of = match name {
                Some(name) => name,
                // SAFETY: the program's channel.
                None => unsafe { channel_at(channel) }?.name(),
            };
            // SAFETY: the program's room.
            let answer = unsafe { look(&mut of, event) };
            name = Some(of);
            answer
        });
        if answer != NONE {
            return answer;
        }
        wait_readable(name.and_then(|name| name.fd));
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: the program's event, which it no longer uses.
    number(|| unsafe { take::<Taken>(event) }.map(|_| 0))
}
