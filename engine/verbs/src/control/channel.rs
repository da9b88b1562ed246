//! [`VerbsChannel`]: the events of asynchronous ids.
#![expect(unsafe_code, reason = "ids of connection requests come as raw pointers")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_fabric::{Channel, Event, EventKind};
use rdma_sys::{rdma_cm_id, rdma_destroy_id, rdma_reject};

use super::core::{Core, Record};
use super::id::VerbsId;
use super::line::{Deadline, Line, RawEvent};
use crate::Verbs;

/// An event channel of librdmacm.
pub struct VerbsChannel {
    line: Arc<Line>,
    device: Verbs,
}

impl VerbsChannel {
    pub(super) fn new(device: &Verbs) -> Result<VerbsChannel, CmError> {
        let line = Line::open().map_err(|error| CmError::from_io("an event channel", &error))?;
        Ok(VerbsChannel { line: Arc::new(line), device: device.clone() })
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// The next event that concerns somebody, if one is there.
    fn take(&self) -> io::Result<Option<Event<Verbs>>> {
        let entered = self.line.enter();
        while let Some(event) = self.line.get(&entered)? {
            let told = match event.kind() {
                None => None,
                Some(EventKind::ConnectRequest) => self.request(&event)?,
                Some(kind) => plain(kind, &event),
            };
            if told.is_some() {
                return Ok(told);
            }
        }
        Ok(None)
    }

    /// A peer wants to connect: its new id, or nothing if it came to another device.
    fn request(&self, event: &RawEvent) -> io::Result<Option<Event<Verbs>>> {
        // SAFETY: the event names the listener and is not acknowledged yet.
        let Some(listener) = (unsafe { Record::of(event.listener()) }) else {
            return Ok(None);
        };
        let Some(new) = NonNull::new(event.id()) else { return Ok(None) };
        // SAFETY: librdmacm made the id for this event and handed it to us.
        let request = unsafe { admit(&self.device, new, Some(&self.line))? };
        let Some(request) = request else { return Ok(None) };
        let private_data = event.private_data();
        request.begin(listener, event);
        Ok(Some(Event {
            kind: EventKind::ConnectRequest,
            key: listener.key(),
            context: listener.context(),
            status: event.status(),
            private_data,
            depths: event.depths(),
            ud: None,
            request: Some(request),
        }))
    }
}

/// An event of an id that exists; nothing if its handle is gone.
fn plain(kind: EventKind, event: &RawEvent) -> Option<Event<Verbs>> {
    // SAFETY: the event names the id and is not acknowledged yet.
    let record = unsafe { Record::of(event.id()) }?;
    let told = record.note(event);
    if record.is_closed() {
        return None;
    }
    Some(Event {
        kind,
        key: record.key(),
        context: record.context(),
        status: event.status(),
        private_data: event.private_data(),
        depths: told.depths,
        ud: event.ud(),
        request: None,
    })
}

/// Takes charge of the id of a connection request. One that came to another device is rejected.
///
/// # Safety
/// `new` is the id of a request that nobody has taken yet; as for [`Core::adopt`] otherwise.
pub(super) unsafe fn admit(
    device: &Verbs,
    new: NonNull<rdma_cm_id>,
    line: Option<&Arc<Line>>,
) -> io::Result<Option<VerbsId>> {
    // SAFETY: the caller vouches for the id.
    if unsafe { (*new.as_ptr()).verbs } != device.context() {
        // SAFETY: as above; no event of the new id itself has been handed out.
        unsafe {
            rdma_reject(new.as_ptr(), ptr::null(), 0);
            rdma_destroy_id(new.as_ptr());
        }
        return Ok(None);
    }
    // SAFETY: as above.
    let core = unsafe { Core::adopt(new, line)? };
    Ok(Some(VerbsId::new(core, device)))
}

impl AsFd for VerbsChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and its descriptor with it, lives as long as its line.
        unsafe { BorrowedFd::borrow_raw(self.line.fd()) }
    }
}

impl Channel<Verbs> for VerbsChannel {
    fn next(&self, limit: Duration) -> Result<Option<Event<Verbs>>, CmError> {
        let deadline = Deadline::after(Some(limit));
        let failed = |error| CmError::from_io("the next event of a channel", &error);
        while self.line.wait(deadline).map_err(failed)? {
            if let Some(event) = self.take().map_err(failed)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}
