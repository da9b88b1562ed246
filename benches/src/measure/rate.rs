//! `rate`: a stream of messages one way, one doorbell for each batch, until the last message has
//! arrived.

use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use doorbell::Fabric;
use doorbell::worker::{PeerId, SEND_BATCH};

use crate::error::Failure;
use crate::machine::interrupt;
use crate::measure::piece::Piece;
use crate::measure::record::Part;
use crate::measure::{live, times};
use crate::meet::wire;
use crate::side::session::Session;

/// Messages between two polls of the sender.
const POLL_EVERY: u32 = 16;

/// Messages between two looks at the clock.
const LOOK_EVERY: u32 = 1024;

/// Sends for `time` over the first `qps` connections in turn, `batch` messages to a doorbell.
pub(crate) fn measure<F: Fabric>(
    session: &mut Session<F>,
    size: usize,
    (qps, batch): (usize, u32),
    time: Duration,
) -> Result<Piece, Failure> {
    let peers = session.worker.handler().peers[..qps].to_vec();
    let payloads = wire::filled(size).repeat(batch as usize);
    let mut streams = Streams { peers, sent: vec![0; qps], size, payloads, batch };
    streams.send_for(session, time / 5)?;
    let (_, early) = session.settle(wire::MARK)?;
    streams.sent.fill(0);
    let count = times::parts(time);
    let mut rates = Vec::with_capacity(count as usize);
    session.mark();
    let start = Instant::now();
    for _ in 0..count {
        if interrupt::is_asked() {
            break;
        }
        let (before, part) = (streams.count(), Instant::now());
        streams.send_for(session, time / count)?;
        let rate = (streams.count() - before) as f64 / part.elapsed().as_secs_f64();
        live::rate(rate);
        rates.push(rate);
    }
    let tally = session.tally();
    let (received, wrong) = session.settle(wire::END)?;
    let passed = start.elapsed();
    let messages = streams.count();
    // A message too many is as wrong as one too few.
    let lost = messages.abs_diff(received) + wrong + early;
    let parts = rates.into_iter().map(Part::of_rate).collect();
    Ok(Piece { half_rtt_ns: None, passed: Some(passed), messages, lost, tally, parts })
}

/// One stream for each peer.
struct Streams {
    peers: Vec<PeerId>,
    /// Messages sent to each peer.
    sent: Vec<u64>,
    size: usize,
    /// The messages of a batch, one behind the other.
    payloads: Vec<u8>,
    /// Messages to a doorbell.
    batch: u32,
}

impl Streams {
    /// Messages sent to all peers.
    fn count(&self) -> u64 {
        self.sent.iter().sum()
    }

    fn send_for<F: Fabric>(
        &mut self,
        session: &mut Session<F>,
        time: Duration,
    ) -> Result<(), Failure> {
        let start = Instant::now();
        let (mut to, mut unpolled, mut unlooked) = (0, 0, 0);
        loop {
            let (peer, number) = (self.peers[to], self.sent[to]);
            self.stamp(number);
            if self.batch == 1 {
                session.send_now(peer, &self.payloads)?;
            } else {
                for part in self.payloads.chunks(SEND_BATCH * self.size) {
                    let list: ArrayVec<_, SEND_BATCH> = part.chunks_exact(self.size).collect();
                    session.send_list(peer, &list)?;
                }
                session.worker.outbox().flush();
            }
            self.sent[to] = number + u64::from(self.batch);
            to = if to + 1 == self.peers.len() { 0 } else { to + 1 };
            unpolled += self.batch;
            if unpolled >= POLL_EVERY {
                unlooked += unpolled;
                unpolled = 0;
                session.turn()?;
                if unlooked >= LOOK_EVERY {
                    unlooked = 0;
                    session.planted.work();
                    if start.elapsed() >= time || interrupt::is_asked() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Numbers the next batch, from `first` on.
    #[inline(always)]
    fn stamp(&mut self, first: u64) {
        for (payload, number) in self.payloads.chunks_exact_mut(self.size).zip(first..) {
            wire::stamp(payload, number);
        }
    }
}
