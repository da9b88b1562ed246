//! Two-sided messages: a ping-pong, in which the server sends each message back in place, and a
//! stream, which the server counts. Long messages are sent from the client's own memory.

use doorbell::prelude::*;
use doorbell::remote::RequestOp;
use doorbell::wc::Status;
use doorbell::worker::{LendError, OwnPiece, OwnRegion, Piece, Request, SEND_BATCH};

use crate::error::Failure;
use crate::ours::session::{Link, Linked, Session};
use crate::ours::{Side, SideArgs, Task};
use crate::payload;
use crate::peer::Figure;
use crate::timing::{self, Stream, Trips};

/// Messages of this many bytes and more are written where they are sent from. Shorter ones are
/// copied into a block of the worker, which costs less than a completion for each.
const OWN_FROM: usize = 2048;

/// Bytes of the messages under way at a time, about, and the receives take twice as many. Where
/// only the device touches them, all of that stays in the second cache of one core, as the one
/// buffer of ucx_perftest does: with more, a stream of 64 KiB is 0.75 times as fast. Where the
/// sender writes every byte, its writing overlaps the copy better with more: 1.1 times.
fn window_bytes(args: &SideArgs) -> u32 {
    if args.untouched { 256 << 10 } else { 512 << 10 }
}

/// A stream of long messages rings once for about that many bytes. With a doorbell for each, the
/// line in which it rings goes back and forth for each, and 4 KiB take 1.1 times as long.
const DOORBELL_BYTES: usize = 32 << 10;

/// Immediate data: asks for the counts of the other side, or is the answer.
const COUNTS: u32 = 1;

/// Bytes of the client's own memory in a stream, if it writes them. The slots are written in turn,
/// and by the time of the next message the lines of a slot have left the other core's cache. With
/// half of that memory, a stream of 16 and 64 KiB is half as fast.
const OWN_BYTES: u32 = 1 << 20;

/// Slots of the client's own memory.
fn slots(args: &SideArgs) -> u32 {
    match args.task {
        Task::Stream if args.untouched => (window_bytes(args) / args.size).clamp(2, 32),
        Task::Stream => (OWN_BYTES / args.size).clamp(2, 256),
        _ => 2,
    }
}

fn config(args: &SideArgs) -> Config {
    let block_bytes = args.size.max(32).next_multiple_of(64);
    let most = match args.task {
        Task::Stream => 2048,
        _ => 256,
    };
    let window_bytes = window_bytes(args);
    // A ping-pong of 1 MiB with 4 receives takes 0.88 times as long between near cores, and 1.3
    // times between far ones. With fewer, those of 1 and 4 KiB take longer everywhere.
    let recv_blocks = (2 * window_bytes / block_bytes).clamp(8, most);
    let refill = (recv_blocks / 4).min(Config::DEFAULT.refill);
    let window = (recv_blocks - refill).min(512);
    Config {
        peers: 1,
        block_bytes,
        recv_blocks,
        send_blocks: (window_bytes / block_bytes).clamp(4, 256),
        refill,
        window,
        window_min: window,
        requests: slots(args) + 1,
        ..Config::DEFAULT
    }
}

/// Runs one side; the client returns its figure.
pub(crate) fn run(args: &SideArgs) -> Result<Option<Figure>, Failure> {
    let size = args.size as usize;
    let answers = args.side == Side::Server && args.task == Task::Ping;
    let mut session = Session::new(&config(args), Messages::new(size, !args.untouched, answers))?;
    if args.side == Side::Server {
        session.connect(args)?;
        session.serve()?;
        return Ok(None);
    }
    let mut client = Client::new(session, args)?;
    client.session.connect(args)?;
    let figure = match args.task {
        Task::Stream => timing::rate(&mut client, size, args.time())?,
        _ => timing::half_trips(&mut client, args.time())?,
    };
    client.settle()?;
    client.session.leave()?;
    Ok(Some(figure))
}

/// The handler of both sides.
struct Messages {
    link: Link,
    size: usize,
    /// Every byte of a message is read.
    touch: bool,
    /// Each message goes back in place.
    answers: bool,
    came: u64,
    wrong: u64,
    /// The other side's counts: messages that came, and wrong ones.
    told: Option<[u64; 2]>,
    /// The peer that has asked for the counts and not got them yet: a send may be refused.
    asked: Option<PeerId>,
}

impl Messages {
    fn new(size: usize, touch: bool, answers: bool) -> Messages {
        let link = Link::default();
        Messages { link, size, touch, answers, came: 0, wrong: 0, told: None, asked: None }
    }

    /// Asked for the counts, or told.
    #[cold]
    #[inline(never)]
    fn word(&mut self, message: &Message<'_>, out: &mut Outbox<'_, SoftDevice>) -> Verdict {
        if let ([came, wrong], []) = message.bytes().as_chunks::<8>() {
            self.told = Some([u64::from_le_bytes(*came), u64::from_le_bytes(*wrong)]);
            return Verdict::Done;
        }
        self.asked = Some(message.peer());
        self.tell(out);
        Verdict::Done
    }

    /// Tells the counts to the peer that has asked, if there is room.
    #[cold]
    #[inline(never)]
    fn tell(&mut self, out: &mut Outbox<'_, SoftDevice>) {
        let counts = [self.came.to_le_bytes(), self.wrong.to_le_bytes()].concat();
        // A peer that is gone gets none.
        self.asked.take_if(|peer| {
            !out.send_imm(*peer, &counts, COUNTS).is_err_and(|error| error.is_back_pressure())
        });
        out.flush();
    }
}

impl Handler<SoftDevice> for Messages {
    #[inline(always)]
    fn on_message(&mut self, message: Message<'_>, out: &mut Outbox<'_, SoftDevice>) -> Verdict {
        if message.imm().is_some() {
            return self.word(&message, out);
        }
        let (bytes, number) = (message.bytes(), payload::number(0, self.came));
        let right = match self.touch {
            true => payload::is_filled(bytes, number),
            false => payload::read_number(bytes) == number,
        };
        self.wrong += u64::from(!right || bytes.len() != self.size);
        self.came += 1;
        if self.answers { Verdict::Reply { len: self.size } } else { Verdict::Done }
    }

    fn on_idle(&mut self, out: &mut Outbox<'_, SoftDevice>) {
        if self.asked.is_some() {
            self.tell(out);
        }
    }

    fn on_send_done(
        &mut self,
        _peer: PeerId,
        _token: u64,
        result: Result<(), Status>,
        _out: &mut Outbox<'_, SoftDevice>,
    ) {
        self.link.end(result);
    }

    fn on_peer_up(&mut self, peer: PeerId, _out: &mut Outbox<'_, SoftDevice>) {
        self.link.peer = Some(peer);
    }

    fn on_peer_down(&mut self, _: PeerId, why: DownReason, _out: &mut Outbox<'_, SoftDevice>) {
        self.link.down = Some(why);
    }
}

impl Linked for Messages {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// The sending side.
struct Client {
    session: Session<Messages>,
    size: usize,
    touch: bool,
    /// Messages to a doorbell.
    batch: usize,
    /// The messages of a batch, one behind the other, if they are copied.
    payloads: Vec<u8>,
    /// The client's own memory, if they are not.
    own: Option<OwnRegion>,
    slots: u64,
    sent: u64,
    /// Messages that are copied, sent since the last turn.
    unpolled: usize,
    /// Bytes of other messages, sent since the last doorbell.
    waiting: usize,
}

/// A stream turns once for this many short messages.
const POLL_EVERY: usize = 64;

impl Client {
    fn new(mut session: Session<Messages>, args: &SideArgs) -> Result<Client, Failure> {
        let (size, slots) = (args.size as usize, slots(args));
        let batch = match args.task {
            Task::Stream => (args.batch as usize).clamp(1, SEND_BATCH),
            _ => 1,
        };
        let mut own = None;
        if size >= OWN_FROM {
            let memory = message_memory(&session.nic, size * slots as usize);
            let memory = memory.map_err(Failure::at("memory"))?;
            let adopted = session.worker.adopt_own(&session.nic, memory);
            own = Some(adopted.map_err(Failure::at("memory of our own"))?);
        }
        Ok(Client {
            session,
            size,
            touch: !args.untouched,
            batch,
            payloads: vec![0; size * batch],
            own,
            slots: slots.into(),
            sent: 0,
            unpolled: 0,
            waiting: 0,
        })
    }

    fn piece(&self, own: OwnRegion, sequence: u64) -> OwnPiece {
        own.piece((sequence % self.slots) as usize * self.size, self.size as u32)
    }

    /// Writes a message into the client's own memory, once the one before it there is gone.
    fn write_own(&mut self, own: OwnRegion, sequence: u64) -> Result<(), Failure> {
        let (piece, touch) = (self.piece(own, sequence), self.touch);
        loop {
            match self.session.worker.outbox().bytes_mut(piece) {
                Ok(bytes) => {
                    write(bytes, payload::number(0, sequence), touch);
                    return Ok(());
                }
                Err(LendError::InFlight) => self.session.turn()?,
                Err(error) => return Err(Failure::new(error.to_string())),
            }
        }
    }

    /// Sends the message that was written there.
    fn send_own(&mut self, own: OwnRegion, sequence: u64) -> Result<(), Failure> {
        let (peer, piece) = (self.session.peer()?, Piece::from(self.piece(own, sequence)));
        self.session.when_room(|_, out| {
            let op = RequestOp::SEND;
            let request = Request { op, pieces: &[piece], fence: false, token: sequence };
            out.request(peer, &request)
        })
    }

    /// Writes a batch of messages that are copied.
    fn write_batch(&mut self, first: u64) {
        for (bytes, sequence) in self.payloads.chunks_exact_mut(self.size).zip(first..) {
            write(bytes, payload::number(0, sequence), self.touch);
        }
    }

    /// Sends a batch of them with one doorbell.
    fn send_batch(&mut self) -> Result<(), Failure> {
        let peer = self.session.peer()?;
        if self.batch == 1 {
            let payload = &self.payloads[..];
            return self.session.when_room(|_, out| out.send_now(peer, payload));
        }
        let mut list = [&[][..]; SEND_BATCH];
        for (part, bytes) in list.iter_mut().zip(self.payloads.chunks_exact(self.size)) {
            *part = bytes;
        }
        let mut rest = &list[..self.batch];
        self.session.when_room(|_, out| {
            let sent = out.send_list(peer, rest);
            if let Err(error) = &sent {
                rest = &rest[error.accepted..];
            }
            sent.map_err(|error| error.cause)
        })?;
        self.session.worker.outbox().flush();
        Ok(())
    }
}

/// Writes a message, or its first word.
///
/// It is written in place. Through a buffer of 4 KiB and memcpy, which writes whole lines, a stream
/// of 4 and 64 KiB was 0.57 and 0.8 times as fast between near cores, and 1.1 and 1.55 times
/// between far ones.
#[inline(always)]
fn write(bytes: &mut [u8], number: u64, touch: bool) {
    let written = if touch { bytes.len() } else { bytes.len().min(8) };
    payload::fill(&mut bytes[..written], number);
}

impl Trips for Client {
    #[inline(always)]
    fn prepare(&mut self, number: u64) -> Result<(), Failure> {
        match self.own {
            Some(own) => self.write_own(own, number)?,
            None => self.write_batch(number),
        }
        self.sent = number + 1;
        Ok(())
    }

    #[inline(always)]
    fn trip(&mut self, number: u64) -> Result<(), Failure> {
        match self.own {
            Some(own) => {
                self.send_own(own, number)?;
                self.session.worker.outbox().flush();
            }
            None => self.send_batch()?,
        }
        while self.session.worker.handler().came == number {
            self.session.turn()?;
        }
        Ok(())
    }
}

impl Stream for Client {
    #[inline(always)]
    fn send(&mut self) -> Result<u64, Failure> {
        let first = self.sent;
        match self.own {
            Some(own) => {
                for sequence in first..first + self.batch as u64 {
                    self.write_own(own, sequence)?;
                    self.send_own(own, sequence)?;
                    self.waiting += self.size;
                    if self.waiting >= DOORBELL_BYTES {
                        self.waiting = 0;
                        self.session.worker.outbox().flush();
                        self.session.turn()?;
                    }
                }
            }
            None => {
                self.write_batch(first);
                self.send_batch()?;
                self.unpolled += self.batch;
            }
        }
        if self.unpolled >= POLL_EVERY {
            self.unpolled = 0;
            self.session.turn()?;
        }
        self.sent += self.batch as u64;
        Ok(self.batch as u64)
    }

    /// Also called at the end of a ping-pong.
    fn settle(&mut self) -> Result<(), Failure> {
        let peer = self.session.peer()?;
        self.session.worker.handler_mut().told = None;
        self.session.when_room(|_, out| out.send_imm(peer, &[], COUNTS))?;
        self.session.worker.outbox().flush();
        let [came, wrong] = loop {
            self.session.turn()?;
            if let Some(told) = self.session.worker.handler().told {
                break told;
            }
        };
        let wrong = wrong + self.session.worker.handler().wrong;
        if came != self.sent || wrong > 0 {
            return Err(Failure::new(format!(
                "{came} of {} messages of {} bytes arrived, {wrong} of them wrong",
                self.sent, self.size
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_has_a_valid_configuration() {
        let kinds = [Task::Ping, Task::Stream].map(|task| [(task, false), (task, true)]);
        for (task, untouched) in kinds.into_iter().flatten() {
            for size in [8, 64, 208, 1024, 4096, 65_536, 1 << 20] {
                let args = SideArgs {
                    side: Side::Client,
                    port: 0,
                    task,
                    size,
                    seconds: 0.0,
                    batch: 16,
                    untouched,
                };
                assert_eq!(config(&args).check(), Ok(()), "{task:?} {size} {untouched}");
                assert!(slots(&args) >= 2);
            }
        }
    }

    #[test]
    fn an_untouched_message_has_its_number_and_nothing_else() {
        let mut bytes = [7; 24];
        write(&mut bytes, 5, false);
        assert_eq!(payload::read_number(&bytes), 5);
        assert!(bytes[8..].iter().all(|byte| *byte == 7));
        write(&mut bytes, 5, true);
        assert!(payload::is_filled(&bytes, 5));
    }
}
