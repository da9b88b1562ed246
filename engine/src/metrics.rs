//! [`Metrics`]: what workers and others have counted, in the text format of Prometheus.

use core::fmt::{self, Display, Write};

use std_alloc::borrow::ToOwned;
use std_alloc::format;
use std_alloc::string::{String, ToString};
use std_alloc::vec::Vec;

use crate::latency::Latency;
use crate::worker::Stats;

/// The kind of a family of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Metrics of one name, each with different labels.
struct Family {
    name: String,
    help: String,
    kind: Kind,
    /// The labels of each metric, and the lines with its values.
    series: Vec<(String, String)>,
}

/// Gathers metrics of any number of workers, listeners and dialers, and of the program itself. Its
/// text ([`Display`]) has each family once, with its help and type, as `promtool check metrics`
/// requires. Names begin with `doorbell_`, times are in seconds.
///
/// It allocates and formats, so call it on the control plane, with
/// [`Handle::stats`](crate::worker::Handle::stats), which any thread may call.
///
/// ```
/// use doorbell_engine::metrics::Metrics;
/// use doorbell_engine::worker::Stats;
///
/// let mut metrics = Metrics::new();
/// metrics.worker("0", &Stats { received: 7, ..Stats::default() });
/// metrics.worker("1", &Stats { received: 9, ..Stats::default() });
/// metrics.gauge("orders_open", "Orders without an answer.", &[("book", "main")], 3);
/// let text = metrics.to_string();
/// assert!(text.contains("doorbell_worker_received_total{worker=\"1\"} 9\n"));
/// assert_eq!(text.matches("# TYPE doorbell_worker_received_total counter\n").count(), 1);
/// ```
#[derive(Default)]
pub struct Metrics {
    families: Vec<Family>,
}

impl Metrics {
    /// No metrics.
    pub fn new() -> Metrics {
        Metrics::default()
    }

    /// Adds a number that only grows. Its name should end with `_total`. It replaces a metric with
    /// the same name and labels. A metric of another kind under a name that is taken is dropped.
    /// Characters that a name must not contain become `_`.
    pub fn counter(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.plain(Kind::Counter, (name, help), labels, value);
    }

    /// Adds a number that rises and falls, as [`Metrics::counter`] does.
    pub fn gauge(&mut self, name: &str, help: &str, labels: &[(&str, &str)], value: u64) {
        self.plain(Kind::Gauge, (name, help), labels, value);
    }

    /// Adds a histogram of times, as [`Metrics::counter`] does. `unit` is the unit of the clock in
    /// seconds, for example `1e-9` for nanoseconds. The name should end with `_seconds`. The limits
    /// of the buckets are the same for each histogram with that unit.
    pub fn latency(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        latency: &Latency,
        unit: f64,
    ) {
        let buckets = latency.powers().map(|(most, below)| (most as f64 * unit, below));
        let all = (latency.count(), latency.sum() as f64 * unit);
        self.histogram((name, help), labels, buckets, all);
    }

    /// Adds the counters of a worker under a name of your choice.
    pub fn worker(&mut self, worker: &str, stats: &Stats) {
        let labels = &[("worker", worker)];
        for (name, help, value) in counters(stats) {
            self.counter(&format!("doorbell_worker_{name}_total"), help, labels, value);
        }
        let (name, help) = ("doorbell_worker_peers", "Peers of the worker, up or not.");
        self.gauge(name, help, labels, stats.peers);
        let name = "doorbell_worker_receives_out_max";
        let help = "Most receives of the shared queue that the worker had at a time.";
        self.gauge(name, help, labels, stats.receives_out_most);
        let name = "doorbell_worker_requests_per_doorbell";
        let help = "Requests that one doorbell rang for.";
        // Not `stats.doorbells`: numbers read by another thread are not of one moment.
        let doorbells = stats.batches.iter().sum();
        self.histogram(
            (name, help),
            labels,
            powers(&stats.batches),
            (doorbells, stats.sent as f64),
        );
        let name = "doorbell_worker_completions_per_poll";
        let help = "Completions of one poll that found some.";
        let polls = stats.polls.iter().sum();
        self.histogram(
            (name, help),
            labels,
            powers(&stats.polls),
            (polls, stats.completions as f64),
        );
        let name = "doorbell_worker_status_errors_total";
        let help = "Completions with an error, by their status (enum ibv_wc_status).";
        for (status, value) in stats.errors_by_status.iter().enumerate().filter(|(_, n)| **n > 0) {
            let labels = &[("worker", worker), ("status", &status.to_string())];
            self.counter(name, help, labels, *value);
        }
    }

    fn plain(&mut self, kind: Kind, name: (&str, &str), labels: &[(&str, &str)], value: u64) {
        let (name, labels) = ((legal(name.0), name.1), written(labels));
        let line = format!("{}{} {value}\n", name.0, braced(&labels));
        self.put(kind, name, labels, line);
    }

    /// Adds a histogram, from its upper limits and the number of values up to each.
    fn histogram(
        &mut self,
        (name, help): (&str, &str),
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        let (name, labels) = (legal(name), written(labels));
        let comma = if labels.is_empty() { "" } else { "," };
        let mut lines = String::new();
        let limits = buckets.map(|(most, below)| (most.to_string(), below));
        for (most, below) in limits.chain([("+Inf".to_owned(), count)]) {
            let bucket = format!("{name}_bucket{{{labels}{comma}le=\"{most}\"}} {below}\n");
            lines.push_str(&bucket);
        }
        let braced = braced(&labels);
        lines.push_str(&format!("{name}_sum{braced} {sum}\n{name}_count{braced} {count}\n"));
        self.put(Kind::Histogram, (name, help), labels, lines);
    }

    fn put(&mut self, kind: Kind, (name, help): (String, &str), labels: String, lines: String) {
        let known = self.families.iter().position(|family| family.name == name);
        let at = known.unwrap_or_else(|| {
            let help = help.replace('\\', "\\\\").replace('\n', "\\n");
            self.families.push(Family { name, help, kind, series: Vec::new() });
            self.families.len() - 1
        });
        let Family { kind: first, series, .. } = &mut self.families[at];
        // If two kinds share a name, the first counts.
        if *first != kind {
            return;
        }
        match series.iter_mut().find(|(known, _)| *known == labels) {
            Some((_, old)) => *old = lines,
            None => series.push((labels, lines)),
        }
    }
}

impl Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Family { name, help, kind, series } in &self.families {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            write!(f, "# HELP {name} {help}\n# TYPE {name} {kind}\n")?;
            series.iter().try_for_each(|(_, lines)| f.write_str(lines))?;
        }
        Ok(())
    }
}

/// The plain counters of a worker: names, meanings, values.
fn counters(stats: &Stats) -> [(&'static str, &'static str, u64); 17] {
    [
        ("turns", "Turns of the worker's loop.", stats.turns),
        ("idle_turns", "Turns that found nothing.", stats.idle_turns),
        ("completions", "Completions taken.", stats.completions),
        ("received", "Messages received.", stats.received),
        ("sent", "Requests handed to the device.", stats.sent),
        ("doorbells", "Posts of sends.", stats.doorbells),
        ("credit_stalls", "Messages that found no credit.", stats.credit_stalls),
        ("credit_returns", "Words of credit sent to peers.", stats.credit_returns),
        ("deferred", "Replies that had to wait.", stats.deferred),
        ("post_full", "Posts cut short by a full queue.", stats.post_full),
        ("errors", "Completions with an error.", stats.errors),
        ("strays", "Completions of peers that are gone.", stats.strays),
        ("close_lost", "Connections whose end was not reported.", stats.close_lost),
        ("refilled", "Receives given back to the shared queue.", stats.refilled),
        ("datagrams_received", "Datagrams received.", stats.datagrams_received),
        ("datagrams_sent", "Datagrams sent.", stats.datagrams_sent),
        ("breaches", "Peers that broke the rules of credit.", stats.breaches),
    ]
}

/// Counts of 1, 2 to 3, 4 to 7 and so on: the upper limits, and the counts up to each.
fn powers(counts: &[u64]) -> impl Iterator<Item = (f64, u64)> {
    let mut below = 0;
    counts.iter().enumerate().map(move |(n, count)| {
        below += count;
        (((2u64 << n) - 1) as f64, below)
    })
}

/// A valid name: letters, digits, `_`, `:`; no digit in front.
fn legal(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut legal: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if legal.chars().next().is_none_or(|c| c.is_ascii_digit()) {
        legal.insert(0, '_');
    }
    legal
}

/// Labels in the text format, without braces.
fn written(labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let name = legal(name).replace(':', "_");
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{comma}{name}=\"{value}\"");
    }
    text
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts by powers of two become cumulative buckets, even if they are not of one moment.
    #[test]
    fn counts_become_buckets() {
        let mut stats = Stats { sent: 22, doorbells: 9, ..Stats::default() };
        (stats.batches[0], stats.batches[1], stats.batches[4]) = (1, 2, 1);
        let mut metrics = Metrics::new();
        metrics.worker("3", &stats);
        let text = metrics.to_string();
        let name = "doorbell_worker_requests_per_doorbell";
        for (le, count) in [("1", 1), ("3", 3), ("15", 3), ("31", 4), ("127", 4), ("+Inf", 4)] {
            let line = format!("{name}_bucket{{worker=\"3\",le=\"{le}\"}} {count}\n");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert!(text.contains(&format!("{name}_sum{{worker=\"3\"}} 22\n")));
        assert!(text.contains(&format!("{name}_count{{worker=\"3\"}} 4\n")));
    }

    /// The limits of a histogram do not depend on its values: else several could not be added.
    #[test]
    fn histograms_of_times_have_the_same_limits() {
        let limits = [None, Some(10), Some(1_000_000_000)].map(|value| {
            let mut latency = Latency::new();
            value.inspect(|value| latency.record(*value));
            let mut metrics = Metrics::new();
            metrics.latency("a_seconds", "A.", &[], &latency, 1e-9);
            let text = metrics.to_string();
            let limit = |line: &str| {
                line.split_once("le=").map(|(_, le)| le.split_once('}').unwrap().0.to_owned())
            };
            text.lines().filter_map(limit).collect::<Vec<_>>()
        });
        assert!(limits[0].len() > 60 && limits[0] == limits[1] && limits[1] == limits[2]);
    }

    #[test]
    fn a_name_keeps_its_first_kind() {
        let mut metrics = Metrics::new();
        metrics.counter("a_total", "A.", &[], 1);
        metrics.gauge("a_total", "A.", &[], 2);
        metrics.counter("a_total", "B.", &[], 3);
        let text = "# HELP a_total A.\n# TYPE a_total counter\na_total 3\n";
        assert_eq!(metrics.to_string(), text);
    }
}
