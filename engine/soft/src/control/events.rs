//! The events of a [`SoftChannel`], and the ids of connection requests.

use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_fabric::{Channel, Event, IdKey};

use super::channel::SoftChannel;
use super::device::SoftDevice;
use super::end::Raised;
use super::id::SoftId;

impl Raised {
    /// The event as programs get it: of the id with that key and user data.
    pub(super) fn event(
        self,
        key: u64,
        context: u64,
        request: Option<SoftId>,
    ) -> Event<SoftDevice> {
        Event {
            kind: self.kind,
            key: IdKey(key),
            context,
            status: self.status,
            private_data: self.data,
            depths: self.depths,
            ud: self.ud,
            request,
        }
    }
}

impl Channel<SoftDevice> for SoftChannel {
    fn next(&self, limit: Duration) -> Result<Option<Event<SoftDevice>>, CmError> {
        let Some((key, mut raised)) = self.0.next(Some(limit))? else { return Ok(None) };
        // A removed id has no events, unless it is being removed at this moment.
        let context = self.0.find(key).map_or(0, |(end, _)| end.context());
        let request = raised.request.take().map(|end| {
            end.set_context(context);
            SoftId::over(end, self.0.clone(), false)
        });
        Ok(Some(raised.event(key, context, request)))
    }
}
