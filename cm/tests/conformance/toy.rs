//! A toy wire: the bytes of a socket. It shows that another wire than shared memory can carry
//! connections, and that neither the device nor these cases notice.
//!
//! Each side has link memory of its own; the two sides share only a socket pair. A thread at the
//! far end of each link turns records into bytes and bytes into records. No side maps memory of the
//! other, so the domain that owns the memory carries out each one-sided request.
#![expect(unsafe_code, reason = "poll has no safe form in std")]

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use doorbell_cm::CmError;
use doorbell_seam::wc::Status;
use doorbell_soft::wire::{Asking, Psn, Record, Taking, Way};
use doorbell_soft::{Carrier, CarrierEnd, SoftDevice};

use crate::harness::{CARRIED, TOY, on_soft, on_toy, skip};

/// The name of a device that uses it.
pub(crate) const NAME: &str = "toy0";

/// With this many bytes of records that the peer's domain has not taken, the thread reads no more.
const WINDOW: u64 = 16 << 10;

/// With this many bytes for the socket, the thread reads no more responses of its domain; with this
/// many responses for its domain, it reads no more of the socket.
const OUT_MAX: usize = 64 << 10;
const RESPONSES_MAX: usize = 16;

/// How long a thread sleeps at most, in milliseconds: a domain that leaves its link wakes nobody.
const DOZE: i32 = 20;

/// A device over a toy wire, and the number of records it has carried.
pub(crate) fn open() -> Result<(SoftDevice, Arc<AtomicU64>), CmError> {
    let toy = Arc::new(Toy::default());
    let carried = toy.carried.clone();
    Ok((SoftDevice::over(NAME, toy)?, carried))
}

/// Cases that pass over the toy wire and send something there; some others do, too.
const CASES_MIN: usize = 150;

/// Runs the whole suite once more, in a process of its own.
#[test]
fn connections_pass_over_another_wire() {
    if !on_soft() || on_toy() {
        return skip("this is for the soft device, which runs all cases here");
    }
    let program = std::env::current_exe().expect("this program");
    let mut suite = Command::new(program);
    suite.args(["--nocapture", "--skip", "toy::"]).env(TOY, "1");
    let output = suite.output().expect("the suite runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let carried = text.matches(CARRIED).count();
    assert!(carried >= CASES_MIN, "{carried} cases went over the toy wire");
}

#[derive(Default)]
struct Toy {
    carried: Arc<AtomicU64>,
}

impl Toy {
    fn serve(&self, end: CarrierEnd, socket: UnixStream) -> Result<(), CmError> {
        let error = |error| CmError::from_io("serve a toy wire", &error);
        socket.set_nonblocking(true).map_err(error)?;
        let pump = Pump::new(end, socket, self.carried.clone());
        thread::Builder::new().name("toy".to_owned()).spawn(|| pump.run()).map_err(error)?;
        Ok(())
    }
}

impl Carrier for Toy {
    fn offer(&self, end: CarrierEnd) -> Result<OwnedFd, CmError> {
        let pair = UnixStream::pair();
        let (here, there) = pair.map_err(|error| CmError::from_io("a toy wire", &error))?;
        self.serve(end, here)?;
        Ok(there.into())
    }

    fn take(&self, end: CarrierEnd, file: OwnedFd) -> Result<(), CmError> {
        self.serve(end, UnixStream::from(file))
    }
}

/// A message on the socket: one byte for its kind, then its contents.
#[derive(Clone, Copy)]
enum Kind {
    /// An encoded record.
    Record = 1,
    /// The number after the last record that the domain has taken.
    Taken,
    /// The number of the record that the domain has refused, and the status.
    Refused,
    /// An encoded response, which waits for no record.
    Response,
    /// The domain has left the link and sends nothing more.
    Left,
}

/// The thread at the far end of a link.
struct Pump {
    end: CarrierEnd,
    socket: UnixStream,
    /// Bytes for the socket.
    out: Vec<u8>,
    /// Bytes from the socket that are not a whole message yet.
    come: Vec<u8>,
    /// Records from the peer for which the domain's ring has no space yet.
    ready: VecDeque<(Psn, Record)>,
    /// The same for responses.
    responses: VecDeque<Record>,
    /// The number of the next record to the peer, of the first that the peer's domain has not
    /// taken, and of the next from the peer.
    next: Psn,
    settled: Psn,
    expected: Psn,
    carried: Arc<AtomicU64>,
    /// The peer was told that this domain has left.
    told: bool,
    /// The socket is closed.
    closed: bool,
}

impl Pump {
    fn new(end: CarrierEnd, socket: UnixStream, carried: Arc<AtomicU64>) -> Pump {
        // Soon past 2^24.
        let first = Psn::new(0x00ff_fff0);
        Pump {
            end,
            socket,
            out: Vec::new(),
            come: Vec::new(),
            ready: VecDeque::new(),
            responses: VecDeque::new(),
            next: first,
            settled: first,
            expected: first,
            carried,
            told: false,
            closed: false,
        }
    }

    /// Runs until both domains have left, or the other process has ended.
    fn run(mut self) {
        while !self.is_over() {
            match self.turn() {
                Ok(true) => {}
                Ok(false) => self.sleep(),
                Err(_) => return,
            }
        }
    }

    fn is_over(&self) -> bool {
        let nothing_left = self.ready.is_empty() && self.responses.is_empty();
        let delivered = nothing_left || self.end.port.domain_has_left();
        let done = self.end.port.is_over() && self.told && self.out.is_empty();
        done || self.closed && delivered
    }

    /// Does all current work; false if there was none.
    fn turn(&mut self) -> io::Result<bool> {
        let before = (self.next, self.out.len(), self.ready.len() + self.responses.len());
        let mut busy = self.hear_domain();
        self.read_domain();
        if self.reads_socket() {
            busy |= self.read_socket()?;
        }
        self.write_domain();
        let left = self.end.port.domain_has_left();
        if left && !self.told && self.next == before.0 {
            self.out.push(Kind::Left as u8);
            self.told = true;
        }
        self.write_socket()?;
        let after = (self.next, self.out.len(), self.ready.len() + self.responses.len());
        Ok(busy || before != after)
    }

    /// False while the domain does not take the responses that have come.
    fn reads_socket(&self) -> bool {
        self.responses.len() < RESPONSES_MAX
    }

    /// Sends back what the domain reports about the peer's records.
    fn hear_domain(&mut self) -> bool {
        let mut taken = None;
        let mut refused = None;
        while let Some(taking) = self.end.port.next_taking() {
            match taking {
                Taking::Taken { way, .. } => taken = Some(way.psn.plus(1)),
                Taking::Refused { way, status } => refused = Some((way.psn, status)),
            }
            if refused.is_some() {
                break;
            }
        }
        if let Some(psn) = taken {
            self.out.push(Kind::Taken as u8);
            self.out.extend(psn.number().to_le_bytes());
        }
        if let Some((psn, status)) = refused {
            self.out.push(Kind::Refused as u8);
            self.out.extend(psn.number().to_le_bytes());
            self.out.push(status as u8);
        }
        taken.is_some() || refused.is_some()
    }

    /// Sends the domain's records to the peer.
    fn read_domain(&mut self) {
        while self.end.port.outstanding() < WINDOW
            && let Some((span, record)) = self.end.port.next_record()
        {
            self.end.port.note_read(span, Some(Way { conn: 0, psn: self.next }));
            self.next = self.next.plus(1);
            self.out.push(Kind::Record as u8);
            record.encode(&mut self.out);
            // Relaxed: a number for the test alone.
            self.carried.fetch_add(1, Ordering::Relaxed);
        }
        while self.out.len() < OUT_MAX
            && let Some(record) = self.end.port.next_response()
        {
            self.out.push(Kind::Response as u8);
            record.encode(&mut self.out);
        }
        if let Some(rule) = self.end.port.broken() {
            // The thread ends here, and its connection with it.
            panic!("the domain broke a rule: {rule}");
        }
    }

    /// Writes received records and responses to the domain's rings, as far as there is space.
    fn write_domain(&mut self) {
        while let Some(record) = self.responses.front()
            && self.end.port.write_response(record)
        {
            self.responses.pop_front();
        }
        while let Some((psn, record)) = self.ready.front() {
            let way = Way { conn: 0, psn: *psn };
            if !self.end.port.write(record, Some(way), Asking::Amid) {
                break;
            }
            self.ready.pop_front();
        }
        self.end.port.publish();
        self.end.port.tell();
    }

    fn read_socket(&mut self) -> io::Result<bool> {
        let mut bytes = [0; 16 << 10];
        let got = match self.socket.read(&mut bytes) {
            Ok(0) => {
                self.closed = true;
                return Ok(false);
            }
            Ok(got) => got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        self.come.extend(bytes.iter().take(got));
        let mut used = 0;
        while let Some(length) = self.message(used)? {
            used += length;
        }
        self.come.drain(..used);
        Ok(true)
    }

    /// Takes the message at that place, if it is complete; returns its length.
    fn message(&mut self, at: usize) -> io::Result<Option<usize>> {
        let wrong = || io::Error::from(ErrorKind::InvalidData);
        let Some((kind, rest)) = self.come[at..].split_first() else { return Ok(None) };
        let number = rest.first_chunk().map(|word| Psn::new(u32::from_le_bytes(*word)));
        match (*kind, number, rest.get(4)) {
            (kind, ..) if kind == Kind::Record as u8 => {
                let record = Record::decode(rest).map_err(|_| wrong())?;
                let Some((record, length)) = record else { return Ok(None) };
                self.ready.push_back((self.expected, record));
                self.expected = self.expected.plus(1);
                Ok(Some(1 + length))
            }
            (kind, ..) if kind == Kind::Response as u8 => {
                let record = Record::decode(rest).map_err(|_| wrong())?;
                let Some((record, length)) = record else { return Ok(None) };
                self.responses.push_back(record);
                Ok(Some(1 + length))
            }
            (kind, Some(psn), _) if kind == Kind::Taken as u8 => {
                self.settle(psn);
                Ok(Some(5))
            }
            (kind, Some(psn), Some(status)) if kind == Kind::Refused as u8 => {
                let status = Status::from_raw((*status).into());
                self.end.port.refuse(Way { conn: 0, psn }, status);
                // Nobody wants the ones behind it.
                self.settled = self.next;
                Ok(Some(6))
            }
            (kind, ..) if kind == Kind::Left as u8 => {
                self.end.port.peer_has_left();
                Ok(Some(1))
            }
            (kind, ..) if kind > Kind::Left as u8 || kind == 0 => Err(wrong()),
            _ => Ok(None),
        }
    }

    /// The peer's domain has taken everything before `psn`.
    fn settle(&mut self, psn: Psn) {
        let more = psn.past(self.settled);
        // Settled records are reported again behind a refusal.
        if more <= self.next.past(self.settled) {
            self.end.port.done(0, more);
            self.settled = psn;
        }
    }

    fn write_socket(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(sent) => drop(self.out.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The peer is gone; what it sent before is still to be read.
                Err(_) => self.out.clear(),
            }
        }
        Ok(())
    }

    /// Looks once more, then sleeps until the domain or the socket has something.
    fn sleep(&mut self) {
        let CarrierEnd { port, barrier, .. } = &self.end;
        port.fall_asleep(*barrier);
        let look = self.turn();
        if matches!(look, Ok(false)) && !self.is_over() {
            let reads = if self.reads_socket() { libc::POLLIN } else { 0 };
            let events = reads | if self.out.is_empty() { 0 } else { libc::POLLOUT };
            let socket = libc::pollfd { fd: self.socket.as_raw_fd(), events, revents: 0 };
            let notifier =
                libc::pollfd { fd: self.end.notifier.fd(), events: libc::POLLIN, revents: 0 };
            // A closed socket is always readable.
            let mut both = [notifier, socket];
            let count = if self.closed { 1 } else { 2 };
            // SAFETY: the array has at least that many entries.
            unsafe { libc::poll(both.as_mut_ptr(), count, DOZE) };
            self.end.notifier.clear();
        }
        self.end.port.wake_up();
    }
}
