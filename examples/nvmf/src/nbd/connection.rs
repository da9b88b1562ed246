//! One NBD client: its requests, cut into commands, and the replies.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use doorbell::Fabric;

use super::Failure;
use super::disk::{Disk, Done, Op, Part};
use super::handshake::shake;
use super::socket::{Stream, Watch, is_later};
use super::wire::{FLAG_FUA, FLAG_NO_HOLE, Kind, REQUEST_BYTES, Request, errno, simple_reply};
use crate::rest::Rest;
use crate::wire::BLOCK_BYTES;
use crate::wire::status::Status;

/// How long a client may take for the handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Bytes of the buffer for what the client sends; it holds a command's data and more.
const INPUT: usize = 1 << 19;
/// Bytes of replies that wait for the client before its requests do.
const OUTPUT: usize = 4 << 20;
/// Empty rounds before the loop sleeps, at most.
const SPINS: u32 = 1 << 12;
/// Rounds between two looks at a socket that had nothing, unless the client was answered: most
/// clients send when they hear something, and a look is a system call.
const LOOK: u32 = 32;
/// How long the loop sleeps at most, and how often it tends the controller.
const IDLE: Duration = Duration::from_millis(250);
/// Requests in flight at most.
const REQUESTS: usize = 1024;

/// A request that is not answered.
struct Pending {
    request: Request,
    /// Parts without an answer; one more while parts are to be made.
    parts: usize,
    error: u32,
    /// Bytes read of a request of several parts. Those of another go straight into the output.
    data: Vec<u8>,
}

/// A request whose parts are being made.
struct Cutting {
    index: usize,
    request: Request,
    /// Bytes that parts have.
    done: u64,
    /// The request cannot be carried out: its bytes are only skipped.
    skip: bool,
}

struct Connection<'a, F: Fabric> {
    stream: Stream,
    watch: Watch,
    disk: Disk<'a, F>,
    /// What the client sends; the bytes from `used` to `filled` wait for parsing.
    input: Vec<u8>,
    used: usize,
    filled: usize,
    /// Rounds until the next look at the socket.
    quiet: u32,
    output: Vec<u8>,
    /// Bytes of the output that were sent.
    sent: usize,
    pending: Vec<Option<Pending>>,
    free: Vec<usize>,
    cutting: Option<Cutting>,
    /// The client has asked to end, or has closed its side.
    closing: bool,
}

/// Serves a client until it leaves or the gateway stops.
pub(super) fn serve<F: Fabric>(
    mut stream: Stream,
    disk: Disk<'_, F>,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    stream.set_limit(HANDSHAKE)?;
    if !shake(&mut stream, disk.bytes(), BLOCK_BYTES as u32)? {
        return Ok(());
    }
    stream.set_nonblocking()?;
    let mut connection = Connection {
        watch: Watch::new(&stream)?,
        stream,
        disk,
        input: vec![0; INPUT],
        used: 0,
        filled: 0,
        quiet: 0,
        output: Vec::new(),
        sent: 0,
        pending: Vec::new(),
        free: Vec::new(),
        cutting: None,
        closing: false,
    };
    connection.run(stop)
}

impl<F: Fabric> Connection<'_, F> {
    fn run(&mut self, stop: &AtomicBool) -> Result<(), Failure> {
        let (mut rest, mut tended) = (Rest::new(SPINS), Instant::now());
        // Relaxed: the flag guards no other memory.
        while !stop.load(Ordering::Relaxed) {
            let mut busy = self.receive()?;
            busy |= self.cut()?;
            while let Some(done) = self.disk.poll()? {
                busy = true;
                self.take(done)?;
            }
            busy |= self.send()?;
            let quiet = self.disk.is_idle() && self.output.is_empty();
            if self.closing && quiet && self.cutting.is_none() {
                return Ok(());
            }
            if tended.elapsed() > IDLE {
                tended = Instant::now();
                self.disk.tend()?;
            }
            if busy {
                rest.worked();
                continue;
            }
            rest.after_empty(|| self.sleep())?;
        }
        Ok(())
    }

    /// Sleeps until the target answers, the client sends or takes more, or the time is over.
    fn sleep(&mut self) -> Result<bool, Failure> {
        self.quiet = 0;
        let (input, output) = (self.hears(), !self.output.is_empty());
        let client = self.watch.until(&self.stream, input, output)?;
        self.disk.sleep(client, IDLE)?;
        Ok(false)
    }

    /// True while the loop reads what the client sends.
    fn hears(&self) -> bool {
        let room = self.used > 0 || self.filled < INPUT;
        room && !self.closing && self.output.len() <= OUTPUT
    }

    /// What the client has sent and nobody has parsed.
    fn unused(&self) -> &[u8] {
        self.input.get(self.used..self.filled).unwrap_or_default()
    }

    /// Reads what the client has sent.
    fn receive(&mut self) -> Result<bool, Failure> {
        if !self.hears() {
            return Ok(false);
        }
        if self.used == self.filled || self.filled == INPUT {
            self.input.copy_within(self.used..self.filled, 0);
            (self.used, self.filled) = (0, self.filled - self.used);
        }
        if self.quiet > 0 && !self.disk.is_idle() {
            self.quiet -= 1;
            return Ok(false);
        }
        let Some(room @ [_, ..]) = self.input.get_mut(self.filled..) else { return Ok(false) };
        let read = self.stream.read(room);
        self.filled += read.as_ref().copied().unwrap_or(0);
        match read {
            Ok(0) => {
                self.closing = true;
                self.cutting = None;
                Ok(true)
            }
            Ok(_) => Ok(true),
            Err(error) if is_later(&error) => {
                self.quiet = LOOK;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Makes commands of the requests that have come, as far as there is room.
    fn cut(&mut self) -> Result<bool, Failure> {
        let mut busy = false;
        while !self.closing {
            let Some(cutting) = &self.cutting else {
                if self.pending.len() - self.free.len() >= REQUESTS || !self.begin()? {
                    break;
                }
                busy = true;
                continue;
            };
            let more = if cutting.skip { self.skip()? } else { self.next_part()? };
            if !more {
                break;
            }
            busy = true;
        }
        Ok(busy)
    }

    /// Begins the next request; false if it has not come yet.
    fn begin(&mut self) -> Result<bool, Failure> {
        let Some(header) = self.unused().first_chunk::<REQUEST_BYTES>() else { return Ok(false) };
        let request = Request::read(header).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "the NBD client sent no request")
        })?;
        self.used += REQUEST_BYTES;
        if request.kind == Kind::Disconnect {
            self.closing = true;
            return Ok(true);
        }
        let error = request.check(self.disk.bytes(), BLOCK_BYTES);
        let pending = Pending { request, parts: 1, error, data: Vec::new() };
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.pending.push(None);
                self.pending.len() - 1
            }
        };
        if let Some(place) = self.pending.get_mut(index) {
            *place = Some(pending);
        }
        let skip = error != 0;
        self.cutting = Some(Cutting { index, request, done: 0, skip });
        Ok(true)
    }

    /// Skips the bytes of a write that cannot be carried out; false if they have not all come.
    fn skip(&mut self) -> Result<bool, Failure> {
        let Some(cutting) = &mut self.cutting else { return Ok(false) };
        let len =
            if cutting.request.kind == Kind::Write { u64::from(cutting.request.len) } else { 0 };
        let here = (self.filled - self.used).min((len - cutting.done) as usize);
        self.used += here;
        cutting.done += here as u64;
        if cutting.done < len {
            return Ok(false);
        }
        let index = cutting.index;
        self.cutting = None;
        self.ended(index, None)?;
        Ok(true)
    }

    /// Makes the next command of the request; false if there is no room, or bytes are missing.
    fn next_part(&mut self) -> Result<bool, Failure> {
        let Some(cutting) = &mut self.cutting else { return Ok(false) };
        let request = cutting.request;
        let op = match request.kind {
            Kind::Read => Op::Read,
            Kind::Write => Op::Write,
            Kind::Trim => Op::Trim,
            Kind::WriteZeroes => Op::Zero { keep: request.flags & FLAG_NO_HOLE != 0 },
            _ => Op::Flush,
        };
        let len = if op == Op::Flush { 0 } else { u64::from(request.len) };
        let count = (len - cutting.done).min(self.disk.part_bytes(op));
        let missing = op == Op::Write && self.filled - self.used < count as usize;
        if missing || !self.disk.has_room() {
            return Ok(false);
        }
        let mut data = Vec::new();
        if op == Op::Write {
            let end = self.used + count as usize;
            data.extend_from_slice(self.input.get(self.used..end).unwrap_or_default());
            self.used = end;
        }
        let part = Part {
            request: cutting.index,
            op,
            force: request.flags & FLAG_FUA != 0,
            at: request.at + cutting.done,
            len: count,
            offset: cutting.done as usize,
            data,
        };
        cutting.done += count;
        let (index, whole) = (cutting.index, cutting.done >= len);
        if let Some(Some(pending)) = self.pending.get_mut(index) {
            pending.parts += 1;
        }
        if whole {
            self.cutting = None;
        }
        self.disk.submit(part)?;
        if whole {
            self.ended(index, None)?;
        }
        Ok(true)
    }

    /// Takes an answered part.
    fn take(&mut self, done: Done) -> Result<(), Failure> {
        let index = done.part.request;
        let Some(Some(pending)) = self.pending.get_mut(index) else { return Ok(()) };
        if !done.status.is_ok() {
            pending.error =
                if done.status == Status::CAPACITY { errno::ENOSPC } else { errno::EIO };
        } else if done.part.op == Op::Read {
            let (len, start) = (pending.request.len as usize, done.part.offset);
            if done.part.len as usize == len {
                return self.ended(index, Some(&done));
            }
            pending.data.resize(len, 0);
            let to = pending.data.get_mut(start..start + done.part.len as usize);
            self.disk.read(&done, to.unwrap_or_default())?;
        } else if done.part.op == Op::Trim && done.part.force {
            // Dataset Management has no FUA, so a flush follows.
            let part = Part { op: Op::Flush, force: false, len: 0, ..done.part };
            return Ok(self.disk.submit(part)?);
        }
        self.ended(index, None)
    }

    /// One part of a request has ended; with the last one the client gets its reply. A read of one
    /// part is `whole`: its bytes go straight into the output.
    fn ended(&mut self, index: usize, whole: Option<&Done>) -> Result<(), Failure> {
        let Some(place) = self.pending.get_mut(index) else { return Ok(()) };
        let Some(pending) = place else { return Ok(()) };
        pending.parts -= 1;
        if pending.parts > 0 {
            return Ok(());
        }
        self.output.extend(simple_reply(pending.error, pending.request.cookie));
        if let Some(done) = whole {
            let start = self.output.len();
            self.output.resize(start + done.part.len as usize, 0);
            self.disk.read(done, self.output.get_mut(start..).unwrap_or_default())?;
        } else if pending.error == 0 {
            self.output.extend_from_slice(&pending.data);
        }
        *place = None;
        self.free.push(index);
        Ok(())
    }

    /// Sends replies.
    fn send(&mut self) -> Result<bool, Failure> {
        let mut busy = false;
        while self.sent < self.output.len() {
            match self.stream.write(self.output.get(self.sent..).unwrap_or_default()) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(count) => (self.sent, busy, self.quiet) = (self.sent + count, true, 0),
                Err(error) if is_later(&error) => return Ok(busy),
                Err(error) => return Err(error.into()),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(busy)
    }
}
