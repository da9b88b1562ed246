//! Doorbell from tokio (`doorbell-tokio`): the worker has a thread of its own, and tasks connect,
//! send, receive and ask as futures. The server answers with squares on its worker's thread; a task
//! of it greets its client. The client makes many requests at a time, one of them in vain.
//!
//! ```text
//! futures server & sleep 1
//! futures client
//! ```
//!
//! The server ends when its client has gone.

use std::process::ExitCode;
use std::time::Duration;

use doorbell::prelude::*;
use doorbell_examples::cli::{Failure, Side, Sides};
use doorbell_tokio::{AsyncWorker, Options, Service};
use tokio::task::JoinSet;

/// Requests of the client, with the numbers from 0 on. The server never answers 0.
const REQUESTS: u64 = 1000;

/// How long the client waits for the answer that never comes, and for the others.
const IN_VAIN: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(60);

/// The two sides of the example.
struct Example(Sides);

impl Program for Example {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let addr = self.0.place.addr();
        tokio.block_on(async {
            match self.0.side {
                Side::Server => serve(&nic, addr).await,
                Side::Client => ask(&nic, addr).await,
            }
        })
    }
}

async fn serve<F: Fabric>(nic: &F, addr: std::net::SocketAddr) -> Result<(), Failure> {
    let worker = AsyncWorker::start(nic, Squares, &Options::DEFAULT)?;
    println!("listening on {}", worker.listen(addr).await?);
    let client = worker.accept().await?;
    client.send(b"welcome").await?;
    while let Some(bytes) = client.recv().await? {
        println!("the client says: {}", String::from_utf8_lossy(&bytes));
    }
    println!("the client has finished");
    worker.close().await?;
    Ok(())
}

async fn ask<F: Fabric>(nic: &F, addr: std::net::SocketAddr) -> Result<(), Failure> {
    let worker = AsyncWorker::start(nic, (), &Options::DEFAULT)?;
    let server = worker.connect(addr, LONG).await?;
    let greeting = server.recv().await?.unwrap_or_default();
    println!("{}", String::from_utf8_lossy(&greeting));
    let mut requests = JoinSet::new();
    for number in 0..REQUESTS {
        let server = server.clone();
        let limit = if number == 0 { IN_VAIN } else { LONG };
        requests.spawn(async move {
            let answer = server.request(&number.to_le_bytes(), limit).await?;
            Ok::<bool, Failure>(answer == number.wrapping_mul(number).to_le_bytes())
        });
    }
    let (mut right, mut failed) = (0, Vec::new());
    while let Some(request) = requests.join_next().await {
        match request? {
            Ok(answer) => right += u64::from(answer),
            Err(error) => failed.push(error.to_string()),
        }
    }
    println!("{right} answers are right");
    println!("not answered: {}", failed.join(", "));
    if right < REQUESTS - 1 {
        return Err(format!("{} answers are missing or wrong", REQUESTS - 1 - right).into());
    }
    server.send(b"goodbye").await?;
    worker.close().await?;
    Ok(())
}

/// Runs on the server's worker.
struct Squares;

impl Service for Squares {
    fn request(&mut self, _: PeerId, room: &mut [u8], _len: usize) -> Option<usize> {
        let number = u64::from_le_bytes(*room.first_chunk()?);
        *room.first_chunk_mut()? = number.wrapping_mul(number).to_le_bytes();
        (number > 0).then_some(8)
    }
}

fn main() -> ExitCode {
    Sides::start(Example)
}
