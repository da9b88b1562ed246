//! [`VerbsId`]: an id of librdmacm, and how its calls are made and waited for.
#![expect(unsafe_code, reason = "ids and queue pairs are raw pointers of librdmacm")]

use std::ffi::c_int;
use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use crate::rdma_core::*;
use doorbell_fabric::CmError;
use doorbell_fabric::{CmId, EventKind};
use doorbell_seam::error::Code;
use doorbell_seam::provider::QpType;

use super::addr::{self, address_error};
use super::core::{Core, Record, Told};
use super::line::{Deadline, Line, RawEvent};
use super::param::failure;
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
        let context = self.core.context();
        if context.is_null() || context == self.device.context() {
            return Ok(());
        }
        // SAFETY: the context of a bound id is one of librdmacm's, open for good.
        let other = unsafe { Verbs::name_of(context) };
        let name = self.device.name();
        let answer = format!("that is on the device {other}, and this is {name}");
        let cure = format!("{}; or open {other}", addr::cure(&self.device));
        Err(CmError::new(Code::NoDevice, asked, answer).cure(cure))
    }

    /// For messages.
    pub(super) fn peer(&self) -> String {
        self.peer_addr().map_or_else(|| String::from("the peer"), |addr| addr.to_string())
    }

    pub(super) fn address_call(
        &self,
        asked: &str,
        call: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> Result<Option<Told>, CmError> {
        self.core.call(call).map_err(|error| address_error(&self.device, asked, &error))
    }

    pub(super) fn plain_call(
        &self,
        asked: &str,
        call: impl FnOnce(*mut rdma_cm_id) -> c_int,
    ) -> Result<Option<Told>, CmError> {
        self.core.call(call).map_err(|error| CmError::from_io(asked, &error))
    }

    /// On a synchronous id, waits until `wanted` has happened.
    pub(super) fn finish(
        &self,
        asked: &str,
        already: Option<Told>,
        wanted: EventKind,
        limit: Duration,
    ) -> Result<(), CmError> {
        if !self.core.is_sync() {
            return Ok(());
        }
        let deadline = Deadline::after(Some(limit));
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
                return Err(CmError::new(Code::TimedOut, asked, answer));
            }
        }
    }

    /// Fails if the id cannot have a queue pair of that type now.
    pub(super) fn check_new_qp(&self, asked: &str, kind: QpType) -> Result<(), CmError> {
        self.check_device(asked)?;
        let (bound, has) = (!self.core.context().is_null(), self.core.qp().is_some());
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

    /// The queue pair that librdmacm has just made.
    pub(super) fn new_qp(&self, asked: &str) -> Result<NonNull<ibv_qp>, CmError> {
        self.core.qp().ok_or_else(|| CmError::new(Code::Reset, asked, "it was destroyed again"))
    }

    pub(super) fn needs_qp(&self, asked: &str) -> Result<(), CmError> {
        if self.core.qp().is_none() {
            let error = CmError::new(Code::Invalid, asked, "the id has no queue pair");
            return Err(error.cure("create_qp first"));
        }
        Ok(())
    }

    /// One try at the next request of a synchronous listener.
    pub(super) fn try_request(&self) -> io::Result<Option<VerbsId>> {
        let mut new = ptr::null_mut();
        let event = self.core.with(|id| {
            // SAFETY: the listener is alive, and its descriptor does not block.
            let answer = unsafe { rdma_get_request(id, &raw mut new) };
            let error = io::Error::last_os_error();
            // SAFETY: both ids are alive. librdmacm leaves the event with the new id, or with
            // the listener if it was no request.
            unsafe {
                let holder = if answer == 0 { new } else { id };
                match (answer, RawEvent::parked(holder)) {
                    (0, Some(event)) => Ok(Some(event)),
                    (_, _) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    (_, _) => Err(error),
                }
            }
        })?;
        let (Some(event), Some(new)) = (event, NonNull::new(new)) else { return Ok(None) };
        // SAFETY: librdmacm made the id, synchronous as its listener, and handed it to us.
        let request = unsafe { VerbsId::admit(&self.device, new, None)? };
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
