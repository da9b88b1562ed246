//! Talks to real RDMA programs as their other side.
//!
//! ```text
//! interop rdma-server --addr 192.168.77.1 --port 7471     with   rdma_client -s 192.168.77.1
//! rdma_server -s 192.168.77.1                             with   interop rdma-client --addr …
//! ```
//! Ends with 0 if everything was as it should be; otherwise with 1 and one line that says what
//! was not.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;

use clap::{Parser, Subcommand};
use doorbell_cm::{CmError, Device};
use doorbell_examples::interop::{LIMIT, Plan, RdmaClient, RdmaServer};

#[derive(Parser)]
#[command(about = "The other side of well-known RDMA programs", version)]
struct Arguments {
    #[command(subcommand)]
    part: Part,
}

/// Named after the program this is the same side as.
#[derive(Subcommand)]
enum Part {
    /// Serve one `rdma_client`.
    RdmaServer(Where),
    /// Be the client of one `rdma_server`.
    RdmaClient(Where),
}

#[derive(clap::Args)]
struct Where {
    /// Address to listen on or connect to.
    #[arg(long, default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Its port; a server on port 0 takes a free one and says which.
    #[arg(long, default_value_t = 7471)]
    port: u16,
    /// Device to use; else DOORBELL_DEVICE, else the RDMA device that owns the address, else
    /// soft0.
    #[arg(long)]
    device: Option<String>,
}

impl Where {
    fn open(&self) -> Result<(Device, Plan), CmError> {
        let device = Device::choose(self.device.as_deref(), Some(self.addr))?;
        Ok((device, Plan::at(SocketAddr::new(self.addr, self.port))))
    }
}

fn play(part: &Part) -> Result<(), CmError> {
    match part {
        Part::RdmaServer(place) => {
            let (device, plan) = place.open()?;
            device.run(RdmaServer { plan })
        }
        Part::RdmaClient(place) => {
            let (device, plan) = place.open()?;
            device.run(RdmaClient { plan })
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (done, ended) = mpsc::channel();
    // On a thread, so that not even a call that never returns outlasts the limit.
    thread::spawn(move || done.send(play(&arguments.part)));
    let error = match ended.recv_timeout(LIMIT) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(error)) => error.to_string(),
        Err(mpsc::RecvTimeoutError::Timeout) => format!("it did not end within {LIMIT:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => "it panicked".to_owned(),
    };
    eprintln!("interop: {error}");
    ExitCode::FAILURE
}
