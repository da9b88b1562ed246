//! The events of a [`SoftChannel`], and the ids of connection requests.

use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_fabric::{Channel, Event, IdKey};

use super::channel::SoftChannel;
use super::device::SoftDevice;
use super::id::SoftId;

impl Channel<SoftDevice> for SoftChannel {
    fn next(&self, limit: Duration) -> Result<Option<Event<SoftDevice>>, CmError> {
        let Some((key, raised)) = self.0.next(Some(limit))? else { return Ok(None) };
        // A removed id has no events, unless it is being removed at this moment.
        let context = self.0.find(key).map_or(0, |(end, _)| end.context());
        let request = raised.request.map(|end| {
            end.set_context(context);
            SoftId::over(end, self.0.clone(), false)
        });
        Ok(Some(Event {
            kind: raised.kind,
            key: IdKey(key),
            context,
            status: raised.status,
            private_data: raised.data,
            depths: raised.depths,
            ud: raised.ud,
            request,
        }))
    }
}
