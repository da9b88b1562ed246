//! Peers that connect when there are no descriptors left for them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use super::sys::{self, Socket};

/// A peer that has connected to a listener.
pub(super) struct Accepted {
    pub(super) socket: Socket,
    /// There are no descriptors left for it: its request is refused.
    pub(super) last: bool,
}

/// A descriptor that is closed when a peer connects and there are no others left: so a listener can
/// take the connection and refuse it. The next peer to connect puts it back.
pub(super) struct Spare(Mutex<Option<OwnedFd>>);

impl Spare {
    pub(super) fn new() -> Spare {
        Spare(Mutex::new(sys::spare()))
    }

    /// The next peer that has connected. If there are no descriptors left it takes the spare one.
    ///
    /// # Errors
    /// The spare one is gone too.
    pub(super) fn accept(&self, listener: &Socket) -> io::Result<Option<Accepted>> {
        // A thread that panicked left it as it is: there, or not.
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.is_none() {
            *spare = sys::spare();
        }
        let mut last = false;
        let socket = match listener.accept() {
            Err(error) if sys::is_out_of_files(&error) => {
                drop(spare.take());
                last = true;
                listener.accept()?
            }
            other => other?,
        };
        Ok(socket.map(|socket| Accepted { socket, last }))
    }
}
