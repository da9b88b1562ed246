//! Connections by GID and number, as users of the device meet them: see [`super::rendezvous`].

use std::io::ErrorKind;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::PoisonError;
use std::time::Duration;

use doorbell_fabric::{CmError, QpFields, QpState};
use doorbell_seam::error::Code;

use super::device::SoftDevice;
use super::external;
use super::rendezvous::{Attempt, Pair, Parting, Rendezvous};
use crate::{QpControl, SoftQp};

impl SoftDevice {
    /// Allows that queue pairs of this device are connected by GID and number alone, without a
    /// connection manager: `modify_qp` to RTR with the fields of `ibv_modify_qp`. The peer is a
    /// queue pair of a device of the same name in a process of this user. The address is
    /// [`Ports::query_gid`](doorbell_seam::provider::Ports::query_gid).
    ///
    /// The program must then also wait for [`SoftDevice::rendezvous_fd`].
    ///
    /// # Errors
    /// `NotSupported` on a device with a carrier; `AddrInUse` if somebody else has the name under
    /// which peers look for this device; the system's limit on open files.
    pub fn connect_by_number(&self) -> Result<(), CmError> {
        let asked = "connect queue pairs by number";
        let inner = &self.0;
        // A thread that panicked has made it, or not.
        let _making = inner.making.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.rendezvous.get().is_some() {
            return Ok(());
        }
        if !inner.links.are_shared() {
            let answer = "a carrier carries the connections of this device";
            return Err(CmError::new(Code::NotSupported, asked, answer));
        }
        match Rendezvous::new(&inner.name, inner.soft.gid()) {
            Ok(made) => {
                // Nobody else has made one: this thread holds the lock.
                let _ = inner.rendezvous.set(made);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                let answer = "somebody else listens under the name of this device";
                Err(CmError::new(Code::AddrInUse, asked, answer)
                    .cure("end the process that has this GID in a name of /proc/net/unix"))
            }
            Err(error) => Err(CmError::from_io(asked, &error)),
        }
    }

    /// `modify_qp` that does not wait for a peer. False if it would have to: call it again with the
    /// same attempt, after [`Attempt::pause`]. A program that holds a lock around the queue pair
    /// releases it for the pause, and then looks again at the state.
    ///
    /// # Errors
    /// As for `modify_qp`.
    pub fn try_modify_qp(
        &self,
        qp: &mut SoftQp,
        from: QpState,
        fields: &QpFields,
        attempt: &mut Attempt,
    ) -> Result<bool, CmError> {
        external::modify(self, qp, from, fields, attempt)
    }

    /// From now on a connection to an address where nobody listens is tried again for that long
    /// before it is rejected. On a NIC resolving takes time, and many programs rely on it: they
    /// tell their peer where they will listen, and listen then. Only the first call counts.
    pub fn wait_for_listeners(&self, limit: Duration) {
        let _ = self.0.patience.set(limit);
    }

    /// The descriptor to wait on for [`SoftDevice::rendezvous_step`]; `None` before
    /// [`SoftDevice::connect_by_number`].
    pub fn rendezvous_fd(&self) -> Option<RawFd> {
        self.0.rendezvous.get().map(|rendezvous| rendezvous.watch.as_fd().as_raw_fd())
    }

    /// Reads what peers of connections by number have said. Returns the queue pairs whose peers
    /// have left. Sends that such a peer has not taken end with
    /// [`Status::RetryExceeded`](doorbell_seam::wc::Status::RetryExceeded), and so must later ones:
    /// call [`SoftQp::fail_lost`](crate::SoftQp::fail_lost) after a post.
    pub fn rendezvous_step(&self) -> Vec<QpControl> {
        self.0.rendezvous.get().map(Rendezvous::step).unwrap_or_default()
    }

    /// Takes a queue pair that is about to go from its connection by number, if it has one.
    pub fn part(&self, num: u32) -> Parting {
        let pair = self.0.rendezvous.get().and_then(|rendezvous| rendezvous.take_out(num));
        if let Some(Pair { link, died: true, .. }) = &pair {
            link.peer_gone();
        }
        Parting(pair)
    }
}
