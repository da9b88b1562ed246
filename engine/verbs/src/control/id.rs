//! [`VerbsId`]: an id of librdmacm, and how its calls are made and waited for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::CmError;
use doorbell_fabric::{CmId, EventKind};
use doorbell_seam::error::Code;
use doorbell_seam::provider::QpType;

use super::addr::{self, address_error};
use super::core::Core;
use super::line::{Deadline, NewId, RawEvent};
use super::param::{SILENT, failure};
use super::record::{Record, Told};
use crate::Verbs;

/// An id of librdmacm.
///
/// Dropping it while its queue pair lives ends the connection. librdmacm's id is destroyed when
/// both are dropped, in any order.
pub struct VerbsId {
    pub(super) core: Arc<Core>,
    pub(super) device: Verbs,
    /// Has disconnected: the kernel would accept a second call.
    pub(super) parted: bool,
    pub(super) listening: bool,
}

impl VerbsId {
    pub(super) fn new(core: Arc<Core>, device: &Verbs) -> VerbsId {
        VerbsId { core, device: device.clone(), parted: false, listening: false }
    }

    /// Takes charge of the id of a connection request. One that came to another device is rejected.
    pub(super) fn admit(device: &Verbs, new: NewId) -> io::Result<Option<VerbsId>> {
        if !new.is_of(device.device().context()) {
            new.reject();
            return Ok(None);
        }
        Ok(Some(VerbsId::new(Core::adopt(new)?, device)))
    }

    pub(super) fn record(&self) -> &Record {
        self.core.record()
    }

    /// Notes what came with the request that made this id.
    pub(super) fn begin(&self, listener: &Record, event: &RawEvent) {
        let record = self.record();
        record.set_context(listener.context());
        record.set_private_data(event.private_data());
        if let Some(depths) = event.depths() {
            record.set_depths(depths);
        }
    }

    /// Refuses an id that is bound to another device.
    pub(super) fn check_device(&self, asked: &str) -> Result<(), CmError> {
        let ours = self.device.device().context();
        let Some(other) = self.core.context().filter(|context| *context != ours) else {
            return Ok(());
        };
        let (other, name) = (other.name(), self.device.name());
        let answer = format!("that is on the device {other}, and this is {name}");
        let cure = format!("{}; or open {other}", addr::cure(&self.device));
        Err(CmError::new(Code::NoDevice, asked, answer).cure(cure))
    }

    /// For messages.
    pub(super) fn peer(&self) -> String {
        self.peer_addr().map_or_else(|| String::from("the peer"), |addr| addr.to_string())
    }

    /// What a call about addresses has answered.
    pub(super) fn of_address(
        &self,
        asked: &str,
        answer: io::Result<Option<Told>>,
    ) -> Result<Option<Told>, CmError> {
        answer.map_err(|error| address_error(&self.device, asked, &error))
    }

    /// On a synchronous id, waits until `wanted` has happened: for that limit, and for `late` more.
    pub(super) fn finish(
        &self,
        asked: &str,
        already: Option<Told>,
        wanted: EventKind,
        (limit, late): (Duration, Duration),
    ) -> Result<(), CmError> {
        if !self.core.is_sync() {
            return Ok(());
        }
        let deadline = Deadline::after(Some(limit.saturating_add(late)));
        let mut told = already;
        loop {
            match told {
                Some(told) if told.kind == Some(wanted) && told.status == 0 => return Ok(()),
                // These two may come meanwhile, and end nothing.
                Some(Told {
                    kind: Some(EventKind::AddrChange | EventKind::TimewaitExit), ..
                })
                | None => {}
                Some(told) => return Err(failure(asked, &self.peer(), told)),
            }
            let next = self.core.next(deadline);
            told = next.map_err(|error| CmError::from_io(asked, &error))?;
            if told.is_none() {
                let answer = format!("no answer within {} ms", limit.as_millis());
                return Err(CmError::new(Code::TimedOut, asked, answer).cure(SILENT));
            }
        }
    }

    /// Before an attempt on a synchronous id: notes the events that are there already. Otherwise
    /// the attempt would take one for its own. A listener's events stay: they are requests.
    pub(super) fn note_earlier(&self) {
        let now = Deadline::after(Some(Duration::ZERO));
        while self.core.is_sync() && !self.listening {
            // The attempt meets the same error, and reports it.
            if !matches!(self.core.next(now), Ok(Some(_))) {
                break;
            }
        }
    }

    /// Fails if the id cannot have a queue pair of that type now.
    pub(super) fn check_new_qp(&self, asked: &str, kind: QpType) -> Result<(), CmError> {
        self.check_device(asked)?;
        let (bound, has) = (self.core.context().is_some(), self.core.has_qp());
        if !bound || has {
            let answer = if has { "the id has one already" } else { "the id is on no device yet" };
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        // An id of RC may have one of UC, which librdmacm then does not connect.
        let ours = if kind == QpType::Uc { QpType::Rc } else { kind };
        if ours != self.qp_type() {
            let answer = format!("{kind:?} is not for an id of {:?} (QP-14)", self.qp_type());
            return Err(CmError::new(Code::Invalid, asked, answer));
        }
        Ok(())
    }

    pub(super) fn needs_qp(&self, asked: &str) -> Result<(), CmError> {
        if !self.core.has_qp() {
            let error = CmError::new(Code::Invalid, asked, "the id has no queue pair");
            return Err(error.cure("create_qp first"));
        }
        Ok(())
    }

    /// One try at the next request of a synchronous listener.
    pub(super) fn try_request(&self) -> io::Result<Option<VerbsId>> {
        let Some((new, event)) = self.core.try_request()? else { return Ok(None) };
        let request = VerbsId::admit(&self.device, new)?;
        if let Some(request) = &request {
            request.begin(self.record(), &event);
        }
        Ok(request)
    }
}

impl Drop for VerbsId {
    fn drop(&mut self) {
        self.core.close();
    }
}
