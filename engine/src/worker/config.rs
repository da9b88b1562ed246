//! Every limit of a worker is a number here.

use std_alloc::format;
use std_alloc::string::String;

use super::credit::WINDOW_MAX;
use crate::error::{Code, SetupError};
use crate::provider::{Caps, GRH_BYTES, Provider, Qp, QpCaps};

/// Completions taken in one poll.
pub const POLL_BATCH: usize = 64;

/// The most sends to one peer that go out with one doorbell.
pub const SEND_BATCH: usize = 64;

/// The most messages, sent one by one, that go out with the first doorbell since a flush, on a
/// device whose doorbell is a store. The next doorbell rings for twice as many, up to
/// [`SEND_BATCH`]. So the peer takes the first messages while this side writes the next, and long
/// streams still need few doorbells.
pub const STORE_BATCH: usize = 8;

/// Peers that may have a batch of unsent messages at a time; one more peer makes the worker post
/// them all.
pub const DIRTY_PEERS: usize = 64;

/// Longest payload a worker stages for an inline send, in bytes.
pub const INLINE_MAX: usize = 256;

/// The longest payload that goes inline on a device that takes inline messages one by one. Such a
/// device copies a short payload during the post in any case, and a send from a block asks for a
/// completion too. On soft, with near cores, half a round trip of 256 bytes through the ring took
/// 110 ns from a block and 95 ns inline.
pub(super) const COPIED_MAX: u32 = 1024;

/// The most pieces of one request.
pub const PIECES_MAX: usize = 4;

/// The fewest requests in flight that a worker works with.
pub(super) const SENDS_LEAST: u32 = 4 * SEND_BATCH as u32;

/// Limits of a worker and of the receive memory it shares: counts, and bytes where the name says
/// so. [`Config::check`] names a number that is out of range.
///
/// The defaults are for up to 256 peers with messages of up to 4 KiB. They need some 5.1 MiB of
/// registered memory: less than the 8 MiB that many systems let a process lock without privileges
/// (`ulimit -l`), which a NIC's memory counts against.
///
/// **Windows.** A peer's window is the number of messages that it may have under way. Each peer has
/// `window_min` receives as long as it is connected. They are set aside for `peers` peers when the
/// queue is made, so a worker admits all of them. The other receives are shared. A new peer also
/// gets a quarter of the shared receives that nobody has, up to `window` in all. Peers that use
/// their windows get equal shares, up to `window` each, whichever came first. A peer that falls
/// idle loses its share when others are busy. With the defaults each of 256 peers has 2 receives,
/// and 480 are shared: each of 3 busy peers has a window of 128, each of 10 has 50, and each of 200
/// has 4.
///
/// So any send may be refused, even if only one message is in flight: try it again after a turn. A
/// program that needs room for `n` messages at once sets `window_min` to `n + 1` at the receiving
/// side. See [`Outbox::room`](super::Outbox::room).
///
/// **Caches.** Receives are used in turn, so a stream of long messages writes all blocks one after
/// the other. If the blocks of both sides fit into the last-level cache, messages are copied within
/// it. On soft, half a round trip of 64 KiB took 1.7 µs with 4 MiB of receives, and 2.1 µs with 64
/// MiB. One of 1 MiB took 29 and 60 µs, and the rate in one direction was double with 4 MiB.
///
/// Writing memory that another core has just read is slow too, because each line must be taken back
/// from that core's private cache. So on soft the send blocks are used in turn as well. Their best
/// total size is once or twice that of the private cache: on cores with 1 MiB each, half a round
/// trip of 16 and of 64 KiB was shortest with 2 MiB. A stream of messages of 16 and of 64 KiB
/// from 1 MiB of a program's own memory ([`Worker::adopt_own`](super::Worker::adopt_own)) was twice
/// as fast as one from 512 KiB; with messages of 2 KiB, 64 KiB of memory was best.
///
/// [`Config::builder`] chooses the numbers from what a program wants. With the feature `serde` a
/// file can hold them: a missing field has its default, and an unknown field is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Config {
    /// The most peers of one worker at a time, 1 to 65 536. The receive queue sets receives aside
    /// for this many peers in total, also if several workers share it. Workers that have more peers
    /// together admit them as long as receives are left. Default: 256, so that all memory stays
    /// below 8 MiB.
    pub peers: u32,
    /// Sends outstanding per peer: a power of two, 4 to 16 384. Default: 256.
    pub send_queue: u32,
    /// Bytes of one block, 64 to 2^30: the longest message that is sent or received. Default:
    /// 4096.
    pub block_bytes: u32,
    /// Blocks of a shared receive queue, over all workers that share it: at least `window_min` for
    /// each of `peers`, and `refill` for each worker; 4 to 2^24 - 1. Default: 1024, four for each
    /// peer: half of them are shared by those that are busy.
    pub recv_blocks: u32,
    /// Blocks of one worker for sends that are not inline, 1 to 2^24 - 1. Default: 256.
    pub send_blocks: u32,
    /// Inline limit asked of the device, in bytes, at most [`INLINE_MAX`]. Default: 220. With the
    /// default, the device in software takes messages of up to 1 KiB inline; any other number holds
    /// on every device.
    pub inline_bytes: u32,
    /// One of this many sends to a peer asks for a completion; at most half of `send_queue`.
    /// Default: 64.
    pub signal_every: u32,
    /// Sends and requests in flight over all peers, at least 256: the completion queue has room for
    /// them. On a device with shorter completion queues fewer are in flight. From half of it on,
    /// every post asks for a completion, so sends to idle peers never take more than half of it.
    /// From a quarter on, the worker ends those to quiet peers: it writes each a credit word that
    /// asks for a completion. Default: 16 384.
    pub sends: u32,
    /// Turns that unsent messages may wait while each poll returns as many completions as it can,
    /// so that batches grow under load. After a poll with fewer, all are sent. Any number; with 0
    /// they never wait. Default: 2.
    pub hold_turns: u32,
    /// Receives that go back to the shared queue in one post. Default: 32.
    pub refill: u32,
    /// The most receives of the shared queue that are promised to one peer, at most 65 535: the
    /// messages that the peer may have in flight. The peer gets an RDMA WRITE with new credit for
    /// each half of its window, so short windows cost more. 0 turns credits off: then peers that
    /// send too fast wait for their devices' retries, and compete for the receives. Default: 128,
    /// half of a send queue.
    pub window: u32,
    /// Receives promised to each peer all the time, at least 2: one for a message and one for a
    /// reply. With `window_min` equal to `window` all windows keep their length. Default: 2.
    pub window_min: u32,
    /// How many times each receive may be promised, 1 to 65 536. With 1, every message finds a
    /// receive. Larger numbers are for thousands of peers that are mostly idle: no peer takes more
    /// than its window, but if too many send at once, some wait for their devices' retries, as
    /// without credits. Default: 1.
    pub overcommit: u32,
    /// Messages that a handler may keep at a time ([`Outbox::keep`](super::Outbox::keep)); at most
    /// 65 536. Default: 64.
    pub keeps: u32,
    /// Requests with a token that may be pending at a time, over all peers; at most 65 536.
    /// Default: 64.
    pub requests: u32,
    /// Timers a handler may have set, at a time; at most 65 536. Default: 64.
    pub timers: u32,
    /// Keys of other threads ([`Handle::submit`](super::Handle::submit)) that wait for the worker
    /// at a time; at most 65 536. Default: 64.
    pub work: u32,
    /// Receives for datagrams; 0: no datagrams. They are not shared with the peers. Default: 0.
    pub datagrams: u32,
    /// Bytes of the longest datagram that is sent or received: at most the device's MTU. Default:
    /// 1024.
    pub datagram_bytes: u32,
    /// Resolved destinations of datagrams at a time; at most 65 536. Default: 64.
    pub destinations: u32,
    /// True: on a device with thread domains ([`crate::provider::Caps::thread_domains`]) the worker
    /// has a thread domain, and its queue pairs need no locks; the shared receive queue and all
    /// memory stay on the protection domain. False, or a device without them: everything is on the
    /// protection domain. Default: true.
    pub thread_domain: bool,
    /// Turns that the end of a peer may take. After them a failed peer is abandoned although some
    /// of its completions are missing, and a peer that is being finished is closed although it has
    /// not acknowledged everything ([`Outbox::finish`](super::Outbox::finish), [`Worker::drain`]).
    /// 0 is the next turn. Default: 2^26 (67 108 864). Turns without a pause take about a second
    /// for that; a thread that does other work or yields between turns takes longer, up to minutes.
    /// By default a lost packet is repeated after 0.27 s ([`Retry::ack_timeout`]), so there is time
    /// for two repetitions.
    ///
    /// [`Worker::drain`]: super::Worker::drain
    pub drain_turns: u64,
    /// How its connections retry requests without an answer.
    pub retry: Retry,
}

/// How a connection retries requests that get no answer. Both queue pairs are configured with it
/// when the connection comes up. A lost packet costs one wait, and a peer that is gone costs all of
/// them. They begin with the next send to it: see [`DownReason::Failed`](super::DownReason::Failed)
/// for a worker that only receives. Soft loses no packet and notices a peer's death by its socket,
/// so only the first two fields matter there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Retry {
    /// How long the peer waits before it tries again because this side has no receive: 0 to 31, a
    /// code of the table in RC-1; 12 is 0.64 ms. Connection managers leave it at 0, which is 655 ms
    /// (QP-20, QP-21). Default: 12.
    pub rnr_timer: u8,
    /// The peer's retries for lack of a receive, 0 to 7; 7 is for ever. Default: 7.
    pub rnr_retry: u8,
    /// Wait for an acknowledgement: 4.096 µs times 2 to this power, 1 to 31, or 0 for ever (RC-2);
    /// 16 is 0.27 s. Connection managers use 19 and more, 2.1 s (QP-20). Default: 16.
    pub ack_timeout: u8,
    /// Retries for lack of an acknowledgement, 0 to 7; both sides use the dialing side's value.
    /// Default: 7.
    pub retry_count: u8,
}

impl Retry {
    /// Gives a dead peer up after two seconds. A peer without receives is never given up, because
    /// its receives come back.
    pub const DEFAULT: Retry =
        Retry { rnr_timer: 12, rnr_retry: 7, ack_timeout: 16, retry_count: 7 };
}

impl Default for Retry {
    fn default() -> Retry {
        Retry::DEFAULT
    }
}

impl Config {
    /// Up to 256 peers with messages of up to 4 KiB: 1024 receives. See [`Config`] for why.
    pub const DEFAULT: Config = Config {
        peers: 256,
        send_queue: 256,
        block_bytes: 4096,
        recv_blocks: 1024,
        send_blocks: 256,
        inline_bytes: 220,
        signal_every: 64,
        sends: 1 << 14,
        hold_turns: 2,
        refill: 32,
        window: 128,
        window_min: 2,
        overcommit: 1,
        keeps: 64,
        requests: 64,
        timers: 64,
        work: 64,
        datagrams: 0,
        datagram_bytes: 1024,
        destinations: 64,
        thread_domain: true,
        drain_turns: 1 << 26,
        retry: Retry::DEFAULT,
    };

    /// As many blocks as fit in `bytes` of memory for each worker, as a placement plan counts it:
    /// two thirds hold receives, which `sharers` workers put together for their shared queue, and
    /// one third holds sends. At most 2^20 blocks each. [`Config::check`] reports too little
    /// memory. A device may allow fewer: the completion queue of a worker has an entry for each
    /// receive ([`crate::provider::Caps::cqe_max`]), and `Worker::new` refuses more.
    #[must_use]
    pub fn with_memory(self, bytes: u64, sharers: u32) -> Config {
        let blocks = |bytes: u64| (bytes / self.stride() as u64).min(1 << 20) as u32;
        let recv_blocks = blocks((bytes / 3 * 2).saturating_mul(sharers.into()));
        let refill = self.refill.min(recv_blocks / 4);
        Config { recv_blocks, send_blocks: blocks(bytes / 3), refill, ..self }
    }

    /// Bytes from one block to the next: an odd number of cache lines, so that the first lines of
    /// blocks fall into different sets of a cache. With 4096 they would all share one.
    pub fn stride(&self) -> usize {
        ((self.block_bytes as usize).div_ceil(64) | 1) * 64
    }

    /// Bytes of the memory a [`super::SharedRecv`] needs.
    pub fn recv_bytes(&self) -> usize {
        self.recv_blocks as usize * self.stride()
    }

    /// Bytes of the memory a [`super::Worker`] needs.
    pub fn send_bytes(&self) -> usize {
        let datagrams = self.datagrams as usize * self.datagram_stride();
        self.send_blocks as usize * self.stride() + datagrams
    }

    /// Bytes from one receive of datagrams to the next, including the header in front of each.
    pub(super) fn datagram_stride(&self) -> usize {
        ((GRH_BYTES + self.datagram_bytes as usize).div_ceil(64) | 1) * 64
    }

    /// Capacities of the queue pair for datagrams of this worker.
    pub fn datagram_caps(&self) -> QpCaps {
        QpCaps { recv_wr: self.datagrams, send_wr: self.send_queue, send_sge: 1, ..self.qp_caps() }
    }

    /// Capacities of a peer's queue pair. It has two slots more than `send_queue`: one for a credit
    /// word, and one for the request that marks the end of a closing peer. A credit word goes
    /// inline.
    pub fn qp_caps(&self) -> QpCaps {
        QpCaps {
            send_wr: self.send_queue + 2,
            recv_wr: 0,
            send_sge: PIECES_MAX as u32,
            recv_sge: 1,
            inline: self.inline_bytes.max(size_of::<u64>() as u32),
        }
    }

    /// The longest payload that goes inline to a peer whose blocks hold it.
    pub(super) fn inline_on<P: Provider>(&self, caps: &Caps) -> u32 {
        let is_default = self.inline_bytes == Config::DEFAULT.inline_bytes;
        match P::Qp::POSTS_INLINE && is_default {
            true => COPIED_MAX.min(caps.inline_max).min(self.block_bytes).max(self.inline_bytes),
            false => self.inline_bytes,
        }
    }

    /// Receives that are set aside for the base windows of the peers, each as often as it may be
    /// promised.
    pub(super) fn reserved(&self) -> u32 {
        self.peers.saturating_mul(self.window_min)
    }

    /// Entries of the completion queue for other than requests: each receive of the shared queue
    /// and of datagrams may complete here, and for each peer the request that marks its end.
    pub(super) fn other_completions(&self, shared_receives: u32) -> u32 {
        shared_receives.saturating_add(self.datagrams).saturating_add(self.peers)
    }

    /// The most requests in flight: all send queues full, or [`Config::sends`].
    pub(super) fn sends_most(&self) -> u32 {
        let queues = self.peers.saturating_add(u32::from(self.datagrams > 0));
        queues.saturating_mul(self.send_queue + 1).min(self.sends)
    }

    /// Checks that the numbers fit together.
    ///
    /// # Errors
    /// `Invalid`, with the name of the number and its range.
    pub fn check(&self) -> Result<(), SetupError> {
        if !self.send_queue.is_power_of_two() {
            return Err(invalid(
                "send_queue",
                self.send_queue,
                "a power of two from 4 to 16384".into(),
            ));
        }
        for Limit { name, value, least, most, why } in self.limits() {
            if !(least..=most).contains(&value) {
                return Err(invalid(name, value, format!("{least} to {most}{why}")));
            }
        }
        if self.window > 0 && !(2..=self.window).contains(&self.window_min) {
            return Err(invalid("window_min", self.window_min, "2 to window".into()));
        }
        let receives = self.recv_blocks.saturating_sub(self.refill).saturating_mul(self.overcommit);
        if self.window > 0 && self.reserved() > receives {
            let least = self.reserved().div_ceil(self.overcommit).saturating_add(self.refill);
            let may = format!(
                "{least} at least: window_min = {} for each of peers = {}, and refill = {}",
                self.window_min, self.peers, self.refill
            );
            return Err(invalid("recv_blocks", self.recv_blocks, may)
                .cure("Config::builder chooses numbers that fit together"));
        }
        if self.datagrams > 0 && self.datagram_bytes > self.block_bytes {
            let may = "block_bytes at most".into();
            return Err(invalid("datagram_bytes", self.datagram_bytes, may));
        }
        Ok(())
    }

    /// The range of each number.
    fn limits(&self) -> [Limit; 22] {
        let limit = |name, value, least, most| Limit { name, value, least, most, why: "" };
        let half = Limit {
            why: ", half of send_queue",
            ..limit("signal_every", self.signal_every, 1, self.send_queue / 2)
        };
        let quarter = Limit {
            why: ", a quarter of recv_blocks",
            ..limit("refill", self.refill, 1, self.recv_blocks / 4)
        };
        let Retry { rnr_timer, rnr_retry, ack_timeout, retry_count } = self.retry;
        let (table, blocks) = (1 << 16, (1 << 24) - 1);
        [
            limit("peers", self.peers, 1, table),
            limit("send_queue", self.send_queue, 4, 1 << 14),
            limit("block_bytes", self.block_bytes, 64, 1 << 30),
            limit("recv_blocks", self.recv_blocks, 4, blocks),
            limit("send_blocks", self.send_blocks, 1, blocks),
            limit("inline_bytes", self.inline_bytes, 0, INLINE_MAX as u32),
            half,
            limit("sends", self.sends, SENDS_LEAST, u32::MAX),
            quarter,
            limit("window", self.window, 0, WINDOW_MAX),
            limit("overcommit", self.overcommit, 1, 1 << 16),
            limit("keeps", self.keeps, 0, table),
            limit("requests", self.requests, 0, table),
            limit("timers", self.timers, 0, table),
            limit("work", self.work, 0, table),
            limit("destinations", self.destinations, 0, table),
            limit("datagrams", self.datagrams, 0, blocks),
            limit("datagram_bytes", self.datagram_bytes, 1, 1 << 16),
            limit("retry.rnr_timer", rnr_timer.into(), 0, 31),
            limit("retry.rnr_retry", rnr_retry.into(), 0, 7),
            limit("retry.ack_timeout", ack_timeout.into(), 0, 31),
            limit("retry.retry_count", retry_count.into(), 0, 7),
        ]
    }
}

/// The range of a number of [`Config`].
struct Limit {
    name: &'static str,
    value: u32,
    least: u32,
    most: u32,
    /// The other number that the maximum comes from, if there is one.
    why: &'static str,
}

fn invalid(name: &str, value: u32, may: String) -> SetupError {
    let asked = format!("a worker with {name} = {value}");
    SetupError::new(Code::Invalid, asked, format!("{name} must be {may}"))
}

impl Default for Config {
    fn default() -> Config {
        Config::DEFAULT
    }
}

const _: () = assert!(SEND_BATCH.is_power_of_two(), "batches are counted by powers of two");
const _: () = assert!(STORE_BATCH <= SEND_BATCH, "batches grow");
const _: () = assert!(DIRTY_PEERS >= POLL_BATCH, "a poll's replies never ring early");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_holds_and_each_rule_can_fail() {
        let good = Config::DEFAULT;
        assert_eq!(good.check(), Ok(()));
        let bad = [
            ("peers", Config { peers: 0, ..good }),
            ("peers", Config { peers: 1 << 17, ..good }),
            ("send_queue", Config { send_queue: 48, ..good }),
            ("block_bytes", Config { block_bytes: 63, ..good }),
            ("recv_blocks", Config { recv_blocks: 0, ..good }),
            ("recv_blocks", Config { recv_blocks: 543, ..good }),
            ("recv_blocks", Config { overcommit: 2, recv_blocks: 287, ..good }),
            ("send_blocks", Config { send_blocks: 0, ..good }),
            ("inline_bytes", Config { inline_bytes: 257, ..good }),
            ("signal_every", Config { signal_every: 129, ..good }),
            ("signal_every", Config { signal_every: 0, ..good }),
            ("refill", Config { refill: 257, ..good }),
            ("window", Config { window: 1 << 16, ..good }),
            ("overcommit", Config { overcommit: 0, ..good }),
            ("window_min", Config { window_min: 1, ..good }),
            ("window_min", Config { window_min: 129, ..good }),
            ("sends", Config { sends: 255, ..good }),
            (
                "retry.rnr_timer",
                Config { retry: Retry { rnr_timer: 32, ..Retry::DEFAULT }, ..good },
            ),
            ("retry.rnr_retry", Config { retry: Retry { rnr_retry: 8, ..Retry::DEFAULT }, ..good }),
            (
                "retry.ack_timeout",
                Config { retry: Retry { ack_timeout: 32, ..Retry::DEFAULT }, ..good },
            ),
            (
                "retry.retry_count",
                Config { retry: Retry { retry_count: 8, ..Retry::DEFAULT }, ..good },
            ),
            ("keeps", Config { keeps: 1 << 17, ..good }),
            ("timers", Config { timers: 1 << 17, ..good }),
            ("requests", Config { requests: 1 << 17, ..good }),
            ("work", Config { work: 1 << 17, ..good }),
            ("destinations", Config { destinations: 1 << 17, ..good }),
            ("datagrams", Config { datagrams: 1 << 24, ..good }),
            ("datagram_bytes", Config { datagram_bytes: 0, ..good }),
            ("datagram_bytes", Config { datagrams: 1, datagram_bytes: 4097, ..good }),
        ];
        let least = [(544, 1), (288, 2)];
        for (recv_blocks, overcommit) in least {
            assert_eq!(Config { recv_blocks, overcommit, ..good }.check(), Ok(()));
        }
        for (name, config) in bad {
            let error = config.check().unwrap_err();
            assert_eq!(error.code(), Code::Invalid, "{config:?}");
            let said = std::format!("{error}");
            assert!(said.contains(&std::format!("with {name} = ")), "{said}");
        }
    }

    /// A plan's memory for a worker is used, and not exceeded.
    #[test]
    fn memory_is_filled_and_not_overrun() {
        let few = Config { peers: 64, ..Config::DEFAULT };
        for (bytes, sharers) in [(1 << 20, 1), (64 << 20, 2), ((64 << 20) + 12_345, 3)] {
            let config = few.with_memory(bytes, sharers);
            let used = config.recv_bytes() as u64 / u64::from(sharers) + config.send_bytes() as u64;
            assert!(
                used <= bytes && used > bytes - 4 * config.stride() as u64,
                "{used} of {bytes}"
            );
            config.check().unwrap();
        }
        let most = Config::DEFAULT.with_memory(u64::MAX, u32::MAX);
        assert_eq!((most.recv_blocks, most.send_blocks), (1 << 20, 1 << 20));
        most.check().unwrap();
        let error = Config::DEFAULT.with_memory(4160, 1).check().unwrap_err();
        assert!(std::format!("{error}").contains("recv_blocks"), "{error}");
    }
}
