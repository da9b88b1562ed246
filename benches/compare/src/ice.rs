//! iceoryx2: a ping-pong and a stream over publish-subscribe, one service in each direction,
//! between two processes. Both sides spin. A message is written into a loaned sample, and read as a
//! whole when it arrives, as on Doorbell's side.
#![expect(unsafe_code, reason = "writes a message where it is sent from")]

use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::*;
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::service::port_factory::publish_subscribe::PortFactory as Factory;

use crate::error::Failure;
use crate::payload;
use crate::timing::{self, Stream, Trips};

/// The version, for the record.
pub(crate) const VERSION: &str = "0.10.0";

/// The most messages and bytes that may wait at a subscriber. The server of a stream reports its
/// position four times as often, so a publisher never finds a full buffer, where it would sleep.
const BUFFER_MAX: u64 = 512;
const BUFFER_MIN: u64 = 8;
const BUFFER_BYTES: u64 = 1 << 20;

/// The number that ends the run.
const END: u64 = 1 << 40;

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
    let figure = match args.rate {
        true => timing::rate(&mut link, args.size, time)?,
        false => timing::half_trips(&mut link, time)?,
    };
    link.send(END)?;
    figure.print()
}

/// A sample that was written and not yet sent.
type Written = SampleMut<ipc::Service, [u8], ()>;

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// The message that had to come next.
    Next,
    /// A request to report: one byte.
    Ask,
    /// The last message.
    End,
}

impl Came {
    /// Reads every byte.
    ///
    /// # Errors
    /// It is none of these.
    #[inline(always)]
    fn read(bytes: &[u8], size: usize, expected: u64) -> Result<Came, Failure> {
        if bytes.len() == size && payload::is_filled(bytes, payload::number(0, expected)) {
            return Ok(Came::Next);
        }
        Came::other(bytes, expected)
    }

    #[cold]
    #[inline(never)]
    fn other(bytes: &[u8], expected: u64) -> Result<Came, Failure> {
        match bytes.len() {
            1 => Ok(Came::Ask),
            _ if payload::is_filled(bytes, payload::number(0, END)) => Ok(Came::End),
            _ => Err(Failure::new(format!("message {expected} came wrong"))),
        }
    }
}

/// The two directions.
struct Link {
    /// The service of `out`.
    to: Factory<ipc::Service, [u8], ()>,
    out: Publisher<ipc::Service, [u8], ()>,
    inn: Subscriber<ipc::Service, [u8], ()>,
    /// Bytes of a message.
    size: usize,
    written: Option<Written>,
    /// Messages that may wait at a subscriber.
    buffer: u64,
    /// Messages sent, and received, by the last report of the other side.
    sent: u64,
    acked: u64,
}

impl Link {
    /// Opens both services and waits for the other side.
    fn open(node: &Node<ipc::Service>, args: &SideArgs) -> Result<Link, Failure> {
        let size = args.size;
        let buffer = (BUFFER_BYTES / size.max(1) as u64).clamp(BUFFER_MIN, BUFFER_MAX);
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
                .subscriber_max_buffer_size(buffer as usize)
                .open_or_create()
                .map_err(Failure::at(format!("open {name}")))
        };
        let (there, back) = (service("there")?, service("back")?);
        let (to, from) = match args.side {
            Side::Client => (there, back),
            Side::Server => (back, there),
        };
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
        Ok(Link { to, out, inn, size, written: None, buffer, sent: 0, acked: 0 })
    }

    /// Writes every byte of message `number` into a sample, once.
    #[inline(always)]
    fn write(&mut self, number: u64) -> Result<Written, Failure> {
        let sample = self.out.loan_slice_uninit(self.size).map_err(Failure::at("a sample"))?;
        // SAFETY: the bytes are those of a mapped file, so each of them has a value.
        let mut sample = unsafe { sample.assume_init() };
        payload::fill(sample.payload_mut(), payload::number(0, number));
        Ok(sample)
    }

    #[inline(always)]
    fn send(&mut self, number: u64) -> Result<(), Failure> {
        self.write(number)?.send().map(drop).map_err(Failure::at("send"))
    }

    /// Sends a copy of each message back.
    fn serve_echoes(&mut self) -> Result<(), Failure> {
        let mut expected = 0;
        loop {
            let Some(sample) = self.inn.receive().map_err(Failure::at("receive"))? else {
                continue;
            };
            let bytes = sample.payload();
            match Came::read(bytes, self.size, expected)? {
                Came::Next => expected += 1,
                Came::Ask | Came::End => break,
            }
            let back = self.out.loan_slice_uninit(bytes.len()).map_err(Failure::at("a sample"))?;
            back.write_from_slice(bytes).send().map_err(Failure::at("send"))?;
        }
        self.linger()
    }

    /// Counts messages, and reports how many came.
    fn serve_stream(&mut self) -> Result<(), Failure> {
        let (mut came, report_every) = (0, self.buffer / 4);
        loop {
            let Some(sample) = self.inn.receive().map_err(Failure::at("receive"))? else {
                continue;
            };
            let is_due = match Came::read(sample.payload(), self.size, came)? {
                Came::Next => {
                    came += 1;
                    came % report_every == 0
                }
                Came::Ask => true,
                Came::End => break,
            };
            drop(sample);
            if is_due {
                self.report(came)?;
            }
        }
        self.linger()
    }

    fn report(&mut self, came: u64) -> Result<(), Failure> {
        let sample = self.out.loan_slice_uninit(8).map_err(Failure::at("a sample"))?;
        let sample = sample.write_from_slice(&came.to_ne_bytes());
        sample.send().map(drop).map_err(Failure::at("send"))
    }

    /// The latest report, if there is one.
    #[inline(always)]
    fn hear(&mut self) -> Result<(), Failure> {
        while let Some(sample) = self.inn.receive().map_err(Failure::at("receive"))? {
            let bytes = sample.payload().first_chunk();
            self.acked = bytes.map_or(self.acked, |bytes| u64::from_ne_bytes(*bytes));
        }
        Ok(())
    }

    /// Waits until the client has gone, because the last message would be lost with its publisher.
    fn linger(&self) -> Result<(), Failure> {
        let start = Instant::now();
        while self.to.dynamic_config().number_of_subscribers() != 0 && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

impl Trips for Link {
    #[inline(always)]
    fn prepare(&mut self, number: u64) -> Result<(), Failure> {
        self.written = Some(self.write(number)?);
        Ok(())
    }

    #[inline(always)]
    fn trip(&mut self, number: u64) -> Result<(), Failure> {
        if let Some(written) = self.written.take() {
            written.send().map_err(Failure::at("send"))?;
        }
        loop {
            if let Some(sample) = self.inn.receive().map_err(Failure::at("receive"))? {
                return Came::read(sample.payload(), self.size, number).map(drop);
            }
        }
    }
}

impl Stream for Link {
    #[inline(always)]
    fn send(&mut self) -> Result<u64, Failure> {
        // Two places are for a request to report and for the last message.
        while self.sent - self.acked >= self.buffer - 2 {
            self.hear()?;
        }
        Link::send(self, self.sent)?;
        self.sent += 1;
        Ok(1)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        let ask = self.out.loan_slice_uninit(1).map_err(Failure::at("a sample"))?;
        ask.write_from_slice(&[0]).send().map_err(Failure::at("send"))?;
        while self.acked < self.sent {
            self.hear()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_message_is_told_from_the_next_and_the_last() {
        let mut bytes = [0; 40];
        payload::fill(&mut bytes, payload::number(0, 7));
        assert_eq!(Came::read(&bytes, 40, 7).unwrap(), Came::Next);
        assert!(Came::read(&bytes, 40, 8).is_err() && Came::read(&bytes, 41, 7).is_err());
        payload::fill(&mut bytes, payload::number(0, END));
        assert_eq!(Came::read(&bytes, 40, 7).unwrap(), Came::End);
        bytes[39] ^= 1;
        assert!(Came::read(&bytes, 40, 7).is_err());
        assert_eq!(Came::read(&[0], 40, 7).unwrap(), Came::Ask);
    }
}
