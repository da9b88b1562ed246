//! Datagrams of a worker (`Port`): the client asks a multicast group until somebody answers; the
//! server is a member, and answers each sender. Datagrams may be lost, so a timer repeats them, 500
//! times at most.
//!
//! ```text
//! datagrams server --group 239.1.2.3 & sleep 1
//! datagrams client --group 239.1.2.3
//! ```

use std::net::IpAddr;
use std::process::ExitCode;

use clap::Parser;
use doorbell::UDP_QKEY;
use doorbell::prelude::*;
use doorbell::provider::AddressVector;
use doorbell::worker::{Datagram, DestinationId};
use doorbell_examples::cli::Side;
use doorbell_examples::place::{Failure, Place};

/// Nanoseconds between two questions.
const AGAIN: u64 = 20_000_000;

/// Questions after which the client gives up: those of ten seconds.
const QUESTIONS: u64 = 500;

/// A question to a group, and answers.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    side: Side,
    #[command(flatten)]
    place: Place,
    /// The group.
    #[arg(long, global = true, default_value = "239.1.2.3")]
    group: IpAddr,
}

impl Program for Cli {
    type Output = Result<(), Failure>;

    fn run<F: Fabric>(self, nic: F) -> Self::Output {
        let config = Config { datagrams: 64, ..Config::DEFAULT };
        let mut runtime = Runtime::new(&nic, &config);
        let stop = runtime.stopper();
        runtime.add(Asker { group: None, asked: 0, answers: 0, back: None, stop })?;
        // A port of its own: members of a group need not use the same one.
        let any = self.place.at(0);
        let mut port = Port::open(&nic, any, &runtime.intakes()[0])?;
        let to = port.join(self.group)?;
        let worker = &mut runtime.workers()[0];
        if self.side == Side::Client {
            let group = worker.outbox().resolve(&to.to, to.qp_num, to.qkey)?;
            worker.handler_mut().group = Some(group);
            worker.outbox().set_timer(0, 0);
        } else {
            println!("listening on {}", port.local_addr().unwrap_or(any));
        }
        runtime.stop_on_signals()?;
        runtime.run()?;
        match (self.side, runtime.workers()[0].handler()) {
            (Side::Client, Asker { asked, answers: 0, .. }) => {
                Err(format!("nobody answered {asked} questions to {}", self.group).into())
            }
            (_, Asker { answers, .. }) => {
                println!("{answers} answers");
                Ok(())
            }
        }
    }
}

/// Asks its group; without one, answers each question.
struct Asker {
    group: Option<DestinationId>,
    asked: u64,
    answers: u64,
    /// The last sender: its address and queue pair, and what they were resolved to.
    back: Option<((AddressVector, u32), DestinationId)>,
    stop: Stop,
}

impl Asker {
    /// The way back to a sender. Resolving costs more than sending, so the last one is kept; a
    /// program with many senders keeps a table.
    fn way_back<P: Provider>(
        &mut self,
        datagram: &Datagram<'_>,
        out: &mut Outbox<'_, P>,
    ) -> Option<DestinationId> {
        let sender = (out.sender_of(datagram).ok()?, datagram.source_qp());
        if let Some((last, to)) = self.back {
            if last == sender {
                return Some(to);
            }
            out.release_destination(to);
            self.back = None;
        }
        let to = out.resolve(&sender.0, sender.1, UDP_QKEY).ok()?;
        self.back = Some((sender, to));
        Some(to)
    }
}

impl<P: Provider> Handler<P> for Asker {
    fn on_timer(&mut self, _key: u64, out: &mut Outbox<'_, P>) {
        if self.asked == QUESTIONS {
            self.stop.stop();
        } else if let Some(group) = self.group {
            self.asked += 1;
            // A full queue counts as a lost datagram.
            let _ = out.send_to(group, b"who is there?", None);
            out.set_timer(out.now() + AGAIN, 0);
        }
    }

    fn on_datagram(&mut self, datagram: Datagram<'_>, out: &mut Outbox<'_, P>) {
        let text = String::from_utf8_lossy(datagram.bytes());
        if self.group.is_some() && text.starts_with("I am") {
            println!("answer: {text}");
            self.answers += 1;
            self.stop.stop();
        } else if self.group.is_none()
            && let Some(back) = self.way_back(&datagram, out)
        {
            let answer = format!("I am process {}", std::process::id());
            self.answers += u64::from(out.send_to(back, answer.as_bytes(), None).is_ok());
        }
    }

    fn on_message(&mut self, _: Message<'_>, _out: &mut Outbox<'_, P>) -> Verdict {
        Verdict::Done
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.place.clone().run(cli)
}
