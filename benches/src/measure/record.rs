//! The records: one for each figure, with its conditions (command, commit, machine, device). The
//! JSON format is fixed, because scripts depend on it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ask::request::{Op, Test, Transport};
use crate::error::Failure;
use crate::machine::Machine;

/// Version of the records.
pub(crate) const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Debug, Serialize)]
pub(crate) struct Document<R = Record> {
    pub(crate) results: Vec<R>,
    /// For `overhead`: bytes of each function that executes many instructions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) hot_function_bytes: BTreeMap<String, u64>,
    pub(crate) machine: Machine,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) commit: Option<String>,
    /// The command line.
    pub(crate) command: String,
    /// True if Ctrl-C ended the run: there are fewer results, or the last one is of a shorter time.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) interrupted: bool,
}

/// The figures of one test at one size. Figures that do not apply are left out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    pub(crate) schema: u32,
    pub(crate) test: Test,
    /// `soft` or `verbs`.
    pub(crate) provider: &'static str,
    pub(crate) device: String,
    pub(crate) size: u32,
    /// For `bandwidth`: `write`, `read` or `send`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) op: Option<Op>,
    /// Messages to a doorbell; for `bandwidth` the most requests outstanding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<u32>,
    /// True for the device alone, without worker and handler.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) bare: bool,
    /// `uc` or `ud`, or nothing for `rc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<Transport>,
    /// True if receives were not shared.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) no_srq: bool,
    pub(crate) qps: u32,
    pub(crate) workers: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) idle_qps: u32,
    pub(crate) signal_every: u32,
    pub(crate) placement: Placement,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// For many ranks: who called whom, and a row for each rank.
    #[serde(flatten)]
    pub(crate) group: Option<Group>,
    pub(crate) messages: u64,
    pub(crate) lost: u64,
    /// Length of a part, if the parts follow each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) part_seconds: Option<f64>,
    /// The figures of each part of the time, in order; of figures that took turns, of each round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Part>,
}

/// The figures of a part of the time. Times are of half round trips, for `load` of whole ones.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Part {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
}

impl Part {
    pub(crate) fn of_rate(rate: f64) -> Part {
        Part { messages_per_second: Some(rate), ..Part::default() }
    }

    /// With whole round trips.
    pub(crate) fn doubled(self) -> Part {
        let of = |figure: Option<f64>| figure.map(|half| 2.0 * half);
        Part {
            p50_ns: of(self.p50_ns),
            p99_ns: of(self.p99_ns),
            max_ns: of(self.max_ns),
            mean_ns: of(self.mean_ns),
            ..self
        }
    }

    /// Times to a tenth and a hundredth of a nanosecond, rates to whole messages.
    pub(crate) fn rounded(self) -> Part {
        let of = |figure: Option<f64>, digits| figure.map(|figure| round(figure, digits));
        Part {
            p50_ns: of(self.p50_ns, 1),
            p99_ns: of(self.p99_ns, 1),
            max_ns: of(self.max_ns, 1),
            mean_ns: of(self.mean_ns, 2),
            messages_per_second: of(self.messages_per_second, 0),
        }
    }
}

/// What was measured. Figures that do not apply are left out.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) half_rtt_ns: Option<HalfRtt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<f64>,
    /// Round trips, each from when its message was due, for `load`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rtt_ns: Option<HalfRtt>,
    /// `fixed`, `poisson`, or the file of recorded arrivals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arrivals: Option<String>,
    /// For a search with `--slo`: the objective, and whether this rate kept it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slo: Option<Kept>,
    /// Messages that were due each second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) offered_per_second: Option<f64>,
    /// For `load`: messages sent a second, divided by those that were due a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_offered: Option<f64>,
    /// Messages that were due and never found room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unsent: Option<u64>,
    /// For `crowd`: the messages of the busy connection that had the fewest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) least_messages: Option<u64>,
    /// For `crowd`: the messages of the busy connection that had the most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) most_messages: Option<u64>,
    /// For `crowd`: receives of the shared queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receives: Option<u32>,
    /// For `crowd`: the most receives that were out at a time on the serving side.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) receives_out_most: Option<u64>,
    /// For `crowd`: messages that found no credit, on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credit_stalls: Option<u64>,
    /// For `crowd`: completions with an error, on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) errors: Option<u64>,
    /// For `crowd`: memory of the connecting process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_bytes: Option<u64>,
    /// For `crowd`: memory of the serving process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_bytes_serving: Option<u64>,
    /// Messages in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) depth: Option<u32>,
    /// The rate, divided by the best one with fewer messages in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_best_below: Option<f64>,
    /// Rounds of a sweep that count, all in one mode of the cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u32>,
    /// Rounds of a sweep that were left out, because the cores moved or were in another mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rounds_left_out: Option<u32>,
    /// Whether a lone message waited for the end of the turn, as a batch does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) batching: Option<bool>,
    /// The time of a lone message with batching, divided by that without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_without_batching: Option<f64>,
    /// Bytes a second of memcpy, in turn with the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memcpy_bytes_per_second: Option<f64>,
    /// The device's bytes a second, divided by memcpy's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_memcpy: Option<f64>,
    /// Time of a message, divided by that without idle connections in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) times_without_idle: Option<f64>,
    /// Memory of an idle connection in the connecting process, or in the one process that both
    /// sides share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_idle_connection: Option<f64>,
    /// Memory of an idle connection in the serving process, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_idle_connection_serving: Option<f64>,
    /// For `overhead`: `echo` or `stream`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<Path>,
    /// For `overhead`: instructions that the worker adds on the side that answers or receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions_per_message: Option<f64>,
    /// For `overhead`: all instructions, on both sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) instructions: Option<Sides>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) doorbells_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completions_per_poll: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allocations_per_message: Option<f64>,
}

/// An objective, and whether a rate kept it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Kept {
    pub(crate) percentile: &'static str,
    pub(crate) limit_ns: f64,
    /// The percentile stayed within the limit, and 99 of 100 messages that were due were sent.
    pub(crate) kept: bool,
    /// True for the highest rate that kept it.
    pub(crate) best: bool,
    /// The try does not count: it was not kept while other programs took the core, or the cores
    /// moved between near and far ones.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) disturbed: bool,
}

impl Figures {
    /// True if the rate kept its objective, or has none.
    pub(crate) fn keeps_objective(&self) -> bool {
        self.slo.as_ref().is_none_or(|slo| slo.kept)
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_false(yes: &bool) -> bool {
    !yes
}

/// What a record of many ranks has more than others.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) pattern: &'static str,
    pub(crate) ranks: u32,
    /// The launcher that started them.
    pub(crate) launcher: &'static str,
    /// Sizes and weights of mixed messages, in bytes; `size` is then the largest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sizes: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) weights: Vec<u32>,
    /// Links of each caller's worker that carry nothing.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) idle_links: u32,
    /// True if workers shared a core: the figures mean little.
    pub(crate) shared_cores: bool,
    pub(crate) per_rank: Vec<Row>,
}

/// The figures of a rank.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) rank: u32,
    pub(crate) host: String,
    pub(crate) cpu: String,
    pub(crate) kernel: String,
    pub(crate) device: String,
    pub(crate) cores: Vec<usize>,
    /// Ranks that it calls, and ranks that call it.
    pub(crate) targets: u32,
    pub(crate) callers: u32,
    pub(crate) messages: u64,
    /// Messages of other ranks that it received.
    pub(crate) received: u64,
    pub(crate) lost: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) half_rtt_ns: Option<HalfRtt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<f64>,
    /// How often other programs took the core of a worker, a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches_per_second: Option<f64>,
}

/// Where the two sides ran.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Placement {
    /// The connecting side's core first. Without the other side's cores if that is another host.
    pub(crate) cores: Vec<usize>,
    /// `threads`, `processes`, `hosts` or `ranks`.
    pub(crate) sides: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) floor_ns: Option<f64>,
    /// NEAR, FAR or MIX.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
    /// How often other programs took the core of the connecting side, a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches_per_second: Option<f64>,
}

/// Which way the messages of `overhead` go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Path {
    /// Each message comes back in its block; one in flight.
    Echo,
    /// One way, in batches.
    Stream,
}

impl Path {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::Echo => "echo",
            Path::Stream => "stream",
        }
    }
}

/// Instructions of a message on one side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// With worker and handler.
    pub(crate) worker: f64,
    /// Of the device alone.
    pub(crate) bare: f64,
    /// The difference.
    pub(crate) added: f64,
}

/// Instructions of a message on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sides {
    /// The side that sends and takes the replies.
    pub(crate) here: Side,
    /// The side that answers, or receives.
    pub(crate) there: Side,
}

/// Half round trips, in nanoseconds. The percentiles are of single round trips, so they are no
/// finer than half the clock's step. The mean is of round trips that were timed as a whole.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HalfRtt {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p99_9: f64,
    pub(crate) p99_99: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl HalfRtt {
    /// Whole round trips.
    pub(crate) fn doubled(self) -> HalfRtt {
        HalfRtt {
            p50: 2.0 * self.p50,
            p90: 2.0 * self.p90,
            p99: 2.0 * self.p99,
            p99_9: 2.0 * self.p99_9,
            p99_99: 2.0 * self.p99_99,
            max: 2.0 * self.max,
            mean: 2.0 * self.mean,
        }
    }

    /// The percentile with this name, as on the command line.
    pub(crate) fn named(&self, name: &str) -> f64 {
        match name {
            "p50" => self.p50,
            "p90" => self.p90,
            "p99" => self.p99,
            "p99.9" => self.p99_9,
            "p99.99" => self.p99_99,
            _ => self.max,
        }
    }

    /// Each rounded to a tenth.
    pub(crate) fn rounded(self) -> HalfRtt {
        let tenth = |ns: f64| round(ns, 1);
        HalfRtt {
            p50: tenth(self.p50),
            p90: tenth(self.p90),
            p99: tenth(self.p99),
            p99_9: tenth(self.p99_9),
            p99_99: tenth(self.p99_99),
            max: tenth(self.max),
            mean: tenth(self.mean),
        }
    }
}

/// A figure without its meaningless digits.
pub(crate) fn round(figure: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (figure * scale).round() / scale
}

/// A document as JSON.
pub(crate) fn to_json(document: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(document);
    let text = text.map_err(|error| Failure::new(format!("write the record: {error}")))?;
    Ok(text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_rounded() {
        assert_eq!(round(62.04999, 1), 62.0);
        assert_eq!(round(1.000_04, 3), 1.0);
    }
}
