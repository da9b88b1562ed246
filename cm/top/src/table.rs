//! The table, from the text that a program exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A column: its title, the metric, and whether it counts up.
type Column = (&'static str, &'static str, bool);

const WORKER: &[Column] = &[
    ("PEERS", "doorbell_worker_peers", false),
    ("RECEIVED", "doorbell_worker_received_total", true),
    ("SENT", "doorbell_worker_sent_total", true),
    ("DOORBELLS", "doorbell_worker_doorbells_total", true),
    ("STALLS", "doorbell_worker_credit_stalls_total", true),
    ("CREDITS", "doorbell_worker_credit_returns_total", true),
    ("DEFERRED", "doorbell_worker_deferred_total", true),
    ("ERRORS", "doorbell_worker_errors_total", true),
];
const LISTENER: &[Column] = &[
    ("CONNECTIONS", "doorbell_listener_connections", false),
    ("ENDED", "doorbell_listener_ended_total", true),
    ("REFUSED", "doorbell_listener_refused_total", true),
];
const DIALER: &[Column] = &[
    ("CONNECTIONS", "doorbell_dialer_connections", false),
    ("GIVEN UP", "doorbell_dialer_given_up", false),
];

/// The tables, each with the label that names its rows.
const TABLES: &[(&str, &[Column])] =
    &[("worker", WORKER), ("listener", LISTENER), ("dialer", DIALER)];

/// The values of one moment, by metric and by the name of the worker, listener or dialer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Sample(BTreeMap<(String, String), f64>);

impl Sample {
    /// Reads the metrics that it needs from the text, and skips all others. It adds up series that
    /// differ in further labels, such as a reason.
    pub(crate) fn parse(text: &str) -> Sample {
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (metric, label) = series.split_once('{')?;
            let (label, name) = label.strip_suffix("\"}")?.split_once("=\"")?;
            let name = name.split_once("\",").map_or(name, |(name, _)| name);
            let known = TABLES.iter().any(|(row, columns)| {
                *row == label && columns.iter().any(|(_, column, _)| *column == metric)
            });
            let value: f64 = value.parse().ok().filter(|_| known)?;
            Some(((metric.to_owned(), name.to_owned()), value))
        };
        let mut sample = Sample::default();
        for (series, value) in text.lines().filter_map(value) {
            *sample.0.entry(series).or_default() += value;
        }
        sample
    }

    fn get(&self, metric: &str, name: &str) -> Option<f64> {
        self.0.get(&(metric.to_owned(), name.to_owned())).copied()
    }
}

/// The tables that have rows. With an earlier sample and the seconds since, counters are rates.
pub(crate) fn table(now: &Sample, before: Option<(&Sample, f64)>) -> String {
    let mut text = String::new();
    for (row, columns) in TABLES {
        let of_row = |metric: &str| columns.iter().any(|(_, column, _)| *column == metric);
        let names: BTreeSet<&str> = now
            .0
            .keys()
            .filter(|(metric, _)| of_row(metric))
            .map(|(_, name)| name.as_str())
            .collect();
        if names.is_empty() {
            continue;
        }
        let mut names: Vec<&str> = names.into_iter().collect();
        // Numbers by value, then other names.
        names.sort_by_key(|name| (name.parse().unwrap_or(u64::MAX), *name));
        let width = names.iter().map(|name| shown(name).chars().count()).max();
        let width = width.unwrap_or(0).max(row.len());
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n{:<width$}", row.to_uppercase());
        columns.iter().for_each(|(title, ..)| {
            let _ = write!(text, " {title:>11}");
        });
        text.push('\n');
        for name in names {
            let _ = write!(text, "{:<width$}", shown(name));
            for (_, metric, counts) in *columns {
                let _ = write!(text, " {:>11}", figure(now, before, (metric, name), *counts));
            }
            text.push('\n');
        }
    }
    if text.is_empty() { "\nno workers, listeners or dialers\n".to_owned() } else { text }
}

/// One figure, rounded; `-` for a missing one.
fn figure(
    now: &Sample,
    before: Option<(&Sample, f64)>,
    (metric, name): (&str, &str),
    counts: bool,
) -> String {
    let Some(value) = now.get(metric, name) else { return "-".to_owned() };
    let value = match before {
        Some((before, seconds)) if counts && seconds > 0.0 => {
            let before = before.get(metric, name).unwrap_or(value);
            // A counter that fell has restarted.
            (value - before).max(0.0) / seconds
        }
        _ => value,
    };
    format!("{value:.0}")
}

/// A name that a terminal can show: no control characters, and not too long.
fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# HELP doorbell_worker_peers Peers.
# TYPE doorbell_worker_peers gauge
doorbell_worker_peers{worker=\"10\"} 3
doorbell_worker_peers{worker=\"9\"} 2
doorbell_worker_received_total{worker=\"9\"} 1000
doorbell_worker_status_errors_total{worker=\"9\",status=\"13\"} 4
doorbell_listener_refused_total{listener=\"\x1b[2Jquotes\",reason=\"NoSlot\"} 4
doorbell_listener_refused_total{listener=\"\x1b[2Jquotes\",reason=\"Busy\"} 3
orders_open 5
nonsense
";

    #[test]
    fn totals_are_in_rows_by_worker() {
        let text = table(&Sample::parse(TEXT), None);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1][..3], ["WORKER", "PEERS", "RECEIVED"]);
        assert_eq!(rows[2][..4], ["9", "2", "1000", "-"]);
        assert_eq!(rows[3][..3], ["10", "3", "-"]);
        assert_eq!(rows[5], ["LISTENER", "CONNECTIONS", "ENDED", "REFUSED"]);
        assert_eq!(rows[6], ["[2Jquotes", "-", "-", "7"], "no escape reaches the terminal");
        assert_eq!(rows.len(), 7);
    }

    #[test]
    fn counters_become_rates_and_gauges_stay() {
        let before = Sample::parse(TEXT);
        let now = Sample::parse(&TEXT.replace(" 1000\n", " 1500\n").replace(" 4\n", " 2\n"));
        let text = table(&now, Some((&before, 2.0)));
        let row = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("9")[..3], ["9", "2", "250"]);
        assert_eq!(row("[2J").last().map(String::as_str), Some("0"), "it began anew");
    }

    #[test]
    fn a_program_without_workers_has_no_table() {
        assert!(table(&Sample::parse(""), None).contains("no workers"));
    }
}
