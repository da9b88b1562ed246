//! What an event means that ended a call.

use doorbell_seam::error::Code;

use crate::error::{CmError, MORE_FILES, is_out_of_files};
use crate::fabric::{EventKind, Rejection};

/// Statuses of UNREACHABLE, for datagrams: nobody listens there, or the listener rejected.
const NO_SERVICE: i32 = 1;
const NO_SERVICE_GIVEN: i32 = 2;
/// ECONNREFUSED: iWARP has it instead of a reject code.
const IWARP_REFUSED: i32 = -111;
const NO_LISTENER: i32 = Rejection::NoListener as i32;

impl CmError {
    /// The error of a call that ended with that event (ID-10): what it means, and what to do.
    pub fn of_event(asked: impl Into<String>, kind: EventKind, status: i32) -> CmError {
        let code = Code::from_errno(status);
        match (kind, status) {
            (EventKind::Rejected, NO_LISTENER | IWARP_REFUSED)
            | (EventKind::Unreachable, NO_SERVICE) => {
                let answer = format!("nobody listens there (status {status})");
                CmError::new(Code::Refused, asked, answer).cure(
                    "start the listening side first (on soft: as the same user), and compare \
                     address and port",
                )
            }
            (EventKind::Rejected, _) | (EventKind::Unreachable, NO_SERVICE_GIVEN) => {
                let answer = format!("the peer rejected it (status {status})");
                CmError::new(Code::Refused, asked, answer)
                    .cure("find out at the listening program why it rejects")
            }
            (EventKind::Unreachable, _) => {
                let answer = format!("the peer did not answer (status {status})");
                CmError::new(Code::TimedOut, asked, answer)
                    .cure("see that the listening program runs and takes its requests")
            }
            (EventKind::ConnectError, _) if code == Code::Denied => CmError::new(
                code,
                asked,
                "a process of another user listens there, or the system refused a step",
            )
            .cure("on soft, run both sides as one user"),
            _ if is_out_of_files(code) => {
                CmError::new(code, asked, format!("no more files may be opened (status {status})"))
                    .cure(MORE_FILES)
            }
            _ => CmError::new(code, asked, format!("it failed ({kind:?}, status {status})")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_end_a_connect_name_the_cure() {
        for (kind, status, cure) in [
            (EventKind::Rejected, 8, "start the listening side first"),
            (EventKind::Unreachable, 1, "start the listening side first"),
            (EventKind::Rejected, 28, "at the listening program"),
            (EventKind::Unreachable, 2, "at the listening program"),
            (EventKind::Unreachable, -110, "see that the listening program runs"),
            (EventKind::ConnectError, -24, MORE_FILES),
            (EventKind::ConnectError, -23, MORE_FILES),
        ] {
            let error = CmError::of_event("connect", kind, status).to_string();
            assert!(error.contains(cure), "{error}");
        }
    }
}
