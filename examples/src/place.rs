//! Where a program runs: an address, and the device for it. `kv` and `exchange` have this file too.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use doorbell::{Device, Program};

/// The error of a program, of any kind, shown as its text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An address, and the device for it.
#[derive(Args, Clone, Debug)]
// A group has the name of its type, and programs have a `Place` around this one.
#[group(skip)]
pub struct Place {
    /// Address to listen on, or to connect to.
    #[arg(long, global = true, default_value = "127.0.0.1")]
    pub addr: IpAddr,
    /// Device, such as soft0 or mlx5_0; by default DOORBELL_DEVICE, else the one that owns the
    /// address.
    #[arg(long, global = true)]
    pub device: Option<String>,
}

impl Place {
    /// The address, with a port.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr, port)
    }

    /// Runs a program on the device. Prints its error, and returns the exit code: 0, or 1 after an
    /// error.
    pub fn run(&self, program: impl Program<Output = Result<(), Failure>>) -> ExitCode {
        let device = Device::choose(self.device.as_deref(), Some(self.addr));
        match device.map_err(Failure::from).and_then(|device| device.run(program)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let path = std::env::args_os().next().unwrap_or_default();
                let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy();
                eprintln!("{name}: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
