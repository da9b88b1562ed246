//! Events, as programs see them.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::{mem, ptr};

use doorbell_fabric::{Depths, Event, EventKind, UdParam};
use doorbell_soft::{PeerQp, SoftDevice, SoftId};
use libc::c_int;

use crate::attr::address_attr;
use crate::border::{Noun, Object, lock};

use super::abi::{event_param, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_ud_param};

/// The events of an id that the program has got and not yet acknowledged.
#[derive(Default)]
pub(crate) struct Reports {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Reports {
    /// One more.
    pub(crate) fn one(self: &Arc<Reports>) -> Report {
        *lock(&self.count) += 1;
        Report(self.clone())
    }

    /// Waits until all are acknowledged.
    pub(crate) fn wait(&self) {
        let mut count = lock(&self.count);
        while *count > 0 {
            count = self.fewer.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One of them. It counts until it is dropped.
pub(crate) struct Report(Arc<Reports>);

impl Drop for Report {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.fewer.notify_all();
    }
}

/// The private data that an event points to, and the event's place in the count of its id.
pub(crate) struct Taken {
    _data: Vec<u8>,
    _report: Option<Report>,
}

impl Noun for Taken {
    type C = rdma_cm_event;
    const TAG: u64 = 0x6462_5f65_7600_000b;
}

/// What the peer has told with an event.
pub(crate) struct Told {
    pub(crate) ud: Option<UdParam>,
    pub(crate) depths: Option<Depths>,
    /// Its queue pair.
    pub(crate) peer: Option<PeerQp>,
    pub(crate) data: Vec<u8>,
}

impl Told {
    /// What came with an event of that id. An event with depths is the peer's request or answer.
    pub(crate) fn with(event: &mut Event<SoftDevice>, id: &SoftId) -> Told {
        Told {
            ud: event.ud,
            depths: event.depths,
            peer: event.depths.and_then(|_| id.peer_qp()),
            data: mem::take(&mut event.private_data),
        }
    }
}

/// The parameters of an event.
fn param(told: &Told) -> event_param {
    let data = told.data.as_slice();
    let private_data = if data.is_empty() { ptr::null() } else { data.as_ptr().cast() };
    let private_data_len = u8::try_from(data.len()).unwrap_or(u8::MAX);
    // All of the larger one is set: a program may look at either.
    let to = told.ud.map(|ud| address_attr(&ud.to)).unwrap_or_default();
    let ud = rdma_ud_param {
        private_data,
        private_data_len,
        ah_attr: to,
        qp_num: told.ud.map_or(0, |ud| ud.qp_num),
        qkey: told.ud.map_or(0, |ud| ud.qkey),
    };
    let mut param = event_param { ud };
    if told.ud.is_none() {
        let depths = told.depths.unwrap_or_default();
        param.conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: depths.responder,
            initiator_depth: depths.initiator,
            flow_control: 0,
            retry_count: told.peer.map_or(0, |peer| peer.retry_count),
            rnr_retry_count: told.peer.map_or(0, |peer| peer.rnr_retry),
            srq: 0,
            qp_num: told.peer.map_or(0, |peer| peer.num),
        };
    }
    param
}

/// Makes an event for the program. `user`: the pointer that the program gave to its join. `report`:
/// `None` for an event that the id keeps itself, which no destruction waits for.
pub(crate) fn tell(
    (id, listen_id): (*mut rdma_cm_id, *mut rdma_cm_id),
    (kind, status): (EventKind, c_int),
    told: Told,
    (user, report): (Option<usize>, Option<Report>),
) -> *mut rdma_cm_event {
    let mut param = param(&told);
    if let Some(user) = user {
        param.ud.private_data = ptr::with_exposed_provenance(user);
    }
    let c = rdma_cm_event { id, listen_id, event: kind as c_int, status, param };
    Object::give(c, Taken { _data: told.data, _report: report })
}
