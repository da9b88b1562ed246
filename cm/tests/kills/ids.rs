//! Ids: one of two peers is killed, either the one that connected or the one that listens. Both
//! send, write, read and count in each other's memory. The survivor polls, or sleeps on its
//! completion channel while another of its threads waits for events.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use doorbell_alloc::{Ask, MapRequest};
use doorbell_cm::{
    Buffer, Channel, CmError, Completion, CompletionQueue, ConnParam, Endpoint, EventKind, Exposed,
    Fabric, Hints, Id, IdKey, QpInit,
};
use doorbell_seam::error::Code;
use doorbell_seam::provider::Access;
use doorbell_seam::wc::Status;
use doorbell_seam::wr::{Remote, SendFlags, SendOp};
use doorbell_soft::{SoftChannel, SoftDevice};

use crate::belongings::{assert_nothing_left, belongings};
use crate::kill::{
    Doom, Ends, FOR_EVER, Heard, Killer, Round, Stage, address_in, peer, say_address,
};
use crate::{Dice, LIFE, LONGEST, LOOK, SOON, alone, anywhere, endpoint, kills, number_of, text};

/// The most bytes of a message.
const MESSAGE: usize = LONGEST;
/// Number of receives that are kept posted, and of sends.
const RECEIVES: usize = 16;
const SENDS: usize = 8;
/// Offset that the peer writes to: after the word that it counts in.
const WRITTEN: u64 = 64;
/// Two of this many requests are messages; see [`Talk::request`].
const KINDS: u32 = 5;

type SoftId = Id<SoftDevice>;

/// What a side shares between all its connections.
struct Party {
    device: SoftDevice,
    cq: CompletionQueue<SoftDevice>,
    channel: SoftChannel,
}

impl Party {
    fn new() -> Party {
        let device = SoftDevice::open().unwrap();
        let cq = CompletionQueue::new(&device, (RECEIVES + SENDS) as u32).unwrap();
        let channel = device.open_channel().unwrap();
        Party { device, cq, channel }
    }

    fn init(&self) -> QpInit<SoftDevice> {
        let init = QpInit::rc().send_wr(SENDS as u32).recv_wr(RECEIVES as u32).inline(64);
        init.send_cq(&self.cq).recv_cq(&self.cq)
    }

    fn listener(&self) -> Endpoint<SoftDevice> {
        let init = self.init();
        let mut listener = endpoint(&self.device, (anywhere(), Hints::passive()), Some(&init));
        listener.listen(0).unwrap();
        listener
    }

    /// Memory for the peer, and the private data that describes it.
    fn expose(&self) -> (Exposed<SoftDevice>, Vec<u8>) {
        let rights = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let exposed = Exposed::new(&self.device, WRITTEN as usize + MESSAGE, rights).unwrap();
        let Remote { addr, rkey } = exposed.remote(0);
        (exposed, [&addr.to_le_bytes()[..], &rkey.to_le_bytes()].concat())
    }

    fn post_recvs(&self, id: &mut SoftId) {
        let mut buffers = Buffer::many(&self.device, RECEIVES, MESSAGE).unwrap();
        id.queues().post_recvs(&mut buffers).unwrap();
    }

    fn connect(&self, addr: SocketAddr, told: &[u8]) -> Result<SoftId, CmError> {
        let init = self.init();
        let mut id = endpoint(&self.device, (addr, Hints::active()), Some(&init)).into_id();
        self.post_recvs(&mut id);
        id.connect(&ConnParam { private_data: told, ..ConnParam::default() })?;
        Ok(id)
    }

    fn accept(&self, id: &mut SoftId, told: &[u8]) -> Result<(), CmError> {
        self.post_recvs(id);
        id.accept(&ConnParam { private_data: told, ..ConnParam::default() })
    }
}

/// The part of the process that connects to the survivor.
pub(crate) fn connects(addr: SocketAddr, messages: u32) {
    let party = Party::new();
    let (_exposed, told) = party.expose();
    let mut id = party.connect(addr, &told).unwrap();
    Talk::new(&party.device, &mut id, messages).go_on();
}

/// The part of the process that the survivor connects to.
pub(crate) fn listens(_: SocketAddr, messages: u32) {
    let party = Party::new();
    let mut listener = party.listener();
    say_address(listener.local_addr().unwrap());
    let (_exposed, told) = party.expose();
    let mut id = listener.get_request(Some(SOON)).unwrap();
    party.accept(&mut id, &told).unwrap();
    Talk::new(&party.device, &mut id, messages).go_on();
}

/// A completion, if there is one already.
fn polled(result: Result<Completion<SoftDevice>, CmError>) -> Option<Completion<SoftDevice>> {
    match result {
        Ok(completion) => Some(completion),
        Err(error) => {
            assert_eq!(error.code(), Code::TimedOut, "{error}");
            None
        }
    }
}

/// One side of a conversation. It has one request in flight at a time.
struct Talk<'a> {
    device: &'a SoftDevice,
    id: &'a mut SoftId,
    /// The peer's memory.
    at: Remote,
    /// Requests to make in all, requests made, and whether the last is still in flight.
    requests: u32,
    made: u32,
    away: bool,
    /// The number of the last message received.
    last: Option<u32>,
    /// Receives that are still posted.
    posted: usize,
    /// Whether a request or a receive has failed.
    failed: bool,
}

impl<'a> Talk<'a> {
    fn new(device: &'a SoftDevice, id: &'a mut SoftId, requests: u32) -> Talk<'a> {
        let told = id.private_data();
        let addr = u64::from_le_bytes(*told.first_chunk().unwrap());
        let rkey = u32::from_le_bytes(*told[8..].first_chunk().unwrap());
        Talk {
            device,
            id,
            at: Remote { addr, rkey },
            requests,
            made: 0,
            away: false,
            last: None,
            posted: RECEIVES,
            failed: false,
        }
    }

    /// The operation and the length of request `number`. What one request writes, the next reads
    /// back.
    fn request(&self, number: u32) -> (SendOp, usize) {
        let there = self.at.offset(WRITTEN);
        match number % KINDS {
            0 => (SendOp::Write(there), text(number, MESSAGE).len()),
            1 => (SendOp::Read(there), text(number - 1, MESSAGE).len()),
            2 => (SendOp::FetchAdd { at: self.at, add: 1 }, 8),
            _ => (SendOp::Send, text(number, MESSAGE).len()),
        }
    }

    /// Does what can be done now; false if there is nothing.
    fn step(&mut self) -> bool {
        let mut any = false;
        if !self.away && !self.failed && self.made < self.requests {
            self.send();
            any = true;
        }
        if self.away
            && let Some(done) = polled(self.id.queues().next_send(Duration::ZERO))
        {
            self.sent(done);
            any = true;
        }
        if let Some(came) = polled(self.id.queues().next_recv(Duration::ZERO)) {
            self.received(came);
            any = true;
        }
        any
    }

    fn send(&mut self) {
        let (op, length) = self.request(self.made);
        // The peer maps the memory of the first messages, and copies from there.
        let memory = MapRequest::new(MESSAGE).pages(Ask::Plain).readable(true).map().unwrap();
        let mut buffer = Buffer::over(self.device, memory, 1, MESSAGE).unwrap().pop().unwrap();
        let message = text(self.made, MESSAGE);
        buffer[..message.len()].copy_from_slice(&message);
        self.id.queues().post_send(buffer, length, op, SendFlags::SIGNALED).unwrap();
        self.made += 1;
        self.away = true;
    }

    fn sent(&mut self, done: Completion<SoftDevice>) {
        self.away = false;
        let number = self.made - 1;
        if !done.status.is_ok() {
            assert!(matches!(done.status, Status::RetryExceeded | Status::Flushed), "{done:?}");
            self.failed = true;
        } else if number % KINDS == 1 {
            assert!(
                done.bytes() == text(number - 1, MESSAGE),
                "READ {number} returned other bytes than were written"
            );
        } else if number % KINDS == 2 {
            let counted = u64::from_le_bytes(*done.bytes().first_chunk().unwrap());
            assert_eq!(counted, u64::from(number / KINDS));
        }
        assert!(done.buffer.is_some());
    }

    fn received(&mut self, came: Completion<SoftDevice>) {
        if came.status.is_ok() {
            assert!(self.posted == RECEIVES, "a message behind the end");
            let number = number_of(came.bytes(), MESSAGE);
            assert!(self.last.is_none_or(|last| last < number), "{number} after {:?}", self.last);
            self.last = Some(number);
            self.id.queues().post_recv(came.buffer.unwrap()).unwrap();
        } else {
            assert_eq!(came.status, Status::Flushed);
            assert!(came.buffer.is_some());
            self.failed = true;
            self.posted -= 1;
        }
    }

    /// Talks until this process is killed.
    fn go_on(&mut self) {
        let end = Instant::now() + LIFE;
        while Instant::now() < end {
            if !self.step() && self.made == self.requests && !self.away {
                let came = polled(self.id.queues().next_recv(LOOK));
                came.into_iter().for_each(|came| self.received(came));
            }
            assert!(!self.failed, "the survivor is gone");
        }
    }

    /// Talks until every receive and request has completed; each wait must end by itself.
    fn outlive(&mut self, killer: &Killer, asleep: Option<&CompletionQueue<SoftDevice>>) {
        let mut end = Instant::now() + SOON;
        while self.posted > 0 || self.away {
            assert!(Instant::now() < end, "{} receives did not come back", self.posted);
            if self.last.is_some() {
                killer.note(Stage::Heard);
            }
            if self.step() {
                end = Instant::now() + SOON;
                continue;
            }
            if let Some(cq) = asleep {
                cq.arm(false).unwrap();
                // Completions that came before the arming wake nobody, so look once more.
                if !self.step() {
                    assert!(cq.wait(Some(SOON)).unwrap(), "nobody wakes the survivor");
                }
            } else if self.made == self.requests && !self.away {
                let came = self.id.queues().next_recv(SOON);
                self.received(came.unwrap());
            }
        }
    }
}

/// Talks to a peer that is killed meanwhile; returns when everything was home, and when the event
/// of the end came.
fn talk(party: &Party, mut id: SoftId, killer: &Killer, round: &Round) -> Heard {
    let home = if round.asleep {
        // Another thread waits for its events.
        id.migrate(Some(&party.channel)).unwrap();
        let key = id.key();
        thread::scope(|scope| {
            let event = scope.spawn(move || hear_of_the_end(&party.channel, key));
            Talk::new(&party.device, &mut id, round.requests).outlive(killer, Some(&party.cq));
            event.join().unwrap();
            Heard::now()
        })
    } else {
        Talk::new(&party.device, &mut id, round.requests).outlive(killer, None);
        assert!(id.peer_left());
        Heard::now()
    };
    assert!(id.peer_left() && id.queues().next_recv(Duration::ZERO).is_err());
    assert!(id.queues().take_retired().is_empty());
    home
}

/// A survivor with nothing left to ask waits in the kernel for the next event.
fn spins(round: &Round) -> bool {
    !round.asleep && round.requests == FOR_EVER
}

fn hear_of_the_end(channel: &SoftChannel, key: IdKey) {
    let event = channel.next(SOON).unwrap();
    let Some(event) = event else { panic!("no word of the end") };
    assert_eq!((event.kind, event.key), (EventKind::Disconnected, key));
    assert_eq!(event.status, -libc::ECONNRESET);
}

/// Asserts the error for a peer that died before the connection was up.
fn assert_clear(error: &CmError) {
    assert!(matches!(error.code(), Code::Refused | Code::Reset), "{error}");
}

/// Serves one peer that is killed before or after it has connected.
fn serve(party: &Party, listener: &mut Endpoint<SoftDevice>, round: &Round, ends: &mut Ends) {
    let addr = listener.local_addr().unwrap();
    let killer = Killer::of(peer("id-connects", round.requests, addr), round.doom);
    let mut heard = None;
    loop {
        // Read this before looking for a request: what a dead peer requested is already there.
        let dead = killer.is_done();
        let Ok(mut id) = listener.get_request(Some(LOOK)) else {
            if dead { break } else { continue }
        };
        killer.note(Stage::Met);
        let (_exposed, told) = party.expose();
        heard = Some(match party.accept(&mut id, &told) {
            Ok(()) => talk(party, id, &killer, round),
            Err(error) => {
                assert_clear(&error);
                Heard::now()
            }
        });
    }
    let killed = killer.wait();
    heard.into_iter().for_each(|heard| ends.note(killed, heard, spins(round)));
}

#[test]
fn a_killed_id_that_connected_is_outlived() {
    let _alone = alone();
    let party = Party::new();
    let mut listener = party.listener();
    let mut dice = Dice(7);
    let mut serve = |round: &Round, ends: &mut Ends| serve(&party, &mut listener, round, ends);
    for asleep in [false, true] {
        let round = Round { doom: Doom::late(), asleep, requests: FOR_EVER };
        serve(&round, &mut Ends::default());
    }
    let before = belongings();
    let mut ends = Ends::default();
    for number in 0..kills() {
        serve(&Round::roll(number, KINDS, &mut dice), &mut ends);
    }
    ends.check(kills() / 3);
    assert_nothing_left(&before);
}

/// Connects to one peer that is killed before or after that.
fn visit(party: &Party, round: &Round, ends: &mut Ends) {
    let mut child = peer("id-listens", round.requests, anywhere());
    let said = child.stdout.take();
    let killer = Killer::of(child, round.doom);
    let Some(addr) = address_in(said) else {
        killer.wait();
        return;
    };
    killer.note(Stage::Met);
    let (_exposed, told) = party.expose();
    let heard = match party.connect(addr, &told) {
        Ok(id) => talk(party, id, &killer, round),
        Err(error) => {
            assert_clear(&error);
            Heard::now()
        }
    };
    ends.note(killer.wait(), heard, spins(round));
}

#[test]
fn a_killed_id_that_listens_is_outlived() {
    let _alone = alone();
    let party = Party::new();
    let mut dice = Dice(13);
    for asleep in [false, true] {
        let round = Round { doom: Doom::late(), asleep, requests: FOR_EVER };
        visit(&party, &round, &mut Ends::default());
    }
    let before = belongings();
    let mut ends = Ends::default();
    for number in 0..kills() {
        visit(&party, &Round::roll(number, KINDS, &mut dice), &mut ends);
    }
    ends.check(kills() / 3);
    assert_nothing_left(&before);
}
