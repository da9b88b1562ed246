//! The figures of all ranks as one record: times merged, rates summed, and a row for each rank.

use serde::{Deserialize, Serialize};

use crate::ask::request::Test;
use crate::error::Failure;
use crate::measure::record::{
    Figures as Of, Group, HalfRtt, Part, Placement, Record, Row, SCHEMA, round,
};
use crate::measure::times::Times;
use crate::meet::tally::Tally;
use crate::ranks::control::{Figures, PartSum};
use crate::ranks::member::Job;
use crate::ranks::place::Place;

/// What a rank sends to rank 0: the figures of its workers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) workers: Vec<Figures>,
}

/// Where the ranks ran.
pub(crate) struct Stage<'a> {
    pub(crate) places: &'a [Place],
    pub(crate) cores: &'a [Vec<usize>],
    pub(crate) launcher: &'static str,
    /// Some workers share a core.
    pub(crate) is_shared: bool,
}

/// Writes the record of a figure.
///
/// # Errors
/// The times cannot be merged.
pub(crate) fn record(
    job: &Job,
    mix: Option<(&[u32], &[u32])>,
    shares: &[Share],
    stage: &Stage<'_>,
) -> Result<Record, Failure> {
    let is_rate = job.test == Test::Rate;
    let all: Vec<&Figures> = shares.iter().flat_map(|share| &share.workers).collect();
    let tally = Tally::sum(all.iter().map(|of| &of.tally));
    let messages: u64 = all.iter().map(|of| of.messages).sum();
    let per_message = |count: u64| Some(round(count as f64 / messages.max(1) as f64, 4));
    let rows = (0..).zip(shares).map(|(rank, share)| row(job, rank, share, stage));
    let rows = rows.collect::<Result<Vec<Row>, Failure>>()?;
    let rate = is_rate.then(|| all.iter().map(|of| per_second(of, of.messages)).sum::<f64>());
    let bytes = is_rate.then(|| all.iter().map(|of| per_second(of, of.bytes)).sum::<f64>());
    let polls = tally.completions as f64 / tally.busy_turns.max(1) as f64;
    let switches = all.iter().filter_map(|of| of.switches).max_by(f64::total_cmp);
    let parts = parts(is_rate, &all);
    let (sizes, weights) = mix.unwrap_or_default();
    let workers = shares.first().map_or(0, |share| share.workers.len()) as u32;
    let targets = |rank| job.pattern.targets(rank, job.size).len() as u32;
    let links: u32 = (0..job.size).map(targets).sum::<u32>() * workers;
    let first = stage.places.first();
    Ok(Record {
        schema: SCHEMA,
        test: job.test,
        provider: if first.is_some_and(|of| of.is_soft) { "soft" } else { "verbs" },
        device: first.map_or_else(String::new, |of| of.device.clone()),
        size: job.sizes.most(),
        op: None,
        batch: is_rate.then_some(job.batch),
        bare: false,
        transport: None,
        no_srq: false,
        qps: links,
        workers,
        idle_qps: 0,
        signal_every: job.signal_every,
        placement: Placement {
            cores: stage.cores.concat(),
            sides: "ranks",
            switches_per_second: switches.map(|switches| round(switches, 1)),
            ..Placement::default()
        },
        figures: Of {
            half_rtt_ns: half(all.iter().copied())?,
            messages_per_second: rate.map(|rate| round(rate, 0)),
            bytes_per_second: bytes.map(|bytes| round(bytes, 0)),
            doorbells_per_message: per_message(tally.doorbells),
            completions_per_poll: Some(round(polls, 3)),
            allocations_per_message: per_message(tally.allocations),
            ..Of::default()
        },
        messages,
        lost: all.iter().map(|of| of.lost).sum(),
        part_seconds: (!parts.is_empty())
            .then(|| round(job.time.as_secs_f64() / parts.len() as f64, 6)),
        parts,
        group: Some(Group {
            pattern: job.pattern.name(),
            ranks: job.size,
            launcher: stage.launcher,
            sizes: sizes.to_vec(),
            weights: weights.to_vec(),
            idle_links: job.idle_links,
            shared_cores: stage.is_shared,
            per_rank: rows,
        }),
    })
}

fn row(job: &Job, rank: u32, share: &Share, stage: &Stage<'_>) -> Result<Row, Failure> {
    let workers = &share.workers;
    let sum = |of: fn(&Figures) -> u64| workers.iter().map(of).sum::<u64>();
    let messages = sum(|of| of.messages);
    let is_sender = job.test == Test::Rate && messages > 0;
    let rate = |of: fn(&Figures) -> u64| {
        let all = workers.iter().map(|figures| per_second(figures, of(figures)));
        is_sender.then(|| round(all.sum::<f64>(), 0))
    };
    let place = stage.places.get(rank as usize);
    let place = place.ok_or_else(|| Failure::new("a rank without a place"))?;
    let switches = workers.iter().filter_map(|of| of.switches).max_by(f64::total_cmp);
    Ok(Row {
        rank,
        host: place.host.clone(),
        cpu: place.cpu.clone(),
        kernel: place.kernel.clone(),
        device: place.device.clone(),
        cores: stage.cores.get(rank as usize).cloned().unwrap_or_default(),
        targets: job.pattern.targets(rank, job.size).len() as u32,
        callers: job.pattern.callers(rank, job.size),
        messages,
        received: sum(|of| of.received),
        lost: sum(|of| of.lost),
        half_rtt_ns: half(workers.iter())?,
        messages_per_second: rate(|of| of.messages),
        bytes_per_second: rate(|of| of.bytes),
        switches_per_second: switches.map(|switches| round(switches, 1)),
    })
}

/// Half round trips of several workers, merged.
fn half<'a>(all: impl Iterator<Item = &'a Figures>) -> Result<Option<HalfRtt>, Failure> {
    let counts: Vec<&(u64, u64)> = all.flat_map(|of| &of.counts).collect();
    if counts.is_empty() {
        return Ok(None);
    }
    Ok(Some(Times::merged(counts.into_iter())?.half().rounded()))
}

fn per_second(figures: &Figures, count: u64) -> f64 {
    count as f64 * 1e9 / figures.passed_ns.max(1) as f64
}

/// The parts of the time over all workers. They begin together, to a fraction of a millisecond.
fn parts(is_rate: bool, all: &[&Figures]) -> Vec<Part> {
    let callers: Vec<&&Figures> = all.iter().filter(|of| !of.parts.is_empty()).collect();
    // The last part of some may be shorter.
    let count = callers.iter().map(|of| of.parts.len()).min().unwrap_or(0);
    let part = |n: usize| {
        let here: Vec<PartSum> = callers.iter().filter_map(|of| of.parts.get(n).copied()).collect();
        if is_rate {
            let rate = |of: &PartSum| of.messages as f64 / of.seconds;
            return Part::of_rate(here.iter().filter(|of| of.seconds > 0.0).map(rate).sum());
        }
        let messages: u64 = here.iter().map(|of| of.messages).sum();
        let sum: f64 = here.iter().map(|of| of.sum_ns).sum();
        let most = here.iter().map(|of| of.max_ns).fold(0.0, f64::max);
        Part {
            // Two messages make a round trip: the sum by their count is half of one.
            mean_ns: (messages > 0).then(|| sum / messages as f64),
            max_ns: (messages > 0).then_some(most / 2.0),
            ..Part::default()
        }
    };
    (0..count).map(part).map(Part::rounded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_summed_and_times_weighted_part_by_part() {
        let part = |messages, sum_ns, max_ns| PartSum { messages, sum_ns, max_ns, seconds: 0.5 };
        let of = |parts: &[PartSum]| Figures { parts: parts.to_vec(), ..Figures::default() };
        let (one, two) = (
            of(&[part(10, 1000.0, 300.0), part(10, 1000.0, 300.0), part(1, 9.0, 9.0)]),
            of(&[part(30, 6000.0, 900.0), part(30, 6000.0, 900.0)]),
        );
        let idle = of(&[]);
        let rates = parts(true, &[&one, &two, &idle]);
        assert_eq!((rates.len(), rates[0].messages_per_second), (2, Some(80.0)));
        let times = parts(false, &[&one, &two, &idle]);
        assert_eq!((times[0].mean_ns, times[0].max_ns), (Some(175.0), Some(450.0)));
    }
}
