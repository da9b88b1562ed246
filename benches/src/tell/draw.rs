//! The charts of a report, from the records of a run.

use serde_json::Value;

use crate::ask::request::Test;
use crate::measure::record::Record;
use crate::tell::chart::{COLOURS, Chart, Look, Series, short};
use crate::tell::peers;
use crate::versus::figure::Figure;

/// A message that takes longer was stalled, in nanoseconds.
pub(crate) const STALL_NS: f64 = 1e6;

/// The colour of what deserves a look: the floor and stalls.
const WARN: usize = 6;

fn of(records: &[Record], test: Test) -> impl Iterator<Item = &Record> {
    records.iter().filter(move |record| record.test == test)
}

/// The places 0, 1, 2 with these values.
fn in_order(values: impl IntoIterator<Item = f64>) -> Vec<(f64, f64)> {
    values.into_iter().enumerate().map(|(n, value)| (n as f64, value)).collect()
}

/// Half round trips by percentile, with the floor.
pub(crate) fn percentiles(records: &[Record]) -> Chart {
    let line = |record: &Record| {
        let half = record.figures.half_rtt_ns?;
        let values = [half.p50, half.p90, half.p99, half.p99_9, half.p99_99, half.max];
        let name = format!("{} B", record.size);
        Some(Series::new(name, Look::Line, in_order(values)))
    };
    // More lines than colours would be no help.
    let mut series: Vec<Series> = of(records, Test::Latency).filter_map(line).take(6).collect();
    let places = ["p50", "p90", "p99", "p99.9", "p99.99", "max"].map(str::to_owned).to_vec();
    let floors: Vec<f64> =
        of(records, Test::Latency).filter_map(|record| record.placement.floor_ns).collect();
    let mut caption =
        "One message in flight, sent back in place by the other side's worker. Lower is \
                       better"
            .to_owned();
    caption.push_str(if floors.is_empty() {
        "."
    } else {
        "; the dashed line is the physical floor."
    });
    if !floors.is_empty() {
        let floor = floors.iter().sum::<f64>() / floors.len() as f64;
        let points = in_order(places.iter().map(|_| floor));
        let name = format!("floor {floor:.0} ns");
        series.push(Series { colour: Some(WARN), ..Series::new(name, Look::Dashed, points) });
    }
    Chart {
        title: "Half round trip".to_owned(),
        caption,
        x: "percentile".to_owned(),
        places,
        y: "half round trip, ns".to_owned(),
        is_log: true,
        series,
        ..Chart::default()
    }
}

/// Round trips by the rate that was due.
pub(crate) fn load(records: &[Record]) -> Chart {
    let mut loads: Vec<&Record> = of(records, Test::Load).collect();
    let rate = |record: &Record| record.figures.offered_per_second.unwrap_or_default();
    loads.sort_by(|one, two| rate(one).total_cmp(&rate(two)));
    let line = |name: &str| {
        let value = |record: &&Record| record.figures.rtt_ns.map_or(0.0, |times| times.named(name));
        let points = in_order(loads.iter().map(value));
        Series::new(name.to_owned(), Look::Line, points)
    };
    let arrivals = loads.first().and_then(|record| record.figures.arrivals.clone());
    let size = loads.first().map_or(0, |record| record.size);
    Chart {
        title: "Latency against load".to_owned(),
        caption: format!(
            "Round trips of {size} B from when each message was due ({} arrivals), whether or not \
             earlier ones were back. Where the lines turn up, the machine can take no more.",
            arrivals.unwrap_or_default()
        ),
        x: "messages due each second".to_owned(),
        places: loads.iter().map(|record| short(rate(record))).collect(),
        y: "round trip, ns".to_owned(),
        is_log: true,
        series: ["p50", "p99", "p99.9", "max"].map(line).into(),
        ..Chart::default()
    }
}

/// Messages a second by size, for each batch, with other libraries beside.
pub(crate) fn rates(records: &[Record], peers: Option<&Value>) -> Chart {
    let rates: Vec<&Record> = of(records, Test::Rate).collect();
    let sorted = |mut numbers: Vec<u32>| {
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    };
    let sizes = sorted(rates.iter().map(|record| record.size).collect());
    let batches = sorted(rates.iter().filter_map(|record| record.batch).collect());
    let place = |size: u32| sizes.iter().position(|known| *known == size);
    let mut series = Vec::new();
    for batch in batches {
        let here = rates.iter().filter(|record| record.batch == Some(batch));
        let points = here.filter_map(|record| {
            Some((place(record.size)? as f64, record.figures.messages_per_second?))
        });
        let name = format!("Doorbell, batches of {batch}");
        series.push(Series::new(name, Look::Line, points.collect()));
    }
    for (name, rates) in peers.map(peers::rates).unwrap_or_default() {
        let points = rates.into_iter().filter_map(|(size, rate)| Some((place(size)? as f64, rate)));
        series.push(Series::new(name, Look::Dashed, points.collect()));
    }
    Chart {
        title: "Rate against size".to_owned(),
        caption: "One way, until the last message has arrived and was checked. Higher is better. \
                  Dashed lines are other libraries, if the report was given their figures."
            .to_owned(),
        x: "bytes of a message".to_owned(),
        places: sizes.iter().map(u32::to_string).collect(),
        y: "messages a second".to_owned(),
        series,
        ..Chart::default()
    }
}

/// The slowest message of each part of the time, with stalls and changes of placement.
pub(crate) fn timeline(records: &[Record]) -> Chart {
    let (mut p99, mut calm, mut stalls) = (Vec::new(), Vec::new(), Vec::new());
    let (mut marks, mut mode, mut now) = (Vec::new(), None, 0.0);
    let timed = |record: &&Record| matches!(record.test, Test::Latency | Test::Load);
    for record in records.iter().filter(timed) {
        let Some(seconds) = record.part_seconds else { continue };
        // The first placement is no change.
        if let (Some(before), Some(here)) = (mode, record.placement.mode)
            && before != here
        {
            marks.push((now, here.to_owned()));
        }
        mode = record.placement.mode.or(mode);
        for part in &record.parts {
            p99.extend(part.p99_ns.map(|ns| (now, ns)));
            if let Some(ns) = part.max_ns {
                if ns > STALL_NS { stalls.push((now, ns)) } else { calm.push((now, ns)) }
            }
            now += seconds;
        }
    }
    let count = stalls.len();
    let of_stalls = Series::new(format!("stall, above 1 ms: {count}"), Look::Dots, stalls);
    let series = vec![
        Series::new("p99 of a part".to_owned(), Look::Line, p99),
        Series::new("slowest of a part".to_owned(), Look::Dots, calm),
        Series { colour: Some(WARN), ..of_stalls },
    ];
    Chart {
        title: "Timeline".to_owned(),
        caption: format!(
            "Latency and load, figure after figure: the p99 and the slowest message of each part \
             of the time. Parts with a stall: {count}. Changes of the placement of the cores, as \
             dashed lines: {}.",
            marks.len()
        ),
        x: "seconds of measuring".to_owned(),
        y: "time, ns".to_owned(),
        is_log: true,
        series,
        marks,
        ..Chart::default()
    }
}

/// Characters of a commit that tell it apart.
const COMMIT: usize = 7;

/// The figures of past runs and of this one, each beside its first value.
pub(crate) fn over_commits(runs: &[Value]) -> Chart {
    let runs: Vec<(&Value, Vec<Figure>)> = runs.iter().map(|run| (run, Figure::all(run))).collect();
    let commit = |run: &Value| {
        let commit = run["commit"].as_str().unwrap_or("unknown");
        commit.chars().take(COMMIT).collect::<String>()
    };
    let (mut series, mut left_out): (Vec<Series>, usize) = (Vec::new(), 0);
    // Those of the last run: others are not measured any more.
    for figure in runs.last().map_or(&[][..], |(_, figures)| figures) {
        let time = |figures: &[Figure]| figures.iter().find(|of| of.is_like(figure))?.time();
        let times: Vec<(f64, f64)> = runs
            .iter()
            .enumerate()
            .filter_map(|(n, (_, figures))| Some((n as f64, time(figures)?)))
            .collect();
        // One dot is no line, and more lines than colours would be no help.
        if times.len() < 2 || series.len() == COLOURS {
            left_out += 1;
            continue;
        }
        let first = times.first().map_or(1.0, |(_, time)| *time);
        let points = times.into_iter().map(|(n, time)| (n, time / first)).collect();
        series.push(Series::new(figure.name.clone(), Look::Line, points));
    }
    let mut caption =
        "The time of a message beside that of the first run, run after run. Lower is \
                       better. Whether a step is more than noise, doorbell-bench compare tells."
            .to_owned();
    if left_out > 0 {
        caption.push_str(&format!(
            " Not drawn: {left_out} figures, of the last run only or more than there are colours."
        ));
    }
    Chart {
        title: "Over commits".to_owned(),
        caption,
        x: "commit".to_owned(),
        places: runs.iter().map(|(run, _)| commit(run)).collect(),
        y: "times as long as at first".to_owned(),
        series,
        ..Chart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::request::Request;
    use crate::measure::record::{Figures, Part, Placement, SCHEMA};

    /// A record of ten parts, of which each takes a second.
    fn record(test: Test, mode: &'static str, slowest: [f64; 10]) -> Record {
        let request = Request::new(test, 64);
        let cores = vec![0, 1];
        let part = |max| Part { p99_ns: Some(90.0), max_ns: Some(max), ..Part::default() };
        Record {
            schema: SCHEMA,
            test,
            provider: "soft",
            device: "soft0".to_owned(),
            size: request.size,
            op: None,
            batch: None,
            bare: false,
            transport: None,
            no_srq: false,
            qps: 1,
            workers: 1,
            idle_qps: 0,
            signal_every: request.signal_every,
            placement: Placement {
                cores,
                sides: "processes",
                floor_ns: Some(50.0),
                mode: Some(mode),
                switches_per_second: None,
            },
            figures: Figures::default(),
            group: None,
            messages: 1,
            lost: 0,
            part_seconds: Some(1.0),
            parts: slowest.map(part).to_vec(),
        }
    }

    #[test]
    fn stalls_and_changes_of_placement_stand_on_the_timeline() {
        let mut stalled = [200.0; 10];
        stalled[7] = 50e6;
        let chart = timeline(&[
            record(Test::Latency, "NEAR", [100.0; 10]),
            record(Test::Rate, "MIX", [0.0; 10]),
            record(Test::Load, "FAR", stalled),
            record(Test::Load, "FAR", [100.0; 10]),
        ]);
        let points: Vec<&[(f64, f64)]> = chart.series.iter().map(|of| &of.points[..]).collect();
        assert_eq!((points[0].len(), points[1].len()), (30, 29), "rates have no times");
        assert_eq!(points[2], [(17.0, 50e6)]);
        assert_eq!(chart.marks, [(10.0, "FAR".to_owned())]);
        assert!(chart.caption.contains("stall: 1. Changes"), "{}", chart.caption);
        assert!(chart.html().unwrap().contains("stall, above 1 ms: 1"));
    }

    #[test]
    fn past_runs_are_drawn_over_their_commits() {
        let run = |commit: &str, size: u64, ns: f64| {
            let parts = [serde_json::json!({"mean_ns": ns})];
            let record = serde_json::json!({"test": "latency", "size": size, "parts": parts});
            serde_json::json!({"commit": commit, "results": [record]})
        };
        let runs =
            [run("0123456789", 64, 50.0), run("b", 8, 9.0), run("c", 64, 55.0), run("d", 64, 45.0)];
        let chart = over_commits(&runs);
        assert_eq!(chart.places, ["0123456", "b", "c", "d"]);
        assert_eq!(chart.series.len(), 1);
        assert_eq!(chart.series[0].name, "latency 64 B");
        assert_eq!(chart.series[0].points, [(0.0, 1.0), (2.0, 1.1), (3.0, 0.9)]);
        assert_eq!(over_commits(&[]).html().unwrap(), "");
        assert!(!chart.caption.contains("Not drawn"), "{}", chart.caption);
        // What only the last run has is no line.
        let chart = over_commits(&[run("a", 64, 50.0), run("b", 8, 9.0)]);
        assert!(chart.series.is_empty() && chart.caption.contains("Not drawn: 1 figures"));
    }

    #[test]
    fn other_libraries_stand_beside_the_rates() {
        let mut rate = record(Test::Rate, "NEAR", [0.0; 10]);
        (rate.batch, rate.figures.messages_per_second) = (Some(16), Some(2e7));
        let peers = serde_json::json!({"results": [{
            "test": "rate", "size": 64,
            "entries": [{"peer": "doorbell", "batch": 16}, {"peer": "UCX uct am"}],
            "rounds": [{"figures": [null, {"counts": true, "messages_per_second": 5e6}]}],
        }]});
        let chart = rates(&[rate], Some(&peers));
        let names: Vec<&str> = chart.series.iter().map(|of| &of.name[..]).collect();
        assert_eq!(names, ["Doorbell, batches of 16", "UCX"]);
        assert_eq!(
            (chart.series[1].look, &chart.series[1].points[..]),
            (Look::Dashed, &[(0.0, 5e6)][..])
        );
    }
}
