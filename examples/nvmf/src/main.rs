//! `nvmf`: an NVMe-oF target, and a gateway from NBD to one.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use doorbell::{Device, Fabric, Program};
use doorbell_nvmf::initiator::{self, Host};
use doorbell_nvmf::nbd::{self, Export, Listen};
use doorbell_nvmf::store::{File, Memory, Store};
use doorbell_nvmf::subsystem::Subsystem;
use doorbell_nvmf::target::{SPINS, Target};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An NVMe-oF target on RDMA, and a gateway from NBD to one.
#[derive(Parser, Debug)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

/// Where, and on which device.
#[derive(Args, Clone, Debug)]
struct Place {
    /// Device, such as soft0 or rxe0; by default DOORBELL_DEVICE, else the one that owns the
    /// address.
    #[arg(long, global = true)]
    device: Option<String>,
    /// Address of the target.
    #[arg(long, global = true, default_value = "127.0.0.1")]
    addr: IpAddr,
    /// Port of the target; a target on port 0 takes a free one and prints it.
    #[arg(long, global = true, default_value_t = 4420)]
    port: u16,
    /// Name of the subsystem.
    #[arg(long, global = true, default_value = "nqn.2026-11.rs.doorbell:disk")]
    nqn: String,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// Serves namespaces until SIGINT or SIGTERM.
    Target(Serve),
    /// Serves one namespace of a target to programs that speak NBD.
    Gateway(Pass),
    /// Lists the subsystems of a target.
    Discover,
}

#[derive(Args, Clone, Debug)]
struct Serve {
    /// A namespace in memory, such as 256M; may be given several times. By default one of 256M.
    #[arg(long, value_parser = bytes)]
    memory: Vec<u64>,
    /// A namespace in a file or a block device; may be given several times.
    #[arg(long)]
    file: Vec<PathBuf>,
    /// Size of files that do not exist yet, such as 1G.
    #[arg(long, value_parser = bytes)]
    size: Option<u64>,
    /// Poll loops; by default one for each core, 4 at most, and no more than the device has
    /// completion vectors.
    #[arg(long)]
    workers: Option<usize>,
    /// Empty turns before a busy poll loop sleeps, at most.
    #[arg(long, default_value_t = SPINS)]
    spins: u32,
    /// I/O queues of a controller at most.
    #[arg(long, default_value_t = 64)]
    queues: u16,
}

#[derive(Args, Clone, Debug)]
struct Pass {
    /// Address to serve NBD at.
    #[arg(long, default_value = "127.0.0.1:10809")]
    listen: SocketAddr,
    /// Socket file to serve NBD at instead.
    #[arg(long)]
    unix: Option<PathBuf>,
    /// The namespace.
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// Seconds for which a lost target is tried again before requests fail.
    #[arg(long, default_value_t = 30)]
    patience: u64,
}

/// Reads a size: a number of bytes, or of K, M, G or T.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size such as 4096, 64K, 256M or 2G");
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match text.strip_prefix(digits).unwrap_or_default() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(wrong)?;
    if bytes % 512 != 0 {
        return Err(format!("`{text}` is no multiple of 512 bytes"));
    }
    Ok(bytes)
}

impl Program for Cli {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, fabric: F) -> Self::Output {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // The second signal ends the process at once.
            signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
            signal_hook::flag::register(signal, stop.clone())?;
        }
        let addr = SocketAddr::new(self.place.addr, self.place.port);
        match self.command {
            Command::Target(serve) => serve.run(&fabric, addr, &self.place.nqn, &stop),
            Command::Gateway(pass) => pass.run(&fabric, addr, &self.place.nqn, &stop),
            Command::Discover => {
                for entry in initiator::discover(&fabric, addr, &Host::default())? {
                    println!("{} {}", entry.addr, entry.subsystem);
                }
                Ok(())
            }
        }
    }
}

impl Serve {
    fn stores(&self) -> Result<Vec<Arc<dyn Store>>, Failure> {
        let mut stores: Vec<Arc<dyn Store>> = Vec::new();
        for bytes in &self.memory {
            stores.push(Arc::new(Memory::new(*bytes)));
        }
        for path in &self.file {
            let file = File::open(path, self.size).map_err(|error| {
                format!("cannot open {}: {error}; --size makes a file", path.display())
            })?;
            if !file.is_direct() {
                eprintln!(
                    "{}: no direct transfers here, so the page cache is used",
                    path.display()
                );
            }
            stores.push(Arc::new(file));
        }
        if stores.is_empty() {
            stores.push(Arc::new(Memory::new(256 << 20)));
        }
        Ok(stores)
    }

    fn run<F: Fabric>(
        self,
        fabric: &F,
        addr: SocketAddr,
        nqn: &str,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let cores = thread::available_parallelism().map_or(1, usize::from).min(4);
        let cores = cores.min(fabric.caps().comp_vectors.max(1) as usize);
        let subsystem = Arc::new(Subsystem::new(nqn, self.stores()?, self.queues.max(1)));
        let workers = self.workers.unwrap_or(cores);
        let target = Target::start(fabric, addr, subsystem.clone(), workers, self.spins)?;
        println!("listening on {}, device {}, {nqn}", target.addr(), fabric.caps().device);
        // Relaxed: the flag guards no other memory.
        while !stop.load(Ordering::Relaxed) && !target.is_stopped() {
            thread::sleep(Duration::from_millis(50));
        }
        target.stop()?;
        println!("{}", subsystem.counters);
        Ok(())
    }
}

impl Pass {
    fn run<F: Fabric>(
        self,
        fabric: &F,
        target: SocketAddr,
        nqn: &str,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let patience = Duration::from_secs(self.patience);
        let export = Export { target, nqn: nqn.to_owned(), namespace: self.namespace, patience };
        let listen = match self.unix {
            Some(path) => Listen::unix(&path)?,
            None => Listen::tcp(self.listen)?,
        };
        nbd::probe(fabric, &export, stop)?;
        println!("NBD on {listen}, for {nqn} at {target}");
        nbd::serve(fabric, listen, &export, stop)?;
        Ok(())
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let device = Device::choose(cli.place.device.as_deref(), Some(cli.place.addr));
    match device.map_err(Failure::from).and_then(|device| device.run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmf: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("256M"), Ok(256 << 20));
        for wrong in ["", "M", "0", "100", "3X", "99999999999T", "1.5G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
