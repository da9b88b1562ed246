//! The command line that the examples share: `NAME server` and `NAME client`, with a place.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::{Device, Program};

/// The error of a program, of any kind, shown as its text.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An address, and the device for it.
#[derive(Args, Clone, Debug)]
pub struct Place {
    /// Address to listen on, or to connect to.
    #[arg(long, global = true, default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Port; a server on port 0 takes a free one and prints it.
    #[arg(long, global = true, default_value_t = 7471)]
    port: u16,
    /// Device, such as soft0 or rxe0; by default DOORBELL_DEVICE, else the one that owns the
    /// address.
    #[arg(long, global = true)]
    device: Option<String>,
}

impl Place {
    /// Address and port.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.addr, self.port)
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

/// The command line of a program with two sides and no options of its own.
#[derive(Parser, Debug)]
pub struct Sides {
    /// What it shows.
    #[command(subcommand)]
    pub side: Side,
    /// Where.
    #[command(flatten)]
    pub place: Place,
}

/// The two sides.
#[derive(Subcommand, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Serve until SIGINT or SIGTERM.
    Server,
    /// Do the example's work with a server, and end.
    Client,
}

impl Sides {
    /// Reads the command line and runs the program that `make` makes of it. Returns the exit code.
    pub fn start<P>(make: impl FnOnce(Sides) -> P) -> ExitCode
    where
        P: Program<Output = Result<(), Failure>>,
    {
        let sides = Sides::parse();
        let place = sides.place.clone();
        place.run(make(sides))
    }
}
