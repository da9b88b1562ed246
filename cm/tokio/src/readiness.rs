//! A descriptor of another object in tokio's reactor.
#![expect(
    unsafe_code,
    reason = "AsyncFd::register_with_interest must be told that a descriptor stays open"
)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits in tokio until a worker's [`WakeFd`](doorbell::WakeFd), a [`Listener`](doorbell::Listener)
/// or a [`Dialer`](doorbell::Dialer) is readable. It has a duplicate of the descriptor, so the
/// object itself stays free to be stepped.
///
/// A wait tells of each event once. So step the object until there is nothing left before you wait
/// again. An event that comes between two waits ends the second at once.
#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Registers the descriptor with the runtime of the calling task.
    ///
    /// # Errors
    /// The system's limit on open files, or a descriptor that epoll does not take.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or if its I/O is not enabled.
    pub fn of(object: &impl AsFd) -> io::Result<Readiness> {
        let fd = object.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` keeps its descriptor open and always names the same one, and
        // nobody takes it out of the `AsyncFd`.
        Ok(Readiness(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?))
    }

    /// Waits until the descriptor is readable. It may end early, for no reason. Nothing is lost if
    /// the future is dropped.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn wait(&mut self) -> io::Result<()> {
        self.0.readable_mut().await?.clear_ready();
        Ok(())
    }

    /// As [`Readiness::wait`], for a future that is written by hand.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Forgotten before the caller looks: what comes after this is an edge of its own.
        ready!(self.0.poll_read_ready_mut(context))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}
