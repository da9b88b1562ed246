//! [`Endpoint`]: `rdma_create_ep`, an id that is ready to connect or to listen.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use doorbell_fabric::{AddrInfo, CmError, Fabric};

use crate::id::Id;
use crate::init::QpInit;

/// An id made from an address (`rdma_create_ep`).
///
/// An active one is resolved and has its queue pair (EP-2, EP-3): it may connect at once (EP-4).
/// A passive one is bound (EP-7) and keeps the attributes: each request it delivers has a queue
/// pair made from them (EP-6, EP-8). It is used as the [`Id`] it is.
pub struct Endpoint<F: Fabric> {
    id: Id<F>,
    saved: Option<QpInit<F>>,
}

impl<F: Fabric> Endpoint<F> {
    /// Makes an endpoint. It is synchronous (EP-11).
    ///
    /// ```
    /// use doorbell_cm::{AddrInfo, CmError, Endpoint, Hints};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(device: &SoftDevice) -> Result<Endpoint<SoftDevice>, CmError> {
    /// let info = AddrInfo::resolve("127.0.0.1", "7471", &Hints::passive())?;
    /// Endpoint::create(device, &info, None)
    /// # }
    /// ```
    /// A call without any address does not compile (EP-14):
    /// ```compile_fail,E0308
    /// use doorbell_cm::{AddrInfo, CmError, Endpoint, Hints};
    /// use doorbell_soft::SoftDevice;
    ///
    /// # fn made(device: &SoftDevice) -> Result<Endpoint<SoftDevice>, CmError> {
    /// Endpoint::create(device, None, None)
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the calls it combines: resolve and make a queue pair, or bind. It leaves nothing
    /// behind (EP-13).
    pub fn create(
        fabric: &F,
        info: &AddrInfo,
        init: Option<&QpInit<F>>,
    ) -> Result<Endpoint<F>, CmError> {
        let mut id = Id::with(fabric, fabric.create_endpoint(info)?, true);
        if !info.is_passive() {
            id.say_first(info.connect_data());
        }
        let mut saved = None;
        match init {
            Some(init) if info.is_passive() => saved = Some(init.clone()),
            Some(init) => id.create_qp(init)?,
            None => {}
        }
        Ok(Endpoint { id, saved })
    }

    /// The next connection request (`rdma_get_request`), with its queue pair if attributes were
    /// saved. A request whose queue pair cannot be made is rejected and gone (EP-10).
    ///
    /// # Errors
    /// As for [`Id::get_request`] and [`Id::create_qp`].
    pub fn get_request(&mut self, limit: Option<Duration>) -> Result<Id<F>, CmError> {
        let mut id = self.id.get_request(limit)?;
        if let Some(init) = &self.saved
            && let Err(error) = id.create_qp(init)
        {
            // The peer may have left meanwhile; dropping the id tells it as well.
            let _ = id.reject(&[]);
            return Err(error);
        }
        Ok(id)
    }

    /// The id, without the attributes saved for requests.
    pub fn into_id(self) -> Id<F> {
        self.id
    }
}

impl<F: Fabric> Deref for Endpoint<F> {
    type Target = Id<F>;

    fn deref(&self) -> &Id<F> {
        &self.id
    }
}

impl<F: Fabric> DerefMut for Endpoint<F> {
    fn deref_mut(&mut self) -> &mut Id<F> {
        &mut self.id
    }
}
