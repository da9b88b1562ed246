//! Doorbell in programs that run on tokio.
//!
//! [`Readiness`] waits in a task for a worker, a listener or a dialer. The example `async_fd` of
//! the repository is a program around it.

mod readiness;

pub use readiness::Readiness;
