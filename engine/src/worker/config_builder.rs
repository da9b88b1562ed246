//! From what a program wants to the numbers of a [`Config`], with the reason for each.

use core::fmt;

use std_alloc::format;
use std_alloc::string::String;
use std_alloc::vec::Vec;

use super::config::Config;
use crate::error::{Code, SetupError};

/// What a worker is to be best at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Many messages a second: under load a doorbell may wait for more messages.
    Throughput,
    /// Each message as soon as possible: a doorbell never waits for another turn.
    Latency,
}

/// Chooses the numbers of a [`Config`] from what a program wants, and says why. All other numbers
/// are those of [`Config::DEFAULT`].
///
/// ```
/// use doorbell_engine::worker::{Config, Goal};
///
/// let wanted = Config::builder().peers(200).message_bytes(512).memory(16 << 20);
/// let (config, report) = wanted.goal(Goal::Latency).build()?;
/// assert_eq!((config.peers, config.block_bytes), (200, 512));
/// assert!(report.bytes_per_worker() <= 16 << 20);
/// // Each number with its reason, and the memory.
/// println!("{report}");
/// # Ok::<(), doorbell_seam::error::SetupError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct ConfigBuilder {
    peers: u32,
    message_bytes: u32,
    workers: u32,
    memory: Option<u64>,
    goal: Goal,
}

/// One number that a [`ConfigBuilder`] chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The field of [`Config`].
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// Why.
    pub reason: String,
}

/// What a [`ConfigBuilder`] chose, and how much memory that takes. [`fmt::Display`] writes it with
/// one choice a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The numbers that follow from what was asked, each with its reason.
    pub choices: Vec<Choice>,
    /// Bytes of registered memory for the receives, which all workers of the queue share.
    pub receive_bytes: u64,
    /// Bytes of registered memory for the sends of each worker.
    pub send_bytes: u64,
    /// Workers that share the receives.
    pub workers: u32,
    /// The window of each peer if all are busy at once, and of one that is busy alone.
    pub windows: [u32; 2],
}

/// With more peers than this, send queues are short: a worker keeps a table for each.
const MANY: u32 = 1024;

/// [`Config::send_queue`] of a worker with more than [`MANY`] peers.
const SEND_QUEUE_OF_MANY: u32 = 64;

/// Bytes that many systems let a process lock without privileges (`ulimit -l`).
const LOCKED_BYTES: u64 = 8 << 20;

impl Default for ConfigBuilder {
    fn default() -> ConfigBuilder {
        let Config { peers, block_bytes: message_bytes, .. } = Config::DEFAULT;
        ConfigBuilder { peers, message_bytes, workers: 1, memory: None, goal: Goal::Throughput }
    }
}

impl ConfigBuilder {
    /// Peers at a time, of all workers that share the receive queue, 1 to 65 536. Default: 256.
    pub fn peers(self, peers: u32) -> ConfigBuilder {
        ConfigBuilder { peers, ..self }
    }

    /// Bytes of the longest message. Default: 4096.
    pub fn message_bytes(self, message_bytes: u32) -> ConfigBuilder {
        ConfigBuilder { message_bytes, ..self }
    }

    /// Workers that share one receive queue. Default: 1.
    pub fn workers(self, workers: u32) -> ConfigBuilder {
        ConfigBuilder { workers, ..self }
    }

    /// The most bytes of registered memory for each worker, with its part of the receives. Default:
    /// what four receives for each peer take, and 256 sends.
    pub fn memory(self, bytes: u64) -> ConfigBuilder {
        ConfigBuilder { memory: Some(bytes), ..self }
    }

    /// What the worker is to be best at. Default: [`Goal::Throughput`].
    pub fn goal(self, goal: Goal) -> ConfigBuilder {
        ConfigBuilder { goal, ..self }
    }

    /// The configuration, and a report of what was chosen and why.
    ///
    /// # Errors
    /// `Invalid`: a number is out of range, or the memory does not hold two receives for each peer,
    /// with the least that does.
    pub fn build(self) -> Result<(Config, Report), SetupError> {
        let base = Config::DEFAULT;
        let workers = self.workers.max(1);
        let block_bytes = self.message_bytes.clamp(1, (1 << 30) + 1).next_multiple_of(64);
        let send_queue = if self.peers > MANY { SEND_QUEUE_OF_MANY } else { base.send_queue };
        let plain = Config {
            peers: self.peers,
            block_bytes,
            send_queue,
            signal_every: send_queue / 4,
            inline_bytes: base.inline_bytes.min(self.message_bytes),
            hold_turns: if self.goal == Goal::Latency { 0 } else { base.hold_turns },
            window: base.window.min(send_queue),
            ..base
        };
        let config = self.with_blocks(plain, workers)?;
        config.check()?;
        Ok((config, self.report(&config, workers)))
    }

    /// As many blocks as there is memory for, but no more than peers can use.
    fn with_blocks(self, plain: Config, workers: u32) -> Result<Config, SetupError> {
        let all = plain.peers;
        let count = |each: u32, more: u32| all.saturating_mul(each).saturating_add(more);
        let refills = plain.refill.saturating_mul(workers);
        // At least one busy peer gets the longest window, beside the base windows of all.
        let want =
            count(4, refills).max(count(plain.window_min, refills.saturating_add(plain.window)));
        let most = count(plain.window, refills);
        let Some(bytes) = self.memory else {
            let send_blocks = plain.send_blocks;
            return Ok(Config { recv_blocks: want, send_blocks, ..plain });
        };
        let room = plain.with_memory(bytes, workers);
        let recv_blocks = room.recv_blocks.min(most);
        let send_blocks = room.send_blocks.min(plain.peers.saturating_mul(plain.send_queue)).max(1);
        let refill = plain.refill.min(recv_blocks / 16).max(1);
        let least = count(plain.window_min, workers).max(4);
        if recv_blocks < least {
            let stride = plain.stride() as u64;
            let need =
                (u64::from(least) * stride).div_ceil(workers.into()).div_ceil(2) * 3 + stride;
            let asked = format!(
                "{bytes} bytes of memory for {} peers with messages of {} bytes",
                self.peers, self.message_bytes
            );
            let answer = format!("two receives for each peer, and sends, take {need} bytes");
            return Err(SetupError::new(Code::Invalid, asked, answer)
                .cure("ask for more memory, or for fewer peers or shorter messages"));
        }
        let least = plain.window_min.saturating_mul(all);
        let refill = refill.min(recv_blocks.saturating_sub(least) / workers).max(1);
        Ok(Config { recv_blocks, send_blocks, refill, ..plain })
    }

    fn report(self, config: &Config, workers: u32) -> Report {
        let Config { peers, recv_blocks, refill, window, window_min, .. } = *config;
        let all = u64::from(peers);
        let base = all * u64::from(window_min) + u64::from(refill) * u64::from(workers);
        let surplus = u64::from(recv_blocks).saturating_sub(base);
        let share = |busy: u64| (u64::from(window_min) + surplus / busy.max(1)) as u32;
        let windows = [share(all).min(window), share(1).min(window)];
        let memory = match self.memory {
            Some(bytes) => format!("a part of {bytes} bytes for each worker"),
            None => "four for each peer, and one window".into(),
        };
        let goal = match self.goal {
            Goal::Latency => "no doorbell waits for another turn",
            Goal::Throughput => "under load a doorbell waits for more messages",
        };
        let choice = |field, value: u32, reason| Choice { field, value: value.into(), reason };
        let choices = std_alloc::vec![
            choice("peers", peers, "as asked".into()),
            choice(
                "block_bytes",
                config.block_bytes,
                format!("messages of {} bytes, in whole cache lines", self.message_bytes),
            ),
            choice("recv_blocks", recv_blocks, memory),
            choice("send_blocks", config.send_blocks, "for sends that do not go inline".into()),
            choice("window_min", window_min, "each peer always has these receives".into()),
            choice(
                "window",
                window,
                format!("one busy peer gets {}, all at once {} each", windows[1], windows[0]),
            ),
            choice("refill", refill, "receives that go back with one post".into()),
            choice(
                "send_queue",
                config.send_queue,
                if peers > MANY { "short, for many peers" } else { "twice a window" }.into(),
            ),
            choice("signal_every", config.signal_every, "a quarter of send_queue".into()),
            choice("inline_bytes", config.inline_bytes, "short messages go without a block".into()),
            choice("hold_turns", config.hold_turns, goal.into()),
        ];
        let (receive_bytes, send_bytes) = (config.recv_bytes() as u64, config.send_bytes() as u64);
        Report { choices, receive_bytes, send_bytes, workers, windows }
    }
}

impl Report {
    /// Bytes of registered memory of all workers.
    pub fn bytes(&self) -> u64 {
        self.receive_bytes + self.send_bytes * u64::from(self.workers)
    }

    /// Bytes of registered memory of each worker, with its part of the receives.
    pub fn bytes_per_worker(&self) -> u64 {
        self.bytes().div_ceil(self.workers.max(1).into())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Choice { field, value, reason } in &self.choices {
            writeln!(f, "{field:<12} {value:>8}  {reason}")?;
        }
        let Report { receive_bytes, send_bytes, workers, .. } = self;
        writeln!(
            f,
            "memory: {receive_bytes} bytes of receives and {send_bytes} of sends for each of \
             {workers} workers; {} for each in all, {} together",
            self.bytes_per_worker(),
            self.bytes()
        )?;
        if self.bytes() > LOCKED_BYTES {
            writeln!(f, "on a NIC: locked memory must be allowed for it (`ulimit -l`)")?;
        }
        Ok(())
    }
}

impl Config {
    /// Chooses the numbers from what a program wants.
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts beyond a word are refused, or cut, without an overflow.
    #[test]
    fn no_count_overflows() {
        for workers in [1, 1 << 16, u32::MAX] {
            for peers in [1, 1 << 16, u32::MAX] {
                for memory in [None, Some(1 << 30), Some(u64::MAX)] {
                    let builder = Config::builder().peers(peers).workers(workers);
                    let builder = memory.map_or(builder, |bytes| builder.memory(bytes));
                    if let Ok((config, _)) = builder.build() {
                        assert_eq!(config.check(), Ok(()));
                    }
                }
            }
        }
    }

    /// Whatever is asked, the numbers hold, as many peers as were asked for have receives, the
    /// memory is not exceeded; or the error says what would do.
    #[test]
    fn what_is_built_holds_and_fits() {
        for peers in [1, 2, 200, 1025, 10_000] {
            for (bytes, workers) in [(1, 1), (64, 3), (512, 1), (4096, 2), (1 << 20, 1)] {
                let wanted = Config::builder().peers(peers).message_bytes(bytes).workers(workers);
                let (config, report) = wanted.build().unwrap();
                assert_eq!((config.peers, config.check()), (peers, Ok(())));
                assert!(config.block_bytes >= bytes);
                assert_eq!(report.windows[1], config.window);
                for memory in [1 << 16, 1 << 20, 64 << 20, 1 << 40] {
                    let built = wanted.memory(memory).build();
                    let (config, report) = match built {
                        Ok(built) => built,
                        Err(error) => {
                            let said = format!("{error}");
                            let need = said.split("take ").nth(1).unwrap();
                            let need = need.split(' ').next().unwrap().parse::<u64>().unwrap();
                            assert!(need > memory, "{said}");
                            assert!(wanted.memory(need).build().is_ok(), "{said}");
                            continue;
                        }
                    };
                    assert!(report.bytes_per_worker() <= memory, "{config:?} {report}");
                    let receives = config.reserved() + workers * config.refill;
                    assert!(receives <= config.recv_blocks, "{config:?}");
                }
            }
        }
    }

    /// The report names each choice with its reason, and the memory.
    #[test]
    fn the_report_says_what_and_why() {
        let wanted = Config::builder().peers(200).message_bytes(512).memory(64 << 20).workers(2);
        let (config, report) = wanted.goal(Goal::Latency).build().unwrap();
        let text = format!("{report}");
        let fields = [
            ("peers", config.peers),
            ("recv_blocks", config.recv_blocks),
            ("send_blocks", config.send_blocks),
            ("hold_turns", 0),
        ];
        for (field, value) in fields {
            let line = text.lines().find(|line| line.starts_with(field)).unwrap();
            assert!(line.contains(&format!(" {value} ")), "{line}");
        }
        assert!(text.contains(&format!("{} together", report.bytes())), "{text}");
        assert!(text.contains("ulimit -l"), "{text}");
        let (_, small) = Config::builder().peers(10).build().unwrap();
        assert!(!format!("{small}").contains("ulimit"), "{small}");
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        let refused = |wanted: ConfigBuilder| format!("{}", wanted.build().unwrap_err());
        assert!(refused(Config::builder().peers(0)).contains("peers = 0"));
        assert!(refused(Config::builder().peers(1 << 17)).contains("peers = 131072"));
        assert!(refused(Config::builder().message_bytes(u32::MAX / 2)).contains("block_bytes"));
        let little = refused(Config::builder().peers(200).memory(100_000));
        assert!(little.contains("200 peers") && little.contains("fewer peers"), "{little}");
    }
}
