//! iceoryx2: a ping-pong and a stream over publish-subscribe, one service in each direction,
//! between two processes. Both sides spin. A message is written into a loaned sample and checked
//! when it arrives, as Doorbell's benchmark does.

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory as Factory;

use crate::clock::{self, Clock};
use crate::error::Failure;
use crate::peer::Figure;

/// The version, for the record.
pub(crate) const VERSION: &str = "0.10.0";

/// The number of messages that may wait at a subscriber. The server of a stream reports its
/// position as often, so a publisher never finds a full buffer, where it would sleep.
const BUFFER: u64 = 512;
const ACK_EVERY: u64 = 64;

/// Messages between two reads of the clock, and the number that ends the run.
const LOOK_EVERY: u64 = 256;
const END: u64 = u64::MAX;

/// The most round trips that are timed one by one.
const TIMES_MAX: usize = 1 << 22;

/// How long the sides wait for each other at the start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which side this process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Side {
    Server,
    Client,
}

/// The role of this process.
#[derive(Debug, Args)]
pub(crate) struct SideArgs {
    #[arg(long, value_enum)]
    side: Side,
    #[arg(long)]
    name: String,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    seconds: f64,
    /// A stream instead of a ping-pong.
    #[arg(long)]
    rate: bool,
}

/// Runs one side; the client prints its figure.
pub(crate) fn run(args: &SideArgs) -> Result<(), Failure> {
    set_log_level(LogLevel::Error);
    let node = NodeBuilder::new().create::<ipc::Service>().map_err(Failure::at("a node"))?;
    let mut link = Link::open(&node, args)?;
    let time = Duration::from_secs_f64(args.seconds);
    match (args.side, args.rate) {
        (Side::Server, false) => return link.serve_echoes(),
        (Side::Server, true) => return link.serve_stream(),
        (Side::Client, _) => {}
    }
    let figure = if args.rate { link.stream(time)? } else { link.ping(time)? };
    let text = serde_json::to_string(&figure).map_err(Failure::at("write a figure"))?;
    println!("{text}");
    Ok(())
}

/// The two directions.
struct Link {
    /// The service of `out`.
    to: Factory<ipc::Service, [u8], ()>,
    out: Publisher<ipc::Service, [u8], ()>,
    inn: Subscriber<ipc::Service, [u8], ()>,
    payload: Vec<u8>,
}

impl Link {
    /// Opens both services and waits for the other side.
    fn open(node: &Node<ipc::Service>, args: &SideArgs) -> Result<Link, Failure> {
        let service = |way: &str| {
            let name = format!("{}/{way}", args.name);
            let name: ServiceName =
                name.as_str().try_into().map_err(|_| Failure::new("a service's name"))?;
            node.service_builder(&name)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .max_nodes(2)
                .history_size(0)
                .enable_safe_overflow(false)
                .subscriber_max_buffer_size(BUFFER as usize)
                .open_or_create()
                .map_err(Failure::at(format!("open {name}")))
        };
        let (there, back) = (service("there")?, service("back")?);
        let (to, from) = match args.side {
            Side::Client => (there, back),
            Side::Server => (back, there),
        };
        let size = args.size;
        let out = to.publisher_builder().initial_max_slice_len(size).create();
        let out = out.map_err(Failure::at("a publisher"))?;
        let inn = from.subscriber_builder().create().map_err(Failure::at("a subscriber"))?;
        let start = Instant::now();
        while to.dynamic_config().number_of_subscribers() == 0
            || from.dynamic_config().number_of_publishers() == 0
        {
            if start.elapsed() > PATIENCE {
                return Err(Failure::new("the other side of iceoryx2 did not come"));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Link { to, out, inn, payload: vec![0xa5; size] })
    }

    #[inline(always)]
    fn send(&mut self, number: u64) -> Result<(), Failure> {
        self.payload[..8].copy_from_slice(&number.to_le_bytes());
        let sample =
            self.out.loan_slice_uninit(self.payload.len()).map_err(Failure::at("a sample"))?;
        let sample = sample.write_from_slice(&self.payload);
        sample.send().map(drop).map_err(Failure::at("send"))
    }

    /// The number of the next message, which must have the length of ours.
    #[inline(always)]
    fn receive(&mut self) -> Result<Option<u64>, Failure> {
        let Some(sample) = self.inn.receive().map_err(Failure::at("receive"))? else {
            return Ok(None);
        };
        let bytes = sample.payload();
        let mut number = [0; 8];
        if bytes.len() != self.payload.len() {
            return Err(Failure::new("a message of another length"));
        }
        number.copy_from_slice(&bytes[..8]);
        Ok(Some(u64::from_le_bytes(number)))
    }

    fn serve_echoes(&mut self) -> Result<(), Failure> {
        loop {
            if let Some(number) = self.receive()? {
                self.send(number)?;
                if number == END {
                    return self.linger();
                }
            }
        }
    }

    fn serve_stream(&mut self) -> Result<(), Failure> {
        let mut expected = 0;
        loop {
            let Some(number) = self.receive()? else { continue };
            if number == END {
                self.send(expected)?;
                return self.linger();
            }
            if number != expected {
                return Err(Failure::new(format!("message {number} came instead of {expected}")));
            }
            expected += 1;
            if expected % ACK_EVERY == 0 {
                self.send(expected)?;
            }
        }
    }

    /// Waits until the client has gone, because the last message would be lost with its publisher.
    fn linger(&self) -> Result<(), Failure> {
        let start = Instant::now();
        while self.to.dynamic_config().number_of_subscribers() != 0 && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn round(&mut self, number: u64) -> Result<(), Failure> {
        self.send(number)?;
        loop {
            match self.receive()? {
                None => {}
                Some(back) if back == number => return Ok(()),
                Some(back) => {
                    return Err(Failure::new(format!("{back} came back instead of {number}")));
                }
            }
        }
    }

    /// For half of the time every round trip is timed, for the median; for the other half none is,
    /// for the mean.
    fn ping(&mut self, time: Duration) -> Result<Figure, Failure> {
        let mut number = 0;
        self.rounds(&mut number, time / 5)?;
        let clock = Clock::new();
        let (first, limit) = (clock::ticks(), clock.ticks_in(time / 2));
        let mut times = Vec::with_capacity(TIMES_MAX);
        while times.len() < TIMES_MAX {
            let sent = clock::ticks();
            self.round(number)?;
            let back = clock::ticks();
            times.push(back.saturating_sub(sent));
            number += 1;
            if back.saturating_sub(first) >= limit {
                break;
            }
        }
        times.sort_unstable();
        let p50_ns = times.get(times.len() / 2).map(|ticks| *ticks as f64 * clock.tick_ns / 2.0);
        let mean_ns = Some(self.rounds(&mut number, time / 2)?);
        self.round(END)?;
        Ok(Figure { p50_ns, mean_ns, ..Figure::default() })
    }

    /// Round trips for that long; returns nanoseconds of half a round trip.
    fn rounds(&mut self, number: &mut u64, time: Duration) -> Result<f64, Failure> {
        let (start, first) = (Instant::now(), *number);
        loop {
            for _ in 0..LOOK_EVERY {
                self.round(*number)?;
                *number += 1;
            }
            let passed = start.elapsed();
            if passed >= time {
                return Ok(passed.as_nanos() as f64 / (2 * (*number - first)) as f64);
            }
        }
    }

    fn stream(&mut self, time: Duration) -> Result<Figure, Failure> {
        let (mut sent, mut acked) = (0, 0);
        self.send_for(&mut sent, &mut acked, time / 5)?;
        let (start, first) = (Instant::now(), sent);
        self.send_for(&mut sent, &mut acked, time)?;
        while acked + ACK_EVERY <= sent {
            acked = self.receive()?.unwrap_or(acked);
        }
        self.send(END)?;
        let arrived = loop {
            if let Some(arrived) = self.receive()? {
                break arrived;
            }
        };
        let passed = start.elapsed();
        if arrived != sent {
            return Err(Failure::new(format!("{arrived} of {sent} messages arrived")));
        }
        let rate = (sent - first) as f64 / passed.as_secs_f64();
        Ok(Figure { messages_per_second: Some(rate), ..Figure::default() })
    }

    /// Sends for that long, as far as the other side's buffer has room.
    fn send_for(&mut self, sent: &mut u64, acked: &mut u64, time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            for _ in 0..LOOK_EVERY {
                // One place is for the last message.
                while *sent - *acked >= BUFFER - 1 {
                    *acked = self.receive()?.unwrap_or(*acked);
                }
                self.send(*sent)?;
                *sent += 1;
            }
            if start.elapsed() >= time {
                return Ok(());
            }
        }
    }
}
