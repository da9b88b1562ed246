//! A client as a program runs it: workers, each connected with each worker of the server.

use std::net::SocketAddr;
use std::time::Duration;

use doorbell::error::Code;
use doorbell::prelude::*;
use doorbell::{Backoff, clock_ns};

use crate::caller::{Caller, ClientHandler};
use crate::client::{Client, Settings};
use crate::host::config;

/// How long a connection may take.
const DIAL: Duration = Duration::from_secs(20);

/// Adds a client's worker to a runtime of [`runtime`].
///
/// # Errors
/// `NoMemory`; the device's refusal.
pub fn add<F: Fabric, C: Caller>(
    runtime: &mut Runtime<F, ClientHandler<C>>,
    nic: &F,
    (settings, servers): (Settings, u32),
    caller: C,
) -> Result<(), CmError> {
    let client = Client::new(settings, servers, Box::new(clock_ns));
    let bytes = client.memory_bytes();
    let worker = runtime.add(ClientHandler { client, caller })?;
    let memory = Mapping::plain(bytes).map_err(|error| {
        let asked = format!("{bytes} bytes for READs");
        CmError::new(Code::from_errno(error.errno()), asked, error.to_string())
    })?;
    let region = worker.adopt_own(nic, memory)?;
    worker.handler_mut().client.read_into(region);
    Ok(())
}

/// A runtime for clients of a server with that many workers.
pub fn runtime<F: Fabric, C: Caller>(
    nic: &F,
    (settings, servers): (Settings, u32),
    workers: u32,
) -> Runtime<F, ClientHandler<C>> {
    let peers = servers.saturating_mul(workers).max(1);
    Runtime::new(nic, &config(settings.slot_max, peers, settings.depth))
}

/// Connects every worker of a runtime with every worker of the server.
///
/// # Errors
/// As for [`Dialer::dial_with`].
pub fn dial<F: Fabric, C: Caller>(
    runtime: &mut Runtime<F, ClientHandler<C>>,
    addr: SocketAddr,
    servers: u32,
) -> Result<(), CmError> {
    let intakes = runtime.intakes().to_vec();
    let dialer = runtime.dialer()?;
    for intake in &intakes {
        for server in 0..servers {
            dialer.dial_with(addr, &[server as u8], intake, DIAL)?;
        }
    }
    Ok(())
}

/// As [`dial`], and connects again whenever a connection ends.
///
/// # Errors
/// The system's limit on open files.
pub fn keep<F: Fabric, C: Caller>(
    runtime: &mut Runtime<F, ClientHandler<C>>,
    addr: SocketAddr,
    servers: u32,
    backoff: Backoff,
) -> Result<(), CmError> {
    let intakes = runtime.intakes().to_vec();
    let dialer = runtime.dialer()?;
    for intake in &intakes {
        for server in 0..servers {
            dialer.keep_with(addr, &[server as u8], intake, backoff)?;
        }
    }
    Ok(())
}
