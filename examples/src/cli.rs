//! The command line that the examples share: `NAME server` and `NAME client`, with a place.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use doorbell::Program;

use crate::place;
pub use crate::place::Failure;

/// An address with a port, and the device for it.
#[derive(Args, Clone, Debug)]
pub struct Place {
    #[command(flatten)]
    at: place::Place,
    /// Port; a server on port 0 takes a free one and prints it.
    #[arg(long, global = true, default_value_t = 7471)]
    port: u16,
}

impl Place {
    /// Address and port.
    pub fn addr(&self) -> SocketAddr {
        self.at.at(self.port)
    }

    /// Runs a program on the device: see [`place::Place::run`].
    pub fn run(&self, program: impl Program<Output = Result<(), Failure>>) -> ExitCode {
        self.at.run(program)
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
