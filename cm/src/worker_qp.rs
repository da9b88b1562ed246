//! Queue pairs for workers.
#![expect(unsafe_code, reason = "a worker's thread domain is a promise")]

use doorbell_engine::worker::Intake;
use doorbell_fabric::{CmError, CmId, Fabric, QpAttr, QpAttrEx};
use doorbell_seam::provider::QpType;

/// Makes the queue pair of an id for a worker: for a peer, or a UD queue pair for its datagrams.
/// Only the worker uses it; the id goes on to connect and disconnect it.
pub(crate) fn create<F: Fabric>(
    id: &mut F::Id,
    intake: &Intake<F>,
    kind: QpType,
) -> Result<F::Qp, CmError> {
    let (srq, caps) = match kind {
        QpType::Ud => (None, intake.datagram_caps()),
        _ => (Some(intake.srq()), intake.qp_caps()),
    };
    let (send_cq, recv_cq, ex) = (intake.cq(), intake.cq(), QpAttrEx::default());
    let attr = QpAttr { kind, send_cq, recv_cq, srq, caps, signal_all: false, ex };
    // SAFETY: both callers hand the queue pair to this worker's mailbox, or drop it. Later the id
    // changes it only through the connection manager, which posts nothing.
    let nic = unsafe { intake.nic() };
    id.create_qp(nic, &attr)
}
