//! A gateway: clients speak NBD, and their requests go to a namespace of a target.
//!
//! Each client has a thread, and a controller with one I/O queue.

mod connection;
mod disk;
mod handshake;
mod socket;
pub mod wire;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use doorbell::Fabric;

pub use self::disk::Export;
pub use self::socket::Listen;

use self::disk::Disk;
use crate::initiator::{Error, Host};

/// A failure of a client's connection or of the target.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long the gateway waits for a client before it looks whether it has to stop.
const WAIT: Duration = Duration::from_millis(100);

/// Looks once whether the target has the namespace.
///
/// # Errors
/// The target cannot be reached, or lacks it.
pub fn probe<F: Fabric>(fabric: &F, export: &Export, stop: &AtomicBool) -> Result<(), Error> {
    Disk::open(fabric, export, Host::default(), stop, Duration::ZERO).map(drop)
}

/// Serves clients until `stop`. A client whose connection fails ends alone, with a line on standard
/// error.
///
/// # Errors
/// The listening socket fails.
pub fn serve<F: Fabric>(
    fabric: &F,
    listen: Listen,
    export: &Export,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let clients = AtomicU64::new(0);
    // Each connection is a host of its own, so that it can tell its former controllers apart.
    let host = || {
        let number = clients.fetch_add(1, Ordering::Relaxed);
        let mut host = Host::default();
        host.nqn.push_str(&format!(":{number}"));
        for (to, from) in host.id.iter_mut().zip(number.to_le_bytes()) {
            *to ^= from;
        }
        host
    };
    thread::scope(|scope| {
        // Relaxed: the flag guards no other memory.
        while !stop.load(Ordering::Relaxed) {
            let Some(stream) = listen.accept(WAIT)? else { continue };
            let host = host();
            thread::Builder::new().name("nvmf-nbd".to_owned()).spawn_scoped(scope, move || {
                let opened = Disk::open(fabric, export, host, stop, export.patience);
                let served = opened
                    .map_err(Failure::from)
                    .and_then(|disk| connection::serve(stream, disk, stop));
                if let Err(error) = served {
                    eprintln!("nvmf: a client's connection has ended: {error}");
                }
            })?;
        }
        Ok(())
    })
}
