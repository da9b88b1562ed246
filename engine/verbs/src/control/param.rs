//! Checks the parameters of connections before librdmacm sees them, and explains its answers.

use std::io;
use std::ptr;

use crate::rdma_core::rdma_conn_param;
use doorbell_fabric::CmError;
use doorbell_fabric::ConnParam;
use doorbell_fabric::{EventKind, Rejection};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Caps;

use super::addr::address_code;
use super::record::Told;

/// Refuses private data over `max` bytes (CM-8).
pub(super) fn check_data(asked: &str, data: &[u8], max: usize) -> Result<(), CmError> {
    let len = data.len();
    if len <= max.min(u8::MAX.into()) {
        return Ok(());
    }
    let answer = format!("{len} bytes of private data, {max} fit");
    Err(CmError::new(Code::Invalid, asked, answer).cure("send them as a message"))
}

/// The parameters in C's form (CM-5, CM-6), without the private data.
pub(super) fn conn_param(
    asked: &str,
    param: &ConnParam<'_>,
    data_max: usize,
    caps: &Caps,
) -> Result<rdma_conn_param, CmError> {
    let invalid = |answer: String| CmError::new(Code::Invalid, asked, answer);
    check_data(asked, param.private_data, data_max)?;
    for (name, depth) in [
        ("responder_resources", param.responder_resources),
        ("initiator_depth", param.initiator_depth),
    ] {
        if depth != u8::MAX && depth > caps.rd_atomic_max {
            let (device, max) = (&caps.device, caps.rd_atomic_max);
            return Err(invalid(format!("{name} {depth}, but {device} has {max}"))
                .cure("255 takes the device's maximum"));
        }
    }
    for (name, count) in [("retry_count", param.retry_count), ("rnr_retry", param.rnr_retry)] {
        if count > 7 {
            return Err(invalid(format!("{name} {count}, the field goes from 0 to 7")));
        }
    }
    Ok(rdma_conn_param {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: 1,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry,
        // librdmacm takes both from the id's queue pair, if it has one.
        srq: 0,
        qp_num: param.qp_num,
    })
}

/// What to do about a peer that does not answer.
pub(super) const SILENT: &str = "see that the listening program runs and takes its requests";
/// What to do if nobody listens.
const NOBODY: &str = "start the listening side first, and compare address and port";
/// What to do about a rejection by the peer's program.
const REJECTED: &str = "find out at the listening program why it rejects";

/// The error of an event that is not the expected one; `peer` names the other side.
pub(super) fn failure(asked: &str, peer: &str, told: Told) -> CmError {
    let status = told.status;
    let from_status = || {
        let text = io::Error::from_raw_os_error(status.saturating_abs()).to_string();
        (address_code(status.saturating_abs()), text)
    };
    let (code, answer) = match told.kind {
        Some(EventKind::Rejected) => (Code::Refused, rejection(peer, status)),
        Some(EventKind::Unreachable) if status < 0 => from_status(),
        Some(EventKind::Unreachable) if status == 1 => {
            (Code::Refused, format!("nobody listens at {peer} (status 1)"))
        }
        Some(EventKind::Unreachable) if status == 2 => {
            (Code::Refused, format!("the program at {peer} rejected it (status 2)"))
        }
        Some(EventKind::Unreachable) => (Code::TimedOut, format!("{peer} does not answer")),
        Some(EventKind::AddrError | EventKind::RouteError) if status != 0 => from_status(),
        Some(EventKind::ConnectError) if status < 0 => from_status(),
        Some(EventKind::Disconnected) => (Code::Reset, format!("{peer} has disconnected")),
        Some(EventKind::DeviceRemoval) => (Code::NoDevice, String::from("the device goes away")),
        kind => (Code::Errno(libc::EIO), format!("event {kind:?} with status {status}")),
    };
    let error = CmError::new(code, asked, answer);
    match event_cure(told.kind, status) {
        Some(cure) => error.cure(cure),
        None => error,
    }
}

/// What to do about an event that ends a connect.
fn event_cure(kind: Option<EventKind>, status: i32) -> Option<&'static str> {
    const NO_LISTENER: i32 = Rejection::NoListener as i32;
    const CONSUMER: i32 = Rejection::Consumer as i32;
    const TIMED_OUT: i32 = -libc::ETIMEDOUT;
    match (kind?, status) {
        (EventKind::Rejected, NO_LISTENER) | (EventKind::Unreachable, 1) => Some(NOBODY),
        (EventKind::Rejected, CONSUMER) | (EventKind::Unreachable, 2) => Some(REJECTED),
        (EventKind::Unreachable, 0.. | TIMED_OUT) => Some(SILENT),
        _ => None,
    }
}

/// The meaning of a reject code; iWARP has an errno instead.
fn rejection(peer: &str, status: i32) -> String {
    const NO_LISTENER: i32 = Rejection::NoListener as i32;
    const CONSUMER: i32 = Rejection::Consumer as i32;
    match status {
        NO_LISTENER => format!("nobody listens at {peer} (reject code {status})"),
        CONSUMER => format!("the program at {peer} rejected it (reject code {status})"),
        _ if status < 0 => format!("nobody listens at {peer}, or it rejected (status {status})"),
        _ => format!("the connection manager of {peer} rejected it (reject code {status})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Caps {
        let mut caps = Caps::named("rxe0");
        caps.rd_atomic_max = 16;
        caps
    }

    #[test]
    fn the_limits_of_parameters_hold() {
        let ok = |param: &ConnParam<'_>| conn_param("connect", param, 56, &caps()).is_ok();
        assert!(ok(&ConnParam::default()));
        assert!(ok(&ConnParam { private_data: &[1; 56], ..ConnParam::default() }));
        assert!(!ok(&ConnParam { private_data: &[1; 57], ..ConnParam::default() }));
        assert!(!ok(&ConnParam { private_data: &[1; 300], ..ConnParam::default() }));
        assert!(ok(&ConnParam { initiator_depth: 16, ..ConnParam::default() }));
        assert!(!ok(&ConnParam { initiator_depth: 17, ..ConnParam::default() }));
        assert!(!ok(&ConnParam { responder_resources: 254, ..ConnParam::default() }));
        assert!(!ok(&ConnParam { rnr_retry: 8, ..ConnParam::default() }));
        assert!(!ok(&ConnParam { retry_count: 8, ..ConnParam::default() }));
    }

    #[test]
    fn nobody_there_and_a_refusal_are_told_apart() {
        let say = |status| {
            let told = Told { kind: Some(EventKind::Rejected), status, depths: None };
            let error = failure("connect", "10.0.0.1:7", told);
            assert_eq!(error.code(), Code::Refused);
            error.to_string()
        };
        assert!(say(8).contains("nobody listens at 10.0.0.1:7"));
        assert!(say(28).contains("the program at 10.0.0.1:7 rejected"));
        assert!(say(10).contains("reject code 10"));
        assert!(say(8).contains(NOBODY) && say(28).contains(REJECTED));
    }

    #[test]
    fn silence_is_a_time_out() {
        for (kind, status) in [(EventKind::Unreachable, -110), (EventKind::AddrError, -110)] {
            let told = Told { kind: Some(kind), status, depths: None };
            assert_eq!(failure("connect", "peer", told).code(), Code::TimedOut);
        }
        for (status, cure) in [(-110, SILENT), (0, SILENT), (1, NOBODY), (2, REJECTED)] {
            let told = Told { kind: Some(EventKind::Unreachable), status, depths: None };
            let error = failure("connect", "peer", told).to_string();
            assert!(error.contains(cure), "{error}");
        }
        let told = Told { kind: Some(EventKind::AddrError), status: -113, depths: None };
        assert_eq!(failure("connect", "peer", told).code(), Code::AddrNotAvailable);
    }
}
