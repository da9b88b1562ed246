//! The events of a [`VerbsChannel`], and the ids that connection requests bring.

use std::io;
use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_fabric::{Channel, Event, EventKind};

use super::channel::VerbsChannel;
use super::id::VerbsId;
use super::line::{Deadline, RawEvent};
use crate::Verbs;

impl Channel<Verbs> for VerbsChannel {
    fn next(&self, limit: Duration) -> Result<Option<Event<Verbs>>, CmError> {
        let deadline = Deadline::after(Some(limit));
        let failed = |error| CmError::from_io("the next event of a channel", &error);
        while self.line().wait(deadline).map_err(failed)? {
            if let Some(event) = self.take().map_err(failed)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

impl VerbsChannel {
    /// The next event that concerns somebody, if one is there.
    fn take(&self) -> io::Result<Option<Event<Verbs>>> {
        let entered = self.line().enter();
        while let Some(mut event) = self.line().get(&entered)? {
            let told = match event.kind() {
                None => None,
                Some(EventKind::ConnectRequest) => self.request(&mut event)?,
                Some(kind) => plain(kind, &event),
            };
            if told.is_some() {
                return Ok(told);
            }
        }
        Ok(None)
    }

    /// A peer wants to connect: its new id, or nothing if it came to another device.
    fn request(&self, event: &mut RawEvent) -> io::Result<Option<Event<Verbs>>> {
        let Some(new) = event.request(self.line()) else { return Ok(None) };
        let Some(listener) = event.record() else { return Ok(None) };
        let Some(request) = VerbsId::admit(self.device(), new)? else { return Ok(None) };
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
    let record = event.record()?;
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
