//! What the two sides say to each other besides the messages that are measured.
//!
//! Outside of the connection, over a pipe, a socket pair or TCP: one [`Request`] per run and two
//! [`Answer`]s, a line of JSON each. Inside of it: messages with immediate data, which the
//! measured ones do not have.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;

use clap::ValueEnum;
use doorbell::worker::Config;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::Failure;

/// Longest line taken from the other side, in bytes.
const LINE_MAX: u64 = 64 * 1024;

/// Version of the lines.
pub(crate) const VERSION: u32 = 3;

/// Immediate data: measuring begins. Answered by [`ACK`] once all before it has arrived.
pub(crate) const MARK: u32 = 1;
/// Immediate data: measuring ends. Answered by [`ACK`] once all before it has arrived.
pub(crate) const END: u32 = 2;
/// Immediate data of an answer: two words of 8 bytes, most often messages received since the last
/// one, and messages wrong.
pub(crate) const ACK: u32 = 3;

/// Immediate data: asks where the exposed memory begins. Answered by [`ACK`].
pub(crate) const HELLO: u32 = 4;

/// Bytes of a message with immediate data.
pub(crate) const WORD_BYTES: usize = 16;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Test {
    /// Round trips of one message.
    Latency,
    /// A stream one way.
    Rate,
    /// Round trips of messages that are due at fixed times.
    Load,
    /// Round trips with few and many messages in flight.
    Sweep,
    /// Round trips of a few among many that rest.
    Crowd,
    /// Bytes one way, between queue pairs without workers.
    Bandwidth,
    /// Instructions that a worker adds.
    Overhead,
}

/// How bytes get to the other side, or from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// RDMA WRITE into memory the other side exposes
    Write,
    /// RDMA READ from there
    Read,
    /// SEND into receives the other side posts
    Send,
}

/// One run, as the connecting side wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) version: u32,
    pub(crate) test: Test,
    /// Bytes of a message.
    pub(crate) size: u32,
    /// Connections that carry messages, and those that carry none.
    pub(crate) qps: u32,
    pub(crate) idle_qps: u32,
    /// Receives of the shared queue; 0: as many as those that carry messages can use.
    pub(crate) receives: u32,
    /// Workers of the serving side, on one shared receive queue.
    pub(crate) workers: u32,
    /// Every how many sends one asks for a completion.
    pub(crate) signal_every: u32,
    /// True for a device in software.
    pub(crate) soft: bool,
    /// Queue pairs alone, without worker and handler.
    pub(crate) bare: bool,
    /// Times that measuring begins and ends.
    pub(crate) pieces: u32,
    /// Of [`Test::Bandwidth`]: the operation, and how many of them are outstanding at most.
    pub(crate) op: Op,
    pub(crate) window: u32,
}

impl Request {
    /// Messages of that size over one connection, between workers of a device in software.
    pub(crate) fn new(test: Test, size: u32) -> Request {
        Request {
            version: VERSION,
            test,
            size,
            qps: 1,
            idle_qps: 0,
            receives: 0,
            workers: 1,
            signal_every: Config::DEFAULT.signal_every,
            soft: true,
            bare: false,
            pieces: 1,
            op: Op::Write,
            window: 1,
        }
    }

    /// Connections of each worker that is measured, in turn with the others: with idle ones there
    /// is another without, to compare with.
    pub(crate) fn lots(&self) -> Vec<u32> {
        match self.idle_qps {
            0 => vec![self.qps],
            idle => vec![self.qps, self.qps.saturating_add(idle)],
        }
    }

    /// Of the connections that carry messages, those which worker `n` of the serving side gets:
    /// they are dealt out in turn.
    pub(crate) fn active(&self, n: u32) -> u32 {
        self.qps / self.workers + u32::from(n < self.qps % self.workers)
    }

    /// True if what is sent comes back.
    pub(crate) fn is_echo(&self) -> bool {
        match self.test {
            Test::Latency | Test::Load | Test::Sweep | Test::Crowd => true,
            Test::Rate | Test::Bandwidth | Test::Overhead => false,
        }
    }
}

/// What the serving side says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// It listens there: an address for each of [`Request::lots`].
    Ready(Vec<SocketAddr>),
    /// The run is over, and this is what its workers did in each piece.
    Done(Vec<Tally>),
    /// It cannot.
    Failed(String),
}

/// What the workers of one side did between mark and end, summed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) completions: u64,
    /// Turns that found something.
    pub(crate) busy_turns: u64,
    pub(crate) doorbells: u64,
    pub(crate) allocations: u64,
    /// Memory that connections took as they came, in bytes: in the first tally of each lot.
    pub(crate) resident: u64,
    /// Of the whole process, at the end of the piece.
    pub(crate) process: u64,
    /// Messages that found no credit, and completions with an error.
    pub(crate) credit_stalls: u64,
    pub(crate) errors: u64,
    /// A mark: receives that were with the worker at a time.
    pub(crate) receives_out_most: u64,
    /// Pages of the memory, and what would mend them.
    pub(crate) pages: String,
    pub(crate) notes: Vec<String>,
}

impl Tally {
    /// What was done in all of them.
    pub(crate) fn sum<'a>(all: impl Iterator<Item = &'a Tally>) -> Tally {
        let mut sum = Tally::default();
        all.for_each(|tally| sum.add(tally.clone()));
        sum
    }

    /// Adds what another worker of the side did.
    pub(crate) fn add(&mut self, other: Tally) {
        self.completions += other.completions;
        self.busy_turns += other.busy_turns;
        self.doorbells += other.doorbells;
        self.allocations += other.allocations;
        self.resident += other.resident;
        self.process = self.process.max(other.process);
        self.credit_stalls += other.credit_stalls;
        self.errors += other.errors;
        self.receives_out_most = self.receives_out_most.max(other.receives_out_most);
        if !other.pages.is_empty() {
            self.pages = other.pages;
        }
        self.notes.extend(other.notes);
        self.notes.sort();
        self.notes.dedup();
    }
}

/// The way to the other side.
pub(crate) struct Line {
    from: BufReader<Box<dyn Read + Send>>,
    to: Box<dyn Write + Send>,
}

impl Line {
    pub(crate) fn new(from: impl Read + Send + 'static, to: impl Write + Send + 'static) -> Line {
        Line { from: BufReader::new(Box::new(from)), to: Box::new(to) }
    }

    /// Says it. That the other side is gone is learned when it is listened to.
    pub(crate) fn say(&mut self, what: &impl Serialize) {
        if let Ok(mut line) = serde_json::to_vec(what) {
            line.push(b'\n');
            let _ = self.to.write_all(&line).and_then(|()| self.to.flush());
        }
    }

    /// The next line; `None` when the other side has ended.
    ///
    /// # Errors
    /// No answer in time, or what is no line of this program.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        let mut line = Vec::new();
        let read = (&mut self.from).take(LINE_MAX).read_until(b'\n', &mut line);
        if let Err(error) = read {
            let asked = "wait for the other side";
            return Err(Failure::system(asked, &error, "is the program there still running?"));
        }
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| {
            Failure::new(
                "the other side speaks another language; run doorbell-bench of the same version \
                 on both",
            )
        })
    }

    /// The next answer.
    ///
    /// # Errors
    /// As for [`Line::hear`], the other side's failure, or its end.
    pub(crate) fn answer(&mut self) -> Result<Answer, Failure> {
        match self.hear()? {
            Some(Answer::Failed(text)) => Err(Failure::new(text)),
            Some(answer) => Ok(answer),
            None => Err(Failure::new("the other side has ended; see what it says there")),
        }
    }
}

/// The payload of a message with immediate data.
pub(crate) fn words(one: u64, two: u64) -> [u8; WORD_BYTES] {
    let mut bytes = [0; WORD_BYTES];
    bytes[..8].copy_from_slice(&one.to_le_bytes());
    bytes[8..].copy_from_slice(&two.to_le_bytes());
    bytes
}

/// Reads [`words`]; zeros for a payload that is too short.
pub(crate) fn read_words(bytes: &[u8]) -> (u64, u64) {
    (sequence(bytes), bytes.get(8..).map_or(0, sequence))
}

/// The number at the start of a payload: as many of its low bytes as there are.
#[inline(always)]
pub(crate) fn sequence(bytes: &[u8]) -> u64 {
    if let Some((first, _)) = bytes.split_first_chunk::<8>() {
        return u64::from_le_bytes(*first);
    }
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// The part of a number that a payload of `size` bytes holds.
pub(crate) fn sequence_mask(size: usize) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (size * 8)) - 1 }
}

/// Writes a number at the start of a payload, and its complement at the end where both fit.
#[inline(always)]
pub(crate) fn stamp(payload: &mut [u8], number: u64) {
    let size = payload.len();
    if let Some(last) = payload.last_chunk_mut::<8>()
        && size >= 16
    {
        *last = (!number).to_le_bytes();
    }
    if let Some(first) = payload.first_chunk_mut::<8>() {
        *first = number.to_le_bytes();
    } else {
        payload.copy_from_slice(&number.to_le_bytes()[..size]);
    }
}

/// True if a payload is `number`'s, of that size: by its first and last word; every 64th as a
/// whole.
#[inline(always)]
pub(crate) fn is_stamped(payload: &[u8], size: usize, number: u64) -> bool {
    let right = match payload.first_chunk::<8>() {
        Some(first) => u64::from_le_bytes(*first) == number,
        None => sequence(payload) == number & sequence_mask(size),
    };
    if payload.len() != size || !right {
        return false;
    }
    if size < 16 {
        return true;
    }
    let last = payload.last_chunk::<8>().map(|last| u64::from_le_bytes(*last));
    last == Some(!number) && (!number.is_multiple_of(64) || is_filled(&payload[8..size - 8]))
}

/// A payload of that size, filled with what [`stamp`] leaves alone.
pub(crate) fn filled(size: usize) -> Vec<u8> {
    // Shifted by the word at the start, as `is_filled` counts.
    (0..size).map(|at| filler(at.wrapping_sub(8))).collect()
}

#[inline(never)]
fn is_filled(middle: &[u8]) -> bool {
    middle.chunks(FILLERS.len()).all(|part| FILLERS.starts_with(part))
}

fn filler(at: usize) -> u8 {
    FILLERS[at % FILLERS.len()]
}

/// What is between the ends of a payload, again and again.
static FILLERS: [u8; 256] = {
    let (mut all, mut at) = ([0; 256], 0);
    while at < all.len() {
        all[at] = (at as u8).wrapping_mul(167).wrapping_add(13);
        at += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamped_payload_is_known_at_every_size() {
        for size in [1, 2, 7, 8, 9, 15, 16, 17, 24, 64, 200, 4096] {
            let mut payload = filled(size);
            for number in [0, 1, 64, 255, 256, 1 << 40] {
                stamp(&mut payload, number);
                assert!(is_stamped(&payload, size, number), "{size} {number}");
                assert!(!is_stamped(&payload, size + 1, number));
                assert!(!is_stamped(&payload, size, number + 1));
            }
        }
    }

    #[test]
    fn a_changed_byte_is_seen_first_last_and_between() {
        let mut payload = filled(64);
        stamp(&mut payload, 128);
        for at in 0..64 {
            payload[at] ^= 1;
            assert!(!is_stamped(&payload, 64, 128), "byte {at}");
            payload[at] ^= 1;
        }
    }

    #[test]
    fn words_are_read_back_and_short_ones_are_zeros() {
        assert_eq!(read_words(&words(7, 1 << 60)), (7, 1 << 60));
        assert_eq!(read_words(&[]), (0, 0));
    }

    #[test]
    fn lines_go_there_and_nonsense_is_an_error() {
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut far = Line::new(there.try_clone().unwrap(), there);
        let mut near = Line::new(here.try_clone().unwrap(), here.try_clone().unwrap());
        let ready = Answer::Ready(vec!["127.0.0.1:7".parse().unwrap()]);
        far.say(&ready);
        assert_eq!(near.answer().unwrap(), ready);
        far.say(&Answer::Failed("no".into()));
        assert_eq!(near.answer().unwrap_err().to_string(), "no");
        far.say(&17);
        assert!(near.answer().unwrap_err().to_string().contains("same version"));
        drop(far);
        assert!(near.answer().unwrap_err().to_string().contains("has ended"));
    }
}
